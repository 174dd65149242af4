//! A relay on sockets: answers measurement circuits and forwards at most at its rate.
//!
//! All work is on one thread, as in tor. An unauthenticated peer costs one TLS handshake of limited duration
//! and one of a limited number of places; a new peer takes the place of the oldest. Only peers of a running
//! measurement get a buffer.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use rustls::ServerConfig;
use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Rate, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::encrypted::Encrypted;
use tidegate_proto::crypto::ntor::{self, RelaySecret};
use tidegate_proto::crypto::wire;
use tidegate_proto::flashflow::cell::{self, CELL, CellBuffer, Token};
use tidegate_proto::flashflow::echo::RelayEnd;
use tidegate_proto::flashflow::hold::Hold;
use tidegate_proto::flashflow::load::BATCH;
use tidegate_proto::flashflow::message::{Fingerprint, Message};
use tidegate_proto::flashflow::pace::{Class, Pace};
use tidegate_proto::flashflow::relay::{Config, Output, Target};
use tidegate_proto::links::{self, ChannelId};
use tidegate_proto::node::{Node as _, Output as Asked};
use tidegate_proto::relay::Relay;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::server::TlsStream;

use super::hold;
use super::limits::Addresses;
pub use super::limits::Limits;
use crate::admission::{Admission, next_connection};
use crate::identity::{Contact, Identity, random};
use crate::link::BufferedTcp;
use crate::overlay::{Overlay, RateLimit};
use crate::{clock, link};

/// Bytes that the relay forwarded, by its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// On measurement circuits.
    pub measurement: u64,
    /// On ordinary circuits.
    pub background: u64,
}

/// A running relay. Clones are handles to the same relay.
#[derive(Clone)]
pub struct MeasuredRelay {
    shared: Rc<Shared>,
    /// Ordinary circuits.
    overlay: Overlay<Relay<Encrypted>, Background>,
}

/// Paces ordinary circuits and counts their bytes for the measurement.
struct Background(Rc<Shared>);

impl RateLimit for Background {
    async fn leave(&self, channel: ChannelId, bytes: u64) {
        // Channels and connections are numbered separately.
        let who = u64::from(channel.0) | CHANNEL;
        let mut left = bytes;
        while left > 0 {
            left = left.saturating_sub(self.0.grant(Class::Background, who, left).await);
        }
        self.0.state.borrow_mut().target.background(bytes, 0);
    }

    fn received(&self, bytes: u64) {
        self.0.state.borrow_mut().target.background(0, bytes);
    }
}

/// Marks the number of a channel among the numbers that wait for a grant.
const CHANNEL: u64 = 1 << 63;

struct Shared {
    secret: RelaySecret,
    tls: Arc<ServerConfig>,
    limits: Limits,
    admission: Admission,
    addresses: Addresses,
    /// Certificates of the relays to which circuits are extended.
    neighbours: BTreeSet<Fingerprint>,
    state: RefCell<State>,
    /// Signals a new request to the pace or a new timeout of the target.
    changed: Notify,
    /// Number of measurements that ended. Circuits of an earlier measurement close when it changes.
    ended: watch::Sender<u64>,
}

struct State {
    target: Target,
    pace: Pace<u64>,
    /// Decryption rate of a lying relay, and its schedule of returned cells during a measurement.
    holds: Option<Rate>,
    hold: Option<Hold>,
    /// Waiters for a grant, with the bytes granted to each.
    seats: BTreeMap<u64, (u64, Option<Waker>)>,
    coordinators: BTreeMap<u64, mpsc::UnboundedSender<Message>>,
    expected: Vec<IpAddr>,
    connections: usize,
    last_id: u64,
    forwarded: Forwarded,
}

