//! How long a node's controller keeps it busy.

use tidegate_control::units::Span;

/// Spans are counted in classes of this width.
const CLASS: Span = Span::from_micros(250);
/// The last class holds all that are longer: 50 ms.
const CLASSES: usize = 200;

/// Times that a controller took.
#[derive(Clone, Debug)]
pub struct Steps {
    /// For everything that it was woken up for.
    pub spent: Span,
    /// Solves among that,
    pub solves: u64,
    /// by how long they took.
    classes: [u64; CLASSES],
}

impl Default for Steps {
    fn default() -> Steps {
        Steps { spent: Span::ZERO, solves: 0, classes: [0; CLASSES] }
    }
}

impl Steps {
    /// The controller took so long, to solve a problem or for something else.
    pub fn took(&mut self, spent: Span, solved: bool) {
        self.spent = self.spent + spent;
        if solved {
            self.solves += 1;
            self.classes[((spent.0 / CLASS.0) as usize).min(CLASSES - 1)] += 1;
        }
    }

    /// 99 % of the solves took no longer; zero without any.
    pub fn p99(&self) -> Span {
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
    fn one_of_a_hundred_may_take_longer() {
        let mut steps = Steps::default();
        assert_eq!(steps.p99(), Span::ZERO);
        (0..99).for_each(|_| steps.took(Span::from_millis(1), true));
        steps.took(Span::from_secs(1), true);
        steps.took(Span::from_millis(7), false);
        assert_eq!((steps.solves, steps.spent), (100, Span::from_millis(1106)));
        assert_eq!(steps.p99(), Span::from_micros(1250));
        steps.took(Span::from_secs(1), true);
        assert_eq!(steps.p99(), Span::from_millis(50), "the last class");
    }
}
