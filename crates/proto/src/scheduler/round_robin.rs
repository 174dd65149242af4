//! Round robin over circuits with cells, as in Tor before 0.2.2.

use std::collections::VecDeque;

use tidegate_control::units::Time;

use super::{Circuits, Discipline, Scheduler};

/// Each circuit in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundRobin;

impl Discipline for RoundRobin {
    fn build(&self) -> Box<dyn Scheduler + Send> {
        Box::new(Order::default())
    }
}

#[derive(Debug, Default)]
struct Order {
    turn: VecDeque<u32>,
}

impl Scheduler for Order {
    fn activate(&mut self, _: Time, key: u32, _: &dyn Circuits) {
        self.turn.push_back(key);
    }

    fn next(&mut self, _: Time, _: &dyn Circuits) -> Option<u32> {
        self.turn.front().copied()
    }

    /// Constant, so channels take turns too.
    fn load(&mut self, _: Time, _: &dyn Circuits) -> Option<f64> {
        (!self.turn.is_empty()).then_some(0.0)
    }

    fn sent(&mut self, _: Time, key: u32, more: bool, _: &dyn Circuits) {
        let first = self.turn.pop_front();
        debug_assert_eq!(first, Some(key));
        if more {
            self.turn.push_back(key);
        }
    }

    fn passed(&mut self, _: Time, _: u32, _: u32, _: &dyn Circuits) {
        debug_assert!(self.turn.is_empty(), "a circuit that joins an empty round leaves it as it was");
    }

    fn remove(&mut self, key: u32) {
        self.turn.retain(|other| *other != key);
    }

    fn forget(&mut self, key: u32) {
        self.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::Unseen;

    #[test]
    fn circuits_take_turns() {
        let mut order = Order::default();
        for key in [4, 7, 9] {
            order.activate(Time::ZERO, key, &Unseen);
        }
        order.remove(7);
        let mut seen = Vec::new();
        for more in [true, true, true, false, true] {
            let key = order.next(Time::ZERO, &Unseen).unwrap();
            seen.push(key);
            order.sent(Time::ZERO, key, more, &Unseen);
        }
        assert_eq!(seen, [4, 9, 4, 9, 4]);
    }
}
