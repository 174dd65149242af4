//! Weights for a network from a balance system ([`tidegate_control::balance`]): surveys the network before a run, in
//! rounds, by the means that the system asks for. Clients of the run select relays by the weights that it publishes.
//!
//! A round is a run of the same network under the same system; clients select by the weights of the previous round.
//! Probes are downloads that load relays and wait in their queues. Measurements use [`crate::world`]'s FlashFlow roles.

mod failure;
mod scanner;
mod sybils;
mod team;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use tidegate_control::balance::{
    Evidence, Round, Trick, advantage, attackers_share, capacity_error, publish, weight_error,
};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::Reason;
use tidegate_proto::paths::Selector;

use crate::plan::{Directory, Plan, RelayEntry, System, UserPlan};
use crate::world;
pub use failure::Failure;
use watch::Watch;

/// Bytes per second of the consensus' unit.
const KILO: f64 = 1000.0;

/// The result of a survey.
#[derive(Clone, Debug)]
pub struct Balanced {
    /// Network weight error (`NWE`): shares of weight against shares of capacity.
    pub weight_error: f64,
    /// Network capacity error (`NCE`): the capacity that estimates miss, if weights are estimates of capacities.
    pub capacity_error: Option<f64>,
    /// Attackers' share of weight over their share of capacity; `None` without attackers.
    pub advantage: Option<f64>,
    /// Attackers' shares of weight and of capacity; `None` without attackers.
    pub attackers_shares: Option<[f64; 2]>,
    /// Of circuits by these weights, the share with one of their relays at both ends, and with one anywhere.
    pub circuits_seen: Option<[f64; 2]>,
    /// Relays without a weight from the system.
    pub unweighed: usize,
    /// Measurements that failed, over all rounds, by [reason](Reason::name).
    pub failed: BTreeMap<&'static str, u32>,
    /// Rounds of all authorities.
    pub rounds: u32,
    /// Simulated time of them.
    pub surveyed: Span,
    /// Per relay of the directory: its weight and its capacity, bytes per second.
    pub relays: Vec<(f64, f64)>,
}

/// A network under survey.
struct Surveyed<'a> {
    plan: &'a Plan,
    system: &'a System,
    /// Each relay's capacity while the other relays of its machine are idle.
    abilities: Vec<f64>,
    malicious: Vec<bool>,
}

/// Weighs the relays of a plan's directory as the system says, and gives the directory these weights. `None` if clients
/// use the directory's own weights. Sybils join the network.
///
/// # Errors
/// [`Failure`] if clients cannot use the weights.
pub fn weigh(
    plan: &mut Plan,
    system: &System,
    seed: Seed,
    progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> Result<Option<Balanced>, Failure> {
    if system.balance.is_given() {
        return Ok(None);
    }
    let capacity = |relay: &RelayEntry| plan.hosts[relay.id.0 as usize].capacity();
    let mut capacities: Vec<f64> = plan.directory.relays.iter().map(capacity).collect();
    if capacities.iter().any(|c| !c.is_finite()) || capacities.iter().all(|c| *c <= 0.0) {
        return Err(Failure::NoCapacity);
    }
    let attack = &system.attack;
    let mut malicious = holding(&capacities, attack.share, &seed.fork("malicious"), &[]);
    let mut trusted = holding(&capacities, system.survey.trusted, &seed.fork("trusted"), &malicious);
    let mut abilities = capacities.clone();
    // Sybils share the machine of the relay that they copy, so they add no capacity.
    if attack.trick == Trick::Sybils {
        sybils::join(plan, &mut abilities, &mut malicious, attack.factor as u32);
        capacities.resize(abilities.len(), 0.0);
        trusted.resize(abilities.len(), false);
    }
    let surveyed = Surveyed { plan, system, abilities, malicious };
    let mut balanced = surveyed.weigh(&capacities, &trusted, seed, progress)?;
    plan.directory = std::mem::take(&mut balanced.0);
    Ok(Some(balanced.1))
}

/// Relays drawn at random until they have that share of the capacity, none of `others`.
fn holding(capacities: &[f64], share: f64, seed: &Seed, others: &[bool]) -> Vec<bool> {
    let mut random = seed.random();
    let mut order: Vec<usize> =
        (0..capacities.len()).filter(|relay| others.get(*relay) != Some(&true)).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last + 1));
    }
    let (wanted, mut have) = (share * capacities.iter().sum::<f64>(), 0.0);
    let mut chosen = vec![false; capacities.len()];
    for relay in order {
        if have < wanted && have + capacities[relay] <= wanted * 1.5 {
            chosen[relay] = true;
            have += capacities[relay];
        }
    }
    chosen
}

