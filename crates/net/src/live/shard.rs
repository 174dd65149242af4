//! One shard of a relay: the connections, circuits and exit streams of one thread. A relay on one thread has one.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, MutexGuard};

use tidegate_control::random::Seed;
use tidegate_control::shares::Shares;
use tidegate_control::units::{Bytes, Span, Time};
use tidegate_proto::cell::EndReason;
use tidegate_proto::control::StreamFlow;
use tidegate_proto::crypto::padding::Padding;
use tidegate_proto::crypto::{Encrypted, OwnKeys, SharedNames, Target};
use tidegate_proto::defence::{Counted, Defence};
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::node::{CircuitKey, Node as _, Output, StreamKey};
use tidegate_proto::relay::{AddressCounts, Between, Handshakes, Relay};
use tokio::task::spawn_local;

use super::bandwidth::{Limit, SharedLimit};
use super::channel::Links;
use super::crossing::{Crossing, carry};
use super::directory_stream::{SharedConnections, SharedDescriptors, SharedDocuments};
use super::division::{Divided, Division};
use super::document_cache::DocumentCache;
use super::ending_log::EndingLog;
use super::exit::{self, Exit, Exiting};
use super::history::Overload;
use super::lookups::{Lookups, NeighbourLookups};
use super::stream::{Local, Locals, Outside, Waiting};
use crate::clock;
use crate::gate::Gate;
use crate::identity::random;
use crate::overlay::{Handle, Overlay, Owner, PeerLink};

/// Interval of comparing the memory of streams with the limit, on one thread and on several.
const MEMORY_CHECK: Span = Span::from_secs(1);
const DIVIDED_CHECK: Span = Span::from_millis(100);
/// The cure in log lines about the limit of memory.
const MORE_MEMORY: &str = "raise `memory` of [limits]";

/// State that the shards of a relay share.
#[derive(Clone)]
pub(crate) struct Common {
    /// The number of shards.
    pub count: usize,
    /// The rate limit and the counted bytes.
    pub limit: SharedLimit,
    /// Connections and circuits per address.
    pub addresses: AddressCounts,
    /// The limits that shards divide.
    pub division: Division,
    /// The network's defences against denial of service. Shards lock them when a connection, circuit or stream begins.
    pub defence: Defence,
    /// Name lookups per neighbour.
    pub lookups: NeighbourLookups,
    /// Descriptors of onion services.
    pub descriptors: Arc<SharedDescriptors>,
    /// Directory documents.
    pub documents: Arc<SharedDocuments>,
    /// The last overload.
    pub overload: Overload,
}

impl Common {
    /// State of this number of shards.
    pub(crate) fn new(count: usize, limit: SharedLimit) -> Common {
        let (addresses, lookups, descriptors, documents, overload) = Default::default();
        let defence = Defence::new(Seed::root(u64::from_le_bytes(random())));
        let division = Division::new(count);
        Common { count, limit, addresses, division, defence, lookups, descriptors, documents, overload }
    }
}

/// The rules of the network for streams and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Flow control of streams.
    pub flow: StreamFlow,
    /// When connections are padded, in a Tor network.
    pub padding: Option<Padding>,
}

/// The settings of a shard that can change while it runs.
#[derive(Clone)]
pub(crate) struct ShardSettings {
    /// The exit configuration.
    pub exit: Arc<Exit>,
    /// Refuse exit streams of circuits that have no other relay, as Tor's exits do.
    pub refuses_single_hop: bool,
    /// Limits of what neighbours can make the whole relay store and do; `None` trusts them.
    pub limits: Option<Limits>,
    /// The addresses where others reach the relay.
    pub addresses: Vec<IpAddr>,
    /// The relays that circuits may be extended to.
    pub extends: Gate,
}

/// Closed streams that may still hold data for their servers.
type Closing = Rc<RefCell<Vec<Weak<Local>>>>;

type SharedEndingLog = Rc<RefCell<EndingLog>>;

