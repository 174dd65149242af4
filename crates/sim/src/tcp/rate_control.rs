//! What a sender keeps for a congestion control that sets a rate: delivery rate samples, and pacing.

use tidegate_control::units::Time;

use super::delivery_rate::DeliveryRate;
use super::pacing::Pacing;

/// On the heap, because most connections lack it.
#[derive(Clone, Debug)]
pub(super) struct RateControl {
    pub deliveries: DeliveryRate,
    pub pacing: Pacing,
    /// Segments found to be lost since the connection began.
    pub lost: u64,
    /// Segments in the network before the present acknowledgement.
    pub prior_in_network: u32,
}

impl RateControl {
    pub(crate) fn new() -> RateControl {
        RateControl { deliveries: DeliveryRate::new(), pacing: Pacing::new(), lost: 0, prior_in_network: 0 }
    }

    /// A segment up to `end` leaves; `idle` if no other one is under way.
    pub(crate) fn on_sent(&mut self, now: Time, start: u64, end: u64, idle: bool) {
        self.deliveries.on_sent(now, end, idle);
        self.pacing.on_sent(now, end - start);
    }
}
