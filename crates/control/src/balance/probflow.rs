//! ProbFlow (Darir and others, NDSS 2023): the mean of the capacities that explain all downloads, by their probability.
//!
//! It refines MLEFlow's model in two ways. Of a relay's users, some are slowed down by another relay of their path and take
//! less than an equal part. The previous round's estimate gives the prior: an exponential distribution with that mean.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mleflow::{MleFlow, poisson};
use super::users::{Sight, Slowest, sights};
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;
use crate::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "ProbFlow",
    source: "Darir and others, NDSS 2023; the authors' prob_prog.py",
    oracles: &[
        "crates/control/src/balance/tests/authors.rs: probflow_computes_the_mean_of_the_authors_model",
        "crates/control/src/balance/tests/authors.rs: probflow_allows_for_users_that_other_relays_slow_down",
    ],
    deviation: "the posterior mean by summation, where the authors fit a Weibull distribution by stochastic gradients; what other relays slow down comes from this round's speeds",
};

/// Ratio of successive capacities in the sum that stands for the integral.
const RATIO: f64 = 1.02;

/// ProbFlow's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct ProbFlow {
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
}

impl Default for ProbFlow {
    fn default() -> ProbFlow {
        let MleFlow { downloads, rounds, .. } = MleFlow::default();
        ProbFlow { downloads, rounds }
    }
}

impl Parameters for ProbFlow {}

impl Balance for ProbFlow {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let last = evidence.last();
        let sums = (last.reports.iter().sum::<f64>(), last.weights.iter().sum::<f64>());
        // Weights of a consensus may have any unit. Capacities are at least what relays carried.
        let unit = if sums.1 > 0.0 { (sums.0 / sums.1).max(1.0) } else { 0.0 };
        let all = sights(evidence, Slowest::Any).into_iter().zip(&last.weights);
        all.map(|(sights, weight)| mean_capacity(&sights, weight * unit)).collect()
    }
}

/// The posterior mean of a relay's capacity, in the unit of the speeds. Without a positive `guess` the prior is flat.
pub(super) fn mean_capacity(sights: &[Sight], guess: f64) -> Option<f64> {
    let fastest = sights.iter().map(|sight| sight.speed).fold(0.0, f64::max);
    if fastest <= 0.0 {
        return None;
    }
    let highest = |sight: &Sight| sight.speed + sight.rate() * (4.0 * sight.users + 60.0);
    let highest = sights.iter().map(highest).fold(fastest, f64::max);
    let prior = |capacity: f64| if guess > 0.0 { -capacity / guess } else { 0.0 };
    let steps = libm::ceil(libm::log(highest / fastest) / libm::log(RATIO)) as u32;
    let one = |step: u32| {
        let capacity = fastest * libm::pow(RATIO, f64::from(step));
        // Capacities in steps of equal ratio: each stands for an interval as wide as itself.
        let whole = sights.iter().map(|sight| density(sight, capacity)).sum::<f64>();
        (capacity, whole + prior(capacity) + libm::log(capacity))
    };
    let all: Vec<(f64, f64)> = (0..=steps).map(one).collect();
    let most = all.iter().map(|(_, likelihood)| *likelihood).fold(f64::NEG_INFINITY, f64::max);
    let sums = all.iter().fold((0.0, 0.0), |sums, (capacity, likelihood)| {
        let part = libm::exp(likelihood - most);
        (sums.0 + capacity * part, sums.1 + part)
    });
    Some(sums.0 / sums.1)
}

/// Logarithm of the density of a download's speed if the relay has this capacity.
///
/// Of x users the share `elsewhere` takes its own rates; the others and the download divide the rest. The density is that
/// of x, continued between whole numbers, over the change of the speed with x.
fn density(sight: &Sight, capacity: f64) -> f64 {
    let rate = sight.rate();
    let users = ((capacity - sight.speed) / rate).max(0.0);
    poisson(users, sight.users) + libm::log(1.0 + (1.0 - sight.elsewhere) * users) - libm::log(rate)
}
