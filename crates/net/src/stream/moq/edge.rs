//! Names and addresses of both edges.

use std::net::SocketAddr;

use tidegate_control::units::Span;

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
    /// SHA-256 of its first certificate. Browsers accept it as `serverCertificateHashes`.
    pub certificate: [u8; 32],
}

/// Where pages find an edge: its UDP address, and SHA-256 of the certificate in use and of the announced next one.
pub(crate) type Advertised = (SocketAddr, Vec<[u8; 32]>);

/// Ages of a certificate, from when it is made.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// It expires. Browsers accept the hash of a certificate that is valid for at most 14 days.
    pub expires: Span,
    /// Its successor is made and announced.
    pub announced: Span,
    /// Its successor replaces it in new connections.
    pub replaced: Span,
}

impl Default for Lifetimes {
    fn default() -> Lifetimes {
        let days = |days: u64| Span::from_secs(days * 24 * 3600);
        Lifetimes { expires: days(13), announced: days(6), replaced: days(10) }
    }
}

/// A step in the renewal of the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// New connections will see another certificate.
    Announced {
        /// SHA-256 of the next certificate.
        certificate: [u8; 32],
        /// From this time on, seconds since 1970.
        from: u64,
    },
    /// New connections see this certificate from now on.
    Replaced {
        /// Its SHA-256.
        certificate: [u8; 32],
    },
}
