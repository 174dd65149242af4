//! MORE (thesis section 3.1): anonymous packets, each over its own random path of relays.
//!
//! Data travels in Sphinx packets of one size, or in cells on routes that Sphinx packets established. Neither relays nor
//! the destination learn the sender. Senders control their rates with [`tidegate_control::paths`], as in the simulator.
//!
//! All machines are sans-IO: [`node::Node`], [`upload::Upload`], [`client::Client`] and [`service::Service`] follow the
//! contract of [`tidegate_control::machine`]. Datagrams and time are inputs; [`machine`] defines the outputs.
//!
//! * [`directory`]: the signed list of peers. [`descriptor`]: what a hidden receiver publishes. [`keys`]: a peer's secrets.
//! * [`wire`]: sizes and kinds of datagrams. [`link`]: authentication between neighbours. [`onion`]: Sphinx datagrams.
//!   `replay`: replay defence. `routes`: cells. [`message`]: receiver paths.
//! * [`node`]: the relay part of a peer: limits, replay defence, counters. [`flights`]: packets in flight of a source.
//! * [`upload`] and [`download`]: a reliable byte stream to a known peer.
//! * [`client`] and [`service`]: streams in both directions; neither side knows the location of the other.
//!   `selection`: the relays of receiver paths.
//!
//! # Examples
//!
//! ```
//! use tidegate_more::keys::PeerKeys;
//! use tidegate_more::onion::{Epoch, build};
//! use tidegate_more::wire::{Class, class};
//!
//! // Peer 0 sends to peer 3 over peers 1 and 2. Real seeds come from the operating system.
//! let keys: Vec<PeerKeys> = (0..4).map(|seed| PeerKeys::new([seed; 32])).collect();
//! let epoch = Epoch::new(7, keys.iter().map(|keys| keys.onion_key(7)).collect());
//! let path = [1, 2, 3];
//! let mut drawn = 0u8;
//! let mut entropy = || {
//!     drawn += 1;
//!     [drawn; 32]
//! };
//! let (datagram, _) = build(&epoch, &path, 0, [9; 16], b"hello", &mut entropy);
//! assert_eq!(class(&datagram), Some((Class::Data, 7)));
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod client;
mod client_route;
mod client_stream;
pub mod descriptor;
pub mod directory;
pub mod download;
pub mod flights;
mod frame;
pub mod keys;
pub mod link;
pub mod machine;
pub mod message;
pub mod node;
pub mod onion;
mod replay;
mod routes;
mod selection;
pub mod service;
mod service_stream;
pub mod upload;
mod window;
pub mod wire;

pub use replay::ReplayTags;
