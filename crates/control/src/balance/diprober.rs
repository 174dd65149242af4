//! Our reading of DiProber (Darir and others, arXiv 2211.16751): MLEFlow-Q's likelihood for pairs of downloads.
//!
//! Under low load a single download shows the speed of its own path; two through a relay come nearer to filling it. Only the
//! paper's abstract and introduction were available, so the likelihood of a pair is ours.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::mleflow::quantised;
use super::users::{Slowest, sights};
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;
use crate::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "DiProber",
    source: "Darir, Borisov, Dullerud, arXiv 2211.16751",
    oracles: &[],
    deviation: "only abstract and introduction were available: the likelihood of a pair is ours",
};

/// The scanner's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct DiProber {
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
        sights(evidence, Slowest::This).iter().map(|sights| quantised(sights, 2.0, 0.0)).collect()
    }
}
