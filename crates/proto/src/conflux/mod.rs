//! Conflux: streams over several circuits to the same exit at once (proposal 329; tor-spec, "Conflux").
//!
//! The client builds circuits, the legs, which share only the exit, and sends LINK with the same nonce on each. The
//! exit answers LINKED on each, the client LINKED_ACK. Both sides measure each leg's round-trip time with these messages, and
//! later with SENDMEs. From then on the sender chooses the leg of each stream message; SENDMEs and windows stay
//! with each leg. Before a sender changes to another leg it sends SWITCH there, with the number of messages that it sent over
//! other legs since the last one on this leg. With these numbers the receiver restores the order.
//!
//! A `Set` is one side's view of a client's legs; the client and the exit have one each. The [`Split`] chooses the leg.

pub(crate) mod blest;
pub(crate) mod by_rate;
pub(crate) mod by_time;
mod link;
pub(crate) mod q_learning;
mod set;
pub(crate) mod split;
#[cfg(test)]
mod tests;

pub use link::{Link, Wish};
pub(crate) use set::Linked;
pub(crate) use set::{Broken, MAX_LEGS, Refused, Set};
pub use split::{Offer, Split, Splitter};