/// Keeps this many users, spread evenly over all classes.
fn present(users: &mut Vec<UserPlan>, share: f64) {
    let mut number = 0.0;
    users.retain(|_| {
        number += share;
        number.floor() > (number - share).floor()
    });
}

/// The directory with other weights; authorities redistribute the classes over the positions.
fn weighed(directory: &Directory, weights: &[f64]) -> Directory {
    let mut directory = Directory { positions: None, ..directory.clone() };
    for (relay, weight) in directory.relays.iter_mut().zip(weights) {
        relay.weight = weight / KILO;
    }
    directory
}

impl Surveyed<'_> {
    /// All authorities' surveys, and what becomes of the directory.
    fn weigh(
        &self,
        capacities: &[f64],
        trusted: &[bool],
        seed: Seed,
        progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
    ) -> Result<(Directory, Balanced), Failure> {
        let (system, directory) = (self.system, &self.plan.directory);
        let (mut files, mut rounds, mut time, mut reports) = (Vec::new(), 0, Span::ZERO, Vec::new());
        let mut failed = BTreeMap::new();
        for authority in 0..system.survey.files {
            let mut evidence = Evidence {
                classes: directory.relays.iter().map(|relay| relay.class).collect(),
                capacities: capacities.to_vec(),
                trusted: trusted.to_vec(),
                rounds: Vec::new(),
            };
            let branch = seed.fork("authority").fork_index(authority.into());
            let (took, reasons) = self.survey(&mut evidence, branch, progress)?;
            time = time + took;
            reasons.iter().for_each(|reason| *failed.entry(reason.name()).or_default() += 1);
            rounds += evidence.rounds.len() as u32;
            reports = evidence.rounds.last().map_or_else(Vec::new, |round| round.reports.clone());
            files.push(system.balance.weigh(&evidence));
        }
        let weights = publish(&files, &reports).map_err(Failure::Unweighed)?;
        let directory = weighed(directory, &weights);
        let selector = Selector::new(&directory, &system.paths).map_err(Failure::Position)?;
        let estimates = system.balance.asks().measurements.is_some() || rounds == 0;
        let attacked = self.malicious.contains(&true);
        let unweighed = |relay: &usize| files.iter().all(|file| file[*relay].is_none());
        let balanced = Balanced {
            weight_error: weight_error(&weights, capacities),
            capacity_error: estimates.then(|| capacity_error(&weights, capacities)),
            advantage: attacked.then(|| advantage(&weights, capacities, &self.malicious)),
            attackers_shares: attacked
                .then(|| [&weights[..], capacities].map(|all| attackers_share(all, &self.malicious))),
            circuits_seen: attacked.then(|| self.circuits_seen(&selector, &seed.fork("circuits"))),
            unweighed: (0..weights.len()).filter(unweighed).count(),
            failed,
            rounds,
            surveyed: time,
            relays: weights.into_iter().zip(capacities.iter().copied()).collect(),
        };
        Ok((directory, balanced))
    }

    /// Draws circuits as clients without a guard do.
    fn circuits_seen(&self, selector: &Selector, seed: &Seed) -> [f64; 2] {
        const DRAWN: u32 = 10_000;
        let theirs: BTreeSet<_> = (self.plan.directory.relays.iter().zip(&self.malicious))
            .filter_map(|(relay, malicious)| malicious.then_some(relay.id))
            .collect();
        let (mut random, mut seen) = (seed.random(), [0.0; 2]);
        for _ in 0..DRAWN {
            let path = selector.draw(&mut random, &mut None).map(|relay| theirs.contains(&relay));
            seen[0] += f64::from(path[0] && path[2]) / f64::from(DRAWN);
            seen[1] += f64::from(path.contains(&true)) / f64::from(DRAWN);
        }
        seen
    }

    /// All rounds of one authority; returns their duration, and why measurements failed.
    fn survey(
        &self,
        evidence: &mut Evidence,
        seed: Seed,
        progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
    ) -> Result<(Span, Vec<Reason>), Failure> {
        let (plan, system) = (self.plan, self.system);
        let asks = system.balance.asks();
        let mut weights: Vec<f64> = plan.directory.relays.iter().map(|relay| relay.weight * KILO).collect();
        let mut guesses = self.first_guesses();
        let (mut time, mut failed) = (Span::ZERO, Vec::new());
        for number in 0..asks.rounds {
            let seed = seed.fork_index(number.into());
            let mut round = plan.clone();
            round.duration = system.survey.duration;
            round.sample_every = watch::SECOND;
            round.trace_one_in = 0;
            round.directory = weighed(&plan.directory, &self.used(&weights));
            // Weights of zero can leave a position of a circuit without relays.
            Selector::new(&round.directory, &system.paths).map_err(Failure::Position)?;
            present(&mut round.users, system.survey.users);
            let mut probed = Vec::new();
            if asks.probes > 0 {
                probed =
                    scanner::add(&mut round, [asks.probes, asks.beside], &weights, seed.fork("scanner"))?;
            }
            if let Some(team) = &asks.measurements {
                let attackers = team::Attackers { attack: &system.attack, malicious: &self.malicious };
                team::add(&mut round, team, &guesses, &attackers, &seed.fork("slots"))?;
            }
            let (run, end) = (Time::ZERO + plan.duration, Time::ZERO + round.duration);
            for user in &mut round.users {
                // A user that stays until the end of the run stays until the end of the survey, which may be longer.
                user.stop = if user.stop >= run { end } else { user.stop.min(end) };
            }
            let mut watch = Watch::new(&round, &plan.directory, probed);
            let end = world::run(&round, system, seed.fork("run"), &mut watch, progress);
            if end.stopped {
                return Err(Failure::Stopped);
            }
            time = time + round.duration;
            failed.append(&mut watch.failed);
            let seen = self.attacked(watch.round(&weights), round.duration);
            if let Some(team) = &asks.measurements {
                team::judge(&seen, &mut guesses, team);
            }
            let more = guesses.iter().any(Option::is_some);
            evidence.rounds.push(seen);
            let reports = &evidence.last().reports;
            weights = publish(&[system.balance.weigh(evidence)], reports).map_err(Failure::Unweighed)?;
            if asks.measurements.is_some() && !more {
                break;
            }
        }
        Ok((time, failed))
    }

    /// A team's first guesses of relays' capacities, from their reports, in bits per second.
    fn first_guesses(&self) -> Vec<Option<f64>> {
        let relays = self.plan.directory.relays.iter().zip(&self.malicious).zip(&self.abilities);
        let guess = |((relay, malicious), ability): ((&RelayEntry, &bool), &f64)| {
            let said = if relay.advertised > 0.0 { relay.advertised } else { relay.weight * KILO };
            let said = if *malicious { self.system.attack.report(said, *ability) } else { said };
            Some((said * 8.0).max(team::LEAST_GUESS))
        };
        relays.map(guess).collect()
    }

    /// Clients' weights in a survey: a client refused by a relay uses another.
    fn used(&self, weights: &[f64]) -> Vec<f64> {
        let attack = &self.system.attack;
        let refuses = |malicious: bool| malicious && attack.trick == Trick::Refuse;
        let relays = weights.iter().zip(&self.malicious);
        relays
            .map(|(weight, malicious)| if refuses(*malicious) { attack.serves * weight } else { *weight })
            .collect()
    }

    /// Applies the attackers' lies to a round's observations.
    fn attacked(&self, mut round: Round, duration: Span) -> Round {
        let attack = &self.system.attack;
        for relay in (0..self.malicious.len()).filter(|relay| self.malicious[*relay]) {
            round.reports[relay] = attack.report(round.reports[relay], self.abilities[relay]);
        }
        attack.frame(&mut round.seen, &self.malicious, &self.abilities, duration.as_secs_f64());
        round
    }
}
