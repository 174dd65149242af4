//! The deterministic simulator: the same state machines that run on sockets, in simulated time.
//!
//! A run is a pure function of a [`plan::Plan`] (network and users), a [`plan::System`] (how the overlay
//! moves data) and a seed; what happens in it reaches an [`observe::Recorder`].

pub mod balance;
pub mod codel;
pub mod digest;
pub mod faults;
pub mod flashflow;
pub mod lies;
pub mod link;
pub mod observe;
pub mod parallel;
pub mod plan;
pub mod queue;
pub mod stream;
pub mod tcp;
pub mod underlay;
pub mod world;
