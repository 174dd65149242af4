//! The relay role: accepts links, forwards cells, opens exit streams that its policy allows, and publishes itself in
//! a directory.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_control::units::{Span, Time};
use tidegate_data::consensus::RouterStatus;
use tidegate_proto::cell::RelayId;
use tidegate_proto::control::{Place, StreamFlow};
use tidegate_proto::crypto::padding::Padding;
use tidegate_proto::crypto::{KeyLifetimes, Router, SENDME_INCREMENT, SharedNames};
use tidegate_proto::defence::{Counted, DefenceParameters};
use tidegate_proto::flashflow::relay::Config as Permissions;
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::transport::Transport;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;

use super::addresses::Addresses;
use super::bandwidth::{Limit, as_rate};
use super::channel::{Accepted, Links};
use super::consensus;
use super::crossing::crossings;
use super::descriptor::{self, Exhausted, Facts, Operator, Reported};
use super::directory::{self, Entry};
use super::exit::Exit;
use super::fetch::fetch;
use super::history::{HandshakeAssessment, History, reported_exhaustion, reported_overload};
use super::quic::Neighbour;
use super::renewal::{Change, Keys, Renewed};
use super::self_test::{self, Conditions, Hop};
use super::shard::{Common, Rules, Shard, ShardSettings, log_failed_handshake};
use super::shards::{EndOnDrop, OtherShards, Start};
use super::status::{self, Counts, count};
use crate::admission::{Admission, next_connection};
use crate::flashflow::measured::Measured;
use crate::gate::Gate;
use crate::identity::Identity;
use crate::link::{Carrier, within};
use crate::overlay::PeerLink;
use crate::runtime::Running;
use crate::{clock, descriptors, private_file};

/// Where a relay publishes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announce {
    /// Nowhere.
    None,
    /// The directory of a self-hosted overlay, with its join token.
    Overlay(SocketAddr, Option<String>),
    /// The authorities of a private Tor network, at their directory ports.
    Tor(Vec<SocketAddr>),
}

/// Configuration of a relay.
pub struct RelayConfig {
    /// Its nickname.
    pub nickname: String,
    /// The addresses where others reach it.
    pub address: Addresses,
    /// Its keys.
    pub keys: Keys,
    /// Configuration of the node.
    pub config: Config,
    /// Its exit configuration.
    pub exit: Exit,
    /// The relays that circuits may be extended to.
    pub extends: Gate,
    /// Where it publishes itself.
    pub announce: Announce,
    /// Its status page.
    pub status: Option<Status>,
    /// How it can be measured.
    pub measurement: Option<Measurement>,
    /// Bandwidth that it publishes, bytes per second; its limit by default. The limit or more is also stated as
    /// observed.
    pub published: Option<u64>,
    /// Parameters against denial of service that override the consensus' ([`tidegate_proto::defence::OPTIONS`]).
    pub defences: BTreeMap<String, i32>,
    /// Its operator, for descriptors.
    pub operator: Operator,
    /// Number of threads; see [`not_on_threads`].
    pub threads: NonZeroUsize,
}

/// How a relay can be measured by FlashFlow.
pub struct Measurement {
    /// The certificate that coordinators and measurers know it by.
    pub identity: Arc<Identity>,
    /// The operator's consent, and the limits of a measurement.
    pub permissions: Permissions,
}

/// The status page of the operator.
pub struct Status {
    /// A listener on loopback.
    pub listener: TcpListener,
    /// Show circuits one by one, for demonstrations.
    pub circuits: bool,
}

/// Maximum number of pending handshakes: a new one displaces the oldest. With few file descriptors it is less.
const HANDSHAKES: usize = 512;
/// The least that it is.
const FEWEST_HANDSHAKES: usize = 16;
/// Published bandwidth of a relay without a limit, bytes per second: the largest value that directories count.
const UNLIMITED: u64 = 1_000_000_000;
/// Intervals of noting the bytes that were carried, and of storing their history.
const NOTE: Span = Span::from_secs(1);
const STORE: Span = Span::from_secs(3600);
/// Timeout of a withdrawal: the relay is about to end.
const WITHDRAWING: Span = Span::from_secs(5);
/// Publication intervals: to our directory, and after a refusal.
const ANNOUNCE: Span = Span::from_secs(30);
const AGAIN: Span = Span::from_secs(3);
/// How often the relay checks whether its documents at Tor's authorities are outdated.
const CHECK: Span = Span::from_secs(15 * 60);

