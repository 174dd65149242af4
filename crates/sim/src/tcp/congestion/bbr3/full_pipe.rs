//! Whether more speed still brings more deliveries.

/// The pipe is full when the delivery rate has grown by less than a quarter
const GROWTH: f64 = 1.25;
/// in each of three round trips.
const ROUNDS: u8 = 3;

/// The estimator of Startup and of probes (`CheckFullBWReached`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullPipe {
    /// Delivery rate to be exceeded, segments per second.
    rate: f64,
    rounds: u8,
    /// The pipe is full.
    pub now: bool,
}

impl FullPipe {
    /// Begins again with this delivery rate.
    pub(crate) fn from(rate: f64) -> FullPipe {
        FullPipe { rate, rounds: 0, now: false }
    }

    /// A round trip ends with this delivery rate, which the application did not limit.
    pub(crate) fn round(&mut self, rate: f64) {
        if self.now {
            return;
        }
        if rate >= self.rate * GROWTH {
            *self = FullPipe::from(rate);
            return;
        }
        self.rounds += 1;
        self.now = self.rounds >= ROUNDS;
    }
}
