//! The relay role: accepts links, forwards cells, opens exit streams that its policy allows, and publishes itself in
//! a directory.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tidegate_control::shares::Shares;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{EndReason, RelayId};
use tidegate_proto::crypto::encrypted::Encrypted;
use tidegate_proto::crypto::names::{SharedNames, Target};
use tidegate_proto::ending::Ending;
use tidegate_proto::flashflow::relay::Config as Permissions;
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::node::{CircuitKey, Node as _, Output, StreamKey};
use tidegate_proto::relay::Relay;
use tidegate_proto::transport::Transport;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use super::addresses::Addresses;
use super::bandwidth::{Limit, as_rate};
use super::channel::{Accepted, Links};
use super::descriptor::{self, Facts};
use super::directory::{self, Entry};
use super::directory_stream::SharedDescriptors;
use super::exit::{self, Exit, Exiting};
use super::fetch::fetch;
use super::lookups::Lookups;
use super::quic::Neighbour;
use super::renewal::{Change, Keys, Renewed};
use super::status;
use super::stream::{Local, Locals, Outside};
use crate::admission::{Admission, next_connection};
use crate::clock;
use crate::flashflow::measured::Measured;
use crate::gate::Gate;
use crate::identity::{Identity, random};
use crate::link::Carrier;
use crate::overlay::{Handle, Overlay, Owner, PeerLink};
use crate::runtime::Running;

/// Where a relay publishes itself.
#[derive(Clone, Debug)]
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
    /// Bandwidth that it publishes, bytes per second; its limit by default.
    pub published: Option<u64>,
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

/// Maximum number of pending handshakes: a new one displaces the oldest.
const HANDSHAKES: usize = 512;
/// Published bandwidth of a relay without a limit, bytes per second: the largest value that directories count.
const UNLIMITED: u64 = 1_000_000_000;
/// Publication intervals: to our directory, to a Tor authority, and after a refusal.
const ANNOUNCE: Span = Span::from_secs(30);
const PUBLISH: Span = Span::from_secs(15 * 60);
const AGAIN: Span = Span::from_secs(3);

/// An event that the operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The directory accepted its entry.
    Announced,
    /// The directory refused its entry, and why.
    Refused(String),
    /// The new configuration is in effect.
    Reloaded,
    /// It drains: it ends with its last circuit.
    Draining,
    /// Keys were renewed, or their renewal failed.
    Keys(Change),
}

/// An HTTP answer: status code, reason phrase, body.
type Answer = (u16, String, Vec<u8>);

/// An operator's order to a running relay.
pub enum Order {
    /// Change the configuration.
    Reload(Box<Changes>),
    /// Drain: accept no connections and circuits, and end with the last circuit.
    Drain,
}

/// The configuration that can change while a relay runs. PredicTor's bandwidth cannot.
pub struct Changes {
    /// The exit configuration.
    pub exit: Exit,
    /// Maximum forwarding rate, bytes per second; infinity means unlimited.
    pub bandwidth: f64,
    /// Limits of what neighbours can make it store and do.
    pub limits: Limits,
    /// Where it publishes itself.
    pub announce: Announce,
}

/// Interval of comparing the memory of streams with the limit.
const MEMORY_CHECK: Span = Span::from_secs(1);
/// How long a draining relay waits for its circuits.
const DRAINING: Span = Span::from_secs(30);

/// A running relay. Clones are handles to the same relay.
#[derive(Clone)]
struct RelayLoop {
    overlay: Exiting,
    links: Rc<Links>,
    handshakes: Rc<Admission>,
    /// Local ends of exit streams.
    leaving: Locals,
    /// Bytes that they hold outside of the node, and closed streams that still hold some.
    outside: Outside,
    closing: Closing,
    exit: Rc<RefCell<Rc<Exit>>>,
    announce: Rc<RefCell<Announce>>,
    /// Wakes the publisher.
    changed: Rc<Notify>,
    /// Publication time of the last descriptor. The next one needs a later second, or an authority takes it for the
    /// same.
    published: Rc<Cell<u64>>,
    /// Bandwidth that it publishes instead of its limit.
    says: Option<u64>,
}

