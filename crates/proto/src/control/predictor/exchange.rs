//! Arithmetic on neighbours' trajectories: alignment in time, plausible bounds, sharing of fixed rates.
//!
//! A trajectory is a slice with one value per step, a step function of time. The neighbour's plans count from its solve plus
//! the delay of the link (its cells arrive later), or minus it (its cells must leave earlier). If a step is as long as the
//! delay, this is the prototype's shift by two steps towards the source and by zero towards the destination.

/// Re-samples a trajectory that began `elapsed` steps before ours.
///
/// Each of our steps gets the average over its time. The last value continues past the end. A trajectory that has not
/// begun counts as begun (the prototype uses zero, but the case never occurs in its setting).
pub(crate) fn align(heard: &[f64], elapsed: f64, ours: &mut [f64]) {
    let Some(&last) = heard.last() else { return ours.fill(0.0) };
    let elapsed = elapsed.clamp(-(ours.len() as f64), heard.len() as f64);
    let whole = libm::floor(elapsed);
    let part = elapsed - whole;
    let value = |step: f64| if step <= 0.0 { heard[0] } else { *heard.get(step as usize).unwrap_or(&last) };
    for (step, ours) in (0..).zip(ours) {
        let at = whole + f64::from(step);
        *ours = if part > 0.0 { (1.0 - part) * value(at) + part * value(at + 1.0) } else { value(at) };
    }
}

/// Extends a neighbour's grants: from the second free step on they are at least the mean of the first two
/// free ones. The first `fixed` steps answer cells that were already sent.
///
/// Without this, a plan ends when the neighbour's queue would be full, although the neighbour keeps forwarding. Both sides
/// of a link then plan to stop soon, and grant each other less than they could.
pub(crate) fn last(grants: &mut [f64], fixed: usize) {
    if let Some([first, rest @ ..]) = grants.get_mut(fixed..)
        && let Some(second) = rest.first()
    {
        let level = (*first + second) / 2.0;
        rest.iter_mut().for_each(|grant| *grant = grant.max(level));
    }
}

/// Cuts values to `0..=most`; returns false if one is not a number.
pub(crate) fn believe(values: &mut [f64], most: f64) -> bool {
    let sound = values.iter().all(|value| !value.is_nan());
    for value in values {
        *value = if sound { value.clamp(0.0, most) } else { 0.0 };
    }
    sound
}

/// Lowers the largest of `claims` (every `stride`-th value from `first` on that is `fixed`) until they add up
/// to `capacity`. Small claims stay as they are.
///
/// Otherwise fixed rates above the capacity would make a problem infeasible, and a neighbour could displace the others by
/// large claims.
pub(crate) fn share_fixed(
    claims: &mut [f64],
    stride: usize,
    first: usize,
    capacity: f64,
    fixed: impl Fn(usize) -> bool,
    sorted: &mut Vec<f64>,
) {
    sorted.clear();
    sorted.extend(claims.chunks(stride).enumerate().filter(|(i, _)| fixed(*i)).map(|(_, row)| row[first]));
    if sorted.iter().sum::<f64>() <= capacity {
        return;
    }
    sorted.sort_unstable_by(f64::total_cmp);
    let (mut left, mut count) = (capacity, sorted.len());
    let level = loop {
        let level = left / count as f64;
        match sorted.get(sorted.len() - count) {
            Some(least) if *least < level && count > 1 => {
                left -= least;
                count -= 1;
            }
            _ => break level,
        }
    };
    for (_, row) in claims.chunks_mut(stride).enumerate().filter(|(i, _)| fixed(*i)) {
        row[first] = row[first].min(level);
    }
}

