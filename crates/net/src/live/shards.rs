//! The threads of a relay's shards beyond the first, which has the relay's own thread.
//!
//! The first shard accepts all connections and hands each to the shard with the fewest. It also passes on orders, keys and
//! requests for counts. Each message is one variant of [`Command`].

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tidegate_proto::crypto::{OwnKeys, SharedNames};
use tidegate_proto::defence;
use tidegate_proto::links::Config;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use super::bandwidth::Limit;
use super::channel::{Accepted, Links, Shown};
use super::crossing::Crossing;
use super::shard::{Common, Rules, Shard, ShardSettings, log_failed_handshake};
use super::status::{Counts, count};

/// Connections that wait for a shard to begin their handshakes.
const WAITING: usize = 64;

/// Number of connections of a shard.
type Load = Arc<AtomicUsize>;

/// A connection that counts for a shard and for its address until it is dropped.
pub(crate) struct Counted {
    load: Load,
    _defended: defence::Counted,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection for a shard.
struct Arrival {
    tcp: std::net::TcpStream,
    from: IpAddr,
    counted: Counted,
    /// Dropped when the handshake has ended. It closes when the handshake loses its place.
    shaking: oneshot::Sender<()>,
}

/// A message to a shard.
enum Command {
    Reload(Box<ShardSettings>),
    Drain,
    /// Say whether no circuit needs waiting for.
    IsDrained(oneshot::Sender<bool>),
    /// Obey the new parameters of the defences.
    Defend,
    /// Follow other rules of the network.
    Follow(Rules),
    Answer(Box<OwnKeys>),
    Present(Shown),
    Count {
        circuits: bool,
        reply: oneshot::Sender<Counts>,
    },
}

/// The arguments of a thread that starts a shard.
pub(crate) struct Start {
    /// State that the shards share.
    pub common: Common,
    /// Configuration of the nodes.
    pub config: Config,
    /// The settings that can change.
    pub settings: ShardSettings,
    /// The keys that answer circuit handshakes.
    pub keys: OwnKeys,
    /// The keys of links.
    pub shown: Shown,
}

/// The other shards of a relay.
pub(crate) struct OtherShards {
    threads: RefCell<Vec<Thread>>,
    /// Connections of all shards, beginning with the first.
    loads: Vec<Load>,
}

struct Thread {
    arrivals: mpsc::Sender<Arrival>,
    commands: mpsc::UnboundedSender<Command>,
    /// Ends with the thread.
    ended: Option<oneshot::Receiver<()>>,
    handle: JoinHandle<()>,
}

/// Ends the other shards when it is dropped. Handshakes may keep handles to them for longer.
pub(crate) struct EndOnDrop(pub Rc<OtherShards>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let threads = self.0.threads.take();
        let handles: Vec<_> = threads.into_iter().map(|thread| thread.handle).collect();
        // The threads end because the senders of their orders are gone. A panic has been reported already.
        handles.into_iter().for_each(|handle| drop(handle.join()));
    }
}

impl OtherShards {
    /// Starts a thread for each shard beyond the first; `crossings` are the ends of their queues.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub(crate) fn start(
        crossings: Vec<Vec<Option<Crossing>>>,
        start: impl Fn() -> Start,
    ) -> io::Result<OtherShards> {
        let loads = vec![Load::default(); 1];
        let mut shards = OtherShards { threads: RefCell::default(), loads };
        for (crossings, number) in crossings.into_iter().zip(1..) {
            let (arrivals, arriving) = mpsc::channel(WAITING);
            let (commands, commanded) = mpsc::unbounded_channel();
            let (alive, ended) = oneshot::channel();
            let start = start();
            let thread = std::thread::Builder::new().name(format!("shard-{number}"));
            let handle = thread.spawn(move || {
                let _alive: oneshot::Sender<()> = alive;
                if let Err(cause) = run(number, start, crossings, arriving, commanded) {
                    tracing::error!(shard = number, %cause, "shard failed");
                }
            })?;
            shards.threads.get_mut().push(Thread { arrivals, commands, ended: Some(ended), handle });
            shards.loads.push(Load::default());
        }
        Ok(shards)
    }

    /// Waits until a thread ends, which none does by itself. Returns its number. Only the first call notices.
    pub(crate) fn failed(&mut self) -> impl Future<Output = usize> + use<> {
        let ended: Vec<_> =
            self.threads.get_mut().iter_mut().filter_map(|thread| thread.ended.take()).collect();
        async {
            if ended.is_empty() {
                return std::future::pending().await;
            }
            futures_util::future::select_all(ended).await.1 + 1
        }
    }

    /// The number of the shard with the fewest connections, and a place in it for a connection.
    pub(crate) fn least_loaded(&self, defended: defence::Counted) -> (usize, Counted) {
        let loads = self.loads.iter().enumerate();
        let (number, load) =
            loads.min_by_key(|(_, load)| load.load(Ordering::Relaxed)).expect("a first shard");
        load.fetch_add(1, Ordering::Relaxed);
        (number, Counted { load: load.clone(), _defended: defended })
    }

    /// Hands a connection to another shard. Returns when its handshake has ended, and ends it if dropped.
    ///
    /// # Errors
    /// If the connection cannot be moved.
    pub(crate) async fn shake(
        &self,
        shard: usize,
        tcp: TcpStream,
        from: IpAddr,
        counted: Counted,
    ) -> io::Result<()> {
        let (shaking, shaken) = oneshot::channel();
        let arrival = Arrival { tcp: tcp.into_std()?, from, counted, shaking };
        // An ended shard drops the connection; the relay ends with it.
        let arrivals = self.threads.borrow().get(shard - 1).map(|thread| thread.arrivals.clone());
        if let Some(arrivals) = arrivals {
            let _ = arrivals.send(arrival).await;
            let _ = shaken.await;
        }
        Ok(())
    }

    fn tell(&self, command: impl Fn() -> Command) {
        // A shard that has ended ends the relay, so the message is not needed.
        self.threads.borrow().iter().for_each(|thread| drop(thread.commands.send(command())));
    }

    /// Changes the settings of the other shards.
    pub(crate) fn reload(&self, settings: &ShardSettings) {
        self.tell(|| Command::Reload(Box::new(settings.clone())));
    }

    /// Lets the other shards obey the new parameters of the defences.
    pub(crate) fn defend(&self) {
        self.tell(|| Command::Defend);
    }

    /// Lets the other shards follow other rules of the network.
    pub(crate) fn follow(&self, rules: Rules) {
        self.tell(|| Command::Follow(rules));
    }

    /// Lets the other shards refuse circuits.
    pub(crate) fn drain(&self) {
        self.tell(|| Command::Drain);
    }

    /// Whether the other shards drain and no circuit of theirs is in use.
    pub(crate) async fn are_drained(&self) -> bool {
        let drained = self.ask(Command::IsDrained).await;
        drained.into_iter().all(|drained| drained)
    }

    /// Replaces the keys that answer circuit handshakes.
    pub(crate) fn answer_with(&self, keys: &OwnKeys) {
        self.tell(|| Command::Answer(Box::new(keys.clone())));
    }

    /// Replaces the keys of links.
    pub(crate) fn present(&self, shown: &Shown) {
        self.tell(|| Command::Present(shown.clone()));
    }

    /// The counts of the other shards, with single `circuits` or without.
    pub(crate) async fn counts(&self, circuits: bool) -> Vec<Counts> {
        self.ask(|reply| Command::Count { circuits, reply }).await
    }

    /// Sends each other shard a question, and returns the answers of those that run.
    async fn ask<T>(&self, question: impl Fn(oneshot::Sender<T>) -> Command) -> Vec<T> {
        let ask = |thread: &Thread| {
            let (reply, answer) = oneshot::channel();
            let _ = thread.commands.send(question(reply));
            answer
        };
        let asked: Vec<_> = self.threads.borrow().iter().map(ask).collect();
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }
}

