//! How long a node's controller keeps its thread busy.

use tidegate_control::units::Span;

/// Width of a histogram class.
const CLASS: Span = Span::from_micros(250);
/// Number of classes. The last one, from 50 ms, is open-ended.
const CLASSES: usize = 200;

/// Processing time of a controller.
#[derive(Clone, Debug)]
pub(crate) struct ControllerTime {
    /// Total time of all timeouts.
    pub spent: Span,
    /// How many timeouts solved a problem.
    pub solves: u64,
    /// The solves by duration.
    classes: [u64; CLASSES],
}

impl Default for ControllerTime {
    fn default() -> ControllerTime {
        ControllerTime { spent: Span::ZERO, solves: 0, classes: [0; CLASSES] }
    }
}

impl ControllerTime {
    /// Counts a timeout that took `spent`, and whether it solved a problem.
    pub(crate) fn add(&mut self, spent: Span, solved: bool) {
        self.spent = self.spent + spent;
        if solved {
            self.solves += 1;
            self.classes[((spent.0 / CLASS.0) as usize).min(CLASSES - 1)] += 1;
        }
    }

    /// The 99th percentile of solve durations; zero without solves.
    pub(crate) fn p99(&self) -> Span {
        let mut left = (self.solves as f64 * 0.99).ceil() as u64;
        let class = self.classes.iter().position(|count| {
            left = left.saturating_sub(*count);
            left == 0
        });
        class.filter(|_| self.solves > 0).map_or(Span::ZERO, |class| CLASS * (class as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p99_ignores_one_of_a_hundred() {
        let mut times = ControllerTime::default();
        assert_eq!(times.p99(), Span::ZERO);
        (0..99).for_each(|_| times.add(Span::from_millis(1), true));
        times.add(Span::from_secs(1), true);
        times.add(Span::from_millis(7), false);
        assert_eq!((times.solves, times.spent), (100, Span::from_millis(1106)));
        assert_eq!(times.p99(), Span::from_micros(1250));
        times.add(Span::from_secs(1), true);
        assert_eq!(times.p99(), Span::from_millis(50), "the last class");
    }
}
