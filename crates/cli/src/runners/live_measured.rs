//! The runner `live-measured`: users' downloads by self-reported and by measured weights, live (`tidegate overlay demo
//! --measured`) and simulated.
//!
//! Quantities `live.<relays>.<weights>_s` and `simulated.<relays>.<weights>_s`: the median time of a download in seconds,
//! for relays `honest` and with a `liar`, by weights `said` and `measured`. `<relays>.weight_said` and `.weight_measured`
//! are the liar's share of the weight, `<relays>.share` its share of the bandwidth, and `<relays>.worst_estimate` the
//! largest relative error of an estimate.
//!
//! The simulation has the relays, the users and the weights of the live run; each seed draws the users' paths.

use serde::Deserialize;
use serde_json::Value;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Bytes, Span};
use tidegate_lab::input::SourceFile;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs;
use tidegate_lab::scenario::Scenario;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use super::tool::json_of;
use crate::commands::overlay::measured::LOAD;

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeasuredExperiment {
    users: u16,
    bytes: Bytes,
    /// Length of each relay's measurement.
    duration: Span,
    /// Simulated networks: draws of the users' paths.
    seeds: u64,
}

/// Length of a simulated run. Users begin downloads for [`LOAD`], as in the live demonstration.
const END: Span = Span::from_secs(120);

/// Measures an experiment.
///
/// # Errors
/// If the command or a simulation fails.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: MeasuredExperiment = experiment.parameters(scale)?;
    let (users, bytes) = (parameters.users.to_string(), parameters.bytes.to_string());
    let duration = parameters.duration.to_string();
    let mut measured = Measured::default();
    for (relays, more) in [("honest", &["--honest"][..]), ("liar", &[])] {
        monitor.progress("live", relays, if relays == "honest" { 0.0 } else { 0.5 });
        let demo = ["overlay", "demo", "--measured", "--json", "--users", &users, "--bytes", &bytes];
        let found = json_of(&[&demo[..], &["--duration", &duration], more].concat(), monitor)?;
        let rows: Vec<&Value> = found["relay"].as_array().into_iter().flatten().collect();
        let of = |key: &str| rows.iter().map(|row| row[key].as_f64().unwrap_or(0.0)).collect::<Vec<f64>>();
        let (rates, estimates) = (of("bits_per_s"), of("estimate_bits_per_s"));
        let errors = rates.iter().zip(&estimates).map(|(rate, estimate)| (estimate / rate - 1.0).abs());
        measured.push(format!("{relays}.worst_estimate"), errors.fold(0.0, f64::max));
        measured.push(format!("{relays}.share"), rates[0] / rates.iter().sum::<f64>());
        for (weights, phase, key) in
            [("said", "before", "weight_before"), ("measured", "after", "weight_after")]
        {
            let shares = of(key);
            measured.push(format!("{relays}.weight_{weights}"), shares[0]);
            let median = found[phase]["median_s"].as_f64().unwrap_or(f64::NAN);
            measured.push(format!("live.{relays}.{weights}_s"), median);
            for seed in 1..=parameters.seeds {
                let time = simulate(&parameters, &rates, &shares, seed, monitor)?;
                measured.push(format!("simulated.{relays}.{weights}_s"), time);
            }
            let all = |phase: &str, key: &str| found[phase][key].as_f64().unwrap_or(0.0);
            measured.push("inexact", all(phase, "downloads") - all(phase, "exact"));
        }
    }
    Ok(measured)
}

/// Simulates the users. Returns the median time of a download.
fn simulate(
    parameters: &MeasuredExperiment,
    rates: &[f64],
    weights: &[f64],
    seed: u64,
    monitor: &dyn Monitor,
) -> Result<f64, RunError> {
    let mut random = Seed::root(seed).random();
    // The demonstration's bucket: a burst of 0.1 s and a refill every 10 ms; with a measurement, of a second.
    let mut text = format!(
        "title = \"Downloads by weights\"\nduration = \"{END}\"\nwarmup = \"0 s\"\n\n[[system]]\nname = \"vanilla\"\n\
         [underlay]\ndelay = \"100 us\"\n\n[traffic.download]\ncircuit-lifetime = \"0 s\"\n\
         requests = [{{ size = \"{}\" }}]\n",
        parameters.bytes
    );
    for (number, rate) in rates.iter().enumerate() {
        text += &format!(
            "\n[[relay]]\nname = \"relay{number}\"\nlink = \"1 Gbit/s\"\n\
             bandwidth = {{ rate = \"{rate} bit/s\", refill = \"10 ms\" }}\n"
        );
    }
    for user in 0..parameters.users {
        let path = path(weights, &mut random).map(|relay| format!("\"relay{relay}\"")).join(", ");
        text += &format!(
            "\n[[user]]\nname = \"user{user}\"\npath = [{path}]\ntraffic = \"download\"\nstop = \"{LOAD}\"\n"
        );
    }
    let source = SourceFile { file: "simulated users".into(), text };
    let scenario = Scenario::parse(source, std::path::PathBuf::new(), &[])?;
    let finished = runs::run_once(&scenario, 0, seed, monitor)?.ok_or(RunError::Stopped)?;
    let median = finished.metrics.summary["ttlb_s"]["download"]["p50"].as_f64();
    median.ok_or_else(|| RunError::Failed("no simulated download completed".into()))
}

/// Draws three different relays by weight, the exit first, as the client does.
fn path(weights: &[f64], random: &mut Random) -> [usize; 3] {
    let mut left = weights.to_vec();
    let mut pick = || {
        let mut point = random.uniform(0.0, left.iter().sum());
        let last = left.iter().rposition(|weight| *weight > 0.0).expect("five relays have weights");
        let found = left.iter().position(|weight| {
            point -= weight;
            point < 0.0 && *weight > 0.0
        });
        let found = found.unwrap_or(last);
        left[found] = 0.0;
        found
    };
    let exit = pick();
    let middle = pick();
    [pick(), middle, exit]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_weights() {
        let mut random = Seed::root(1).random();
        let paths: Vec<[usize; 3]> =
            (0..2000).map(|_| path(&[0.4, 0.3, 0.2, 0.1, 0.0], &mut random)).collect();
        assert!(paths.iter().all(|[a, b, c]| a != b && b != c && a != c && ![*a, *b, *c].contains(&4)));
        let exits = paths.iter().filter(|path| path[2] == 0).count();
        assert!((700..900).contains(&exits), "{exits} of 2000 at a weight of 0.4");
    }
}