/// The published identity of a relay.
struct Announced {
    nickname: String,
    address: Addresses,
    keys: Renewed,
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
    let own = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
    // The status page trusts this machine, and exit streams come from it.
    let page = status.as_ref().map(|status| status.listener.local_addr()).transpose()?;
    let own: Vec<SocketAddr> = own.into_iter().chain(page).collect();
    own.iter().for_each(|own| exit.policy.refuse(*own));
    let names = SharedNames::default();
    let keys = Renewed::new(keys, !matches!(announce, Announce::Overlay(..)));
    // An expired onion key was published before, so replace it first.
    keys.renew_onion().await.into_iter().for_each(|change| on_event(Event::Keys(change)));
    let (identity, certified) = keys.everyday(None).await;
    let quic = if config.transport == Transport::Quic { &own[..] } else { &[] };
    let named = address.all().iter().map(SocketAddr::ip).collect();
    let rate = as_rate(config.bandwidth);
    let measured = measurement.map(|own| Measured::new(&own.identity, rate, own.permissions));
    let measured = measured.transpose().map_err(io::Error::other)?;
    let links = Links::relay(certified, names.clone(), named, &identity, quic)?.with_gate(extends);
    let links = Rc::new(links.with_measurement(measured.as_ref().map(Measured::tls)));
    let mut onion = Encrypted::new(None, Default::default(), random()).with_names(names);
    onion.answer_with(keys.own());
    let limit = Limit::new(config.bandwidth).with_measurement(measured);
    let inspects = config.kist.is_some();
    let mut relay = RelayLoop::new(Relay::new(onion, config), limit, links, exit, announce);
    relay.says = published;
    if inspects {
        relay.overlay.inspect_sockets();
    }
    let shown = async {
        match status {
            Some(Status { listener, circuits }) => {
                status::serve(listener, relay.shown(&nickname, circuits)).await
            }
            None => std::future::pending().await,
        }
    };
    let announced = Announced { nickname: nickname.clone(), address, keys };
    let serving = async {
        tokio::select! {
            () = relay.accept_all(&listeners) => {}
            () = relay.accept_quic() => {}
            () = relay.serve_opened() => {}
            () = relay.announce(&announced, on_event) => {}
            () = relay.renew(&announced.keys, on_event) => {}
            () = relay.measure() => {}
            () = relay.bound_memory() => {}
            () = relay.obey(&mut orders, &own, on_event) => {}
        }
    };
    tokio::select! {
        () = serving => {}
        result = shown => return result,
    }
    // Refuse new connections. Clients that wait select another relay.
    drop(listeners);
    tokio::select! {
        () = relay.drained() => {}
        () = relay.measure() => {}
    }
    if let Some(quic) = relay.links.quic() {
        quic.close().await;
    }
    Ok(())
}

/// Closed streams that may still hold data for their servers.
type Closing = Rc<RefCell<Vec<Weak<Local>>>>;

/// Logs that the relay closed a circuit: at debug level if a neighbour closed it, as happens to every circuit.
fn log_ending(circuit: CircuitKey, ending: Ending) {
    let (circuit, reason) = (circuit.0, ending.about());
    if ending.is_passed_on() {
        tracing::debug!(circuit, reason, "circuit closed");
    } else {
        tracing::info!(circuit, reason, "circuit closed");
    }
}

