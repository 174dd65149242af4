//! Cells move from circuit queues to output buffers, and from there to the driver's connections.

use tidegate_control::units::Time;

use super::state::{Links, Move, View};
use crate::cell::{CELL_BYTES, Cell, Command};
use crate::ids::{ChannelId, CircuitKey, LegId, Side};
use crate::onion::Onion;
use crate::sink::{Budget, Departure, Sink};
use crate::transport::LOUDNESS_HALF_LIFE;

/// A cell cannot be queued: the circuit must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

impl<O: Onion> Links<O> {
    /// Queues a cell on a leg.
    pub fn push(&mut self, now: Time, id: LegId, command: Command, body: O::Body) -> Result<(), QueueFull> {
        let leg = &mut self.legs[id.0 as usize];
        if leg.queue.len() >= self.config.queue_limit {
            return Err(QueueFull);
        }
        let cell = Cell { circ: leg.circ, command, body };
        leg.queue.push_back(Departure { cell, queued: now, buffered: now });
        self.queued_cells += 1;
        let (channel, key) = (leg.channel, leg.key);
        if leg.queue.len() == 1 {
            if leg.may_send() {
                self.activate(now, channel, key);
            } else {
                self.cut(now, id);
            }
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

    /// Cells in a channel's output buffer.
    pub fn ready(&self, id: ChannelId) -> u64 {
        self.channels.get(id.0 as usize).map_or(0, |channel| u64::from(channel.out.len()))
    }

    pub(super) fn want_flush(&mut self, id: ChannelId) {
        let channel = &mut self.channels[id.0 as usize];
        if channel.open && !channel.flushing && !channel.out.is_empty() {
            channel.flushing = true;
            self.flushable.push_back(id);
        }
    }

    /// A channel has cells to move: now, or when KIST runs next.
    pub(super) fn offer(&mut self, now: Time, id: ChannelId) {
        let channel = &self.channels[id.0 as usize];
        match self.config.kist {
            Some(kist) if channel.open => self.runs.add(now, id, kist.interval),
            None if channel.filling => self.fill(now, id),
            _ => {}
        }
    }

    /// Moves cells from circuit queues to the output buffer, in the scheduler's order, up to the high mark.
    pub(super) fn fill(&mut self, now: Time, id: ChannelId) {
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

    pub(super) fn activate(&mut self, now: Time, id: ChannelId, key: u32) {
        let channel = &mut self.channels[id.0 as usize];
        channel.scheduler.activate(now, key, &View { keys: &channel.keys, legs: &self.legs });
    }

    pub(super) fn next_key(&mut self, now: Time, id: ChannelId) -> Option<u32> {
        let channel = &mut self.channels[id.0 as usize];
        channel.scheduler.next(now, &View { keys: &channel.keys, legs: &self.legs })
    }

    /// What the circuit that sends next has sent, by which channels compare.
    pub(super) fn load(&mut self, now: Time, id: ChannelId) -> Option<f64> {
        let channel = &mut self.channels[id.0 as usize];
        channel.scheduler.load(now, &View { keys: &channel.keys, legs: &self.legs })
    }

    /// Moves the cell that is next to a channel's output buffer; false if there is none.
    pub(super) fn move_one(&mut self, now: Time, id: ChannelId) -> bool {
        let Some(key) = self.next_key(now, id) else { return false };
        let channel = &mut self.channels[id.0 as usize];
        let leg = &mut self.legs[channel.keys[key as usize].0 as usize];
        let moved = leg.queue.move_front(&mut channel.out);
        let moved = moved.expect("an active leg has cells");
        // The leg may have moved while the cell waited.
        moved.cell.circ = leg.circ;
        if leg.cut == 0.0 {
            moved.buffered = now;
        }
        leg.allowance -= 1.0 - std::mem::take(&mut leg.cut);
        leg.buffered += 1;
        leg.sent += 1;
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
        if !more {
            let id = channel.keys[key as usize];
            self.cut(now, id);
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
    pub(super) fn pop(&mut self, now: Time, id: ChannelId) -> Departure<O> {
        let low = self.config.output_buffer.low_bytes / CELL_BYTES;
        self.note_occupancy(now, id);
        let channel = &mut self.channels[id.0 as usize];
        let departure = channel.out.pop_front().expect("it has as many as were begun");
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

    /// Cells of all kinds that are held in memory.
    pub fn cells(&self) -> u64 {
        self.queued_cells + self.buffered_cells + self.held_cells
    }

    /// Cells that wait in a leg's queue, that have left it, and that a controller let go.
    pub fn traffic(&self, id: LegId) -> (u32, u64, f64) {
        let leg = &self.legs[id.0 as usize];
        (leg.queue.len(), leg.sent, leg.allowed)
    }

    /// Since when a leg's first cell has waited, in the queue or for the end of a move.
    pub fn oldest(&self, id: LegId) -> Option<Time> {
        let leg = &self.legs[id.0 as usize];
        let queued = leg.queue.front().map(|departure| departure.queued);
        let held = match leg.moving.as_deref() {
            Some(Move::Leaving { first, .. }) => *first,
            _ => None,
        };
        [queued, held].into_iter().flatten().min()
    }

    /// The channel whose output buffer has waited longest for its neighbour to read.
    pub fn oldest_unread(&self) -> Option<ChannelId> {
        let unread = self.channels.iter().filter_map(|(id, channel)| {
            channel.out.front().map(|departure| (departure.buffered, ChannelId(id as u32)))
        });
        unread.min().map(|(_, id)| id)
    }

    /// Cells in circuit queues and bytes in output buffers.
    pub fn waiting(&self) -> (u64, u64) {
        (self.queued_cells, self.buffered_cells * u64::from(CELL_BYTES))
    }
}
