//! What a sender keeps for a congestion control that sets a rate: delivery rate samples, and pacing.

use tidegate_control::units::Time;

use super::delivery_rate::{DeliveryRate, Loss};
use super::flight::Run;
use super::pacing::Pacing;

/// On the heap, because most connections lack it.
#[derive(Clone, Debug)]
pub(super) struct RateControl {
    pub deliveries: DeliveryRate,
    pub pacing: Pacing,
    /// Losses that the congestion control does not know of yet.
    pub losses: Vec<Loss>,
    /// Segments in the network before the present acknowledgement.
    pub prior_in_network: u32,
}

impl RateControl {
    pub(crate) fn new() -> RateControl {
        RateControl {
            deliveries: DeliveryRate::new(),
            pacing: Pacing::new(),
            losses: Vec::new(),
            prior_in_network: 0,
        }
    }

    /// A segment up to `end` leaves; `idle` if no other one is under way. `in_network`: segments, this one included.
    pub(crate) fn on_sent(&mut self, now: Time, start: u64, end: u64, idle: bool, in_network: u32) {
        self.deliveries.on_sent(now, end, idle, in_network);
        self.pacing.on_sent(now, end - start);
    }

    /// A run that begins at `start` is lost.
    pub(crate) fn on_lost(&mut self, start: u64, run: &Run) {
        self.losses.extend(self.deliveries.on_lost(run.sent, start, run.end, run.packets));
    }
}
