//! Schedules the measurements of a period (section 4.3).
//!
//! A period is divided into slots. Relays with an estimate get a slot drawn uniformly from those with room, the
//! largest relay first. Relays without one get the first slot with room, in the order of appearance. Relays
//! that share an address or a family are measured in one slot, so that none of them can lend its machine to the
//! others (section 5, limitations).
//!
//! The draws come from a [`Secret`]. The network's shared random value is public, so a coordinator mixes in its
//! own secret, and a relay cannot compute when it will be measured.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::MeasurementParameters;
use crate::units::Rate;

/// A relay's identity fingerprint, as in the consensus.
pub type RelayId = [u8; 20];

/// A relay to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduledRelay {
    /// Identity.
    pub id: RelayId,
    /// `z0`: its last estimate, or the guess for new relays ([`guess_for_new`]).
    pub guess: Rate,
    /// Listening address.
    pub address: IpAddr,
    /// Family number: relays with the same number declared each other as family.
    pub family: Option<u32>,
}

/// Relays that are measured in one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The members.
    pub relays: Vec<ScheduledRelay>,
    /// Capacity that the group needs: the sum of `f z0`.
    pub demand: Rate,
}

/// The guess for a relay without results: the 75th percentile of the measured capacities.
///
/// The percentile is the nearest rank; `None` if nothing was measured yet.
pub fn guess_for_new(measured: &[Rate]) -> Option<Rate> {
    let mut sorted = measured.to_vec();
    sorted.sort_unstable();
    sorted.get((sorted.len() * 3).div_ceil(4).saturating_sub(1)).copied()
}

/// Groups relays that share an address or a family, directly or through others.
///
/// Groups are in the order of their first relay.
pub fn group(relays: &[ScheduledRelay], parameters: &MeasurementParameters) -> Vec<Group> {
    let mut leader: Vec<usize> = (0..relays.len()).collect();
    fn find(leader: &mut [usize], mut i: usize) -> usize {
        while leader[i] != i {
            leader[i] = leader[leader[i]];
            i = leader[i];
        }
        i
    }
    // Union-find: the first relay of an address or family leads, so groups keep the order of appearance.
    let (mut by_address, mut by_family) = (BTreeMap::new(), BTreeMap::new());
    for (i, relay) in relays.iter().enumerate() {
        let neighbours = [
            Some(*by_address.entry(relay.address).or_insert(i)),
            relay.family.map(|family| *by_family.entry(family).or_insert(i)),
        ];
        for other in neighbours.into_iter().flatten() {
            let (a, b) = (find(&mut leader, i), find(&mut leader, other));
            leader[a.max(b)] = a.min(b);
        }
    }
    let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
    for (i, relay) in relays.iter().enumerate() {
        let first = find(&mut leader, i);
        let group = groups.entry(first).or_insert(Group { relays: Vec::new(), demand: Rate(0) });
        group.demand = Rate(group.demand.0.saturating_add(parameters.demand(relay.guess).0));
        group.relays.push(relay.clone());
    }
    groups.into_values().collect()
}

/// The key of a period's draws.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Derives the key from the shared random value, the coordinator's secret and the period's number.
    ///
    /// Uses HKDF-SHA256 (RFC 5869).
    pub fn derive(shared_random: &[u8], coordinator: &[u8], period: u64) -> Secret {
        let extract = Hkdf::<Sha256>::new(Some(b"tidegate flashflow schedule 1"), coordinator);
        let mut info = Vec::from(shared_random);
        info.extend_from_slice(&period.to_be_bytes());
        let mut key = [0; 32];
        extract.expand(&info, &mut key).expect("32 bytes are within HKDF's limit");
        Secret(key)
    }

    /// The `n`-th draw from `0..bound`.
    fn draw(&self, n: u64, bound: usize) -> usize {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any size");
        mac.update(&n.to_be_bytes());
        let block = mac.finalize().into_bytes();
        let bits = u64::from_be_bytes(block[..8].try_into().expect("a block has 32 bytes"));
        ((u128::from(bits) * bound as u128) >> 64) as usize
    }
}

/// The slot of one relay.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Slot number, from 0.
    pub slot: u32,
    /// The relay.
    pub relay: RelayId,
    /// `z0`.
    pub guess: Rate,
    /// Reserved capacity: `f z0`, or a proportional part of the team if the group needs more than the team has.
    pub reserved: Rate,
}

