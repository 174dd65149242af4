//! Channels to neighbours, the circuits multiplexed on them, and who sends next.
//!
//! A *channel* is one connection to a neighbour. A *leg* is one circuit on one channel, with the queue of
//! cells that wait to leave there. Cells move from a leg's queue to the channel's output buffer in the
//! order of the channel's scheduler, and from there to the driver's connection in order.

mod allowance;
mod handover;
pub mod kist;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use slab::Slab;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};

use crate::cell::{CELL_BYTES, Cell, CircId, Command, Nonce, RelayId};
use crate::control::windows::{FixedWindows, Windows};
use crate::control::{Clock, Control};
use crate::ids::CircuitKey;
pub use crate::ids::{ChannelId, LegId, Side};
use crate::node::{Budget, Sink};
use crate::onion::Onion;
use crate::pool::{List, Pool};
use crate::scheduler::round_robin::RoundRobin;
use crate::scheduler::{Circuits, Discipline, Scheduler};
use crate::switching::{Occupancy, Parts, Switching};
use crate::transport::{DecayingCount, LOUDNESS_HALF_LIFE, Sharing, Transport};

pub use handover::Arrival;
use handover::{Join, Move};

/// When a channel's output buffer takes cells from its circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputBuffer {
    /// Filled up to here (tor: OR_CONN_HIGHWATER, 32 KiB),
    pub high_bytes: u32,
    /// and again once it has fallen below here (tor: OR_CONN_LOWWATER, 16 KiB).
    pub low_bytes: u32,
}

impl Default for OutputBuffer {
    fn default() -> OutputBuffer {
        OutputBuffer { high_bytes: 32 << 10, low_bytes: 16 << 10 }
    }
}

/// How a node moves cells.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which connection a circuit uses.
    pub transport: Transport,
    /// Relays that are not upgraded to `transport`: circuits to them share one connection.
    pub legacy: Arc<BTreeSet<RelayId>>,
    /// Which circuit of a connection goes next.
    pub scheduler: Arc<dyn Discipline>,
    /// KIST decides when, and over all connections at once; without it each connection fills its output
    /// buffer as soon as that takes cells (tor: `Schedulers KIST` or `Vanilla`).
    pub kist: Option<kist::Parameters>,
    /// How circuits' rates are controlled.
    pub control: Arc<dyn Control>,
    /// What is in flight at most, unless `control` has windows of its own.
    pub windows: Windows,
    /// What this node knows its bandwidth to be, in bytes per second; infinite if nothing limits it.
    pub bandwidth: f64,
    /// Connection output buffers.
    pub output_buffer: OutputBuffer,
    /// A circuit queue this long stops its own end from packaging (tor: cc_cellq_high, 256), and
    pub queue_high: u32,
    /// one this short lets it go on (tor: cc_cellq_low, 10).
    pub queue_low: u32,
    /// A circuit queue longer than this ends the circuit (tor: circ_max_cell_queue_size, 50,000).
    pub queue_limit: u32,
    /// Circuits on one channel; more are refused.
    pub circuits_per_channel: u32,
    /// Cells beyond a full output buffer that a neighbour may leave unread: what no window bounds, such as DESTROY,
    /// piles up there, and then the channel is closed.
    pub unread_limit: u32,
    /// Whether and how circuits move away from congested connections.
    pub switching: Option<Switching>,
    /// Where the nonces of moves come from; secret, and different for each node.
    pub nonces: Seed,
    /// When a controller takes its steps.
    pub clock: Clock,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            transport: Transport::Vanilla,
            legacy: Arc::default(),
            scheduler: Arc::new(RoundRobin),
            kist: None,
            control: Arc::new(FixedWindows),
            windows: Windows::default(),
            bandwidth: f64::INFINITY,
            output_buffer: OutputBuffer::default(),
            queue_high: 256,
            queue_low: 10,
            queue_limit: 50_000,
            circuits_per_channel: 1 << 16,
            unread_limit: 1 << 12,
            switching: None,
            nonces: Seed::root(0),
            clock: Clock::default(),
        }
    }
}

/// A cell on its way out, with the times at which it came this far.
#[derive(Clone, Debug, PartialEq)]
pub struct Departure<O: Onion> {
    /// The cell.
    pub cell: Cell<O>,
    /// When it entered the circuit queue.
    pub queued: Time,
    /// When it entered the output buffer.
    pub buffered: Time,
}

/// A cell cannot be queued: the circuit must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

