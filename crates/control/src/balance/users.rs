//! Users on each relay, as likelihood estimators expect them: from weights, reports and speeds of downloads.
//!
//! MLEFlow's model (Darir and others, PoPETs 2022): users arrive independently and choose relays by weight, so the number
//! on a relay has a Poisson distribution. A relay divides its capacity equally. The mean of that distribution is the
//! number of users of the whole network times the relay's share; one relay's own speed says nothing about it.

use super::{Evidence, Round};
use crate::positions::PositionWeights;

/// A download through a relay, and the users among which it competed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sight {
    /// Speed of the download, bytes per second.
    pub speed: f64,
    /// Mean number of users on the relay.
    pub users: f64,
    /// The share of the relay's users that another relay of their path slows down below `speed`.
    pub elsewhere: f64,
    /// The rate of those, as a mean over all users of the relay, bytes per second.
    pub slowed: f64,
}

impl Sight {
    /// A user's mean part of the relay's capacity while a fair part is `speed`, bytes per second.
    pub(crate) fn rate(&self) -> f64 {
        self.slowed + (1.0 - self.elsewhere) * self.speed
    }
}

/// Which relay is the slowest of a user's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slowest {
    /// Always the relay in question (MLEFlow's model).
    This,
    /// The relay of the path with the lowest speed in this round (ProbFlow's model).
    Any,
}

/// The downloads through each relay over all rounds, oldest first.
pub(super) fn sights(evidence: &Evidence, slowest: Slowest) -> Vec<Vec<Sight>> {
    let mut all = vec![Vec::new(); evidence.relays()];
    for round in &evidence.rounds {
        let positions = probabilities(evidence, round);
        let speeds: Vec<Option<f64>> = (0..evidence.relays()).map(|relay| mean_speed(round, relay)).collect();
        let slowed = match slowest {
            Slowest::This => vec![(0.0, 0.0); evidence.relays()],
            Slowest::Any => slower_elsewhere(&positions, &speeds),
        };
        let sight = |relay: usize, speed: f64| Sight {
            speed,
            users: positions.iter().map(|position| position[relay]).sum(),
            elsewhere: slowed[relay].0,
            slowed: slowed[relay].1,
        };
        // The load of the network over the load of one user.
        let (mut load, mut each) = (0.0, 0.0);
        for (relay, speed) in speeds.iter().enumerate().filter_map(|(relay, speed)| Some((relay, (*speed)?)))
        {
            let one = sight(relay, speed);
            load += round.reports[relay];
            each += one.users * one.rate();
        }
        let users = load / each;
        for (relay, sights) in all.iter_mut().enumerate() {
            let probes = round.probes.get(relay).into_iter().flatten().filter(|speed| **speed > 0.0);
            let expected = |speed: &f64| {
                let one = sight(relay, *speed);
                // A relay that no user can choose still has a finite likelihood.
                Sight { users: (one.users * users).max(1e-9), ..one }
            };
            sights.extend(probes.map(expected));
        }
    }
    all
}

/// The mean speed of a round's downloads through a relay.
fn mean_speed(round: &Round, relay: usize) -> Option<f64> {
    let probes: Vec<f64> = round.probes.get(relay)?.iter().copied().filter(|speed| *speed > 0.0).collect();
    (!probes.is_empty()).then(|| probes.iter().sum::<f64>() / probes.len() as f64)
}

/// The probability that a user chooses each relay, by position of a circuit.
fn probabilities(evidence: &Evidence, round: &Round) -> [Vec<f64>; 3] {
    let relays = || evidence.classes.iter().copied().zip(round.weights.iter().copied());
    let weights = PositionWeights::balancing(relays());
    [PositionWeights::guard, PositionWeights::middle, PositionWeights::exit].map(|position| {
        let of = relays().map(|(class, weight)| position(&weights, class) as f64 * weight);
        let of: Vec<f64> = of.collect();
        let sum: f64 = of.iter().sum();
        of.into_iter().map(|part| if sum > 0.0 { part / sum } else { 0.0 }).collect()
    })
}

/// Per relay, the share of its users that another relay of their path slows down, and their rate as a mean over all users.
fn slower_elsewhere(positions: &[Vec<f64>; 3], speeds: &[Option<f64>]) -> Vec<(f64, f64)> {
    let known = speeds.iter().enumerate().filter_map(|(relay, speed)| Some((relay, (*speed)?)));
    let mut order: Vec<(usize, f64)> = known.collect();
    order.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut all = vec![(0.0, 0.0); speeds.len()];
    // Of each position, the probability that its relay is faster than `last`; of each pair of positions, the integral up
    // to `last` of the probability that both are faster.
    let (mut faster, mut both, mut last) = ([1.0_f64; 3], [0.0; 3], 0.0);
    for (relay, speed) in order {
        let pair =
            |position: usize, faster: &[f64; 3]| faster[(position + 1) % 3] * faster[(position + 2) % 3];
        (0..3).for_each(|position| both[position] += pair(position, &faster) * (speed - last));
        last = speed;
        let used: f64 = positions.iter().map(|position| position[relay]).sum();
        for position in (0..3).filter(|_| used > 0.0) {
            let (part, clear) = (positions[position][relay] / used, pair(position, &faster));
            all[relay].0 += part * (1.0 - clear);
            all[relay].1 += part * (both[position] - speed * clear);
        }
        faster
            .iter_mut()
            .zip(positions)
            .for_each(|(faster, position)| *faster = (*faster - position[relay]).max(0.0));
    }
    all
}
