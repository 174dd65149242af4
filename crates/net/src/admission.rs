//! Admission of peers: a bounded number of places, shared by address ([`tidegate_control::shares`]).
//!
//! A new peer always gets a place. If all are taken, the network with the most places loses its idlest one. So neither
//! many peers nor silent peers lock out a peer from elsewhere, and from the same address (NAT, loopback) the newest stay.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use tidegate_control::shares::{Shares, network};
use tidegate_control::units::{Span, Time};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::{clock, descriptors};

/// Accepts the next connection after earlier ones had their turn, so that a crowd is not accepted faster than it is
/// dismissed. Without free descriptors it waits for connections to end.
pub(crate) async fn next_connection(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    tokio::task::yield_now().await;
    loop {
        match listener.accept().await {
            Ok(connection) => return connection,
            Err(error) => {
                descriptors::note(&error);
                clock::until(clock::now() + Span::from_millis(50)).await;
            }
        }
    }
}

/// Places for peers, shared by the tasks of one thread.
#[derive(Debug)]
pub(crate) struct Admission {
    shares: RefCell<Shares<IpAddr, IpAddr, u64>>,
    peers: RefCell<BTreeMap<u64, Peer>>,
    last: Cell<u64>,
}

#[derive(Debug)]
struct Peer {
    /// Dropping it tells the peer that it lost its place.
    _keep: oneshot::Sender<()>,
    used: Used,
}

/// When a peer was last active; its task sets it.
pub(crate) type Used = Rc<Cell<Time>>;

impl Admission {
    /// Creates an admission with this number of places.
    ///
    /// # Panics
    /// If `places` is zero.
    pub(crate) fn new(places: usize) -> Admission {
        let (peers, last) = Default::default();
        Admission { shares: RefCell::new(Shares::new(places)), peers, last }
    }

    /// Changes the number of places. The next newcomer displaces what is too much.
    pub(crate) fn set_places(&self, places: usize) {
        self.shares.borrow_mut().set_places(places);
    }

    /// Runs a peer's handshake. `None` if the peer lost its place meanwhile.
    pub(crate) async fn run<T>(&self, from: IpAddr, handshake: impl Future<Output = T>) -> Option<T> {
        self.run_in_use(from, Used::default(), handshake).await
    }

    /// As [`run`](Self::run), for a task that sets when it was last used: of a network's peers, the idlest goes first.
    pub(crate) async fn run_in_use<T>(
        &self,
        from: IpAddr,
        used: Used,
        task: impl Future<Output = T>,
    ) -> Option<T> {
        let (keep, lost) = oneshot::channel();
        let number = self.last.get() + 1;
        self.last.set(number);
        {
            let (mut shares, mut peers) = (self.shares.borrow_mut(), self.peers.borrow_mut());
            loop {
                let last = |number: &u64| peers.get(number).map_or(Time::ZERO, |peer| peer.used.get());
                let Some(displaced) = shares.displaced(&network(from), last) else { break };
                peers.remove(&displaced);
            }
            shares.admit(clock::now(), network(from), number);
            peers.insert(number, Peer { _keep: keep, used });
        }
        let _place = Place { admission: self, number };
        tokio::select! {
            biased;
            result = task => Some(result),
            _ = lost => None,
        }
    }

    /// The number of peers that have a place.
    #[cfg(test)]
    pub(crate) fn peers(&self) -> usize {
        self.peers.borrow().len()
    }
}

struct Place<'a> {
    admission: &'a Admission,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.admission.shares.borrow_mut().release(&self.number);
        self.admission.peers.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn a_new_peer_displaces_the_oldest() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let admission = Rc::new(Admission::new(3));
            let silent = |admission: Rc<Admission>| async move {
                admission.run(HERE, std::future::pending::<()>()).await
            };
            let first: Vec<_> =
                (0..10_000).map(|_| tokio::task::spawn_local(silent(admission.clone()))).collect();
            // The runtime polls only a few tasks per turn.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(admission.peers(), 3);
            assert_eq!(admission.run(HERE, async { 7 }).await, Some(7));
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
                    admission.run(HERE, std::future::pending::<()>()).await;
                    drop(tcp);
                    here.set(here.get() - 1);
                });
            }
            assert!((10..40).contains(&most), "{most} at a time");
        }));
    }
}
