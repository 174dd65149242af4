//! The traffic of a relay, as its descriptor reports it: the observed bandwidth and the bytes per day (dir-spec, `bandwidth` and
//! `write-history`; tor's `bwhist.c`), and when it was overloaded (`overload-general`).
//!
//! Times are seconds since 1970.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tidegate_proto::relay::Handshakes;

/// The observed bandwidth is the highest mean over this many seconds.
const WINDOW: usize = 10;
/// Length of a period, seconds, and number of finished periods that are kept.
const DAY: u64 = 24 * 3600;
const DAYS: usize = 5;
/// Reported bytes are multiples of this, as tor's.
const STEP: u64 = 1024;
/// For how long an overload is reported after it was last seen, seconds (dir-spec, `overload-general`).
const OVERLOADED: u64 = 72 * 3600;
/// The same of the exhaustion of a rate limit (proposal 328, `overload-ratelimits`).
const EXHAUSTED: u64 = 24 * 3600;
/// Fewer handshakes in a period say nothing.
const FEWEST_HANDSHAKES: u64 = 100;

/// A period: the most bytes in any [`WINDOW`], and all bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Period {
    most: u64,
    total: u64,
}

/// The bytes of one direction.
#[derive(Debug)]
struct Direction {
    /// Bytes in the last seconds. The last one is `second`.
    recent: [u64; WINDOW],
    second: u64,
    current: Period,
    ends: u64,
    /// Finished periods, the oldest first.
    finished: VecDeque<Period>,
}

impl Direction {
    fn new(now: u64) -> Direction {
        let (recent, current, finished) = Default::default();
        Direction { recent, second: now, current, ends: now + DAY, finished }
    }

    /// Moves on to second `now`.
    fn advance(&mut self, now: u64) {
        // After this long without bytes only the ends of periods remain to be noted.
        if now.saturating_sub(self.second) > WINDOW as u64 {
            self.recent = [0; WINDOW];
            self.second = now - WINDOW as u64;
            self.end_periods();
        }
        while self.second < now {
            self.second += 1;
            self.recent.rotate_left(1);
            self.recent[WINDOW - 1] = 0;
            self.end_periods();
        }
    }

    fn end_periods(&mut self) {
        while self.second >= self.ends {
            self.finished.push_back(std::mem::take(&mut self.current));
            self.ends += DAY;
            if self.finished.len() > DAYS {
                self.finished.pop_front();
            }
        }
    }

    fn note(&mut self, now: u64, bytes: u64) {
        self.advance(now);
        self.recent[WINDOW - 1] += bytes;
        self.current.total += bytes;
        self.current.most = self.current.most.max(self.recent.iter().sum());
    }

    /// The highest mean, bytes per second.
    fn observed(&self) -> u64 {
        let periods = self.finished.iter().chain([&self.current]);
        periods.map(|period| period.most).max().unwrap_or(0) / WINDOW as u64
    }

    /// The finished periods as a line's arguments; `None` before the first one has ended.
    fn line(&self) -> Option<Line> {
        let totals: Vec<String> =
            self.finished.iter().map(|period| (period.total / STEP * STEP).to_string()).collect();
        let text = format!("({DAY} s) {}", totals.join(","));
        (!totals.is_empty()).then_some((self.ends - DAY, text))
    }
}

/// A direction in a file: the end of the current period; the most bytes in a window and all bytes of each period, the oldest
/// first, the current one last.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredDirection {
    ends: u64,
    periods: Vec<[u64; 2]>,
}

impl From<&Direction> for StoredDirection {
    fn from(direction: &Direction) -> StoredDirection {
        let periods = direction.finished.iter().chain([&direction.current]);
        let periods = periods.map(|period| [period.most, period.total]).collect();
        StoredDirection { ends: direction.ends, periods }
    }
}

impl StoredDirection {
    /// The direction at `now`; `None` if the file is wrong, or of the future.
    fn restore(self, now: u64) -> Option<Direction> {
        let mut periods: VecDeque<Period> =
            self.periods.into_iter().map(|[most, total]| Period { most, total }).collect();
        let current = periods.pop_back()?;
        if periods.len() > DAYS || self.ends > now + DAY || self.ends < DAY {
            return None;
        }
        let (recent, finished) = ([0; WINDOW], periods);
        let mut direction = Direction { recent, second: now, current, ends: self.ends, finished };
        direction.end_periods();
        Some(direction)
    }
}

/// The file of a history: TOML.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    written: StoredDirection,
    read: StoredDirection,
}

/// When the last period of a line ended, and the rest of the line.
pub(crate) type Line = (u64, String);

/// The traffic of a relay in the last days.
#[derive(Debug)]
pub(crate) struct History {
    written: Direction,
    read: Direction,
    /// The counters at the last note.
    totals: (u64, u64),
}

