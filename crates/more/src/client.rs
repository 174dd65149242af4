//! The side that opens streams to a receiver that hides, and stays hidden from it.
//!
//! Bytes for the receiver travel in messages or cells, bytes from it in the answers: one for each, over the same
//! relays. So whoever opened a stream also decides how fast the other side may send, and its controller
//! controls both directions: the data datagram that counts against the relays' limits pays for the answer.
//!
//! With one packet per path everything travels in messages. With more, a message only establishes a route; cells are
//! spread over many routes at random. A route is given up after two losses in a row and comes to be only when its
//! message was answered: a silent relay costs what was on its way through it, and messages.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::machine::Machine;
use tidegate_control::paths::Peer;
use tidegate_control::paths::sender::{Path, Sender};
use tidegate_control::units::{Span, Time};

use crate::client_route::Route;
use crate::client_stream::Open;
use crate::flights::{Flight, Flights, Measures, Progress};
use crate::frame::{Frame, PATHS, WANTS, chunk_bytes};
use crate::machine::{Came, Output, Outputs, Randomness};
use crate::message::{Message, PATH_SIZE, PathKeys, ReceiverPath, Session};
use crate::onion::Epoch;
use crate::routes::{MOST_USES, Outbound, seal};
use crate::window::{Pace, Window};
use crate::wire::{ANNEX, CELL, PacketId};

/// Bytes of stream in a cell.
pub const CELL_CHUNK: usize = chunk_bytes(true);
/// Receiver paths in store; more are dropped.
const STORE: usize = 2048;
/// More are asked for below this.
const LOW: usize = 128;
/// Routes that are kept ready, and the most that are.
const ROUTES: [usize; 2] = [12, 256];
/// With so many routes ready, so many cells leave before another is established.
const FEW: usize = 2;
const CELLS_BETWEEN: u32 = 4;
/// Routes that take so many times as long as others are not used.
const SLOW: f64 = 2.0;
/// How long what arrives over a route is read after its use.
const AFTERLIFE: Span = Span::from_secs(10);
/// A message that was not answered for so long is not counted on, though its answer would still be taken.
const ESTABLISHING: Span = Span::from_secs(1);

/// One client of one receiver, with any number of streams.
pub struct Client {
    me: Peer,
    epoch: Epoch,
    /// Relays of the sender path.
    hops: usize,
    uses: u32,
    receiver: [u8; 32],
    flights: Flights<Cargo>,
    window: Window,
    store: VecDeque<ReceiverPath>,
    /// By the path that their answers come back on.
    routes: BTreeMap<PacketId, Route>,
    /// When messages left that may still establish routes.
    establishing: VecDeque<Time>,
    streams: BTreeMap<u64, Open>,
    /// Streams in the order in which they are served.
    turns: VecDeque<u64>,
    /// Cells sent since the last message.
    cells: u32,
    pace: Pace,
    /// Answers that did not decrypt.
    forged: u64,
    randomness: Randomness,
    outputs: Outputs,
}

/// What a client needs to know.
pub struct Settings {
    /// This peer.
    pub me: Peer,
    /// All peers' keys.
    pub epoch: Epoch,
    /// Relays of the sender path, 1 to 4; the [`Sender`] has two hops more, [`Sender::set_receiver`]'s the last.
    pub hops: usize,
    /// Packets per path: one gives each its own, more are cheaper and can be told to belong together.
    pub uses: usize,
    /// What messages are encrypted to.
    pub receiver: [u8; 32],
    /// How often it sends when rate is left.
    pub attempt_every: Span,
}