#[derive(Debug)]
struct Channel {
    peer: Option<RelayId>,
    ours: bool,
    /// Closes with its last circuit.
    dedicated: bool,
    open: bool,
    /// The output buffer takes cells (it fell below the low mark since it was full).
    filling: bool,
    /// The driver was told to flush and has not yet emptied the buffer.
    flushing: bool,
    next_circ: u32,
    scheduler: Box<dyn Scheduler + Send>,
    /// Scheduler key -> leg.
    keys: Slab<LegId>,
    /// Circuit id -> leg, ordered by id.
    circs: Vec<(CircId, LegId)>,
    out: List,
    /// Trajectories for the neighbour that are not in a cell yet.
    news: Vec<u8>,
    /// How full `out` has been, where circuits may move away.
    occupancy: Option<Occupancy>,
    /// Legs that move here once the channel is open.
    awaited: Vec<LegId>,
    /// JOINs that came here before their LEAVE.
    joins: Vec<(CircId, Nonce)>,
}

#[derive(Debug)]
struct Leg<O: Onion> {
    channel: ChannelId,
    circ: CircId,
    key: u32,
    circuit: CircuitKey,
    side: Side,
    /// Told to stop packaging until the queue is short again.
    high: bool,
    /// Cells sent, where somebody asks how loud it is.
    loudness: DecayingCount,
    /// This node is the circuit's guard.
    at_guard: bool,
    /// When the leg last moved, or was to move.
    moved: Time,
    /// A move under way.
    moving: Option<Box<Move<O>>>,
    /// Cells that may leave the queue in this step, where a controller says so.
    allowance: f64,
    /// What each release adds to that.
    share: f64,
    /// Cells in the channel's output buffer, counted where a controller asks.
    buffered: u32,
    queue: List,
}

/// A channel's circuits as its scheduler sees them.
struct View<'a, O: Onion> {
    keys: &'a Slab<LegId>,
    legs: &'a Slab<Leg<O>>,
}

impl<O: Onion> View<'_, O> {
    fn leg(&self, key: u32) -> &Leg<O> {
        &self.legs[self.keys[key as usize].0 as usize]
    }
}

impl<O: Onion> Circuits for View<'_, O> {
    fn count(&self) -> usize {
        self.keys.len()
    }

    fn queued(&self, key: u32) -> u32 {
        self.leg(key).queue.len()
    }

    fn sent(&self, now: Time, key: u32) -> f64 {
        self.leg(key).loudness.value(now, LOUDNESS_HALF_LIFE)
    }
}

/// All channels and legs of a node.
#[derive(Debug)]
pub struct Links<O: Onion> {
    config: Config,
    count_cells: bool,
    /// Where a controller says how many cells each leg may send: how many before it first does.
    first_allowance: Option<f64>,
    /// Channels with trajectories to send, trajectories that go out of band, and memory for more.
    told: Vec<ChannelId>,
    out_of_band: VecDeque<(ChannelId, Cell<O>, Span)>,
    spare: Vec<Vec<u8>>,
    /// The channel that round robin beyond a threshold chose last.
    last_shared: Option<ChannelId>,
    channels: Slab<Channel>,
    legs: Slab<Leg<O>>,
    /// The cells of all circuit queues and output buffers.
    cells: Pool<Departure<O>>,
    flushable: VecDeque<ChannelId>,
    runs: kist::Runs,
    drained: VecDeque<(CircuitKey, Side)>,
    nonces: Random,
    /// Moves whose JOIN is here, by nonce, and those whose LEAVE is.
    joins: BTreeMap<Nonce, Join<O>>,
    leaves: BTreeMap<Nonce, LegId>,
    openings: VecDeque<(ChannelId, RelayId)>,
    released: VecDeque<(LegId, Cell<O>)>,
    switched: VecDeque<(CircuitKey, Parts)>,
    moved: Vec<CircuitKey>,
    queued_cells: u64,
    buffered_cells: u64,
}

/// Set by the side that opened the channel, so that both sides can begin circuits on it.
const OPENER_BIT: u32 = 1 << 31;

