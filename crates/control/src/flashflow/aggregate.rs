//! From bytes per second to an estimate (section 4.1).

use super::Percent;
use crate::units::Rate;

/// What one second of a measurement showed, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// `x_j`: echoed bytes that the measurers received and stand for.
    pub measurement: u64,
    /// `y_j`: background the relay claims: the smaller of what it says it sent and received.
    pub claimed: u64,
    /// The part of the claim that the ratio allows: `min(y_j, x_j r / (1 - r))`.
    pub background: u64,
}

impl Second {
    /// Sums the measurers' counts and clamps the relay's claim.
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

/// `z`: the median of the seconds' totals; `None` without a second.
///
/// Of an even number of seconds it is the mean of the middle two, rounded down to a byte.
pub fn estimate(seconds: &[Second]) -> Option<Rate> {
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

    #[test]
    fn the_median_ignores_the_burst_and_the_gap() {
        let second = |x| Second { measurement: x, ..Second::default() };
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&[second(5)]), Some(Rate(40)));
        assert_eq!(estimate(&[second(900), second(10), second(0), second(10), second(11)]), Some(Rate(80)));
        assert_eq!(estimate(&[second(10), second(20)]), Some(Rate(120)));
        assert_eq!(estimate(&[second(u64::MAX), second(u64::MAX)]), Some(Rate(u64::MAX)));
    }
}
