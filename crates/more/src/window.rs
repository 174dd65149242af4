//! How many packets of a client may be on their way, and how fast they leave. Rates say what relays carry. A link that no
//! relay knows of shows in losses alone: they slow a client down as they do a flow of TCP that it shares the link with.

use tidegate_control::units::Time;

/// Packets at first, and at least.
const FIRST: f64 = 10.0;
const LEAST: f64 = 4.0;
/// What a loss leaves of the window, and how many packets it then gains per round trip: as much as TCP's one half and one
/// (RFC 9438, section 4.3), in smaller steps.
const BETA: f64 = 0.7;
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A congestion window.
#[derive(Debug)]
pub(crate) struct Window {
    /// Packets.
    size: f64,
    /// Below this it grows by a packet per answer.
    threshold: f64,
    /// Losses of what was sent before are the same sign.
    lowered: Time,
    /// When the packet left that it was lowered for, and what it was before.
    blamed: Option<(Time, f64, f64)>,
}

impl Window {
    pub fn new() -> Window {
        Window { size: FIRST, threshold: f64::INFINITY, lowered: Time::ZERO, blamed: None }
    }

    /// Whether another packet may leave beside so many on their way.
    pub fn has_room(&self, flying: usize) -> bool {
        (flying as f64) < self.size
    }

    /// An answer came in time, of as many packets as were on their way. A window that is not used does not grow.
    pub fn answered(&mut self, flying: usize) {
        if flying as f64 >= self.size / 2.0 {
            self.size += if self.size < self.threshold { 1.0 } else { ALPHA / self.size };
        }
    }

    /// A packet that left at `sent` was lost, of as many as were on their way.
    pub fn lost(&mut self, now: Time, sent: Time, flying: usize) {
        if sent >= self.lowered {
            self.blamed = Some((sent, self.size, self.threshold));
            self.size = (BETA * self.size.min(flying as f64)).max(LEAST);
            (self.threshold, self.lowered) = (self.size, now);
        }
    }

    /// The answer to a packet that left at `sent` came although it was given up: if the window was lowered for it, it was
    /// wrongly (RFC 4015).
    pub fn late(&mut self, sent: Time) {
        if let Some((_, size, threshold)) = self.blamed.take_if(|(blamed, ..)| *blamed == sent) {
            (self.size, self.threshold) = (size.max(self.size), threshold);
        }
    }
}

/// How much faster than in the second before packets leave.
const FASTER: f64 = 1.5;
/// Packets per second that leave unpaced.
const UNPACED: u32 = 50;

/// Packets per second, so that they leave one after the other.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Packets sent in the busiest second of late, fading, and in this.
    seconds: [u32; 2],
    second: u64,
}

impl Pace {
    /// A packet leaves; how many may per second.
    pub fn sent(&mut self, now: Time) -> f64 {
        let second = now.0 / 1_000_000_000;
        if second != self.second {
            // A second without packets does not begin all anew.
            let rest = (self.second..second).take(16).fold(self.seconds[0], |pace, _| pace * 3 / 4);
            self.seconds = [self.seconds[1].max(rest), 0];
            self.second = second;
        }
        self.seconds[1] += 1;
        FASTER * f64::from(self.busy().max(UNPACED))
    }

    /// Packets of the busiest second of late.
    pub fn busy(&self) -> u32 {
        self.seconds[0].max(self.seconds[1])
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;

    #[test]
    fn losses_of_one_flight_are_one_sign_and_what_is_not_used_does_not_grow() {
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
