//! A whole network measured by a team: how many slots it takes, and what chance, failures, newcomers and a second
//! coordinator add (sections 4.3 and 7).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use tidegate_control::flashflow::MeasurementParameters;
use tidegate_control::flashflow::accept::Verdict;
use tidegate_control::flashflow::quota::PER_PERIOD;
use tidegate_control::flashflow::schedule::{
    Group, RelayId, Schedule, ScheduledRelay, Secret, guess_for_new, pack, place_shared,
};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};

/// A relay of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Its identity.
    pub id: RelayId,
    /// Where it is, if that is known: relays of one address share a slot.
    pub address: Option<Ipv4Addr>,
    /// What the coordinator believes it forwards.
    pub guess: Rate,
    /// What it forwards.
    pub capacity: Rate,
}

/// Who measures, and how.
#[derive(Clone, Copy, Debug)]
pub struct Deployment {
    /// The team's capacity.
    pub team: Rate,
    /// The deployment's parameters.
    pub parameters: MeasurementParameters,
    /// Length of a slot.
    pub slot: Span,
    /// How often every relay is measured.
    pub period: Span,
    /// Stands for the coordinators' secrets, and decides who fails.
    pub seed: Seed,
}

/// A random secret schedule of a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// Slots of the period.
    pub slots: u32,
    /// Relays that have one.
    pub placed: usize,
    /// Relays that found none with room.
    pub unplaced: usize,
    /// Slots in which somebody is measured.
    pub used: usize,
    /// The least number of slots that a relay's was drawn from.
    pub fewest_choices: usize,
}

/// What measurements cost that must be repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeated {
    /// Measurements.
    pub attempts: usize,
    /// Slots that hold them.
    pub slots: usize,
    /// Relays without a conclusive result after the two attempts that a period allows.
    pub open: usize,
}

/// How long relays that were never seen before wait for their first measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Newcomers {
    /// The guess for them.
    pub guess: Rate,
    /// Consensuses that were replayed, after the first.
    pub consensuses: usize,
    /// New relays in one: median and most.
    pub new: (usize, usize),
    /// Until all new relays of a consensus are measured: median and longest. Without any it is zero.
    pub wait: (Span, Span),
    /// Relays that found no slot before their period ended.
    pub unplaced: usize,
}

/// Several coordinators, each with a team of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Several {
    /// How many.
    pub coordinators: usize,
    /// Times that two of them meet at a relay in one slot, if each draws alone: one finds it busy and must repeat.
    pub meetings: usize,
    /// Relays without a slot with one of them, if each draws alone, and if all draw from one secret (then nobody meets).
    pub unplaced: (usize, usize),
}

impl Deployment {
    fn slots(&self) -> u32 {
        (self.period.0 / self.slot.0.max(1)).min(u64::from(u32::MAX)) as u32
    }

    fn empty(&self) -> Schedule {
        Schedule::new(self.slots(), self.team, self.parameters)
    }

    fn secret(&self, whose: u64, period: u64) -> Secret {
        let own = self.seed.fork_index(whose).value().to_be_bytes();
        Secret::derive(b"", &own, period)
    }

    /// Slots if nothing is left to chance.
    pub fn fastest(&self, network: &[Member]) -> usize {
        let demands: Vec<Rate> = network.iter().map(|relay| self.parameters.demand(relay.guess)).collect();
        pack(&demands, self.team)
    }

    /// The random secret schedule.
    pub fn drawn(&self, network: &[Member]) -> Drawn {
        let mut schedule = self.empty();
        let without = schedule.place_old(&relays(network), &self.secret(0, 0));
        Drawn {
            slots: self.slots(),
            placed: schedule.placements().len(),
            unplaced: without.iter().map(|group| group.relays.len()).sum(),
            used: schedule.used_slots(),
            fewest_choices: schedule.fewest_choices().unwrap_or(0),
        }
    }

