//! What a node keeps of its channels and legs.

use std::collections::{BTreeMap, VecDeque};

use slab::Slab;
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use super::config::Config;
use super::runs::Runs;
use super::waiting::Waiting;
use crate::cell::Cell;
use crate::ids::{ChannelId, CircId, CircuitKey, LegId, Nonce, RelayId, Side};
use crate::onion::Onion;
use crate::scheduler::{Circuits, Scheduler};
use crate::switching::{MoveStart, MoveTimes, Occupancy};
use crate::transport::{DecayingCount, LOUDNESS_HALF_LIFE};

/// Set by the side that opened the channel, so that both sides can begin circuits on it.
pub(super) const OPENER_BIT: u32 = 1 << 31;

/// One connection.
#[derive(Debug)]
pub(super) struct Channel<O: Onion> {
    pub(super) peer: Option<RelayId>,
    pub(super) ours: bool,
    /// The neighbour speaks Tor's protocol only.
    pub(super) stock: bool,
    /// The neighbour does not speak our transport.
    pub(super) shared: bool,
    /// Closes with its last circuit.
    pub(super) transient: bool,
    pub(super) open: bool,
    /// The output buffer takes cells (it fell below the low mark since it was full).
    pub(super) filling: bool,
    /// The driver was told to flush and has not yet emptied the buffer.
    pub(super) flushing: bool,
    pub(super) next_circ: u32,
    pub(super) scheduler: Box<dyn Scheduler + Send>,
    /// Scheduler key -> leg.
    pub(super) keys: Slab<LegId>,
    /// Circuit id -> leg, ordered by id.
    pub(super) circs: Vec<(CircId, LegId)>,
    pub(super) out: Waiting<O>,
    /// Trajectories for the neighbour that are not in a cell yet.
    pub(super) news: Vec<u8>,
    /// How full `out` has been, where circuits may move away.
    pub(super) occupancy: Option<Occupancy>,
    /// Legs that move here once the channel is open.
    pub(super) awaited: Vec<LegId>,
    /// JOINs that came here before their LEAVE.
    pub(super) joins: Vec<(CircId, Nonce)>,
}

/// One circuit on one channel.
#[derive(Debug)]
pub(super) struct Leg<O: Onion> {
    pub(super) channel: ChannelId,
    pub(super) circ: CircId,
    pub(super) key: u32,
    pub(super) circuit: CircuitKey,
    pub(super) side: Side,
    /// Told to stop packaging until the queue is short again.
    pub(super) high: bool,
    /// Cells sent, where somebody asks how loud it is.
    pub(super) loudness: DecayingCount,
    /// This node is the circuit's guard.
    pub(super) at_guard: bool,
    /// When the leg last moved, or was to move.
    pub(super) moved: Time,
    /// A move under way.
    pub(super) moving: Option<Box<Move<O>>>,
    /// Cells that may leave the queue in this step, where a controller says so.
    pub(super) allowance: f64,
    /// What each release adds to that.
    pub(super) share: f64,
    /// Whether a cell that the allowance does not reach to the end of is cut, and the part of the first one that has
    /// gone.
    pub(super) cuts: bool,
    pub(super) cut: f64,
    /// Cells in the channel's output buffer, counted where a controller asks.
    pub(super) buffered: u32,
    /// Cells that have left the queue, and as many as a controller let go, if one steers it.
    pub(super) sent: u64,
    pub(super) allowed: f64,
    pub(super) queue: Waiting<O>,
}

/// A channel's circuits as its scheduler sees them.
pub(super) struct View<'a, O: Onion> {
    pub(super) keys: &'a Slab<LegId>,
    pub(super) legs: &'a Slab<Leg<O>>,
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
    pub(super) config: Config,
    pub(super) count_cells: bool,
    /// Where a controller says how many cells each leg may send: how many before it first does.
    pub(super) first_allowance: Option<f64>,
    /// Channels with trajectories to send, trajectories that go out of band, and memory for more.
    pub(super) told: Vec<ChannelId>,
    pub(super) out_of_band: VecDeque<(ChannelId, Cell<O>, Span)>,
    pub(super) spare: Vec<Vec<u8>>,
    /// The channel that round robin beyond a threshold chose last.
    pub(super) last_shared: Option<ChannelId>,
    pub(super) channels: Slab<Channel<O>>,
    pub(super) legs: Slab<Leg<O>>,
    pub(super) flushable: VecDeque<ChannelId>,
    pub(super) runs: Runs,
    pub(super) drained: VecDeque<(CircuitKey, Side)>,
    pub(super) nonces: Random,
    /// Moves whose JOIN is here, by nonce, and those whose LEAVE is.
    pub(super) joins: BTreeMap<Nonce, Join<O>>,
    pub(super) leaves: BTreeMap<Nonce, LegId>,
    pub(super) openings: VecDeque<(ChannelId, RelayId)>,
    pub(super) released: VecDeque<(LegId, Cell<O>)>,
    pub(super) switched: VecDeque<(CircuitKey, MoveTimes)>,
    pub(super) moved: Vec<CircuitKey>,
    pub(super) queued_cells: u64,
    pub(super) buffered_cells: u64,
    /// Cells that wait until a move is over.
    pub(super) held_cells: u64,
}

/// Where a leg that moves is in its move.
#[derive(Debug)]
pub(super) enum Move<O: Onion> {
    /// Mover: the new channel is being opened.
    Opening { to: ChannelId, begun: MoveStart },
    /// Mover: our cells go the new way; those of the peer still come the old one.
    Leaving {
        nonce: Nonce,
        old: (ChannelId, CircId),
        held: VecDeque<Cell<O>>,
        begun: MoveStart,
        left: Time,
        first: Option<Time>,
    },
    /// The peer has left the old way and not yet joined on a new one.
    Left { nonce: Nonce },
}

/// A JOIN that came before its LEAVE.
#[derive(Debug)]
pub(super) struct Join<O: Onion> {
    pub(super) channel: ChannelId,
    pub(super) circ: CircId,
    pub(super) since: Time,
    pub(super) held: VecDeque<Cell<O>>,
}

/// Inserts into a slab that has one or two items at most nodes, which are clients: first it grows by one.
pub(crate) fn insert_few<T>(slab: &mut Slab<T>, item: T) -> usize {
    if slab.len() == slab.capacity() && slab.len() < 4 {
        slab.reserve_exact(1);
    }
    slab.insert(item)
}

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
            flushable: VecDeque::new(),
            runs: Runs::default(),
            drained: VecDeque::new(),
            joins: BTreeMap::new(),
            leaves: BTreeMap::new(),
            openings: VecDeque::new(),
            released: VecDeque::new(),
            switched: VecDeque::new(),
            moved: Vec::new(),
            queued_cells: 0,
            buffered_cells: 0,
            held_cells: 0,
        }
    }

    /// How this node moves cells.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn channel(&mut self, id: ChannelId) -> &mut Channel<O> {
        &mut self.channels[id.0 as usize]
    }
}