impl<O: Onion> Links<O> {
    /// No channels yet. Where a controller steers legs, each may send so many cells before it first does.
    pub fn new(config: Config, first_allowance: Option<f64>) -> Links<O> {
        Links {
            count_cells: config.transport.needs_loudness()
                || config.switching.is_some()
                || config.scheduler.counts(),
            first_allowance,
            told: Vec::new(),
            out_of_band: VecDeque::new(),
            spare: Vec::new(),
            nonces: config.nonces.random(),
            last_shared: None,
            config,
            channels: Slab::new(),
            legs: Slab::new(),
            cells: Pool::default(),
            flushable: VecDeque::new(),
            runs: kist::Runs::default(),
            drained: VecDeque::new(),
            joins: BTreeMap::new(),
            leaves: BTreeMap::new(),
            openings: VecDeque::new(),
            released: VecDeque::new(),
            switched: VecDeque::new(),
            moved: Vec::new(),
            queued_cells: 0,
            buffered_cells: 0,
        }
    }

    /// How this node moves cells.
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn channel(&mut self, id: ChannelId) -> &mut Channel {
        &mut self.channels[id.0 as usize]
    }

    fn add_channel(&mut self, peer: Option<RelayId>, ours: bool) -> ChannelId {
        let id = self.channels.insert(Channel {
            peer,
            ours,
            dedicated: ours && peer.is_some_and(|peer| self.transport_to(peer) != Transport::Vanilla),
            open: !ours,
            filling: true,
            flushing: false,
            next_circ: 1,
            scheduler: self.config.scheduler.build(),
            keys: Slab::new(),
            circs: Vec::new(),
            out: List::default(),
            news: Vec::new(),
            occupancy: None,
            awaited: Vec::new(),
            joins: Vec::new(),
        });
        ChannelId(id as u32)
    }

    /// A neighbour connected to us.
    pub fn accept(&mut self, peer: Option<RelayId>) -> ChannelId {
        self.add_channel(peer, false)
    }

    /// The transport between us and a relay.
    fn transport_to(&self, peer: RelayId) -> Transport {
        if self.config.legacy.contains(&peer) { Transport::Vanilla } else { self.config.transport }
    }

    /// The channel for a new circuit to `peer`, and whether it must be opened first.
    pub fn channel_to(&mut self, now: Time, peer: RelayId) -> (ChannelId, bool) {
        let transport = self.transport_to(peer);
        if let Some(limit) = transport.limit() {
            let most = self.config.circuits_per_channel as usize;
            // A connection that the peer opened for a circuit of its own closes with that circuit.
            let usable = |channel: &Channel| channel.ours || transport == Transport::Vanilla;
            let known = (self.channels.iter())
                .filter(|(_, channel)| channel.peer == Some(peer) && usable(channel))
                .filter(|(_, channel)| channel.circs.len() < most)
                .map(|(id, _)| ChannelId(id as u32));
            let known: Vec<ChannelId> = known.collect();
            if known.len() as u64 >= u64::from(limit) {
                return (self.shared(now, transport, &known), false);
            }
        }
        (self.add_channel(Some(peer), true), true)
    }

    /// Which of these channels a circuit shares.
    fn shared(&mut self, now: Time, transport: Transport, known: &[ChannelId]) -> ChannelId {
        match transport {
            Transport::Threshold { beyond: Sharing::RoundRobin, .. } => {
                let next = known.iter().find(|id| self.last_shared.is_none_or(|last| **id > last));
                let next = *next.unwrap_or(&known[0]);
                self.last_shared = Some(next);
                next
            }
            Transport::Threshold { beyond: Sharing::ByClass, .. } => {
                let loudest = |id: &ChannelId| {
                    let channel = &self.channels[id.0 as usize];
                    let counts = channel.circs.iter().map(|(_, leg)| self.legs[leg.0 as usize].loudness);
                    let most = counts.map(|count| count.value(now, LOUDNESS_HALF_LIFE)).fold(0.0, f64::max);
                    (most, channel.circs.len())
                };
                let quieter = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
                let least = known.iter().min_by(|a, b| quieter(&loudest(a), &loudest(b)));
                *least.expect("a threshold is at least one connection")
            }
            Transport::Vanilla | Transport::PerCircuit => known[0],
        }
    }

    /// A channel we asked for is open: what waits may leave.
    pub fn opened(&mut self, now: Time, id: ChannelId) {
        self.channel(id).open = true;
        self.offer(now, id);
        self.move_awaiting(now, id);
    }