impl RelayLoop {
    fn new(
        node: Relay<Encrypted>,
        limit: Limit,
        links: Rc<Links>,
        exit: Exit,
        announce: Announce,
    ) -> RelayLoop {
        let exit = Rc::new(RefCell::new(Rc::new(exit)));
        let exiting = exit.clone();
        let locals = Locals::default();
        let leaving = locals.clone();
        let (outside, closing) = (Outside::default(), Closing::default());
        let (counted, lasting) = (outside.clone(), closing.clone());
        let announce = Rc::new(RefCell::new(announce));
        let announced = announce.clone();
        let streams = node.limits().map_or(usize::MAX, |limits| limits.streams.max(1) as usize);
        let (mut places, lookups) = (Shares::new(streams), Rc::<Lookups>::default());
        let descriptors = Rc::<SharedDescriptors>::default();
        let owner = |own: Handle<_, _, _>| -> Owner<Relay<Encrypted>> {
            Box::new(move |node, now, output| match output {
                Output::Connect(key, target) => {
                    let Some(overlay) = own.get() else { return };
                    // Tor's exits refuse one-hop proxying.
                    let alone = matches!(&target, Target::Host { .. }) && node.is_from_client(key.circuit);
                    if alone && matches!(&*announced.borrow(), Announce::Tor(_)) {
                        return node.end_stream(now, key, EndReason::PROTOCOL);
                    }
                    // The group is the neighbour that the circuit comes from, the holder is the circuit.
                    let of = (node.network_of(key.circuit), key.circuit);
                    let last = |key: &StreamKey| {
                        locals.borrow().get(key).map_or(Time::ZERO, |local| local.used().get())
                    };
                    while let Some(displaced) = places.displaced(&of, last) {
                        tracing::debug!("a stream made room for a newer one");
                        node.end_stream(now, displaced, EndReason::RESOURCE_LIMIT);
                        locals.borrow_mut().remove(&displaced).inspect(|local| local.abort());
                    }
                    places.admit(now, of, key);
                    let local = Rc::new(Local::noting(Rc::new(Cell::new(now)), counted.clone()));
                    locals.borrow_mut().insert(key, local.clone());
                    let (lookups, descriptors) = (lookups.clone(), descriptors.clone());
                    let request = exit::Request { key, target, of, lookups, descriptors };
                    tokio::task::spawn_local(exit::serve(overlay, exiting.borrow().clone(), request, local));
                }
                Output::Deliver(key, _, data) => {
                    if let Some(local) = locals.borrow().get(&key) {
                        node.backlog(now, key, local.deliver(now, data));
                    }
                }
                Output::Package(key, cells) => {
                    if let Some(local) = locals.borrow().get(&key) {
                        local.package(cells);
                    }
                }
                Output::StreamClosed(key, _) => {
                    places.release(&key);
                    if let Some(local) = locals.borrow_mut().remove(&key) {
                        local.end();
                        lasting.borrow_mut().extend(local.holds_outside().then(|| Rc::downgrade(&local)));
                    }
                }
                Output::CircuitEnded(circuit, ending) => log_ending(circuit, ending),
                _ => {}
            })
        };
        let overlay = Overlay::with_dial(node, limit, links.clone(), owner);
        RelayLoop {
            overlay,
            links,
            handshakes: Rc::new(Admission::new(HANDSHAKES)),
            leaving,
            outside,
            closing,
            exit,
            announce,
            changed: Rc::default(),
            published: Rc::default(),
            says: None,
        }
    }

    fn shown(&self, nickname: &str, circuits: bool) -> status::Shown {
        let overlay = self.overlay.clone();
        let circuits = circuits.then(|| self.leaving.clone());
        status::Shown { overlay, nickname: nickname.to_owned(), circuits }
    }

    /// Keeps cells, streams' bytes and kernel buffers together below the memory limit: above it, streams end that hold
    /// bytes outside of the node, the idlest first, until 90 % of the limit is in use.
    async fn bound_memory(&self) {
        loop {
            clock::until(clock::now() + MEMORY_CHECK).await;
            self.closing.borrow_mut().retain(|local| local.strong_count() > 0);
            let (limit, held) = self
                .overlay
                .with(|node, _| (node.limits().map_or(u64::MAX, |limits| limits.memory.0), node.memory()));
            let held = held + self.overlay.stalled_bytes();
            if held + self.outside.get() > limit {
                self.relieve_memory((limit / 10 * 9).saturating_sub(held));
            }
            let mut cut = 0;
            while self.outside.get()
                + self.overlay.with(|node, _| node.memory())
                + self.overlay.stalled_bytes()
                > limit
                && self.overlay.cut_most_stalled()
            {
                cut += 1;
            }
            if cut > 0 {
                tracing::warn!(
                    connections = cut,
                    "ended connections that are not read above the memory limit"
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
        tracing::warn!(streams = ended, "ended streams above the memory limit");
    }

    /// Follows orders until one is to drain.
    async fn obey(&self, orders: &mut mpsc::Receiver<Order>, own: &[SocketAddr], on_event: &dyn Fn(Event)) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Reload(changes) => {
                    let Changes { mut exit, bandwidth, limits, announce } = *changes;
                    own.iter().for_each(|own| exit.policy.refuse(*own));
                    *self.exit.borrow_mut() = Rc::new(exit);
                    *self.announce.borrow_mut() = announce;
                    self.overlay.limit().set(bandwidth);
                    self.overlay.with(|node, _| node.set_limits(limits));
                    self.changed.notify_one();
                    on_event(Event::Reloaded);
                }
                Order::Drain => {
                    self.overlay.with(|node, _| node.drain_circuits());
                    on_event(Event::Draining);
                    return;
                }
            }
        }
        // The sender is gone, so no order will come.
        std::future::pending().await
    }

