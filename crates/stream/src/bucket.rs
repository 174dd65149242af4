//! A token bucket.

use tidegate_control::units::Time;

/// A token bucket; the caller gives rate and size.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    level: f64,
    at: Time,
}

impl Bucket {
    /// A full bucket of any size.
    pub const FULL: Bucket = Bucket { level: f64::MAX, at: Time::ZERO };

    /// Takes `amount` tokens if they are there. The bucket holds `most` and refills at `per_s` per second.
    pub(crate) fn take(&mut self, now: Time, amount: f64, per_s: f64, most: f64) -> bool {
        self.level = (self.level + now.since(self.at).as_secs_f64() * per_s).min(most);
        self.at = self.at.max(now);
        let there = self.level >= amount;
        if there {
            self.level -= amount;
        }
        there
    }
}