    /// Forgets a channel and its legs; returns the circuits that were on it.
    pub fn closed(&mut self, now: Time, id: ChannelId) -> Vec<(CircuitKey, Side)> {
        let mut channel = self.channels.remove(id.0 as usize);
        self.flushable.retain(|other| *other != id);
        self.runs.remove(id);
        self.buffered_cells -= u64::from(channel.out.len());
        self.cells.clear(&mut channel.out);
        self.abandon_moves_to(id, &channel);
        let mut orphans = Vec::new();
        for (_, leg_id) in channel.circs {
            let mut leg = self.legs.remove(leg_id.0 as usize);
            self.queued_cells -= u64::from(leg.queue.len());
            self.cells.clear(&mut leg.queue);
            if leg.channel != id {
                let other = &mut self.channels[leg.channel.0 as usize];
                other.scheduler.forget(leg.key);
                other.keys.remove(leg.key as usize);
            }
            self.abandon_move(now, leg_id, &leg, Some(id));
            orphans.push((leg.circuit, leg.side));
        }
        self.run_if_known(now);
        orphans
    }

    /// Whether there is such a channel.
    pub fn has(&self, id: ChannelId) -> bool {
        self.channels.contains(id.0 as usize)
    }

    /// Whether the neighbour leaves more unread than it may.
    pub fn is_flooded(&self, id: ChannelId) -> bool {
        let full = self.config.output_buffer.high_bytes / CELL_BYTES;
        self.channels[id.0 as usize].out.len() > full + self.config.unread_limit
    }

    /// Whether a channel has no circuits left and nothing to write, and is of the kind that is closed then.
    pub fn is_spent(&self, id: ChannelId) -> bool {
        let channel = &self.channels[id.0 as usize];
        channel.dedicated && channel.circs.is_empty() && channel.out.is_empty()
    }

    /// Adds a leg for a circuit that we begin on a channel; `at_guard`: as its guard.
    pub fn begin_leg(&mut self, id: ChannelId, circuit: CircuitKey, side: Side, at_guard: bool) -> LegId {
        let circ = self.fresh_circ(id);
        let leg = self.add_leg(id, circ, circuit, side);
        self.legs[leg.0 as usize].at_guard = at_guard;
        leg
    }

    /// A circuit id that is ours to give and free.
    fn fresh_circ(&mut self, id: ChannelId) -> CircId {
        let channel = self.channel(id);
        let bit = if channel.ours { OPENER_BIT } else { 0 };
        loop {
            let circ = CircId(channel.next_circ | bit);
            channel.next_circ = (channel.next_circ + 1) & !OPENER_BIT;
            if circ.0 != bit && channel.circs.binary_search_by_key(&circ, |(circ, _)| *circ).is_err() {
                return circ;
            }
        }
    }

    /// Adds a leg for a circuit that the neighbour begins; `None` if the id is not the neighbour's to
    /// give, is taken, or there are too many.
    pub fn accept_leg(
        &mut self,
        id: ChannelId,
        circ: CircId,
        circuit: CircuitKey,
        side: Side,
    ) -> Option<LegId> {
        let limit = self.config.circuits_per_channel as usize;
        let channel = self.channel(id);
        let theirs = (circ.0 & OPENER_BIT != 0) != channel.ours && circ.0 & !OPENER_BIT != 0;
        let taken = channel.circs.binary_search_by_key(&circ, |(circ, _)| *circ).is_ok();
        (theirs && !taken && channel.circs.len() < limit).then(|| self.add_leg(id, circ, circuit, side))
    }

    fn add_leg(&mut self, id: ChannelId, circ: CircId, circuit: CircuitKey, side: Side) -> LegId {
        let leg = self.legs.insert(Leg {
            channel: id,
            circ,
            key: 0,
            circuit,
            side,
            high: false,
            loudness: DecayingCount::default(),
            // A neighbour without a name is a client, and we are its circuits' guard.
            at_guard: self.channels[id.0 as usize].peer.is_none(),
            moved: Time::ZERO,
            moving: None,
            allowance: self.first_allowance(side),
            share: 0.0,
            buffered: 0,
            queue: List::default(),
        });
        let leg = LegId(leg as u32);
        let channel = &mut self.channels[id.0 as usize];
        let key = channel.keys.insert(leg) as u32;
        channel.scheduler.forget(key);
        let at = channel.circs.partition_point(|(other, _)| *other < circ);
        channel.circs.insert(at, (circ, leg));
        self.legs[leg.0 as usize].key = key;
        leg
    }

    /// Whether this node is the guard of a leg's circuit.
    pub fn is_at_guard(&self, id: LegId) -> bool {
        self.legs[id.0 as usize].at_guard
    }

