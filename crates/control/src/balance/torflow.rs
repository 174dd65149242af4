//! TorFlow (Perry 2009): a relay's report times the speed of its downloads relative to its class.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::speeds::ratios;
use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;

/// Parameters of Tor's scanners from 2009 to 2020.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct TorFlow {
    /// Downloads through each relay in a round.
    #[schemars(range(min = 1, max = 100))]
    pub downloads: u32,
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
    /// The largest share of all weight for one relay. Source: TorFlow, 5 %.
    #[schemars(range(min = 0.001, max = 1.0))]
    pub cap: f64,
}

impl Default for TorFlow {
    fn default() -> TorFlow {
        TorFlow { downloads: 3, rounds: 1, cap: 0.05 }
    }
}

impl Parameters for TorFlow {}

impl Balance for TorFlow {
    fn asks(&self) -> Asks {
        Asks { probes: self.downloads, rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let round = evidence.last();
        let ratios = ratios(&round.probes, |relay| evidence.classes[relay] as usize);
        let weight = |(ratio, report): (Option<f64>, &f64)| Some(ratio? * report.max(1.0));
        let weights: Vec<Option<f64>> = ratios.into_iter().zip(&round.reports).map(weight).collect();
        // With few relays even equal weights exceed the cap.
        let most = self.cap.max(1.0 / weights.len() as f64) * weights.iter().flatten().sum::<f64>();
        weights.into_iter().map(|weight| weight.map(|weight| weight.min(most))).collect()
    }
}
