//! The client: opens streams to a hidden receiver and stays hidden from it.
//!
//! The client sends bytes in messages or cells and receives bytes in their answers: one answer for each, over the
//! same relays. So the client also decides how fast the receiver may send, and its controller controls both
//! directions. Relays count only the data datagram against their limits; it pays for the answer.
//!
//! With one packet per path, all data travels in messages. With more, a message only establishes a route, and the
//! client spreads cells over many routes at random. A route exists once its message is answered and ends after two
//! consecutive losses, so a silent relay costs only the packets in flight through it.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::machine::Machine;
use tidegate_control::paths::{Path, Peer, Sender};
use tidegate_control::units::{Span, Time};

use crate::client_route::Route;
use crate::client_stream::Open;
use crate::flights::{Flight, Flights, Measures, Progress};
use crate::frame::{Frame, PATHS, WANTS, chunk_bytes};
use crate::machine::{Output, Outputs, Randomness, StreamEvent};
use crate::message::{Message, PATH_SIZE, PathKeys, ReceiverPath, Session};
use crate::onion::Epoch;
pub use crate::routes::MOST_USES;
use crate::routes::{Outbound, seal};
use crate::window::{Pace, Window};
use crate::wire::{ANNEX, CELL, PacketId};

/// Stream bytes in a cell.
pub const CELL_CHUNK: usize = chunk_bytes(true);
/// Maximum number of stored receiver paths.
const STORE: usize = 2048;
/// The client asks for more receiver paths below this number.
const LOW: usize = 128;
/// Minimum and maximum number of ready routes.
const ROUTES: [usize; 2] = [12, 256];
/// Number of ready routes, and of cells that leave before the next message.
const FEW: usize = 2;
const CELLS_BETWEEN: u32 = 4;
/// The client rejects routes that are slower than the others by this factor.
const SLOW: f64 = 2.0;
/// How long a client still reads answers on a route after its last use.
const AFTERLIFE: Span = Span::from_secs(10);
/// A message that waits longer for its answer does not count as a future route.
const ESTABLISHING: Span = Span::from_secs(1);

/// A client of one receiver, with any number of streams.
pub struct Client {
    me: Peer,
    epoch: Epoch,
    /// Number of relays on the sender path.
    hops: usize,
    uses: u32,
    receiver: [u8; 32],
    flights: Flights<Cargo>,
    window: Window,
    store: VecDeque<ReceiverPath>,
    /// Routes by the path of their answers.
    routes: BTreeMap<PacketId, Route>,
    /// Times of the messages that may still establish routes.
    establishing: VecDeque<Time>,
    streams: BTreeMap<u64, Open>,
    /// Streams in the order of service.
    turns: VecDeque<u64>,
    /// Cells since the last message.
    cells: u32,
    pace: Pace,
    /// Answers that did not decrypt.
    forged: u64,
    randomness: Randomness,
    outputs: Outputs,
}

/// Configuration of a client.
pub struct ClientConfig {
    /// This peer.
    pub me: Peer,
    /// The keys of all peers.
    pub epoch: Epoch,
    /// Number of relays on the sender path, 1 to 4. The [`Sender`] has two more hops; the last is
    /// [`Sender::set_receiver`].
    pub hops: usize,
    /// Packets per path. With one, packets cannot be linked; more are cheaper, but can be linked.
    pub uses: usize,
    /// The receiver's key for messages.
    pub receiver: [u8; 32],
    /// Interval between attempts to send.
    pub attempt_every: Span,
}

/// Contents of a packet in flight.
struct Cargo {
    stream: u64,
    chunk: Option<u64>,
    by: By,
}

enum By {
    Message { keys: PathKeys, session: Box<Session>, outbound: Outbound, path: Path },
    Cell { route: PacketId, number: u32 },
}

