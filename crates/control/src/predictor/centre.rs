//! A strictly feasible, exactly centred start for the interior point method.

use super::form::{EXACT, Limits, ROOM, STATES, blocks, goals, left_by_fixed};
use super::iterate::{Interior, Out, Pair, Row, Step};
use super::lane::LANES;
use super::problem::Problem;

/// The share of its fair share that a rate gets at the start.
const START: f64 = 0.7;
/// Complementarity at the end, relative to the weights of the rates.
const END_GAP: f64 = 3e-10;

/// Loads a checked problem with circuits and a capacity above zero, and a centred interior point; `middle` as in
/// [`goals`].
pub(super) fn load<const M: usize, const O: usize>(
    core: &mut Interior<M, O>,
    problem: &Problem,
    limits: &Limits,
    middle: &[f64],
) {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let weights = &problem.weights;
    let share = 1.0 / n as f64;
    fill_costs(core, problem);
    core.steps.clear();
    core.steps.resize(blocks(n) * steps, Step::EMPTY);
    inner_rates(problem, limits, START, |circuit, step, rates: [f64; M], free| {
        let at = &mut core.steps[circuit / LANES * steps + step];
        for m in 0..M {
            at.rate[m].0[circuit % LANES] = rates[m];
            at.free[m].0[circuit % LANES] = f64::from(u8::from(free[m]));
        }
    });
    fill_goals(core, problem, middle);
    core.ahead = 1.0;

    let overflow = weights.overflow * problem.dt * problem.scaling * n as f64 / problem.capacity;
    let overflow = overflow.min(EXACT * (weights.input + weights.output));
    core.coupling.clear();
    core.coupling.resize(M * steps, Row::ABSENT);
    let press = pressure(problem, limits, overflow, |circuit, step| {
        let rate = &core.steps[circuit / LANES * steps + step].rate;
        rate[0].0[circuit % LANES] - rate[1].0[circuit % LANES]
    });
    core.scale.gap = END_GAP / (1.0 + press[0] / weights.output);
    for block in 0..blocks(n) {
        for lane in 0..LANES {
            let circuit = block * LANES + lane;
            let bounds = (circuit < n).then(|| limits.of(circuit));
            let (mut queues, mut moving) = ([0.0; M], [false; M]);
            for (step, at) in core.steps[block * steps..][..steps].iter_mut().enumerate() {
                let cost = core.scale.cost[step].map(|cost| cost + press[step]);
                for m in 0..M {
                    let (rate, free) = (at.rate[m].0[lane], at.free[m].0[lane] > 0.0);
                    let row = &mut core.coupling[step * M + m];
                    queues[m] += rate;
                    row.slack -= rate;
                    if free {
                        moving[m] = true;
                        row.weight = cost[m];
                        put(&mut at.lower[m], lane, rate, cost[m], share);
                    }
                }
                let reach = (step + 1) as f64;
                let Some(bounds) = &bounds else { continue };
                for (o, out) in at.out.iter_mut().enumerate() {
                    let room = bounds.queue_room - (queues[0] - queues[o + 1]);
                    let weight = cost[o + 1] * room.abs().clamp(0.1 * share, share);
                    if problem.queue_bound(circuit) <= ROOM * problem.capacity * problem.dt {
                        out.toll.0[lane] = overflow;
                    } else if bounds.queue_room < reach.min(bounds.steps[step].least_source) {
                        put_soft(out, lane, room, weight, overflow);
                    }
                }
                if moving[0] && bounds.steps[step].source < reach {
                    put(&mut at.source, lane, bounds.steps[step].source - queues[0], cost[0], share);
                }
                if at.free[1].0[lane] > 0.0 && bounds.steps[step].limit < 1.0 {
                    let room = bounds.steps[step].limit - at.rate[1].0[lane];
                    put(&mut at.out[0].limit, lane, room, cost[1], share);
                }
                for (o, out) in at.out.iter_mut().enumerate() {
                    if moving[o + 1] && bounds.queue < reach {
                        let room = bounds.queue + queues[0] - queues[o + 1];
                        put(&mut out.low, lane, room, cost[o + 1], share);
                    }
                }
            }
        }
    }
    weigh(core);
}

/// The goal of each circuit's rates, step by step.
fn fill_goals<const M: usize, const O: usize>(core: &mut Interior<M, O>, problem: &Problem, middle: &[f64]) {
    let steps = problem.horizon;
    for circuit in 0..problem.circuits() {
        for step in 0..steps {
            let goals = goals(&problem.weights, middle.get(circuit * steps + step));
            let at = &mut core.steps[circuit / LANES * steps + step];
            for (goal, value) in at.goal.iter_mut().zip(goals) {
                goal.0[circuit % LANES] = value;
            }
        }
    }
}

