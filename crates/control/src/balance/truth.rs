//! Weights without measurements: the scenario's own, relays' reports, and true capacities.

use super::{Asks, Balance, Evidence};

/// Weights from the scenario's network, such as its consensus.
#[derive(Clone, Copy, Debug)]
pub struct Given;

impl Balance for Given {
    fn asks(&self) -> Asks {
        Asks::default()
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        vec![None; evidence.relays()]
    }

    fn is_given(&self) -> bool {
        true
    }
}

/// Weights are relays' own reports, as in Tor before 2009.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelfReports;

impl Balance for SelfReports {
    fn asks(&self) -> Asks {
        Asks { rounds: 1, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        evidence.last().reports.iter().copied().map(Some).collect()
    }
}

/// Weights are the true capacities, which only a simulator knows: the upper bound of what weights achieve.
#[derive(Clone, Copy, Debug)]
pub struct Truth;

impl Balance for Truth {
    fn asks(&self) -> Asks {
        Asks { ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        evidence.capacities.iter().copied().map(Some).collect()
    }
}
