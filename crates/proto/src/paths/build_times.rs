//! Circuit-build timeout as tor learns it (path-spec 2.4, `circuitstats.c`): the 80 % quantile of a Pareto distribution
//! fitted to the build times of the last 1000 circuits.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::Span;

/// Circuits remembered (tor: `CBT_NCIRCUITS_TO_OBSERVE`).
const REMEMBERED: usize = 1_000;
/// Minimum number of circuits to learn from (tor: `cbtmincircs`).
const LEAST: usize = 100;
/// Timeout before that (tor: `cbtinitialtimeout`).
const INITIAL: Span = Span::from_secs(60);
/// Minimum timeout (tor: `cbtmintimeout`).
const SHORTEST: Span = Span::from_millis(10);
/// Width of histogram bins in milliseconds (tor: `CBT_BIN_WIDTH`).
const BIN_MS: u64 = 10;
/// Number of fullest bins that estimate the distribution's minimum (tor: `cbtnummodes`).
const MODES: usize = 10;
/// Share of circuits that the timeout lets finish (tor: `cbtquantile`).
const QUANTILE: f64 = 0.8;
/// Number of recent circuits in which timeouts are counted (tor: `cbtrecentcount`).
const RECENT: usize = 20;
/// Timeouts among them that show a changed network; learning restarts (tor: `cbtmaxtimeouts`).
const TOO_MANY: usize = 18;

/// Build times of circuits, and the timeout that follows.
#[derive(Clone, Debug)]
pub struct BuildTimes {
    /// Milliseconds, oldest first; `None` for a circuit that was never built.
    times: VecDeque<Option<u64>>,
    /// Whether each recent circuit timed out.
    recent: VecDeque<bool>,
    timeout: Span,
}

impl Default for BuildTimes {
    fn default() -> BuildTimes {
        BuildTimes { times: VecDeque::new(), recent: VecDeque::new(), timeout: INITIAL }
    }
}

impl BuildTimes {
    /// The current timeout.
    pub fn timeout(&self) -> Span {
        self.timeout
    }

    /// Notes a circuit that was built in time.
    pub fn built(&mut self, took: Span) {
        self.remember(Some(took.0 / 1_000_000));
        self.note_recent(false);
    }

    /// Notes a circuit that timed out.
    pub fn timed_out(&mut self) {
        self.note_recent(true);
        if self.recent.iter().filter(|slow| **slow).count() >= TOO_MANY && self.times.len() >= LEAST {
            self.times.clear();
            self.recent.clear();
            self.timeout = if self.timeout >= INITIAL { self.timeout * 2 } else { INITIAL };
        }
    }

    /// Notes the late build time of a circuit that timed out; `None` if it was never built.
    pub fn late(&mut self, took: Option<Span>) {
        self.remember(took.map(|took| took.0 / 1_000_000));
    }

    fn note_recent(&mut self, slow: bool) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(slow);
    }

    fn remember(&mut self, ms: Option<u64>) {
        if self.times.len() == REMEMBERED {
            self.times.pop_front();
        }
        self.times.push_back(ms);
        if self.times.len() >= LEAST
            && let Some(timeout) = self.quantile(QUANTILE)
        {
            self.timeout = timeout.max(SHORTEST);
        }
    }

    /// A quantile of the fitted distribution.
    fn quantile(&self, q: f64) -> Option<Span> {
        let least = self.least_ms()?;
        let built = || self.times.iter().flatten().map(|ms| *ms as f64);
        let (longest, count) = (built().fold(0.0, f64::max), self.times.len() as f64);
        let abandoned = self.times.iter().filter(|ms| ms.is_none()).count() as f64;
        // Maximum likelihood. Circuits that were never built count as right-censored at the slowest time.
        let logs: f64 = built().map(|ms| libm::log(ms.max(least))).sum();
        let spread = logs + abandoned * libm::log(longest.max(least)) - count * libm::log(least);
        let ms = if spread > 0.0 {
            let alpha = (count - abandoned) / spread;
            least / libm::pow(1.0 - q, 1.0 / alpha)
        } else {
            least
        };
        ms.is_finite().then(|| Span::from_secs_f64(ms / 1e3))
    }

    /// The mean of the most frequent times, which estimates the distribution's minimum.
    fn least_ms(&self) -> Option<f64> {
        let mut bins: BTreeMap<u64, u64> = BTreeMap::new();
        for ms in self.times.iter().flatten() {
            *bins.entry(ms / BIN_MS).or_default() += 1;
        }
        let mut bins: Vec<(u64, u64)> = bins.into_iter().collect();
        bins.sort_by_key(|(bin, count)| (std::cmp::Reverse(*count), *bin));
        bins.truncate(MODES);
        let total: u64 = bins.iter().map(|(_, count)| count).sum();
        let middle = |bin: u64| bin as f64 * BIN_MS as f64 + BIN_MS as f64 / 2.0;
        let sum: f64 = bins.iter().map(|(bin, count)| middle(*bin) * *count as f64).sum();
        (total > 0).then(|| sum / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    #[test]
    fn the_quantile_of_a_pareto_distribution_is_found() {
        let mut random = Seed::root(7).random();
        let (least, alpha) = (500.0, 2.0);
        let mut times = BuildTimes::default();
        for _ in 0..REMEMBERED {
            let ms = least / libm::pow(1.0 - random.unit(), 1.0 / alpha);
            times.built(Span::from_secs_f64(ms / 1e3));
        }
        // The quantile of the true distribution is 1118 ms; the modes lie a little above the least value.
        let learnt = times.timeout().as_secs_f64();
        assert!((learnt / 1.118 - 1.0).abs() < 0.1, "{learnt}");
    }

    #[test]
    fn timeouts_need_enough_samples_and_reset_when_the_network_changes() {
        let mut times = BuildTimes::default();
        for number in 0..LEAST {
            assert_eq!(times.timeout(), INITIAL, "{number}");
            times.built(Span::from_millis(300 + number as u64));
        }
        assert!(times.timeout() < Span::from_secs(1));
        for _ in 0..TOO_MANY {
            times.timed_out();
        }
        assert_eq!(times.timeout(), INITIAL);
    }

    #[test]
    fn circuits_never_built_make_the_time_longer() {
        let learnt = |never: usize| {
            let mut times = BuildTimes::default();
            for number in 0..200 {
                times.built(Span::from_millis(300 + number * 7 % 400));
            }
            (0..never).for_each(|_| times.late(None));
            times.timeout()
        };
        assert!(learnt(40) > learnt(0));
    }
}