/// The curvature of the objective, step by step.
fn fill_costs<const M: usize, const O: usize>(core: &mut Interior<M, O>, problem: &Problem) {
    core.scale.horizon = problem.horizon;
    core.scale.cost.clear();
    for step in 0..problem.horizon {
        let discount = problem.weights.discount(step);
        core.scale.cost.push(problem.weights.rates().map(|weight| 2.0 * discount * weight));
    }
}

/// Prices of the shared capacities, and the sum of all weights.
fn weigh<const M: usize, const O: usize>(core: &mut Interior<M, O>) {
    core.scale.weights = 0.0;
    for at in &core.steps {
        let outs = at.out.iter().flat_map(|out| [&out.limit, &out.low, &out.high, &out.over]);
        let pairs = at.lower.iter().chain([&at.source]).chain(outs);
        core.scale.weights += pairs.map(|pair| pair.weight.sum()).sum::<f64>();
    }
    for row in &mut core.coupling {
        if row.weight > 0.0 {
            row.weight *= row.slack;
            row.price = row.weight / row.slack;
        }
        core.scale.weights += row.weight;
    }
}

/// Pressure of queues that start near or above their bound on the rates of each step: the largest sum of their
/// penalties from that step on. `net`: the growth of a circuit's queue in a step at the start.
pub(super) fn pressure(
    problem: &Problem,
    limits: &Limits,
    overflow: f64,
    net: impl Fn(usize, usize) -> f64,
) -> [f64; STATES] {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let mut press = [0.0f64; STATES];
    for circuit in 0..n {
        let room = limits.of(circuit).queue_room;
        let (mut grown, mut near) = (0.0, [false; STATES]);
        for (step, near) in near.iter_mut().enumerate().take(steps) {
            grown += net(circuit, step);
            *near = room - grown < 1.0 / n as f64;
        }
        let mut own = 0.0;
        for step in (0..steps).rev() {
            own += if near[step] { overflow } else { 0.0 };
            press[step] = press[step].max(own);
        }
    }
    press
}

/// Starts a pair with a price near that of the rates, and a slack of at least a fair share.
fn put(pair: &mut Pair, lane: usize, room: f64, price: f64, share: f64) {
    let slack = room.max(share);
    set(pair, lane, slack, price * slack.min(10.0 * share));
    pair.excess.0[lane] = slack - room;
}

fn set(pair: &mut Pair, lane: usize, slack: f64, weight: f64) {
    pair.slack.0[lane] = slack;
    pair.price.0[lane] = weight / slack;
    pair.weight.0[lane] = weight;
}

fn put_soft(out: &mut Out, lane: usize, room: f64, weight: f64, cost: f64) {
    let (slack, excess) = soft_centre(room, weight, cost);
    set(&mut out.high, lane, slack, weight);
    set(&mut out.over, lane, excess, weight);
}

/// The centre of a soft bound with a linear cost: slack `h` and excess `e` with `h - e = room`; their
/// multipliers `weight/h` and `weight/e` add up to the cost.
pub(super) fn soft_centre(room: f64, weight: f64, cost: f64) -> (f64, f64) {
    let root = (cost * room).hypot(2.0 * weight);
    // Compute first the one of h and e that is not a difference of large numbers.
    if room >= 0.0 {
        let slack = (cost * room + 2.0 * weight + root) / (2.0 * cost);
        (slack, weight / (cost - weight / slack))
    } else {
        let excess = (-cost * room + 2.0 * weight + root) / (2.0 * cost);
        (weight / (cost - weight / excess), excess)
    }
}

/// Gives every free rate a part of its fair share of the capacity, within every bound, with room for
/// later steps. Calls `put` with each circuit and step, the rates, and whether they are free.
pub(super) fn inner_rates<const M: usize>(
    problem: &Problem,
    limits: &Limits,
    part: f64,
    mut put: impl FnMut(usize, usize, [f64; M], [bool; M]),
) {
    let (n, steps) = (problem.circuits(), problem.horizon);
    let share = 1.0 / n as f64;
    let left = left_by_fixed(problem);
    for circuit in 0..n {
        let bounds = limits.of(circuit);
        let mut queues = [0.0; M];
        for step in 0..steps {
            // Rates with room are free, and take the smaller of their fair share and their room.
            let later = (steps - step + 1) as f64;
            let take = |fair: f64, room: f64, own: f64| match room.min(own) > ROOM {
                false => (0.0, false),
                true => (part * fair.min(own).min(room / later), true),
            };
            let (mut rates, mut free) = ([0.0; M], [false; M]);
            for m in 0..M {
                (rates[m], free[m]) = match (m, bounds.steps[step].fixed) {
                    (0, Some(rate)) => (rate, false),
                    (0, None) => {
                        take(share * left[step], bounds.steps[step].least_source - queues[0], left[step])
                    }
                    (1, _) => take(share, bounds.queue + queues[0] - queues[1], bounds.steps[step].limit),
                    _ => take(share, bounds.queue + queues[0] - queues[m], 1.0),
                };
                queues[m] += rates[m];
            }
            put(circuit, step, rates, free);
        }
    }
}