impl MeasuredRelay {
    /// A relay that forwards at most at `rate` and can be measured as `config` says.
    ///
    /// # Errors
    /// If the identity's key does not fit its certificate.
    pub fn new(
        identity: Arc<Identity>,
        rate: Rate,
        config: Config,
        limits: Limits,
        neighbours: BTreeMap<RelayId, Contact>,
    ) -> Result<MeasuredRelay, rustls::Error> {
        let state = State {
            target: Target::new(config),
            pace: Pace::new(rate),
            holds: None,
            hold: None,
            seats: BTreeMap::new(),
            coordinators: BTreeMap::new(),
            expected: Vec::new(),
            connections: 0,
            last_id: 0,
            forwarded: Forwarded::default(),
        };
        let shared = Rc::new(Shared {
            secret: identity.relay(),
            tls: crate::tls::server(&identity)?,
            limits,
            admission: Admission::new(limits.unauthenticated),
            addresses: Addresses::new(limits.per_address),
            neighbours: neighbours.values().map(|contact| contact.fingerprint).collect(),
            state: RefCell::new(state),
            changed: Notify::new(),
            ended: watch::Sender::new(0),
        });
        let onion = Encrypted::new(Some(identity.relay()), BTreeMap::new(), random());
        // This relay only forwards: it refuses streams that would leave the overlay here.
        let owner = Box::new(|node: &mut Relay<Encrypted>, now, asked| {
            if let Asked::Connect(stream, _) = asked {
                node.stream_ended(now, stream);
            }
        });
        let config = links::Config { circuits_per_channel: limits.circuits, ..links::Config::default() };
        let node = Relay::new(onion, config);
        let overlay = Overlay::new(node, Background(shared.clone()), Some(identity), neighbours, owner);
        overlay.set_timeouts(limits.timeouts);
        Ok(MeasuredRelay { shared, overlay })
    }

    /// Makes the relay decrypt at `rate` and lie about it, for demonstrations.
    ///
    /// See [`tidegate_proto::flashflow::hold`].
    pub fn hold_back(&self, rate: Rate) {
        let mut state = self.shared.state.borrow_mut();
        state.pace = Pace::without_burst(rate);
        state.holds = Some(rate);
    }

    /// Bytes forwarded since the start.
    pub fn forwarded(&self) -> Forwarded {
        self.shared.state.borrow().forwarded
    }

    /// Whether a measurement is agreed or running.
    pub fn is_busy(&self) -> bool {
        self.shared.state.borrow().target.is_busy()
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.state.borrow().connections
    }

    /// Serves until dropped. Must run inside a [`tokio::task::LocalSet`].
    pub async fn serve(self, listener: TcpListener) {
        let timers = self.clone().timers();
        tokio::select! {
            () = self.accept(listener) => {}
            () = timers => {}
        }
    }

    async fn accept(&self, listener: TcpListener) {
        loop {
            let (tcp, from) = next_connection(&listener).await;
            let mut state = self.shared.state.borrow_mut();
            let full = state.connections >= self.shared.limits.connections;
            if full && !state.expected.contains(&from.ip()) {
                continue;
            }
            state.connections += 1;
            state.last_id += 1;
            let connection = Connection { relay: self.clone(), id: state.last_id, from: from.ip() };
            drop(state);
            // Errors of one connection are not reported: a hostile peer could fill the log.
            tokio::task::spawn_local(async move { connection.run(tcp).await.unwrap_or_default() });
        }
    }

    async fn timers(self) {
        loop {
            let due = {
                let state = self.shared.state.borrow();
                [state.target.next_timeout(), state.pace.next_timeout()].into_iter().flatten().min()
            };
            tokio::select! {
                () = clock::until(due.unwrap_or(Time::NEVER)) => {}
                () = self.shared.changed.notified() => {}
            }
            let now = clock::now();
            let mut state = self.shared.state.borrow_mut();
            state.target.timeout(now);
            self.shared.settle(&mut state, now);
        }
    }
}