/// An event that the operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The directory accepted its entry.
    Announced,
    /// The directory refused its entry, and why.
    Refused(String),
    /// The directory removed its entry.
    Withdrawn,
    /// The directory did not remove its entry, and why. It removes relays that are silent.
    NotWithdrawn(String),
    /// The new configuration is in effect.
    Reloaded,
    /// It drains: it ends when no circuit is in use.
    Draining,
    /// Keys were renewed, or their renewal failed.
    Keys(Change),
    /// The defences against denial of service that are in force from now on.
    Defends(Box<DefenceParameters>),
    /// The consensus could not be read, and why.
    Unread(String),
    /// The consensus states another number of cells per SENDME with congestion control (`cc_sendme_inc`).
    OtherIncrement(i32),
    /// The history of carried bytes could not be read or written, and why.
    History(String),
    /// It sent cells to itself over this number of circuits, because it had observed no bandwidth.
    Tested(usize),
    /// That failed, and why. It tries again.
    NotTested(String),
}

/// An HTTP answer: status code, reason phrase, body.
type Answer = (u16, String, Vec<u8>);

/// An operator's order to a running relay.
pub enum Order {
    /// Change the configuration.
    Reload(Box<Changes>),
    /// Drain: accept no connections and circuits, and end when no circuit is in use
    /// ([`is_drained`](tidegate_proto::relay::Relay::is_drained)), at the latest after this time.
    Drain(Span),
}

/// The configuration that can change while a relay runs. The rate that a controller divides cannot.
pub struct Changes {
    /// The addresses where others reach it.
    pub address: Addresses,
    /// The exit configuration.
    pub exit: Exit,
    /// The relays that circuits may be extended to.
    pub extends: Gate,
    /// Maximum forwarding rate, bytes per second; infinity means unlimited.
    pub bandwidth: f64,
    /// Bandwidth that it publishes, bytes per second; its limit by default.
    pub published: Option<u64>,
    /// Limits of what neighbours can make it store and do.
    pub limits: Limits,
    /// Where it publishes itself.
    pub announce: Announce,
    /// Its operator, for descriptors.
    pub operator: Operator,
    /// Parameters against denial of service that override the consensus'.
    pub defences: BTreeMap<String, i32>,
    /// For how long keys are used.
    pub lifetimes: KeyLifetimes,
}

/// A running relay. Clones are handles to the same relay.
#[derive(Clone)]
struct RelayLoop {
    /// The shard of this thread, which accepts connections for all shards.
    shard: Shard,
    others: Rc<OtherShards>,
    handshakes: Rc<Admission>,
    announced: Rc<RefCell<Announced>>,
    /// The directory of an overlay that lists it.
    listed: Rc<Cell<Option<SocketAddr>>>,
    /// Wakes the publisher, and the reader of the network's directory.
    changed: Rc<Notify>,
    moved: Rc<Notify>,
    /// Publication time of the last descriptor. The next one needs a later second, or an authority takes it for the
    /// same.
    published: Rc<Cell<u64>>,
    /// The report in the last documents.
    reported: Rc<Cell<Option<Reported>>>,
    /// Whether the consensus lacks the relay.
    unlisted: Rc<Cell<bool>>,
    self_test: Rc<Conditions>,
    keys: Rc<Renewed>,
    history: Rc<RefCell<History>>,
    /// Parameters: the operator's against denial of service, and all of the consensus.
    overrides: Rc<RefCell<BTreeMap<String, i32>>>,
    stated: Rc<RefCell<BTreeMap<String, i32>>>,
    /// The rules that all shards follow.
    rules: Rc<Cell<Rules>>,
    /// When a draining relay ends at the latest.
    ends: Rc<Cell<Time>>,
}

/// The publication of a relay, and its place.
struct Announced {
    nickname: String,
    address: Addresses,
    announce: Announce,
    /// Bandwidth that it publishes instead of its limit.
    says: Option<u64>,
    operator: Operator,
}

/// Runs a relay until dropped or drained. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If TLS cannot be set up, or the status page cannot be served.
pub fn run<'a>(
    settings: RelayConfig,
    listeners: Vec<TcpListener>,
    orders: mpsc::Receiver<Order>,
    on_event: &'a dyn Fn(Event),
) -> Running<'a> {
    Box::pin(run_on(settings, listeners, orders, on_event))
}

