//! FlashFlow's team in a survey: slots, one after the other, in which relays are measured.

use tidegate_control::balance::{Attack, Round, Team, Trick};
use tidegate_control::flashflow::{MeasurementParameters, Verdict, allocate, share_sockets};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};

use super::failure::{Failure, place};
use crate::plan::{Fault, FaultKind, HostPlan, LinkPlan, MeasurementPlan, Plan, QueuePlan, Role};

/// Lowest expected capacity, in bits per second.
pub(super) const LEAST_GUESS: f64 = 1e6;
/// Before and after a measurement: connections, circuits, and what is still under way.
const SET_UP: Span = Span::from_secs(8);
/// After the last slot: a relay gives up a measurement that took fifteen seconds to begin, under load.
const TAIL: Span = Span::from_secs(10);

/// The attack and the malicious relays.
pub(super) struct Attackers<'a> {
    pub attack: &'a Attack,
    pub malicious: &'a [bool],
}

impl Attackers<'_> {
    /// Number of relays that they flood at the same time.
    fn floods(&self) -> usize {
        if self.attack.trick == Trick::Flood { self.attack.factor as usize } else { 0 }
    }
}

/// Adds the team, and a measurement of every relay with a guess (bits per second), in a slot drawn from those with
/// room.
pub(super) fn add(
    plan: &mut Plan,
    team: &Team,
    guesses: &[Option<f64>],
    attack: &Attackers<'_>,
    seed: &Seed,
) -> Result<(), Failure> {
    let location = place(plan)?;
    let first = plan.hosts.len() as u32;
    let queue = QueuePlan::DropTail { packets: u32::MAX, bytes: team.rate.0 / 160 };
    let link = LinkPlan { rate: team.rate, queue };
    let mut host = |name: String, role| {
        plan.hosts.push(HostPlan { name, role, location, colocated: None, up: link, down: link });
    };
    (1..=team.measurers).for_each(|number| host(format!("measurer{number}"), Role::Measurer));
    let coordinator = first + u32::from(team.measurers);
    host("coordinator".into(), Role::Coordinator);
    let parameters = MeasurementParameters::default();
    let slot = Span::from_secs(team.seconds.into()) + SET_UP;
    let slots = slots(team, guesses, seed);
    for (number, relays) in slots.iter().enumerate() {
        // The largest stand first.
        let others = relays.iter().map(|(relay, _)| *relay).filter(|relay| !attack.malicious[*relay]);
        let from = Time::ZERO + slot * number as u64;
        plan.faults.extend(others.take(attack.floods()).map(|relay| Fault {
            kind: FaultKind::LinkDown { host: plan.directory.relays[relay].id.0 },
            from,
            until: from + slot,
        }));
        for (relay, shares) in relays {
            let sockets = share_sockets(team.sockets, shares);
            let members = (first..).zip(shares).zip(sockets);
            plan.measurements.push(MeasurementPlan {
                relay: plan.directory.relays[*relay].id.0,
                coordinator,
                team: members.map(|((host, rate), sockets)| (host, *rate, sockets)).collect(),
                start: from,
                seconds: team.seconds,
                background_percent: team.background,
                check_one_in: parameters.check_one_in,
                holds: attack.malicious[*relay] && attack.attack.trick == Trick::Hold,
                slow: 0.0,
            });
        }
    }
    plan.duration = slot * slots.len().max(1) as u64 + TAIL;
    Ok(())
}

/// The relays measured in each slot, with their share of each measurer.
type Slots = Vec<Vec<(usize, Vec<Rate>)>>;

/// The largest relays first, each in a slot drawn from those with room. There are as many as the sum of all needs, and
/// more where those do not do.
fn slots(team: &Team, guesses: &[Option<f64>], seed: &Seed) -> Slots {
    let parameters = MeasurementParameters::default();
    let whole = vec![team.rate; team.measurers.into()];
    let most = Rate(team.rate.0 * u64::from(team.measurers));
    let needed = |guess: f64| parameters.demand(Rate(guess as u64)).min(most);
    let known = guesses.iter().enumerate().filter_map(|(relay, guess)| Some((relay, needed((*guess)?))));
    let mut order: Vec<(usize, Rate)> = known.collect();
    order.sort_by_key(|(relay, needed)| (std::cmp::Reverse(*needed), *relay));
    let sum: u64 = order.iter().map(|(_, needed)| needed.0).sum();
    // The fewest slots that could hold all measurements; relays without room in them add slots.
    let least = sum.div_ceil(most.0) as usize;
    let (mut left, mut slots) = (vec![whole.clone(); least], vec![Vec::new(); least]);
    let mut random = seed.random();
    for (relay, needed) in order {
        let room = |slot: &usize| left[*slot].iter().map(|rate: &Rate| rate.0).sum::<u64>() >= needed.0;
        let free: Vec<usize> = (0..left.len()).filter(room).collect();
        let number = if free.is_empty() {
            left.push(whole.clone());
            slots.push(Vec::new());
            slots.len() - 1
        } else {
            free[random.below(free.len())]
        };
        let shares = allocate(&left[number], needed).expect("there is room");
        left[number].iter_mut().zip(&shares).for_each(|(left, share)| left.0 -= share.0);
        slots[number].push((relay, shares));
    }
    slots
}

/// Decides which relays are measured again: those that keep a guess. Until then their result is a lower bound.
pub(super) fn judge(round: &Round, guesses: &mut [Option<f64>], team: &Team) {
    let parameters = MeasurementParameters::default();
    let most = Rate(team.rate.0 * u64::from(team.measurers));
    for (measured, guess) in round.measured.iter().zip(guesses) {
        let (Some(estimate), Some(before)) = (*measured, *guess) else { continue };
        let (z, z0) = (Rate::from_bytes_per_s(estimate as u64), Rate(before as u64));
        let allocated = parameters.demand(z0).min(most);
        match parameters.judge(z, z0, allocated) {
            // The team has used all its capacity, so the result stays a lower bound.
            Verdict::Again { guess: next } if allocated < most => *guess = Some(next.0 as f64),
            Verdict::Again { .. } | Verdict::Conclusive(_) => *guess = None,
        }
    }
}
