//! Metrics as folds over a run's observations.
//!
//! [`Fold`] is a [`Recorder`](tidegate_sim::observe::Recorder) that aggregates observations as they come. Its memory
//! grows with users, relays and transfers, not with cells. All metrics except curves over time cover the time after
//! the warm-up.
//!
//! *Latency* is per application byte, from the moment when the exit packages it into a cell to the arrival of that
//! cell at the client. `latency_from_departure` starts when the cell leaves the exit's circuit queue, as PredicTor's
//! prototype measured it. *Backlog* is the number of bytes that servers wrote and clients have not received.

pub mod fairness;
mod fold;
pub mod histogram;
mod kept;
pub mod known;
mod measured;
pub mod series;
mod summary;
pub mod transfers;

pub(crate) use fold::Fold;
pub(crate) use measured::CAUSES;
pub(crate) use measured::{Anatomy, HOPS, UserRow};
pub use measured::{Metrics, RelayRow};

#[cfg(test)]
pub(crate) mod tests;