impl Client {
    /// A client without streams and receiver paths.
    ///
    /// # Panics
    /// If `uses` is 0 or above [`MOST_USES`].
    pub fn new(config: ClientConfig, sender: Sender, randomness: Randomness, now: Time) -> Client {
        assert!((1..=MOST_USES).contains(&config.uses), "{} uses", config.uses);
        Client {
            me: config.me,
            epoch: config.epoch,
            hops: config.hops,
            uses: config.uses as u32,
            receiver: config.receiver,
            flights: Flights::new(sender, config.attempt_every, now),
            window: Window::new(),
            store: VecDeque::new(),
            routes: BTreeMap::new(),
            establishing: VecDeque::new(),
            streams: BTreeMap::new(),
            turns: VecDeque::new(),
            cells: 0,
            pace: Pace::default(),
            forged: 0,
            randomness,
            outputs: Outputs::new(),
        }
    }

    /// Adds receiver paths from a descriptor. The caller should shuffle them, because others read the same paths.
    pub fn supply(&mut self, paths: impl IntoIterator<Item = ReceiverPath>) {
        let known = self.epoch.keys.len();
        let room = STORE.saturating_sub(self.store.len());
        self.store.extend(paths.into_iter().filter(|path| usize::from(path.entry()) < known).take(room));
    }