/// Assumes a server's plan from its `remaining` cells, at most `most`, where the data enters the overlay.
///
/// `rates` is our own previous wish `before` while the data lasts; `queue` is the rest of the data.
pub(crate) fn source(
    before: &[f64],
    remaining: f64,
    most: f64,
    dt: f64,
    rates: &mut [f64],
    queue: &mut [f64],
) {
    let mut left = libm::floor(remaining);
    for (step, rate) in rates.iter_mut().enumerate() {
        *rate = before.get(step).copied().unwrap_or(0.0).min(left / dt).max(0.0);
        left = (left - *rate * dt).max(0.0);
    }
    let mut left = remaining.min(most);
    for (queue, rate) in queue.iter_mut().zip(rates.iter()) {
        *queue = if left > 1.0 / 512.0 && left < 1.0 { 1.0 } else { left };
        left = (left - rate * dt).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(heard: &[f64], elapsed: f64, steps: usize) -> Vec<f64> {
        let mut ours = vec![f64::NAN; steps];
        align(heard, elapsed, &mut ours);
        ours
    }

    #[test]
    fn whole_steps_shift_and_parts_average() {
        let heard = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(aligned(&heard, 0.0, 4), heard);
        assert_eq!(aligned(&heard, 2.0, 4), [3.0, 4.0, 4.0, 4.0], "the two-step shift");
        assert_eq!(aligned(&heard, 0.25, 3), [1.25, 2.25, 3.25]);
        assert_eq!(aligned(&heard, 100.0, 2), [4.0, 4.0], "a missing message: the last value goes on");
        assert_eq!(aligned(&heard, -0.5, 2), [1.0, 1.5]);
        assert_eq!(aligned(&heard, -1e300, 2), [1.0, 1.0]);
        assert_eq!(aligned(&[], 1.0, 2), [0.0, 0.0]);
        assert_eq!(aligned(&[5.0], 0.3, 2), [5.0, 5.0], "too short: the last value goes on");
    }

    #[test]
    fn the_average_keeps_the_amount() {
        // Re-sampling preserves the sum of a trajectory.
        let heard = [3.0, 1.0, 4.0, 1.0, 0.0];
        for elapsed in [-0.9, -0.25, 0.0] {
            let sum: f64 = aligned(&heard, elapsed, 7).iter().sum();
            let before = 3.0 * -elapsed;
            assert!((sum - 9.0 - before).abs() < 1e-12, "{elapsed}: {sum}");
        }
    }

    #[test]
    fn grants_last_at_the_level_of_the_first_free_ones() {
        let mut grants = [9.0, 9.0, 4.0, 2.0, 5.0, 0.0];
        last(&mut grants, 2);
        assert_eq!(grants, [9.0, 9.0, 4.0, 3.0, 5.0, 3.0]);
        for short in [&mut [][..], &mut [7.0], &mut [7.0, 6.0], &mut [7.0, 6.0, 5.0]] {
            let before = short.to_vec();
            last(short, 2);
            assert_eq!(short, before, "nothing to go by");
        }
    }

    #[test]
    fn only_numbers_within_bounds_are_believed() {
        let mut values = [1.0, -3.0, f64::INFINITY, 7.0];
        assert!(believe(&mut values, 5.0));
        assert_eq!(values, [1.0, 0.0, 5.0, 5.0]);
        let mut values = [1.0, f64::NAN];
        assert!(!believe(&mut values, 5.0));
        assert_eq!(values, [0.0, 0.0]);
    }

    #[test]
    fn the_greedy_are_cut_first() {
        // Three circuits of two steps; the second is not fixed.
        let mut claims = [10.0, 1.0, 1e9, 2.0, 1e9, 3.0];
        share_fixed(&mut claims, 2, 0, 100.0, |circuit| circuit != 1, &mut Vec::new());
        assert_eq!(claims, [10.0, 1.0, 1e9, 2.0, 90.0, 3.0]);
        let mut claims = [30.0, 40.0, 80.0];
        share_fixed(&mut claims, 1, 0, 90.0, |_| true, &mut Vec::new());
        assert_eq!(claims, [30.0, 30.0, 30.0]);
        let mut claims = [1.0, 2.0];
        share_fixed(&mut claims, 1, 0, 0.0, |_| true, &mut Vec::new());
        assert_eq!(claims, [0.0, 0.0]);
    }

    #[test]
    fn a_source_plans_as_far_as_its_data_lasts() {
        let (mut rates, mut queue) = ([0.0; 4], [0.0; 4]);
        source(&[100.0; 4], 10.0, 1e6, 0.04, &mut rates, &mut queue);
        assert_eq!(rates, [100.0, 100.0, 50.0, 0.0]);
        assert_eq!(queue, [10.0, 6.0, 2.0, 0.0]);
        source(&[], f64::INFINITY, 60.0, 0.04, &mut rates, &mut queue);
        assert_eq!((rates, queue), ([0.0; 4], [60.0; 4]), "the first solve has no wish yet");
        source(&[], 0.5, 60.0, 0.04, &mut rates, &mut queue);
        assert_eq!(queue, [1.0; 4], "a part of a cell is a cell");
    }
}
