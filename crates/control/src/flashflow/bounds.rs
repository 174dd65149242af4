//! Bounds of what an adversary can gain (section 5).

use super::Percent;

/// Upper bound of inflating the estimate with invented background: `1 / (1 - r)`.
pub fn inflation(ratio: Percent) -> f64 {
    100.0 / f64::from(100 - ratio.get())
}

/// Probability that `forged` cells pass if each is checked with probability `checked`: `(1 - p)^k`.
pub fn evasion(checked: f64, forged: f64) -> f64 {
    libm::exp(forged * libm::log1p(-checked))
}

/// Probability that a part-time fast relay is caught: `sum over k >= n/2 of B(n, 1 - q)[k]`.
///
/// The relay is fast in a fraction `q` of all slots. Each of `coordinators` honest coordinators measures it
/// once, and their median counts.
pub fn part_time_failure(coordinators: u32, q: f64) -> f64 {
    let n = f64::from(coordinators);
    let mut chance = 0.0;
    for k in coordinators.div_ceil(2)..=coordinators {
        let k = f64::from(k);
        let choose = libm::lgamma(n + 1.0) - libm::lgamma(k + 1.0) - libm::lgamma(n - k + 1.0);
        chance += libm::exp(choose) * libm::pow(1.0 - q, k) * libm::pow(q, n - k);
    }
    chance.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Seed;

    #[test]
    fn a_quarter_of_background_inflates_by_a_third() {
        assert!((inflation(Percent::new(25).unwrap()) - 4.0 / 3.0).abs() < 1e-12);
        assert_eq!(inflation(Percent::new(0).unwrap()), 1.0);
    }

    #[test]
    fn one_checked_cell_in_125_leaves_less_than_a_percent() {
        // 10 Mbit/s for 30 s, one forged cell in each bucket of 125.
        let buckets = 10e6 / 8.0 / 514.0 * 30.0 / 125.0;
        assert!((evasion(1.0 / 125.0, buckets) - 0.0093).abs() < 2e-4);
        assert_eq!(evasion(1e-5, 0.0), 1.0);
        assert!((evasion(1e-5, 1e6) - libm::exp(-10.0)).abs() < 1e-7);
    }

    #[test]
    fn a_median_of_coordinators_catches_the_part_time_relay() {
        // By hand: n = 3, q = 0.4 -> 3 * 0.6^2 * 0.4 + 0.6^3 = 0.648.
        assert!((part_time_failure(3, 0.4) - 0.648).abs() < 1e-12);
        assert!((part_time_failure(1, 0.25) - 0.75).abs() < 1e-12);
        for n in [1, 3, 5, 7, 9] {
            assert!(part_time_failure(n, 0.49) >= 0.5, "section 5 promises one half below q = 1/2");
        }
        assert!(part_time_failure(9, 0.1) > 0.999);
        assert!((part_time_failure(3, 0.5) - 0.5).abs() < 1e-12);
        assert!(part_time_failure(6, 0.4) > part_time_failure(5, 0.4), "of two weights the lower counts");
    }

    #[test]
    fn the_bound_matches_random_draws() {
        let (n, q, runs) = (5u32, 0.3, 20_000);
        let mut draws = Seed::root(5).fork("part-time relay").random();
        let failed =
            (0..runs).filter(|_| (0..n).filter(|_| !draws.chance(q)).count() as u32 >= n.div_ceil(2)).count();
        assert!((failed as f64 / f64::from(runs) - part_time_failure(n, q)).abs() < 0.01);
    }
}