    /// Sets the keys for new paths. Receiver paths older than the previous epoch are dropped.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        let valid = |tag: u8| (epoch.tag + 16 - tag) % 16 <= 1;
        self.store.retain(|path| valid(path.epoch()));
        self.epoch = epoch;
    }

    /// Whether a path with this identifier belongs to the client.
    pub fn knows(&self, id: &PacketId) -> bool {
        self.routes.contains_key(id) || self.flights.knows(id)
    }

    /// Whether a route of this client begins at this relay with this label.
    pub fn begins(&self, first: Peer, label: u64) -> bool {
        self.routes.values().any(|route| route.outbound.first == first && route.outbound.label == label)
    }

    /// Number of stored receiver paths.
    pub fn store(&self) -> usize {
        self.store.len()
    }

    /// Number of usable routes.
    pub fn routes(&self, now: Time) -> usize {
        self.routes.values().filter(|route| route.until > now).count()
    }

    /// Counters since the start.
    pub fn progress(&self) -> Progress {
        self.flights.progress
    }

    /// Rates and round-trip times.
    pub fn sender(&self) -> &Sender {
        &self.flights.sender
    }

    /// Opens a stream. The caller should choose an unpredictable number.
    pub fn open(&mut self, stream: u64, now: Time) {
        if stream != 0 && !self.streams.contains_key(&stream) {
            self.streams.insert(stream, Open::new(self.uses > 1, now));
            self.turns.push_back(stream);
        }
    }

    /// Number of bytes that [`Client::write`] accepts now.
    pub fn room(&self, stream: u64) -> usize {
        self.streams.get(&stream).map_or(0, Open::room)
    }

    /// Queues bytes for the receiver, at most [`Client::room`].
    pub fn write(&mut self, stream: u64, bytes: &[u8]) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.write(bytes);
        }
    }

    /// Ends the stream in this direction.
    pub fn end(&mut self, stream: u64) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.end();
        }
    }

    /// Sets whether the application reads; otherwise the client requests no more bytes.
    pub fn set_takes(&mut self, stream: u64, takes: bool) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.takes = takes;
        }
    }

    /// Whether both directions are complete.
    pub fn done(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_none_or(Open::done)
    }

    /// Drops a stream.
    pub fn close(&mut self, stream: u64) {
        self.streams.remove(&stream);
        self.turns.retain(|other| *other != stream);
    }

    /// Makes the next packet: a message that establishes a route, or a packet of the next stream.
    fn packet(&mut self, now: Time) -> Option<(Peer, Vec<u8>)> {
        let wanted = self.uses > 1 && self.wants_routes(now);
        // New routes must not use up the rates that the established routes need.
        if wanted
            && (self.cells >= CELLS_BETWEEN || self.ready(now).count() < FEW)
            && let Some(sent) = self.message(now, None)
        {
            return Some(sent);
        }
        let turn = (0..self.turns.len()).find(|turn| {
            let open = self.streams.get(&self.turns[*turn]);
            open.is_some_and(|open| open.wants() || now >= open.idle_at())
        })?;
        let stream = self.turns[turn];
        let sent = match self.uses {
            _ if !self.window.has_room(self.flights.flying()) => None,
            1 => self.message(now, Some(stream)),
            // Without rate on the established routes, relays of new routes may have some.
            _ => self.cell(now, stream).or_else(|| if wanted { self.message(now, None) } else { None }),
        };
        if sent.is_none() {
            self.flights.missed(now);
        } else {
            self.turns.remove(turn);
            self.turns.push_back(stream);
            self.flights.set_pace(self.pace.sent(now));
        }
        sent
    }

    fn expire(&mut self, now: Time) {
        let Client { flights, streams, routes, window, .. } = self;
        let flying = flights.flying();
        flights.expire(now, |lost| {
            let cargo = &lost.cargo;
            if let Some(open) = streams.get_mut(&cargo.stream) {
                open.lost(cargo.chunk);
                window.lost(now, lost.sent, flying);
            }
            if let By::Cell { route, number } = &cargo.by
                && let Some(route) = routes.get_mut(route)
            {
                route.lost(now, *number);
            }
        });
    }

    /// Routes that probably have rate for a cell.
    fn ready(&self, now: Time) -> impl Iterator<Item = &Route> {
        self.routes.values().filter(move |route| route.until > now && !route.is_blocked(now))
    }

    /// Whether more routes are needed, judged by the busier of the last two seconds.
    fn wants_routes(&mut self, now: Time) -> bool {
        if self.streams.is_empty() || self.store.is_empty() {
            return false;
        }
        self.routes.retain(|_, route| route.until + AFTERLIFE > now);
        while self.establishing.front().is_some_and(|sent| *sent + ESTABLISHING <= now) {
            self.establishing.pop_front();
        }
        let (mut count, mut left) = (self.establishing.len(), self.establishing.len() as u32 * self.uses);
        self.ready(now).for_each(|route| (count, left) = (count + 1, left + self.uses - route.number));
        self.routes(now) < ROUTES[1] && (count < ROUTES[0] || left < self.pace.busy())
    }

    /// Whether a route with this round-trip time is much slower than the used ones.
    ///
    /// A stream waits for its slowest route. A route that crosses a full link three times takes three shares of it.
    fn is_slow(&self, now: Time, seconds: f64) -> bool {
        let mut rounds: Vec<f64> =
            self.routes.values().filter(|route| route.until > now).map(Route::round_trip).collect();
        if rounds.len() <= FEW {
            return false;
        }
        let middle = rounds.len() / 2;
        seconds > SLOW * *rounds.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    /// Makes a message over the first usable receiver path.
    ///
    /// It carries a frame of a stream, or only establishes a route.
    fn message(&mut self, now: Time, stream: Option<u64>) -> Option<(Peer, Vec<u8>)> {
        let Randomness { choices, secrets } = &mut self.randomness;
        let (place, drawn) = (0..self.store.len()).find_map(|place| {
            let entry = self.store[place].entry();
            let drawn = self.flights.draw_path_into(now, entry, choices)?;
            Some((place, drawn))
        })?;
        let into = self.store.remove(place).expect("found there");
        let (chunk, frame) = match stream.and_then(|stream| self.streams.get_mut(&stream)) {
            Some(open) => open.frame(now, stream.unwrap_or(0)),
            None => (None, Frame::default()),
        };
        let path = drawn.0;
        let relays = &path[1..=self.hops];
        let back: Vec<Peer> = relays.iter().rev().copied().collect();
        let mut id = [0; 16];
        id[..12].copy_from_slice(&secrets()[..12]);
        // Zero means "no path", so the identifier is made odd.
        id[0] |= 1;
        let (own, keys) = PathKeys::draw(&self.epoch, &back, self.me, id, &mut **secrets);
        let message = Message { path: own, text: frame.text() };
        let (datagram, session, outbound) =
            message.send(&self.epoch, relays, keys.label(), &into, self.receiver, &mut **secrets);
        let timeout = self.flights.sender.timeout_into(&path);
        let by = By::Message { keys, session: Box::new(session), outbound, path };
        self.establishing.push_back(now);
        self.cells = 0;
        self.flights.launch(now, id, drawn, timeout, Cargo { stream: frame.stream, chunk, by });
        Some((path[1], datagram))
    }

    /// Makes a cell of a stream on a route that has rate left.
    fn cell(&mut self, now: Time, stream: u64) -> Option<(Peer, Vec<u8>)> {
        let Randomness { choices, secrets } = &mut self.randomness;
        let ready = |(_, route): &(&PacketId, &Route)| route.until > now && route.number < self.uses;
        let live: Vec<PacketId> = self.routes.iter().filter(ready).map(|(id, _)| *id).collect();
        // A random start spreads the cells over all routes.
        let from = if live.is_empty() { return None } else { choices.below(live.len()) };
        let (id, drawn) = live[from..].iter().chain(&live[..from]).find_map(|id| {
            let route = self.routes.get_mut(id).expect("found there");
            let receiver = route.path[self.hops + 2];
            if !self.flights.sender.has_rate(receiver) {
                return None;
            }
            let drawn = self.flights.draw_again(now, route.path);
            route.tried(now, drawn.is_some());
            Some((*id, drawn?))
        })?;
        let route = self.routes.get_mut(&id).expect("found there");
        let (chunk, mut frame) = self.streams.get_mut(&stream)?.frame(now, stream);
        frame.number = route.number;
        if self.store.len() < LOW {
            frame.flags |= WANTS;
        }
        let (datagram, tags) =
            route.outbound.cell(CELL, seal(&frame.text(), &route.session.up), &mut **secrets);
        route.flying.insert(frame.number, tags);
        route.number += 1;
        self.cells += 1;
        if route.number == self.uses {
            route.until = now;
        }
        let timeout = route.timeout(self.flights.sender.latencies.factor());
        let by = By::Cell { route: id, number: frame.number };
        self.flights.launch(now, ticket(id, frame.number), drawn, timeout, Cargo { stream, chunk, by });
        Some((route.outbound.first, datagram))
    }

    /// Handles the answer to a message.
    pub fn answer(&mut self, now: Time, id: PacketId, annex: [u8; ANNEX], payload: &[u8]) {
        let Some(mut flight) = self.flights.land(id) else { return };
        self.establishing.pop_front();
        self.flights.retry(now);
        let Cargo { stream, chunk, by: By::Message { keys, session, .. } } = &flight.cargo else { return };
        let message = keys.answer(session, payload);
        let frame = message.as_ref().and_then(|message| Frame::parse(&message.text));
        let (Some(message), Some(frame)) = (message, frame) else {
            self.forged += 1;
            if let Some(open) = self.streams.get_mut(stream).filter(|_| !flight.timed_out) {
                open.lost(*chunk);
            }
            return self.catch_up(now);
        };
        let (mut stamps, beyond) = keys.annex.read(annex);
        stamps.extend([0.0, frame.offer]);
        self.flights.acked(now, &flight, &stamps, Measures::Beyond(beyond));
        self.supply([message.path]);
        // With one packet per path, the answer ends the path. Otherwise its keys become a route.
        let cargo = std::mem::replace(&mut flight.cargo.by, By::Cell { route: id, number: 0 });
        if let (By::Message { keys, session, outbound, path }, true) = (cargo, self.uses > 1) {
            let seconds = now.since(flight.sent).as_secs_f64();
            if !self.is_slow(now, seconds) {
                let route = Route::new(now, path, (outbound, keys.route()), *session, seconds);
                self.routes.insert(id, route);
            }
        }
        self.answered(now, &frame, &flight);
    }

    /// Handles the answer to a cell.
    pub fn cell_back(&mut self, now: Time, id: PacketId, annex: [u8; ANNEX], payload: &[u8]) {
        let Some(route) = self.routes.get_mut(&id) else { return };
        let opened = route.end.open(annex, payload, &route.session.down);
        let opened = opened.and_then(|(text, stamps)| Some((Frame::parse(&text)?, stamps)));
        let Some((frame, mut stamps)) = opened else {
            self.forged += 1;
            return;
        };
        let Some(flight) = self.flights.land(ticket(id, frame.number)) else { return };
        let gamma = self.flights.sender.latencies.gamma();
        route.answered(frame.number, now.since(flight.sent).as_secs_f64(), gamma);
        self.flights.retry(now);
        stamps.extend([0.0, frame.offer]);
        self.flights.acked(now, &flight, &stamps, Measures::Nothing);
        if frame.has(PATHS) {
            let paths = frame.bytes.as_chunks::<PATH_SIZE>().0;
            self.supply(paths.iter().map(|bytes| ReceiverPath::from_bytes(*bytes)));
        }
        self.answered(now, &frame, &flight);
    }

    fn answered(&mut self, now: Time, frame: &Frame, flight: &Flight<Cargo>) {
        let Cargo { stream, chunk, .. } = flight.cargo;
        let late = flight.timed_out;
        match late {
            true => self.window.late(flight.sent),
            false => self.window.answered(self.flights.flying() + 1),
        }
        let open = self.streams.get_mut(&stream);
        if let Some(came) = open.and_then(|open| open.answered(now, frame, chunk, late)) {
            self.outputs.push_back(Output::Stream(StreamEvent { stream, ..came }));
        }
        self.catch_up(now);
    }

    /// Handles the refusal of a cell by a relay.
    pub fn refused(&mut self, now: Time, first: Peer, label: u64, block: &[u8; 16]) {
        let known =
            self.routes.iter_mut().find(|(_, it)| it.outbound.first == first && it.outbound.label == label);
        let Some((id, route)) = known else { return };
        let Some((hop, tag, offer)) = route.outbound.refused(block) else { return };
        let cell = route.flying.iter().find(|(_, tags)| tags[hop] == tag).map(|(number, _)| *number);
        let Some(number) = cell else { return };
        route.flying.remove(&number);
        let Some(flight) = self.flights.land(ticket(*id, number)) else { return };
        self.flights.refused(now, &flight, hop + 1, offer);
        if let Some(open) = self.streams.get_mut(&flight.cargo.stream).filter(|_| !flight.timed_out) {
            open.lost(flight.cargo.chunk);
        }
        self.catch_up(now);
    }
}

impl Machine for Client {
    type Output = Output;

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn next_timeout(&self) -> Option<Time> {
        let attempt = self.flights.next_attempt();
        let due = |open: &Open| if open.wants() { attempt } else { open.idle_at().max(attempt) };
        let packet = self.streams.values().map(due).min().unwrap_or(Time::NEVER);
        Some(self.flights.next_timeout().min(packet)).filter(|next| *next != Time::NEVER)
    }

    /// Handles timeouts and sends at most one packet.
    fn timeout(&mut self, now: Time) {
        self.expire(now);
        if self.flights.may_send(now)
            && let Some((to, datagram)) = self.packet(now)
        {
            self.outputs.push_back(Output::Send(to, datagram));
        }
    }
}

/// Identifier of one cell of a route among all packets.
fn ticket(mut route: PacketId, number: u32) -> PacketId {
    route[12..].copy_from_slice(&number.to_be_bytes());
    route
}
