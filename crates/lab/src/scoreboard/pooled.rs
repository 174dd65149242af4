//! Ratios of two systems, pooled over pairs of systems and over the scenarios of a group.
//!
//! ```toml
//! [parameters.pooled]
//! ratios = { vanilla = [["vanilla-train", "vanilla-packet"]] }
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
    /// Pairs of systems by the name of their ratio: the system above and the one below.
    pub ratios: BTreeMap<String, Vec<[String; 2]>>,
    /// The metrics.
    pub metrics: Vec<String>,
    /// Prefixes, before a dash, of the names of the scenarios of each group.
    pub groups: Vec<String>,
}

impl Pooled {
    /// Adds `<group>.<ratio>.<metric>`: per seed, the geometric mean over the group's scenarios and the ratio's pairs. The
    /// arithmetic mean of quotients is above 1 even if both systems draw from one distribution.
    pub(super) fn find(&self, measured: &mut Measured) {
        let mut pooled = BTreeMap::new();
        for group in &self.groups {
            let within = format!("{group}-");
            let names = measured.values.keys().filter_map(|quantity| quantity.split_once('.'));
            let mut scenarios: Vec<&str> =
                names.map(|(scenario, _)| scenario).filter(|name| name.starts_with(&within)).collect();
            scenarios.dedup();
            for (ratio, pairs) in &self.ratios {
                for metric in &self.metrics {
                    let of = |scenario: &str, system: &String| {
                        measured.values.get(&format!("{scenario}.{system}.{metric}"))
                    };
                    let sides: Vec<_> = (scenarios.iter())
                        .flat_map(|scenario| pairs.iter().map(move |pair| (scenario, pair)))
                        .map(|(scenario, [above, below])| [of(scenario, above), of(scenario, below)])
                        .collect();
                    let values = geometric_means(&sides);
                    pooled.insert(format!("{group}.{ratio}.{metric}"), values);
                }
            }
        }
        pooled.retain(|_, values| values.iter().any(|value| value.is_finite()));
        measured.values.extend(pooled);
    }
}

/// Per seed, the geometric mean of the quotients. Quotients that lack a side, such as a percentile of too few downloads, are
/// left out. The mean of a seed that lacks more than half of them is NaN.
fn geometric_means(sides: &[[Option<&Vec<f64>>; 2]]) -> Vec<f64> {
    let seeds = sides.iter().flatten().flatten().map(|values| values.len()).max().unwrap_or(0);
    let mean = |seed: usize| {
        let value = |of: Option<&Vec<f64>>| of.and_then(|values| values.get(seed)).copied();
        let quotients = sides.iter().filter_map(|[above, below]| Some(value(*above)? / value(*below)?));
        let logarithms: Vec<f64> = quotients.map(libm::log).filter(|value| value.is_finite()).collect();
        let enough = 2 * logarithms.len() >= sides.len();
        if enough { libm::exp(logarithms.iter().sum::<f64>() / logarithms.len() as f64) } else { f64::NAN }
    };
    (0..seeds).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(quantities: &[(&str, [f64; 2])]) -> BTreeMap<String, Vec<f64>> {
        let mut measured = Measured::default();
        for (name, values) in quantities {
            measured.values.insert((*name).into(), values.to_vec());
        }
        let pairs = [["new", "old"], ["young", "old"]].map(|pair| pair.map(str::to_owned));
        let pooled = Pooled {
            ratios: [("change".to_owned(), pairs[..1].to_vec()), ("both".to_owned(), pairs.to_vec())].into(),
            metrics: vec!["m".into()],
            groups: vec!["p1".into()],
        };
        pooled.find(&mut measured);
        measured.values.retain(|name, _| name.starts_with("p1."));
        measured.values
    }

    const FIRST: [(&str, [f64; 2]); 4] = [
        ("p1-a.new.m", [4.0, 2.0]),
        ("p1-a.old.m", [1.0, 2.0]),
        ("p1-a.young.m", [16.0, 2.0]),
        ("p10-a.new.m", [9.0, 9.0]),
    ];

    fn close(values: &[f64], wanted: [f64; 2]) -> bool {
        values.iter().zip(wanted).all(|(value, wanted)| (value - wanted).abs() < 1e-12)
    }

    #[test]
    fn a_ratio_is_pooled_over_the_scenarios_of_its_group() {
        let second = [("p1-b.new.m", [1.0, 3.0]), ("p1-b.old.m", [4.0, 3.0]), ("p1-b.young.m", [1.0, 3.0])];
        let values = pooled(&[&FIRST[..], &second].concat());
        assert_eq!(values.keys().collect::<Vec<_>>(), ["p1.both.m", "p1.change.m"]);
        assert!(close(&values["p1.change.m"], [1.0, 1.0]), "{values:?}");
        assert!(close(&values["p1.both.m"], [libm::sqrt(2.0), 1.0]), "{values:?}");
    }

    #[test]
    fn pairs_without_a_value_are_left_out_if_half_remain() {
        let nan = f64::NAN;
        let second = [("p1-b.new.m", [1.0, nan]), ("p1-b.old.m", [4.0, 3.0])];
        let values = pooled(&[&FIRST[..], &second].concat());
        assert!(close(&values["p1.change.m"], [1.0, 1.0]), "of the second seed, half: {values:?}");
        assert!(
            values["p1.both.m"].iter().all(|value| value.is_finite()),
            "three and two of four: {values:?}"
        );
        let third = [("p1-c.new.m", [1.0, nan]), ("p1-c.old.m", [1.0, 3.0])];
        let values = pooled(&[&FIRST[..], &second, &third].concat());
        assert!(values["p1.change.m"][0].is_finite() && values["p1.change.m"][1].is_nan(), "{values:?}");
    }
}
