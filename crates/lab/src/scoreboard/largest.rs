//! The largest value of a metric over several scenarios, such as the most effective of many attacks.
//!
//! ```toml
//! [parameters.largest]
//! metrics = ["balance.advantage"]
//! groups = ["percent-10", "percent-1"]   # of the scenarios percent-10-inflate, percent-10-frame, ..
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Measured;
use crate::number::format_number;
use crate::statistics::Estimate;

/// Metrics and groups of scenarios.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Largest {
    /// The metrics.
    pub metrics: Vec<String>,
    /// Prefixes, before a dash, of the names of the scenarios of each group.
    pub groups: Vec<String>,
}

impl Largest {
    /// Adds `<group>.<system>.<metric>`, the values of the scenario with the largest mean over seeds, and a note that
    /// names it.
    pub(super) fn find(&self, measured: &mut Measured) {
        for (group, metric) in self.groups.iter().flat_map(|g| self.metrics.iter().map(move |m| (g, m))) {
            let mut found: BTreeMap<&str, (f64, &str, &[f64])> = BTreeMap::new();
            for (quantity, values) in &measured.values {
                let Some((scenario, system)) = (quantity.strip_prefix(group.as_str())).and_then(|rest| {
                    // Names are `<group>-<scenario>.<system>.<metric>`.
                    rest.strip_prefix('-')?.strip_suffix(metric)?.strip_suffix('.')?.split_once('.')
                }) else {
                    continue;
                };
                let mean = Estimate::of(values).mean;
                if found.get(system).is_none_or(|(most, ..)| mean > *most) {
                    found.insert(system, (mean, scenario, values));
                }
            }
            let said: Vec<String> = found
                .iter()
                .map(|(system, (mean, by, _))| format!("{system} {} by {by}", format_number(*mean)))
                .collect();
            let note = format!("{group}, the largest {metric}: {}.", said.join(", "));
            let values: Vec<(String, Vec<f64>)> = (found.into_iter())
                .map(|(system, (_, _, values))| (format!("{group}.{system}.{metric}"), values.to_vec()))
                .collect();
            measured.notes.push(note);
            measured.values.extend(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_system_has_a_scenario_of_its_own() {
        let mut measured = Measured::default();
        for (name, values) in [
            ("p1-a.x.m", [1.0, 2.0]),
            ("p1-b.x.m", [3.0, 1.0]),
            ("p10-a.x.m", [9.0, 9.0]),
            ("p1-a.y.m", [5.0, 5.0]),
        ] {
            measured.values.insert(name.into(), values.to_vec());
        }
        let largest = Largest { metrics: vec!["m".into()], groups: vec!["p1".into()] };
        largest.find(&mut measured);
        assert_eq!(
            (&*measured.values["p1.x.m"], &*measured.values["p1.y.m"]),
            (&[3.0, 1.0][..], &[5.0, 5.0][..])
        );
        assert_eq!(measured.notes, ["p1, the largest m: x 2 by b, y 5 by a."]);
    }
}
