//! Name lookups of an exit. The system's resolver blocks a thread for up to 30 s, and cannot be interrupted, so each
//! circuit and each neighbour gets a share of the threads ([`most_for_one`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tidegate_control::shares::most_for_one;
use tidegate_proto::node::CircuitKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::spawn_blocking;

/// Running lookups of a circuit, of all circuits from a neighbour, and of all: tokio has 512 threads for blocking calls.
const OF_CIRCUIT: usize = 8;
const OF_NEIGHBOUR: usize = 64;
const OF_ALL: usize = 512;

/// The holder of a lookup: the network of the circuit's neighbour, and the circuit.
pub(crate) type Holder = (Option<IpAddr>, CircuitKey);

/// Running and waiting lookups.
#[derive(Default)]
pub(super) struct Lookups {
    circuits: RefCell<BTreeMap<CircuitKey, Weak<Semaphore>>>,
    neighbours: NeighbourLookups,
}

/// Lookups of each neighbour, which the shards of a relay share.
#[derive(Clone, Default)]
pub(crate) struct NeighbourLookups(Arc<Mutex<Neighbours>>);

#[derive(Default)]
struct Neighbours {
    running: usize,
    /// The last number of a waiting lookup.
    last: u64,
    of: BTreeMap<Option<IpAddr>, Neighbour>,
}

/// Lookups of a neighbour that run, and those that wait, in order.
#[derive(Default)]
struct Neighbour {
    running: usize,
    waiting: BTreeMap<u64, oneshot::Sender<Place>>,
}

/// The place of a running lookup among all.
struct Place(Option<(NeighbourLookups, Option<IpAddr>)>);

/// A waiting lookup. It leaves if its caller gives up.
struct Seat<'a>(&'a NeighbourLookups, Option<IpAddr>, u64);

impl Neighbours {
    /// Whether a neighbour with this number of lookups may run another one.
    fn may_run(&self, own: usize) -> bool {
        own < OF_NEIGHBOUR.min(most_for_one(OF_ALL, self.running))
    }

    fn begin(&mut self, of: Option<IpAddr>) {
        self.running += 1;
        self.of.entry(of).or_default().running += 1;
    }

    fn end(&mut self, of: Option<IpAddr>) {
        self.running -= 1;
        if let Some(neighbour) = self.of.get_mut(&of) {
            neighbour.running -= 1;
        }
        self.forget_if_idle(of);
    }

    fn forget_if_idle(&mut self, of: Option<IpAddr>) {
        if self.of.get(&of).is_some_and(|known| known.running == 0 && known.waiting.is_empty()) {
            self.of.remove(&of);
        }
    }

    /// Takes the lookup that may run next: of the neighbour that runs the fewest.
    fn next(&mut self) -> Option<(Option<IpAddr>, oneshot::Sender<Place>)> {
        let waiting = self.of.iter().filter(|(_, neighbour)| !neighbour.waiting.is_empty());
        let (own, of) = waiting.map(|(of, neighbour)| (neighbour.running, *of)).min()?;
        if !self.may_run(own) {
            return None;
        }
        let (_, next) = self.of.get_mut(&of)?.waiting.pop_first()?;
        self.begin(of);
        Some((of, next))
    }
}

