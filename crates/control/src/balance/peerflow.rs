//! PeerFlow (2017), as we read it: weights from the bytes that relays report to exchange with each other.
//!
//! A relay's traffic is the mean of its peers' claims, each scaled by the peer's share of the network. The highest claims are
//! left out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asks, Balance, Evidence, Seen};
use crate::keys::Parameters;
use crate::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "PeerFlow",
    source: "Johnson and others, PoPETs 2017",
    oracles: &[],
    deviation: "text not available: noise, privacy and the rules of periods are missing, and growth is bounded by a factor",
};

/// PeerFlow's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct PeerFlow {
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
    /// The highest claims are left out, up to this share of the peers' weight.
    #[schemars(range(min = 0.0, max = 0.5))]
    pub disbelieved: f64,
    /// The largest growth factor of a relay's weight in a round.
    #[schemars(range(min = 1.0, max = 100.0))]
    pub growth: f64,
}

impl Default for PeerFlow {
    fn default() -> PeerFlow {
        PeerFlow { rounds: 1, disbelieved: 0.2, growth: 2.0 }
    }
}

impl Parameters for PeerFlow {}

impl Balance for PeerFlow {
    fn asks(&self) -> Asks {
        Asks { rounds: self.rounds, peers: true, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let round = evidence.last();
        let all: f64 = round.weights.iter().sum();
        let total: f64 = round.seen.values().map(|seen| seen.bytes).sum();
        let reports: f64 = round.reports.iter().sum();
        let weigh = |relay: u32| {
            // A peer's claim of the relay's share of all traffic, with the peer's weight.
            let claim = |peer: usize| {
                let weight = round.weights[peer];
                let Seen { bytes, .. } = *round.seen.get(&(peer as u32, relay))?;
                (weight > 0.0).then(|| (bytes / total / (weight / all), weight))
            };
            let mut claims: Vec<(f64, f64)> =
                (0..evidence.relays()).filter(|peer| *peer != relay as usize).filter_map(claim).collect();
            claims.sort_by(|one, other| one.0.total_cmp(&other.0));
            let believed = claims.iter().map(|(_, weight)| weight).sum::<f64>() * (1.0 - self.disbelieved);
            let (mut sum, mut weights) = (0.0, 0.0);
            for (share, weight) in claims {
                let part = weight.min(believed - weights).max(0.0);
                sum += share * part;
                weights += part;
            }
            let before = round.weights[relay as usize];
            (weights > 0.0).then(|| (sum / weights * reports).min(before / all * reports * self.growth))
        };
        (0..evidence.relays() as u32).map(weigh).collect()
    }
}
