//! One leg's circuit queue, and how many of its cells a controller lets go.

use tidegate_control::units::Time;

use super::waiting::Waiting;
use crate::ids::{ChannelId, CircId, CircuitKey, LegId, Side};
use crate::onion::Onion;
use crate::transport::{DecayingCount, LOUDNESS_HALF_LIFE};

/// One circuit on one channel.
#[derive(Debug)]
pub(super) struct Leg<O: Onion> {
    pub channel: ChannelId,
    pub circ: CircId,
    /// Key of the leg in the channel's scheduler.
    pub key: u32,
    pub circuit: CircuitKey,
    pub side: Side,
    /// This node is the circuit's guard.
    pub at_guard: bool,
    /// The circuit's own end must stop packaging until the queue is short again.
    pub high: bool,
    /// Decayed count of sent cells. It stays zero unless a part of the node uses it.
    pub loudness: DecayingCount,
    /// Cells in the channel's output buffer, counted where a controller asks.
    pub buffered: u32,
    /// Cells that have left the queue.
    pub sent: u64,
    pub queue: Waiting<O>,
    /// Cells that may leave the queue in this step of the controller.
    allowance: f64,
    /// Cells that each release adds to the allowance.
    share: f64,
    /// Whether the rest of an allowance is spent on a part of the next cell.
    cuts: bool,
    /// The part of the first cell that has gone already.
    cut: f64,
    /// Cells that a controller has let go so far.
    allowed: f64,
}

/// Consequence of a changed allowance for the scheduler.
pub(super) enum Turn {
    /// None: the leg is empty, or may send or not as before.
    Unchanged,
    /// The leg may send now.
    Begins,
    /// The leg may send no longer.
    Ends,
}

impl<O: Onion> Leg<O> {
    pub(crate) fn new(
        channel: ChannelId,
        circ: CircId,
        circuit: CircuitKey,
        side: Side,
        allowance: f64,
    ) -> Leg<O> {
        Leg {
            channel,
            circ,
            key: 0,
            circuit,
            side,
            at_guard: false,
            high: false,
            loudness: DecayingCount::default(),
            buffered: 0,
            sent: 0,
            queue: Waiting::of_circuit(),
            allowance,
            share: 0.0,
            cuts: false,
            cut: 0.0,
            allowed: 0.0,
        }
    }

    /// Whether the controller lets a cell go.
    pub(crate) fn may_send(&self) -> bool {
        // A sum of rates that mean a whole number of cells may fall a rounding error short of it.
        self.allowance + self.cut >= 1.0 - 1e-9
    }

    /// Number of cells that the controller surely lets go one after the other.
    pub(crate) fn sendable(&self) -> u32 {
        if self.allowance == f64::INFINITY { u32::MAX } else { u32::from(self.may_send()) }
    }

    /// Whether the scheduler may choose this leg.
    pub(crate) fn is_ready(&self) -> bool {
        !self.queue.is_empty() && self.may_send()
    }

    /// Sets the allowance of a controller's step: `cells`, and `share` more at each release.
    ///
    /// With `carry`, the unused part of a cell is added. Without it, that part is lost, unless a cell waits: then
    /// the cell is cut and its rest goes later.
    pub(crate) fn allow(&mut self, now: Time, cells: f64, share: f64, carry: bool) -> Turn {
        let left = if carry && !self.may_send() { self.allowance.max(0.0) } else { 0.0 };
        (self.share, self.cuts) = (share, !carry);
        self.allowed += cells;
        self.set_allowance(now, cells + left)
    }

    /// Adds the share of one release.
    pub(crate) fn release(&mut self, now: Time) -> Turn {
        if self.share <= 0.0 {
            return Turn::Unchanged;
        }
        self.allowed += self.share;
        self.set_allowance(now, self.allowance + self.share)
    }

    fn set_allowance(&mut self, now: Time, cells: f64) -> Turn {
        let before = self.may_send();
        self.allowance = cells;
        match (before, self.may_send()) {
            (false, true) if !self.queue.is_empty() => Turn::Begins,
            (true, false) if !self.queue.is_empty() => Turn::Ends,
            _ => {
                self.cut(now);
                Turn::Unchanged
            }
        }
    }

    /// Spends what is left of the allowance, less than a cell, on the first part of the next cell, if the leg cuts
    /// cells. That part has left the circuit queue, and arrives with the cell's last part.
    pub(crate) fn cut(&mut self, now: Time) {
        if !self.cuts || self.may_send() || self.allowance <= 0.0 {
            return;
        }
        let Some(first) = self.queue.front_mut() else { return };
        if self.cut == 0.0 {
            first.buffered = now;
        }
        self.cut += std::mem::take(&mut self.allowance);
    }

    /// Moves the first cell, and those behind it that equal it, at most `most`, to an output buffer. Returns how many.
    pub(crate) fn send(&mut self, now: Time, out: &mut Waiting<O>, most: u32, count: bool) -> u32 {
        let (mut moved, cells) = self.queue.pop_run(most).expect("an active leg has cells");
        // The leg may have moved to another channel while the cell waited.
        moved.cell.circ = self.circ;
        if self.cut == 0.0 {
            moved.buffered = now;
        }
        out.push_back(moved, cells);
        self.count_sent(now, cells, count);
        cells
    }

    /// Counts cells that go to an output buffer.
    pub(crate) fn count_sent(&mut self, now: Time, cells: u32, count: bool) {
        self.allowance -= f64::from(cells) - std::mem::take(&mut self.cut);
        self.buffered += cells;
        self.sent += u64::from(cells);
        if count {
            self.loudness.add(now, LOUDNESS_HALF_LIFE, cells);
        }
    }

    /// Cells that a controller has let go so far.
    pub(crate) fn allowed(&self) -> f64 {
        self.allowed
    }

    /// Cells in the queue and in the output buffer.
    pub(crate) fn backlog(&self) -> f64 {
        f64::from(self.queue.len() + self.buffered) - self.cut
    }
}

/// The legs of one channel as its scheduler sees them.
pub(super) struct View<'a, O: Onion> {
    /// Scheduler key -> leg.
    pub keys: &'a slab::Slab<LegId>,
    pub legs: &'a slab::Slab<Leg<O>>,
    /// The leg with a cell that passes its queue.
    pub passing: Option<u32>,
}

impl<O: Onion> View<'_, O> {
    fn leg(&self, key: u32) -> &Leg<O> {
        &self.legs[self.keys[key as usize].index()]
    }
}

impl<O: Onion> crate::scheduler::Circuits for View<'_, O> {
    fn count(&self) -> usize {
        self.keys.len()
    }

    fn queued(&self, key: u32) -> u32 {
        self.leg(key).queue.len() + u32::from(self.passing == Some(key))
    }

    fn sent(&self, now: Time, key: u32) -> f64 {
        self.leg(key).loudness.value(now, LOUDNESS_HALF_LIFE)
    }
}