    /// Everybody is measured until the result is conclusive, at most twice, and a measurement fails with `failures`.
    pub fn repeated(&self, network: &[Member], failures: f64) -> Repeated {
        let mut random = self.seed.fork("failures").random();
        let (mut demands, mut open) = (Vec::new(), 0);
        for relay in network {
            let mut guess = relay.guess;
            let concluded = (0..PER_PERIOD).any(|_| {
                let allocated = self.parameters.demand(guess).min(self.team);
                demands.push(allocated);
                if random.chance(failures) {
                    return false;
                }
                match self.parameters.judge(relay.capacity.min(allocated), guess, allocated) {
                    Verdict::Conclusive(_) => true,
                    Verdict::Again { guess: next } => {
                        guess = next;
                        false
                    }
                }
            });
            open += usize::from(!concluded);
        }
        Repeated { attempts: demands.len(), slots: pack(&demands, self.team), open }
    }

    /// Replays consensuses: relays of the first are known, others are new when they first appear, and get the first
    /// slots with room beside those of the network.
    pub fn newcomers(
        &self,
        network: &[Member],
        hours: &BTreeMap<u64, Vec<RelayId>>,
        guess: Rate,
    ) -> Newcomers {
        let (slot_s, period_s) = (self.slot.0 / 1_000_000_000, self.period.0 / 1_000_000_000);
        let mut consensuses = hours.iter();
        let mut seen: BTreeSet<RelayId> =
            consensuses.next().map(|(_, relays)| relays.iter().copied().collect()).unwrap_or_default();
        let (mut counts, mut waits, mut unplaced) = (Vec::new(), Vec::new(), 0);
        let mut current: Option<(u64, Schedule)> = None;
        let old = relays(network);
        for (unix, relays) in consensuses {
            let new: Vec<RelayId> = relays.iter().copied().filter(|id| seen.insert(*id)).collect();
            counts.push(new.len());
            let (period, now) = (unix / period_s, ((unix % period_s) / slot_s) as u32);
            if current.as_ref().is_none_or(|(of, _)| *of != period) {
                let mut schedule = self.empty();
                schedule.place_old(&old, &self.secret(0, period));
                current = Some((period, schedule));
            }
            let Some((_, schedule)) = &mut current else { continue };
            let mut last = None;
            for id in &new {
                let relay =
                    ScheduledRelay { id: *id, guess, address: Ipv4Addr::UNSPECIFIED.into(), family: None };
                let group = Group { demand: self.parameters.demand(guess), relays: vec![relay] };
                match schedule.place_next(&group, now) {
                    Some(slot) => last = last.max(Some(slot)),
                    None => unplaced += 1,
                }
            }
            waits.push(last.map_or(0, |slot| u64::from(slot - now) + 1));
        }
        counts.sort_unstable();
        waits.sort_unstable();
        let span = |slots: u64| self.slot * slots;
        let middle = |values: &[u64]| values.get(values.len() / 2).copied().unwrap_or(0);
        Newcomers {
            guess,
            consensuses: counts.len(),
            new: (counts.get(counts.len() / 2).copied().unwrap_or(0), counts.last().copied().unwrap_or(0)),
            wait: (span(middle(&waits)), span(waits.last().copied().unwrap_or(0))),
            unplaced,
        }
    }

    /// The guess for new relays: the 75th percentile of the network.
    pub fn guess_for_new(&self, network: &[Member]) -> Option<Rate> {
        guess_for_new(&network.iter().map(|relay| relay.capacity).collect::<Vec<_>>())
    }

    /// Several coordinators, each with a team like this one, apart and together.
    pub fn several(&self, network: &[Member], coordinators: usize) -> Several {
        let relays = relays(network);
        let mut alone = vec![self.empty(); coordinators];
        let mut without = 0;
        for (n, schedule) in alone.iter_mut().enumerate() {
            let left = schedule.place_old(&relays, &self.secret(n as u64, 0));
            without += left.iter().map(|group| group.relays.len()).sum::<usize>();
        }
        let mut seen = BTreeSet::new();
        let places = alone.iter().flat_map(|schedule| schedule.placements());
        let meetings = places.filter(|place| !seen.insert((place.relay, place.slot))).count();
        let mut together = vec![self.empty(); coordinators];
        let left = place_shared(&mut together, &relays, &self.secret(0, 0));
        let together = left.iter().map(|group| group.relays.len()).sum();
        Several { coordinators, meetings, unplaced: (without, together) }
    }
}

