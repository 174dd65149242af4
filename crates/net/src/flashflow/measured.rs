//! The measured side of a relay: its agreement with coordinators, the pace of everything that it forwards, and its
//! measurement circuits.
//!
//! [`super::relay`] is a relay that can do little else; a relay of the overlay ([`crate::live::relay`]) has one beside
//! its users' circuits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use rustls::ServerConfig;
use tidegate_control::machine::Machine as _;
use tidegate_control::turns::Sharing;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::crypto::cert::Fingerprint;
use tidegate_proto::crypto::ntor::{self, RelaySecret};
use tidegate_proto::flashflow::cell::{self, CELL, CellBuffer, Token};
use tidegate_proto::flashflow::load::BATCH;
use tidegate_proto::flashflow::relay::{Config, Output, Target};
use tidegate_proto::flashflow::{Class, Hold, Message, Pace, RelayEnd};
use tidegate_proto::links::ChannelId;
use tokio::sync::{Notify, mpsc, watch};
use tokio_rustls::server::TlsStream;

use super::hold;
use crate::identity::{Identity, random};
use crate::line_a_minute::LineAMinute;
use crate::link::BufferedTcp;
use crate::{clock, link};

/// Bytes that the relay forwarded, by its own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// On measurement circuits.
    pub measurement: u64,
    /// On ordinary circuits.
    pub background: u64,
}

/// The measured side of a relay. Clones are handles to the same one.
#[derive(Clone)]
pub(crate) struct Measured(Rc<Shared>);

/// How long a circuit with another onion key stays open.
const CLOSE_AFTER: Span = Span::from_millis(500);

/// Marks the number of a channel among the numbers that wait for a grant.
const CHANNEL: u64 = 1 << 63;

struct Shared {
    secret: RelaySecret,
    tls: Arc<ServerConfig>,
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
    last_id: u64,
    forwarded: Forwarded,
    /// The log's line about coordinators with another onion key.
    warned: LineAMinute,
}

impl Measured {
    /// A relay that forwards at most at `rate` and can be measured as `config` says.
    ///
    /// # Errors
    /// If the identity's key does not fit its certificate.
    pub(crate) fn new(identity: &Identity, rate: Rate, config: Config) -> Result<Measured, rustls::Error> {
        let state = State {
            target: Target::new(config),
            pace: Pace::new(rate),
            holds: None,
            hold: None,
            seats: BTreeMap::new(),
            coordinators: BTreeMap::new(),
            expected: Vec::new(),
            last_id: 0,
            forwarded: Forwarded::default(),
            warned: LineAMinute::new(),
        };
        Ok(Measured(Rc::new(Shared {
            secret: identity.relay(),
            tls: crate::tls::server(identity)?,
            state: RefCell::new(state),
            changed: Notify::new(),
            ended: watch::Sender::new(0),
        })))
    }

    /// The TLS configuration for coordinators and measurers.
    pub(crate) fn tls(&self) -> Arc<ServerConfig> {
        self.0.tls.clone()
    }

    /// Makes the relay decrypt at `rate` and lie about it, for demonstrations.
    ///
    /// See [`tidegate_proto::flashflow::hold`].
    pub(crate) fn hold_back(&self, rate: Rate) {
        let mut state = self.0.state.borrow_mut();
        state.pace = Pace::without_burst(rate);
        state.holds = Some(rate);
    }

    /// Changes the rate limit.
    pub(crate) fn set_rate(&self, rate: Rate) {
        self.0.state.borrow_mut().pace.set_limit(clock::now(), rate);
        self.0.changed.notify_one();
    }

    /// Bytes forwarded since the start.
    pub(crate) fn forwarded(&self) -> Forwarded {
        self.0.state.borrow().forwarded
    }

    /// Whether a measurement is agreed or running.
    pub(crate) fn is_busy(&self) -> bool {
        self.0.state.borrow().target.is_busy()
    }

    /// Whether connections from the address are exempt from limits, because a measurement expects them.
    pub(crate) fn expects(&self, address: IpAddr) -> bool {
        self.0.state.borrow().expected.contains(&address)
    }

    /// Waits until an ordinary channel may write `bytes`. It shares its turns with all others of its `group`.
    pub(crate) async fn leave(&self, channel: ChannelId, group: Option<Sharing<IpAddr>>, bytes: u64) {
        // Channels and connections are numbered separately.
        let who = u64::from(channel.0) | CHANNEL;
        let mut left = bytes;
        while left > 0 {
            left = left.saturating_sub(self.0.grant(Class::Background, (who, group), left).await);
        }
        self.0.state.borrow_mut().target.background(bytes, 0);
    }

    /// Notes bytes that an ordinary channel read.
    pub(crate) fn received(&self, bytes: u64) {
        self.0.state.borrow_mut().target.background(0, bytes);
    }

    /// Notes bytes of streams that an exit sent to servers and received from them: without them, an exit forwards more
    /// than it receives, and its users would count little.
    pub(crate) fn outside(&self, sent: u64, received: u64) {
        self.0.state.borrow_mut().target.background(sent, received);
    }

