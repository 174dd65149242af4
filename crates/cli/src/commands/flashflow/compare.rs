//! `tidegate flashflow compare`: compares the weights of two bandwidth files or consensuses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tidegate_control::flashflow::bandwidth_file::relay_name;
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_data::formats::{BANDWIDTH_FILES, CONSENSUSES};
use tidegate_data::{consensus, open};
use tidegate_lab::input::InputError;

use crate::failure::Failure;

/// Compare weights with another bandwidth file or a consensus
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate flashflow compare v3bw other-v3bw")]
pub struct Arguments {
    /// A bandwidth file or a consensus, which may be compressed
    ours: PathBuf,
    /// Another bandwidth file or consensus
    theirs: PathBuf,
    /// Number of relays to list, those with the largest difference first
    #[arg(long, default_value_t = 10)]
    most: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

type Weights = BTreeMap<RelayId, u64>;

/// Comparison of two sets of weights.
#[derive(Debug)]
struct Comparison {
    /// Number of relays in both.
    common: usize,
    /// Total variation distance of the shares of the relays in both (the paper's equation 6).
    error: f64,
    /// Median of the ratio of shares.
    median_ratio: f64,
    /// (relay, share in the first, share in the second), the largest differences first.
    shares: Vec<(RelayId, f64, f64)>,
}

fn compare(ours: &Weights, theirs: &Weights) -> Option<Comparison> {
    let common: Vec<(RelayId, u64, u64)> =
        ours.iter().filter_map(|(id, weight)| Some((*id, *weight, *theirs.get(id)?))).collect();
    // Two of the largest weights exceed 64 bits.
    let sum = |(a, b), (_, x, y): &(RelayId, u64, u64)| (a + u128::from(*x), b + u128::from(*y));
    let sums = common.iter().fold((0u128, 0u128), sum);
    if sums.0 == 0 || sums.1 == 0 {
        return None;
    }
    let share =
        |(id, a, b): &(RelayId, u64, u64)| (*id, *a as f64 / sums.0 as f64, *b as f64 / sums.1 as f64);
    let mut shares: Vec<(RelayId, f64, f64)> = common.iter().map(share).collect();
    let mut ratios: Vec<f64> = shares.iter().filter(|(_, _, b)| *b > 0.0).map(|(_, a, b)| a / b).collect();
    ratios.sort_by(f64::total_cmp);
    let error = shares.iter().map(|(_, a, b)| (a - b).abs()).sum::<f64>() / 2.0;
    shares.sort_by(|(_, a, b), (_, c, d)| (c - d).abs().total_cmp(&(a - b).abs()));
    Some(Comparison { common: common.len(), error, median_ratio: *ratios.get(ratios.len() / 2)?, shares })
}

fn read(path: &Path) -> Result<Weights, Failure> {
    let document = open::open(path).map_err(InputError::from)?;
    if consensus::looks_like(&document) {
        let consensus = CONSENSUSES.read(path, &document).map_err(InputError::from)?;
        return Ok(consensus.relays.iter().map(|r| (r.identity.0, u64::from(r.bandwidth))).collect());
    }
    Ok(named(path, BANDWIDTH_FILES.read(path, &document).map_err(InputError::from)?)?)
}

/// Refuses a bandwidth file without relays: it may be cut.
pub(super) fn named<T>(
    path: &Path,
    weights: BTreeMap<RelayId, T>,
) -> Result<BTreeMap<RelayId, T>, InputError> {
    if weights.is_empty() {
        let (cause, cure) = ("names no relay", "check whether the file is complete");
        return Err(InputError::new(path.display().to_string(), cause, cure));
    }
    Ok(weights)
}

/// The number of relays, and how many of them have a weight.
fn weighed(weights: &Weights) -> String {
    let count = weights.values().filter(|weight| **weight > 0).count();
    format!("{} relays, {count} of them with a weight above 0", weights.len())
}

/// Which relays the error covers, if not all.
fn coverage(result: &Comparison, ours: &Weights, theirs: &Weights) -> String {
    match (ours.len() - result.common, theirs.len() - result.common) {
        (0, 0) => String::new(),
        (first, second) => format!(
            ", of the {} in both files alone: it leaves out {first} of the first and {second} of the second",
            if result.common == 1 { "relay".to_owned() } else { format!("{} relays", result.common) }
        ),
    }
}

/// Runs the subcommand.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (ours, theirs) = (read(&arguments.ours)?, read(&arguments.theirs)?);
    let Some(result) = compare(&ours, &theirs) else {
        let common = ours.keys().filter(|id| theirs.contains_key(*id)).count();
        let cause = format!(
            "{} has {}, {} has {}, and {}",
            arguments.ours.display(),
            weighed(&ours),
            arguments.theirs.display(),
            weighed(&theirs),
            if common == 0 { "none is in both" } else { "those in both have no weight in one of them" }
        );
        let cure = "give files of the same network and of about the same time";
        return Err(InputError::new("the weights", cause, cure).into());
    };
    let shown = &result.shares[..arguments.most.min(result.shares.len())];
    if arguments.json {
        let rows = shown.iter().map(|(id, a, b)| json!({ "relay": relay_name(id), "first": a, "second": b }));
        println!(
            "{}",
            json!({ "first": ours.len(), "second": theirs.len(), "common": result.common,
                "network_weight_error": result.error, "median_ratio": result.median_ratio,
                "most_different": rows.collect::<Vec<_>>() })
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} and {} relays, {} in both", ours.len(), theirs.len(), result.common);
    println!("network weight error {:.2} %{}", 100.0 * result.error, coverage(&result, &ours, &theirs));
    println!("median ratio of shares {:.3}", result.median_ratio);
    if !shown.is_empty() {
        println!("{:40}  {:>10}  {:>10}", "relay, the largest differences first", "first", "second");
    }
    for (id, a, b) in shown {
        println!("{}  {:8.4} %  {:8.4} %", relay_name(id), 100.0 * a, 100.0 * b);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_some_relays_says_of_which() {
        let ours: Weights = (1..7).map(|n| ([n; 20], 5)).collect();
        let theirs = ours.iter().take(1).map(|(id, weight)| (*id, *weight)).chain([([9; 20], 5)]).collect();
        let said = coverage(&compare(&ours, &theirs).unwrap(), &ours, &theirs);
        assert_eq!(
            said,
            ", of the relay in both files alone: it leaves out 5 of the first and 1 of the second"
        );
        assert_eq!(coverage(&compare(&ours, &ours).unwrap(), &ours, &ours), "");
    }

    #[test]
    fn the_error_is_the_share_that_would_have_to_move() {
        let weights =
            |of: [u64; 3]| (1u8..).zip(of).map(|(n, weight)| ([n; 20], weight)).collect::<Weights>();
        let same = compare(&weights([1, 2, 3]), &weights([10, 20, 30])).unwrap();
        assert!(same.error < 1e-12 && (same.median_ratio - 1.0).abs() < 1e-12);
        let moved = compare(&weights([50, 25, 25]), &weights([25, 25, 50])).unwrap();
        assert!((moved.error - 0.25).abs() < 1e-12);
        assert_eq!(moved.shares[2].0, [2; 20], "the one that is the same comes last");
        let mut other = weights([1, 1, 1]);
        other.remove(&[3; 20]);
        assert_eq!(compare(&weights([1, 1, 8]), &other).unwrap().common, 2, "shares are of the common ones");
        assert!(compare(&weights([1, 1, 1]), &Weights::new()).is_none());
        let large = compare(&weights([u64::MAX; 3]), &weights([u64::MAX, 1, 1])).unwrap();
        assert!((large.error - 2.0 / 3.0).abs() < 1e-9, "shares stay below one: {}", large.error);
        assert!(compare(&weights([0, 0, 0]), &weights([1, 1, 1])).is_none());
    }
}
