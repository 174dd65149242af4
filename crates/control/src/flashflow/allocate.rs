//! Allocates measurers' capacity to a measurement (section 4.2).

use crate::units::Rate;

/// Takes `needed` from the measurers' residual capacities, the largest first.
///
/// Each measurer gives all it has, or as much as is still needed. The result is `a_i` per measurer; `None` if
/// the residual capacities are too small.
pub fn allocate(residual: &[Rate], needed: Rate) -> Option<Vec<Rate>> {
    if residual.iter().fold(0u64, |sum, r| sum.saturating_add(r.0)) < needed.0 {
        return None;
    }
    let mut order: Vec<usize> = (0..residual.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(residual[i]));
    let mut missing = needed.0;
    let mut shares = vec![Rate(0); residual.len()];
    for i in order {
        shares[i] = Rate(missing.min(residual[i].0));
        missing -= shares[i].0;
    }
    Some(shares)
}

/// Divides `sockets` evenly over the measurers with a share, at least one each.
///
/// The first measurers get one more if the division has a remainder.
pub fn share_sockets(sockets: u16, shares: &[Rate]) -> Vec<u16> {
    let taking_part = shares.iter().filter(|share| share.0 > 0).count().max(1);
    let (each, mut extra) = (usize::from(sockets) / taking_part, usize::from(sockets) % taking_part);
    shares
        .iter()
        .map(|share| {
            if share.0 == 0 {
                return 0;
            }
            let more = usize::from(extra > 0);
            extra -= more;
            (each + more).max(1) as u16
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_largest_residual_gives_first() {
        let residual = [Rate(941), Rate(1611), Rate(946)];
        assert_eq!(allocate(&residual, Rate(1000)), Some(vec![Rate(0), Rate(1000), Rate(0)]));
        assert_eq!(allocate(&residual, Rate(2600)), Some(vec![Rate(43), Rate(1611), Rate(946)]));
        assert_eq!(allocate(&residual, Rate(3499)), None);
        assert_eq!(allocate(&[], Rate(0)), Some(vec![]));
    }

    #[test]
    fn sockets_are_divided_evenly_among_measurers() {
        assert_eq!(share_sockets(160, &[Rate(1), Rate(0), Rate(1), Rate(1)]), [54, 0, 53, 53]);
        assert_eq!(share_sockets(1, &[Rate(1), Rate(1)]), [1, 1]);
        assert_eq!(share_sockets(8, &[Rate(0)]), [0]);
    }

    proptest! {
        #[test]
        fn shares_add_up_and_stay_within_residuals(
            residual in prop::collection::vec(0u64..1 << 40, 1..12), part in 0.0..1.0f64
        ) {
            let all: u64 = residual.iter().sum();
            let needed = (all as f64 * part) as u64;
            let rates: Vec<Rate> = residual.iter().map(|r| Rate(*r)).collect();
            let shares = allocate(&rates, Rate(needed)).unwrap();
            prop_assert_eq!(shares.iter().map(|s| s.0).sum::<u64>(), needed);
            prop_assert!(shares.iter().zip(&rates).all(|(share, residual)| share <= residual));
            // Greedy: at most one participating measurer has capacity left.
            let partial = shares.iter().zip(&rates).filter(|(s, r)| s.0 > 0 && s < r).count();
            prop_assert!(partial <= 1);
        }
    }
}
