//! The distance of simulated downloads from measured ones, as one number.
//!
//! The score is the mean of |ln(ours / measured)| over the 25th, 50th, 75th and 95th percentile of several times: to
//! the last byte of 50 KiB, 1 MiB and 5 MiB, of circuit builds, and of round trips over circuits. It leaves out
//! downloads that exceed the timeout of Tor's own clients, on both sides, and quantities with fewer than 20 simulated
//! or measured values. A score of 0.16 is a factor of 1.17.

use serde_json::{Map, Value, json};
use tidegate_data::torperf::{Measured, SIZES, quantile};

use crate::metrics::histogram::Histogram;
use crate::runs::Run;
use crate::scenario::Scenario;
use crate::statistics::Estimate;

/// The percentiles that are compared.
pub const QUANTILES: [(&str, f64); 4] = [("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)];

/// Smallest sample with a meaningful 95th percentile. An OnionPerf analysis of one day has five downloads.
pub const LEAST: usize = 20;

/// One quantity at the [`QUANTILES`], in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// `50KiB`, `circuit-build`, ...
    pub name: &'static str,
    /// Simulated values.
    pub ours: [f64; 4],
    /// Measured values.
    pub measured: [f64; 4],
    /// Numbers of simulated and measured times.
    pub n: [usize; 2],
}

/// A simulation compared with measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The quantities that both have.
    pub compared: Vec<Compared>,
    /// The quantities with too few values, with their numbers of simulated and measured times.
    pub left_out: Vec<(&'static str, [usize; 2])>,
}

impl Score {
    /// The mean absolute error of the logarithms; `None` if no quantity could be compared.
    pub fn error(&self) -> Option<f64> {
        Score::mean(self.compared.iter())
    }

    /// The error of downloads alone, which published simulations report.
    pub fn downloads(&self) -> Option<f64> {
        Score::mean(self.compared.iter().filter(|compared| compared.name.ends_with("iB")))
    }

    /// Mean errors with their interval between networks: of all quantities, and of downloads alone.
    pub fn errors(networks: &[Score]) -> [Estimate; 2] {
        [Score::error, Score::downloads].map(|error| {
            Estimate::of(&networks.iter().map(|score| error(score).unwrap_or(f64::NAN)).collect::<Vec<_>>())
        })
    }

    fn mean<'a>(compared: impl Iterator<Item = &'a Compared>) -> Option<f64> {
        let errors: Vec<f64> = compared
            .flat_map(|compared| compared.ours.iter().zip(&compared.measured))
            .map(|(ours, measured)| libm::log(ours / measured).abs())
            .collect();
        (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
    }

    /// The score as JSON, for `--json`.
    pub fn document(&self) -> Value {
        let of = |values: &[f64; 4]| -> Value {
            QUANTILES
                .iter()
                .zip(values)
                .map(|((label, _), value)| ((*label).to_owned(), json!(value)))
                .collect()
        };
        let compared: Map<String, Value> = (self.compared.iter())
            .map(|c| {
                let (ours, measured) = (of(&c.ours), of(&c.measured));
                let document =
                    json!({ "ours_s": ours, "measured_s": measured, "n_ours": c.n[0], "n_measured": c.n[1] });
                (c.name.to_owned(), document)
            })
            .collect();
        let few = |(name, [ours, measured]): &(&'static str, [usize; 2])| {
            ((*name).to_owned(), json!({ "n_ours": ours, "n_measured": measured }))
        };
        let left_out: Map<String, Value> = self.left_out.iter().map(few).collect();
        json!({ "error": self.error(), "error_downloads": self.downloads(), "compared": compared,
            "left_out": left_out })
    }
}

/// Compares the pooled runs of one system with measurements.
pub(crate) fn score(runs: &[&Run], measured: &Measured, scenario: &Scenario) -> Score {
    let (mut compared, mut left_out) = (Vec::new(), Vec::new());
    let mut compare = |name, ours: Histogram, measured: &[f64]| {
        // A small sample would give arbitrary tails.
        let n = [ours.total() as usize, measured.len()];
        if n.into_iter().any(|n| n < LEAST) {
            left_out.push((name, n));
            return;
        }
        let ours = QUANTILES.map(|(_, q)| ours.quantile(q));
        let measured = QUANTILES.map(|(_, q)| quantile(measured, q));
        if let ([Some(a), Some(b), Some(c), Some(d)], [Some(e), Some(f), Some(g), Some(h)]) = (ours, measured)
            && [a, e].iter().all(|least| *least > 0.0)
        {
            compared.push(Compared { name, ours: [a, b, c, d], measured: [e, f, g, h], n });
        }
    };
    let class = |run: &Run, bytes: u64, pick: fn(&crate::metrics::transfers::Class) -> &Histogram| {
        let name = scenario.benchmark_class(bytes);
        let found = run.metrics.transfers.classes.iter().find(|class| Some(&class.name) == name.as_ref());
        found.map_or_else(Histogram::default, |class| pick(class).clone())
    };
    let merged = |of: &dyn Fn(&Run) -> Histogram| {
        let mut all = Histogram::default();
        runs.iter().for_each(|run| all.merge(&of(run)));
        all
    };
    for (bytes, name) in SIZES.into_iter().zip(["50KiB", "1MiB", "5MiB"]) {
        if let Some(download) = measured.downloads.iter().find(|download| download.bytes == bytes) {
            compare(name, merged(&|run| class(run, bytes, |class| &class.last)), &download.ttlb_s);
        }
    }
    let builds =
        |run: &Run| run.metrics.circuit_builds.get(scenario.benchmark()).cloned().unwrap_or_default();
    compare("circuit-build", merged(&builds), &measured.circuit_build_s);
    // Only benchmark downloads are comparable with OnionPerf's round trips.
    let round_trips = |run: &Run| {
        let mut all = Histogram::default();
        for bytes in SIZES {
            all.merge(&class(run, bytes, |class| &class.round_trip));
        }
        all
    };
    compare("round-trip", merged(&round_trips), &measured.round_trip_s);
    Score { compared, left_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_mean_distance_of_logarithms() {
        let compared = |name, factor: f64| Compared {
            name,
            ours: [factor, 2.0 * factor, 3.0 * factor, 4.0 * factor],
            measured: [1.0, 2.0, 3.0, 4.0],
            n: [20, 20],
        };
        let of = |compared| Score { compared, left_out: Vec::new() };
        let score = of(vec![compared("50KiB", 2.0), compared("round-trip", 0.5)]);
        assert!((score.error().unwrap() - libm::log(2.0)).abs() < 1e-12, "too slow counts as too fast does");
        let close = of(vec![compared("5MiB", 1.0), compared("round-trip", 0.5)]);
        assert_eq!(close.downloads(), Some(0.0));
        assert_eq!(of(vec![]).error(), None);
    }
}
