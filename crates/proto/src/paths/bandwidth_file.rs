//! The weights of a bandwidth file instead of the consensus', as if all authorities had voted by it.

use std::collections::BTreeMap;

use tidegate_control::positions::PositionWeights;

use super::policy::{Candidates, Directory, Policy, RelayEntry, by_positions};

/// Weights in kB/s by relay, as a bandwidth file has them
/// ([`tidegate_control::flashflow::bandwidth_file`]); relays that are not in it are never chosen.
#[derive(Clone, Debug)]
pub struct BandwidthFile {
    /// By the digest of the relay's identity key.
    pub weights: BTreeMap<[u8; 20], u64>,
}

impl Policy for BandwidthFile {
    fn candidates(&self, directory: &Directory) -> Candidates {
        let weight =
            |relay: &RelayEntry| self.weights.get(&relay.identity).map_or(0.0, |weight| *weight as f64);
        // With other weights the authorities would share the classes otherwise among the positions.
        let weighed = directory.relays.iter().map(|relay| (relay.class, weight(relay)));
        by_positions(directory, &PositionWeights::balancing(weighed), weight)
    }
}
