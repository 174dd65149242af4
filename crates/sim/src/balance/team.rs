//! FlashFlow's team in a survey: slots, one after the other, in which relays are measured.

use tidegate_control::balance::Round;
use tidegate_control::balance::attack::Trick;
use tidegate_control::balance::team::Team;
use tidegate_control::flashflow::Parameters;
use tidegate_control::flashflow::accept::Verdict;
use tidegate_control::flashflow::allocate::{allocate, share_sockets};
use tidegate_control::units::{Rate, Span, Time};

use super::failure::{Failure, place};
use crate::plan::{HostPlan, LinkPlan, MeasurementPlan, Plan, QueuePlan, Role};

/// Nobody is expected to be slower, bits per second.
pub(super) const LEAST_GUESS: f64 = 1e6;
/// Before and after a measurement: connections, circuits, and what is still under way.
const SET_UP: Span = Span::from_secs(8);

/// Adds the team, and a measurement of every relay with a guess (bits per second).
pub(super) fn add(
    plan: &mut Plan,
    team: &Team,
    guesses: &[Option<f64>],
    malicious: &[bool],
    trick: Trick,
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
    let parameters = Parameters::default();
    let whole = vec![team.rate; team.measurers.into()];
    let most = Rate(team.rate.0 * u64::from(team.measurers));
    let mut order: Vec<(usize, f64)> =
        guesses.iter().enumerate().filter_map(|(relay, guess)| Some((relay, (*guess)?))).collect();
    order.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    let slot = Span::from_secs(team.seconds.into()) + SET_UP;
    let mut slots: Vec<Vec<Rate>> = Vec::new();
    for (relay, guess) in order {
        let needed = parameters.demand(Rate(guess as u64)).min(most);
        let room = |left: &Vec<Rate>| left.iter().map(|rate| rate.0).sum::<u64>() >= needed.0;
        let number = slots.iter().position(room).unwrap_or(slots.len());
        if number == slots.len() {
            slots.push(whole.clone());
        }
        let shares = allocate(&slots[number], needed).expect("there is room");
        slots[number].iter_mut().zip(&shares).for_each(|(left, share)| left.0 -= share.0);
        let sockets = share_sockets(team.sockets, &shares);
        let team_of = (first..).zip(shares).zip(sockets).map(|((host, rate), sockets)| (host, rate, sockets));
        plan.measurements.push(MeasurementPlan {
            relay: plan.directory.relays[relay].id.0,
            coordinator,
            team: team_of.collect(),
            start: Time::ZERO + slot * number as u64,
            seconds: team.seconds,
            background_percent: team.background,
            check_one_in: parameters.check_one_in,
            holds: malicious[relay] && trick == Trick::Hold,
            slow: 0.0,
        });
    }
    plan.duration = slot * slots.len().max(1) as u64;
    Ok(())
}

/// Decides who is measured again: those with a guess that remains. What was measured is a lower bound until then.
pub(super) fn judge(round: &Round, guesses: &mut [Option<f64>], team: &Team) {
    let parameters = Parameters::default();
    let most = Rate(team.rate.0 * u64::from(team.measurers));
    for (measured, guess) in round.measured.iter().zip(guesses) {
        let (Some(estimate), Some(before)) = (*measured, *guess) else { continue };
        let (z, z0) = (Rate::from_bytes_per_s(estimate as u64), Rate(before as u64));
        let allocated = parameters.demand(z0).min(most);
        match parameters.judge(z, z0, allocated) {
            // With all that the team has there is nothing more to try: a lower bound.
            Verdict::Again { guess: next } if allocated < most => *guess = Some(next.0 as f64),
            Verdict::Again { .. } | Verdict::Conclusive(_) => *guess = None,
        }
    }
}
