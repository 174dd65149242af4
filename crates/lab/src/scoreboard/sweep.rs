//! Curves over scenarios that differ in one number.
//!
//! ```toml
//! [parameters.scenarios]
//! n100 = { file = "../random.toml", overrides = ["..."] }
//! n500 = { file = "../random.toml", overrides = ["..."] }
//! [parameters.sweep]
//! x = "circuits"
//! values = { n100 = 100, n500 = 500 }
//! quantities = ["latency_from_departure_mean_s"]
//! trades = [["control.message_bytes", "latency_from_departure_mean_s"]]
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Curve, Experiment, Figure};
use crate::input::InputError;
use crate::scenario::Scenario;
use crate::statistics::Estimate;

/// A scenario of an experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ScenarioEntry {
    /// A file.
    File(String),
    /// A file with its own overrides, applied after the common ones.
    Varied {
        /// The file.
        file: String,
        /// TOML texts.
        overrides: Vec<String>,
        /// Number of seeds; default: the experiment's.
        seeds: Option<u32>,
    },
}

impl ScenarioEntry {
    /// Its own number of seeds, if given.
    pub(crate) fn seeds(&self) -> Option<u32> {
        match self {
            ScenarioEntry::File(_) => None,
            ScenarioEntry::Varied { seeds, .. } => *seeds,
        }
    }

    /// Reads the scenario. Paths are relative to the experiment's folder; Overrides are [substituted](Experiment::substitute).
    pub(crate) fn load(&self, experiment: &Experiment, overrides: &[String]) -> Result<Scenario, InputError> {
        let (file, own) = match self {
            ScenarioEntry::File(file) => (file, &[][..]),
            ScenarioEntry::Varied { file, overrides, .. } => (file, &overrides[..]),
        };
        let overrides: Vec<String> =
            overrides.iter().chain(own).map(|text| experiment.substitute(text)).collect();
        Scenario::load(&experiment.folder.join(file), &overrides)
    }
}

/// Figures with one curve per system over all scenarios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Sweep {
    /// Label of the number, with its unit.
    pub x: String,
    /// The number for each scenario.
    pub values: BTreeMap<String, f64>,
    /// Metrics with a figure each.
    #[serde(default)]
    pub quantities: Vec<String>,
    /// Pairs of metrics with a figure each: the second over the first, one point per scenario.
    #[serde(default)]
    pub trades: Vec<[String; 2]>,
}

impl Sweep {
    /// A figure per quantity, then one per trade-off; curves are means over seeds.
    pub(crate) fn figures(&self, measured: &BTreeMap<String, Vec<f64>>) -> Vec<Figure> {
        let quantities = self.quantities.iter().map(|quantity| Figure {
            title: quantity.clone(),
            x: self.x.clone(),
            y: quantity.clone(),
            curves: self.curves(measured, quantity, |scenario, _| Some(self.values[scenario])),
        });
        let trades = self.trades.iter().map(|[x, y]| Figure {
            title: format!("{y} over {x}"),
            x: x.clone(),
            y: y.clone(),
            curves: self.curves(measured, y, |scenario, system| {
                measured.get(&format!("{scenario}.{system}.{x}")).map(|values| Estimate::of(values).mean)
            }),
        });
        quantities.chain(trades).collect()
    }

    /// One curve per system of a metric over `x`, a function of scenario and system.
    fn curves(
        &self,
        measured: &BTreeMap<String, Vec<f64>>,
        metric: &str,
        x: impl Fn(&str, &str) -> Option<f64>,
    ) -> Vec<Curve> {
        let mut curves: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for scenario in self.values.keys() {
            for (name, values) in measured {
                let system = name
                    // Names are `<scenario>.<system>.<metric>`, and metrics contain dots.
                    .strip_prefix(scenario.as_str())
                    .and_then(|rest| rest.strip_prefix('.'))
                    .and_then(|rest| rest.strip_suffix(metric))
                    .and_then(|rest| rest.strip_suffix('.'));
                if let Some((system, x)) = system.and_then(|system| Some((system, x(scenario, system)?))) {
                    curves.entry(system).or_default().push((x, Estimate::of(values).mean));
                }
            }
        }
        let curve = |(name, mut points): (&str, Vec<(f64, f64)>)| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve { name: name.to_owned(), points }
        };
        curves.into_iter().map(curve).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_ordered_and_means() {
        let sweep = Sweep {
            x: "circuits".into(),
            values: [("n1000".to_owned(), 1000.0), ("n10".to_owned(), 10.0)].into(),
            quantities: vec!["latency".into()],
            trades: vec![["cost".into(), "latency".into()]],
        };
        let measured = [
            ("n10.vanilla.latency", vec![1.0, 3.0]),
            ("n10.vanilla.latency.other", vec![9.0]),
            ("n1000.vanilla.latency", vec![5.0]),
            ("n1000.pctcp.latency", vec![4.0]),
            ("n10.vanilla.cost", vec![8.0]),
            ("n1000.vanilla.cost", vec![7.0]),
        ];
        let measured = measured.map(|(name, values)| (name.to_owned(), values)).into();
        let figures = sweep.figures(&measured);
        let points: Vec<_> = figures[0].curves.iter().map(|curve| (&*curve.name, &*curve.points)).collect();
        assert_eq!(points, [("pctcp", &[(1000.0, 4.0)][..]), ("vanilla", &[(10.0, 2.0), (1000.0, 5.0)])]);
        let trades: Vec<_> = figures[1].curves.iter().map(|curve| (&*curve.name, &*curve.points)).collect();
        assert_eq!(trades, [("vanilla", &[(7.0, 5.0), (8.0, 2.0)][..])], "pctcp's cost is not known");
    }
}
