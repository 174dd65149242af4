//! Q-Stream (thesis sections 3.2, 6.4, 7.4): live video through trees of viewers that one server arranges.
//!
//! The stream is cut into `k` slices; every slice has its own tree over all viewers. The server learns what
//! each viewer can carry from exploration packets over random chains, with the controllers of
//! [`tidegate_control::paths`], and moves viewers until trees are short.
//!
//! Everything here is sans-IO. A machine takes an [`Input`], hands out [`Output`]s until there are none, and
//! names the time at which it wants to be woken. Whatever carries datagrams and messages between peers that
//! have proven who they are is a carrier: the simulator's links, or QUIC on sockets.
//!
//! * [`machine`]: what goes into machines and comes out. [`peer`]: numbers. [`packet`]: datagrams.
//! * [`message`]: what server and viewers tell each other reliably.
//! * [`framer`]: MPEG-TS bytes to payloads. [`source`]: payloads to slices, parity and repairs. [`parity`].
//! * [`latency`]: what is known of latencies. [`tree`]: one slice's tree. [`room`]: who can carry how much. [`forest`]:
//!   all trees.
//! * [`member`]: what the server knows of a viewer. [`explorer`]: exploration packets. [`judge`]: complaints.
//!   [`repairs`]: what the server sends again.
//! * [`server`]: tracker, source and explorer as one machine. [`viewer`] over [`reorder`]: a viewer.
//! * [`uplink`]: a rate with a bounded queue, the first thing that limits a peer. [`bucket`]: what is spent and
//!   refills. [`lag`]: ages of packets.
//!
//! # Examples
//!
//! ```
//! use tidegate_stream::framer::{Framer, TS};
//!
//! let mut framer = Framer::default();
//! let mut packet = [0; TS];
//! packet[0] = 0x47;
//! assert!(framer.push(b"not TS").is_empty());
//! assert!(framer.push(&packet.repeat(4)).is_empty(), "a datagram holds more");
//! assert_eq!(framer.garbage, 6);
//! ```

#![forbid(unsafe_code)]

pub mod bucket;
pub mod explorer;
pub mod forest;
pub mod framer;
pub mod judge;
pub mod lag;
pub mod latency;
pub mod machine;
pub mod member;
pub mod message;
pub mod packet;
pub mod parity;
pub mod peer;
pub mod reorder;
pub mod repairs;
pub mod room;
pub mod server;
pub mod source;
pub mod tree;
pub mod uplink;
pub mod viewer;

pub use machine::{Input, Output};
pub use packet::MAX_SLICES;
pub use peer::{Peer, SERVER};
