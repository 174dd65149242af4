//! MLEFlow (Darir and others, PoPETs 2022): the capacity that makes all rounds' downloads most likely.
//!
//! With a capacity of C, a download at speed m competes with C / m - 1 users. Their number has a Poisson distribution with
//! a known mean (`users`). MLEFlow-CF solves for the most likely C in closed form; MLEFlow-Q tries
//! quantised capacities and can allow for noise in the speeds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::users::{Sight, Slowest, sights};
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;
use crate::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "MLEFlow",
    source: "Darir and others, PoPETs 2022; the authors' notebook",
    oracles: &[
        "crates/control/src/balance/tests/authors.rs: mleflow_cf_computes_the_weights_of_the_authors_code",
        "crates/control/src/balance/tests/authors.rs: mleflow_q_computes_the_weights_of_the_authors_code",
        "crates/control/src/balance/tests/authors.rs: mleflow_q_allows_for_noise_as_the_authors_code_does",
        "crates/control/src/balance/tests/authors.rs: mleflow_finds_the_capacities_of_the_authors_model",
        "crates/control/src/balance/tests/authors.rs: mleflow_finds_the_capacities_of_the_authors_network",
    ],
    deviation: "the number of users is the reported load over the load of one user; the authors' simulation is given it. Guards are expected in all positions that their weights allow",
};

/// Ratio of successive capacities of MLEFlow-Q. Source: the authors' code.
const RATIO: f64 = 1.1;
/// Standard deviation of the relative noise before it is cut off. Source: the authors' code.
const DEVIATION: f64 = 0.5;

/// The most terms of a sum over numbers of users.
const TERMS: f64 = 1000.0;

/// How MLEFlow maximises the likelihood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Variant {
    /// MLEFlow-CF: in closed form, with Stirling's approximation.
    #[default]
    Cf,
    /// MLEFlow-Q: over quantised capacities.
    Q,
}

/// MLEFlow's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct MleFlow {
    /// MLEFlow-CF (`cf`) or MLEFlow-Q (`q`).
    pub variant: Variant,
    /// MLEFlow-Q: the largest relative error of a measured download speed. Source: the authors' code, 0 or 0.3.
    #[schemars(range(min = 0.0, max = 0.9))]
    pub noise: f64,
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
}

impl Default for MleFlow {
    fn default() -> MleFlow {
        MleFlow { variant: Variant::Cf, noise: 0.0, downloads: 3, rounds: 3 }
    }
}

impl Parameters for MleFlow {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        (self.variant == Variant::Cf && self.noise > 0.0).then_some((
            "`noise` has no effect with `variant = \"cf\"`",
            "set `variant = \"q\"`, or leave `noise` out",
        ))
    }
}

impl Balance for MleFlow {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let capacity = |sights: Vec<Sight>| match self.variant {
            Variant::Cf => closed_form(&sights),
            Variant::Q => quantised(&sights, 1.0, self.noise),
        };
        sights(evidence, Slowest::This).into_iter().map(capacity).collect()
    }
}

/// MLEFlow-CF's capacity, in the unit of the speeds.
///
/// The derivative of the log-likelihood vanishes where the sum over (ln(m λw) - ln C) / m is -t / C, for t downloads.
pub(super) fn closed_form(sights: &[Sight]) -> Option<f64> {
    let inverse: f64 = sights.iter().map(|sight| 1.0 / sight.speed).sum();
    let logarithms: f64 = sights.iter().map(|sight| libm::log(sight.speed * sight.users) / sight.speed).sum();
    let mean = sights.len() as f64 / inverse;
    (!sights.is_empty()).then(|| mean / lambert(mean * libm::exp(-logarithms / inverse)))
}

/// Lambert's W for positive arguments: the w with w e^w = x, by Halley's method.
fn lambert(x: f64) -> f64 {
    let mut w = libm::log1p(x);
    for _ in 0..30 {
        let e = libm::exp(w);
        let error = w * e - x;
        let step = error / (e * (w + 1.0) - (w + 2.0) * error / (2.0 * w + 2.0));
        w -= step;
        if step.abs() <= 1e-15 * w.abs() {
            break;
        }
    }
    w
}

/// MLEFlow-Q's capacity: the centre of the most likely quantum. The scanner makes `at_once` downloads at the same time.
pub(super) fn quantised(sights: &[Sight], at_once: f64, noise: f64) -> Option<f64> {
    let fastest = sights.iter().map(|sight| sight.speed).fold(0.0, f64::max);
    if fastest <= 0.0 {
        return None;
    }
    // Four times the expected users and sixty more: beyond, likelihoods only fall.
    let highest = |sight: &Sight| sight.speed * (4.0 * sight.users + 60.0);
    let highest = sights.iter().map(highest).fold(fastest, f64::max);
    let level = |value: f64| libm::floor(libm::log(value) / libm::log(RATIO));
    let centre = |level: f64| libm::pow(RATIO, level) * (1.0 + RATIO) / 2.0;
    let (first, last) = (level(fastest / (1.0 + noise)) - 8.0, level(highest / (1.0 - noise)));
    let likelihood = |capacity: f64| {
        let one = |sight: &Sight| match noise > 0.0 {
            true => noisy(sight, capacity, at_once, noise),
            false => exact(sight, capacity, at_once),
        };
        sights.iter().map(one).sum::<f64>()
    };
    let levels = (0..=(last - first) as u32).map(|number| centre(first + f64::from(number)));
    let all = levels.map(|capacity| (capacity, likelihood(capacity)));
    // The lowest of equally likely capacities, as in the authors' code.
    let best = all.reduce(|best, one| if one.1 > best.1 { one } else { best });
    best.filter(|(_, likelihood)| likelihood.is_finite()).map(|(capacity, _)| capacity)
}

/// Logarithm of the probability of `users` if the mean is `mean`.
pub(super) fn poisson(users: f64, mean: f64) -> f64 {
    users * libm::log(mean) - mean - libm::lgamma(users + 1.0)
}

/// Without noise: the probability of the nearest whole number of users.
fn exact(sight: &Sight, capacity: f64, at_once: f64) -> f64 {
    let users = libm::rint(capacity / sight.speed - at_once);
    if users < 0.0 { f64::NEG_INFINITY } else { poisson(users, sight.users) }
}

/// With noise: the sum over all numbers of users that explain the speed, by the size of the error that each implies.
fn noisy(sight: &Sight, capacity: f64, at_once: f64, noise: f64) -> f64 {
    let users = |factor: f64| libm::rint(factor * capacity / sight.speed - at_once);
    let (least, most) = (users(1.0 - noise).max(0.0), users(1.0 + noise));
    if most < least {
        return f64::NEG_INFINITY;
    }
    // Numbers this far from the mean add nothing that a sum of doubles can hold. If all are so far, the nearest counts.
    let reach = 12.0 * libm::sqrt(sight.users) + 60.0;
    let near = |bound: f64| libm::rint(bound).clamp(least, most);
    let (from, to) = (near(sight.users - reach), near(sight.users + reach));
    // Among many users the terms change slowly, so one stands for its neighbours.
    let stride = libm::ceil((to - from + 1.0) / TERMS).max(1.0);
    let one = |number: f64| {
        let error = (sight.speed * (number + at_once) / capacity - 1.0) / DEVIATION;
        poisson(number, sight.users) - 0.5 * error * error
    };
    let terms = (0..=((to - from) / stride) as u32).map(|term| one(from + stride * f64::from(term)));
    let all: Vec<f64> = terms.collect();
    let largest = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + libm::log(stride * all.iter().map(|one| libm::exp(one - largest)).sum::<f64>())
}
