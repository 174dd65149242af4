//! The relays of a period, by position and weight, and which of them never share a circuit.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::positions::{Class, PositionWeights};
use tidegate_control::random::Random;
use tidegate_data::consensus::{Consensus, Identity, RouterStatus};
use tidegate_data::weights::{class_of, is_usable};

/// Draws that may hit excluded relays before the exact sum over the allowed ones is taken.
const ATTEMPTS: u32 = 64;

/// All relays of all periods, numbered. Addresses, families and ports of a relay hold for all periods.
#[derive(Clone, Debug, Default)]
pub(super) struct Roster {
    numbers: BTreeMap<Identity, u32>,
    subnets: Vec<u16>,
    relatives: Vec<Vec<u32>>,
    /// Whether the adversary runs it.
    pub(super) adversary: Vec<bool>,
    /// The user's ports that it exits to, a bit for each.
    ports: Vec<u8>,
}

impl Roster {
    /// Numbers the relays of these consensuses. Of a relay in several, the last one counts.
    pub(super) fn new(
        consensuses: &[Consensus],
        families: &BTreeMap<Identity, BTreeSet<Identity>>,
        adversary: &BTreeSet<Identity>,
        ports: &[u16],
    ) -> Roster {
        let all = || consensuses.iter().flat_map(|consensus| &consensus.relays);
        let identities: BTreeSet<Identity> = all().map(|relay| relay.identity).collect();
        let numbers: BTreeMap<Identity, u32> = identities.into_iter().zip(0..).collect();
        let count = numbers.len();
        let mut roster = Roster {
            subnets: vec![0; count],
            relatives: vec![Vec::new(); count],
            adversary: vec![false; count],
            ports: vec![0; count],
            numbers,
        };
        for relay in all() {
            let number = roster.numbers[&relay.identity] as usize;
            roster.subnets[number] = (u32::from(relay.address) >> 16) as u16;
            roster.ports[number] = exit_ports(relay, ports);
            roster.adversary[number] = adversary.contains(&relay.identity);
        }
        for (identity, relatives) in families {
            let Some(number) = roster.numbers.get(identity) else { continue };
            let known = relatives.iter().filter_map(|relative| roster.numbers.get(relative).copied());
            roster.relatives[*number as usize] = known.collect();
        }
        roster
    }

    /// Whether two relays never share a circuit: the same relay, a family, or a /16 (path-spec 2.2).
    pub(super) fn clash(&self, one: u32, other: u32) -> bool {
        let (first, second) = (one as usize, other as usize);
        one == other || self.subnets[first] == self.subnets[second] || self.relatives[first].contains(&other)
    }

    /// Whether a relay exits to the user's port of this index.
    pub(super) fn exits_to(&self, relay: u32, port: usize) -> bool {
        self.ports[relay as usize] & (1 << port) != 0
    }
}

/// The user's ports that a relay exits to, a bit for each. Without a policy the flag `Exit` stands for all.
fn exit_ports(relay: &RouterStatus, ports: &[u16]) -> u8 {
    let exits = |port: u16| match &relay.ports {
        Some(policy) => policy.allows(port),
        None => relay.flags.exit(),
    };
    let bits = ports.iter().enumerate().filter(|(_, port)| exits(**port)).map(|(index, _)| 1 << index);
    if relay.flags.bad_exit() { 0 } else { bits.sum() }
}

/// Relays of one position with their weights.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightedRelays {
    relays: Vec<u32>,
    /// Sums of the weights up to each relay.
    sums: Vec<f64>,
}

impl WeightedRelays {
    fn push(&mut self, relay: u32, weight: f64) {
        if weight > 0.0 {
            self.relays.push(relay);
            self.sums.push(self.total() + weight);
        }
    }

    fn total(&self) -> f64 {
        self.sums.last().copied().unwrap_or(0.0)
    }

    /// Number of relays.
    pub(super) fn len(&self) -> usize {
        self.relays.len()
    }

    /// Draws an allowed relay by weight; `None` if none is allowed.
    pub(super) fn draw(&self, random: &mut Random, allowed: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..ATTEMPTS {
            let point = random.unit() * self.total();
            let relay = *self.relays.get(self.sums.partition_point(|sum| *sum <= point))?;
            if allowed(relay) {
                return Some(relay);
            }
        }
        let mut rest = WeightedRelays::default();
        for (index, relay) in self.relays.iter().enumerate().filter(|(_, relay)| allowed(**relay)) {
            rest.push(*relay, self.sums[index] - index.checked_sub(1).map_or(0.0, |last| self.sums[last]));
        }
        let point = random.unit() * rest.total();
        rest.relays.get(rest.sums.partition_point(|sum| *sum <= point)).copied()
    }

    /// The share of the weight of relays that satisfy a condition.
    pub(super) fn share(&self, of: impl Fn(u32) -> bool) -> f64 {
        let before = |index: usize| index.checked_sub(1).map_or(0.0, |last| self.sums[last]);
        let weights =
            self.relays.iter().enumerate().map(|(index, relay)| (*relay, self.sums[index] - before(index)));
        // The sum of no weights is -0, which would be printed.
        let sum = 0.0 + weights.filter(|(relay, _)| of(*relay)).map(|(_, weight)| weight).sum::<f64>();
        sum / self.total()
    }
}

/// The network in a period.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// Relays that clients sample as guards.
    pub(super) guards: WeightedRelays,
    pub(super) middles: WeightedRelays,
    /// Exits to each of the user's ports.
    pub(super) exits: Vec<WeightedRelays>,
    listed: Vec<bool>,
}

impl Network {
    /// Weighs the relays of a consensus for each position.
    pub(super) fn new(
        consensus: &Consensus,
        positions: &PositionWeights,
        roster: &Roster,
        ports: usize,
    ) -> Network {
        let mut network = Network {
            guards: WeightedRelays::default(),
            middles: WeightedRelays::default(),
            exits: vec![WeightedRelays::default(); ports],
            listed: vec![false; roster.subnets.len()],
        };
        // The built-in networks do not have this flag.
        let directories = consensus.known_flags.iter().any(|flag| flag == "V2Dir");
        for relay in consensus.relays.iter().filter(|relay| is_usable(relay)) {
            let number = roster.numbers[&relay.identity];
            let (class, bandwidth) = (class_of(relay), f64::from(relay.bandwidth));
            let weight = |share: i64| bandwidth * share as f64 / positions.scale as f64;
            network.middles.push(number, weight(positions.middle(class)));
            // tor: node_is_possible_guard
            if relay.flags.guard() && relay.flags.stable() && (relay.flags.v2dir() || !directories) {
                network.guards.push(number, weight(positions.guard(class)));
                network.listed[number as usize] = true;
            }
            for (port, exits) in network.exits.iter_mut().enumerate() {
                if roster.exits_to(number, port) {
                    exits.push(number, weight(exit_weight(positions, class)));
                }
            }
        }
        network
    }

    /// Whether the consensus lists a relay as a possible guard.
    pub(super) fn is_guard(&self, relay: u32) -> bool {
        self.listed[relay as usize]
    }
}

/// The weight of a class in the exit position. Relays may exit to some ports without the flag `Exit`.
fn exit_weight(positions: &PositionWeights, class: Class) -> i64 {
    match class {
        Class::Exit | Class::GuardExit => positions.exit(class),
        Class::Guard => positions.eg,
        Class::Middle => positions.em,
    }
}
