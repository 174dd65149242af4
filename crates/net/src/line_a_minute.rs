//! A log line that others can cause as often as they like, written at most once a minute.

use tidegate_control::units::{Span, Time};

/// Time between two lines.
const PERIOD: Span = Span::from_secs(60);

/// Says when the line may be written again.
#[derive(Debug)]
pub(crate) struct LineAMinute {
    next: Time,
    /// Events since the last line.
    events: u64,
}

impl LineAMinute {
    pub(crate) const fn new() -> LineAMinute {
        LineAMinute { next: Time::ZERO, events: 0 }
    }

    /// Counts an event. Returns the number of events since the last line if one is due.
    pub(crate) fn count(&mut self, now: Time) -> Option<u64> {
        self.events += 1;
        if now < self.next {
            return None;
        }
        self.next = now + PERIOD;
        Some(std::mem::take(&mut self.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_minute_counts_the_failures() {
        let mut said = LineAMinute::new();
        let at = |seconds| Time::ZERO + Span::from_secs(seconds);
        let lines: Vec<_> = (0..120).filter_map(|second| said.count(at(second))).collect();
        assert_eq!(lines, [1, 60]);
    }
}
