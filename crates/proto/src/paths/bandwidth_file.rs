//! Weights from a bandwidth file, as if all authorities had voted with it.

use std::collections::BTreeMap;

use tidegate_control::positions::PositionWeights;

use super::policy::{Candidates, Directory, Policy, RelayEntry, by_positions};

/// Weights in kB/s from a bandwidth file ([`tidegate_control::flashflow::bandwidth_file`]). Relays that are not in it
/// are never chosen.
#[derive(Clone, Debug)]
pub struct BandwidthFile {
    /// Weight by digest of the relay's identity key.
    pub weights: BTreeMap<[u8; 20], u64>,
}

impl Policy for BandwidthFile {
    fn candidates(&self, directory: &Directory) -> Candidates {
        let weight =
            |relay: &RelayEntry| self.weights.get(&relay.identity).map_or(0.0, |weight| *weight as f64);
        // Authorities compute the position weights from the relays' weights, so other weights change both.
        let weighed = directory.relays.iter().map(|relay| (relay.class, weight(relay)));
        by_positions(directory, &PositionWeights::balancing(weighed), weight)
    }

    fn is_foreign(&self, directory: &Directory) -> bool {
        !directory.relays.iter().any(|relay| self.weights.contains_key(&relay.identity))
    }
}
