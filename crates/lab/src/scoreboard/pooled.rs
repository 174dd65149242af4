//! Ratios of two systems, pooled over the scenarios of a group.
//!
//! ```toml
//! [parameters.pooled]
//! ratios = { vanilla = ["vanilla-train", "vanilla-packet"] }
//! metrics = ["latency_p50_s"]
//! groups = ["lossless", "percent"]   # of the scenarios lossless-near, lossless-far, ..
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Measured;

/// Pairs of systems, metrics and groups of scenarios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Pooled {
    /// Name of each ratio: the system above and the one below.
    pub ratios: BTreeMap<String, [String; 2]>,
    /// The metrics.
    pub metrics: Vec<String>,
    /// Prefixes, before a dash, of the names of the scenarios of each group.
    pub groups: Vec<String>,
}

impl Pooled {
    /// Adds `<group>.<ratio>.<metric>`: per seed, the geometric mean over the group's scenarios. The arithmetic mean of
    /// quotients is above 1 even if both systems draw from one distribution. A seed that lacks a value in one of the
    /// scenarios has no value.
    pub(super) fn find(&self, measured: &mut Measured) {
        let mut pooled = BTreeMap::new();
        for group in &self.groups {
            let within = format!("{group}-");
            let names = measured.values.keys().filter_map(|quantity| quantity.split_once('.'));
            let mut scenarios: Vec<&str> =
                names.map(|(scenario, _)| scenario).filter(|name| name.starts_with(&within)).collect();
            scenarios.dedup();
            for (ratio, systems) in &self.ratios {
                for metric in &self.metrics {
                    if let Some(values) = geometric_mean(&measured.values, &scenarios, systems, metric) {
                        pooled.insert(format!("{group}.{ratio}.{metric}"), values);
                    }
                }
            }
        }
        measured.values.extend(pooled);
    }
}

/// Per seed, the geometric mean of the ratio over scenarios; `None` if a scenario or system never has the metric.
fn geometric_mean(
    values: &BTreeMap<String, Vec<f64>>,
    scenarios: &[&str],
    [above, below]: &[String; 2],
    metric: &str,
) -> Option<Vec<f64>> {
    let of = |scenario: &str, system: &str| values.get(&format!("{scenario}.{system}.{metric}"));
    let mut logarithms: Vec<f64> = Vec::new();
    for scenario in scenarios {
        let (above, below) = (of(scenario, above)?, of(scenario, below)?);
        logarithms.resize(above.len().max(logarithms.len()), 0.0);
        for (seed, sum) in logarithms.iter_mut().enumerate() {
            let value = |of: &[f64]| of.get(seed).copied().unwrap_or(f64::NAN);
            *sum += libm::log(value(above) / value(below));
        }
    }
    let mean = |sum: f64| libm::exp(sum / scenarios.len() as f64);
    (!scenarios.is_empty()).then(|| logarithms.into_iter().map(mean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(quantities: &[(&str, [f64; 2])]) -> BTreeMap<String, Vec<f64>> {
        let mut measured = Measured::default();
        for (name, values) in quantities {
            measured.values.insert((*name).into(), values.to_vec());
        }
        let systems = ["new", "old"].map(str::to_owned);
        let pooled = Pooled {
            ratios: [("change".to_owned(), systems)].into(),
            metrics: vec!["m".into()],
            groups: vec!["p1".into()],
        };
        pooled.find(&mut measured);
        measured.values.retain(|name, _| name.contains("change"));
        measured.values
    }

    const FIRST: [(&str, [f64; 2]); 3] =
        [("p1-a.new.m", [4.0, 2.0]), ("p1-a.old.m", [1.0, 2.0]), ("p10-a.new.m", [9.0, 9.0])];

    #[test]
    fn a_ratio_is_pooled_over_the_scenarios_of_its_group() {
        let all = [&FIRST[..], &[("p1-b.new.m", [1.0, 3.0]), ("p1-b.old.m", [4.0, 3.0])]].concat();
        let values = pooled(&all);
        assert_eq!(values.keys().collect::<Vec<_>>(), ["p1.change.m"]);
        let close = |value: f64, wanted: f64| (value - wanted).abs() < 1e-12;
        assert!(close(values["p1.change.m"][0], 1.0) && close(values["p1.change.m"][1], 1.0), "{values:?}");
    }

    #[test]
    fn a_seed_without_a_value_in_one_scenario_has_none() {
        let all = [&FIRST[..], &[("p1-b.new.m", [1.0, f64::NAN]), ("p1-b.old.m", [4.0, 3.0])]].concat();
        let values = pooled(&all);
        assert!(values["p1.change.m"][0].is_finite() && values["p1.change.m"][1].is_nan(), "{values:?}");
        assert!(pooled(&[&FIRST[..], &[("p1-b.old.m", [4.0, 3.0])]].concat()).is_empty());
    }
}