/// A running shard. Clones are handles to the same one.
#[derive(Clone)]
pub(crate) struct Shard {
    /// The relay on its sockets.
    pub overlay: Exiting,
    /// Opens and accepts its links.
    pub links: Rc<Links>,
    /// Local ends of exit streams.
    pub leaving: Locals,
    /// Bytes that they hold outside of the node, and closed streams that still hold some.
    outside: Outside,
    closing: Closing,
    endings: SharedEndingLog,
    settings: Rc<RefCell<ShardSettings>>,
    common: Common,
    number: usize,
}

/// State that the owner of the node's outputs shares with the shard.
struct Exits {
    leaving: Locals,
    outside: Outside,
    closing: Closing,
    settings: Rc<RefCell<ShardSettings>>,
    places: Shares<Option<IpAddr>, CircuitKey, StreamKey>,
    lookups: Rc<Lookups>,
    descriptors: Arc<SharedDescriptors>,
    documents: Arc<SharedDocuments>,
    connections: SharedConnections,
    overload: Overload,
    endings: SharedEndingLog,
}

impl Exits {
    /// Opens a stream. If the relay has its maximum number, another one makes room.
    fn connect(
        &mut self,
        overlay: Exiting,
        node: &mut Relay<Encrypted>,
        now: Time,
        (key, target): (StreamKey, Target),
    ) {
        let settings = self.settings.borrow();
        // Tor's exits refuse one-hop proxying.
        let alone = matches!(&target, Target::Host { .. }) && node.is_from_client(key.circuit);
        if alone && settings.refuses_single_hop {
            return node.end_stream(now, key, EndReason::PROTOCOL);
        }
        // The group is the neighbour that the circuit comes from, the holder is the circuit.
        let of = (node.network_of(key.circuit), key.circuit);
        let last =
            |key: &StreamKey| self.leaving.borrow().get(key).map_or(Time::ZERO, |local| local.used().get());
        let most = node.limits().map_or(usize::MAX, |limits| limits.streams.max(1) as usize);
        self.places.set_places(most);
        while let Some(displaced) = self.places.displaced(&of, last) {
            tracing::debug!("a stream made room for a newer one");
            node.end_stream(now, displaced, EndReason::RESOURCE_LIMIT);
            self.leaving.borrow_mut().remove(&displaced).inspect(|local| local.abort());
        }
        self.places.admit(now, of, key);
        let local = Rc::new(Local::noting(Rc::new(Cell::new(now)), self.outside.clone()));
        self.leaving.borrow_mut().insert(key, local.clone());
        let request = exit::Request {
            key,
            target,
            of,
            lookups: self.lookups.clone(),
            descriptors: self.descriptors.clone(),
            documents: self.documents.clone(),
            connections: self.connections.clone(),
            overload: self.overload.clone(),
        };
        spawn_local(exit::serve(overlay, settings.exit.clone(), request, local));
    }

    fn owner(mut self, own: Handle<Relay<Encrypted>, Limit, Rc<Links>>) -> Owner<Relay<Encrypted>> {
        Box::new(move |node, now, output| match output {
            Output::Connect(key, target) => {
                let Some(overlay) = own.get() else { return };
                self.connect(overlay, node, now, (key, target));
            }
            Output::Deliver(key, _, data, _) => {
                if let Some(local) = self.leaving.borrow().get(&key) {
                    let Waiting { bytes, memory } = local.deliver(now, data);
                    node.backlog(now, key, bytes, memory);
                }
            }
            Output::Package(key, cells) => {
                if let Some(local) = self.leaving.borrow().get(&key) {
                    local.package(cells);
                }
            }
            Output::StreamClosed(key, _) => {
                self.places.release(&key);
                if let Some(local) = self.leaving.borrow_mut().remove(&key) {
                    local.end();
                    let lasts = local.holds_outside().then(|| Rc::downgrade(&local));
                    self.closing.borrow_mut().extend(lasts);
                }
            }
            Output::CircuitEnded(circuit, ending) => self.endings.borrow_mut().add(now, circuit, ending),
            _ => {}
        })
    }
}

