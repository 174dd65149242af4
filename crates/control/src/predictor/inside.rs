//! A strictly feasible, exactly centred start for the interior point method.

use super::circuit::Start;
use super::form::{EXACT, Limits, ROOM, STATES, blocks, left_by_fixed};
use super::four::Scratch;
use super::lane::{LANES, Lane};
use super::path::{Path, Row};
use super::point::{Common, Held, Place, Point, Progress};
use super::problem::Problem;
use super::riccati::{Factor, block_index};

/// The share of its fair share that a rate gets at the start.
const START: f64 = 0.85;
/// Complementarity at the end, relative to the weights of the rates.
const END: f64 = 1e-10;

/// Loads a checked problem with circuits and a capacity above zero.
pub(super) fn load<const M: usize, const O: usize>(
    path: &mut Path<M, O>,
    problem: &Problem,
    limits: &Limits,
) {
    let (n, weights) = (problem.circuits(), &problem.weights);
    let overflow = weights.overflow * problem.dt * problem.scaling * n as f64 / problem.capacity;
    path.overflow = overflow.min(EXACT * (weights.input + weights.output));
    prepare(path, problem);
    let (points, places) = (&mut path.points, &mut path.places);
    inner_rates(problem, limits, START, |circuit, step, rates: [f64; M], free| {
        let (at, lane) = (circuit / LANES * problem.horizon + step, circuit % LANES);
        for m in 0..M {
            points[at].rate[m].0[lane] = rates[m];
            places[at].free[m].0[lane] = f64::from(u8::from(free[m]));
        }
    });
    let press = pressure(problem, limits, path.overflow, |circuit, step| {
        let rate = &path.points[circuit / LANES * problem.horizon + step].rate;
        rate[0].0[circuit % LANES] - rate[1].0[circuit % LANES]
    });
    path.end = END / (1.0 + press[0] / weights.output);
    fill_costs(path, problem, &press);
    for circuit in 0..n {
        fill_prices(path, problem, limits, circuit);
    }
    for (index, row) in path.rows.iter_mut().enumerate().filter(|(_, row)| row.weight > 0.0) {
        path.common[index / M].price[index % M] = row.weight;
        row.weight *= row.slack;
    }
}

/// Allocates memory with zero rates.
fn prepare<const M: usize, const O: usize>(path: &mut Path<M, O>, problem: &Problem) {
    let (steps, blocks) = (problem.horizon, blocks(problem.circuits()));
    let all = blocks * steps;
    path.horizon = steps;
    path.starts.clear();
    path.starts.resize(blocks, Start { queue: Lane::ZERO, room: Lane::ONE });
    path.paces.clear();
    path.paces.resize(blocks, Progress::BEGIN);
    path.places.clear();
    path.places.resize(all, Place { free: [Lane::ZERO; M], limit: Lane::ONE, source: Lane::ONE });
    path.points.clear();
    path.points.resize(all, Point::ZERO);
    path.moves.clear();
    path.moves.resize(all, Point::ZERO);
    path.held.resize(all, Held::EMPTY);
    path.factors.resize(all, Factor::NONE);
    path.opens.resize(all, [Lane::ZERO; M]);
    path.rows.clear();
    path.rows.resize(M * steps, Row::EMPTY);
    let sums = &mut path.sums;
    sums.scratch.resize(steps, Scratch::EMPTY);
    sums.rates.resize(steps, [Lane::ZERO; M]);
    sums.moved.resize(steps, [Lane::ZERO; M]);
    sums.inverse.resize(block_index(steps, 0), [[Lane::ZERO; M]; M]);
    sums.transfer.resize(steps, [[Lane::ZERO; M]; M]);
}

/// Values that all circuits share, step by step.
fn fill_costs<const M: usize, const O: usize>(
    path: &mut Path<M, O>,
    problem: &Problem,
    press: &[f64; STATES],
) {
    let weights = &problem.weights;
    let drawn = [weights.input, weights.output, weights.virtual_output];
    path.common.clear();
    for step in 0..problem.horizon {
        let discount = 2.0 * weights.discount(step);
        let curvature = std::array::from_fn(|m| discount * weights.rates()[m]);
        path.common.push(Common {
            curvature,
            pull: std::array::from_fn(|m| discount * drawn[m]),
            middle: 2.0 * discount * weights.deviation,
            weight: curvature.map(|curvature| (curvature + press[step]) / problem.circuits() as f64),
            price: [0.0; M],
            shift: [0.0; M],
        });
    }
}

/// A circuit's bounds and their prices; all products equal the weights.
fn fill_prices<const M: usize, const O: usize>(
    path: &mut Path<M, O>,
    problem: &Problem,
    limits: &Limits,
    circuit: usize,
) {
    let bounds = limits.of(circuit);
    let (block, lane) = (circuit / LANES, circuit % LANES);
    path.starts[block].queue.0[lane] = bounds.queue;
    path.starts[block].room.0[lane] = bounds.queue_room;
    let weights = &mut path.paces[block].weight.0[lane];
    let (mut sums, mut moving) = ([0.0; M], [false; M]);
    for (step, bound) in bounds.steps.iter().enumerate() {
        let at = block * path.horizon + step;
        let (point, place) = (&mut path.points[at], &mut path.places[at]);
        place.limit.0[lane] = bound.limit;
        place.source.0[lane] = bound.source;
        let weight = path.common[step].weight;
        let mut put = |price: &mut Lane, weight: f64, slack: f64| {
            price.0[lane] = weight / slack;
            *weights += weight;
        };
        for m in 0..M {
            let (rate, row) = (point.rate[m].0[lane], &mut path.rows[step * M + m]);
            sums[m] += rate;
            row.slack -= rate;
            if place.free[m].0[lane] > 0.0 {
                moving[m] = true;
                row.weight = weight[m] * problem.circuits() as f64;
                put(&mut point.lower[m], weight[m], rate);
            }
        }
        // Rates of at most one cannot reach this bound in the remaining steps, so leave it out.
        let reach = (step + 1) as f64;
        if place.free[1].0[lane] > 0.0 && bound.limit < 1.0 {
            put(&mut point.limit, weight[1], bound.limit - point.rate[1].0[lane]);
        }
        if moving[0] && bound.source < reach {
            put(&mut point.source, weight[0], bound.source - sums[0]);
        }
        for o in 0..O {
            let net = sums[0] - sums[o + 1];
            if moving[o + 1] && bounds.queue < reach {
                put(&mut point.low[o], weight[o + 1], bounds.queue + net);
            }
            if bounds.queue_room < reach.min(bound.least_source) {
                let (slack, over) = soft_centre(bounds.queue_room - net, weight[o + 1], path.overflow);
                put(&mut point.high[o], weight[o + 1], slack);
                put(&mut point.spare[o], weight[o + 1], over);
                point.over[o].0[lane] = over;
            }
        }
    }
}

/// Pressure of queues that start near or above their bound on the rates of each step: the largest sum of their
/// penalties from that step on. `net`: the growth of a circuit's queue in a step at the start.
fn pressure(
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

/// The centre of a soft bound with a linear cost: slack `h` and excess `e` with `h - e = room`; their
/// multipliers `weight/h` and `weight/e` add up to the cost.
fn soft_centre(room: f64, weight: f64, cost: f64) -> (f64, f64) {
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
fn inner_rates<const M: usize>(
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
