//! Pacing: bursts leave at the rate that the congestion control sets (Linux's internal pacing of TCP).

use tidegate_control::units::{Span, Time};

/// Below this rate, in bytes per second, segments leave one by one (Linux: `bbr_min_tso_rate`).
pub(super) const UNBURST_RATE: f64 = 1_200_000.0 / 8.0;

/// Linux does not pace the first segments of a connection.
const UNPACED_SEGMENTS: u64 = 10;

/// The clock of a paced sender.
#[derive(Clone, Debug)]
pub(super) struct Pacing {
    /// When the next burst may leave.
    pub next: Time,
    /// Payload bytes per second; zero: as fast as the window allows.
    pub rate: f64,
    segments: u64,
    /// How late the present burst left. It may leave the next one earlier.
    credit: Span,
}

impl Pacing {
    pub(crate) fn new() -> Pacing {
        Pacing { next: Time::ZERO, rate: 0.0, segments: 0, credit: Span::ZERO }
    }

    /// A segment leaves.
    pub(crate) fn on_sent(&mut self, now: Time, bytes: u64) {
        self.segments += 1;
        if self.next < now {
            self.credit = now.since(self.next);
            self.next = now;
        }
        if self.rate > 0.0 && self.segments > UNPACED_SEGMENTS {
            let takes = Span((bytes as f64 * 1e9 / self.rate) as u64);
            // A late timer is made up for, but by at most half (Linux: `tcp_update_skb_after_send`).
            let saved = self.credit.min(takes / 2);
            self.credit = self.credit - saved;
            self.next += takes - saved;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_burst_is_made_up_for_by_half_of_its_length() {
        let mut pacing = Pacing::new();
        pacing.rate = 1e6;
        for _ in 0..UNPACED_SEGMENTS {
            pacing.on_sent(Time(0), 1000);
        }
        assert_eq!(pacing.next, Time(0));
        pacing.on_sent(Time(0), 1000);
        assert_eq!(pacing.next, Time(1_000_000));
        // Half a millisecond late: two segments take 2 ms, less the half.
        pacing.on_sent(Time(1_300_000), 1000);
        pacing.on_sent(Time(1_300_000), 1000);
        assert_eq!(pacing.next, Time(3_000_000));
        // Long after: half of the segment's time.
        pacing.on_sent(Time(10_000_000), 1000);
        assert_eq!(pacing.next, Time(10_500_000));
    }
}
