//! Weighted round robin between quiet and loud circuits, and round robin within each class.
//!
//! A circuit is loud while its recent cell count is above a threshold.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::Time;

use super::{Circuits, Discipline, Scheduler};

/// Weighted round robin between quiet and loud circuits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Weighted {
    /// A circuit with more recently sent cells is loud (the count halves every 30 s).
    #[schemars(range(min = 0.0))]
    pub threshold: f64,
    /// Cells of quiet circuits for each cell of loud ones while both wait.
    #[schemars(range(min = 1))]
    pub quiet_weight: u32,
}

impl Default for Weighted {
    /// A page of 320 KiB is 660 cells.
    fn default() -> Weighted {
        Weighted { threshold: 1000.0, quiet_weight: 4 }
    }
}

impl Parameters for Weighted {}

impl Discipline for Weighted {
    fn build(&self) -> Box<dyn Scheduler + Send> {
        Box::new(Order { rules: *self, classes: Default::default(), credit: self.quiet_weight })
    }

    fn counts(&self) -> bool {
        true
    }
}

const QUIET: usize = 0;
const LOUD: usize = 1;

#[derive(Debug)]
struct Order {
    rules: Weighted,
    /// Queues of quiet and of loud circuits.
    classes: [VecDeque<u32>; 2],
    /// Cells that quiet circuits may still send before a loud one must.
    credit: u32,
}

impl Order {
    fn class(&self) -> usize {
        let [quiet, loud] = &self.classes;
        if quiet.is_empty() || (self.credit == 0 && !loud.is_empty()) { LOUD } else { QUIET }
    }
}

impl Scheduler for Order {
    fn activate(&mut self, now: Time, key: u32, circuits: &dyn Circuits) {
        let loud = circuits.sent(now, key) >= self.rules.threshold;
        self.classes[usize::from(loud)].push_back(key);
    }

    fn next(&mut self, _: Time, _: &dyn Circuits) -> Option<u32> {
        self.classes[self.class()].front().copied()
    }

    /// Channels with a quiet circuit go first.
    fn load(&mut self, now: Time, circuits: &dyn Circuits) -> Option<f64> {
        self.next(now, circuits).map(|_| self.class() as f64)
    }

    fn sent(&mut self, now: Time, key: u32, more: bool, circuits: &dyn Circuits) {
        let class = self.class();
        let first = self.classes[class].pop_front();
        debug_assert_eq!(first, Some(key));
        self.credit = if class == LOUD { self.rules.quiet_weight } else { self.credit.saturating_sub(1) };
        if more {
            self.activate(now, key, circuits);
        }
    }

    fn remove(&mut self, key: u32) {
        self.classes.iter_mut().for_each(|class| class.retain(|other| *other != key));
    }

    fn forget(&mut self, key: u32) {
        self.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sent([f64; 3]);
    impl Circuits for Sent {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn queued(&self, _: u32) -> u32 {
            1
        }
        fn sent(&self, _: Time, key: u32) -> f64 {
            self.0[key as usize]
        }
    }

    #[test]
    fn quiet_circuits_have_their_weight_and_loud_ones_the_rest() {
        let mut order = Weighted { threshold: 100.0, quiet_weight: 3 }.build();
        let circuits = Sent([5.0, 5000.0, 99.0]);
        (0..3).for_each(|key| order.activate(Time::ZERO, key, &circuits));
        let mut turn = |more| {
            let key = order.next(Time::ZERO, &circuits).unwrap();
            order.sent(Time::ZERO, key, more, &circuits);
            key
        };
        let turns: Vec<u32> = (0..8).map(|_| turn(true)).collect();
        assert_eq!(turns, [0, 2, 0, 1, 2, 0, 2, 1]);
        // After the quiet circuits end, the loud one gets all turns.
        assert_eq!([turn(false), turn(false), turn(true), turn(true)], [0, 2, 1, 1]);
    }
}
