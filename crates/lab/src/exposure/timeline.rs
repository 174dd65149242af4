//! The networks of the simulated days, from one or several consensuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_data::consensus::{Consensus, Identity, RouterStatus};
use tidegate_data::weights::computed;

use super::adversary::Adversary;
use super::guards::DAY;
use super::network::{Network, Roster};

/// The network of each day.
///
/// Between two consensuses, each relay changes from its entry in one to its entry in the next at a moment drawn
/// uniformly. The last consensus holds for all later days.
pub(super) fn timeline(
    consensuses: &[Consensus],
    roster: &Roster,
    adversary: &Adversary,
    (days, ports): (u32, usize),
    seed: Seed,
) -> Vec<Arc<Network>> {
    let build = |mut consensus: Consensus| {
        adversary.join(&mut consensus);
        // As TorPS does, because the stated position weights are those of the network without the adversary.
        Arc::new(Network::new(&consensus, &computed(&consensus), roster, ports))
    };
    let start = consensuses[0].valid_after;
    let mut last: Option<Arc<Network>> = None;
    let network = |day: u32| {
        let now = start + u64::from(day) * DAY as u64;
        let next = consensuses.partition_point(|consensus| consensus.valid_after <= now);
        match consensuses.get(next) {
            Some(after) => build(between(&consensuses[next - 1], after, now, seed)),
            None => Arc::clone(last.get_or_insert_with(|| build(consensuses[next - 1].clone()))),
        }
    };
    (0..days).map(network).collect()
}

/// The network at a moment between two consensuses.
fn between(before: &Consensus, after: &Consensus, now: u64, seed: Seed) -> Consensus {
    let elapsed = (now - before.valid_after) as f64 / (after.valid_after - before.valid_after) as f64;
    let seed = seed.fork("changes").fork_index(before.valid_after);
    let changed = |relay: &RouterStatus| {
        let digest = relay.identity.0.chunks(4).fold(seed, |seed, part| {
            seed.fork_index(part.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        });
        digest.random().unit() < elapsed
    };
    let mut relays: BTreeMap<Identity, &RouterStatus> = BTreeMap::new();
    relays.extend(before.relays.iter().filter(|relay| !changed(relay)).map(|relay| (relay.identity, relay)));
    relays.extend(after.relays.iter().filter(|relay| changed(relay)).map(|relay| (relay.identity, relay)));
    Consensus {
        relays: relays.into_values().cloned().collect(),
        known_flags: before.known_flags.clone(),
        params: before.params.clone(),
        bandwidth_weights: BTreeMap::new(),
        ..*before
    }
}
