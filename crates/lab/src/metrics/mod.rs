//! Metrics as folds over a run's observations.
//!
//! [`Fold`] is a [`Recorder`](tidegate_sim::observe::Recorder): it keeps what the figures need and forgets the rest, so that its memory
//! grows with users, relays and transfers, not with cells. Everything but the curves over time counts from
//! the end of the warm-up.
//!
//! *Latency* is per application byte, from the moment the exit packages it into a cell (it enters the
//! overlay) to the arrival of that cell at the client. `latency_from_departure` starts its clock when the
//! cell leaves the exit's circuit queue, as PredicTor's prototype did. *Backlog*: written and not yet delivered.

pub mod fairness;
mod fold;
pub mod histogram;
mod kept;
pub mod known;
mod measured;
pub mod series;
mod summary;
pub mod transfers;

pub use fold::Fold;
pub use measured::{Anatomy, CAUSES, HOPS, Metrics, RelayRow, UserRow};

#[cfg(test)]
pub(crate) mod tests;