impl History {
    /// Begins at `now`, with these counters of bytes written and read.
    pub(crate) fn new(now: u64, totals: (u64, u64)) -> History {
        History { written: Direction::new(now), read: Direction::new(now), totals }
    }

    /// Continues a history of [`text`](Self::text) at `now`.
    ///
    /// # Errors
    /// If the text is not a history, or lies in the future.
    pub(crate) fn restored(text: &str, now: u64, totals: (u64, u64)) -> Result<History, String> {
        let Stored { written, read } =
            toml::from_str(text).map_err(|cause| format!("is not a history: {}", cause.message()))?;
        let (written, read) = (written.restore(now), read.restore(now));
        let both = written.zip(read).ok_or("is not a history of the past")?;
        Ok(History { written: both.0, read: both.1, totals })
    }

    /// The history as the text of a file.
    pub(crate) fn text(&self) -> String {
        let stored = Stored { written: (&self.written).into(), read: (&self.read).into() };
        let text = toml::to_string(&stored).expect("numbers are TOML");
        format!("# What a relay carried per day, for its descriptor. The relay replaces this file.\n{text}")
    }

    /// Notes the counters at `now`.
    pub(crate) fn note(&mut self, now: u64, totals: (u64, u64)) {
        let before = std::mem::replace(&mut self.totals, totals);
        // The clock may have been set back: then bytes count for the last second.
        let now = now.max(self.written.second);
        self.written.note(now, totals.0 - before.0);
        self.read.note(now, totals.1 - before.1);
    }

    /// The observed bandwidth, bytes per second: the lower one of both directions. The current day counts, too; tor 0.4.9
    /// counts finished days only, and says 0 on its first day.
    pub(crate) fn observed(&self) -> u64 {
        self.written.observed().min(self.read.observed())
    }

    /// The lines `write-history` and `read-history`, if a day has ended.
    pub(crate) fn lines(&self) -> [Option<Line>; 2] {
        [self.written.line(), self.read.line()]
    }
}

/// The last overload of a relay: memory was short, ports for exit streams were, or it refused too many handshakes. Its
/// threads share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Overload(Arc<AtomicU64>);

impl Overload {
    /// Notes an overload at `now`.
    pub(crate) fn note(&self, now: u64) {
        self.0.fetch_max(now, Ordering::Relaxed);
    }

    /// The last one, if there was any.
    pub(crate) fn last(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|last| *last > 0)
    }
}

/// Watches whether the relay refused too many handshakes (tor's `rephist.c`, `overload_onionskin_assessment`).
#[derive(Debug)]
pub(crate) struct HandshakeAssessment {
    begun: u64,
    before: Handshakes,
}

impl HandshakeAssessment {
    /// Starts the first period.
    pub(crate) fn new(now: u64) -> HandshakeAssessment {
        HandshakeAssessment { begun: now, before: Handshakes::default() }
    }

    /// Whether a period ends at `now`, in which the relay refused at least a given share. `parameter` gives the values of a
    /// consensus.
    pub(crate) fn is_overload(
        &mut self,
        now: u64,
        so_far: Handshakes,
        parameter: impl Fn(&str) -> Option<i32>,
    ) -> bool {
        let value = |name, default, most| u64::from(parameter(name).unwrap_or(default).clamp(0, most) as u32);
        // The defaults and limits are those of tor.
        let period = value("overload_onionskin_ntor_period_secs", 6 * 3600, i32::MAX);
        let thousandths_of_percent = value("overload_onionskin_ntor_scale_percent", 1_000, 100_000);
        if now < self.begun.saturating_add(period) {
            return false;
        }
        let (asked, refused) = (so_far.asked - self.before.asked, so_far.refused - self.before.refused);
        (self.begun, self.before) = (now, so_far);
        asked >= FEWEST_HANDSHAKES && refused * 100_000 >= asked * thousandths_of_percent.max(1)
    }
}

/// The hour of `last`, if it is at most `kept` seconds before `now`.
fn hour_of(last: Option<u64>, now: u64, kept: u64) -> Option<u64> {
    last.filter(|last| now.saturating_sub(*last) < kept).map(|last| last / 3600 * 3600)
}

/// The hour of an overload at `last` that is still to be reported at `now`.
pub(crate) fn reported_overload(last: Option<u64>, now: u64) -> Option<u64> {
    hour_of(last, now, OVERLOADED)
}

