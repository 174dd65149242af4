//! How many cells a controller lets each leg send.

use tidegate_control::units::Time;

use super::state::{Leg, Links};
use crate::ids::{LegId, Side};
use crate::onion::Onion;

impl<O: Onion> Leg<O> {
    /// Whether the controller lets a cell go.
    pub(super) fn may_send(&self) -> bool {
        // Rates that mean a whole number of cells may come out a little below it.
        self.allowance + self.cut >= 1.0 - 1e-9
    }
}

impl<O: Onion> Links<O> {
    /// Only the direction to the client is controlled. A new circuit may send a cell before its first step.
    pub(super) fn first_allowance(&self, side: Side) -> f64 {
        if side == Side::Prev { self.first_allowance.unwrap_or(f64::INFINITY) } else { f64::INFINITY }
    }

    /// Lets a leg send so many cells, and `share` more at each release, until the controller says otherwise.
    /// With `carry` the part of a cell that is left counts too; without, it is lost, but for a cell that waits: that is
    /// cut, and its rest goes later.
    pub fn allow(&mut self, now: Time, id: LegId, cells: f64, share: f64, carry: bool) {
        let leg = &mut self.legs[id.0 as usize];
        let left = if carry && !leg.may_send() { leg.allowance.max(0.0) } else { 0.0 };
        (leg.share, leg.cuts) = (share, !carry);
        leg.allowed += cells;
        self.set_allowance(now, id, cells + left);
    }

    /// Lets every leg send another share.
    pub fn release(&mut self, now: Time) {
        for index in 0..self.legs.capacity() {
            if let Some(leg) = self.legs.get_mut(index).filter(|leg| leg.share > 0.0) {
                leg.allowed += leg.share;
                let leg = &self.legs[index];
                self.set_allowance(now, LegId(index as u32), leg.allowance + leg.share);
            }
        }
    }

    fn set_allowance(&mut self, now: Time, id: LegId, cells: f64) {
        let leg = &mut self.legs[id.0 as usize];
        let before = leg.may_send();
        leg.allowance = cells;
        if leg.queue.is_empty() || before == leg.may_send() {
            return self.cut(now, id);
        }
        let (channel, key) = (leg.channel, leg.key);
        if before {
            self.channels[channel.0 as usize].scheduler.remove(key);
        } else {
            self.activate(now, channel, key);
            self.offer(now, channel);
        }
    }

    /// Spends what is left of a leg's allowance, less than a cell, on the first part of the next one, if the leg cuts
    /// cells. It has left the circuit queue then, and arrives with its last part.
    pub(super) fn cut(&mut self, now: Time, id: LegId) {
        let leg = &mut self.legs[id.0 as usize];
        if !leg.cuts || leg.may_send() || leg.allowance <= 0.0 {
            return;
        }
        let Some(first) = leg.queue.front_mut() else { return };
        if leg.cut == 0.0 {
            first.buffered = now;
        }
        leg.cut += std::mem::take(&mut leg.allowance);
    }

    /// Cells of a leg that wait in its queue and in the output buffer.
    pub fn backlog(&self, id: LegId) -> f64 {
        let leg = &self.legs[id.0 as usize];
        f64::from(leg.queue.len() + leg.buffered) - leg.cut
    }
}