    /// Queues a cell on a leg.
    pub fn push(&mut self, now: Time, id: LegId, command: Command, body: O::Body) -> Result<(), QueueFull> {
        let leg = &mut self.legs[id.0 as usize];
        if leg.queue.len() >= self.config.queue_limit {
            return Err(QueueFull);
        }
        let cell = Cell { circ: leg.circ, command, body };
        self.cells.push_back(&mut leg.queue, Departure { cell, queued: now, buffered: now });
        self.queued_cells += 1;
        let (channel, key) = (leg.channel, leg.key);
        if leg.queue.len() == 1 && leg.may_send() {
            self.activate(now, channel, key);
        }
        self.offer(now, channel);
        Ok(())
    }

    /// Cells that a leg's queue takes before its own end must stop packaging.
    pub fn room(&self, id: LegId) -> u32 {
        let leg = &self.legs[id.0 as usize];
        if leg.high { 0 } else { self.config.queue_high.saturating_sub(leg.queue.len()) }
    }

    /// Whether a leg's queue has stopped its own end.
    pub fn is_blocked(&self, id: LegId) -> bool {
        self.legs[id.0 as usize].high
    }

    /// Notes that a leg's own end was stopped by the queue; it is told by [`drained`](Self::drained).
    pub fn note_packaged(&mut self, id: LegId) {
        let leg = &mut self.legs[id.0 as usize];
        leg.high |= leg.queue.len() >= self.config.queue_high;
    }

    /// Removes a leg, drops what waits in its queue, and tells the neighbour if `destroy`. Returns its
    /// channel.
    pub fn remove_leg(&mut self, now: Time, id: LegId, destroy: bool) -> ChannelId {
        let mut leg = self.legs.remove(id.0 as usize);
        self.queued_cells -= u64::from(leg.queue.len());
        self.cells.clear(&mut leg.queue);
        let channel = &mut self.channels[leg.channel.0 as usize];
        channel.scheduler.forget(leg.key);
        channel.keys.remove(leg.key as usize);
        let at = channel.circs.binary_search_by_key(&leg.circ, |(circ, _)| *circ);
        channel.circs.remove(at.expect("a leg is listed on its channel"));
        self.abandon_move(now, id, &leg, None);
        let channel = &mut self.channels[leg.channel.0 as usize];
        if destroy && !matches!(leg.moving.as_deref(), Some(Move::Leaving { .. })) {
            let cell = Cell { circ: leg.circ, command: Command::Destroy, body: O::empty() };
            self.cells.push_back(&mut channel.out, Departure { cell, queued: now, buffered: now });
            self.buffered_cells += 1;
            self.want_flush(leg.channel);
        }
        leg.channel
    }

    /// Tells the neighbour that a circuit it began is refused.
    pub fn refuse(&mut self, now: Time, id: ChannelId, circ: CircId) {
        let cell = Cell { circ, command: Command::Destroy, body: O::empty() };
        let channel = &mut self.channels[id.0 as usize];
        self.cells.push_back(&mut channel.out, Departure { cell, queued: now, buffered: now });
        self.buffered_cells += 1;
        self.want_flush(id);
    }

    /// Cells in a channel's output buffer.
    pub fn ready(&self, id: ChannelId) -> u64 {
        self.channels.get(id.0 as usize).map_or(0, |channel| u64::from(channel.out.len()))
    }

    fn want_flush(&mut self, id: ChannelId) {
        let channel = &mut self.channels[id.0 as usize];
        if channel.open && !channel.flushing && !channel.out.is_empty() {
            channel.flushing = true;
            self.flushable.push_back(id);
        }
    }

    /// A channel has cells to move: now, or when KIST runs next.
    fn offer(&mut self, now: Time, id: ChannelId) {
        let channel = &self.channels[id.0 as usize];
        match self.config.kist {
            Some(kist) if channel.open => self.runs.add(now, id, kist.interval),
            None if channel.filling => self.fill(now, id),
            _ => {}
        }
    }

    /// Moves cells from circuit queues to the output buffer, in the scheduler's order, up to the high mark.
    fn fill(&mut self, now: Time, id: ChannelId) {
        self.note_occupancy(now, id);
        let channel = &mut self.channels[id.0 as usize];
        if !channel.open {
            return;
        }
        let high = (self.config.output_buffer.high_bytes / CELL_BYTES).max(1);
        while self.channel(id).out.len() < high && self.move_one(now, id) {}
        let idle = self.next_key(now, id).is_none();
        self.channel(id).filling = idle;
        self.want_flush(id);
        self.relieve(now, id);
    }

    fn activate(&mut self, now: Time, id: ChannelId, key: u32) {
        let channel = &mut self.channels[id.0 as usize];
        channel.scheduler.activate(now, key, &View { keys: &channel.keys, legs: &self.legs });
    }

