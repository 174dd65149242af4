//! MORE (thesis section 3.1): anonymous packets, each over its own random path of relays.
//!
//! Data travels in Sphinx packets of one size; each carries a single-use reply block over the same relays,
//! with which the destination acknowledges it. Neither relays nor destination learn who sends. Senders
//! control their rates with [`tidegate_control::paths`], exactly as in the simulator.
//!
//! Everything here is sans-IO: datagrams, time and entropy are arguments.
//!
//! * [`directory`]: who takes part, signed. [`descriptor`]: what a receiver that hides publishes.
//! * [`onion`]: building and opening datagrams. [`letter`]: receiver paths and what crosses them.
//! * [`node`]: the relay's side of one peer: limits, replay defence, counters.
//! * [`flights`]: a source's packets on their way, under a controller.
//! * [`upload`]: sends a byte stream to a known peer reliably. [`download`]: puts it back together.
//! * [`client`] and [`service`]: streams in both directions, neither side knows where the other is.
//! * [`socks`]: how a local application asks for one.

pub mod client;
pub mod descriptor;
pub mod directory;
pub mod download;
pub mod flights;
mod frame;
pub mod letter;
pub mod node;
pub mod onion;
pub mod service;
pub mod socks;
pub mod upload;