    /// Runs the timeouts. Without it, nothing limited leaves.
    pub(crate) async fn timers(&self) {
        loop {
            let due = {
                let state = self.0.state.borrow();
                [state.target.next_timeout(), state.pace.next_timeout()].into_iter().flatten().min()
            };
            tokio::select! {
                () = clock::until(due.unwrap_or(Time::NEVER)) => {}
                () = self.0.changed.notified() => {}
            }
            let now = clock::now();
            let mut state = self.0.state.borrow_mut();
            state.target.timeout(now);
            self.0.settle(&mut state, now);
        }
    }

    /// Serves a coordinator or a measurer that proved this fingerprint. Its first cell decides.
    ///
    /// # Errors
    /// If the connection fails, or the peer violates the protocol.
    pub(crate) async fn serve(
        &self,
        stream: TlsStream<BufferedTcp>,
        peer: Fingerprint,
        first: [u8; CELL],
    ) -> io::Result<()> {
        let id = {
            let mut state = self.0.state.borrow_mut();
            state.last_id += 1;
            state.last_id
        };
        let connection = Connection { shared: self.0.clone(), id };
        match first[4] {
            cell::MEASUREMENT => connection.coordinator(stream, peer, first).await,
            cell::CREATE_MEASUREMENT => {
                let Some((token, skin)) = cell::parse_create(&first) else { return Ok(()) };
                connection.circuit(stream, cell::circ(&first), peer, token, skin).await
            }
            _ => Ok(()),
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
                    tracing::info!(seconds, background_percent = ratio.get(), "measurement");
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
    async fn grant(&self, class: Class, (who, group): (u64, Option<Sharing<IpAddr>>), bytes: u64) -> u64 {
        let now = clock::now();
        {
            let mut state = self.state.borrow_mut();
            state.seats.insert(who, (0, None));
            state.pace.request_from(group, class, who, bytes);
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

/// One connection of a coordinator or a measurer.
struct Connection {
    shared: Rc<Shared>,
    id: u64,
}

impl Connection {
    /// Passes messages between a coordinator and the target.
    async fn coordinator(
        &self,
        stream: TlsStream<BufferedTcp>,
        peer: Fingerprint,
        first: [u8; CELL],
    ) -> io::Result<()> {
        let (outbox, mut messages) = mpsc::unbounded_channel();
        self.shared.state.borrow_mut().coordinators.insert(self.id, outbox);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let reading = async {
            let mut next = first;
            while let Ok(message) = Message::from_cell(&next) {
                {
                    let mut state = self.shared.state.borrow_mut();
                    let now = clock::now();
                    state.target.message(now, self.id, &peer, &message);
                    self.shared.settle(&mut state, now);
                }
                self.shared.changed.notify_one();
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
        let mut state = self.shared.state.borrow_mut();
        state.coordinators.remove(&self.id);
        let now = clock::now();
        state.target.lost(now, self.id);
        self.shared.settle(&mut state, now);
        result
    }

    /// Serves a measurement circuit until the measurement ends.
    async fn circuit(
        &self,
        mut stream: TlsStream<BufferedTcp>,
        circ: u32,
        peer: Fingerprint,
        token: Token,
        skin: [u8; ntor::ONION_SKIN],
    ) -> io::Result<()> {
        let mut ended = self.shared.ended.subscribe();
        if !self.shared.state.borrow().target.admits(&peer, &token) {
            return Ok(());
        }
        let Ok((keys, reply)) = ntor::answer(&self.shared.secret, &skin, random()) else {
            self.wrong_key();
            // The coordinator hears of it before its measurers report closed circuits.
            clock::until(clock::now() + CLOSE_AFTER).await;
            return Ok(());
        };
        let end = RelayEnd::new(circ, &keys);
        tokio::select! {
            result = async {
                link::write_cells(&mut stream, &cell::created(circ, &reply)).await?;
                self.echo(&mut stream, end).await
            } => result,
            _ = ended.changed() => Ok(()),
        }
    }

    /// Ends a measurement for which measurers got another onion key. The log says so at most once a minute, because a
    /// coordinator may try again at once.
    fn wrong_key(&self) {
        let now = clock::now();
        let mut state = self.shared.state.borrow_mut();
        state.target.wrong_key(now);
        self.shared.settle(&mut state, now);
        self.shared.changed.notify_one();
        if state.warned.count(now).is_some() {
            let cause = "the coordinator's configuration has another onion key of this relay";
            let cure = "set its `onion-key` to what `tidegate flashflow keygen` printed for this relay";
            tracing::warn!(cause, cure, "measurement failed");
        }
    }

    async fn echo(&self, stream: &mut TlsStream<BufferedTcp>, mut end: RelayEnd) -> io::Result<()> {
        if self.shared.state.borrow().holds.is_some() {
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
        Some(self.shared.grant(Class::Measurement, (self.id, None), bytes).await)
    }

    /// Bytes that a lying relay returns now; it claims the same amount as background.
    fn release(&self, kept: u64) -> u64 {
        let mut state = self.shared.state.borrow_mut();
        let bytes = state.hold.as_mut().map_or(0, |hold| hold.release(clock::now(), kept));
        state.target.background(bytes, bytes);
        bytes
    }

    /// Tells the target that echo cells arrived; returns whether they may be answered.
    fn begin(&self) -> bool {
        let mut state = self.shared.state.borrow_mut();
        let now = clock::now();
        let first = state.target.next_timeout();
        let admitted = state.target.echo(now);
        if state.target.next_timeout() != first {
            self.shared.settle(&mut state, now);
            self.shared.changed.notify_one();
        }
        admitted
    }
}
