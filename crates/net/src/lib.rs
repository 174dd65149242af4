//! Sockets, TLS and timers under the machines of `proto`: what runs on a real network. This crate is the
//! only home of the wall clock ([`clock`]).
//!
//! [`flashflow`] holds the roles of a capacity measurement: a relay, a measurer and a coordinator, each on a
//! single thread but for the measurer's workers.
//!
//! [`live`] holds the roles of an overlay that people use, and that stock tor understands: relay, client, directory;
//! [`private_tor`] starts stock tor's own around them.
//!
//! [`stream`] runs the server and the viewers of live video through trees of viewers.
//! [`more`] runs a peer of the overlay of per-packet paths, [`more_serve`] and [`more_socks`] local connections
//! over it.
//!
//! [`os`] is what operating systems do each in their own way; [`ports`] finds free ones for processes to come.
//!
//! # Examples
//!
//! ```
//! use tidegate_net::clock::Calendar;
//! use tidegate_control::units::Span;
//!
//! // A role follows the calendar unless that jumps by more than a day.
//! let calendar = Calendar::new(Span::from_secs(86_400));
//! assert!(calendar.unix() > 1_700_000_000);
//! assert_eq!(calendar.refused(), None);
//! ```

#![forbid(unsafe_code)]

pub mod admission;
mod batch;
pub mod clock;
pub mod flashflow;
mod gate;
pub mod http;
pub mod identity;
pub mod lane;
pub mod link;
pub mod live;
mod lumps;
pub mod more;
mod more_local;
pub mod more_peer;
pub mod more_serve;
pub mod more_socks;
mod more_status;
pub mod os;
pub mod overlay;
pub mod ports;
pub mod private;
pub mod private_tor;
pub mod role;
pub mod sockets;
pub mod steps;
pub mod stream;
pub mod tls;
