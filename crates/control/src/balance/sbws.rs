//! sbws, the Simple Bandwidth Scanner of Tor's authorities since 2020.
//!
//! A weight is the relay's filtered speed over the mean of its class, times the lower of its report and its previous weight.
//! The rule is that of sbws since March 2021, which keeps one table for both of TorFlow's means: both ratios divide by the
//! mean of filtered speeds, so the filtered ratio is always the larger.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::speeds::{capped, mean, speeds};
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;
use crate::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "sbws",
    source: "v3bwfile.py and scaling.py of sbws, March 2021",
    oracles: &[
        "crates/control/src/balance/tests/scanners.rs: filtered_speeds_are_those_of_sbws_tests",
        "crates/control/src/balance/tests/scanners.rs: sbws_weighs_the_relay_of_its_own_test",
        "crates/control/src/balance/tests/scanners.rs: sbws_rounds_as_its_own_tests",
    ],
    deviation: "a helper has at least the relay's weight, where sbws asks for twice its bandwidth; before 2021 all relays formed one class",
};

/// The scanner's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Sbws {
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
    /// The largest share of all weight for one relay. Source: sbws, 5 %.
    #[schemars(range(min = 0.001, max = 1.0))]
    pub cap: f64,
}

impl Default for Sbws {
    fn default() -> Sbws {
        Sbws { downloads: 3, rounds: 1, cap: 0.05 }
    }
}

impl Parameters for Sbws {}

/// Rounds to two significant digits of kB/s, at least 1, as in sbws' files.
fn rounded(bytes_per_s: f64) -> f64 {
    let kilo = (bytes_per_s / 1000.0).max(1.0);
    let unit = libm::pow(10.0, libm::floor(libm::log10(kilo)) - 1.0).max(1.0);
    libm::rint(kilo / unit) * unit * 1000.0
}

impl Balance for Sbws {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let round = evidence.last();
        let all: Vec<_> = round.probes.iter().map(|probes| speeds(probes)).collect();
        let base = |relay: usize| match round.weights.get(relay) {
            Some(before) if *before > 0.0 => round.reports[relay].min(*before),
            _ => round.reports[relay],
        };
        let weight = |relay: usize| {
            let alike = |other: &usize| evidence.classes[*other] == evidence.classes[relay];
            let alike = (0..all.len()).filter(alike).filter_map(|other| all[other]);
            let ratio = all[relay]?.filtered / mean(&mut alike.map(|speeds| speeds.filtered))?;
            ratio.is_finite().then(|| ratio * base(relay))
        };
        let weights = capped((0..evidence.relays()).map(weight).collect(), self.cap);
        weights.into_iter().map(|weight| weight.map(rounded)).collect()
    }
}