/// What a packet on its way carries.
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
    /// A client without streams or receiver paths.
    pub fn new(settings: Settings, sender: Sender, randomness: Randomness, now: Time) -> Client {
        Client {
            me: settings.me,
            epoch: settings.epoch,
            hops: settings.hops,
            uses: settings.uses.clamp(1, MOST_USES) as u32,
            receiver: settings.receiver,
            flights: Flights::new(sender, settings.attempt_every, now),
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

    /// Receiver paths from a descriptor. They should be shuffled: others read the same ones.
    pub fn supply(&mut self, paths: impl IntoIterator<Item = ReceiverPath>) {
        let known = self.epoch.keys.len();
        let room = STORE.saturating_sub(self.store.len());
        self.store.extend(paths.into_iter().filter(|path| usize::from(path.entry()) < known).take(room));
    }

    /// New keys for new paths. Receiver paths that are older than the epoch before are forgotten.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        let valid = |tag: u8| (epoch.tag + 16 - tag) % 16 <= 1;
        self.store.retain(|path| valid(path.epoch()));
        self.epoch = epoch;
    }

    /// Whether something that comes over this path is this client's.
    pub fn knows(&self, id: &PacketId) -> bool {
        self.routes.contains_key(id) || self.flights.knows(id)
    }

    /// Whether a route of this client begins with this relay under this label.
    pub fn begins(&self, first: Peer, label: u64) -> bool {
        self.routes.values().any(|route| route.outbound.first == first && route.outbound.label == label)
    }

    /// How many receiver paths are left.
    pub fn store(&self) -> usize {
        self.store.len()
    }

    /// How many routes are in use.
    pub fn routes(&self, now: Time) -> usize {
        self.routes.values().filter(|route| route.until > now).count()
    }

    /// What happened so far.
    pub fn progress(&self) -> Progress {
        self.flights.progress
    }

    /// Answers that did not decrypt.
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// Rates and round trips.
    pub fn sender(&self) -> &Sender {
        &self.flights.sender
    }

    /// Begins a stream; its number should be unpredictable.
    pub fn open(&mut self, stream: u64, now: Time) {
        if stream != 0 && !self.streams.contains_key(&stream) {
            self.streams.insert(stream, Open::new(self.uses > 1, now));
            self.turns.push_back(stream);
        }
    }

    /// How many bytes [`Client::write`] takes now.
    pub fn room(&self, stream: u64) -> usize {
        self.streams.get(&stream).map_or(0, Open::room)
    }

    /// Bytes for the receiver; more than [`Client::room`] are not taken.
    pub fn write(&mut self, stream: u64, bytes: &[u8]) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.write(bytes);
        }
    }

    /// Nothing more will be written.
    pub fn end(&mut self, stream: u64) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.end();
        }
    }

    /// Whether the application takes what comes: if not, no more is asked for.
    pub fn set_takes(&mut self, stream: u64, takes: bool) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.takes = takes;
        }
    }

    /// Whether all that was written was taken and the other side has ended too.
    pub fn done(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_none_or(Open::done)
    }

    /// Forgets a stream.
    pub fn close(&mut self, stream: u64) {
        self.streams.remove(&stream);
        self.turns.retain(|other| *other != stream);
    }

    /// The packet that is due, if one can leave: to establish a route, or of the stream whose turn it is.
    fn packet(&mut self, now: Time) -> Option<(Peer, Vec<u8>)> {
        let wanted = self.uses > 1 && self.wants_routes(now);
        // What is being established must not take the rate that established routes need.
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
            // Relays of established routes that have no rate left lose none to others.
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

    /// Routes over which cells can be expected to leave.
    fn ready(&self, now: Time) -> impl Iterator<Item = &Route> {
        self.routes.values().filter(move |route| route.until > now && !route.is_blocked(now))
    }

    /// Whether routes should be established: for a second as busy as the busiest of the last two.
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

    /// Whether a route whose message was answered after so many seconds is much slower than those in use. A stream waits for
    /// what its slowest route carries, and a route that crosses a full link three times takes the place of three on it.
    fn is_slow(&self, now: Time, seconds: f64) -> bool {
        let mut rounds: Vec<f64> =
            self.routes.values().filter(|route| route.until > now).map(Route::round_trip).collect();
        if rounds.len() <= FEW {
            return false;
        }
        let middle = rounds.len() / 2;
        seconds > SLOW * *rounds.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    /// A message into the first receiver path that can be used now: with a frame of a stream, or to establish a route.
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

    /// A cell of a stream along one of the routes whose relays have rate left.
    fn cell(&mut self, now: Time, stream: u64) -> Option<(Peer, Vec<u8>)> {
        let Randomness { choices, secrets } = &mut self.randomness;
        let ready = |(_, route): &(&PacketId, &Route)| route.until > now && route.number < self.uses;
        let live: Vec<PacketId> = self.routes.iter().filter(ready).map(|(id, _)| *id).collect();
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

    /// A message came back over a path of this client.
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

    /// A cell came back over a route of this client.
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
            self.outputs.push_back(Output::Came(Came { stream, ..came }));
        }
        self.catch_up(now);
    }

    /// A relay says that it dropped a cell of this client.
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

    /// Reports packets that are overdue; one packet leaves.
    fn timeout(&mut self, now: Time) {
        self.expire(now);
        if self.flights.may_send(now)
            && let Some((to, datagram)) = self.packet(now)
        {
            self.outputs.push_back(Output::Send(to, datagram));
        }
    }
}

/// Names one cell of a route among all packets.
fn ticket(mut route: PacketId, number: u32) -> PacketId {
    route[12..].copy_from_slice(&number.to_be_bytes());
    route
}
