//! What a node lets through.

use tidegate_proto::links::ChannelId;

/// Leave to write, and word of what was read and written.
pub trait Gate {
    /// Waits until `bytes` may be written on a channel.
    fn leave(&self, channel: ChannelId, bytes: u64) -> impl Future<Output = ()>;
    /// Cells arrived.
    fn received(&self, bytes: u64);
}

/// No limit.
pub struct Open;

impl Gate for Open {
    async fn leave(&self, _: ChannelId, _: u64) {}
    fn received(&self, _: u64) {}
}
