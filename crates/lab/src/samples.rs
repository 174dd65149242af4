//! The runner `samples`: how much networks differ that are sampled from one consensus. Nothing is simulated.
//!
//! ```toml
//! runner = "samples"
//! [parameters]
//! networks = 100
//! [parameters.scenarios]
//! drawn = { file = "network.toml", overrides = ["tor.sample = 'drawn'"] }
//! balanced = { file = "network.toml", overrides = ["tor.sample = 'balanced'"] }
//! ```
//!
//! Quantities of each network: `<scenario>.carried` is the share of the requested traffic that relays carry, if clients
//! request half of the network's capacity, and `<scenario>.busy_weight` the share of the weight of relays with a demand
//! above 90 % of their capacity. `carried_high` and `busy_weight_high` are the same for 62 %. `<scenario>.country_distance`
//! is the distance of the countries' shares of weight from their means over all networks (total variation), if
//! countries are known. `<scenario>.spread.<quantity>` is the standard deviation over networks.
//!
//! A network with every relay of a table is drawn once, without `spread`, because nothing in it is random.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::random::Seed;

use crate::input::InputError;
use crate::monitor::Monitor;
use crate::network::demand::{Candidate, Demand};
use crate::network::{self, Network};
use crate::scenario::Scenario;
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};
use crate::statistics::Estimate;

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct SamplesExperiment {
    scenarios: BTreeMap<String, ScenarioEntry>,
    #[serde(default)]
    overrides: Vec<String>,
    /// Number of networks of each scenario.
    networks: u32,
}

/// Shares of the capacity that clients request: about Tor Metrics' utilisation, and the utilisation at which the
/// network of 2019 has the measured downloads (`experiments/truth`).
const LOADS: [f64; 2] = [0.5, 0.62];

/// Demand over capacity of a busy relay.
const BUSY: f64 = 0.9;

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for scenarios without a [tor] table, or networks that cannot be drawn.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: SamplesExperiment = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    for (name, entry) in &parameters.scenarios {
        let scenario = entry.load(experiment, &parameters.overrides)?;
        let Some(tor) = scenario.file.tor.as_ref().map(|tor| tor.get_ref()) else {
            let (cause, cure) = ("has no [tor] table, so no relays are sampled", "add a [tor] table");
            return Err(InputError::new(&scenario.source.file, cause, cure).into());
        };
        // Nothing is drawn if every relay of a table takes part.
        let fixed = tor.fraction >= 1.0 && tor.table().is_some();
        let count = if fixed { 1 } else { parameters.networks.max(1) };
        let networks = networks(&scenario, count, monitor)?;
        let mut push = |quantity: &str, values: Vec<f64>| {
            if fixed {
                return measured.push_fixed(format!("{name}.{quantity}"), values[0]);
            }
            let deviation = deviation(&values);
            measured.push_fixed(format!("{name}.spread.{quantity}"), deviation);
            for value in values {
                measured.push(format!("{name}.{quantity}"), value);
            }
        };
        let mean = |demand: &Demand| demand.carried.iter().sum::<f64>() / 3.0;
        for (suffix, load) in ["", "_high"].into_iter().zip(LOADS) {
            let carried = networks.iter().map(|sampled| mean(&sampled.demand(load)));
            push(&format!("carried{suffix}"), carried.collect());
            let busy = networks.iter().map(|sampled| sampled.busy_weight(load));
            push(&format!("busy_weight{suffix}"), busy.collect());
        }
        push("country_distance", country_distances(&networks));
    }
    Ok(measured)
}

/// A sampled network.
struct Sampled(Network);

/// Draws the networks of the scenario's seed and the following ones.
fn networks(scenario: &Scenario, count: u32, monitor: &dyn Monitor) -> Result<Vec<Sampled>, RunError> {
    let first = scenario.file.seed;
    let mut all = Vec::new();
    for number in 0..count {
        if monitor.stopped() {
            return Err(RunError::Stopped);
        }
        let seed = Seed::root(first.wrapping_add(number.into()));
        all.push(Sampled(network::build(scenario, seed.fork("network"))?));
    }
    Ok(all)
}

impl Sampled {
    fn candidates(&self) -> Vec<Candidate> {
        let plan = &self.0.plan;
        let capacity = |host: u32| plan.hosts[host as usize].capacity();
        let of = |relay: &tidegate_sim::plan::RelayEntry| Candidate {
            class: relay.class,
            weight: relay.weight,
            capacity: capacity(relay.id.0),
        };
        plan.directory.relays.iter().map(of).collect()
    }

