//! One end of a circuit, where application bytes enter and leave: flow control (tor-spec, "Flow control") and
//! packaging. The client and the exit have one each.

mod drain;
mod flow;
mod signals;
mod stream;
mod wakes;

use tidegate_control::units::{Span, Time};

use crate::cell::{Digest, Message, Payload, StreamId, Terms};
use crate::conflux::split::Capacity;
use crate::control::windows::{Fixed, Windows};
use crate::control::{Control, StreamFlow, Violation, Window, vegas};
use crate::ids::CircuitKey;
use crate::links::Config;
use crate::node::{Source, StreamKey};
use crate::onion::Onion;
pub(crate) use drain::Signal;
use flow::Flow;
pub(crate) use stream::Phase;
use stream::Stream;
pub(crate) use wakes::Wakes;

/// Streams of one circuit at one time; more are refused (stream ids have 16 bits).
pub(crate) const MAX_STREAMS: usize = 4096;

/// Full cells that a stream packages per turn: tor reads at most 16 KiB at a time, rounded down to whole cells.
const TURN_CELLS: u32 = 32;

/// One end of a circuit.
#[derive(Debug)]
pub(crate) struct Edge {
    flow: Flow,
    /// Ordered by id. A circuit rarely has more than a few.
    streams: Vec<Stream>,
    /// Number of streams that have bytes left and may go on. Most messages about flow control leave it at 0, and then no
    /// stream is looked at.
    able: usize,
    /// Memory of delivered bytes that the streams' local sides have not consumed.
    held: u64,
    /// The stream that was offered room last, if there was less than a cell for each.
    turn: Option<StreamId>,
    /// A stream had its turn and nothing to send.
    passed: bool,
}

/// The SENDMEs owed after a delivered cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owed {
    /// One for the circuit.
    pub circuit: bool,
    /// One for the stream.
    pub stream: bool,
}

impl Edge {
    /// Creates an end without streams. `allowance`: cells that it may package before a controller's first step.
    pub(crate) fn new(control: &dyn Control, windows: Windows, allowance: f64) -> Edge {
        Edge::bounded(control.window(), windows, allowance)
    }

    /// As [`new`](Self::new), on the terms of the key exchange.
    pub(crate) fn agreed(terms: Terms, config: &Config, allowance: f64) -> Edge {
        let Config { control, windows, .. } = config;
        let mut edge = match (terms.congestion_control, &config.otherwise) {
            (None, _) => Edge::new(control.as_ref(), *windows, allowance),
            (Some(true), _) => {
                let vegas = || vegas::VegasParameters::default().window();
                Edge::bounded(control.window().or_else(vegas), *windows, allowance)
            }
            (Some(false), None) => Edge::bounded(None, *windows, allowance),
            (Some(false), Some(ends)) => Edge::new(ends.control.as_ref(), ends.windows, allowance),
        };
        edge.carry(terms.data_bytes);
        edge
    }

    /// Sets the number of application bytes per message: the circuit's cells go over another path, with other terms.
    pub(crate) fn carry(&mut self, data_bytes: u16) {
        self.flow.set_data_bytes(data_bytes);
    }

    /// Creates an end with this congestion window, or else with the fixed windows.
    fn bounded(congestion: Option<Box<dyn Window>>, windows: Windows, allowance: f64) -> Edge {
        Edge {
            flow: Flow::new(congestion, windows, allowance),
            streams: Vec::new(),
            able: 0,
            held: 0,
            turn: None,
            passed: false,
        }
    }

    /// Swaps circuit-level flow control with another end; each keeps its streams.
    pub(crate) fn exchange_circuits(&mut self, other: &mut Edge) {
        std::mem::swap(&mut self.flow, &mut other.flow);
    }

    /// Whether it has congestion control instead of the fixed windows.
    pub(crate) fn has_congestion_control(&self) -> bool {
        self.flow.windows().is_none()
    }