/// Runs a shard on this thread until the first shard ends.
fn run(
    number: usize,
    start: Start,
    crossings: Vec<Option<Crossing>>,
    arriving: mpsc::Receiver<Arrival>,
    commanded: mpsc::UnboundedReceiver<Command>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(LocalSet::new().run_until(async {
        let Start { common, config, settings, keys, shown } = start;
        let names = SharedNames::default();
        let links = Links::shard(shown, names.clone(), settings.addresses.clone())?;
        let links = Rc::new(links.with_gate(settings.extends));
        let limit = Limit::from(common.limit.clone());
        // Random choices of two shards must differ.
        let config = Config { nonces: config.nonces.fork_index(number as u64), ..config };
        let (shard, between) = Shard::new(number, common, limit, links, (config, names, keys), settings);
        let crossing = pin!(shard.cross(between, crossings));
        tokio::select! {
            () = obey(&shard, commanded) => {}
            () = welcome(&shard, arriving) => {}
            () = crossing => {}
            () = shard.bound_memory() => {}
        }
        Ok(())
    }));
    // A name lookup can block for half a minute.
    runtime.shutdown_background();
    result
}

async fn obey(shard: &Shard, mut commanded: mpsc::UnboundedReceiver<Command>) {
    while let Some(command) = commanded.recv().await {
        match command {
            Command::Reload(settings) => shard.reload(*settings),
            Command::Drain => shard.overlay.with(|node, _| node.drain_circuits()),
            Command::IsDrained(reply) => {
                // The relay may have stopped waiting.
                let _ = reply.send(shard.overlay.with(|node, now| node.is_drained(now)));
            }
            Command::Defend => shard.defend(),
            Command::Follow(rules) => shard.follow(rules),
            Command::Answer(keys) => shard.overlay.with(|node, _| node.onion().answer_with(*keys)),
            Command::Present(shown) => shard.links.present(shown),
            Command::Count { circuits, reply } => {
                let circuits = circuits.then_some(&shard.leaving);
                // The page's client may have gone.
                let _ = reply.send(count(&shard.overlay, circuits));
            }
        }
    }
}

/// Serves the connections that the first shard hands over.
async fn welcome(shard: &Shard, mut arriving: mpsc::Receiver<Arrival>) {
    while let Some(Arrival { tcp, from, counted, mut shaking }) = arriving.recv().await {
        if shard.turns_away(from) {
            continue;
        }
        let shard = shard.clone();
        spawn_local(async move {
            let _counted = counted;
            // On the heap while it lasts: a task keeps room for its largest future until the connection ends.
            let handshake = Box::pin(async { shard.links.accept(TcpStream::from_std(tcp)?).await });
            let accepted = tokio::select! {
                biased;
                () = shaking.closed() => return log_failed_handshake(None),
                accepted = handshake => accepted,
            };
            drop(shaking);
            match accepted {
                Ok(Accepted::Neighbour(peer_link)) => {
                    tracing::debug!(relay = peer_link.peer.is_some(), ours = peer_link.ours, "connection");
                    shard.serve(peer_link, from).await;
                }
                // Only relays with one shard can be measured.
                Ok(Accepted::Measurer(..)) => {}
                Err(cause) => log_failed_handshake(Some(cause)),
            }
        });
    }
}
