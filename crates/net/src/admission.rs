//! Admission of peers that have not authenticated yet.
//!
//! The number of places is bounded, and a new peer displaces the oldest. So neither many peers nor silent peers lock
//! out a peer that authenticates at once, even from the same address (NAT, loopback).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;

use tidegate_control::units::Span;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::clock;

/// Accepts the next connection after earlier ones had their turn, so that a crowd is not accepted faster than it is
/// dismissed. Without free descriptors it waits for connections to end.
pub async fn next_connection(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    tokio::task::yield_now().await;
    loop {
        match listener.accept().await {
            Ok(connection) => return connection,
            Err(_) => clock::until(clock::now() + Span::from_millis(50)).await,
        }
    }
}

/// Places for unauthenticated peers, shared by the tasks of one thread.
#[derive(Debug)]
pub struct Admission {
    places: usize,
    /// By age. Dropping a sender tells the peer that it lost its place.
    peers: RefCell<BTreeMap<u64, oneshot::Sender<()>>>,
    last: Cell<u64>,
}

impl Admission {
    /// Creates an admission with this number of places.
    ///
    /// # Panics
    /// If `places` is zero.
    pub fn new(places: usize) -> Admission {
        assert!(places > 0, "zero places admit no peer");
        Admission { places, peers: RefCell::default(), last: Cell::new(0) }
    }

    /// Runs a peer's handshake. `None` if the peer lost its place meanwhile.
    pub async fn run<T>(&self, handshake: impl Future<Output = T>) -> Option<T> {
        let (keep, lost) = oneshot::channel();
        let number = self.last.get() + 1;
        self.last.set(number);
        {
            let mut peers = self.peers.borrow_mut();
            if peers.len() >= self.places {
                peers.pop_first();
            }
            peers.insert(number, keep);
        }
        let _place = Place { admission: self, number };
        tokio::select! {
            biased;
            result = handshake => Some(result),
            _ = lost => None,
        }
    }

    /// The number of peers that have a place.
    pub fn peers(&self) -> usize {
        self.peers.borrow().len()
    }
}

struct Place<'a> {
    admission: &'a Admission,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.admission.peers.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_new_peer_displaces_the_oldest() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let admission = Rc::new(Admission::new(3));
            let silent =
                |admission: Rc<Admission>| async move { admission.run(std::future::pending::<()>()).await };
            let first: Vec<_> =
                (0..10_000).map(|_| tokio::task::spawn_local(silent(admission.clone()))).collect();
            // The runtime polls only a few tasks per turn.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(admission.peers(), 3);
            assert_eq!(admission.run(async { 7 }).await, Some(7));
            assert_eq!(admission.peers(), 2, "one of the three made room");
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            let over = first.iter().filter(|task| task.is_finished()).count();
            assert!(over >= 9_990, "{over} were told");
            first.iter().for_each(tokio::task::JoinHandle::abort);
        }));
    }

    /// All clients connect before the first is accepted, and stay silent.
    #[test]
    fn a_crowd_is_not_accepted_faster_than_dismissed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let crowd: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
            let (admission, here) = (Rc::new(Admission::new(10)), Rc::new(Cell::new(0)));
            let mut most = 0;
            for _ in 0..crowd.len() {
                let (tcp, _) = next_connection(&listener).await;
                here.set(here.get() + 1);
                most = most.max(here.get());
                let (admission, here) = (admission.clone(), here.clone());
                tokio::task::spawn_local(async move {
                    admission.run(std::future::pending::<()>()).await;
                    drop(tcp);
                    here.set(here.get() - 1);
                });
            }
            assert!((10..40).contains(&most), "{most} at a time");
        }));
    }
}
