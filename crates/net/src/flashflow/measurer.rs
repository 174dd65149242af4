//! A measurer on sockets: one thread for the role, and worker threads that load the relay.
//!
//! Each worker has its share of the sockets and of the rate.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustls::ClientConfig;
use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Span, Time};
use tidegate_proto::crypto::ntor::ClientHandshake;
use tidegate_proto::flashflow::cell::{self, CELL, CellBuffer};
use tidegate_proto::flashflow::load::{BATCH, Load, Turn};
use tidegate_proto::flashflow::measurer::{Measurer, Output};
use tidegate_proto::flashflow::{Fingerprint, MeasurerEnd, Message, Open, Reason};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::server;

use crate::admission::{Admission, next_connection};
use crate::driver::{Driver, Handler};
use crate::identity::{Identity, hex, random};
use crate::line_a_minute::LineAMinute;
use crate::link::BufferedTcp;
use crate::{clock, link, tls};

/// Time in which a circuit must open.
const OPENING: Span = Span::from_secs(15);
/// Time for a coordinator's handshake.
const HANDSHAKE: Span = Span::from_secs(10);

/// Options of a measurer's operator.
#[derive(Clone, Debug)]
pub struct MeasurerOptions {
    /// Certificate fingerprints of the coordinators that may use the measurer.
    pub coordinators: Vec<Fingerprint>,
    /// Number of worker threads.
    pub workers: usize,
    /// Sending rate in bits per second that it never exceeds.
    pub rate: u64,
}

/// Limits of handshakes in progress and of simultaneous measurements. Coordinators have equal shares of the latter.
const UNAUTHENTICATED: usize = 1024;
const SESSIONS: usize = 256;

/// Places for the measurements of each coordinator.
struct Sessions {
    places: BTreeMap<Fingerprint, Arc<Semaphore>>,
    /// The log's line about peers that are not coordinators.
    warned: RefCell<LineAMinute>,
}

impl Sessions {
    fn of(coordinators: &[Fingerprint]) -> Sessions {
        let share = (SESSIONS / coordinators.len().max(1)).max(1);
        let places = coordinators.iter().map(|coordinator| (*coordinator, Arc::new(Semaphore::new(share))));
        Sessions { places: places.collect(), warned: RefCell::new(LineAMinute::new()) }
    }

    /// A place for a measurement of this peer; `None` if it is not a coordinator, or uses up its share.
    fn begin(&self, peer: &Fingerprint) -> Option<OwnedSemaphorePermit> {
        self.places.get(peer)?.clone().try_acquire_owned().ok()
    }

    /// Logs a peer that is not a coordinator, at most once a minute: anyone can connect.
    fn warn(&self, from: SocketAddr, peer: &Fingerprint) {
        if self.warned.borrow_mut().count(clock::now()).is_some() {
            let (fingerprint, cause) = (hex(peer), "its fingerprint is not in `coordinators`");
            tracing::warn!(%from, fingerprint, cause, "peer refused");
        }
    }
}

