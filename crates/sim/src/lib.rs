//! The deterministic simulator: the same state machines that run on sockets, in simulated time.
//!
//! A run is a pure function of a [`plan::Plan`] (network and users), a [`plan::System`] (how the overlay
//! moves data) and a seed; what happens in it reaches an [`observe::Recorder`].
//!
//! # Examples
//!
//! A network and a recorder of one's own, in 60 lines: `crates/sim/examples/own_network.rs`. Its smallest part:
//!
//! ```
//! use tidegate_control::units::{Span, Time};
//! use tidegate_sim::queue::Queue;
//!
//! let mut queue = Queue::default();
//! queue.push(Time::ZERO + Span::from_millis(2), "later");
//! queue.push(Time::ZERO + Span::from_millis(1), "first");
//! assert_eq!(queue.pop().map(|(_, event)| event), Some("first"));
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod balance;
mod byzantine;
pub mod clients;
mod codel;
pub mod deployment;
pub mod digest;
pub mod division;
mod event_loop;
mod faults;
pub mod flashflow;
mod link;
pub mod observe;
mod packet;
pub mod parallel;
pub mod plan;
pub mod queue;
mod quic;
pub mod stream;
pub mod tcp;
pub mod underlay;
pub mod world;
