//! Weights that nobody measures: those that the network came with, what relays say, and what they can really do.

use super::{Asks, Balance, Evidence};

/// Weights are those that the network came with: its consensus'.
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

/// Weights are what relays say of themselves, as in Tor before 2009.
#[derive(Clone, Copy, Debug)]
pub struct SelfReports;

impl Balance for SelfReports {
    fn asks(&self) -> Asks {
        Asks { rounds: 1, ..Asks::default() }
    }

    fn weigh(&self, evidence: &Evidence) -> Vec<Option<f64>> {
        evidence.last().reports.iter().copied().map(Some).collect()
    }
}

/// Weights are the capacities, which nobody knows: the bound of what weights can do.
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
