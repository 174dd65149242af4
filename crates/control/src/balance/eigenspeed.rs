//! EigenSpeed (Snader and Borisov 2009): weights from the speeds that relays see of each other.
//!
//! Relays report the speeds of streams between them. Weights are the principal eigenvector of the normalised reports; the
//! iteration starts at trusted relays. The system does not use probes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Asks, Balance, Evidence};
use crate::keys::Parameters;
use crate::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "EigenSpeed",
    source: "Snader and Borisov, IPTPS 2009",
    oracles: &[],
    deviation: "neither text nor code was available: no exclusion of liars beyond the trusted start",
};

/// Parameters of the power iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct EigenSpeed {
    /// Rounds; in each, clients select by the weights of the previous round.
    #[schemars(range(min = 1, max = 20))]
    pub rounds: u32,
    /// Steps of the power iteration.
    #[schemars(range(min = 1, max = 1000))]
    pub steps: u32,
}

impl Default for EigenSpeed {
    fn default() -> EigenSpeed {
        EigenSpeed { rounds: 1, steps: 50 }
    }
}

impl Parameters for EigenSpeed {}

impl Balance for EigenSpeed {
    fn asks(&self) -> Asks {
        Asks { rounds: self.rounds, peers: true, trusted: true, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let relays = evidence.relays();
        let mut rows: BTreeMap<u32, Vec<(u32, f64)>> = BTreeMap::new();
        for ((from, of), seen) in evidence.rounds.iter().flat_map(|round| &round.seen) {
            if seen.streams > 0.0 {
                rows.entry(*from).or_default().push((*of, seen.speeds / seen.streams));
            }
        }
        for row in rows.values_mut() {
            let sum: f64 = row.iter().map(|(_, speed)| speed).sum();
            row.iter_mut().for_each(|(_, speed)| *speed /= sum);
        }
        let trusted = evidence.trusted.iter().filter(|trusted| **trusted).count();
        let first = |relay: usize| match trusted {
            0 => 1.0 / relays as f64,
            _ => f64::from(evidence.trusted[relay]) / trusted as f64,
        };
        let mut vector: Vec<f64> = (0..relays).map(first).collect();
        for _ in 0..self.steps {
            let mut next = vec![0.0; relays];
            for (from, row) in &rows {
                // Half of the vector stays in place below; otherwise a bipartite graph would oscillate for ever.
                row.iter().for_each(|(of, share)| next[*of as usize] += share * vector[*from as usize]);
            }
            let sum: f64 = next.iter().sum();
            if sum <= 0.0 {
                return vec![None; relays];
            }
            vector.iter_mut().zip(&next).for_each(|(value, next)| *value = (*value + next / sum) / 2.0);
        }
        let total: f64 = evidence.last().reports.iter().sum();
        let seen = |relay: usize| rows.contains_key(&(relay as u32));
        (0..relays).map(|relay| seen(relay).then(|| vector[relay] * total)).collect()
    }
}