/// The slots of one period and what is reserved in them.
#[derive(Clone, Debug)]
pub struct Schedule {
    team: Rate,
    parameters: MeasurementParameters,
    left: Vec<Rate>,
    placements: Vec<Placement>,
    fewest_choices: usize,
}

/// Number of slots that a team needs for these demands without a random schedule.
///
/// Greedy: the largest demand first, each in the first slot with room (section 7). A demand above the team's
/// capacity takes a whole slot.
pub fn pack(demands: &[Rate], team: Rate) -> usize {
    let mut demands: Vec<u64> = demands.iter().map(|demand| demand.0.min(team.0)).collect();
    demands.sort_unstable_by(|a, b| b.cmp(a));
    let mut left: Vec<u64> = Vec::new();
    for demand in demands {
        match left.iter().position(|left| *left >= demand) {
            Some(slot) => left[slot] -= demand,
            None => left.push(team.0 - demand),
        }
    }
    left.len()
}

/// Groups in drawing order: the largest first, equal ones by identity.
///
/// The order of the input does not matter.
fn in_order(relays: &[ScheduledRelay], parameters: &MeasurementParameters) -> Vec<Group> {
    let mut groups = group(relays, parameters);
    for group in &mut groups {
        group.relays.sort_by_key(|relay| relay.id);
    }
    groups.sort_by_key(|group| (std::cmp::Reverse(group.demand), group.relays[0].id));
    groups
}

/// Draws slots for several teams from one secret, so that no two teams measure a relay in one slot.
///
/// Returns the groups that found no room, once per team.
pub fn place_shared(teams: &mut [Schedule], relays: &[ScheduledRelay], secret: &Secret) -> Vec<Group> {
    let Some(first) = teams.first() else { return Vec::new() };
    let (mut without_room, mut draws) = (Vec::new(), 0);
    for group in in_order(relays, &first.parameters.clone()) {
        let mut taken = Vec::new();
        for team in &mut *teams {
            match team.draw(&group, secret, draws, &taken) {
                Some(slot) => taken.push(slot),
                None => without_room.push(group.clone()),
            }
            draws += 1;
        }
    }
    without_room
}

impl Schedule {
    /// An empty period of `slots` slots for a team with that total capacity.
    pub fn new(slots: u32, team: Rate, parameters: MeasurementParameters) -> Schedule {
        Schedule {
            team,
            parameters,
            left: vec![team; slots as usize],
            placements: Vec::new(),
            fewest_choices: usize::MAX,
        }
    }

    /// Draws slots for relays with estimates; returns the groups that found no room.
    pub fn place_old(&mut self, relays: &[ScheduledRelay], secret: &Secret) -> Vec<Group> {
        let groups = in_order(relays, &self.parameters).into_iter().enumerate();
        groups
            .filter(|(n, group)| self.draw(group, secret, *n as u64, &[]).is_none())
            .map(|(_, group)| group)
            .collect()
    }

    /// Places a group in a slot drawn from those with room, except the slots in `without`.
    fn draw(&mut self, group: &Group, secret: &Secret, n: u64, without: &[u32]) -> Option<u32> {
        let need = group.demand.min(self.team);
        let fits = |slot: &u32| self.left[*slot as usize] >= need && !without.contains(slot);
        let room: Vec<u32> = (0..self.left.len() as u32).filter(fits).collect();
        if room.is_empty() {
            return None;
        }
        self.fewest_choices = self.fewest_choices.min(room.len());
        let slot = room[secret.draw(n, room.len())];
        self.place(slot, group);
        Some(slot)
    }

    /// The smallest number of slots that a draw chose from; `None` before the first draw.
    ///
    /// Without the secret, the chance to guess a slot is at most 1 in this number.
    pub fn fewest_choices(&self) -> Option<usize> {
        (self.fewest_choices != usize::MAX).then_some(self.fewest_choices)
    }

    /// Places a group in the first slot from `from` on that has room; `None` if no slot has.
    ///
    /// For new relays in the order of appearance, and for relays whose measurement was inconclusive.
    pub fn place_next(&mut self, group: &Group, from: u32) -> Option<u32> {
        let need = group.demand.min(self.team);
        let slot = (from..self.left.len() as u32).find(|&slot| self.left[slot as usize] >= need)?;
        self.place(slot, group);
        Some(slot)
    }

