//! Peer numbers.

pub use tidegate_control::paths::Peer;

/// The server's number. Viewers count from one.
pub const SERVER: Peer = 0;
