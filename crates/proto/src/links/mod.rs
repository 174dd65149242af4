//! Channels to neighbours, the circuits multiplexed on them, and who sends next.
//!
//! A *channel* is one connection to a neighbour. A *leg* is one circuit on one channel, with the queue of
//! cells that wait to leave there. Cells move from a leg's queue to the channel's output buffer in the
//! order of the channel's scheduler, and from there to the driver's connection in order.
//!
//! - [`config`]: how a node moves cells; [`limits`]: what neighbours may make it do; [`state`]: what it keeps;
//! - [`channels`], [`circuits`]: they come and go; [`queues`]: cells move through, and wait ([`waiting`]);
//! - [`pacing`]: how many a controller lets go; [`neighbours`]: what controllers tell each other;
//! - [`moves`]: circuits move from channel to channel; [`kist`], [`runs`]: all channels at once, at intervals.

mod channels;
mod circuits;
mod config;
pub mod kist;
mod limits;
mod moves;
mod neighbours;
mod pacing;
mod queues;
mod runs;
mod state;
mod waiting;

pub use config::{CircuitQueue, Config, Ends, OutputBuffer};
pub use limits::Limits;
pub use moves::Arrival;
pub use queues::QueueFull;
pub use state::Links;
pub(crate) use state::insert_few;

pub use crate::control::Clock;
pub use crate::ids::{ChannelId, LegId, Side};
pub use crate::sink::Departure;