    fn next_key(&mut self, now: Time, id: ChannelId) -> Option<u32> {
        let channel = &mut self.channels[id.0 as usize];
        channel.scheduler.next(now, &View { keys: &channel.keys, legs: &self.legs })
    }

    /// What the circuit that sends next has sent, by which channels compare.
    fn load(&mut self, now: Time, id: ChannelId) -> Option<f64> {
        let channel = &mut self.channels[id.0 as usize];
        channel.scheduler.load(now, &View { keys: &channel.keys, legs: &self.legs })
    }

    /// Moves the cell that is next to a channel's output buffer; false if there is none.
    fn move_one(&mut self, now: Time, id: ChannelId) -> bool {
        let Some(key) = self.next_key(now, id) else { return false };
        let channel = &mut self.channels[id.0 as usize];
        let leg = &mut self.legs[channel.keys[key as usize].0 as usize];
        let moved = self.cells.move_front(&mut leg.queue, &mut channel.out);
        let moved = moved.expect("an active leg has cells");
        // The leg may have moved while the cell waited.
        moved.cell.circ = leg.circ;
        moved.buffered = now;
        leg.allowance -= 1.0;
        leg.buffered += 1;
        if self.count_cells {
            leg.loudness.add(now, LOUDNESS_HALF_LIFE, 1);
        }
        let more = !leg.queue.is_empty() && leg.may_send();
        let circuits = View { keys: &channel.keys, legs: &self.legs };
        channel.scheduler.sent(now, key, more, &circuits);
        self.queued_cells -= 1;
        self.buffered_cells += 1;
        let leg = &mut self.legs[channel.keys[key as usize].0 as usize];
        if leg.high && leg.queue.len() <= self.config.queue_low {
            leg.high = false;
            self.drained.push_back((leg.circuit, leg.side));
        }
        true
    }

    /// Writes a channel's cells as far as its driver takes them; true if the channel [is spent](Self::is_spent) with
    /// them.
    pub fn drain(&mut self, now: Time, id: ChannelId, sink: &mut dyn Sink<O>) -> bool {
        let mut spent = false;
        // The driver may not know yet that a channel is closed.
        while let Some(channel) = self.channels.get_mut(id.0 as usize) {
            let most = match sink.budget() {
                Budget::Cells(most) => most,
                Budget::Blocked => break,
                Budget::Paused => {
                    channel.flushing = false;
                    break;
                }
            };
            let cells = most.min(channel.out.len());
            if cells == 0 {
                channel.flushing = false;
                self.note_occupancy(now, id);
                break;
            }
            if !sink.begin(cells, self.front_bytes(id, cells)) {
                break;
            }
            for _ in 0..cells {
                let departure = self.pop(now, id);
                let last = matches!(departure.cell.command, Command::Destroy | Command::Plan);
                spent |= last && self.is_spent(id);
                sink.write(departure);
            }
        }
        spent
    }

    /// Takes the cell at the front of a channel's output buffer, which must have one.
    fn pop(&mut self, now: Time, id: ChannelId) -> Departure<O> {
        let low = self.config.output_buffer.low_bytes / CELL_BYTES;
        self.note_occupancy(now, id);
        let channel = &mut self.channels[id.0 as usize];
        let departure = self.cells.pop_front(&mut channel.out).expect("it has as many as were begun");
        let refill = !channel.filling && channel.out.len() <= low;
        self.buffered_cells -= 1;
        if self.first_allowance.is_some()
            && let Ok(at) = channel.circs.binary_search_by_key(&departure.cell.circ, |(circ, _)| *circ)
        {
            let leg = &mut self.legs[channel.circs[at].1.0 as usize];
            // A leg that has moved counts what it sends on its new way.
            if leg.channel == id {
                leg.buffered = leg.buffered.saturating_sub(1);
            }
        }
        if refill {
            self.fill(now, id);
        }
        departure
    }

    /// A channel that has cells since the driver last emptied it.
    pub fn next_flushable(&mut self) -> Option<ChannelId> {
        self.flushable.pop_front()
    }

    /// A circuit whose own end was stopped by its queue and may go on.
    pub fn next_drained(&mut self) -> Option<(CircuitKey, Side)> {
        self.drained.pop_front()
    }

    /// Cells in circuit queues and bytes in output buffers.
    pub fn waiting(&self) -> (u64, u64) {
        (self.queued_cells, self.buffered_cells * u64::from(CELL_BYTES))
    }
}