    /// The circuit's round-trip time, if congestion control has measured it.
    pub(crate) fn round_trip(&self) -> Option<Span> {
        self.flow.round_trip()
    }

    /// Delivered cells that a circuit SENDME acknowledges.
    pub(crate) fn sendme_increment(&self) -> u32 {
        self.flow.increment()
    }

    /// Cells that may be packaged now. `queue`: cells that the circuit queue takes.
    pub(crate) fn room(&self, queue: u32) -> u32 {
        self.flow.room(queue)
    }

    /// The capacity of this circuit as a leg of a conflux set. `queue`: cells that the circuit queue takes.
    pub(crate) fn capacity(&self, queue: u32) -> Capacity {
        self.flow.capacity(queue)
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        Some(&mut self.streams[at])
    }

    /// Changes what a stream may send. `None` if it does not exist.
    fn change<T>(&mut self, id: StreamId, act: impl FnOnce(&mut Stream) -> T) -> Option<T> {
        let stream = self.stream(id)?;
        let before = usize::from(stream.is_able());
        let done = act(stream);
        let after = usize::from(stream.is_able());
        self.able = self.able + after - before;
        Some(done)
    }

    /// Adds a stream that connects to an address; false if the id is in use or zero, or if the circuit has too many
    /// streams.
    pub(crate) fn open(&mut self, id: StreamId) -> bool {
        self.add(id, Phase::Connecting)
    }

    /// Adds a stream that looks a name up; false as in [`open`](Self::open).
    pub(crate) fn look_up(&mut self, id: StreamId) -> bool {
        self.add(id, Phase::Resolving)
    }

    fn add(&mut self, id: StreamId, phase: Phase) -> bool {
        let Err(at) = self.streams.binary_search_by_key(&id, |stream| stream.id) else { return false };
        if id.0 == 0 || self.streams.len() >= MAX_STREAMS {
            return false;
        }
        let window = self.flow.windows().map(|windows| Fixed::new(windows.stream, windows.stream_increment));
        self.streams.insert(at, Stream::new(id, phase, window));
        true
    }

