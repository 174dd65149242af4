//! Channels to neighbours, the circuits multiplexed on them, and who sends next.
//!
//! A *channel* is one connection to a neighbour. A *leg* is one circuit on one channel, with the queue of
//! cells that wait to leave there. Cells move from a leg's queue to the channel's output buffer in the
//! order of the channel's scheduler, and from there to the driver's connection in order.

use std::collections::VecDeque;

use slab::Slab;
use tidegate_control::units::Time;

use crate::cell::{CELL_BYTES, Cell, CircId, Command, RelayId};
use crate::flow::Control;
use crate::node::CircuitKey;
use crate::onion::Onion;
use crate::pool::{List, Pool};
use crate::scheduler::{self, Scheduler};

/// A channel as one node numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A leg as one node numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegId(u32);

/// Which TCP connection carries a circuit between two relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One connection per pair of nodes carries all circuits.
    Vanilla,
    /// One connection per circuit and hop (PCTCP, CCS 2013).
    PerCircuit,
}

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
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which connection a circuit uses.
    pub transport: Transport,
    /// Which circuit of a connection goes next.
    pub scheduler: scheduler::Kind,
    /// How circuits' rates are controlled end to end.
    pub control: Control,
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
}

impl Default for Config {
    fn default() -> Config {
        Config {
            transport: Transport::Vanilla,
            scheduler: scheduler::Kind::RoundRobin,
            control: Control::default(),
            output_buffer: OutputBuffer::default(),
            queue_high: 256,
            queue_low: 10,
            queue_limit: 50_000,
            circuits_per_channel: 1 << 16,
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

/// Which side of a circuit a leg is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Towards the client.
    Prev,
    /// Towards the exit.
    Next,
}

/// A cell cannot be queued: the circuit must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

#[derive(Debug)]
struct Channel {
    peer: Option<RelayId>,
    ours: bool,
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
}

#[derive(Debug)]
struct Leg {
    channel: ChannelId,
    circ: CircId,
    key: u32,
    circuit: CircuitKey,
    side: Side,
    /// Told to stop packaging until the queue is short again.
    high: bool,
    queue: List,
}

/// All channels and legs of a node.
#[derive(Debug)]
pub struct Links<O: Onion> {
    config: Config,
    channels: Slab<Channel>,
    legs: Slab<Leg>,
    /// The cells of all circuit queues and output buffers.
    cells: Pool<Departure<O>>,
    flushable: VecDeque<ChannelId>,
    drained: VecDeque<(CircuitKey, Side)>,
    queued_cells: u64,
    buffered_cells: u64,
}

/// Set by the side that opened the channel, so that both sides can begin circuits on it.
const OPENER_BIT: u32 = 1 << 31;

impl<O: Onion> Links<O> {
    /// No channels yet.
    pub fn new(config: Config) -> Links<O> {
        Links {
            config,
            channels: Slab::new(),
            legs: Slab::new(),
            cells: Pool::default(),
            flushable: VecDeque::new(),
            drained: VecDeque::new(),
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
            open: !ours,
            filling: true,
            flushing: false,
            next_circ: 1,
            scheduler: self.config.scheduler.build(),
            keys: Slab::new(),
            circs: Vec::new(),
            out: List::default(),
        });
        ChannelId(id as u32)
    }

    /// A neighbour connected to us.
    pub fn accept(&mut self, peer: Option<RelayId>) -> ChannelId {
        self.add_channel(peer, false)
    }

    /// The channel for a new circuit to `peer`, and whether it must be opened first.
    pub fn channel_to(&mut self, peer: RelayId) -> (ChannelId, bool) {
        let limit = self.config.circuits_per_channel as usize;
        let shared = |channel: &Channel| channel.peer == Some(peer) && channel.circs.len() < limit;
        if self.config.transport == Transport::Vanilla
            && let Some((id, _)) = self.channels.iter().find(|(_, channel)| shared(channel))
        {
            return (ChannelId(id as u32), false);
        }
        (self.add_channel(Some(peer), true), true)
    }

    /// A channel we asked for is open: what waits may leave.
    pub fn opened(&mut self, now: Time, id: ChannelId) {
        self.channel(id).open = true;
        self.fill(now, id);
    }

    /// Forgets a channel and its legs; returns the circuits that were on it.
    pub fn closed(&mut self, id: ChannelId) -> Vec<(CircuitKey, Side)> {
        let mut channel = self.channels.remove(id.0 as usize);
        self.flushable.retain(|other| *other != id);
        self.buffered_cells -= u64::from(channel.out.len());
        self.cells.clear(&mut channel.out);
        let mut orphans = Vec::new();
        for (_, leg) in channel.circs {
            let mut leg = self.legs.remove(leg.0 as usize);
            self.queued_cells -= u64::from(leg.queue.len());
            self.cells.clear(&mut leg.queue);
            orphans.push((leg.circuit, leg.side));
        }
        orphans
    }

    /// Whether a channel has no circuits left and nothing to write, and is of the kind that is closed then.
    pub fn is_spent(&self, id: ChannelId) -> bool {
        let channel = &self.channels[id.0 as usize];
        self.config.transport == Transport::PerCircuit
            && channel.ours
            && channel.circs.is_empty()
            && channel.out.is_empty()
    }

    /// Adds a leg for a circuit that we begin on a channel.
    pub fn begin_leg(&mut self, id: ChannelId, circuit: CircuitKey, side: Side) -> LegId {
        let channel = self.channel(id);
        let bit = if channel.ours { OPENER_BIT } else { 0 };
        let circ = loop {
            let circ = CircId(channel.next_circ | bit);
            channel.next_circ = (channel.next_circ + 1) & !OPENER_BIT;
            if circ.0 != bit && channel.circs.binary_search_by_key(&circ, |(circ, _)| *circ).is_err() {
                break circ;
            }
        };
        self.add_leg(id, circ, circuit, side)
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
        let queue = List::default();
        let leg = self.legs.insert(Leg { channel: id, circ, key: 0, circuit, side, high: false, queue });
        let leg = LegId(leg as u32);
        let channel = &mut self.channels[id.0 as usize];
        let key = channel.keys.insert(leg) as u32;
        channel.scheduler.forget(key);
        let at = channel.circs.partition_point(|(other, _)| *other < circ);
        channel.circs.insert(at, (circ, leg));
        self.legs[leg.0 as usize].key = key;
        leg
    }

    /// The circuit and side that a cell on a channel belongs to.
    pub fn lookup(&self, id: ChannelId, circ: CircId) -> Option<(LegId, CircuitKey, Side)> {
        let channel = &self.channels[id.0 as usize];
        let at = channel.circs.binary_search_by_key(&circ, |(circ, _)| *circ).ok()?;
        let leg = channel.circs[at].1;
        let Leg { circuit, side, .. } = self.legs[leg.0 as usize];
        Some((leg, circuit, side))
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
        if leg.queue.len() == 1 {
            self.channel(channel).scheduler.activate(now, key);
        }
        if self.channel(channel).filling {
            self.fill(now, channel);
        }
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
        if destroy {
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

    fn want_flush(&mut self, id: ChannelId) {
        let channel = &mut self.channels[id.0 as usize];
        if channel.open && !channel.flushing && !channel.out.is_empty() {
            channel.flushing = true;
            self.flushable.push_back(id);
        }
    }

    /// The driver writes no more of a channel for now: [`next_flushable`](Self::next_flushable) names it again
    /// when more cells come.
    pub fn hold(&mut self, id: ChannelId) {
        self.channel(id).flushing = false;
    }

    /// Moves cells from circuit queues to the output buffer, in the scheduler's order, up to the high mark.
    fn fill(&mut self, now: Time, id: ChannelId) {
        let channel = &mut self.channels[id.0 as usize];
        if !channel.open {
            return;
        }
        let high = (self.config.output_buffer.high_bytes / CELL_BYTES).max(1);
        channel.filling = true;
        while let Some(key) = channel.scheduler.next(now) {
            if channel.out.len() >= high {
                channel.filling = false;
                break;
            }
            let leg = &mut self.legs[channel.keys[key as usize].0 as usize];
            let moved = self.cells.move_front(&mut leg.queue, &mut channel.out);
            moved.expect("an active leg has cells").buffered = now;
            channel.scheduler.sent(now, key, !leg.queue.is_empty());
            self.queued_cells -= 1;
            self.buffered_cells += 1;
            if leg.high && leg.queue.len() <= self.config.queue_low {
                leg.high = false;
                self.drained.push_back((leg.circuit, leg.side));
            }
        }
        self.want_flush(id);
    }

    /// Cells that can be popped from a channel at least.
    pub fn ready(&self, id: ChannelId) -> u64 {
        self.channels.get(id.0 as usize).map_or(0, |channel| u64::from(channel.out.len()))
    }

    /// The next cell to write to a channel.
    pub fn pop(&mut self, now: Time, id: ChannelId) -> Option<Departure<O>> {
        let low = self.config.output_buffer.low_bytes / CELL_BYTES;
        // A channel is spent once its last cell, a DESTROY, was popped.
        let channel = self.channels.get_mut(id.0 as usize)?;
        let departure = self.cells.pop_front(&mut channel.out);
        if departure.is_some() {
            let refill = !channel.filling && channel.out.len() <= low;
            self.buffered_cells -= 1;
            if refill {
                self.fill(now, id);
            }
        } else {
            channel.flushing = false;
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
