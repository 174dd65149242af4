//! Tor's token bucket (BandwidthRate, BandwidthBurst): bytes that may pass, refilled at intervals.

use tidegate_control::units::{Span, Time};

/// Parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketPlan {
    /// Bytes per second.
    pub rate_bytes_per_s: u64,
    /// Bytes the bucket holds.
    pub burst_bytes: u64,
    /// Interval between refills.
    pub refill_every: Span,
    /// Refill as tor does (`token_bucket.c`): at every use, with whole bytes for each whole interval since the last
    /// refill. Remaining fractions of a byte and of an interval are dropped. Time counts in sixteenths of the interval
    /// (tor: 16 ticks of 2^20 ns).
    pub drop_fractions: bool,
}

/// A token bucket. It starts full.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    plan: BucketPlan,
    /// Below zero after [`overdraw`](TokenBucket::overdraw).
    tokens: i64,
    /// Billionths of a byte carried between refills.
    fraction: u64,
    refilled: Time,
}

impl TokenBucket {
    /// A full bucket.
    ///
    /// # Panics
    /// If the refill interval is zero.
    pub fn new(plan: BucketPlan) -> TokenBucket {
        assert!(plan.refill_every > Span::ZERO, "a bucket is refilled at intervals");
        TokenBucket { plan, tokens: signed(plan.burst_bytes), fraction: 0, refilled: Time::ZERO }
    }

    /// Bytes that may pass at `now`.
    pub fn available(&mut self, now: Time) -> u64 {
        let tick = if self.plan.drop_fractions { (self.plan.refill_every.0 / 16).max(1) } else { 1 };
        let now = Time(now.0 / tick * tick);
        let steps = now.since(self.refilled).0 / self.plan.refill_every.0;
        if steps > 0 {
            let whole = self.refilled + self.plan.refill_every * steps;
            self.refilled = if self.plan.drop_fractions { now } else { whole };
            let per_step = u128::from(self.plan.rate_bytes_per_s) * u128::from(self.plan.refill_every.0);
            let gained = if self.plan.drop_fractions {
                per_step / 1_000_000_000 * u128::from(steps)
            } else {
                let all = per_step * u128::from(steps) + u128::from(self.fraction);
                self.fraction = (all % 1_000_000_000) as u64;
                all / 1_000_000_000
            };
            let gained = signed(u64::try_from(gained).unwrap_or(u64::MAX));
            self.tokens = self.tokens.saturating_add(gained).min(signed(self.plan.burst_bytes));
        }
        self.tokens.max(0) as u64
    }

    /// Lets `bytes` pass.
    ///
    /// # Panics
    /// If more pass than [`available`](Self::available) said.
    pub fn take(&mut self, bytes: u64) {
        assert!(bytes == 0 || signed(bytes) <= self.tokens, "no more passes than the bucket holds");
        self.tokens -= signed(bytes);
    }

    /// Lets `bytes` pass that cannot be cut, such as a TLS record; the bucket owes what it has not.
    pub fn overdraw(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(signed(bytes));
    }

    /// From now on it holds no more than `bytes`; what is in it beyond that is forfeited.
    pub(crate) fn limit_burst(&mut self, bytes: u64) {
        self.plan.burst_bytes = bytes;
        self.tokens = self.tokens.min(signed(bytes));
    }

    /// Changes the rate from now on, and the burst as [`limit_burst`](Self::limit_burst) does.
    pub(crate) fn change(&mut self, now: Time, rate_bytes_per_s: u64, burst_bytes: u64) {
        self.available(now);
        self.plan.rate_bytes_per_s = rate_bytes_per_s;
        self.limit_burst(burst_bytes);
    }

    /// Bytes that may pass, as of the last call of [`available`](Self::available).
    pub(crate) fn left(&self) -> u64 {
        self.tokens.max(0) as u64
    }

    /// When so many bytes may pass, which are at most the burst, as of the last call of [`available`](Self::available). The
    /// bucket keeps fractions and has a rate.
    pub fn due(&self, bytes: u64) -> Time {
        let lacks = signed(bytes).saturating_sub(self.tokens).max(0).unsigned_abs();
        let lacks = (u128::from(lacks) * 1_000_000_000).saturating_sub(self.fraction.into());
        let per_step = u128::from(self.plan.rate_bytes_per_s) * u128::from(self.plan.refill_every.0);
        let steps = lacks.div_ceil(per_step.max(1)).max(1);
        self.refilled + self.plan.refill_every * u64::try_from(steps).unwrap_or(u64::MAX)
    }

    /// When the next refill is due, as of the last call of [`available`](Self::available).
    pub fn next_refill(&self) -> Time {
        self.refilled + self.plan.refill_every
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan(rate: u64, burst: u64, every_us: u64, drop_fractions: bool) -> BucketPlan {
        let refill_every = Span::from_micros(every_us);
        BucketPlan { rate_bytes_per_s: rate, burst_bytes: burst, refill_every, drop_fractions }
    }

    #[test]
    fn fractions_are_kept_or_dropped() {
        for (drop_fractions, expected) in [(false, 1_500), (true, 1_000)] {
            let mut bucket = TokenBucket::new(plan(1_500, 1_000_000, 1_000, drop_fractions));
            bucket.take(1_000_000);
            for ms in 1..=1_000 {
                bucket.available(Time(ms * 1_000_000));
            }
            assert_eq!(bucket.available(Time(1_000_000_000)), expected);
        }
    }

    proptest! {
        /// Over any window no more passes than the burst and the rate allow, and, where records that cannot be
        /// cut overdraw it, one record.
        #[test]
        fn rate_is_never_exceeded(
            rate in 1u64..10_000_000, burst in 0u64..1_000_000, every_us in 1u64..200_000,
            drop_fractions in any::<bool>(), record in prop_oneof![Just(0u64), 1u64..20_000],
            steps in proptest::collection::vec((0u64..50_000_000, 0u64..2_000_000), 1..60),
        ) {
            let mut bucket = TokenBucket::new(plan(rate, burst, every_us, drop_fractions));
            let (mut now, mut taken) = (Time::ZERO, vec![]);
            for (wait, want) in steps {
                now += Span(wait);
                let available = bucket.available(now);
                let got = if available == 0 || record == 0 { want.min(available) } else { record };
                if record == 0 { bucket.take(got) } else { bucket.overdraw(got) }
                taken.push((now, got));
            }
            for from in 0..taken.len() {
                let mut sum = 0;
                for (at, got) in &taken[from..] {
                    sum += got;
                    let window = at.since(taken[from].0) + Span::from_micros(every_us);
                    prop_assert!(sum as f64 <= (burst + record) as f64 + rate as f64 * window.as_secs_f64() + 1.0);
                }
            }
        }
    }
}
