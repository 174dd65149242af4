//! Peers of MORE on UDP sockets: per-packet paths through the machines of [`tidegate_more`].
//!
//! [`run`] relays, sends one stream or receives one, on one thread with blocking reads. [`serve`] offers local TCP
//! servers as hidden services, and [`socks`] lets local applications reach them; both use one tokio thread.

mod hidden_service;
mod local;
mod peer;
mod socks;
mod status;
mod transfer;

pub use hidden_service::{Publish, Serving, serve};
pub use peer::{PeerConfig, Summary, entropy};
pub use socks::{Front, Receiver, socks};
pub use transfer::{Role, run};
