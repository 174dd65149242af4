//! Congestion window and pacing of a client.
//!
//! Rates cover only relays. A bottleneck link elsewhere shows in losses, which slow down a client like a TCP flow on
//! the same link.

use tidegate_control::units::Time;

/// Initial and smallest window, packets.
const FIRST: f64 = 10.0;
const LEAST: f64 = 4.0;
/// Share of the window that a loss leaves, and packets it then gains per round trip. Average throughput equals that
/// of TCP's one half and one (RFC 9438, section 4.3), in smaller steps.
const BETA: f64 = 0.7;
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A congestion window.
#[derive(Debug)]
pub(crate) struct Window {
    /// Size in packets.
    size: f64,
    /// Below this size, the window grows by a packet per answer.
    threshold: f64,
    /// When the window was last lowered. Losses of earlier packets belong to the same event.
    lowered: Time,
    /// Departure of the packet that lowered the window, and the values before.
    blamed: Option<(Time, f64, f64)>,
}

impl Window {
    pub(crate) fn new() -> Window {
        Window { size: FIRST, threshold: f64::INFINITY, lowered: Time::ZERO, blamed: None }
    }

    /// Whether another packet may leave with `flying` in flight.
    pub(crate) fn has_room(&self, flying: usize) -> bool {
        (flying as f64) < self.size
    }

    /// Records an answer in time, with `flying` packets in flight. An unused window does not grow.
    pub(crate) fn answered(&mut self, flying: usize) {
        if flying as f64 >= self.size / 2.0 {
            self.size += if self.size < self.threshold { 1.0 } else { ALPHA / self.size };
        }
    }

    /// Records the loss of a packet that left at `sent`, with `flying` in flight.
    pub(crate) fn lost(&mut self, now: Time, sent: Time, flying: usize) {
        if sent >= self.lowered {
            self.blamed = Some((sent, self.size, self.threshold));
            self.size = (BETA * self.size.min(flying as f64)).max(LEAST);
            (self.threshold, self.lowered) = (self.size, now);
        }
    }

    /// Records a late answer to a packet that counted as lost. Restores the window if it was lowered because of this
    /// packet (RFC 4015).
    pub(crate) fn late(&mut self, sent: Time) {
        if let Some((_, size, threshold)) = self.blamed.take_if(|(blamed, ..)| *blamed == sent) {
            (self.size, self.threshold) = (size.max(self.size), threshold);
        }
    }
}

/// Maximum growth of the pace from one second to the next.
const FASTER: f64 = 1.5;
/// Packets per second that leave without pacing.
const UNPACED: u32 = 50;

/// Pacing: the number of packets per second.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Packets in the busiest recent second, which fades, and in the current second.
    seconds: [u32; 2],
    second: u64,
}

impl Pace {
    /// Records a packet; returns the allowed packets per second.
    pub(crate) fn sent(&mut self, now: Time) -> f64 {
        let second = now.0 / 1_000_000_000;
        if second != self.second {
            // After seconds without packets, the pace fades instead of starting over.
            let rest = (self.second..second).take(16).fold(self.seconds[0], |pace, _| pace * 3 / 4);
            self.seconds = [self.seconds[1].max(rest), 0];
            self.second = second;
        }
        self.seconds[1] += 1;
        FASTER * f64::from(self.busy().max(UNPACED))
    }

    /// Packets in the busiest recent second.
    pub(crate) fn busy(&self) -> u32 {
        self.seconds[0].max(self.seconds[1])
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;

    #[test]
    fn losses_of_one_flight_count_once_and_an_unused_window_does_not_grow() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut window = Window::new();
        (10..100).for_each(|flying| window.answered(flying));
        assert_eq!(window.size, 100.0, "it doubles per round trip");
        (0..50).for_each(|ms| window.lost(at(200), at(ms), 100));
        assert_eq!(window.size, 70.0);
        (0..70).for_each(|_| window.answered(70));
        assert!((window.size - 70.0 - ALPHA).abs() < 0.01, "{}", window.size);
        (0..1000).for_each(|_| window.answered(20));
        assert!(window.size < 71.0 && window.has_room(70) && !window.has_room(71));
        window.lost(at(300), at(250), 60);
        assert_eq!(window.size, 42.0);
        window.late(at(240));
        assert_eq!(window.size, 42.0, "another packet");
        window.late(at(250));
        assert!(window.size > 70.0, "it came after all");
        (2..20).for_each(|n| window.lost(at(200 * (n + 1)), at(200 * n), 50));
        assert_eq!(window.size, LEAST);
    }
}