    /// The phase of a stream; `None` if it does not exist.
    pub(crate) fn phase(&self, id: StreamId) -> Option<Phase> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        Some(self.streams[at].phase)
    }

    /// Whether a stream exists.
    pub(crate) fn has(&self, id: StreamId) -> bool {
        self.phase(id).is_some()
    }

    /// Notes that the stream's far side is connected; false unless the stream is connecting.
    pub(crate) fn connect(&mut self, id: StreamId) -> bool {
        let waits = self.stream(id).filter(|stream| stream.phase == Phase::Connecting);
        waits.map(|stream| stream.phase = Phase::Connected).is_some()
    }

    /// Removes a stream; false if it does not exist.
    pub(crate) fn close(&mut self, key: StreamKey, wakes: &mut Wakes) -> bool {
        let at = self.streams.binary_search_by_key(&key.stream, |stream| stream.id);
        let Ok(at) = at else { return false };
        let stream = self.streams.remove(at);
        wakes.replace(key, stream.wakes, None);
        self.held -= stream.held;
        self.able -= usize::from(stream.is_able());
        // A circuit that had thousands of streams must not keep their memory.
        if self.streams.len() < self.streams.capacity() / 4 {
            self.streams.shrink_to(2 * self.streams.len());
        }
        true
    }

    /// Memory that streams' own sides hold.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Since when the stream that is slowest has held something.
    pub(crate) fn held_since(&self) -> Option<Time> {
        self.streams.iter().filter(|stream| stream.held > 0).map(|stream| stream.held_since).min()
    }

    /// All streams, in order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.iter().map(|stream| stream.id)
    }

    /// A DATA cell arrived. Cells of a stream that was just closed still count for the circuit.
    pub(crate) fn deliver(&mut self, id: StreamId) -> Result<(Owed, bool), Violation> {
        let windows = self.flow.windows();
        let circuit = self.flow.deliver()?;
        let Some(stream) = self.stream(id) else { return Ok((Owed { circuit, stream: false }, false)) };
        let Some(windows) = windows else { return Ok((Owed { circuit, stream: false }, true)) };
        stream.delivered += 1;
        if stream.delivered > windows.stream {
            return Err(Violation);
        }
        Ok((Owed { circuit, stream: stream.acknowledges(windows.stream_increment) }, true))
    }

    /// A SENDME arrived for a stream, or for the circuit if `id` is zero. `blocked`: the circuit queue has stopped this
    /// end.
    ///
    /// # Errors
    /// If nothing was sent that it acknowledges, or if a circuit SENDME has the wrong digest (proposal 289).
    pub(crate) fn sendme(
        &mut self,
        now: Time,
        id: StreamId,
        digest: Option<Digest>,
        blocked: bool,
    ) -> Result<(), Violation> {
        if id.0 == 0 {
            return self.flow.acknowledged(now, digest, blocked);
        }
        if self.has_congestion_control() {
            return Err(Violation);
        }
        let window = |stream: &mut Stream| stream.window.as_mut().map(|own| own.acknowledged(now, blocked));
        self.change(id, window).flatten().unwrap_or(Ok(()))
    }

    /// The stream's local side has not consumed `unread` delivered bytes, which take so much `memory`. Returns a message for
    /// the peer. Call again until that is `None`. `limit`: bytes above which this end sends XOFF.
    pub(crate) fn backlog<O: Onion>(
        &mut self,
        now: Time,
        id: StreamId,
        (unread, memory): (u64, u64),
        (limit, flow): (u64, &StreamFlow),
    ) -> Option<Payload<O>> {
        let windows = self.flow.windows();
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        let stream = &mut self.streams[at];
        self.held = self.held + memory - stream.held;
        if stream.held == 0 {
            stream.held_since = now;
        }
        stream.held = memory;
        if let Some(windows) = windows {
            return stream.acknowledges(windows.stream_increment).then_some(Payload::Sendme(None));
        }
        stream.drain.changed(now, unread, limit, flow).map(|signal| match signal {
            Signal::Xoff => Payload::Xoff,
            Signal::Xon(rate) => Payload::Xon(rate),
        })
    }

    /// The peer sent XOFF or XON (proposal 324). Like tor, an end with fixed windows drops both.
    pub(crate) fn hear(&mut self, now: Time, key: StreamKey, signal: Signal, wakes: &mut Wakes) {
        if !self.has_congestion_control() {
            return;
        }
        self.change(key.stream, |stream| {
            stream.stopped = signal == Signal::Xoff;
            if let Signal::Xon(rate) = signal {
                stream.limit(now, rate);
            }
        });
        self.settle(key, wakes);
    }

    /// Client: whether an exit can honestly send this message now.
    pub(crate) fn allows(&mut self, id: StreamId, signal: Signal, flow: &StreamFlow) -> bool {
        let is_checked = self.has_congestion_control();
        self.stream(id).is_none_or(|stream| {
            let again = signal == Signal::Xoff && stream.stopped;
            !is_checked || !again && stream.signals.allow(signal, flow)
        })
    }

    /// Notes until when the peer's rate stops a stream. Call this after each change of the stream.
    pub(crate) fn settle(&mut self, key: StreamKey, wakes: &mut Wakes) {
        if let Some(stream) = self.stream(key.stream) {
            let due = stream.waits_until();
            wakes.replace(key, std::mem::replace(&mut stream.wakes, due), due);
        }
    }

    /// Forgets the timers of all streams: the circuit `key` is gone.
    pub(crate) fn forget_wakes(&self, key: CircuitKey, wakes: &mut Wakes) {
        for stream in self.streams.iter().filter(|stream| stream.wakes.is_some()) {
            wakes.replace(StreamKey { circuit: key, stream: stream.id }, stream.wakes, None);
        }
    }

    /// The time has come until which the peer's rate stopped a stream. Returns whether it may go on.
    pub(crate) fn wake(&mut self, now: Time, key: StreamKey, wakes: &mut Wakes) -> bool {
        let able = self.change(key.stream, |stream| {
            stream.wakes = None;
            stream.refill(now);
            stream.is_able()
        });
        self.settle(key, wakes);
        able.unwrap_or(false)
    }

    /// Whether a stream had more bytes than could be packaged.
    pub(crate) fn is_starved(&self) -> bool {
        self.streams.iter().any(|stream| stream.starved)
    }

    /// Sets the allowance of a controller's step, and the rate in cells per second that it has planned. With `begun`, the
    /// unused part of a cell is added.
    pub(crate) fn allow(&mut self, cells: f64, planned: Option<f64>, begun: bool) {
        self.flow.allow(cells, planned, begun);
    }

    /// Whether a stream has bytes left that something other than its peer stopped.
    pub(crate) fn is_backlogged(&self) -> bool {
        self.able > 0
    }

    /// Estimate of the cells that the streams' sources have: infinite if they are `backlogged`, else twice the number
    /// packaged since the last call, to let them grow.
    pub(crate) fn demand(&mut self, backlogged: bool) -> f64 {
        let packaged = self.flow.take_packaged();
        if backlogged { f64::INFINITY } else { 2.0 * f64::from(packaged) }
    }

    /// A stream's source announces further bytes; `u64::MAX`: without end.
    pub(crate) fn announce(&mut self, id: StreamId, bytes: u64) {
        if let Some(stream) = self.stream(id) {
            stream.announced = stream.announced.saturating_add(bytes);
        }
    }

    /// Announced bytes that are not in cells yet; infinite for an endless source.
    pub(crate) fn announced(&self) -> f64 {
        let bytes = self.streams.iter().fold(0u64, |sum, stream| sum.saturating_add(stream.announced));
        if bytes == u64::MAX { f64::INFINITY } else { bytes as f64 }
    }

    /// Stopped streams that have bytes left and may go on, each with a fair share of `cells`, which is the
    /// [room](Self::room). If there are fewer cells than streams, they take turns.
    pub(crate) fn resumable(&mut self, cells: u32) -> Vec<(StreamId, u32)> {
        let count = self.able as u32;
        if cells == 0 || count == 0 {
            return Vec::new();
        }
        let able = |stream: &Stream| stream.is_able();
        if cells < count {
            let next = self.turn.map_or(0, |turn| self.streams.partition_point(|stream| stream.id <= turn));
            let (before, after) = self.streams.split_at(next);
            let in_turn = after.iter().chain(before).filter(|stream| able(stream));
            let chosen: Vec<_> = in_turn.take(cells as usize).map(|stream| (stream.id, 1)).collect();
            self.turn = chosen.last().map(|(id, _)| *id);
            return chosen;
        }
        self.turn = None;
        let share = cells.div_ceil(count);
        self.streams.iter().filter(|stream| able(stream)).map(|stream| (stream.id, share)).collect()
    }

    /// As [`resumable`](Self::resumable), once the circuit queue is short again. Streams are then read in turn instead of
    /// getting shares, the newest first, until the queue stops them (tor's `set_streams_blocked_on_circ`, which lets the event
    /// loop read again).
    pub(crate) fn reopened(&mut self, cells: u32) -> Vec<(StreamId, u32)> {
        let able = self.resumable(cells);
        if self.turn.is_some() {
            return able;
        }
        let turns = if able.is_empty() { 0 } else { cells.div_ceil(TURN_CELLS) };
        (0..turns).flat_map(|_| able.iter().rev().map(|(id, _)| (*id, TURN_CELLS))).collect()
    }

    /// The stream that takes the place of one that had its turn and nothing to send.
    pub(crate) fn next_turn(&mut self, cells: u32) -> Vec<(StreamId, u32)> {
        if std::mem::take(&mut self.passed) { self.resumable(cells.min(1)) } else { Vec::new() }
    }

    /// Packages up to `cells` cells of a connected stream. Returns the number packaged. `room`: cells that the circuit
    /// queue takes. `send` sends a message in a run of so many equal cells, and returns the digest of the last, if asked
    /// and available.
    pub(crate) fn package<O: Onion>(
        &mut self,
        now: Time,
        id: StreamId,
        cells: u32,
        room: u32,
        source: &mut dyn Source<O>,
        mut send: impl FnMut(Message<O>, u32, bool) -> Option<Digest>,
    ) -> u32 {
        let room = self.room(room);
        let Edge { flow, streams, turn, passed, able, .. } = self;
        let Ok(at) = streams.binary_search_by_key(&id, |stream| stream.id) else { return 0 };
        let stream = &mut streams[at];
        if stream.phase != Phase::Connected {
            return 0;
        }
        *able -= usize::from(stream.is_able());
        // Only `wake` and XON refill the stream's rate, so what is granted is all that the rate has. If more were here when the
        // driver comes late, neither a grant nor a timer would move it.
        let granted = room.min(cells);
        stream.starved = true;
        let mut sent = 0;
        loop {
            // A SENDME may name the digest of the last cell of a run, and of no other. Cells with less data than a rate counts
            // on leave room for more.
            let most = (granted - sent).min(stream.room()).min(flow.until_digest());
            if most == 0 {
                break;
            }
            let Some((bytes, data, count)) = source.take_run(flow.data_bytes(), most) else {
                stream.starved = false;
                break;
            };
            let taken = u64::from(bytes) * u64::from(count);
            if stream.announced < u64::MAX {
                stream.announced = stream.announced.saturating_sub(taken);
            }
            if let Some(rate) = &mut stream.rate {
                rate.overdraw(taken);
            }
            stream.signals.sent(taken);
            let message = Message { stream: id, payload: Payload::Data(bytes, data) };
            flow.sent(now, count, |digest| send(message, count, digest));
            if let Some(window) = &mut stream.window {
                (0..count).for_each(|_| window.sent(now));
            }
            sent += count;
        }
        *able += usize::from(stream.is_able());
        *passed = sent == 0 && !stream.starved && turn.is_some();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::stream::HELD_BYTES;
    use super::*;
    use crate::control::windows::FixedWindows;
    use crate::onion::{Clear, Stamp};

    fn windowed() -> Edge {
        Edge::new(&FixedWindows, Windows::default(), f64::INFINITY)
    }

    fn key(stream: StreamId) -> StreamKey {
        StreamKey { circuit: CircuitKey(7), stream }
    }

    fn backlog(edge: &mut Edge, id: StreamId, bytes: u64) -> Option<Payload<Clear>> {
        edge.backlog(Time::ZERO, id, (bytes, bytes), (249_000, &StreamFlow::WITHOUT_RATES))
    }

    fn packaged(edge: &mut Edge, id: StreamId, room: u32) -> u32 {
        packaged_at(edge, Time::ZERO, id, room)
    }

    fn packaged_at(edge: &mut Edge, now: Time, id: StreamId, room: u32) -> u32 {
        let mut sent = 0;
        let mut endless = |max| Some((max, Stamp::default()));
        edge.package::<Clear>(now, id, u32::MAX, room, &mut endless, |_, count, _| {
            sent += count;
            None
        });
        sent
    }

    #[test]
    fn ended_streams_leave_their_memory() {
        let mut edge = windowed();
        for id in 1..=MAX_STREAMS as u16 {
            assert!(edge.open(StreamId(id)));
        }
        for id in 2..=MAX_STREAMS as u16 {
            assert!(edge.close(key(StreamId(id)), &mut Wakes::default()));
        }
        assert!(edge.streams.capacity() <= 8, "{}", edge.streams.capacity());
        assert!(edge.has(StreamId(1)));
    }

    #[test]
    fn windows_stop_and_sendmes_resume() {
        let mut edge = windowed();
        let (a, b, c) = (StreamId(1), StreamId(2), StreamId(3));
        for id in [a, b, c] {
            assert!(edge.open(id) && edge.connect(id));
        }
        assert!(!edge.open(a), "an id is used once");
        assert_eq!(packaged(&mut edge, a, u32::MAX), 500);
        assert_eq!(packaged(&mut edge, b, 256), 256);
        assert_eq!(packaged(&mut edge, b, u32::MAX), 244);
        assert_eq!(packaged(&mut edge, c, u32::MAX), 0, "the circuit window is used up");
        assert!(edge.resumable(edge.room(u32::MAX)).is_empty());
        edge.sendme(Time::ZERO, StreamId(0), None, false).unwrap();
        assert_eq!(edge.resumable(edge.room(u32::MAX)), [(c, 100)]);
        edge.sendme(Time::ZERO, a, None, false).unwrap();
        assert_eq!(edge.resumable(edge.room(u32::MAX)), [(a, 50), (c, 50)]);
        assert_eq!(packaged(&mut edge, a, u32::MAX), 50);
    }

    #[test]
    fn more_streams_than_cells_take_turns() {
        let mut edge = windowed();
        for id in (1..=5).map(StreamId) {
            assert!(edge.open(id) && edge.connect(id));
            assert_eq!(packaged(&mut edge, id, 0), 0, "the queue is full");
        }
        let turns = |ids: [u16; 2]| ids.map(|id| (StreamId(id), 1));
        assert_eq!(edge.resumable(2), turns([1, 2]));
        assert_eq!(edge.resumable(2), turns([3, 4]));
        assert_eq!(edge.resumable(2), turns([5, 1]));
        assert!(edge.next_turn(2).is_empty(), "each had something to send");
        // The second one turns out to be empty, so the third takes its place.
        assert_eq!(edge.resumable(1), [(StreamId(2), 1)]);
        let mut empty = |_: u16| None;
        assert_eq!(edge.package::<Clear>(Time::ZERO, StreamId(2), 1, 9, &mut empty, |_, _, _| None), 0);
        assert_eq!(edge.next_turn(1), [(StreamId(3), 1)]);
        assert!(edge.next_turn(1).is_empty());
    }

    #[test]
    fn a_queue_that_is_short_again_reads_streams_in_turn_the_newest_first() {
        let mut edge = windowed();
        let (old, new) = (StreamId(1), StreamId(2));
        for id in [old, new] {
            assert!(edge.open(id) && edge.connect(id));
            assert_eq!(packaged(&mut edge, id, 0), 0, "the queue is full");
        }
        assert_eq!(edge.reopened(edge.room(40)), [(new, 32), (old, 32), (new, 32), (old, 32)]);
        assert!(edge.reopened(edge.room(0)).is_empty());
    }

    #[test]
    fn sendmes_are_owed_every_increment_and_refused_unasked() {
        let mut edge = windowed();
        edge.open(StreamId(1));
        let mut owed = (0, 0);
        for _ in 0..1000 {
            let (now, known) = edge.deliver(StreamId(1)).unwrap();
            assert!(known);
            owed = (owed.0 + u32::from(now.circuit), owed.1 + u32::from(now.stream));
        }
        assert_eq!(owed, (10, 20));
        assert_eq!(edge.sendme(Time::ZERO, StreamId(0), None, false), Err(Violation));
        assert_eq!(edge.sendme(Time::ZERO, StreamId(1), None, false), Err(Violation));
        assert_eq!(
            edge.sendme(Time::ZERO, StreamId(9), None, false),
            Ok(()),
            "a stream just closed is no violation"
        );
    }

    #[test]
    fn a_stream_that_its_application_does_not_read_is_not_acknowledged() {
        let mut edge = windowed();
        let id = StreamId(1);
        edge.open(id);
        let mut owed = 0;
        for cell in 1..=500 {
            owed += u32::from(edge.deliver(id).unwrap().0.stream);
            assert_eq!(backlog(&mut edge, id, cell * 498), None);
        }
        assert_eq!((owed, edge.held()), (0, 500 * 498), "only the first ten cells count as read");
        assert_eq!(edge.deliver(id), Err(Violation), "the peer's window is used up");
        let mut owed = 0;
        while let Some(payload) = backlog(&mut edge, id, HELD_BYTES) {
            assert_eq!(payload, Payload::Sendme(None));
            owed += 1;
        }
        assert_eq!(owed, 10, "as soon as it is read");
        assert!(edge.deliver(id).is_ok());
    }

    #[test]
    fn without_stream_windows_xoff_stops_a_stream() {
        let vegas = vegas::VegasParameters::default();
        let mut edge = Edge::new(&vegas, Windows::default(), f64::INFINITY);
        let id = StreamId(1);
        assert!(edge.open(id) && edge.connect(id));
        let mut wakes = Wakes::default();
        edge.hear(Time::ZERO, key(id), Signal::Xoff, &mut wakes);
        assert_eq!(packaged(&mut edge, id, u32::MAX), 0);
        edge.hear(Time::ZERO, key(id), Signal::Xon(0), &mut wakes);
        assert_eq!(edge.resumable(edge.room(u32::MAX)), [(id, 124)]);
        assert_eq!(packaged(&mut edge, id, u32::MAX), 124, "the first congestion window");
        assert_eq!(edge.sendme(Time(1), id, None, false), Err(Violation), "streams have no SENDMEs");
        assert_eq!(backlog(&mut edge, id, 249_000), None);
        assert_eq!(backlog(&mut edge, id, 249_001), Some(Payload::Xoff));
        assert_eq!(backlog(&mut edge, id, 249_002), None, "said once");
        assert_eq!(backlog(&mut edge, id, 0), Some(Payload::Xon(0)));
        let mut edge = windowed();
        edge.hear(Time::ZERO, key(id), Signal::Xoff, &mut wakes);
        assert!(edge.streams.iter().all(|stream| !stream.stopped), "fixed windows know no XOFF");
    }

    /// An end with Vegas and an open stream, and the bytes that it may send at once: the first congestion window.
    fn limited(rate: u32) -> (Edge, StreamKey, Wakes) {
        let mut edge = Edge::new(&Wide, Windows::default(), f64::INFINITY);
        let (id, mut wakes) = (StreamId(1), Wakes::default());
        assert!(edge.open(id) && edge.connect(id));
        edge.hear(Time::ZERO, key(id), Signal::Xon(rate), &mut wakes);
        (edge, key(id), wakes)
    }

    /// A congestion window that never closes.
    #[derive(Debug)]
    struct Wide;

    impl Control for Wide {
        fn window(&self) -> Option<Box<dyn Window>> {
            Some(Box::new(Wide))
        }
    }

    impl Window for Wide {
        fn room(&self) -> u32 {
            u32::MAX
        }
        fn sent(&mut self, _: Time) {}
        fn acknowledged(&mut self, _: Time, _: bool) -> Result<(), Violation> {
            Ok(())
        }
        fn sendme_increment(&self) -> u32 {
            31
        }
    }

    /// Packages all that the rate allows until `seconds` have passed. Returns the bytes, and how often a timer ran.
    fn run(edge: &mut Edge, stream: StreamKey, wakes: &mut Wakes, seconds: u64) -> (u64, u32) {
        let end = Time::ZERO + Span::from_secs(seconds);
        let (mut now, mut cells, mut timers) = (Time::ZERO, 0, 0);
        loop {
            cells += packaged_at(edge, now, stream.stream, u32::MAX);
            edge.settle(stream, wakes);
            let Some(due) = wakes.next().filter(|due| *due <= end) else { break };
            assert!(due > now);
            now = due;
            assert_eq!(wakes.take_due(now), Some(stream));
            assert!(edge.wake(now, stream, wakes), "a timer moves a cell");
            timers += 1;
        }
        (u64::from(cells) * 498, timers)
    }

    #[test]
    fn the_rate_in_xon_limits_a_stream() {
        for rate in [1, 3, 100, 5000] {
            let (mut edge, stream, mut wakes) = limited(rate);
            let (bytes, timers) = run(&mut edge, stream, &mut wakes, 20);
            let limit = u64::from(rate) * 1000;
            assert!((20 * limit..=21 * limit + 498).contains(&bytes), "{bytes} at {rate}");
            assert!(timers <= 200 && u64::from(timers) <= bytes / 498, "{timers}");
        }
    }

    #[test]
    fn a_new_rate_and_an_end_replace_the_timer() {
        let (mut edge, stream, mut wakes) = limited(1);
        let package = |edge: &mut Edge, wakes: &mut Wakes| {
            let cells = packaged(edge, stream.stream, u32::MAX);
            edge.settle(stream, wakes);
            cells
        };
        assert_eq!(package(&mut edge, &mut wakes), 3, "a second's bytes, rounded up to cells");
        let slow = wakes.next().unwrap();
        for rate in 1000..2000 {
            edge.hear(Time::ZERO, stream, Signal::Xon(rate), &mut wakes);
        }
        assert!(wakes.next().unwrap() < slow, "one timer, and an earlier one");
        edge.hear(Time::ZERO, stream, Signal::Xoff, &mut wakes);
        assert_eq!(wakes.next(), None);
        for none in [0, 2_147_484, u32::MAX] {
            edge.hear(Time::ZERO, stream, Signal::Xon(none), &mut wakes);
            assert_eq!((wakes.next(), edge.resumable(9)), (None, vec![(stream.stream, 9)]), "no limit");
        }
        edge.hear(Time::ZERO, stream, Signal::Xon(100), &mut wakes);
        assert_eq!(package(&mut edge, &mut wakes), 201, "a new bucket is full");
        assert!(wakes.next().is_some());
        assert!(edge.close(stream, &mut wakes));
        assert_eq!(wakes.next(), None);
        let (mut edge, _, mut wakes) = limited(1);
        package(&mut edge, &mut wakes);
        edge.forget_wakes(stream.circuit, &mut wakes);
        assert_eq!(wakes.next(), None);
    }

    #[test]
    fn a_late_or_empty_grant_keeps_the_timer() {
        let (mut edge, stream, mut wakes) = limited(100);
        // 201 cells of 498 bytes are as many as a second's bytes, and 205 of 488.
        edge.flow.set_data_bytes(488);
        assert_eq!(packaged(&mut edge, stream.stream, u32::MAX), 205);
        edge.settle(stream, &mut wakes);
        for _ in 0..3 {
            let due = wakes.next().unwrap();
            assert_eq!(wakes.take_due(due), Some(stream));
            assert!(edge.wake(due, stream, &mut wakes));
            // Other streams keep the driver for more than two refills.
            let late = due + Span::from_millis(250);
            for cells in [u32::MAX, 0] {
                packaged_at(&mut edge, late, stream.stream, cells);
                edge.settle(stream, &mut wakes);
                assert!(wakes.next().is_some(), "{cells} cells");
            }
        }
    }

    #[test]
    fn a_client_refuses_what_no_exit_sends() {
        let flow = StreamFlow::default();
        let (mut edge, stream, mut wakes) = limited(0);
        assert!(!edge.allows(stream.stream, Signal::Xoff, &flow), "nothing was sent");
        let (mut other, ..) = limited(0);
        assert_eq!(packaged(&mut edge, stream.stream, 500), 500);
        assert!(edge.allows(stream.stream, Signal::Xoff, &flow));
        edge.hear(Time::ZERO, stream, Signal::Xoff, &mut wakes);
        assert!(!edge.allows(stream.stream, Signal::Xoff, &flow), "twice");
        assert!(edge.allows(stream.stream, Signal::Xon(9), &flow));
        assert!(!other.allows(stream.stream, Signal::Xon(9), &flow));
        let mut fixed = windowed();
        assert!(fixed.open(stream.stream));
        assert!(fixed.allows(stream.stream, Signal::Xon(9), &flow), "it is dropped");
    }
}
