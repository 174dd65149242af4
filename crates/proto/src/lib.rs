//! The onion overlay as sans-IO state machines: cells, circuits, windows, schedulers, relays and clients.
//!
//! Nothing here knows of clocks, sockets or threads. A driver (the simulator, or `net` on real sockets)
//! owns one [`relay::Relay`] or [`client::Client`] per node and follows the contract of [`tidegate_control::machine`]: tell it
//! what happened, do what it asks, call it again at the time it names.
//!
//! The way of a cell through a node: channel -> leg lookup -> [`onion`] layer -> the other leg's circuit
//! queue -> [`scheduler`] -> the channel's output buffer -> the driver's connection. [`links`] holds all of
//! it but the layer.
//!
//! # Examples
//!
//! A client and three relays on a transport of one's own, in 60 lines: `crates/proto/examples/own_transport.rs`. Parts
//! are found by their names in scenario files:
//!
//! ```
//! use tidegate_proto::registry::SCHEDULERS;
//!
//! let ewma = SCHEDULERS.iter().find(|part| part.name == "ewma").expect("it is registered");
//! let config = tidegate_proto::links::Config { scheduler: ewma.by_default(), ..Default::default() };
//! # let _ = config;
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod bucket;
pub mod cell;
pub mod client;
pub mod combinations;
pub mod conflux;
pub mod control;
pub mod crypto;
pub mod defence;
mod edge;
pub mod ending;
pub mod flashflow;
pub mod ids;
pub mod links;
pub mod node;
pub mod onion;
pub mod paths;
pub mod registry;
pub mod relay;
pub mod scheduler;
mod sink;
pub mod switching;
pub mod system;
pub mod transport;

// Files of this crate may name it as the examples do.
extern crate self as tidegate_proto;

/// The walk-through for contributors compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../CONTRIBUTING.md")]
struct Contributing;
