//! The circuit-build time-out as tor learns it (path-spec 2.4, `circuitstats.c`): a Pareto distribution is fitted to
//! the times of the last thousand circuits, and a circuit that takes longer than the fastest 80 % is given up.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::Span;

/// Circuits remembered (tor: `CBT_NCIRCUITS_TO_OBSERVE`).
const REMEMBERED: usize = 1_000;
/// Nothing is learnt from fewer (tor: `cbtmincircs`).
const LEAST: usize = 100;
/// Before that, a circuit has so long (tor: `cbtinitialtimeout`).
const INITIAL: Span = Span::from_secs(60);
/// No circuit has less (tor: `cbtmintimeout`).
const SHORTEST: Span = Span::from_millis(10);
/// Width of the bins whose fullest give the distribution's least value (tor: `CBT_BIN_WIDTH`), in milliseconds.
const BIN_MS: u64 = 10;
/// So many of the fullest (tor: `cbtnummodes`).
const MODES: usize = 10;
/// The share of circuits that are to be built in time (tor: `cbtquantile`).
const QUANTILE: f64 = 0.8;
/// Of the last so many circuits (tor: `cbtrecentcount`),
const RECENT: usize = 20;
/// if so many were too slow, the network has changed and everything is learnt anew (tor: `cbtmaxtimeouts`).
const TOO_MANY: usize = 18;

/// How long circuits took to build, and what follows from it.
#[derive(Clone, Debug)]
pub struct BuildTimes {
    /// Milliseconds, oldest first; `None` was never built.
    times: VecDeque<Option<u64>>,
    /// Whether the last circuits were too slow.
    recent: VecDeque<bool>,
    timeout: Span,
}

impl Default for BuildTimes {
    fn default() -> BuildTimes {
        BuildTimes { times: VecDeque::new(), recent: VecDeque::new(), timeout: INITIAL }
    }
}

impl BuildTimes {
    /// The time that a circuit has now.
    pub fn timeout(&self) -> Span {
        self.timeout
    }

    /// A circuit has been built in time.
    pub fn built(&mut self, took: Span) {
        self.remember(Some(took.0 / 1_000_000));
        self.note_recent(false);
    }

    /// A circuit has been given up.
    pub fn timed_out(&mut self) {
        self.note_recent(true);
        if self.recent.iter().filter(|slow| **slow).count() >= TOO_MANY && self.times.len() >= LEAST {
            self.times.clear();
            self.recent.clear();
            self.timeout = if self.timeout >= INITIAL { self.timeout * 2 } else { INITIAL };
        }
    }

    /// A circuit that had been given up has been built after all, or (`None`) never was.
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

    /// The fitted distribution's quantile.
    fn quantile(&self, q: f64) -> Option<Span> {
        let least = self.least_ms()?;
        let built = || self.times.iter().flatten().map(|ms| *ms as f64);
        let (longest, count) = (built().fold(0.0, f64::max), self.times.len() as f64);
        let abandoned = self.times.iter().filter(|ms| ms.is_none()).count() as f64;
        // Maximum likelihood, where those never built took at least as long as the slowest (`right censored`).
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

    /// The mean of the most frequent times, which stands for the distribution's least value.
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
    fn nothing_is_learnt_early_and_everything_anew_when_the_network_changes() {
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
