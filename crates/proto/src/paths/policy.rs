//! Relays as clients know them, and their weights per position.

use std::fmt;

use tidegate_control::positions::{Class, PositionWeights};
use tidegate_control::units::Span;

use crate::cell::RelayId;

/// A relay as clients know it.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayEntry {
    /// Its number in circuits.
    pub id: RelayId,
    /// Its nickname.
    pub name: String,
    /// SHA-1 of its identity key; zeros without one.
    pub identity: [u8; 20],
    /// The positions that it may take.
    pub class: Class,
    /// Consensus weight in kB/s, by which clients choose it.
    pub weight: f64,
    /// Advertised bandwidth in bytes per second, from its descriptor; 0 if unknown.
    pub advertised: f64,
    /// Relays of the same operator. Both list each other; relatives of a relative need not be relatives.
    pub relatives: Vec<RelayId>,
    /// Relays of one IPv4 /16 have the same number above zero.
    pub network: u32,
}

impl RelayEntry {
    /// A relay without name, weight and family, usable in the middle position.
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

/// All relays that clients may choose, and the position weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directory {
    /// The relays.
    pub relays: Vec<RelayEntry>,
    /// The consensus' `bandwidth-weights`; if absent, they are computed as authorities do (dir-spec 3.8.3).
    pub positions: Option<PositionWeights>,
}

/// Relays per position, with weights above zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// For the guard position.
    pub guards: Vec<(RelayId, f64)>,
    /// For the middle position.
    pub middles: Vec<(RelayId, f64)>,
    /// For the exit position.
    pub exits: Vec<(RelayId, f64)>,
}

/// How a client compares paths before it uses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Paths that are compared for each circuit.
    pub paths: u32,
    /// Round trips that are measured over each path's circuit; 0: one path is chosen before a circuit is built.
    pub probes: u32,
}

/// A client's knowledge of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known<'a> {
    /// Sum of the one-way delays from guard to middle and from middle to exit.
    pub delay: Span,
    /// Round trips to the exit, as measured; empty before the circuit is built.
    pub round_trips: &'a [Span],
}

/// Rule that weighs relays per position, and compares the paths that are drawn from them.
pub trait Policy: fmt::Debug + Send + Sync {
    /// All relays that can be drawn.
    fn candidates(&self, directory: &Directory) -> Candidates;
    /// Whether the policy has a list of relays, and it is that of another network: it names none of these relays.
    fn is_foreign(&self, _directory: &Directory) -> bool {
        false
    }
    /// How a client compares paths; `None`: it uses the first that it draws.
    fn comparison(&self) -> Option<Comparison> {
        None
    }
    /// The cost of a path; of the compared paths a client uses the one with the lowest.
    fn cost(&self, _path: &Known<'_>) -> f64 {
        0.0
    }
}

/// The candidates by tor's position weights (path-spec 2.2), with `weight` instead of the consensus weight.
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
    // tor chooses uniformly among the relays of a position if the sum of their weights is zero
    // (`choose_array_element_by_weight`), as in a network before its first measurement.
    for (list, fits) in [
        (&mut candidates.guards, &[Class::Guard, Class::GuardExit][..]),
        (&mut candidates.middles, &Class::ALL[..]),
        (&mut candidates.exits, &[Class::Exit, Class::GuardExit][..]),
    ] {
        if list.is_empty() {
            let fitting = directory.relays.iter().filter(|relay| fits.contains(&relay.class));
            list.extend(fitting.map(|relay| (relay.id, 1.0)));
        }
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_without_weight_are_drawn_uniformly() {
        let relay =
            |number: u32, class, weight| RelayEntry { class, weight, ..RelayEntry::new(RelayId(number)) };
        let count = |guard, exit| {
            let relays = vec![
                relay(0, Class::Guard, guard),
                relay(1, Class::Guard, guard),
                relay(2, Class::Middle, 0.0),
                relay(3, Class::Exit, exit),
            ];
            let weighed = relays.iter().map(|relay| (relay.class, relay.weight));
            let positions = PositionWeights::balancing(weighed);
            let directory = Directory { relays, positions: None };
            let Candidates { guards, middles, exits } =
                by_positions(&directory, &positions, |relay| relay.weight);
            [guards.len(), middles.len(), exits.len()]
        };
        assert_eq!(count(0.0, 0.0), [2, 4, 1]);
        assert_eq!((count(10.0, 0.0)[0], count(10.0, 0.0)[2]), (2, 1), "one position without weight");
        assert_eq!((count(0.0, 10.0)[0], count(0.0, 10.0)[2]), (2, 1));
    }
}
