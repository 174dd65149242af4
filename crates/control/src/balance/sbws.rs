//! sbws, the Simple Bandwidth Scanner of Tor's authorities since 2020.
//!
//! A weight is a speed ratio over the whole network, as in TorFlow, times the lower of the relay's report and its previous
//! weight.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::speeds::ratios;
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;

/// The scanner's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Sbws {
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
}

impl Default for Sbws {
    fn default() -> Sbws {
        Sbws { downloads: 3, rounds: 1 }
    }
}

impl Parameters for Sbws {}

/// Rounds to two significant digits of kB/s, at least 1, as in sbws' files.
fn rounded(bytes_per_s: f64) -> f64 {
    let kilo = (bytes_per_s / 1000.0).max(1.0);
    let unit = libm::pow(10.0, libm::floor(libm::log10(kilo)) - 1.0).max(1.0);
    libm::round(kilo / unit) * unit * 1000.0
}

impl Balance for Sbws {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let round = evidence.last();
        let ratios = ratios(&round.probes, |_| 0);
        let base = |relay: usize| match round.weights.get(relay) {
            Some(before) if *before > 0.0 => round.reports[relay].min(*before),
            _ => round.reports[relay],
        };
        ratios.into_iter().enumerate().map(|(relay, ratio)| Some(rounded(ratio? * base(relay)))).collect()
    }
}
