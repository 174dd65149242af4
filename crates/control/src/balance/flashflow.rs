//! FlashFlow (2021): weights are capacities that a team measured under full load ([`crate::flashflow`]).

use super::team::Team;
use super::{Asks, Balance, Evidence};

impl Balance for Team {
    fn asks(&self) -> Asks {
        Asks { measurements: Some(*self), rounds: self.rounds, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        let latest = |relay: usize| {
            evidence.rounds.iter().rev().find_map(|round| round.measured.get(relay).copied().flatten())
        };
        (0..evidence.relays()).map(latest).collect()
    }
}
