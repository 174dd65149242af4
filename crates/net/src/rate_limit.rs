//! Rate limits of a node's connections.

use tidegate_proto::links::ChannelId;

/// Limits and counts the bytes of a node's connections.
pub trait RateLimit {
    /// Waits until `bytes` may be written on a channel.
    fn leave(&self, channel: ChannelId, bytes: u64) -> impl Future<Output = ()>;
    /// Counts received bytes.
    fn received(&self, bytes: u64);
    /// Counts bytes of streams that were sent to servers and received from them.
    fn outside(&self, _sent: u64, _received: u64) {}
}

/// An unlimited rate.
pub struct Unlimited;

impl RateLimit for Unlimited {
    async fn leave(&self, _: ChannelId, _: u64) {}
    fn received(&self, _: u64) {}
}
