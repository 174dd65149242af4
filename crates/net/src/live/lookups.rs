//! Name lookups of an exit. The system's resolver blocks a thread for up to 30 s, and cannot be interrupted, so each
//! circuit and each neighbour gets a share of the threads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, Weak};

use tidegate_proto::node::CircuitKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// Running lookups of a circuit, and of all circuits from a neighbour; tokio has 512 threads for blocking calls.
const OF_CIRCUIT: usize = 8;
const OF_NEIGHBOUR: usize = 64;

/// The holder of a lookup: the network of the circuit's neighbour, and the circuit.
pub(crate) type Holder = (Option<IpAddr>, CircuitKey);

/// Running and waiting lookups.
#[derive(Default)]
pub struct Lookups {
    circuits: RefCell<BTreeMap<CircuitKey, Weak<Semaphore>>>,
    neighbours: NeighbourLookups,
}

/// Lookups of each neighbour, which the shards of a relay share.
pub(crate) type NeighbourLookups = Arc<Mutex<BTreeMap<Option<IpAddr>, Weak<Semaphore>>>>;

/// The permits of a key, shared as long as a lookup waits for one or holds one.
fn permits<K: Ord + Clone>(all: &mut BTreeMap<K, Weak<Semaphore>>, key: &K, most: usize) -> Arc<Semaphore> {
    if let Some(known) = all.get(key).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, permits| permits.strong_count() > 0);
    let permits = Arc::new(Semaphore::new(most));
    all.insert(key.clone(), Arc::downgrade(&permits));
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

    /// Runs blocking work once its holder may. If the caller gives up, running work keeps its place until it ends.
    async fn run<T: Send + 'static>(
        &self,
        (neighbour, circuit): &Holder,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let of_circuit = permits(&mut self.circuits.borrow_mut(), circuit, OF_CIRCUIT);
        let of_neighbour = {
            let mut neighbours = self.neighbours.lock().expect("no shard panics while it counts");
            permits(&mut neighbours, neighbour, OF_NEIGHBOUR)
        };
        let permit = |permits: Arc<Semaphore>| async {
            permits.acquire_owned().await.map_err(|_| io::Error::from(io::ErrorKind::Interrupted))
        };
        // First the narrower limit: a circuit that waits does not take a place of its neighbour.
        let places: [OwnedSemaphorePermit; 2] = [permit(of_circuit).await?, permit(of_neighbour).await?];
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

    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;

    /// Circuits of one neighbour ask for 600 names that never resolve.
    #[test]
    fn hanging_lookups_delay_only_their_neighbour() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (hang, ends) = channel::<()>();
        let ends = Arc::new(Mutex::new(ends));
        runtime.block_on(LocalSet::new().run_until(async {
            let lookups = Rc::new(Lookups::default());
            let of = |neighbour: u8, circuit| {
                (Some(Ipv4Addr::from([10, 0, 0, neighbour]).into()), CircuitKey(circuit))
            };
            for n in 0..600 {
                let (lookups, ends) = (lookups.clone(), ends.clone());
                spawn_local(async move {
                    let hangs = move || {
                        let _ = ends.lock().map(|ends| ends.recv());
                        Ok(())
                    };
                    lookups.run(&of(1, n % 3), hangs).await
                });
            }
            for _ in 0..100 {
                yield_now().await;
            }
            assert_eq!(lookups.run(&of(2, 9), || Ok(7)).await.unwrap(), 7);
            // The neighbour's other circuits have a share, too.
            assert_eq!(lookups.run(&of(1, 8), || Ok(8)).await.unwrap(), 8);
            drop(hang);
        }));
    }
}
