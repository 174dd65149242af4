//! Numbers of peers.

pub use tidegate_control::paths::Peer;

/// The server's number; viewers count from one.
pub const SERVER: Peer = 0;