/// Serves coordinators until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// Each connection is a measurement. Together they stay below the operator's rate.
pub async fn serve(
    listener: TcpListener,
    identity: Arc<Identity>,
    options: MeasurerOptions,
) -> io::Result<()> {
    let config = tls::server(&identity).map_err(io::Error::other)?;
    let free = Rc::new(Cell::new(options.rate));
    let admission = Rc::new(Admission::new(UNAUTHENTICATED));
    let sessions = Rc::new(Sessions::of(&options.coordinators));
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            (tcp, from) = next_connection(&listener) => {
                let admission = admission.clone();
                let (config, identity, options) = (config.clone(), identity.clone(), options.clone());
                let (sessions, free) = (sessions.clone(), free.clone());
                tasks.spawn_local(async move {
                    let accepted = admission.run(from.ip(), link::accept(tcp, config, HANDSHAKE)).await;
                    let Some(Ok((stream, Some(peer)))) = accepted else { return };
                    if let Some(_session) = sessions.begin(&peer) {
                        // The coordinator notices a broken connection itself.
                        let _ = session(stream, &identity, &options, &free).await;
                    } else if !sessions.places.contains_key(&peer) {
                        sessions.warn(from, &peer);
                    }
                });
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// A part of the operator's rate, given back on drop.
struct Reserved {
    free: Rc<Cell<u64>>,
    rate: u64,
}

impl Reserved {
    /// Reserves `rate`, unless less is free. With a part of it the result would be too low without a sign of it.
    fn of(free: &Rc<Cell<u64>>, rate: u64) -> Option<Reserved> {
        free.set(free.get().checked_sub(rate)?);
        Some(Reserved { free: free.clone(), rate })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.free.set(self.free.get() + self.rate);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Load,
}

enum Event {
    /// The coordinator sent a message.
    Said(Message),
    /// A circuit opened.
    Opened,
    NotOpened,
    Failed(Reason),
}

impl Event {
    fn tell(self, measurer: &mut Measurer, now: Time) {
        match self {
            Event::Said(message) => measurer.message(now, message),
            Event::Opened => measurer.opened(now),
            Event::NotOpened => measurer.not_opened(now),
            Event::Failed(reason) => measurer.failed(reason),
        }
    }
}

#[derive(Default)]
struct Counters {
    bytes: AtomicU64,
    checked: AtomicU64,
    /// Whether the log names a circuit of this measurement that did not open. Further ones have the same cause.
    has_said: AtomicBool,
}

/// State shared by the workers of a measurement. The workers end when it is dropped.
struct Crew {
    phase: watch::Sender<Phase>,
    counters: Arc<Counters>,
    // Keeps the rate reserved until the measurement ends.
    _reserved: Reserved,
}

/// Carries out the outputs of one measurement.
struct Outputs<'a> {
    identity: &'a Identity,
    options: &'a MeasurerOptions,
    free: &'a Rc<Cell<u64>>,
    events: mpsc::UnboundedSender<Event>,
    crew: Option<Crew>,
    /// Messages for the coordinator. The session writes them after each event.
    unsent: Vec<Message>,
    /// Why the workers could not start.
    failed: Option<io::Error>,
}

impl Handler<Measurer> for Outputs<'_> {
    fn handle(&mut self, measurer: &mut Measurer, _: Time, output: Output) {
        match output {
            Output::Send(message) => self.unsent.push(message),
            Output::Connect(open) => match Reserved::of(self.free, open.rate) {
                Some(reserved) => match hire(open, reserved, self.identity, self.options, &self.events) {
                    Ok(crew) => self.crew = Some(crew),
                    Err(error) => self.failed = Some(error),
                },
                None => {
                    let (asked, free) = (open.rate, self.free.get());
                    let cause = "the coordinator asks for more than is free of `rate`";
                    let cure = "give the coordinator at most `rate` as this measurer's `capacity`";
                    tracing::warn!(asked_bits_per_s = asked, free_bits_per_s = free, cause, cure, "busy");
                    measurer.failed(Reason::Busy);
                }
            },
            Output::Load => {
                if let Some(crew) = &self.crew {
                    crew.phase.send_replace(Phase::Load);
                }
            }
            Output::Disconnect => self.crew = None,
        }
    }

    /// Each timeout ends a second: the measurer reports what the workers counted in it.
    fn timeout(&mut self, measurer: &mut Measurer, now: Time) {
        if let Some(Crew { counters, .. }) = &self.crew {
            let bytes = counters.bytes.swap(0, Ordering::Relaxed);
            let checked = counters.checked.swap(0, Ordering::Relaxed);
            measurer.echoed(bytes, u32::try_from(checked).unwrap_or(u32::MAX));
        }
        measurer.timeout(now);
    }
}

async fn session(
    stream: server::TlsStream<BufferedTcp>,
    identity: &Identity,
    options: &MeasurerOptions,
    free: &Rc<Cell<u64>>,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (inbox, mut messages) = mpsc::channel(16);
    let reading = async move {
        loop {
            let cell = link::read_cell(&mut reader).await?;
            let message = Message::from_cell(&cell);
            let message = message.map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
            if inbox.send(message).await.is_err() {
                return Ok::<(), io::Error>(());
            }
        }
    };
    // Unbounded: workers on other threads must not wait for this one, and send at most two events per circuit.
    let (events, mut circuits) = mpsc::unbounded_channel();
    let acting = async {
        let mut driver = Driver::new(Measurer::new());
        let (unsent, crew, failed) = (Vec::new(), None, None);
        let mut outputs = Outputs { identity, options, free, events, crew, unsent, failed };
        loop {
            let event = async {
                tokio::select! {
                    message = messages.recv() => message.map(Event::Said),
                    event = circuits.recv() => event,
                }
            };
            match driver.wait(Time::NEVER, event).await {
                Some(None) => return Ok(()),
                Some(Some(event)) => driver.input(&mut outputs, |measurer, now| event.tell(measurer, now)),
                None => {}
            }
            driver.catch_up(&mut outputs, clock::now());
            for message in outputs.unsent.drain(..) {
                let cell = message.to_cell().map_err(io::Error::other)?;
                link::write_cells(&mut writer, &cell).await?;
            }
            if let Some(error) = outputs.failed.take() {
                return Err(error);
            }
        }
    };
    tokio::select! {
        result = reading => result,
        result = acting => result,
    }
}

/// Starts the workers of a measurement.
fn hire(
    open: Open,
    reserved: Reserved,
    identity: &Identity,
    options: &MeasurerOptions,
    events: &mpsc::UnboundedSender<Event>,
) -> io::Result<Crew> {
    let config = tls::client(Some(identity), open.fingerprint).map_err(io::Error::other)?;
    let workers = options.workers.clamp(1, usize::from(open.sockets));
    // Workers do not share a token bucket: that would be a lock per batch of cells.
    let rate = reserved.rate / workers as u64;
    let crew = Crew { phase: watch::Sender::new(Phase::Open), counters: Arc::default(), _reserved: reserved };
    for n in 0..workers {
        let sockets =
            usize::from(open.sockets) / workers + usize::from(n < usize::from(open.sockets) % workers);
        let worker = Worker {
            open: open.clone(),
            rate,
            sockets,
            config: config.clone(),
            counters: crew.counters.clone(),
            events: events.clone(),
        };
        let phase = crew.phase.subscribe();
        std::thread::Builder::new().name(format!("measure-{n}")).spawn(move || worker.run(phase))?;
    }
    Ok(crew)
}

#[derive(Clone)]
struct Worker {
    open: Open,
    rate: u64,
    sockets: usize,
    config: Arc<ClientConfig>,
    counters: Arc<Counters>,
    events: mpsc::UnboundedSender<Event>,
}

impl Worker {
    fn run(self, mut phase: watch::Receiver<Phase>) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
            (0..self.sockets).for_each(|_| self.say(Event::NotOpened));
            return;
        };
        let load = Rc::new(RefCell::new(Load::new(self.rate, self.sockets)));
        let local = tokio::task::LocalSet::new();
        for circ in 1..=self.sockets as u32 {
            let (worker, phase, load) = (self.clone(), phase.clone(), load.clone());
            local.spawn_local(async move { worker.circuit(circ, phase, &load).await });
        }
        // Ends with all circuits when the crew is dropped.
        runtime.block_on(local.run_until(async { while phase.changed().await.is_ok() {} }));
    }

    fn say(&self, event: Event) {
        // The receiver is gone once the session is over.
        let _ = self.events.send(event);
    }

    async fn circuit(self, circ: u32, mut phase: watch::Receiver<Phase>, load: &RefCell<Load>) {
        let (stream, end) = match link::within(OPENING, self.build(circ)).await {
            Ok(built) => built,
            Err(error) => {
                if !self.counters.has_said.swap(true, Ordering::Relaxed) {
                    let (relay, cause) = (self.open.address, error.to_string());
                    tracing::warn!(%relay, cause, "circuit not opened");
                }
                return self.say(Event::NotOpened);
            }
        };
        self.say(Event::Opened);
        while *phase.borrow_and_update() != Phase::Load {
            if phase.changed().await.is_err() {
                return;
            }
        }
        let circuit = Circuit { end: RefCell::new(end), returned: Notify::new() };
        let (mut reader, mut writer) = tokio::io::split(stream);
        let reason = tokio::select! {
            reason = circuit.receive(&mut reader, &self.counters) => reason,
            reason = circuit.send(&mut writer, load) => reason,
        };
        self.say(Event::Failed(reason));
    }

    async fn build(&self, circ: u32) -> io::Result<(TlsStream<BufferedTcp>, MeasurerEnd)> {
        let mut stream = link::connect(self.open.address, self.config.clone(), OPENING).await?;
        let (handshake, skin) = ClientHandshake::start(self.open.relay, random());
        link::write_cells(&mut stream, &cell::create(circ, &self.open.token, &skin)).await?;
        let answer = link::read_cell(&mut stream).await.map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(
                cause.kind(),
                "the relay closed the connection instead of opening a circuit; compare `onion-key` of the coordinator's \
                 configuration with the relay's",
            ),
            _ => cause,
        })?;
        let reply = cell::parse_created(&answer, circ).ok_or(io::ErrorKind::InvalidData)?;
        let keys =
            handshake.finish(&reply).map_err(|cause| io::Error::new(io::ErrorKind::InvalidData, cause))?;
        Ok((stream, MeasurerEnd::new(circ, &keys, &random(), self.open.check_one_in)))
    }
}

