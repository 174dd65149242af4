//! Schedules for a whole network: number of slots, failures, new relays, several coordinators (sections 4.3 and
//! 7).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use tidegate_control::flashflow::quota::PER_PERIOD;
use tidegate_control::flashflow::schedule::{
    Group, RelayId, Schedule, ScheduledRelay, Secret, guess_for_new, pack, place_shared,
};
use tidegate_control::flashflow::{MeasurementParameters, Verdict};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};

/// A relay of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Member {
    /// Identity.
    pub id: RelayId,
    /// Address, if known: relays of one address share a slot.
    pub address: Option<Ipv4Addr>,
    /// Capacity as the coordinator guesses it.
    pub guess: Rate,
    /// True capacity.
    pub capacity: Rate,
}

/// A team and its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Deployment {
    /// The team's capacity.
    pub team: Rate,
    /// The deployment's parameters.
    pub parameters: MeasurementParameters,
    /// Length of a slot.
    pub slot: Span,
    /// Time in which every relay is measured.
    pub period: Span,
    /// Seed in place of the coordinators' secrets; it also decides which measurements fail.
    pub seed: Seed,
}

/// A random schedule of one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// Number of slots in the period.
    pub slots: u32,
    /// Number of relays with a slot.
    pub placed: usize,
    /// Number of relays that found no slot with room.
    pub unplaced: usize,
    /// Number of slots with at least one relay.
    pub used: usize,
    /// The smallest number of slots that a draw chose from.
    pub fewest_choices: usize,
}

/// Cost of repeating measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeated {
    /// Number of measurements.
    pub attempts: usize,
    /// Number of slots that they need.
    pub slots: usize,
    /// Number of relays without a conclusive result after the two attempts of a period.
    pub open: usize,
}

/// How long new relays wait for their first measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Newcomers {
    /// The guess for new relays.
    pub guess: Rate,
    /// Number of consensuses replayed after the first.
    pub consensuses: usize,
    /// Number of new relays in a consensus: median and maximum.
    pub new: (usize, usize),
    /// Time until all new relays of a consensus are measured: median and longest; zero without new relays.
    pub wait: (Span, Span),
    /// Number of relays that found no slot in their period.
    pub unplaced: usize,
}

/// Schedules of several coordinators, each with its own team.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Several {
    /// Number of coordinators.
    pub coordinators: usize,
    /// How often two coordinators measure a relay in the same slot if each draws alone. The second one must
    /// repeat.
    pub meetings: usize,
    /// Number of relays without a slot: if each coordinator draws alone, and if all share one secret.
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

    /// Number of slots without a random schedule.
    pub fn fastest(&self, network: &[Member]) -> usize {
        let demands: Vec<Rate> = network.iter().map(|relay| self.parameters.demand(relay.guess)).collect();
        pack(&demands, self.team)
    }

    /// Draws a random schedule.
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

    /// Measures every relay at most twice, until its result is conclusive.
    ///
    /// `failures` is the probability that a measurement fails.
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

    /// Replays consensuses to find out how long new relays wait.
    ///
    /// Relays of the first consensus are known. Others are new when they first appear, and get the first slots
    /// with room beside the relays of the network.
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
            // New relays of a period share the slots that its known relays leave.
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

    /// Schedules several coordinators, each with a team like this one.
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

/// The network for the scheduler. A relay without a known address gets a unique one.
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
        // 3 Gbit/s hold 10 x 295.3 Mbit/s.
        assert_eq!(deployment().fastest(&network), 100);
        let drawn = deployment().drawn(&network);
        assert_eq!((drawn.slots, drawn.placed, drawn.unplaced), (2880, 1000, 0));
        assert!(drawn.fewest_choices > 2500 && drawn.used > 800, "{drawn:?}");
    }

    #[test]
    fn failed_and_underestimated_measurements_are_repeated_once() {
        let mut network = network(100, 100);
        assert_eq!(deployment().repeated(&network, 0.0), Repeated { attempts: 100, slots: 10, open: 0 });
        assert_eq!(deployment().repeated(&network, 1.0).open, 100);
        // A relay twice as fast as guessed needs two measurements. One four times as fast stays open.
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
        // A slot holds ten relays of 100 Mbit/s: 3 relays take one slot, 52 take six.
        let newcomers = deployment().newcomers(&[], &hours, Rate(100_000_000));
        assert_eq!(newcomers.new, (3, 52));
        assert_eq!(newcomers.wait, (Span::from_secs(30), Span::from_secs(180)));
        assert_eq!((newcomers.consensuses, newcomers.unplaced), (3, 0));
    }

    #[test]
    fn coordinators_meet_only_if_they_draw_alone() {
        let several = deployment().several(&network(3000, 10), 3);
        // Three pairs of coordinators meet with a chance of 1 in 2880 each: about three meetings in 3000
        // relays.
        assert!((1..20).contains(&several.meetings), "{several:?}");
        assert_eq!(several.unplaced, (0, 0));
        assert_eq!(deployment().several(&network(10, 10), 1).meetings, 0);
    }
}
