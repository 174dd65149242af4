//! Accepts an estimate or chooses the next guess (section 4.2).

use super::MeasurementParameters;
use crate::units::Rate;

/// Decision about an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The allocated capacity was enough: the true capacity lies within the bounds.
    Conclusive(Bounds),
    /// The relay may be faster than the team could show. Measure again with this guess.
    Again {
        /// `max(z, 2 z0)`
        guess: Rate,
    },
}

/// Range of true capacities that agree with an estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// `z / (1 + eps2)`
    pub low: Rate,
    /// `z / (1 - eps1)`
    pub high: Rate,
}

impl MeasurementParameters {
    /// Upper limit of conclusive estimates with `allocated` capacity: `sum a_i (1 - eps1) / m`.
    pub(crate) fn believable(&self, allocated: Rate) -> Rate {
        Rate((allocated.0 as f64 * (1.0 - self.epsilon1) / self.multiplier) as u64)
    }

    /// Judges the estimate `z` of a measurement with `allocated` capacity and guess `z0`.
    pub fn judge(&self, z: Rate, z0: Rate, allocated: Rate) -> Verdict {
        if z < self.believable(allocated) {
            Verdict::Conclusive(self.bounds(z))
        } else {
            Verdict::Again { guess: z.max(Rate(z0.0.saturating_mul(2))) }
        }
    }

    /// The true capacities that agree with a conclusive estimate.
    pub fn bounds(&self, z: Rate) -> Bounds {
        let z = z.0 as f64;
        Bounds {
            low: Rate((z / (1.0 + self.epsilon2)) as u64),
            high: Rate((z / (1.0 - self.epsilon1)) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_guess_concludes_in_one_measurement() {
        let p = MeasurementParameters::default();
        let z0 = Rate(100_000_000);
        let allocated = p.demand(z0);
        // An estimate z < (1 + eps2) z0 is conclusive, with the truth in (z / 1.05, z / 0.8).
        let Verdict::Conclusive(bounds) = p.judge(Rate(104_900_000), z0, allocated) else {
            panic!("a right guess must do")
        };
        assert_eq!(bounds, Bounds { low: Rate(99_904_761), high: Rate(131_125_000) });
        assert_eq!(p.judge(Rate(105_100_000), z0, allocated), Verdict::Again { guess: Rate(200_000_000) });
    }

    #[test]
    fn a_guess_far_too_low_at_least_doubles_until_it_fits() {
        let p = MeasurementParameters::default();
        let truth = 1_000_000_000u64;
        let (mut z0, mut attempts) = (Rate(10_000_000), 0);
        loop {
            attempts += 1;
            let allocated = p.demand(z0);
            // With too few measurers the estimate is the rate that they could send.
            match p.judge(Rate(truth.min(allocated.0)), z0, allocated) {
                Verdict::Conclusive(_) => break,
                Verdict::Again { guess } => {
                    assert!(guess.0 >= 2 * z0.0);
                    z0 = guess;
                }
            }
        }
        assert_eq!(attempts, 6);
    }

    #[test]
    fn a_measurement_without_allocation_is_repeated() {
        let verdict = MeasurementParameters::default().judge(Rate(0), Rate(5), Rate(0));
        assert_eq!(verdict, Verdict::Again { guess: Rate(10) });
    }
}