    fn demand(&self, load: f64) -> Demand {
        Demand::of(&self.candidates(), &self.0.plan.directory.positions.unwrap_or_default(), load)
    }

    /// Share of the weight of relays with a demand above [`BUSY`].
    fn busy_weight(&self, load: f64) -> f64 {
        let relays = self.candidates();
        let total: f64 = relays.iter().map(|relay| relay.weight).sum();
        let demand = self.demand(load);
        let busy = relays.iter().zip(&demand.busy).filter(|(_, busy)| **busy > BUSY);
        busy.map(|(relay, _)| relay.weight).sum::<f64>() / total
    }

    /// Share of the weight of each country.
    fn countries(&self) -> BTreeMap<&str, f64> {
        let relays = &self.0.plan.directory.relays;
        let total: f64 = relays.iter().map(|relay| relay.weight).sum();
        let mut shares = BTreeMap::new();
        for relay in relays {
            *shares.entry(self.0.listed[&relay.id.0].country.as_str()).or_default() += relay.weight / total;
        }
        shares
    }
}

/// Total variation between each network's shares of countries and their means.
fn country_distances(networks: &[Sampled]) -> Vec<f64> {
    let mut means: BTreeMap<&str, f64> = BTreeMap::new();
    for (country, share) in networks.iter().flat_map(Sampled::countries) {
        *means.entry(country).or_default() += share / networks.len() as f64;
    }
    let distance = |network: &Sampled| {
        let own = network.countries();
        let of = |(country, mean): (&&str, &f64)| (own.get(country).copied().unwrap_or(0.0) - mean).abs();
        means.iter().map(of).sum::<f64>() / 2.0
    };
    networks.iter().map(distance).collect()
}

/// Standard deviation of a sample; zero below two values.
fn deviation(values: &[f64]) -> f64 {
    let mean = Estimate::of(values).mean;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    if values.len() < 2 { 0.0 } else { (squares / (values.len() - 1) as f64).sqrt() }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::input::SourceFile;

    struct Unwatched;
    impl Monitor for Unwatched {}

    fn sampled(overrides: &[&str]) -> Result<Scenario, InputError> {
        let text = include_str!("../../../experiments/truth/samples/network.toml");
        let source = SourceFile { file: "x.toml".into(), text: text.into() };
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Scenario::parse(source, PathBuf::new(), &overrides)
    }

    #[test]
    fn balanced_samples_differ_less_from_each_other() {
        let spread = |overrides: &[&str]| {
            let networks = networks(&sampled(overrides).unwrap(), 24, &Unwatched).unwrap();
            let carried = |network: &Sampled| network.demand(LOADS[0]).carried.iter().sum::<f64>();
            deviation(&networks.iter().map(carried).collect::<Vec<_>>())
        };
        let (drawn, balanced) = (spread(&[]), spread(&["tor.sample = 'balanced'"]));
        assert!(balanced < 0.8 * drawn, "{balanced} against {drawn}");
    }

    #[test]
    fn a_balanced_sample_depends_on_its_seed_alone() {
        let relays = |overrides: &[&str], seed: u64| -> Vec<String> {
            let network = network::build(&sampled(overrides).unwrap(), Seed::root(seed)).unwrap();
            network.listed.values().map(|relay| relay.nickname.clone()).collect()
        };
        let balanced = ["tor.sample = 'balanced'"];
        assert_eq!(relays(&balanced, 1), relays(&balanced, 1));
        assert_ne!(relays(&balanced, 1), relays(&balanced, 2));
        assert_eq!(relays(&balanced, 1).len(), relays(&[], 1).len(), "as many relays as a drawn sample");
        assert_eq!(relays(&["tor.sample = 'drawn'"], 1), relays(&[], 1), "the default");
    }

    #[test]
    fn a_choice_of_samples_that_has_no_effect_is_refused() {
        let said = |overrides: &[&str]| sampled(overrides).unwrap_err().to_string();
        let whole = said(&["tor.sample = 'balanced'", "tor.relays = 7195"]);
        assert!(whole.contains("has every relay") && whole.contains("drop `sample`"), "{whole}");
        let unknown = said(&["tor.sample = 'balancd'"]);
        assert!(unknown.contains("balancd") && unknown.contains("balanced"), "{unknown}");
    }
}
