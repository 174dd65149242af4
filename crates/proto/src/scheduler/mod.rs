//! Schedulers: the order in which the circuits of a channel send cells.

pub(crate) mod ewma;
pub(crate) mod longest_queue;
pub(crate) mod round_robin;
pub(crate) mod weighted;

pub use ewma::Ewma;
pub use longest_queue::LongestQueue;
pub use round_robin::RoundRobin;
use std::fmt::Debug;
pub use weighted::Weighted;

use tidegate_control::units::Time;

/// A scheduling discipline with its parameters, which scenarios choose by name.
pub trait Discipline: Debug + Send + Sync {
    /// A scheduler for one channel.
    fn build(&self) -> Box<dyn Scheduler + Send>;
    /// Whether it reads [`Circuits::sent`], which is counted only if needed.
    fn counts(&self) -> bool {
        false
    }
}

/// A channel's circuits, as its scheduler sees them, by key. A relay learns a circuit's kind only from its traffic.
pub trait Circuits {
    /// Circuits on the channel, with cells or without.
    fn count(&self) -> usize;
    /// Cells that wait in a circuit's queue.
    fn queued(&self, key: u32) -> u32;
    /// Recently sent cells: a count with the half-life `LOUDNESS_HALF_LIFE`.
    fn sent(&self, now: Time, key: u32) -> f64;
}

/// The order in which the circuits of one channel send. Keys are the channel's own and are reused.
pub trait Scheduler: Debug + Send {
    /// Circuit `key` has cells to send, after it had none.
    fn activate(&mut self, now: Time, key: u32, circuits: &dyn Circuits);
    /// The circuit that sends the next cell; the caller sends exactly one, then calls [`sent`](Self::sent).
    fn next(&mut self, now: Time, circuits: &dyn Circuits) -> Option<u32>;
    /// The load of the next circuit, zero if the scheduler does not measure load; `None` if all circuits are empty. KIST serves the
    /// channel with the least load first.
    fn load(&mut self, now: Time, circuits: &dyn Circuits) -> Option<f64>;
    /// The circuit of [`next`](Self::next) sent a cell; `more`: it has other cells.
    fn sent(&mut self, now: Time, key: u32, more: bool, circuits: &dyn Circuits);
    /// Circuit `key`, which is alone, got `cells` cells one by one and sent each at once. `circuits` still counts a cell as
    /// waiting.
    fn passed(&mut self, now: Time, key: u32, cells: u32, circuits: &dyn Circuits) {
        for _ in 0..cells {
            self.activate(now, key, circuits);
            let next = self.next(now, circuits);
            debug_assert_eq!(next, Some(key), "no other circuit waits");
            self.sent(now, key, false, circuits);
        }
    }
    /// Circuit `key` is gone or stopped. It may be empty, or in the middle of its turn.
    fn remove(&mut self, key: u32);
    /// Removes `key` with all its state, because the key will be reused.
    fn forget(&mut self, key: u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Circuits for schedulers that do not read them.
    pub(super) struct Unseen;

    impl Circuits for Unseen {
        fn count(&self) -> usize {
            0
        }
        fn queued(&self, _: u32) -> u32 {
            0
        }
        fn sent(&self, _: Time, _: u32) -> f64 {
            0.0
        }
    }
}
