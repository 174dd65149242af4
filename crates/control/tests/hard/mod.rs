//! Random families of hard problems: 300 circuits of a relay of 4 Mbit/s.

use tidegate_control::predictor::{Formulation, Problem};
use tidegate_control::random::Seed;

/// Parameters of a family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    kind: Formulation,
    /// Share of circuits that are idle.
    idle: f64,
    /// Whether queues start near their bound instead of a part of a fair share's cells per step.
    full: bool,
    /// A neighbour's rates differ by up to this share from step to step.
    uneven: f64,
}

impl Family {
    /// All families, the easiest first.
    pub const ALL: [Family; 4] = [
        Family { name: "steady", kind: Formulation::Prototype, idle: 0.0, full: false, uneven: 0.0 },
        Family { name: "uneven", kind: Formulation::Prototype, idle: 0.2, full: false, uneven: 0.2 },
        Family { name: "full", kind: Formulation::Prototype, idle: 0.0, full: true, uneven: 0.5 },
        Family { name: "journal", kind: Formulation::Journal, idle: 0.2, full: false, uneven: 0.2 },
    ];

    /// The family's problem with this number and this many circuits.
    pub fn problem(&self, circuits: usize, number: u64) -> Problem {
        let mut draws = Seed::root(15).fork(self.name).fork_index(number).random();
        let mut problem = Problem::new(self.kind, 830.0);
        let fair = problem.capacity / circuits as f64;
        if self.full {
            problem.s_max = 10.0 * fair * problem.dt;
        }
        let longest = if self.full { 2.0 * problem.s_max } else { 4.0 * fair * problem.dt };
        let mut left = [problem.capacity; 2];
        for _ in 0..circuits {
            let busy = if draws.chance(self.idle) { 0.0 } else { 1.0 };
            problem.s0.push(busy * draws.uniform(0.0, longest));
            problem.first_hop.push(draws.chance(1.0 / 3.0));
            let (limit, plan, stock) =
                (draws.uniform(0.0, 3.0), draws.uniform(0.0, 1.5), draws.uniform(0.0, 20.0));
            for step in 0..problem.horizon {
                let mut about = |rate: f64| rate * fair * draws.uniform(1.0 - self.uneven, 1.0 + self.uneven);
                problem.vmax.push(about(limit));
                let mut rate = busy * about(plan);
                if let Some(left) = left.get_mut(step) {
                    rate = rate.min(*left);
                    *left -= rate;
                }
                problem.vsrc.push(rate);
                problem.ssrc.push(busy * stock * fair * problem.dt);
                problem.vvsrc.push(2.0 * rate);
            }
        }
        problem
    }
}