impl Shared {
    /// Performs the outputs of the target and the pace.
    fn settle(&self, state: &mut State, now: Time) {
        while let Some(output) = state.target.poll() {
            match output {
                Output::Send(to, message) => {
                    if let Some(outbox) = state.coordinators.get(&to) {
                        // A closed outbox belongs to a connection that is about to report its end.
                        let _ = outbox.send(message);
                    }
                }
                Output::Close(to) => {
                    state.coordinators.remove(&to);
                }
                Output::Expect(addresses) => state.expected = addresses,
                Output::Started(ratio) => {
                    state.pace.measuring(now, ratio);
                    let seconds = state.target.seconds();
                    state.hold = state.holds.zip(seconds).map(|(rate, s)| Hold::new(now, rate, s));
                }
                Output::Ended => {
                    state.hold = None;
                    state.pace.idle();
                    state.expected.clear();
                    self.ended.send_modify(|count| *count += 1);
                }
            }
        }
        while let Some(grant) = state.pace.poll(now) {
            let Some((granted, waker)) = state.seats.get_mut(&grant.who) else { continue };
            *granted = grant.bytes;
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Waits for leave to forward some of `bytes`.
    async fn grant(&self, class: Class, who: u64, bytes: u64) -> u64 {
        let now = clock::now();
        {
            let mut state = self.state.borrow_mut();
            state.seats.insert(who, (0, None));
            state.pace.request(class, who, bytes);
            self.settle(&mut state, now);
            if state.seats[&who].0 == 0 {
                self.changed.notify_one();
            }
        }
        // A waiter that is dropped gives up its place.
        let _seat = Seat { shared: self, class, who };
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            let (granted, waker) = state.seats.get_mut(&who).expect("a seat lasts as long as its owner");
            if *granted == 0 {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            let granted = std::mem::take(granted);
            match class {
                Class::Measurement => state.forwarded.measurement += granted,
                Class::Background => state.forwarded.background += granted,
            }
            Poll::Ready(granted)
        })
        .await
    }
}

/// A place among the waiters for a grant.
struct Seat<'a> {
    shared: &'a Shared,
    class: Class,
    who: u64,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.borrow_mut();
        // Zero bytes granted: the request is still in the queue.
        if state.seats.get(&self.who).is_some_and(|(granted, waker)| *granted == 0 && waker.is_some()) {
            state.pace.withdraw(self.class, self.who);
        }
        state.seats.remove(&self.who);
    }
}

/// One accepted connection; its place is free again when it is dropped.
struct Connection {
    relay: MeasuredRelay,
    id: u64,
    from: IpAddr,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.relay.shared.state.borrow_mut().connections -= 1;
    }
}

impl Connection {
    async fn run(mut self, tcp: TcpStream) -> io::Result<()> {
        let shared = self.relay.shared.clone();
        let limit = shared.limits.handshake;
        let handshake = async {
            let (mut stream, peer) = link::accept(tcp, shared.tls.clone(), limit).await?;
            let first = link::within(limit, link::read_cell(&mut stream)).await?;
            io::Result::Ok((stream, peer, first))
        };
        let Some(admitted) = shared.admission.run(self.from, handshake).await else { return Ok(()) };
        let (stream, peer, first) = admitted?;
        // The first cell decides: an overlay peer, a coordinator or a measurer.
        if wire::circuit_command(first[4], &first[5..]).is_some() {
            let neighbour = peer.is_some_and(|peer| shared.neighbours.contains(&peer));
            let counted = shared.addresses.enter(self.from);
            if neighbour || counted.is_some() {
                self.relay.overlay.accepted(stream, first).await;
            }
            return Ok(());
        }
        let Some(peer) = peer else { return Ok(()) };
        match first[4] {
            cell::MEASUREMENT => self.coordinator(stream, peer, first).await,
            cell::CREATE_MEASUREMENT => {
                let Some((token, skin)) = cell::parse_create(&first) else { return Ok(()) };
                if !self.relay.shared.state.borrow().target.admits(&peer, &token) {
                    return Ok(());
                }
                self.circuit(stream, cell::circ(&first), peer, token, skin).await
            }
            _ => Ok(()),
        }
    }

