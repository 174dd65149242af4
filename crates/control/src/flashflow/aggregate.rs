//! Computes the estimate from bytes per second (section 4.1).

use super::Percent;
use crate::units::Rate;

/// Byte counts of one second of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// `x_j`: echoed bytes that the measurers received.
    pub measurement: u64,
    /// `y_j`: background that the relay claims, the smaller of its counts of sent and received bytes.
    pub claimed: u64,
    /// The part of the claim that the ratio allows: `min(y_j, x_j r / (1 - r))`.
    pub background: u64,
}

impl Second {
    /// Adds the measurers' counts and clamps the relay's claim.
    pub fn new(measurers: &[u64], sent: u64, received: u64, ratio: Percent) -> Second {
        let measurement = measurers.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        let claimed = sent.min(received);
        Second { measurement, claimed, background: claimed.min(ratio.background_for(measurement)) }
    }

    /// `z_j`: what the relay forwarded in this second.
    pub fn total(&self) -> u64 {
        self.measurement.saturating_add(self.background)
    }
}

/// Upper limit of the estimate, in percent of the mean over all seconds.
///
/// A relay that decrypts at `C` cannot return more than `C t` in `t` seconds, whenever it returns it. With the
/// background that the ratio allows, its mean is at most `C / (1 - r)`, and its estimate at most 1.05 times
/// that. Without the cap, holding cells back raises the median to `t / (t / 2 + 1)` times the mean.
const CAP_PERCENT: u128 = 105;

/// `z`: the median of the seconds' totals, capped at 1.05 times their mean; `None` without seconds.
///
/// The paper uses the median alone (section 4.1), which a relay that holds cells back can double.
/// `docs/flashflow.md` explains the cap.
pub fn estimate(seconds: &[Second]) -> Option<Rate> {
    let bytes: u128 = seconds.iter().map(|second| u128::from(second.total())).sum();
    let median = median(seconds)?;
    let cap = bytes * 8 * CAP_PERCENT / (100 * seconds.len() as u128);
    Some(median.min(Rate(u64::try_from(cap).unwrap_or(u64::MAX))))
}

/// The median of the seconds' totals, the paper's estimate; `None` without seconds.
///
/// For an even number of seconds it is the mean of the middle two, rounded down to a byte.
pub fn median(seconds: &[Second]) -> Option<Rate> {
    let mut totals: Vec<u64> = seconds.iter().map(Second::total).collect();
    totals.sort_unstable();
    let upper = *totals.get(totals.len() / 2)?;
    let lower = totals[(totals.len() - 1) / 2];
    Some(Rate::from_bytes_per_s(lower + (upper - lower) / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: Percent = Percent::new(25).unwrap();

    #[test]
    fn a_claim_beyond_the_ratio_is_cut() {
        let honest = Second::new(&[100, 200], 80, 90, QUARTER);
        assert_eq!((honest.measurement, honest.claimed, honest.background), (300, 80, 80));
        let liar = Second::new(&[300], u64::MAX, u64::MAX, QUARTER);
        assert_eq!((liar.background, liar.total()), (100, 400));
        // Sending without receiving is not forwarding.
        assert_eq!(Second::new(&[300], 90, 0, QUARTER).total(), 300);
    }

    fn seconds(bytes: &[u64]) -> Vec<Second> {
        bytes.iter().map(|x| Second { measurement: *x, ..Second::default() }).collect()
    }

    #[test]
    fn the_median_ignores_the_burst_and_the_gap() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&seconds(&[5])), Some(Rate(40)));
        assert_eq!(median(&seconds(&[900, 10, 0, 10, 11])), Some(Rate(80)));
        assert_eq!(median(&seconds(&[10, 20])), Some(Rate(120)));
        assert_eq!(median(&seconds(&[u64::MAX, u64::MAX])), Some(Rate(u64::MAX)));
    }

    #[test]
    fn the_estimate_is_the_median_unless_the_whole_does_not_carry_it() {
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&seconds(&[200, 100, 100, 99, 100])), Some(Rate(800)), "a burst adds nothing");
        // Half of the rate in a fifth of the seconds: the mean is 90, the median 100.
        let slow = [50, 100, 100, 100, 100].repeat(2);
        assert_eq!(estimate(&seconds(&slow)), Some(Rate(105 * 90 * 8 / 100)));
        assert_eq!(estimate(&seconds(&[u64::MAX, u64::MAX])), Some(Rate(u64::MAX)));
    }

    #[test]
    fn holding_cells_back_gains_no_more_than_the_cap() {
        for length in [10, 30, 31] {
            let loud = length / 2 + 1;
            // Everything decrypted at 1000 bytes per second is returned in the loud seconds.
            let each = (length * 1000 / loud) as u64;
            let held: Vec<Second> = (0..length)
                .map(|n| Second::new(&[if n < loud { each } else { 0 }], u64::MAX, u64::MAX, QUARTER))
                .collect();
            let (paper, ours) = (median(&held).unwrap().0, estimate(&held).unwrap().0);
            assert!(paper > 2 * 8000, "the median is doubled: {paper}");
            assert!(ours <= 14 * 800, "1.05 / (1 - r): {ours}");
        }
    }
}
