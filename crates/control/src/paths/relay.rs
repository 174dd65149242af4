//! The relay's side of per-packet paths: a limit of bytes per second, and the offered rate.

use super::fair_share::{FairShare, FairShareParameters};
use crate::units::{Span, Time};

/// Polices arrivals against a limit that restarts every second (thesis section 6.1.2).
#[derive(Clone, Copy, Debug)]
pub struct PolicingRelay {
    limit: f64,
    /// R_c: bytes forwarded in this second.
    passed: f64,
    /// Bytes that arrived in this second, dropped ones included.
    offered: f64,
    reset: Time,
    share: Option<FairShare>,
    stamp: f32,
}

/// The period after which limits restart.
pub const SECOND: Span = Span::from_secs(1);

impl PolicingRelay {
    /// A relay that passes `limit` bytes per second, with seconds that begin `phase` after the start. With
    /// `stamping` it offers rates to `peers` sources.
    pub fn new(
        limit: f64,
        phase: Span,
        peers: usize,
        stamping: Option<FairShareParameters>,
    ) -> PolicingRelay {
        let share = stamping.map(|parameters| FairShare::new(limit, peers, parameters));
        let stamp = share.map_or(0.0, |share| share.stamp() as f32);
        PolicingRelay { limit, passed: 0.0, offered: 0.0, reset: Time::ZERO + phase, share, stamp }
    }

    /// Counts a packet that arrives; false if it exceeds the limit and must be dropped.
    pub fn arrive(&mut self, now: Time, bytes: f64) -> bool {
        self.advance(now);
        self.offered += bytes;
        let passes = self.passed + bytes <= self.limit;
        if passes {
            self.passed += bytes;
        }
        passes
    }

    /// Changes the limit at once.
    pub fn set_limit(&mut self, limit: f64) {
        self.limit = limit;
    }

    /// The rate offered to every source in bytes/s; zero without an offer.
    pub fn stamp(&self) -> f32 {
        self.stamp
    }

    /// Begins new seconds up to `now`, at most 64: after a minute without load an offer has reached its bound, and a
    /// jump of the clock must not cost more.
    fn advance(&mut self, now: Time) {
        if now < self.reset {
            return;
        }
        let seconds = now.since(self.reset).0 / SECOND.0 + 1;
        for _ in 0..seconds.min(64) {
            if let Some(share) = &mut self.share {
                share.second(self.limit, self.offered);
                self.stamp = share.stamp() as f32;
            }
            (self.passed, self.offered) = (0.0, 0.0);
        }
        self.reset = Time(self.reset.0.saturating_add(seconds.saturating_mul(SECOND.0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_begins_one_second() {
        let offers = FairShareParameters { packet: 1500.0, kappa: 0.1, lambda: 4.0, eta: 0.93, grain: 1.0 };
        let mut relay = PolicingRelay::new(4000.0, Span::from_millis(300), 2, Some(offers));
        for far in [Time(1 << 40), Time(1 << 62), Time(u64::MAX - 1)] {
            assert_eq!((0..5).filter(|_| relay.arrive(far, 1500.0)).count(), 2);
            assert_eq!(relay.stamp(), 4000.0, "nothing was offered for long");
        }
        assert!(!relay.arrive(Time::ZERO, 1500.0), "a clock that jumps back begins none");
    }

    #[test]
    fn a_second_passes_its_limit_and_no_more() {
        let mut relay = PolicingRelay::new(4000.0, Span::from_millis(300), 2, None);
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let passed = |relay: &mut PolicingRelay, ms| (0..5).filter(|_| relay.arrive(at(ms), 1500.0)).count();
        assert_eq!(passed(&mut relay, 0), 2);
        assert_eq!(passed(&mut relay, 299), 0);
        assert_eq!(passed(&mut relay, 300), 2);
        relay.set_limit(6000.0);
        assert_eq!(passed(&mut relay, 1299), 2);
        assert_eq!(passed(&mut relay, 9300), 4);
    }
}