async fn run_on(
    settings: RelayConfig,
    listeners: Vec<TcpListener>,
    mut orders: mpsc::Receiver<Order>,
    on_event: &dyn Fn(Event),
) -> io::Result<()> {
    let RelayConfig { nickname, address, keys, config, mut exit, extends, announce, .. } = settings;
    let (status, measurement, published) = (settings.status, settings.measurement, settings.published);
    let (threads, defences, operator) = (settings.threads.get(), settings.defences, settings.operator);
    if let Some(why) = not_on_threads(threads, &config, measurement.is_some()) {
        return Err(io::Error::other(why));
    }
    let own = own_addresses(&listeners, status.as_ref())?;
    own.iter().for_each(|own| exit.policy.refuse(*own));
    let names = SharedNames::default();
    let keys = Rc::new(Renewed::new(keys, uses_rsa(&announce)));
    // An expired onion key was published before, so replace it first.
    keys.renew_onion().await.into_iter().for_each(|change| on_event(Event::Keys(change)));
    let (identity, certified) = keys.everyday(None).await;
    let quic = if config.transport == Transport::Quic { &own[..] } else { &[] };
    let rate = as_rate(config.bandwidth);
    let measured = measurement.map(|own| Measured::new(&own.identity, rate, own.permissions));
    let measured = measured.transpose().map_err(io::Error::other)?;
    let settings = shard_settings(exit, &announce, config.limits, (address, extends));
    let links = Links::relay(certified, names.clone(), settings.addresses.clone(), &identity, quic)?;
    let links = links.with_gate(extends).with_measurement(measured.as_ref().map(Measured::tls));
    let links = Rc::new(if threads > 1 { links.without_extensions() } else { links });
    let limit = Limit::new(config.bandwidth).with_measurement(measured);
    let common = Common::new(threads, limit.share());
    let mut crossings = crossings(threads);
    let first = crossings.remove(0);
    let mut others = OtherShards::start(crossings, || Start {
        common: common.clone(),
        config: config.clone(),
        settings: settings.clone(),
        keys: keys.own(),
        shown: links.shown().expect("a relay has keys"),
    })?;
    let failed = others.failed();
    let others = EndOnDrop(Rc::new(others));
    let (shard, between) = Shard::new(0, common, limit, links, (config, names, keys.own()), settings);
    let announced = Announced { nickname: nickname.clone(), address, announce, says: published, operator };
    let relay = RelayLoop::new(shard, others.0.clone(), announced, keys, defences);
    relay.begin(on_event);
    let serving = async {
        tokio::select! {
            () = relay.accept_all(&listeners) => {}
            () = relay.accept_quic() => {}
            () = relay.serve_opened() => {}
            () = relay.take_part(on_event) => {}
            () = relay.renew(on_event) => {}
            () = relay.measure() => {}
            () = relay.note_bytes(on_event) => {}
            () = relay.shard.bound_memory() => {}
            () = relay.obey(&mut orders, &own, on_event) => {}
        }
    };
    let crossing = relay.shard.cross(between, first);
    tokio::pin!(crossing);
    tokio::select! {
        () = serving => {}
        () = &mut crossing => {}
        result = relay.show(status, &nickname) => return result,
        shard = failed => return Err(io::Error::other(format!("the thread of shard {shard} ended"))),
    }
    // A process that takes over reads the history at its start. Clients that are refused now select another relay.
    relay.store_history(on_event);
    drop(listeners);
    let leaving = async { tokio::join!(relay.withdraw(on_event), relay.drained()) };
    tokio::select! {
        _ = leaving => {}
        () = crossing => {}
        () = relay.measure() => {}
    }
    if let Some(quic) = relay.shard.links.quic() {
        quic.close().await;
    }
    Ok(())
}

/// The addresses that exit streams must not reach. The status page trusts this machine, and exit streams come from it.
fn own_addresses(listeners: &[TcpListener], status: Option<&Status>) -> io::Result<Vec<SocketAddr>> {
    let page = status.map(|status| &status.listener);
    listeners.iter().chain(page).map(TcpListener::local_addr).collect()
}

/// A directory's refusal in words.
fn words((code, reason, body): &Answer) -> String {
    let body = String::from_utf8_lossy(&body[..body.len().min(200)]);
    format!("{code} {reason} {}", body.trim())
}

/// Why a relay with this configuration runs on one thread only; `None` if it does not.
pub fn not_on_threads(threads: usize, config: &Config, is_measured: bool) -> Option<&'static str> {
    let place = Place { bandwidth: config.bandwidth, clock: config.clock };
    match () {
        () if threads < 2 => None,
        () if config.transport != Transport::Vanilla => {
            Some("several threads need `transport = \"vanilla\"`: each has one connection per neighbour")
        }
        () if config.switching.is_some() => {
            Some("the two connections of a move (`switching`) can be on different threads")
        }
        () if config.control.controller(&place).is_some() => {
            Some("its controller (`control`) plans for all circuits on one thread")
        }
        () if is_measured => Some("a measurement (`[measurement]`) divides the rate of one thread"),
        () => None,
    }
}

/// Whether TLS uses an RSA key, which stock tor requires.
fn uses_rsa(announce: &Announce) -> bool {
    !matches!(announce, Announce::Overlay(..))
}

