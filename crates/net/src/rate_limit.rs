//! Rate limits of a node's connections.

use std::net::IpAddr;

use tidegate_proto::links::ChannelId;

/// A connection that wants to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its channel. The nodes of other threads number theirs alike.
    pub channel: ChannelId,
    /// The neighbour's address; `None` if it is unknown.
    pub address: Option<IpAddr>,
}

/// Limits and counts the bytes of a node's connections.
pub trait RateLimit {
    /// Waits until `bytes` may be written on a connection.
    fn leave(&self, connection: Connection, bytes: u64) -> impl Future<Output = ()>;
    /// Counts received bytes.
    fn received(&self, bytes: u64);
    /// Counts bytes of streams that were sent to servers and received from them.
    fn outside(&self, _sent: u64, _received: u64) {}
}

/// An unlimited rate.
pub struct Unlimited;

impl RateLimit for Unlimited {
    async fn leave(&self, _: Connection, _: u64) {}
    fn received(&self, _: u64) {}
}
