//! The strongest known attack on the estimate: a relay that holds cells back.
//!
//! It decrypts what it can, returns cells only in a bare majority of the seconds, the loud ones, and claims all
//! the background that the ratio allows. The median then sees loud seconds only. For demonstrations and tests
//! (`docs/flashflow.md`, "Held back").

use tidegate_control::units::{Rate, Span, Time};

use super::cell::CELL;

/// Interval between returns.
const STEP: Span = Span::from_millis(5);

/// Percentage of a loud second in which its cells are returned.
///
/// Distant measurers count them later, and must still count them in that second.
const WITHIN: u64 = 85;

/// Milliseconds before the end after which decrypted cells no longer reach the measurers in time.
const LATE_MS: u64 = 500;

/// Schedule of returned cells.
#[derive(Clone, Debug)]
pub struct Hold {
    since: Time,
    seconds: u64,
    /// Bytes returned in a loud second.
    per_second: u64,
    returned: u64,
}

impl Hold {
    /// Starts the schedule for a measurement of `seconds` of a relay that decrypts at `rate`.
    pub fn new(since: Time, rate: Rate, seconds: u16) -> Hold {
        let seconds = u64::from(seconds);
        let loud = (0..seconds).filter(|second| is_loud(*second, seconds)).count() as u64;
        // Spread everything that is decrypted in time over the loud seconds. The measurers' window limits what
        // can be held back: half a second of three times the rate.
        let in_time = (1000 * seconds).saturating_sub(LATE_MS);
        let bytes = rate.0 / 8;
        let per_second = (bytes * in_time / (1000 * loud.max(1))).min(bytes * 7 / 4);
        Hold { since, seconds, per_second, returned: 0 }
    }

    /// How many of `ready` decrypted bytes to return now, in whole cells.
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

    /// Time of the next return.
    pub fn next_timeout(&self, now: Time) -> Time {
        now + STEP
    }
}

/// Whether a second is loud: a bare majority is, evenly spread.
///
/// A majority, because the middle two of an even number count. Two loud seconds in a row would need twice the
/// stored cells.
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
                // Except for the end of the last second, which waits for its cells.
                let decrypted = rate.0 / 8 * (ms + 151) / 1000;
                assert!(all <= decrypted, "never more than it can have decrypted");
            }
            assert_eq!(returned.iter().filter(|bytes| **bytes > 0).count(), loud);
            let all: u64 = returned.iter().sum();
            assert!(all as f64 > 0.9 * rate.0 as f64 / 8.0 * (f64::from(seconds) - 0.5), "{returned:?}");
        }
    }
}