/// The network as the schedule knows it; who has no known address has one of its own.
fn relays(network: &[Member]) -> Vec<ScheduledRelay> {
    let own = |n: usize| IpAddr::from((n as u128 + 1).to_be_bytes());
    let relay = |(n, member): (usize, &Member)| ScheduledRelay {
        id: member.id,
        guess: member.guess,
        address: member.address.map_or(own(n), IpAddr::from),
        family: None,
    };
    network.iter().enumerate().map(relay).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Deployment {
        Deployment {
            team: Rate(3_000_000_000),
            parameters: MeasurementParameters::default(),
            slot: Span::from_secs(30),
            period: Span::from_secs(86_400),
            seed: Seed::root(1),
        }
    }

    fn network(relays: u32, mbit: u64) -> Vec<Member> {
        let member = |n: u32| {
            let mut id = [0; 20];
            id[..4].copy_from_slice(&n.to_be_bytes());
            let rate = Rate(mbit * 1_000_000);
            Member { id, address: None, guess: rate, capacity: rate }
        };
        (0..relays).map(member).collect()
    }

    #[test]
    fn ten_relays_of_100_mbit_share_a_slot() {
        let network = network(1000, 100);
        // 10 x 295.3 Mbit/s fit into 3 Gbit/s.
        assert_eq!(deployment().fastest(&network), 100);
        let drawn = deployment().drawn(&network);
        assert_eq!((drawn.slots, drawn.placed, drawn.unplaced), (2880, 1000, 0));
        assert!(drawn.fewest_choices > 2500 && drawn.used > 800, "{drawn:?}");
    }

    #[test]
    fn what_fails_or_was_guessed_too_low_is_repeated_once() {
        let mut network = network(100, 100);
        assert_eq!(deployment().repeated(&network, 0.0), Repeated { attempts: 100, slots: 10, open: 0 });
        assert_eq!(deployment().repeated(&network, 1.0).open, 100);
        // Twice as fast as guessed: twice measured, the second time with twice the team. Four times: still open.
        network[0].capacity = Rate(200_000_000);
        network[1].capacity = Rate(400_000_000);
        let repeated = deployment().repeated(&network, 0.0);
        assert_eq!((repeated.attempts, repeated.open), (102, 1));
    }

    #[test]
    fn newcomers_wait_for_room_behind_each_other() {
        let new = network(60, 1);
        let ids = |range: std::ops::Range<usize>| new[range].iter().map(|relay| relay.id).collect::<Vec<_>>();
        let hours =
            BTreeMap::from([(0, ids(0..5)), (3600, ids(0..8)), (7200, ids(0..8)), (10_800, ids(0..60))]);
        // Ten of 100 Mbit/s in a slot: 3 in one, none, 52 in six.
        let newcomers = deployment().newcomers(&[], &hours, Rate(100_000_000));
        assert_eq!(newcomers.new, (3, 52));
        assert_eq!(newcomers.wait, (Span::from_secs(30), Span::from_secs(180)));
        assert_eq!((newcomers.consensuses, newcomers.unplaced), (3, 0));
    }

    #[test]
    fn coordinators_meet_only_if_they_draw_alone() {
        let several = deployment().several(&network(3000, 10), 3);
        // Three pairs, one chance in 2880 each: about three in three thousand relays.
        assert!((1..20).contains(&several.meetings), "{several:?}");
        assert_eq!(several.unplaced, (0, 0));
        assert_eq!(deployment().several(&network(10, 10), 1).meetings, 0);
    }
}
