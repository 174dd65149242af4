//! Ranks systems by several metrics.

use serde::Deserialize;

use crate::number::format_number;
use crate::statistics::Estimate;

/// The metrics to rank by.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Criteria {
    /// Metrics to minimise.
    pub least: Vec<String>,
    /// Metrics to maximise.
    pub most: Vec<String>,
}

/// A system and its rank.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub system: String,
    /// Mean of its ranks by each metric; 1 if it is the best by all of them.
    pub mean_rank: f64,
    /// (metric, mean over seeds with interval).
    pub values: Vec<(String, Estimate)>,
}

/// The systems by mean rank, best first. Equal values have equal ranks; systems without a value rank last.
pub(super) fn rank<'a>(
    criteria: &Criteria,
    systems: &[&str],
    values: impl Fn(&str, &str) -> Option<&'a [f64]>,
) -> Vec<Place> {
    let place = |system: &&str| Place { system: (*system).to_owned(), mean_rank: 0.0, values: vec![] };
    let mut places: Vec<Place> = systems.iter().map(place).collect();
    let signed = criteria.least.iter().map(|metric| (metric, 1.0));
    let metrics: Vec<(&String, f64)> =
        signed.chain(criteria.most.iter().map(|metric| (metric, -1.0))).collect();
    for (metric, sign) in &metrics {
        let costs: Vec<f64> = (systems.iter())
            .map(|system| {
                values(system, metric).map_or(f64::INFINITY, |values| sign * Estimate::of(values).mean)
            })
            .collect();
        for ((place, system), cost) in places.iter_mut().zip(systems).zip(&costs) {
            // Equal costs share the best rank.
            let better = costs.iter().filter(|other| *other < cost).count();
            place.mean_rank += (1 + better) as f64 / metrics.len() as f64;
            let estimate = values(system, metric).map(Estimate::of);
            place.values.extend(estimate.map(|estimate| ((*metric).clone(), estimate)));
        }
    }
    places.sort_by(|a, b| a.mean_rank.total_cmp(&b.mean_rank));
    places
}

/// Notes on the best five systems and the last one.
pub(super) fn notes(scenario: &str, places: &[Place]) -> Vec<String> {
    let chosen = places.iter().enumerate().filter(|(at, _)| *at < 5 || *at + 1 == places.len());
    let note = |(at, place): (usize, &Place)| {
        let values = place.values.iter().map(|(metric, value)| match value.ci95 {
            Some(ci95) => format!("{metric} {} ± {}", format_number(value.mean), format_number(ci95)),
            None => format!("{metric} {}", format_number(value.mean)),
        });
        let values: Vec<String> = values.collect();
        let (of, rank) = (places.len(), place.mean_rank);
        format!(
            "{scenario}: {} of {of}, mean rank {rank:.1}: {}: {}",
            at + 1,
            place.system,
            values.join(", ")
        )
    };
    chosen.map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_averaged_over_metrics_and_shared_by_equals() {
        let criteria = Criteria { least: vec!["wait".into()], most: vec!["rate".into()] };
        let values = |system: &str, metric: &str| -> Option<&'static [f64]> {
            match (system, metric) {
                ("a", "wait") => Some(&[1.0, 3.0]),
                ("b" | "c", "wait") => Some(&[1.0]),
                ("a", "rate") => Some(&[9.0]),
                ("b", "rate") => Some(&[5.0]),
                _ => None,
            }
        };
        let ranked = rank(&criteria, &["a", "b", "c"], values);
        let found: Vec<(&str, f64)> =
            ranked.iter().map(|place| (place.system.as_str(), place.mean_rank)).collect();
        assert_eq!(found, [("b", 1.5), ("a", 2.0), ("c", 2.0)]);
        let notes = notes("heavy", &ranked);
        assert_eq!(notes.len(), 3);
        assert!(notes[1].starts_with("heavy: 2 of 3, mean rank 2.0: a: wait 2 ± "), "{}", notes[1]);
    }
}
