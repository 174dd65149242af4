//! Which circuit of a channel sends the next cell.

mod ewma;
mod round_robin;

use tidegate_control::units::{Span, Time};

/// The order in which the circuits of one channel send. Keys are the channel's own and are reused.
pub trait Scheduler: std::fmt::Debug {
    /// Circuit `key`, which had none, has cells to send.
    fn activate(&mut self, now: Time, key: u32);
    /// The circuit that sends the next cell; the caller sends exactly one and then says [`sent`](Self::sent).
    fn next(&mut self, now: Time) -> Option<u32>;
    /// How much the circuit that sends next has sent of late, by which channels compare; `None` if no circuit
    /// has cells.
    fn load(&mut self, now: Time) -> Option<f64>;
    /// The circuit named by [`next`](Self::next) sent a cell; `more` if it has others.
    fn sent(&mut self, now: Time, key: u32, more: bool);
    /// Circuit `key` is gone or may not send now.
    fn remove(&mut self, key: u32);
    /// Removes `key` and forgets what is known of it, for its next owner.
    fn forget(&mut self, key: u32);
}

/// The schedulers there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Each circuit with cells in turn.
    RoundRobin,
    /// The circuit with the least exponentially decayed cell count (Tang, Goldberg 2010).
    Ewma {
        /// Time in which a count halves.
        half_life: Span,
    },
}

impl Kind {
    /// A scheduler of this kind for one channel.
    pub fn build(self) -> Box<dyn Scheduler + Send> {
        match self {
            Kind::RoundRobin => Box::new(round_robin::RoundRobin::default()),
            Kind::Ewma { half_life } => Box::new(ewma::Ewma::new(half_life)),
        }
    }
}
