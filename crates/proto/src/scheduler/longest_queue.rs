//! Longest queue first: the circuit with the most waiting cells sends next.
//!
//! It keeps queues even and memory small, but prefers loud circuits. A circuit that exceeds the timeout goes first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::{Span, Time};

use super::{Circuits, Discipline, Scheduler};

/// Longest queue first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LongestQueue {
    /// A circuit that has waited this long goes before longer queues.
    pub timeout: Span,
}

impl Default for LongestQueue {
    fn default() -> LongestQueue {
        LongestQueue { timeout: Span::from_millis(500) }
    }
}

impl Parameters for LongestQueue {}

impl Discipline for LongestQueue {
    fn build(&self) -> Box<dyn Scheduler + Send> {
        Box::new(Order { timeout: self.timeout, waiting: Vec::new() })
    }
}

#[derive(Debug)]
struct Order {
    timeout: Span,
    /// Circuits with cells and the start of their waiting, the longest first.
    waiting: Vec<(u32, Time)>,
}

impl Scheduler for Order {
    fn activate(&mut self, now: Time, key: u32, _: &dyn Circuits) {
        self.waiting.push((key, now));
    }

    fn next(&mut self, now: Time, circuits: &dyn Circuits) -> Option<u32> {
        let (oldest, since) = *self.waiting.first()?;
        if now.since(since) >= self.timeout {
            return Some(oldest);
        }
        // Ties go to the longest waiting circuit: `max_by_key` takes the last of equal items, hence `rev`.
        let longest = self.waiting.iter().rev().max_by_key(|(key, _)| circuits.queued(*key));
        longest.map(|(key, _)| *key)
    }

    /// Channels compare by their longest queues.
    fn load(&mut self, now: Time, circuits: &dyn Circuits) -> Option<f64> {
        self.next(now, circuits).map(|key| -f64::from(circuits.queued(key)))
    }

    fn sent(&mut self, now: Time, key: u32, more: bool, _: &dyn Circuits) {
        self.remove(key);
        if more {
            self.waiting.push((key, now));
        }
    }

    fn remove(&mut self, key: u32) {
        self.waiting.retain(|(other, _)| *other != key);
    }

    fn forget(&mut self, key: u32) {
        self.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Queues([u32; 3]);
    impl Circuits for Queues {
        fn count(&self) -> usize {
            self.0.len()
        }
        fn queued(&self, key: u32) -> u32 {
            self.0[key as usize]
        }
        fn sent(&self, _: Time, _: u32) -> f64 {
            0.0
        }
    }

    #[test]
    fn the_longest_queue_sends_until_another_has_waited_too_long() {
        let mut order = LongestQueue { timeout: Span::from_millis(10) }.build();
        let mut queues = Queues([2, 5, 1]);
        (0..3).for_each(|key| order.activate(Time::ZERO, key, &queues));
        let mut turns = Vec::new();
        for ms in [0, 1, 2, 3, 4, 11, 12] {
            let now = Time::ZERO + Span::from_millis(ms);
            let key = order.next(now, &queues).unwrap();
            turns.push(key);
            queues.0[key as usize] -= 1;
            order.sent(now, key, queues.0[key as usize] > 0, &queues);
        }
        // After three cells of circuit 1 the queues are equal, and circuit 0 waits longest. At 11 ms circuit 2 exceeds the timeout.
        assert_eq!(turns, [1, 1, 1, 0, 1, 2, 0]);
    }
}
