//! Tables of an archive's analysis: relays, the network over time, and quantiles of both.

use serde_json::{Value, json};

use super::PERIODS;
use super::collect::Collected;
use super::errors::{Analysis, NetworkErrors, RelayErrors};
use crate::report::tables::{Column, Table};

/// Name of a quantity, and its mean per relay for each of [`PERIODS`].
type Quantity = (&'static str, fn(&RelayErrors) -> &Vec<f64>);

const QUANTITIES: [Quantity; 4] = [
    ("capacity_error", |relay| &relay.capacity),
    ("weight_error", |relay| &relay.weight),
    ("advertised_rsd", |relay| &relay.advertised_rsd),
    ("weight_rsd", |relay| &relay.weight_rsd),
];

/// The tables `relays` (a row per relay that ran) and `network` (a row per hour).
pub fn all(collected: &Collected, analysis: &Analysis) -> Vec<Table> {
    let relays: Vec<(usize, RelayErrors)> =
        analysis.relays().enumerate().filter(|(_, relay)| relay.hours > 0).collect();
    let fingerprints = relays.iter().map(|(number, _)| collected.relays()[*number].to_string()).collect();
    let carried = relays.iter().map(|(number, _)| collected.carried_bytes_per_s(*number)).collect();
    let mut columns = vec![
        ("fingerprint".to_owned(), Column::Text(fingerprints)),
        ("hours".to_owned(), Column::Integer(relays.iter().map(|(_, relay)| relay.hours as i64).collect())),
        ("carried_bytes_per_s".to_owned(), Column::Number(carried)),
    ];
    for (name, of) in QUANTITIES {
        for (index, period) in PERIODS.iter().enumerate() {
            let values = relays.iter().map(|(_, relay)| of(relay)[index]).collect();
            columns.push((format!("{name}_{}", period.name), Column::Number(values)));
        }
    }
    vec![Table { name: "relays", columns }, network(&analysis.network)]
}

fn network(hours: &[NetworkErrors]) -> Table {
    let integers =
        |of: fn(&NetworkErrors) -> u64| Column::Integer(hours.iter().map(|hour| of(hour) as i64).collect());
    let advertised = hours.iter().map(|hour| hour.advertised_bytes_per_s).collect();
    let mut columns = vec![
        ("time_unix_s".to_owned(), integers(|hour| hour.time)),
        ("relays".to_owned(), integers(|hour| hour.relays)),
        ("relays_known".to_owned(), integers(|hour| hour.known)),
        ("advertised_bytes_per_s".to_owned(), Column::Number(advertised)),
    ];
    for (index, period) in PERIODS.iter().enumerate() {
        let of = |of: fn(&NetworkErrors) -> &Vec<f64>| {
            Column::Number(hours.iter().map(|hour| of(hour)[index]).collect())
        };
        columns.push((format!("capacity_error_{}", period.name), of(|hour| &hour.capacity)));
        columns.push((format!("weight_error_{}", period.name), of(|hour| &hour.weight)));
    }
    Table { name: "network", columns }
}

/// Summary: counts, and quantiles over relays (Figures 1, 3 and 10) and hours (Figures 2 and 4).
pub fn summary(collected: &Collected, analysis: &Analysis) -> Value {
    let relays: Vec<RelayErrors> = analysis.relays().filter(|relay| relay.hours > 0).collect();
    let mut answer = json!({
        "counts": collected.counts(),
        "hours": analysis.network.len(),
        "relays": relays.len(),
    });
    for (index, period) in PERIODS.iter().enumerate() {
        for (name, of) in QUANTITIES {
            answer["relay"][name][period.name] =
                quantiles(relays.iter().map(|relay| of(relay)[index]).collect());
        }
        let below = relays.iter().filter(|relay| relay.weight[index] < 1.0).count();
        answer["relay"]["weight_error_below_1_share"][period.name] =
            json!(below as f64 / relays.len() as f64);
        let hours = &analysis.network;
        answer["network"]["capacity_error"][period.name] =
            quantiles(hours.iter().map(|hour| hour.capacity[index]).collect());
        answer["network"]["weight_error"][period.name] =
            quantiles(hours.iter().map(|hour| hour.weight[index]).collect());
    }
    answer
}

/// Quantiles of the finite values.
fn quantiles(mut values: Vec<f64>) -> Value {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| values.get(((values.len() as f64 * share) as usize).min(values.len().max(1) - 1));
    json!({ "p5": at(0.05), "p25": at(0.25), "p50": at(0.5), "p75": at(0.75), "p95": at(0.95), "max": values.last() })
}