impl NeighbourLookups {
    fn lock(&self) -> MutexGuard<'_, Neighbours> {
        self.0.lock().expect("no shard panics while it counts")
    }

    /// Waits until a neighbour may run another lookup.
    async fn place(&self, of: Option<IpAddr>) -> io::Result<Place> {
        let (number, given) = {
            let mut all = self.lock();
            let known = all.of.get(&of);
            let (own, waits) = known.map_or((0, false), |known| (known.running, !known.waiting.is_empty()));
            if !waits && all.may_run(own) {
                all.begin(of);
                return Ok(Place(Some((self.clone(), of))));
            }
            all.last += 1;
            let (number, (place, given)) = (all.last, oneshot::channel());
            all.of.entry(of).or_default().waiting.insert(number, place);
            (number, given)
        };
        let _seat = Seat(self, of, number);
        given.await.map_err(|_| io::ErrorKind::Interrupted.into())
    }

    /// Ends a lookup, and lets waiting ones run.
    fn end(&self, of: Option<IpAddr>) {
        self.lock().end(of);
        loop {
            let Some((of, next)) = self.lock().next() else { return };
            if let Err(mut place) = next.send(Place(Some((self.clone(), of)))) {
                // Its caller gave up meanwhile.
                place.0 = None;
                self.lock().end(of);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((all, of)) = self.0.take() {
            all.end(of);
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let Seat(all, of, number) = self;
        let mut all = all.lock();
        if let Some(neighbour) = all.of.get_mut(of) {
            neighbour.waiting.remove(number);
        }
        all.forget_if_idle(*of);
    }
}

/// The permits of a circuit, shared as long as a lookup waits for one or holds one.
fn permits(all: &mut BTreeMap<CircuitKey, Weak<Semaphore>>, circuit: CircuitKey) -> Arc<Semaphore> {
    if let Some(known) = all.get(&circuit).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, permits| permits.strong_count() > 0);
    let permits = Arc::new(Semaphore::new(OF_CIRCUIT));
    all.insert(circuit, Arc::downgrade(&permits));
    permits
}

impl Lookups {
    /// Lookups that count with those of other shards.
    pub(crate) fn counting(neighbours: NeighbourLookups) -> Lookups {
        Lookups { circuits: RefCell::default(), neighbours }
    }

    /// Resolves a name.
    ///
    /// # Errors
    /// The resolver's.
    pub(crate) async fn lookup(&self, of: &Holder, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let host = host.to_owned();
        self.run(of, move || Ok((host.as_str(), port).to_socket_addrs()?.collect())).await
    }

    /// The name of an address.
    ///
    /// # Errors
    /// The resolver's, or `NotFound` for an address without a name.
    pub(crate) async fn name_of(&self, of: &Holder, address: IpAddr) -> io::Result<String> {
        let name = self.run(of, move || Ok(dns_lookup::lookup_addr(&address)?)).await?;
        // The resolver writes an address without a name as itself.
        if name.parse::<IpAddr>().is_ok() { Err(io::ErrorKind::NotFound.into()) } else { Ok(name) }
    }

    /// Runs blocking work once its holder may. If the caller gives up, running work keeps its place until it ends.
    async fn run<T: Send + 'static>(
        &self,
        (neighbour, circuit): &Holder,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let of_circuit = permits(&mut self.circuits.borrow_mut(), *circuit);
        // First the narrower limit: a circuit that waits does not take a place of its neighbour.
        let permit = of_circuit.acquire_owned().await;
        let permit = permit.map_err(|_| io::Error::from(io::ErrorKind::Interrupted))?;
        let places: (OwnedSemaphorePermit, Place) = (permit, self.neighbours.place(*neighbour).await?);
        spawn_blocking(move || {
            let result = work();
            drop(places);
            result
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::rc::Rc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn of(neighbour: u8, circuit: u32) -> Holder {
        (Some(Ipv4Addr::from([10, 0, 0, neighbour]).into()), CircuitKey(circuit))
    }

    /// Runs `act` while these holders ask for names that never resolve.
    fn while_lookups_hang(holders: impl Iterator<Item = Holder>, act: impl AsyncFnOnce(&Lookups)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (hang, ends) = channel::<()>();
        let ends = Arc::new(Mutex::new(ends));
        runtime.block_on(LocalSet::new().run_until(async {
            let lookups = Rc::new(Lookups::default());
            for holder in holders {
                let (lookups, ends) = (lookups.clone(), ends.clone());
                spawn_local(async move {
                    let hangs = move || {
                        let _ = ends.lock().map(|ends| ends.recv());
                        Ok(())
                    };
                    lookups.run(&holder, hangs).await
                });
            }
            for _ in 0..100 {
                yield_now().await;
            }
            act(&lookups).await;
            drop(hang);
        }));
    }

    /// Circuits of one neighbour ask for 600 names that never resolve.
    #[test]
    fn hanging_lookups_delay_only_their_neighbour() {
        while_lookups_hang((0..600).map(|n| of(1, n % 3)), async |lookups| {
            assert_eq!(lookups.run(&of(2, 9), || Ok(7)).await.unwrap(), 7);
            // The neighbour's other circuits have a share, too.
            assert_eq!(lookups.run(&of(1, 8), || Ok(8)).await.unwrap(), 8);
        });
    }

    /// Eight neighbours with 64 threads each would have all threads.
    #[test]
    fn hanging_lookups_of_many_neighbours_leave_threads_to_others() {
        while_lookups_hang((0..1000).map(|n| of((n % 10) as u8, n / 8)), async |lookups| {
            let running = lookups.neighbours.lock().running;
            assert!((400..480).contains(&running), "{running}");
            for newcomer in 100..150 {
                let looked = tokio::time::timeout(PATIENCE, lookups.run(&of(newcomer, 999), || Ok(7))).await;
                assert_eq!(looked.expect("it runs at once").unwrap(), 7);
            }
            assert_eq!(lookups.neighbours.lock().running, running);
        });
    }

    #[test]
    fn waiting_lookups_run_in_turn_and_leave_no_trace() {
        let all = NeighbourLookups::default();
        let place = |neighbour| all.place(Some(Ipv4Addr::from([10, 0, 0, neighbour]).into()));
        let mut running: Vec<_> =
            (0..OF_NEIGHBOUR).map(|_| place(1).now_or_never().expect("it may").unwrap()).collect();
        let (mut given_up, mut next) = (Box::pin(place(1)), Box::pin(place(1)));
        assert!(given_up.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(given_up);
        running.pop();
        running.push(next.now_or_never().expect("its turn has come").unwrap());
        assert_eq!(all.lock().running, OF_NEIGHBOUR);
        running.clear();
        let all = all.lock();
        assert_eq!((all.running, all.of.len()), (0, 0));
    }
}
