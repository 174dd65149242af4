//! Detects token buckets that drop: two intervals between losses, with many losses and the same rate.

use tidegate_control::units::{Span, Time};

use super::Progress;

/// Round trips of an interval, at least.
const INTERVAL_ROUNDS: u32 = 4;
/// Segments lost per segment delivered: 50 / 256.
const LOSSES: f64 = 50.0 / 256.0;
/// The rates of two intervals differ by less than this share.
const SAME: f64 = 0.125;
/// Or by less than this, in bytes per second.
const SAME_BYTES: f64 = 4_000.0 / 8.0;
/// The rate is used for this many round trips; then the policer may be gone.
const USED_ROUNDS: u32 = 48;

/// An interval begins and ends with a loss.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Policer {
    /// Segments per second of the last interval; zero: none.
    rate: f64,
    used: bool,
    sampling: bool,
    rounds: u32,
    began: Time,
    delivered: u64,
    lost: u64,
}

impl Policer {
    /// The policer's rate, if there is a policer.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.used.then_some(self.rate)
    }

    pub(crate) fn reset(&mut self) {
        *self = Policer::default();
    }

    fn begin(&mut self, progress: &Progress) {
        self.began = progress.at;
        self.delivered = progress.total;
        self.lost = progress.lost_total;
        self.rounds = 0;
        self.sampling = true;
    }

    /// Returns whether the cycle of gains must begin again, because the rate is given up.
    pub(crate) fn on_ack(&mut self, progress: &Progress, round_start: bool, in_cycle: bool) -> bool {
        let round = u32::from(round_start);
        if self.used {
            self.rounds += if in_cycle { round } else { 0 };
            let over = in_cycle && round_start && self.rounds >= USED_ROUNDS;
            if over {
                self.reset();
            }
            return over;
        }
        if !self.sampling {
            if progress.losses == 0 {
                return false;
            }
            self.begin(progress);
        }
        if progress.rate.is_some_and(|rate| rate.app_limited) {
            self.reset();
            return false;
        }
        self.rounds += round;
        if self.rounds > 4 * INTERVAL_ROUNDS {
            self.reset();
            return false;
        }
        let arrived = progress.total - self.delivered;
        let lost = progress.lost_total - self.lost;
        let took = progress.at.since(self.began);
        if self.rounds >= INTERVAL_ROUNDS
            && progress.losses > 0
            && arrived > 0
            && lost as f64 >= LOSSES * arrived as f64
            && took >= Span::from_millis(1)
        {
            self.end(progress, arrived as f64 / took.as_secs_f64());
        }
        false
    }

    fn end(&mut self, progress: &Progress, rate: f64) {
        let difference = (rate - self.rate).abs();
        let same = difference <= SAME * self.rate || difference * f64::from(progress.mss) <= SAME_BYTES;
        if self.rate > 0.0 && same {
            self.rate = f64::midpoint(rate, self.rate);
            self.used = true;
            self.rounds = 0;
            return;
        }
        self.rate = rate;
        self.begin(progress);
    }
}
