//! Sockets, TLS, UDP, QUIC and timers for the sans-IO machines of the crates below.
//!
//! [`clock`] is the only module of this crate that reads a clock. `driver` connects a machine with it.
//!
//! - [`overlay`]: drives a node of the onion-routed overlay over TLS or QUIC. [`live`] builds relays, clients and
//!   directories on it that interoperate with stock tor; [`private_tor`] starts a private Tor network.
//! - [`flashflow`]: relay, measurer and coordinator of a capacity measurement. Each runs on one thread; the measurer
//!   adds worker threads.
//! - [`stream`]: server and viewers of live video.
//! - [`more`]: peers with per-packet paths, hidden services and their clients.
//! - [`gate`]: the addresses that roles may connect to.
//! - [`proxy`]: the SOCKS5 and HTTP CONNECT handshakes of the local fronts.
//! - [`os`]: what differs between operating systems. [`ports`]: free ports for processes that start later.
//!
//! # Examples
//!
//! ```
//! use tidegate_net::clock::Calendar;
//! use tidegate_control::units::Span;
//!
//! // A calendar follows the system clock unless that jumps by more than a day.
//! let calendar = Calendar::new(Span::from_secs(86_400));
//! assert!(calendar.unix() > 1_700_000_000);
//! assert_eq!(calendar.refused(), None);
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

mod admission;
mod batch;
mod buffered_tcp;
pub mod clock;
pub(crate) mod controller_time;
mod descriptors;
mod driver;
pub mod flashflow;
pub mod gate;
pub mod http;
pub mod identity;
mod line_a_minute;
pub mod link;
pub mod live;
pub mod more;
pub mod os;
pub mod overlay;
pub mod ports;
pub mod private_file;
pub mod private_tor;
pub mod proxy;
pub mod quic_stream;
mod rate_limit;
pub mod runtime;
pub mod sockets;
pub mod stream;
pub mod tls;
mod turns;
