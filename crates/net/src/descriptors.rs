//! Says that no file descriptor is free: one line a minute for the whole process, because its threads share the limit.

use std::fs::File;
use std::io;
use std::sync::Mutex;

use tidegate_control::units::{Span, Time};

use crate::{clock, os};

/// Time between two lines. Strangers decide how many connections fail.
const PERIOD: Span = Span::from_secs(60);

static SAID: Mutex<Said> = Mutex::new(Said { next: Time::ZERO, failures: 0 });

/// The state of the log line.
struct Said {
    /// When the next line may be written.
    next: Time,
    /// Failures since the last line.
    failures: u64,
}

impl Said {
    /// Counts a failure. Returns the number of failures if a line is due.
    fn count(&mut self, now: Time) -> Option<u64> {
        self.failures += 1;
        if now < self.next {
            return None;
        }
        self.next = now + PERIOD;
        Some(std::mem::take(&mut self.failures))
    }
}

/// Logs an error that says so. Others are the caller's to report.
pub(crate) fn note(error: &io::Error) {
    let Some(cause) = os::descriptors_exhausted(error) else { return };
    let due = SAID.lock().expect("nobody panics while counting").count(clock::now());
    if let Some(failures) = due {
        tracing::warn!(failures, cause, "no free file descriptor");
    }
}

/// Logs it if it is the likely cause of an error that does not tell, such as a resolver's.
pub(crate) fn check() {
    if let Err(error) = File::open("/dev/null") {
        note(&error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_minute_counts_the_failures() {
        let mut said = Said { next: Time::ZERO, failures: 0 };
        let at = |seconds| Time::ZERO + Span::from_secs(seconds);
        let lines: Vec<_> = (0..120).filter_map(|second| said.count(at(second))).collect();
        assert_eq!(lines, [1, 60]);
    }
}
