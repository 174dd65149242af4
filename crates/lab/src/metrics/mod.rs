//! Metrics as folds over a run's observations.
//!
//! `Fold` is a [`Recorder`](tidegate_sim::observe::Recorder) that aggregates observations as they come. Its memory
//! grows with users, relays and transfers, not with cells. All metrics except curves over time cover the time after
//! the warm-up.
//!
//! *Latency* is per application byte, from the moment when the exit packages it into a cell to the arrival of that
//! cell at the client. `latency_from_departure` starts when the cell leaves the exit's circuit queue, as PredicTor's
//! prototype measured it. *Backlog* is the number of bytes that servers wrote and clients have not received.

mod fairness;
mod fold;
pub(crate) mod histogram;
mod kept;
pub(crate) mod known;
mod measured;
pub(crate) mod series;
mod summary;
pub(crate) mod transfers;

pub(crate) use fold::Fold;
pub use histogram::Histogram;
pub(crate) use measured::CAUSES;
pub(crate) use measured::{Anatomy, HOPS};
pub use measured::{Metrics, RelayRow};
pub use series::Series;
pub use transfers::{Class, Record, Transfers};

#[cfg(test)]
pub(crate) mod tests;