/// The same of the exhaustion of a rate limit.
pub(crate) fn reported_exhaustion(last: Option<u64>, now: u64) -> Option<u64> {
    hour_of(last, now, EXHAUSTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes bytes in each of these seconds, in both directions.
    fn carry(history: &mut History, seconds: std::ops::Range<u64>, bytes: u64) {
        for second in seconds {
            let (written, read) = history.totals;
            history.note(second, (written + bytes, read + bytes));
        }
    }

    #[test]
    fn the_observed_bandwidth_is_the_highest_mean_of_ten_seconds() {
        let mut history = History::new(1000, (0, 0));
        assert_eq!(history.observed(), 0, "nothing is claimed before traffic");
        carry(&mut history, 1000..1005, 1000);
        assert_eq!(history.observed(), 500);
        carry(&mut history, 1005..1030, 1000);
        assert_eq!(history.observed(), 1000);
        // A pause, and then a peak of one second.
        carry(&mut history, 1100..1101, 20_000);
        assert_eq!(history.observed(), 2000);
        // Reading only does not count.
        let (written, read) = history.totals;
        history.note(1200, (written, read + 1_000_000));
        assert_eq!(history.observed(), 2000);
    }

    #[test]
    fn peaks_count_for_five_days_and_the_current_one() {
        let mut history = History::new(0, (0, 0));
        carry(&mut history, 0..1, 10_000);
        for day in 1..=5 {
            carry(&mut history, day * DAY..day * DAY + 1, 100);
            assert_eq!(history.observed(), 1000, "day {day}");
        }
        carry(&mut history, 6 * DAY..6 * DAY + 1, 100);
        assert_eq!(history.observed(), 10);
        assert!(history.written.finished.len() == DAYS);
    }

    #[test]
    fn lines_name_the_finished_days_in_whole_kilobytes() {
        let mut history = History::new(7, (0, 0));
        carry(&mut history, 7..10, 1000);
        assert_eq!(history.lines(), [None, None]);
        carry(&mut history, 7 + DAY..8 + DAY, 5000);
        carry(&mut history, 7 + 3 * DAY..8 + 3 * DAY, 1);
        let line = Some((7 + 3 * DAY, "(86400 s) 2048,4096,0".to_owned()));
        assert_eq!(history.lines(), [line.clone(), line]);
    }

    #[test]
    fn a_history_continues_after_a_restart() {
        let mut history = History::new(7 * DAY, (0, 0));
        carry(&mut history, 7 * DAY..7 * DAY + 1, 10_000);
        carry(&mut history, 8 * DAY..8 * DAY + 1, 20);
        let text = history.text();
        let again = |now| History::restored(&text, now, (5, 5));
        let restored = again(8 * DAY + 9).unwrap();
        assert_eq!((restored.observed(), restored.lines()), (history.observed(), history.lines()));
        assert_eq!(restored.text(), text);
        let later = again(13 * DAY).unwrap();
        assert_eq!((later.observed(), later.written.finished.len()), (2, DAYS), "the peak is too old");
        for wrong in
            ["", "written = 1", &text.replace("10000", "-1"), &text.replace("periods = [", "periods = 5 #")]
        {
            assert!(History::restored(wrong, 8 * DAY, (0, 0)).is_err(), "{wrong}");
        }
        assert!(again(6 * DAY).unwrap_err().contains("of the past"));
    }

    #[test]
    fn a_clock_that_is_set_back_loses_no_bytes() {
        let mut history = History::new(1000, (0, 0));
        carry(&mut history, 1000..1002, 1000);
        carry(&mut history, 500..502, 1000);
        assert_eq!(history.observed(), 400);
    }

    #[test]
    fn an_overload_is_reported_by_the_hour_for_three_days() {
        let last = Some(100 * 3600 + 59);
        assert_eq!(reported_overload(last, 100 * 3600 + 60), Some(100 * 3600));
        assert_eq!(reported_overload(last, 172 * 3600 + 58), Some(100 * 3600));
        assert_eq!(reported_overload(last, 172 * 3600 + 59), None);
        assert_eq!(reported_overload(None, 5), None);
        assert_eq!(reported_exhaustion(last, 125 * 3600), None);
    }

    #[test]
    fn a_period_with_many_refused_handshakes_is_an_overload() {
        let mut assessment = HandshakeAssessment::new(1_000);
        let mut at = |now, asked, refused, percent: Option<i32>| {
            let parameter = |name: &str| percent.filter(|_| name.ends_with("percent"));
            assessment.is_overload(now, Handshakes { asked, refused }, parameter)
        };
        assert!(!at(1_000 + 6 * 3600 - 1, 1_000, 1_000, None), "the period has not ended");
        assert!(at(1_000 + 6 * 3600, 1_000, 10, None), "1 %");
        assert!(!at(1_000 + 12 * 3600, 2_000, 19, None), "0.9 %");
        assert!(at(1_000 + 18 * 3600, 3_000, 24, Some(500)), "the consensus says 0.5 %");
        assert!(!at(1_000 + 24 * 3600, 3_099, 123, None), "99 handshakes");
        assert!(!at(1_000 + 30 * 3600, 4_000, 123, Some(0)), "none refused");
    }
}
