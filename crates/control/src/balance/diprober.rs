//! DiProber (2022), as we read it: MLEFlow's likelihood for pairs of simultaneous downloads.
//!
//! Under low load a single download shows the speed of its own path; two through a relay come nearer to filling it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::likelihood::{likeliest, likelihoods};
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;

/// The scanner's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DiProber {
    /// Pairs of simultaneous downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub pairs: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
}

impl Default for DiProber {
    fn default() -> DiProber {
        DiProber { pairs: 2, rounds: 3 }
    }
}

impl Parameters for DiProber {}

impl Balance for DiProber {
    fn asks(&self) -> Asks {
        Asks { probes: self.pairs, beside: 1, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let weigh = |relay| likeliest(likelihoods(evidence, relay, 2.0)?);
        (0..evidence.relays()).map(weigh).collect()
    }
}
