//! The best liar we know against the estimate: a relay that decrypts what it can, holds cells back in just under
//! half of the seconds and returns them in the others, so that the median sees the loud seconds only, and claims
//! all the background that the ratio allows. For demonstrations and tests (`docs/flashflow.md`, "Held back").

use tidegate_control::units::{Rate, Span, Time};

use super::cell::CELL;

/// How often it returns something.
const STEP: Span = Span::from_millis(5);

/// It returns what belongs to a loud second within so many hundredths of it: measurers that are far away count it a
/// little later, and must still find it in that second.
const WITHIN: u64 = 85;

/// What it decrypts so many milliseconds before the end no longer reaches the measurers in their last second.
const LATE_MS: u64 = 500;

/// When a relay that holds cells back returns how many.
#[derive(Clone, Debug)]
pub struct Hold {
    since: Time,
    seconds: u64,
    /// Bytes returned in a loud second.
    per_second: u64,
    returned: u64,
}

impl Hold {
    /// A measurement of so many seconds of a relay that decrypts at `rate` began.
    pub fn new(since: Time, rate: Rate, seconds: u16) -> Hold {
        let seconds = u64::from(seconds);
        let loud = (0..seconds).filter(|second| is_loud(*second, seconds)).count() as u64;
        // All that it can decrypt before it is too late, spread over the loud seconds; or as much as can be held back
        // with half a second of three times its rate in flight.
        let in_time = (1000 * seconds).saturating_sub(LATE_MS);
        let bytes = rate.0 / 8;
        let per_second = (bytes * in_time / (1000 * loud.max(1))).min(bytes * 7 / 4);
        Hold { since, seconds, per_second, returned: 0 }
    }

    /// How many of `ready` decrypted bytes, whole cells, it returns now.
    pub fn release(&mut self, now: Time, ready: u64) -> u64 {
        let elapsed = now.since(self.since);
        let (second, part) = (elapsed.0 / 1_000_000_000, elapsed.0 % 1_000_000_000);
        let before = (0..second.min(self.seconds)).filter(|s| is_loud(*s, self.seconds)).count() as u64;
        let part = (part * 100 / WITHIN).min(1_000_000_000);
        let part = if second < self.seconds && is_loud(second, self.seconds) { part } else { 0 };
        let here = (u128::from(self.per_second) * u128::from(part) / 1_000_000_000) as u64;
        let allowed = (self.per_second * before + here).saturating_sub(self.returned);
        let bytes = allowed.min(ready) / CELL as u64 * CELL as u64;
        self.returned += bytes;
        bytes
    }

    /// When to ask again.
    pub fn next_timeout(&self, now: Time) -> Time {
        now + STEP
    }
}

/// A bare majority, since the middle two of an even number count, evenly spread: what is held back for two loud seconds
/// in a row has to be saved up.
fn is_loud(second: u64, seconds: u64) -> bool {
    let loud = seconds / 2 + 1;
    (second + 1) * loud / seconds.max(1) > second * loud / seconds.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_returns_all_it_decrypted_in_a_majority_of_the_seconds() {
        for (seconds, loud) in [(10, 6), (30, 16), (5, 3), (1, 1)] {
            let rate = Rate(8 * CELL as u64 * 3000);
            let mut hold = Hold::new(Time::ZERO, rate, seconds);
            let mut returned = vec![0; usize::from(seconds)];
            for ms in 0..u64::from(seconds) * 1000 {
                let now = Time(ms * 1_000_000);
                returned[ms as usize / 1000] += hold.release(now, u64::MAX);
                let all: u64 = returned.iter().sum();
                // But for the end of the last second, which it has to wait for.
                let decrypted = rate.0 / 8 * (ms + 151) / 1000;
                assert!(all <= decrypted, "never more than it can have decrypted");
            }
            assert_eq!(returned.iter().filter(|bytes| **bytes > 0).count(), loud);
            let all: u64 = returned.iter().sum();
            assert!(all as f64 > 0.9 * rate.0 as f64 / 8.0 * (f64::from(seconds) - 0.5), "{returned:?}");
        }
    }
}
