//! MORE (thesis section 3.1): anonymous packets, each over its own random path of relays.
//!
//! Data travels in Sphinx packets of one size, or in cells along routes that Sphinx packets established. Neither
//! relays nor destination learn who sends. Senders control their rates with [`tidegate_control::paths`], exactly
//! as in the simulator.
//!
//! Everything here is sans-IO. [`node::Node`], [`upload::Upload`], [`client::Client`] and [`service::Service`] follow the
//! contract of [`tidegate_control::machine`]; datagrams and time are inputs, [`machine`] says what they ask for.
//!
//! * [`directory`]: who takes part, signed. [`descriptor`]: what a receiver that hides publishes. [`keys`]: a peer's
//!   secrets.
//! * [`wire`]: datagrams from outside. [`link`]: how neighbours know each other. [`onion`]: building and opening Sphinx
//!   datagrams. [`replay`]: which were opened. [`routes`]: cells. [`message`]: receiver paths and what crosses them.
//! * [`node`]: the relay's side of one peer: limits, replay defence, counters.
//! * [`flights`]: a source's packets on their way, under a controller.
//! * [`upload`]: sends a byte stream to a known peer reliably. [`download`]: puts it back together.
//! * [`client`] and [`service`]: streams in both directions, neither side knows where the other is. [`selection`]:
//!   which relays a receiver uses.
//! * [`socks`]: how a local application asks for one.
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
pub mod replay;
pub mod routes;
pub mod selection;
pub mod service;
mod service_stream;
pub mod socks;
pub mod upload;
mod window;
pub mod wire;
