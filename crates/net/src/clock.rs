//! The clocks: a monotonic one for machines, and the calendar for files.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tidegate_control::units::{Span, Time};
pub use tidegate_kernel::unix_s as unix;

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "the edge of the tool: machines get what is read here")]
    *START.get_or_init(Instant::now)
}

/// The monotonic time since the first call in this process.
pub fn now() -> Time {
    let start = start();
    Time(start.elapsed().as_nanos() as u64)
}

/// The same for crates that take the time from their caller.
#[cfg(feature = "moq")]
pub(crate) fn instant() -> Instant {
    start() + Duration::from_nanos(now().0)
}

/// Waits until `time`; forever if it is [`Time::NEVER`].
pub async fn until(time: Time) {
    match start().checked_add(Duration::from_nanos(time.0)) {
        Some(instant) if time != Time::NEVER => tokio::time::sleep_until(instant.into()).await,
        _ => std::future::pending().await,
    }
}

/// Calendar time that ignores jumps of the system clock beyond a limit until the clock is back.
#[derive(Debug)]
pub struct Calendar {
    limit_s: u64,
    /// The last accepted reading of the calendar, and its monotonic time.
    accepted: Cell<(u64, Time)>,
    refused: Cell<Option<u64>>,
}

impl Calendar {
    /// Accepts the system clock as it is now.
    pub fn new(limit: Span) -> Calendar {
        let limit_s = limit.0 / 1_000_000_000;
        Calendar { limit_s, accepted: Cell::new((unix(), now())), refused: Cell::new(None) }
    }

    /// Seconds since 1970.
    pub fn unix(&self) -> u64 {
        self.at(unix(), now())
    }

    /// The reading of the system clock, if it is rejected.
    pub fn refused(&self) -> Option<u64> {
        self.refused.get()
    }

    fn at(&self, reading: u64, now: Time) -> u64 {
        let (last, then) = self.accepted.get();
        let expected = last + now.since(then).0 / 1_000_000_000;
        if reading.abs_diff(expected) > self.limit_s {
            self.refused.set(Some(reading));
            return expected;
        }
        self.refused.set(None);
        self.accepted.set((reading, now));
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_clock_is_ignored() {
        let calendar = Calendar {
            limit_s: 86_400,
            accepted: Cell::new((1_000_000, Time::ZERO)),
            refused: Cell::new(None),
        };
        let at = |seconds| Time::ZERO + Span::from_secs(seconds);
        assert_eq!(calendar.at(1_000_010, at(10)), 1_000_010);
        assert_eq!(calendar.at(400 * 86_400 + 1_000_011, at(11)), 1_000_011);
        assert_eq!(calendar.refused(), Some(400 * 86_400 + 1_000_011));
        assert_eq!(calendar.at(0, at(14)), 1_000_014, "nor into the past");
        // The clock is back; then a correction by an hour.
        assert_eq!(calendar.at(1_000_015, at(15)), 1_000_015);
        assert_eq!(calendar.refused(), None);
        assert_eq!(calendar.at(1_003_616, at(16)), 1_003_616);
    }
}