    fn place(&mut self, slot: u32, group: &Group) {
        let need = group.demand.min(self.team);
        let left = &mut self.left[slot as usize];
        *left = Rate(left.0 - need.0);
        for relay in &group.relays {
            let wanted = self.parameters.demand(relay.guess).0;
            let reserved = if group.demand <= self.team {
                wanted
            } else {
                (u128::from(wanted) * u128::from(need.0) / u128::from(group.demand.0)) as u64
            };
            let placement = Placement { slot, relay: relay.id, guess: relay.guess, reserved: Rate(reserved) };
            self.placements.push(placement);
        }
    }

    /// Number of slots in the period.
    pub fn slots(&self) -> u32 {
        self.left.len() as u32
    }

    /// All placements, in the order of placing.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The placements of one slot.
    pub fn in_slot(&self, slot: u32) -> impl Iterator<Item = &Placement> {
        self.placements.iter().filter(move |placement| placement.slot == slot)
    }

    /// Number of slots with at least one placement.
    pub fn used_slots(&self) -> usize {
        self.left.iter().filter(|left| **left < self.team).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn relay(n: u32, guess: u64) -> ScheduledRelay {
        let mut id = [0; 20];
        id[..4].copy_from_slice(&n.to_be_bytes());
        ScheduledRelay { id, guess: Rate(guess), address: IpAddr::from(n.to_be_bytes()), family: None }
    }

    fn network(n: u32) -> Vec<ScheduledRelay> {
        (1..=n).map(|i| relay(i, 1_000_000 * u64::from(1 + i * 7919 % 300))).collect()
    }

    const TEAM: Rate = Rate(3_000_000_000);

    fn secret(period: u64) -> Secret {
        Secret::derive(b"shared", b"own", period)
    }

    #[test]
    fn a_schedule_depends_on_the_secret_not_on_the_order_of_relays() {
        let place = |relays: &[ScheduledRelay], secret: &Secret| {
            let mut schedule = Schedule::new(2880, TEAM, MeasurementParameters::default());
            assert!(schedule.place_old(relays, secret).is_empty());
            schedule.placements().to_vec()
        };
        let relays = network(200);
        let mut reversed = relays.clone();
        reversed.reverse();
        assert_eq!(place(&relays, &secret(1)), place(&reversed, &secret(1)));
        assert_ne!(place(&relays, &secret(1)), place(&relays, &secret(2)));
        // The public value alone does not determine the schedule.
        assert_ne!(place(&relays, &secret(1)), place(&relays, &Secret::derive(b"shared", b"guessed", 1)));
    }

    #[test]
    fn slots_are_drawn_uniformly() {
        let relays: Vec<ScheduledRelay> = (1..=4000).map(|n| relay(n, 1_000)).collect();
        let mut schedule = Schedule::new(10, TEAM, MeasurementParameters::default());
        schedule.place_old(&relays, &secret(3));
        for slot in 0..10 {
            let count = schedule.in_slot(slot).count();
            assert!((320..480).contains(&count), "slot {slot} has {count} of 4000 relays, 400 expected");
        }
    }

    #[test]
    fn one_address_or_family_shares_a_slot_and_scales_down_when_too_large() {
        let mut relays = network(40);
        relays[3].address = relays[17].address;
        relays[17].family = Some(4);
        relays[29].family = Some(4);
        let mut schedule = Schedule::new(500, TEAM, MeasurementParameters::default());
        schedule.place_old(&relays, &secret(1));
        let slot_of = |i: usize| {
            let id = relays[i].id;
            schedule.placements().iter().find(|p| p.relay == id).expect("placed").slot
        };
        assert_eq!(slot_of(3), slot_of(17));
        assert_eq!(slot_of(17), slot_of(29));

        let giant = [
            relay(1, 900_000_000),
            ScheduledRelay { address: relay(1, 0).address, ..relay(2, 2_700_000_000) },
        ];
        let mut schedule = Schedule::new(2, TEAM, MeasurementParameters::default());
        assert!(schedule.place_old(&giant, &secret(1)).is_empty());
        let reserved: Vec<u64> = schedule.placements().iter().map(|p| p.reserved.0).collect();
        assert_eq!(reserved, [750_000_000, 2_250_000_000]);
    }

    #[test]
    fn new_relays_come_first_come_first_served_and_never_push_out_old_ones() {
        let parameters = MeasurementParameters::default();
        let mut schedule = Schedule::new(3, TEAM, parameters);
        let old = [relay(1, 1_000_000_000), relay(2, 1_000_000_000)];
        schedule.place_old(&old, &secret(9));
        let taken: Vec<u32> = schedule.placements().iter().map(|p| p.slot).collect();
        let new: Vec<Group> = (10..14).flat_map(|n| group(&[relay(n, 500_000_000)], &parameters)).collect();
        let slots: Vec<Option<u32>> = new.iter().map(|g| schedule.place_next(g, 0)).collect();
        let free = (0..3).find(|slot| !taken.contains(slot));
        // The old relays take 2.95 of 3 Gbit/s of their slots; the remaining slot holds two new relays.
        assert_eq!(slots, [free, free, None, None]);
        assert_eq!(schedule.place_next(&new[0], 3), None);
    }

    #[test]
    fn items_without_room_are_returned() {
        let mut schedule = Schedule::new(1, TEAM, MeasurementParameters::default());
        let left = schedule.place_old(&[relay(1, 600_000_000), relay(2, 700_000_000)], &secret(1));
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].relays[0].id, relay(1, 0).id, "the largest went first");
    }

    #[test]
    fn the_guess_for_new_relays_is_the_75th_percentile() {
        let rates: Vec<Rate> = (1..=8).rev().map(Rate).collect();
        assert_eq!(guess_for_new(&rates), Some(Rate(6)));
        assert_eq!(guess_for_new(&[Rate(9)]), Some(Rate(9)));
        assert_eq!(guess_for_new(&[]), None);
    }

    #[test]
    fn the_largest_go_first_into_the_first_slot_with_room() {
        let rates = |rates: &[u64]| rates.iter().map(|rate| Rate(*rate)).collect::<Vec<_>>();
        assert_eq!(pack(&rates(&[4, 5, 6, 5]), Rate(10)), 2);
        assert_eq!(pack(&rates(&[40, 1]), Rate(10)), 2, "what exceeds the team takes all of it");
        assert_eq!(pack(&[], Rate(10)), 0);
        // As many relays and as much capacity as in section 7: 608 * 2.953 / 3 = 599.
        let parameters = MeasurementParameters::default();
        let demands: Vec<Rate> =
            (1..=6419).map(|n| parameters.demand(Rate(608_000_000_000 / 6419 * 2 * n / 6420))).collect();
        assert_eq!(pack(&demands, TEAM), 599);
    }

    #[test]
    fn coordinators_that_share_a_secret_never_meet_at_a_relay() {
        let relays = network(300);
        let mut teams = vec![Schedule::new(400, TEAM, MeasurementParameters::default()); 3];
        assert!(place_shared(&mut teams, &relays, &secret(1)).is_empty());
        for relay in &relays {
            let slots: std::collections::BTreeSet<u32> = teams
                .iter()
                .flat_map(|team| team.placements().iter().filter(|p| p.relay == relay.id).map(|p| p.slot))
                .collect();
            assert_eq!(slots.len(), 3);
        }
        assert!(teams[0].fewest_choices().is_some_and(|choices| choices > 1));
        assert_eq!(place_shared(&mut [], &relays, &secret(1)), []);
    }

    proptest! {
        #[test]
        fn no_slot_is_ever_overbooked(guesses in prop::collection::vec(1u64..2_000_000_000, 1..60), period: u64) {
            let relays: Vec<ScheduledRelay> =
                guesses.iter().enumerate().map(|(i, &guess)| relay(i as u32 + 1, guess)).collect();
            let mut schedule = Schedule::new(20, TEAM, MeasurementParameters::default());
            let left = schedule.place_old(&relays, &secret(period));
            prop_assert_eq!(schedule.placements().len() + left.len(), relays.len());
            for slot in 0..20 {
                let sum: u64 = schedule.in_slot(slot).map(|p| p.reserved.0).sum();
                prop_assert!(sum <= TEAM.0);
            }
        }
    }
}
