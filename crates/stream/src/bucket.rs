//! A token bucket.

use tidegate_control::units::Time;

/// Something that fills at a rate and is spent.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    level: f64,
    at: Time,
}

impl Bucket {
    /// As full as it can be.
    pub const FULL: Bucket = Bucket { level: f64::MAX, at: Time::ZERO };

    /// Takes `amount` if it is there; the bucket holds `most` and fills with `per_s`.
    pub fn take(&mut self, now: Time, amount: f64, per_s: f64, most: f64) -> bool {
        self.level = (self.level + now.since(self.at).as_secs_f64() * per_s).min(most);
        self.at = self.at.max(now);
        let there = self.level >= amount;
        if there {
            self.level -= amount;
        }
        there
    }
}
