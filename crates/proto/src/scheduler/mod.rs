//! Which circuit of a channel sends the next cell.

pub mod ewma;
pub mod longest_queue;
pub mod round_robin;
pub mod weighted;

use std::fmt::Debug;

use tidegate_control::units::Time;

/// One way of ordering circuits, with its parameters: what a scenario or a configuration names.
pub trait Discipline: Debug + Send + Sync {
    /// A scheduler for one channel.
    fn build(&self) -> Box<dyn Scheduler + Send>;
    /// Whether it asks [how much circuits have sent](Circuits::sent), which is counted only then.
    fn counts(&self) -> bool {
        false
    }
}

/// A channel's circuits as its scheduler sees them, each by its key. A relay knows no more of a circuit's kind than how
/// much it has sent.
pub trait Circuits {
    /// Circuits on the channel, with cells or without.
    fn count(&self) -> usize;
    /// Cells that wait in a circuit's queue.
    fn queued(&self, key: u32) -> u32;
    /// Cells that it has sent of late: a count that halves in
    /// [`LOUDNESS_HALF_LIFE`](crate::transport::LOUDNESS_HALF_LIFE).
    fn sent(&self, now: Time, key: u32) -> f64;
}

/// The order in which the circuits of one channel send. Keys are the channel's own and are reused.
pub trait Scheduler: Debug + Send {
    /// Circuit `key`, which had none, has cells to send.
    fn activate(&mut self, now: Time, key: u32, circuits: &dyn Circuits);
    /// The circuit that sends the next cell; the caller sends exactly one and then says [`sent`](Self::sent).
    fn next(&mut self, now: Time, circuits: &dyn Circuits) -> Option<u32>;
    /// How much the circuit that sends next has sent of late, by which channels compare; `None` if no circuit
    /// has cells.
    fn load(&mut self, now: Time, circuits: &dyn Circuits) -> Option<f64>;
    /// The circuit named by [`next`](Self::next) sent a cell; `more` if it has others.
    fn sent(&mut self, now: Time, key: u32, more: bool, circuits: &dyn Circuits);
    /// Circuit `key` is gone or may not send now.
    fn remove(&mut self, key: u32);
    /// Removes `key` and forgets what is known of it, for its next owner.
    fn forget(&mut self, key: u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Circuits that a scheduler does not look at.
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
