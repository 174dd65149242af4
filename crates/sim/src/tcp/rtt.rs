//! Round-trip time and retransmission timeout (RFC 6298) with Linux's two refinements: a sudden fall of
//! the round-trip time does not raise the variance, and the variance term has a floor and decays only
//! once a round trip.

use tidegate_control::units::{Span, Time};

use super::config::Config;

/// All in microseconds, 32 bits wide to keep endpoints small.
#[derive(Clone, Debug, Default)]
pub(super) struct RttEstimator {
    /// Eight times the smoothed round-trip time; zero before the first sample.
    smoothed_8: u32,
    /// Four times the mean deviation.
    deviation_4: u32,
    /// The largest deviation of this round trip.
    deviation_max_4: u32,
    /// Margin that the timeout adds to the smoothed round-trip time.
    margin: u32,
    /// Smallest round-trip time seen lately.
    min: u32,
    /// When that was, in seconds.
    min_at: u32,
    /// The round trip ends when this offset is acknowledged.
    round_end: u64,
}

/// The minimum is forgotten after this long (Linux: tcp_min_rtt_wlen).
const MIN_WINDOW_S: u32 = 300;

impl RttEstimator {
    /// Smoothed round-trip time; zero before the first sample.
    pub(crate) fn smoothed(&self) -> Span {
        Span::from_micros(u64::from(self.smoothed_8 / 8))
    }

    /// The smallest round-trip time of the last minutes; zero before the first sample.
    pub(crate) fn min(&self) -> Span {
        Span::from_micros(u64::from(self.min))
    }

    /// The retransmission timeout without backoff.
    pub(crate) fn timeout(&self, config: &Config) -> Span {
        // First sample (RFC 6298, 2.2).
        if self.smoothed_8 == 0 {
            return config.rto_initial;
        }
        Span::from_micros(u64::from(self.smoothed_8 / 8) + u64::from(self.margin)).min(config.rto_max)
    }

    /// A sample for the minimum.
    pub(crate) fn observe_min(&mut self, now: Time, sample: Span) {
        let sample = micros(sample);
        let now_s = (now.0 / 1_000_000_000) as u32;
        if self.min == 0 || sample <= self.min || now_s.wrapping_sub(self.min_at) > MIN_WINDOW_S {
            self.min = sample;
            self.min_at = now_s;
        }
    }

    /// A sample of the round-trip time; `una` and `next` delimit what is in flight.
    pub(crate) fn observe(&mut self, config: &Config, sample: Span, una: u64, next: u64) {
        let sample = micros(sample);
        let floor = micros(config.rto_min);
        if self.smoothed_8 == 0 {
            self.smoothed_8 = sample.saturating_mul(8);
            self.deviation_4 = sample.saturating_mul(2);
            self.margin = self.deviation_4.max(floor);
            self.deviation_max_4 = self.margin;
            self.round_end = next;
            return;
        }
        let error = i64::from(sample) - i64::from(self.smoothed_8 / 8);
        self.smoothed_8 = (i64::from(self.smoothed_8) + error).clamp(8, i64::from(u32::MAX)) as u32;
        let mut change = error.abs() - i64::from(self.deviation_4 / 4);
        // A shorter round trip must not raise the timeout much (Linux: `tcp_rtt_estimator`).
        if error < 0 && change > 0 {
            change /= 8;
        }
        self.deviation_4 = (i64::from(self.deviation_4) + change).clamp(0, i64::from(u32::MAX)) as u32;
        if self.deviation_4 > self.deviation_max_4 {
            self.deviation_max_4 = self.deviation_4;
            self.margin = self.margin.max(self.deviation_max_4);
        }
        // Once per round trip, the margin decays towards the round's largest deviation.
        if una > self.round_end {
            self.margin -= self.margin.saturating_sub(self.deviation_max_4) / 4;
            self.round_end = next;
            self.deviation_max_4 = floor;
        }
    }
}

/// At least one microsecond, so that zero can mean "none".
fn micros(span: Span) -> u32 {
    (span.0 / 1_000).clamp(1, u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_samples_give_the_floor() {
        let config = Config::default();
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.timeout(&config), Span::from_secs(1));
        for round in 0..200 {
            rtt.observe(&config, Span::from_millis(100), round * 10, round * 10 + 5);
        }
        assert_eq!(rtt.smoothed(), Span::from_millis(100));
        assert_eq!(rtt.timeout(&config), Span::from_millis(300));
    }

    #[test]
    fn a_sudden_rise_raises_the_timeout_and_a_fall_does_not() {
        let config = Config::default();
        let mut rise = RttEstimator::default();
        let mut fall = RttEstimator::default();
        for round in 0..200 {
            rise.observe(&config, Span::from_millis(100), round, round);
            fall.observe(&config, Span::from_millis(1000), round, round);
        }
        rise.observe(&config, Span::from_millis(1000), 201, 201);
        fall.observe(&config, Span::from_millis(100), 201, 201);
        // RFC 6298 by hand: SRTT = 100 + 900/8, 4*RTTVAR = 900 (the deviation had decayed to zero).
        assert_eq!(rise.timeout(&config).0 / 1_000_000, 212 + 900);
        assert!(fall.timeout(&config) < Span::from_millis(1120));
    }

    #[test]
    fn the_minimum_is_forgotten_after_five_minutes() {
        let mut rtt = RttEstimator::default();
        rtt.observe_min(Time(0), Span::from_millis(10));
        rtt.observe_min(Time::ZERO + Span::from_secs(299), Span::from_millis(30));
        assert_eq!(rtt.min(), Span::from_millis(10));
        rtt.observe_min(Time::ZERO + Span::from_secs(301), Span::from_millis(30));
        assert_eq!(rtt.min(), Span::from_millis(30));
    }
}
