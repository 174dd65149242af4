//! What clients know of relays, and how much each counts for a position.

use std::fmt;

use tidegate_control::positions::{Class, PositionWeights};

use crate::cell::RelayId;

/// A relay as clients know it.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayEntry {
    /// How circuits name it.
    pub id: RelayId,
    /// How people name it.
    pub name: String,
    /// The digest of its identity key; zeros if it has none.
    pub identity: [u8; 20],
    /// The positions that it may take.
    pub class: Class,
    /// What clients weigh it by: the consensus weight, in kB/s.
    pub weight: f64,
    /// Bytes per second that it says it can carry (the bandwidth of its descriptor); 0 if it says nothing.
    pub advertised: f64,
    /// Relays of the same operator. Both list each other; relatives of a relative need not be relatives.
    pub relatives: Vec<RelayId>,
    /// Relays of one IPv4 /16 have the same number above zero.
    pub network: u32,
}

impl RelayEntry {
    /// A relay that nothing is known of: no name, no weight, no family, fit for the middle.
    pub fn new(id: RelayId) -> RelayEntry {
        RelayEntry {
            id,
            name: String::new(),
            identity: [0; 20],
            class: Class::Middle,
            weight: 0.0,
            advertised: 0.0,
            relatives: Vec::new(),
            network: 0,
        }
    }
}

/// All relays that clients may choose, and how the classes' bandwidth is shared among positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directory {
    /// The relays.
    pub relays: Vec<RelayEntry>,
    /// The consensus' own `bandwidth-weights`; without them those that authorities would compute.
    pub positions: Option<PositionWeights>,
}

/// Who is drawn for which position, with which weight; weights are above zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// For the guard position.
    pub guards: Vec<(RelayId, f64)>,
    /// For the middle position.
    pub middles: Vec<(RelayId, f64)>,
    /// For the exit position.
    pub exits: Vec<(RelayId, f64)>,
}

/// How much a relay counts for a position.
pub trait Policy: fmt::Debug + Send + Sync {
    /// Everybody who can be drawn.
    fn candidates(&self, directory: &Directory) -> Candidates;
}

/// The candidates by tor's rule, each relay weighing what `weight` says.
pub(super) fn by_positions(
    directory: &Directory,
    positions: &PositionWeights,
    weight: impl Fn(&RelayEntry) -> f64,
) -> Candidates {
    let mut candidates = Candidates::default();
    for relay in &directory.relays {
        for (list, share) in [
            (&mut candidates.guards, positions.guard(relay.class)),
            (&mut candidates.middles, positions.middle(relay.class)),
            (&mut candidates.exits, positions.exit(relay.class)),
        ] {
            let weight = weight(relay) * share as f64 / positions.scale as f64;
            if weight > 0.0 {
                list.push((relay.id, weight));
            }
        }
    }
    candidates
}
