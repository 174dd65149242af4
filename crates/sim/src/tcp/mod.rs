//! TCP as byte sequences without payload: one [`Endpoint`] is one end of a connection, sans-IO.
//!
//! Call a method that changes the endpoint, then [`Endpoint::poll_transmit`] until it gives `None`, then
//! wait until [`Endpoint::next_timeout`] or the next segment.

mod config;
mod congestion;
mod delivery_rate;
mod endpoint;
mod flight;
mod pacing;
pub mod pair;
mod progress;
mod rate_control;
mod receiver;
mod recovery;
mod rtt;
mod segment;
mod sender;
mod small_queue;
#[cfg(test)]
mod tests;

pub use config::{Buffer, Config, Fidelity};
pub use congestion::Congestion;
pub use endpoint::{Arrival, Endpoint};
pub(crate) use endpoint::{Info, State};
pub(crate) use segment::Flags;
pub use segment::Segment;