    /// Passes messages between a coordinator and the target.
    async fn coordinator(
        &mut self,
        stream: TlsStream<BufferedTcp>,
        peer: Fingerprint,
        first: [u8; CELL],
    ) -> io::Result<()> {
        let (outbox, mut messages) = mpsc::unbounded_channel();
        self.relay.shared.state.borrow_mut().coordinators.insert(self.id, outbox);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let reading = async {
            let mut next = first;
            while let Ok(message) = Message::from_cell(&next) {
                {
                    let mut state = self.relay.shared.state.borrow_mut();
                    let now = clock::now();
                    state.target.message(now, self.id, &peer, &message);
                    self.relay.shared.settle(&mut state, now);
                }
                self.relay.shared.changed.notify_one();
                next = link::read_cell(&mut reader).await?;
            }
            Err(io::ErrorKind::InvalidData.into())
        };
        let writing = async {
            while let Some(message) = messages.recv().await {
                let cell = message.to_cell().map_err(io::Error::other)?;
                link::write_cells(&mut writer, &cell).await?;
            }
            tokio::io::AsyncWriteExt::shutdown(&mut writer).await
        };
        // Writing ends when the target closes the connection, reading when the coordinator does.
        let result = tokio::select! {
            result = reading => result,
            result = writing => result,
        };
        let mut state = self.relay.shared.state.borrow_mut();
        state.coordinators.remove(&self.id);
        state.target.lost(self.id);
        self.relay.shared.settle(&mut state, clock::now());
        result
    }

    /// Serves a measurement circuit until the measurement ends.
    async fn circuit(
        &mut self,
        mut stream: TlsStream<BufferedTcp>,
        circ: u32,
        peer: Fingerprint,
        token: Token,
        skin: [u8; ntor::ONION_SKIN],
    ) -> io::Result<()> {
        let mut ended = self.relay.shared.ended.subscribe();
        let Ok((keys, reply)) = ntor::answer(&self.relay.shared.secret, &skin, random()) else {
            return Ok(());
        };
        if !self.relay.shared.state.borrow().target.admits(&peer, &token) {
            return Ok(());
        }
        let end = RelayEnd::new(circ, &keys);
        tokio::select! {
            result = async {
                link::write_cells(&mut stream, &cell::created(circ, &reply)).await?;
                self.echo(&mut stream, end).await
            } => result,
            _ = ended.changed() => Ok(()),
        }
    }

    async fn echo(&self, stream: &mut TlsStream<BufferedTcp>, mut end: RelayEnd) -> io::Result<()> {
        if self.relay.shared.state.borrow().holds.is_some() {
            return hold::echo(stream, end, |bytes| self.leave(bytes), |kept| self.release(kept)).await;
        }
        let mut buffer = CellBuffer::new(BATCH);
        loop {
            let count = link::read_some(stream, buffer.space()).await?;
            if count == 0 {
                return Ok(());
            }
            buffer.filled(count);
            let mut cells = buffer.cells();
            while !cells.is_empty() {
                let Some(leave) = self.leave(cells.len() as u64).await else { return Ok(()) };
                let (now, later) = cells.split_at_mut(leave as usize);
                end.answer(now).map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
                link::write_cells(stream, now).await?;
                cells = later;
            }
            buffer.consume();
        }
    }

    /// Waits for leave to answer some of `bytes` of echo cells; `None` without a measurement.
    async fn leave(&self, bytes: u64) -> Option<u64> {
        if !self.begin() {
            return None;
        }
        Some(self.relay.shared.grant(Class::Measurement, self.id, bytes).await)
    }

    /// Bytes that a lying relay returns now; it claims the same amount as background.
    fn release(&self, kept: u64) -> u64 {
        let mut state = self.relay.shared.state.borrow_mut();
        let bytes = state.hold.as_mut().map_or(0, |hold| hold.release(clock::now(), kept));
        state.target.background(bytes, bytes);
        bytes
    }

    /// Tells the target that echo cells arrived; returns whether they may be answered.
    fn begin(&self) -> bool {
        let mut state = self.relay.shared.state.borrow_mut();
        let now = clock::now();
        let first = state.target.next_timeout();
        let admitted = state.target.echo(now);
        if state.target.next_timeout() != first {
            self.relay.shared.settle(&mut state, now);
            self.relay.shared.changed.notify_one();
        }
        admitted
    }
}