impl Shard {
    /// Shard `number`, with these links and `limit`, which is the common one. Also its channels to the other shards.
    pub(crate) fn new(
        number: usize,
        common: Common,
        limit: Limit,
        links: Rc<Links>,
        (config, names, keys): (Config, SharedNames, OwnKeys),
        settings: ShardSettings,
    ) -> (Shard, Vec<Option<Between>>) {
        let mut onion = Encrypted::new(None, Default::default(), random()).with_names(names);
        onion.answer_with(keys);
        let inspects = config.kist.is_some();
        let mut node = Relay::new(onion, Config { limits: settings.limits, ..config });
        let between = if common.count > 1 {
            node.become_shard(number, common.count, common.addresses.clone())
        } else {
            Vec::new()
        };
        let exits = Exits {
            leaving: Locals::default(),
            outside: Outside::default(),
            closing: Closing::default(),
            settings: Rc::new(RefCell::new(settings)),
            // Each stream sets the number of places, because limits change.
            places: Shares::new(usize::MAX),
            lookups: Rc::new(Lookups::counting(common.lookups.clone())),
            descriptors: common.descriptors.clone(),
            documents: common.documents.clone(),
            connections: SharedConnections::default(),
            overload: common.overload.clone(),
            endings: Rc::new(RefCell::new(EndingLog::new((common.count > 1).then_some(number)))),
        };
        let (leaving, outside, closing) =
            (exits.leaving.clone(), exits.outside.clone(), exits.closing.clone());
        let (settings, endings) = (exits.settings.clone(), exits.endings.clone());
        let overlay = Overlay::with_dial(node, limit, links.clone(), |own| exits.owner(own));
        if inspects {
            overlay.inspect_sockets();
        }
        let shard = Shard { overlay, links, leaving, outside, closing, endings, settings, common, number };
        shard.divide();
        shard.defend();
        (shard, between)
    }

    /// Follows other rules of the network. Open connections are padded as before.
    pub(crate) fn follow(&self, rules: Rules) {
        self.overlay.with(|node, _| node.set_stream_flow(rules.flow));
        self.overlay.set_padding(rules.padding);
    }

    /// Obeys the defences with their present parameters.
    pub(crate) fn defend(&self) {
        self.overlay.with(|node, _| node.defend_with(self.common.defence.clone()));
    }

