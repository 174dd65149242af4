//! MORE (thesis section 3.1): anonymous packets, each over its own random path of relays.
//!
//! Data travels in Sphinx packets of one size; each carries a single-use reply block over the same relays,
//! with which the destination acknowledges it. Neither relays nor destination learn who sends. Senders
//! control their rates with [`tidegate_control::paths`], exactly as in the simulator.
//!
//! Everything here is sans-IO: datagrams, time and entropy are arguments.
//!
//! * [`directory`]: who takes part, signed.
//! * [`onion`]: building and opening datagrams.
//! * [`node`]: the relay's side of one peer: limits, replay defence, counters.
//! * [`upload`]: sends a byte stream reliably. * [`download`]: puts it back together.

pub mod client;
pub mod directory;
pub mod download;
pub mod flights;
mod frame;
pub mod letter;
pub mod node;
pub mod onion;
pub mod service;
pub mod upload;
