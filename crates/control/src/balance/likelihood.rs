//! MLEFlow (2022) and ProbFlow (2023), as we read them: capacities from the likelihood of downloads' speeds.
//!
//! A download gets an equal part of a relay's capacity. The number of streams that share the relay follows from its weight.
//! MLEFlow takes the most likely capacity over all rounds, ProbFlow the mean over all capacities by their likelihoods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;

/// Capacities to try, relative to the fastest download through a relay: steps of 7 % up to a factor of 200.
const STEPS: i32 = 80;
const STEP: f64 = 1.07;

/// MLEFlow's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct MleFlow {
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
}

impl Default for MleFlow {
    fn default() -> MleFlow {
        MleFlow { downloads: 3, rounds: 3 }
    }
}

impl Parameters for MleFlow {}

/// ProbFlow's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ProbFlow {
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
}

impl Default for ProbFlow {
    fn default() -> ProbFlow {
        let MleFlow { downloads, rounds } = MleFlow::default();
        ProbFlow { downloads, rounds }
    }
}

impl Parameters for ProbFlow {}

/// Capacities and their log-likelihoods, from a relay's downloads of which `at_once` were simultaneous.
pub(super) fn likelihoods(evidence: &Evidence, relay: usize, at_once: f64) -> Option<Vec<(f64, f64)>> {
    let probes = |round: &super::Round| round.probes.get(relay).cloned().unwrap_or_default();
    let fastest = evidence.rounds.iter().flat_map(probes).fold(0.0, f64::max) * at_once;
    if fastest <= 0.0 {
        return None;
    }
    let likely = |capacity: f64| {
        let mut sum = 0.0;
        for round in &evidence.rounds {
            let all: f64 = round.weights.iter().sum();
            let (share, load) = (round.weights[relay] / all, round.reports.iter().sum::<f64>());
            for speed in probes(round).into_iter().filter(|speed| *speed > 0.0) {
                // Other streams on the relay: as many as fill it at this speed, against the number expected from its
                // weight. The observed speed stands for one stream's part of the whole load.
                let others = (capacity / speed - at_once).max(0.0);
                let expected = (load * share / speed).max(1e-3);
                sum += others * libm::log(expected) - expected - libm::lgamma(others + 1.0);
            }
        }
        sum
    };
    let capacities = (0..STEPS).map(|step| fastest * libm::pow(STEP, f64::from(step)));
    Some(capacities.map(|capacity| (capacity, likely(capacity))).collect())
}

/// The capacity with the highest likelihood.
pub(super) fn likeliest(all: Vec<(f64, f64)>) -> Option<f64> {
    all.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).map(|(capacity, _)| capacity)
}

impl Balance for MleFlow {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let weigh = |relay| likeliest(likelihoods(evidence, relay, 1.0)?);
        (0..evidence.relays()).map(weigh).collect()
    }
}

impl Balance for ProbFlow {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let weigh = |relay| {
            let all = likelihoods(evidence, relay, 1.0)?;
            let most = all.iter().map(|(_, likely)| *likely).fold(f64::NEG_INFINITY, f64::max);
            let parts = || all.iter().map(|(capacity, likely)| (capacity, libm::exp(likely - most)));
            let whole: f64 = parts().map(|(_, part)| part).sum();
            Some(parts().map(|(capacity, part)| capacity * part).sum::<f64>() / whole)
        };
        (0..evidence.relays()).map(weigh).collect()
    }
}