/// Settings of shards.
fn shard_settings(
    exit: Exit,
    announce: &Announce,
    limits: Option<Limits>,
    (address, extends): (Addresses, Gate),
) -> ShardSettings {
    let refuses_single_hop = matches!(announce, Announce::Tor(_));
    let addresses = address.all().iter().map(SocketAddr::ip).collect();
    ShardSettings { exit: Arc::new(exit), refuses_single_hop, limits, addresses, extends }
}

/// Places for handshakes: at most a quarter of those for connections. Connections and exit streams have at most three quarters
/// of the file descriptors, so all three fit.
fn handshakes(limits: Option<&Limits>) -> usize {
    let most = limits.map_or(HANDSHAKES, |limits| limits.connections as usize / 4);
    most.clamp(FEWEST_HANDSHAKES, HANDSHAKES)
}

impl RelayLoop {
    fn new(
        shard: Shard,
        others: Rc<OtherShards>,
        announced: Announced,
        keys: Rc<Renewed>,
        defences: BTreeMap<String, i32>,
    ) -> RelayLoop {
        let history = History::new(clock::unix(), shard.overlay.limit().carried());
        let shard_limits = shard.settings().limits;
        RelayLoop {
            shard,
            others,
            history: Rc::new(RefCell::new(history)),
            handshakes: Rc::new(Admission::new(handshakes(shard_limits.as_ref()))),
            announced: Rc::new(RefCell::new(announced)),
            listed: Rc::default(),
            changed: Rc::default(),
            moved: Rc::default(),
            keys,
            published: Rc::default(),
            reported: Rc::default(),
            unlisted: Rc::default(),
            self_test: Rc::default(),
            overrides: Rc::new(RefCell::new(defences)),
            stated: Rc::default(),
            rules: Rc::default(),
            ends: Rc::default(),
        }
    }

    /// Continues the stored history, and obeys the operator's parameters against denial of service.
    fn begin(&self, on_event: &dyn Fn(Event)) {
        self.restore_history(on_event);
        self.apply_parameters(on_event);
    }

    /// The counts of all shards.
    async fn counts(&self, circuits: bool) -> Vec<Counts> {
        let own = count(&self.shard.overlay, circuits.then_some(&self.shard.leaving));
        let mut counts = vec![own];
        counts.extend(self.others.counts(circuits).await);
        counts
    }

    /// Serves the status page, if there is one.
    async fn show(&self, status: Option<Status>, nickname: &str) -> io::Result<()> {
        let Some(Status { listener, circuits }) = status else { return std::future::pending().await };
        status::serve(listener, nickname, circuits, async || self.counts(circuits).await).await
    }