    /// The directory documents of all shards.
    pub(crate) fn documents(&self) -> MutexGuard<'_, DocumentCache> {
        self.common.documents.lock().expect("no shard panics while it stores")
    }

    /// The last overload of any shard.
    pub(crate) fn overload(&self) -> &Overload {
        &self.common.overload
    }

    /// The handshakes of all shards.
    pub(crate) fn handshakes(&self) -> Handshakes {
        self.common.addresses.handshakes()
    }

    /// The defences, which all shards share.
    pub(crate) fn defence(&self) -> &Defence {
        &self.common.defence
    }

    /// Counts a connection from an address for the defences; `None` if they refuse it.
    pub(crate) fn counted(&self, from: IpAddr) -> Option<Counted> {
        self.common.defence.connected(clock::now(), from)
    }

    /// Carries circuits and cells between this shard and the others.
    pub(crate) async fn cross(&self, between: Vec<Option<Between>>, crossings: Vec<Option<Crossing>>) {
        let pairs = between.into_iter().zip(crossings).enumerate();
        let carried = pairs.filter_map(|(other, (between, crossing))| {
            Some(carry(&self.overlay, other, between?, crossing?))
        });
        futures_util::future::join_all(carried).await;
        std::future::pending().await
    }

    /// Changes the settings.
    pub(crate) fn reload(&self, settings: ShardSettings) {
        self.links.reload(settings.addresses.clone(), settings.extends);
        self.settings.replace(settings);
        self.divide();
    }

    /// The current settings.
    pub(crate) fn settings(&self) -> ShardSettings {
        self.settings.borrow().clone()
    }

    /// Bytes of cells, streams and kernel buffers.
    fn held(&self) -> u64 {
        self.overlay.with(|node, _| node.memory()) + self.overlay.stalled_bytes() + self.outside.get()
    }

    /// Gives the node its shares of the relay's limits.
    fn divide(&self) {
        let Some(limits) = self.settings.borrow().limits else { return };
        let mut own = limits;
        if self.common.count > 1 {
            let share = |what, limit: u64, used| self.common.division.share(what, self.number, limit, used);
            let small = |share: u64| u32::try_from(share).unwrap_or(u32::MAX);
            own.memory = Bytes(share(Divided::Memory, limits.memory.0, self.held()));
            let connections = self.overlay.connections() as u64;
            own.connections = small(share(Divided::Connections, limits.connections.into(), connections));
            let circuits = self.overlay.with(|node, _| node.held_circuits()) as u64;
            own.circuits = small(share(Divided::Circuits, limits.circuits.into(), circuits));
            let streams = self.leaving.borrow().len() as u64;
            own.streams = small(share(Divided::Streams, limits.streams.into(), streams));
            // Points are spread over the shards by names that their users draw at random.
            own.points = (limits.points / self.common.count as u32).max(1);
        }
        self.overlay.with(|node, _| node.set_limits(own));
    }

    /// Keeps cells, streams' bytes and kernel buffers together below the memory limit: above it, streams end that hold
    /// bytes outside of the node, the idlest first, until 90 % of the limit is in use.
    pub(crate) async fn bound_memory(&self) {
        let mut shed = 0;
        loop {
            let interval = if self.common.count > 1 { DIVIDED_CHECK } else { MEMORY_CHECK };
            clock::until(clock::now() + interval).await;
            if self.common.count > 1 {
                self.divide();
            }
            self.endings.borrow_mut().sum_up(clock::now());
            self.closing.borrow_mut().retain(|local| local.strong_count() > 0);
            let limit = self.overlay.with(|node, _| node.limits().map_or(u64::MAX, |limits| limits.memory.0));
            let held = self.held();
            let before = std::mem::replace(&mut shed, self.overlay.with(|node, _| node.shed()));
            if held > limit || shed > before {
                self.common.overload.note(clock::unix());
            }
            if held > limit {
                let inside = held - self.outside.get();
                self.relieve_memory((limit / 10 * 9).saturating_sub(inside));
            }
            let mut cut = 0;
            while self.held() > limit && self.overlay.cut_most_stalled() {
                cut += 1;
            }
            if cut > 0 {
                let cause = "they held the most bytes that their neighbours do not read";
                tracing::warn!(
                    connections = cut,
                    cause,
                    cure = MORE_MEMORY,
                    "ended connections: out of memory"
                );
            }
        }
    }

    /// Ends the idlest streams with bytes outside of the node until `target` of those bytes remain.
    fn relieve_memory(&self, target: u64) {
        let closing =
            self.closing.borrow().iter().filter_map(Weak::upgrade).map(|local| (None, local)).collect();
        let mut holding: Vec<(Option<StreamKey>, Rc<Local>)> = closing;
        let open = self.leaving.borrow();
        let open_ones = open.iter().filter(|(_, local)| local.holds_outside());
        holding.extend(open_ones.map(|(key, local)| (Some(*key), local.clone())));
        drop(open);
        holding.sort_by_key(|(_, local)| local.used().get());
        let mut ended = 0;
        for (key, local) in holding {
            if self.outside.get() <= target {
                break;
            }
            if let Some(key) = key {
                self.overlay.with(|node, now| node.end_stream(now, key, EndReason::RESOURCE_LIMIT));
            }
            local.abort();
            local.forget_outside();
            ended += 1;
        }
        let cause = "they were idle for the longest time with bytes that are not read";
        tracing::warn!(streams = ended, cause, cure = MORE_MEMORY, "ended streams: out of memory");
    }

    /// Whether to reject a connection from an address.
    pub(crate) fn turns_away(&self, from: IpAddr) -> bool {
        self.overlay.with(|node, now| node.turns_away(now, from))
    }

    /// Serves a link. A QUIC stream counts as one connection.
    pub(crate) async fn serve(&self, peer_link: PeerLink, from: IpAddr) {
        // The limit may have been reached during the handshake.
        if !self.turns_away(from) {
            let tell = |node: &mut Relay<_>, now, id| node.channel_is_from(now, id, from);
            self.overlay.serve_with(peer_link, tell).await;
        }
    }
}

/// Logs that the handshake of a connection failed; `None`: newer connections took its place.
pub(crate) fn log_failed_handshake(cause: Option<io::Error>) {
    match cause {
        Some(cause) => tracing::debug!(%cause, "handshake failed"),
        None => tracing::debug!(cause = "displaced by newer connections", "handshake failed"),
    }
}