struct Circuit {
    end: RefCell<MeasurerEnd>,
    /// Signals that cells came back.
    returned: Notify,
}

impl Circuit {
    async fn send(&self, writer: &mut (impl AsyncWrite + Unpin), load: &RefCell<Load>) -> Reason {
        let mut buffer = vec![0; BATCH * CELL];
        loop {
            let in_flight = self.end.borrow().in_flight();
            let turn = load.borrow_mut().turn(clock::now(), in_flight, BATCH as u64);
            let count = match turn {
                Turn::Send(count) => count as usize,
                Turn::At(refill) => {
                    clock::until(refill).await;
                    continue;
                }
                Turn::Full => {
                    self.returned.notified().await;
                    continue;
                }
            };
            let cells = &mut buffer[..count * CELL];
            self.end.borrow_mut().fill(cells);
            if link::write_cells(writer, cells).await.is_err() {
                return Reason::Lost;
            }
        }
    }

    async fn receive(&self, reader: &mut (impl AsyncRead + Unpin), counters: &Counters) -> Reason {
        let mut buffer = CellBuffer::new(BATCH);
        loop {
            match link::read_some(reader, buffer.space()).await {
                Ok(0) | Err(_) => return Reason::Lost,
                Ok(count) => buffer.filled(count),
            }
            let cells = buffer.cells();
            match self.end.borrow_mut().receive(cells) {
                Ok(checked) => {
                    counters.bytes.fetch_add(cells.len() as u64, Ordering::Relaxed);
                    counters.checked.fetch_add(u64::from(checked), Ordering::Relaxed);
                }
                Err(_) => return Reason::WrongEcho,
            }
            buffer.consume();
            self.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_with_idle_connections_leaves_places_to_others() {
        let sessions = Sessions::of(&[[1; 32], [2; 32]]);
        let mut held: Vec<_> = std::iter::from_fn(|| sessions.begin(&[1; 32])).take(1000).collect();
        assert_eq!(held.len(), SESSIONS / 2);
        assert!(sessions.begin(&[2; 32]).is_some() && sessions.begin(&[3; 32]).is_none());
        held.pop();
        assert!(sessions.begin(&[1; 32]).is_some());
    }
}
