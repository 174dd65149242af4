//! Consensus weights times the position's weight (path-spec 2.2, dir-spec 3.8.3).

use tidegate_control::positions::PositionWeights;

use super::policy::{Candidates, Directory, Policy, by_positions};

/// The rule of tor's clients.
#[derive(Clone, Copy, Debug)]
pub struct Tor;

impl Policy for Tor {
    fn candidates(&self, directory: &Directory) -> Candidates {
        let weighed = directory.relays.iter().map(|relay| (relay.class, relay.weight));
        let positions = directory.positions.unwrap_or_else(|| PositionWeights::balancing(weighed));
        by_positions(directory, &positions, |relay| relay.weight)
    }
}
