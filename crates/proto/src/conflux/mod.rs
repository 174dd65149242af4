//! Conflux: streams over several circuits to the same exit at once (proposal 329; tor-spec, "Conflux").
//!
//! The client builds circuits, the legs, which share no relay but the exit, and says LINK with the same nonce on each. The
//! exit answers LINKED on each, the client LINKED_ACK; each side knows each leg's round-trip time by that, and follows it by
//! SENDMEs later. From then on what concerns streams goes over whichever leg the sender chooses; SENDMEs and windows stay
//! with each leg. Before a sender goes on over another leg it says SWITCH there, with the number of messages that went over
//! other legs since the last on this one: by that the receiver numbers what comes, and puts it in order.
//!
//! A [`Set`] is one side's view of the legs of one client: the client and the exit have the same. Which leg a sender chooses
//! is up to its [`Split`].

pub mod by_rate;
pub mod by_time;
mod link;
pub mod q_learning;
mod set;
pub mod split;

pub use link::{Link, Wish};
pub use set::{Broken, Linked, MAX_LEGS, Refused, Set};
pub use split::Split;
