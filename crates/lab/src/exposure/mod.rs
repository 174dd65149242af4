//! Which streams of Tor's users an adversary that runs relays can see at both ends, over months.
//!
//! A path simulator in the manner of TorPS (Johnson and others, "Users Get Routed", CCS 2013) and TorFS, with the guards
//! of today's tor. Simulated clients choose guards, exits and middles from real consensuses. The simulator does not send
//! any packet. See docs/anonymity.md.

mod adversary;
mod client;
mod guards;
mod network;
mod report;
pub(crate) mod runner;
mod settings;
mod simulation;
mod survival;
mod timeline;
mod user;

pub use self::adversary::Adversary;
pub use self::report::Exposure;
pub use self::settings::{ExposureSettings, StreamPaths, builtin_consensus};
pub use self::simulation::run;
pub use self::user::UserModel;

#[cfg(test)]
mod tests;
