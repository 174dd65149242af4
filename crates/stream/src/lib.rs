//! Q-Stream (thesis sections 3.2, 6.4, 7.4): live video through trees of viewers, arranged by one server.
//!
//! The server cuts the stream into `k` slices. Every slice has its own tree over all viewers. The server measures the
//! bandwidth of the viewers with exploration packets over random chains, with the controllers of
//! [`tidegate_control::paths`], and moves viewers until the trees are short.
//!
//! All machines are sans-IO: a machine takes an [`Input`], returns [`Output`]s, and names the time of its next timeout.
//! Its driver carries datagrams and messages between authenticated peers: simulated links, or QUIC on sockets.
//!
//! * [`server`]: tracker, source and explorer as one machine. [`viewer`]: a viewer, with `reorder` as its buffer.
//! * [`packet`]: datagrams. [`message`]: messages on the reliable channel between server and viewer.
//! * [`signing`]: signatures of the server, checked before viewers forward.
//! * [`framer`] and `source`: from MPEG-TS bytes to packets. `parity`: recovery of lost packets.
//! * [`tree`], `room`, [`forest`]: the trees and their capacity. `latency`: estimates of latencies.
//! * `member`: state of a viewer at the server. [`explorer`]: exploration. `judge`: complaints.
//! * [`uplink`]: a rate limit with a bounded queue. `bucket`: token buckets. [`lag`]: ages of packets.
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
//! assert!(framer.push(&packet.repeat(4)).is_empty(), "four TS packets do not fill a payload");
//! assert_eq!(framer.garbage, 6);
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod bucket;
pub mod explorer;
pub mod forest;
pub mod framer;
mod judge;
pub mod lag;
mod latency;
mod machine;
mod member;
pub mod message;
pub mod packet;
mod parity;
mod peer;
mod reorder;
mod room;
pub mod server;
pub mod signing;
mod source;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod uplink;
pub mod viewer;

pub use machine::{Input, Output};
pub use member::Member;
pub use packet::MAX_SLICES;
pub use peer::{Peer, SERVER};
pub use source::Source;