    /// Renews keys, and publishes the new ones at once.
    async fn renew(&self, keys: &Renewed, on_event: &dyn Fn(Event)) {
        let hear = |change: Change| {
            if matches!(change, Change::Onion | Change::Forgotten) {
                self.overlay.with(|node, _| node.onion().answer_with(keys.own()));
            }
            if matches!(change, Change::Onion | Change::Signing) {
                self.changed.notify_one();
            }
            on_event(Event::Keys(change));
        };
        keys.run(&self.links, hear).await;
    }

    /// Publishes the relay periodically, and at once after a change.
    async fn announce(&self, who: &Announced, on_event: &dyn Fn(Event)) {
        loop {
            let announce = self.announce.borrow().clone();
            let (answer, interval) = match &announce {
                Announce::None => (None, Span::from_secs(3600)),
                Announce::Overlay(at, token) => (Some(self.join(who, *at, token.as_deref()).await), ANNOUNCE),
                Announce::Tor(authorities) => (self.publish(who, authorities).await, PUBLISH),
            };
            let pause = match answer {
                None => interval,
                Some(Ok((200, _, _))) => {
                    on_event(Event::Announced);
                    interval
                }
                // Tor's authorities explain a refusal in the status line.
                Some(Ok((code, words, body))) => {
                    let body = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
                    on_event(Event::Refused(format!("{code} {words} {body}")));
                    AGAIN
                }
                Some(Err(cause)) => {
                    on_event(Event::Refused(cause.to_string()));
                    AGAIN
                }
            };
            tokio::select! {
                () = clock::until(clock::now() + pause) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    fn bandwidth(&self) -> u64 {
        self.says.or(self.overlay.limit().rate()).unwrap_or(UNLIMITED)
    }

    async fn join(&self, who: &Announced, at: SocketAddr, token: Option<&str>) -> io::Result<Answer> {
        let facts = (self.bandwidth(), self.exit.borrow().policy.is_exit(), clock::unix());
        let line = Entry::new(&who.nickname, who.address, &who.keys.router(), facts).line();
        let token = token.map_or(String::new(), |token| format!("token {token}\n"));
        let proof = directory::proof(&who.keys.router());
        fetch(at, "/relay", Some(format!("{token}{proof}\n{line}\n").as_bytes())).await
    }

    /// Publishes the descriptor at all authorities (dir-spec, "Uploading server descriptors"). Returns the first answer that
    /// is not a success, or else the last one.
    async fn publish(&self, who: &Announced, authorities: &[SocketAddr]) -> Option<io::Result<Answer>> {
        let exit = self.exit.borrow().clone();
        self.published.set(clock::unix().max(self.published.get() + 1));
        let facts = Facts {
            nickname: &who.nickname,
            address: who.address,
            bandwidth: self.bandwidth(),
            policy: &exit.policy,
            directory: exit.directory.is_some(),
            published: self.published.get(),
        };
        let certified = self.links.certified().expect("a relay has keys");
        let text = descriptor::build(&who.keys.router(), &certified, &facts);
        let mut last = None;
        for at in authorities {
            let answer = fetch(*at, "/tor/", Some(text.as_bytes())).await;
            let accepted = answer.as_ref().is_ok_and(|(code, _, _)| *code == 200);
            last = Some(answer);
            if !accepted {
                break;
            }
        }
        last
    }

    async fn accept_all(&self, listeners: &[TcpListener]) {
        futures_util::future::join_all(listeners.iter().map(|listener| self.accept(listener))).await;
    }

    async fn accept(&self, listener: &TcpListener) {
        loop {
            let (tcp, from) = next_connection(listener).await;
            let from = from.ip();
            // A measurement's connections are not the neighbours' (proposal 316).
            let expected = self.overlay.limit().measured().is_some_and(|measured| measured.expects(from));
            if !expected && self.overlay.with(|node, now| node.turns_away(now, from)) {
                continue;
            }
            let relay = self.clone();
            tokio::task::spawn_local(async move {
                // Errors are not propagated, and the peer's address is deliberately not logged.
                // On the heap while they last: a task keeps room for its largest future until the connection ends.
                let handshake = Box::pin(relay.links.accept(tcp));
                let peer_link = match relay.handshakes.run(from, handshake).await {
                    Some(Ok(Accepted::Neighbour(peer_link))) => peer_link,
                    Some(Ok(Accepted::Measurer(stream, peer, first))) => {
                        if let Some(measured) = relay.overlay.limit().measured() {
                            // A measurement's errors are the coordinator's to report.
                            Box::pin(measured.serve(*stream, peer, *first)).await.unwrap_or_default();
                        }
                        return;
                    }
                    Some(Err(cause)) => return tracing::debug!(%cause, "handshake failed"),
                    None => {
                        return tracing::debug!(cause = "displaced by newer connections", "handshake failed");
                    }
                };
                tracing::debug!(relay = peer_link.peer.is_some(), ours = peer_link.ours, "connection");
                // The limit may have been reached during the handshake.
                relay.serve(peer_link, from).await;
            });
        }
    }

    /// Waits for the last circuit, within limits.
    async fn drained(&self) {
        let end = clock::now() + DRAINING;
        while clock::now() < end && self.overlay.with(|node, _| node.circuits()) > 0 {
            clock::until(clock::now() + Span::from_millis(50)).await;
        }
    }

    /// Runs the timeouts of measurements.
    async fn measure(&self) {
        match self.overlay.limit().measured() {
            Some(measured) => measured.timers().await,
            None => std::future::pending().await,
        }
    }

    async fn accept_quic(&self) {
        let Some(quic) = self.links.quic() else { return std::future::pending().await };
        while let Some(incoming) = quic.incoming().await {
            let from = incoming.remote_address().ip();
            if self.overlay.with(|node, now| node.turns_away(now, from)) {
                incoming.refuse();
                continue;
            }
            let relay = self.clone();
            tokio::task::spawn_local(async move {
                let (peer_link, neighbour) =
                    match relay.handshakes.run(from, relay.links.accept_quic(incoming)).await {
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
                tokio::join!(relay.serve(peer_link, from), relay.serve_streams(peer, &neighbour));
            });
        }
    }

    /// Serves the neighbours' streams on QUIC connections that this relay opened.
    async fn serve_opened(&self) {
        let Some(mut opened) = self.links.take_opened() else { return std::future::pending().await };
        while let Some((relay, neighbour)) = opened.recv().await {
            let this = self.clone();
            tokio::task::spawn_local(async move { this.serve_streams(Some(relay), &neighbour).await });
        }
    }

    async fn serve_streams(&self, peer: Option<RelayId>, neighbour: &Neighbour) {
        let from = neighbour.address().ip();
        while let Ok(lane) = neighbour.accept().await {
            let relay = self.clone();
            tokio::task::spawn_local(async move {
                let carrier = Carrier::Quic(Box::new(lane));
                let peer_link = PeerLink { carrier, rest: Vec::new(), peer, ours: true, shared: false };
                relay.serve(peer_link, from).await;
            });
        }
    }

    /// Serves a link. A QUIC stream counts as one connection.
    async fn serve(&self, peer_link: PeerLink, from: IpAddr) {
        if !self.overlay.with(|node, now| node.turns_away(now, from)) {
            let tell = |node: &mut Relay<_>, now, id| node.channel_is_from(now, id, from);
            self.overlay.serve_with(peer_link, tell).await;
        }
    }
}
