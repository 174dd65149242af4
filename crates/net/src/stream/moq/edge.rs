//! Names and addresses of both edges.

use std::net::SocketAddr;

/// Name of the broadcast.
pub const BROADCAST: &str = "live";
/// Name of its track.
pub const TRACK: &str = "ts";
/// Whether this build has Media over QUIC.
pub const IS_BUILT: bool = cfg!(feature = "moq");

/// Where an edge listens.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// Its UDP address.
    pub address: SocketAddr,
    /// SHA-256 of its certificate, which is valid for 13 days. Browsers accept it as `serverCertificateHashes`.
    pub certificate: [u8; 32],
}
