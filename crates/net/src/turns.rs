//! Turns of a QUIC connection's streams at its send window: who waits longest writes first.
//!
//! quinn wakes the streams that wait for room in the window, the last one first. When each acknowledgement makes room
//! for one of them, two streams alternate, and the others wait until those two are done.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The streams of a connection that wait for room.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// Streams that have not tried to write since the connection made room, longest waiting first. The first has been
    /// woken.
    waiting: VecDeque<Arc<Place>>,
    /// Streams that found no room since. quinn wakes them.
    tried: VecDeque<Arc<Place>>,
}

/// A stream's place. As a waker, it is what quinn wakes.
pub(crate) struct Place {
    turns: Arc<Turns>,
    /// Where it is: changes with the queue's lock held.
    state: AtomicU8,
    /// The task that writes to the stream.
    task: Mutex<Option<Waker>>,
}

/// In no queue, in `waiting`, and in `tried`.
const OUT: u8 = 0;
const WAITING: u8 = 1;
const TRIED: u8 = 2;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    fn wake_first(&self) {
        self.waiting.iter().take(1).for_each(|first| first.wake_task());
    }

    /// Removes a place wherever it is. One that writes is the last that tried.
    fn remove(&mut self, gone: &Arc<Place>) {
        let is_other = |place: &Arc<Place>| !Arc::ptr_eq(place, gone);
        match gone.state.swap(OUT, Ordering::Relaxed) {
            WAITING => self.waiting.retain(is_other),
            TRIED if self.tried.back().is_some_and(is_other) => self.tried.retain(is_other),
            TRIED => drop(self.tried.pop_back()),
            _ => {}
        }
    }
}

impl Place {
    pub(crate) fn new(turns: &Arc<Turns>) -> Arc<Place> {
        Arc::new(Place { turns: turns.clone(), state: AtomicU8::new(OUT), task: Mutex::default() })
    }

    fn wake_task(&self) {
        locked(&self.task).iter().for_each(Waker::wake_by_ref);
    }

    /// Whether the stream may write now, with this place as waker. If not, its task is woken when it may.
    pub(crate) fn may_write(self: &Arc<Place>, task: &Waker) -> bool {
        locked(&self.task).get_or_insert_with(|| task.clone()).clone_from(task);
        let mut queue = locked(&self.turns.0);
        let state = self.state.load(Ordering::Relaxed);
        let may = match queue.waiting.front() {
            _ if state == TRIED => false,
            Some(first) => Arc::ptr_eq(first, self),
            None => true,
        };
        if may {
            queue.waiting.pop_front();
            // Before it tries, because quinn may wake it at once.
            self.state.store(TRIED, Ordering::Relaxed);
            queue.tried.push_back(self.clone());
        } else if state == OUT {
            self.state.store(WAITING, Ordering::Relaxed);
            queue.waiting.push_back(self.clone());
        }
        may
    }

    /// The stream wrote something. The next one may.
    pub(crate) fn wrote(self: &Arc<Place>) {
        let mut queue = locked(&self.turns.0);
        queue.remove(self);
        // The connection has room, so they wait for room of their own streams.
        queue.tried.drain(..).for_each(|place| place.state.store(OUT, Ordering::Relaxed));
        queue.wake_first();
    }

    /// The stream found no room, and quinn wakes this place. The next one tries, because the stream's own window may be
    /// the cause.
    pub(crate) fn found_no_room(&self) {
        locked(&self.turns.0).wake_first();
    }

    /// The stream does not want to write any more.
    pub(crate) fn leave(self: &Arc<Place>) {
        let mut queue = locked(&self.turns.0);
        queue.remove(self);
        queue.wake_first();
    }
}

impl Wake for Place {
    fn wake(self: Arc<Place>) {
        let mut queue = locked(&self.turns.0);
        if self.state.load(Ordering::Relaxed) == OUT {
            return self.wake_task();
        }
        // Room for one may be room for all, in the order in which they came.
        while let Some(place) = queue.tried.pop_back() {
            place.state.store(WAITING, Ordering::Relaxed);
            queue.waiting.push_front(place);
        }
        queue.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task, which is run when it is woken.
    struct Task(usize, Arc<Mutex<VecDeque<usize>>>);

    impl Wake for Task {
        fn wake(self: Arc<Task>) {
            locked(&self.1).push_back(self.0);
        }
    }

    /// Lets streams write until the acknowledgements are used up; each makes room for one write. Those in `full` have
    /// no room of their own. Returns how often each stream wrote.
    fn write(streams: usize, acknowledgements: usize, full: &[usize]) -> Vec<usize> {
        let (turns, runnable) = (Arc::<Turns>::default(), Arc::<Mutex<VecDeque<usize>>>::default());
        let places: Vec<_> = (0..streams).map(|_| Place::new(&turns)).collect();
        let task = |number: usize| Waker::from(Arc::new(Task(number, runnable.clone())));
        let next = || locked(&runnable).pop_front();
        let (mut room, mut blocked, mut wrote) = (0, Vec::new(), vec![0; streams]);
        (0..streams).for_each(|number| task(number).wake());
        for _ in 0..=acknowledgements {
            while let Some(number) = next() {
                let place = &places[number];
                if !place.may_write(&task(number)) {
                    continue;
                }
                if full.contains(&number) {
                    place.found_no_room();
                } else if room == 0 {
                    blocked.push(Waker::from(place.clone()));
                    place.found_no_room();
                } else {
                    (room, wrote[number]) = (room - 1, wrote[number] + 1);
                    place.wrote();
                    // It has more to write.
                    task(number).wake();
                }
            }
            room += 1;
            // As quinn does it.
            while let Some(last) = blocked.pop() {
                Waker::wake(last);
            }
        }
        wrote
    }

    #[test]
    fn streams_write_in_turn_when_room_is_made_for_one() {
        assert_eq!(write(7, 70, &[]), [10; 7]);
    }

    #[test]
    fn a_stream_without_room_of_its_own_keeps_no_other_from_writing() {
        assert_eq!(write(4, 60, &[0]), [0, 20, 20, 20]);
    }
}
