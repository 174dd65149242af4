//! The turn of waiting for a relay's tokens: one connection has it at a time, on any thread.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_control::turns::{Place, Sharing, Turns};
use tokio::sync::oneshot;

/// Connections that wait for their turn. Clones are handles to the same queue.
#[derive(Clone, Default)]
pub(crate) struct TurnQueue(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    is_taken: bool,
    waiting: Turns<IpAddr, oneshot::Sender<Turn>>,
}

/// The turn. It passes to the next connection when dropped.
pub(crate) struct Turn(Option<TurnQueue>);

impl TurnQueue {
    /// Waits for a turn of a group; `None`: for one of its own.
    pub(crate) async fn turn(&self, group: Option<Sharing<IpAddr>>) -> Turn {
        let (place, given) = {
            let mut queue = self.lock();
            if !std::mem::replace(&mut queue.is_taken, true) {
                return Turn(Some(self.clone()));
            }
            let (turn, given) = oneshot::channel();
            (queue.waiting.wait(group, turn), given)
        };
        let _seat = Seat { queue: self, place };
        given.await.expect("a turn is passed on until it is taken")
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().expect("no shard panics while it waits")
    }

    /// Gives the turn to the next connection that still waits.
    fn pass_on(&self) {
        loop {
            let next = {
                let mut queue = self.lock();
                let next = queue.waiting.take();
                queue.is_taken = next.is_some();
                next
            };
            let Some(next) = next else { return };
            // Its connection may have ended meanwhile. Its turn must not be passed on twice.
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.take().inspect(TurnQueue::pass_on);
    }
}

/// The place of a connection that waits. A connection that ends leaves it.
struct Seat<'a> {
    queue: &'a TurnQueue,
    place: Place<IpAddr>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.queue.lock().waiting.leave(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_connection_that_ends_gives_its_turn_to_the_next() {
        let queue = TurnQueue::default();
        let first = queue.turn(None).now_or_never().expect("the turn is free");
        let mut ended = Box::pin(queue.turn(None));
        let mut given = Box::pin(queue.turn(None));
        let mut last = pin!(queue.turn(None));
        assert!([&mut ended, &mut given].into_iter().all(|turn| turn.now_or_never().is_none()));
        assert!((&mut last).now_or_never().is_none());
        drop(ended);
        drop(first);
        // Its turn has come, but it ends before it takes it.
        drop(given);
        assert!(last.now_or_never().is_some());
        assert!(queue.turn(None).now_or_never().is_some(), "the last turn is over");
        assert!(queue.lock().waiting.is_empty());
    }
}