    /// Follows orders until one is to drain.
    async fn obey(&self, orders: &mut mpsc::Receiver<Order>, own: &[SocketAddr], on_event: &dyn Fn(Event)) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Reload(changes) => {
                    self.reload(*changes, own, on_event);
                    on_event(Event::Reloaded);
                }
                Order::Drain(wait) => {
                    self.ends.set(clock::now() + wait);
                    self.shard.overlay.with(|node, _| node.drain_circuits());
                    self.others.drain();
                    on_event(Event::Draining);
                    return;
                }
            }
        }
        // The sender is gone, so no order will come.
        std::future::pending().await
    }

    /// Changes the configuration.
    fn reload(&self, changes: Changes, own: &[SocketAddr], on_event: &dyn Fn(Event)) {
        let Changes { address, mut exit, extends, bandwidth, published, limits, announce, .. } = changes;
        own.iter().for_each(|own| exit.policy.refuse(*own));
        let limits = self.shard.settings().limits.map(|_| limits);
        self.handshakes.set_places(handshakes(limits.as_ref()));
        let settings = shard_settings(exit, &announce, limits, (address, extends));
        self.shard.overlay.limit().set(bandwidth);
        self.others.reload(&settings);
        self.shard.reload(settings);
        self.keys.reload(changes.lifetimes, uses_rsa(&announce));
        self.overrides.replace(changes.defences);
        let mut announced = self.announced.borrow_mut();
        let moves = announced.announce != announce;
        let nickname = std::mem::take(&mut announced.nickname);
        *announced = Announced { nickname, address, announce, says: published, operator: changes.operator };
        drop(announced);
        if moves {
            // The consensus of another network does not hold here.
            self.stated.take();
            self.know_relays(BTreeSet::new());
            self.shard.documents().clear();
            self.self_test.clear();
            self.moved.notify_one();
        }
        self.apply_parameters(on_event);
        self.changed.notify_one();
    }

    /// Obeys the parameters of the operator and of the consensus in all shards.
    fn apply_parameters(&self, on_event: &dyn Fn(Event)) {
        self.defend(on_event);
        let stated = self.stated.borrow();
        let of = |name: &str| stated.get(name).copied();
        // Neighbours of an overlay ignore padding.
        let pads = matches!(self.announced.borrow().announce, Announce::Tor(_));
        let rules =
            Rules { flow: StreamFlow::of_consensus(of), padding: pads.then(|| Padding::of_consensus(of)) };
        if self.rules.replace(rules) != rules {
            self.shard.follow(rules);
            self.others.follow(rules);
        }
    }

    /// Obeys the parameters against denial of service in all shards.
    fn defend(&self, on_event: &dyn Fn(Event)) {
        let (overrides, stated) = (self.overrides.borrow(), self.stated.borrow());
        let of = |name: &str| overrides.get(name).or_else(|| stated.get(name)).copied();
        let parameters = DefenceParameters::of_consensus(of);
        let defence = self.shard.defence();
        if parameters != defence.parameters() {
            defence.set(parameters);
            self.shard.defend();
            self.others.defend();
            on_event(Event::Defends(Box::new(parameters)));
        }
    }

    /// Connections of relays at these addresses count for no defence, and have their own share of the bandwidth.
    fn know_relays(&self, relays: BTreeSet<IpAddr>) {
        self.shard.overlay.limit().know_relays(relays.clone());
        self.shard.defence().know_relays(relays);
    }

    /// Follows what the directory of its network states.
    async fn follow_network(&self, on_event: &dyn Fn(Event)) {
        loop {
            let announce = self.announced.borrow().announce.clone();
            let following = async {
                match &announce {
                    Announce::None => std::future::pending().await,
                    Announce::Overlay(at, _) => self.follow_directory(*at).await,
                    Announce::Tor(authorities) => self.follow_consensus(authorities, on_event).await,
                }
            };
            tokio::select! {
                // First, so that what the last network stated is not obeyed after a reload.
                biased;
                () = self.moved.notified() => {}
                () = following => {}
            }
        }
    }

    /// Reads which relays the directory of an overlay lists, again and again.
    async fn follow_directory(&self, at: SocketAddr) {
        loop {
            let read = consensus::listed(at).await;
            let pause = consensus::pause_of_directory(&read);
            match read {
                Ok(relays) => self.know_relays(relays),
                // The relay also publishes there, and reports if it cannot.
                Err(cause) => tracing::debug!(cause, "directory not read"),
            }
            clock::until(clock::now() + pause).await;
        }
    }

    /// Reads the consensus of a Tor network whenever there is a new one, and obeys it.
    async fn follow_consensus(&self, authorities: &[SocketAddr], on_event: &dyn Fn(Event)) {
        loop {
            let read = consensus::read(authorities).await;
            let pause = consensus::pause(&read, clock::unix());
            match read {
                Ok(read) => {
                    self.shard.documents().votes_at(read.fresh_until);
                    self.know_relays(read.relays);
                    let own = tidegate_data::consensus::Identity(self.keys.router().fingerprint());
                    self.unlisted.set(!read.identities.contains(&own));
                    self.self_test.learn(read.lines, own.0, self.shard.settings().extends);
                    let increment = read.parameters.get("cc_sendme_inc").copied();
                    if let Some(other) =
                        increment.filter(|stated| stated.abs_diff(SENDME_INCREMENT.into()) > 1)
                        && self.stated.borrow().get("cc_sendme_inc") != Some(&other)
                    {
                        on_event(Event::OtherIncrement(other));
                    }
                    self.stated.replace(read.parameters);
                    self.apply_parameters(on_event);
                }
                Err(why) => on_event(Event::Unread(why)),
            }
            clock::until(clock::now() + pause).await;
        }
    }

    /// Tests its bandwidth once if it joins a Tor network and has carried nothing.
    async fn test_bandwidth(&self, on_event: &dyn Fn(Event)) {
        let mut pause = None;
        loop {
            let relays = self.self_test.are_met().await;
            let Announce::Tor(authorities) = self.announced.borrow().announce.clone() else { continue };
            if self.observed() > 0 {
                break;
            }
            match self.try_bandwidth(&authorities, &relays).await {
                Ok(circuits) => {
                    on_event(Event::Tested(circuits));
                    // Its next descriptor says what it carried.
                    self.changed.notify_one();
                    break;
                }
                Err(why) => on_event(Event::NotTested(why)),
            }
            let again = self_test::pause_after(pause);
            pause = Some(again);
            clock::until(clock::now() + again).await;
        }
        std::future::pending().await
    }

    /// Sends cells over these relays to itself. Returns the number of circuits that were built.
    async fn try_bandwidth(
        &self,
        authorities: &[SocketAddr],
        relays: &[RouterStatus],
    ) -> Result<usize, String> {
        let others = self_test::read_keys(authorities, relays).await?;
        let (own, limit) = (self.own_hop(), self.shard.overlay.limit().share().into());
        let address = own.router.address;
        let built = self_test::run(own, &others, self.shard.settings().extends, limit).await;
        match built.map_err(|cause| cause.to_string())? {
            0 => Err(format!("no circuit over {} relays reaches {address}", others.len())),
            circuits => Ok(circuits),
        }
    }

    /// The relay as the last hop of circuits.
    fn own_hop(&self) -> Hop {
        let (keys, address) = (self.keys.router(), self.announced.borrow().address.first());
        let (fingerprint, ed25519) = (keys.fingerprint(), Some(keys.ed25519()));
        Hop { router: Router { address, fingerprint, ed25519 }, onion: keys.onion() }
    }

    /// Renews keys, and publishes the new ones at once.
    async fn renew(&self, on_event: &dyn Fn(Event)) {
        let keys = &self.keys;
        let hear = |change: Change| {
            if matches!(change, Change::Onion | Change::Forgotten) {
                self.shard.overlay.with(|node, _| node.onion().answer_with(keys.own()));
                self.others.answer_with(&keys.own());
            }
            if matches!(change, Change::Onion | Change::Signing) {
                self.changed.notify_one();
            }
            if matches!(change, Change::Signing | Change::Link)
                && let Some(shown) = self.shard.links.shown()
            {
                self.others.present(&shown);
            }
            on_event(Event::Keys(change));
        };
        keys.run(&self.shard.links, hear).await;
    }

    /// Publishes the relay in its network, follows what the network states, and gets a weight there.
    async fn take_part(&self, on_event: &dyn Fn(Event)) {
        tokio::join!(self.announce(on_event), self.follow_network(on_event), self.test_bandwidth(on_event));
    }

    /// Publishes the relay periodically, and at once after a change.
    async fn announce(&self, on_event: &dyn Fn(Event)) {
        // Tor's authorities that have not accepted the newest documents.
        let mut behind = Vec::new();
        loop {
            let announce = self.announced.borrow().announce.clone();
            let stays = |at: SocketAddr| matches!(&announce, Announce::Overlay(to, _) if *to == at);
            if self.listed.get().is_some_and(|at| !stays(at)) {
                self.withdraw(on_event).await;
            }
            let (answers, mut pause) = match &announce {
                Announce::None => (Vec::new(), Span::from_secs(3600)),
                Announce::Overlay(at, token) => (vec![self.join(*at, token.as_deref()).await], ANNOUNCE),
                Announce::Tor(authorities) => {
                    if self.is_outdated(clock::unix()) {
                        behind.clone_from(authorities);
                    }
                    let answers = self.publish(&behind).await;
                    let mut of_each = answers.iter();
                    behind.retain(|_| !matches!(of_each.next(), Some(Ok((200, _, _)))));
                    (answers, CHECK)
                }
            };
            for answer in answers {
                let refusal = match answer {
                    Ok((200, _, _)) => {
                        match announce {
                            Announce::Overlay(at, _) => self.listed.set(Some(at)),
                            _ => self.self_test.announced(),
                        }
                        on_event(Event::Announced);
                        continue;
                    }
                    // Tor's authorities explain a refusal in the status line.
                    Ok(refusal) => words(&refusal),
                    Err(cause) => cause.to_string(),
                };
                on_event(Event::Refused(refusal));
                pause = AGAIN;
            }
            tokio::select! {
                () = clock::until(clock::now() + pause) => {}
                () = self.changed.notified() => self.reported.set(None),
            }
        }
    }

    /// Withdraws its entry from the directory that lists it.
    async fn withdraw(&self, on_event: &dyn Fn(Event)) {
        let Some(at) = self.listed.take() else { return };
        let text = directory::withdrawal(&self.keys.router(), clock::unix());
        let asked = within(WITHDRAWING, fetch(at, "/withdrawal", Some(text.as_bytes()))).await;
        on_event(match asked {
            Ok((200, _, _)) => Event::Withdrawn,
            Ok(refusal) => Event::NotWithdrawn(words(&refusal)),
            Err(cause) => Event::NotWithdrawn(cause.to_string()),
        });
    }

    /// Notes every second what the relay carried and whether it is overloaded, and stores the history every hour.
    async fn note_bytes(&self, on_event: &dyn Fn(Event)) {
        let mut stored = clock::now();
        let mut assessment = HandshakeAssessment::new(clock::unix());
        loop {
            let now = clock::unix();
            self.history.borrow_mut().note(now, self.shard.overlay.limit().carried());
            self.assess(&mut assessment, now);
            if clock::now().since(stored) >= STORE {
                self.store_history(on_event);
                stored = clock::now();
            }
            clock::until(clock::now() + NOTE).await;
        }
    }

    /// Notes an overload if the relay refused too many handshakes.
    fn assess(&self, assessment: &mut HandshakeAssessment, now: u64) {
        let stated = self.stated.borrow();
        if assessment.is_overload(now, self.shard.handshakes(), |name| stated.get(name).copied()) {
            self.shard.overload().note(now);
        }
    }

    /// Continues the stored history of an earlier process.
    fn restore_history(&self, on_event: &dyn Fn(Event)) {
        let Some(path) = self.keys.history_file().filter(|path| path.exists()) else { return };
        let text = std::fs::read_to_string(&path).map_err(|cause| format!("cannot be read: {cause}"));
        let carried = self.shard.overlay.limit().carried();
        match text.and_then(|text| History::restored(&text, clock::unix(), carried)) {
            Ok(history) => drop(self.history.replace(history)),
            Err(why) => on_event(Event::History(format!("{} {why}", path.display()))),
        }
    }

    fn store_history(&self, on_event: &dyn Fn(Event)) {
        let Some(path) = self.keys.history_file() else { return };
        let new = private_file::beside(&path);
        let written =
            std::fs::write(&new, self.history.borrow().text()).and_then(|()| std::fs::rename(&new, &path));
        if let Err(cause) = written {
            on_event(Event::History(format!("{} cannot be written: {cause}", path.display())));
        }
    }

    fn bandwidth(&self) -> u64 {
        self.announced.borrow().says.or(self.shard.overlay.limit().rate()).unwrap_or(UNLIMITED)
    }

    /// The observed bandwidth. A relay that publishes its limit or more states that as observed, for experiments.
    fn observed(&self) -> u64 {
        let limit = self.shard.overlay.limit().rate();
        let overstated =
            self.announced.borrow().says.filter(|says| limit.is_some_and(|limit| *says >= limit));
        overstated.unwrap_or_else(|| self.history.borrow().observed())
    }

    /// The exhaustion of the rate limit that a document of `now` reports.
    fn exhausted(&self, now: u64) -> Option<Exhausted> {
        let (limit, exhaustion) = self.shard.overlay.limit().exhaustion()?;
        let age = exhaustion.last.map(|last| clock::now().since(last).as_secs_f64() as u64);
        let hour = reported_exhaustion(age.map(|age| now.saturating_sub(age)), now)?;
        Some(Exhausted {
            hour,
            rate: limit.rate_bytes_per_s,
            burst: limit.burst_bytes,
            minutes: exhaustion.minutes,
        })
    }

    async fn join(&self, at: SocketAddr, token: Option<&str>) -> io::Result<Answer> {
        let facts = (self.bandwidth(), self.shard.settings().exit.policy.is_exit(), clock::unix());
        let line = {
            let Announced { nickname, address, .. } = &*self.announced.borrow();
            Entry::new(nickname, *address, &self.keys.router(), facts).line()
        };
        let token = token.map_or(String::new(), |token| format!("token {token}\n"));
        let proof = directory::proof(&self.keys.router());
        fetch(at, "/relay", Some(format!("{token}{proof}\n{line}\n").as_bytes())).await
    }

    /// The report for documents of `now`.
    fn report(&self, now: u64) -> Reported {
        Reported {
            published: now,
            observed: self.observed(),
            overloaded: reported_overload(self.shard.overload().last(), now),
            without_descriptors: reported_overload(descriptors::last(), now),
            exhausted: self.exhausted(now),
        }
    }

    /// Whether the relay should publish new documents.
    fn is_outdated(&self, now: u64) -> bool {
        let unlisted = self.unlisted.get();
        self.reported.get().is_none_or(|before| before.is_outdated(&self.report(now), unlisted))
    }

    /// The descriptor and the extra-info document of now.
    fn documents(&self) -> String {
        let exit = self.shard.settings().exit;
        self.published.set(clock::unix().max(self.published.get() + 1));
        let (reported, announced) = (self.report(self.published.get()), self.announced.borrow());
        self.reported.set(Some(reported));
        let facts = Facts {
            nickname: &announced.nickname,
            address: announced.address,
            bandwidth: self.bandwidth(),
            reported,
            uptime: clock::now().as_secs_f64() as u64,
            policy: &exit.policy,
            directory: !exit.directories.is_empty(),
            operator: &announced.operator,
            history: self.history.borrow().lines(),
        };
        let certified = self.shard.links.certified().expect("a relay has keys");
        descriptor::build(&self.keys.router(), &certified, &facts)
    }

    /// Publishes its documents at these authorities (dir-spec, "Uploading server descriptors"). Returns their answers.
    async fn publish(&self, authorities: &[SocketAddr]) -> Vec<io::Result<Answer>> {
        let text = self.documents();
        // All at once: one that does not answer must not keep the others waiting.
        let uploads = authorities.iter().map(|at| fetch(*at, "/tor/", Some(text.as_bytes())));
        futures_util::future::join_all(uploads).await
    }

    async fn accept_all(&self, listeners: &[TcpListener]) {
        futures_util::future::join_all(listeners.iter().map(|listener| self.accept(listener))).await;
    }

    async fn accept(&self, listener: &TcpListener) {
        loop {
            let (tcp, from) = next_connection(listener).await;
            let from = from.ip();
            // A measurement's connections are not the neighbours' (proposal 316).
            let measured = self.shard.overlay.limit().measured();
            let expected = measured.is_some_and(|measured| measured.expects(from));
            let Some(defended) = (if expected { Some(Counted::none()) } else { self.shard.counted(from) })
            else {
                continue;
            };
            let (shard, counted) = self.others.least_loaded(defended);
            let relay = self.clone();
            if shard > 0 {
                spawn_local(async move {
                    // The shard logs failures.
                    let _ = relay.handshakes.run(from, relay.others.shake(shard, tcp, from, counted)).await;
                });
                continue;
            }
            if !expected && self.shard.turns_away(from) {
                continue;
            }
            spawn_local(async move {
                let _counted = counted;
                relay.accept_here(tcp, from).await;
            });
        }
    }

    /// Accepts a connection that this thread's shard serves.
    async fn accept_here(&self, tcp: TcpStream, from: IpAddr) {
        // Errors are not propagated, and the peer's address is deliberately not logged.
        // On the heap while they last: a task keeps room for its largest future until the connection ends.
        let handshake = Box::pin(self.shard.links.accept(tcp));
        match self.handshakes.run(from, handshake).await {
            Some(Ok(Accepted::Neighbour(peer_link))) => {
                tracing::debug!(relay = peer_link.peer.is_some(), ours = peer_link.ours, "connection");
                self.shard.serve(peer_link, from).await;
            }
            Some(Ok(Accepted::Measurer(stream, peer, first))) => {
                if let Some(measured) = self.shard.overlay.limit().measured() {
                    // A measurement's errors are the coordinator's to report.
                    Box::pin(measured.serve(*stream, peer, *first)).await.unwrap_or_default();
                }
            }
            Some(Err(cause)) => log_failed_handshake(Some(cause)),
            None => log_failed_handshake(None),
        }
    }

    /// Waits for circuits in use, within limits.
    async fn drained(&self) {
        while clock::now() < self.ends.get() && !self.is_drained().await {
            clock::until(clock::now() + Span::from_millis(200)).await;
        }
    }

    /// Whether no circuit of any shard is in use.
    async fn is_drained(&self) -> bool {
        self.shard.overlay.with(|node, now| node.is_drained(now)) && self.others.are_drained().await
    }

    /// Runs the timeouts of measurements.
    async fn measure(&self) {
        match self.shard.overlay.limit().measured() {
            Some(measured) => measured.timers().await,
            None => std::future::pending().await,
        }
    }

    async fn accept_quic(&self) {
        let Some(quic) = self.shard.links.quic() else { return std::future::pending().await };
        while let Some(incoming) = quic.incoming().await {
            let from = incoming.remote_address().ip();
            let counted = if self.shard.turns_away(from) { None } else { self.shard.counted(from) };
            let Some(counted) = counted else {
                incoming.refuse();
                continue;
            };
            let relay = self.clone();
            spawn_local(async move {
                let _counted = counted;
                let (peer_link, neighbour) =
                    match relay.handshakes.run(from, relay.shard.links.accept_quic(incoming)).await {
                        Some(Ok(peer_link)) => peer_link,
                        Some(Err(cause)) => return tracing::debug!(%cause, "QUIC handshake failed"),
                        None => {
                            return tracing::debug!(
                                cause = "displaced by newer connections",
                                "QUIC handshake failed"
                            );
                        }
                    };
                tracing::debug!(relay = peer_link.peer.is_some(), "QUIC connection");
                let peer = peer_link.peer;
                tokio::join!(relay.shard.serve(peer_link, from), relay.serve_streams(peer, &neighbour));
            });
        }
    }

    /// Serves the neighbours' streams on QUIC connections that this relay opened.
    async fn serve_opened(&self) {
        let Some(mut opened) = self.shard.links.take_opened() else { return std::future::pending().await };
        while let Some((relay, neighbour)) = opened.recv().await {
            let this = self.clone();
            spawn_local(async move { this.serve_streams(Some(relay), &neighbour).await });
        }
    }

    async fn serve_streams(&self, peer: Option<RelayId>, neighbour: &Neighbour) {
        let from = neighbour.address().ip();
        while let Ok(lane) = neighbour.accept().await {
            let relay = self.clone();
            spawn_local(async move {
                let carrier = Carrier::Quic(Box::new(lane));
                let peer_link =
                    PeerLink { carrier, rest: Vec::new(), peer, ours: true, shared: false, pads: false };
                relay.shard.serve(peer_link, from).await;
            });
        }
    }
}
