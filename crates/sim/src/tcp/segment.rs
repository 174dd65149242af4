//! Segments between two endpoints.

use super::config::Config;

/// A TCP segment without its payload. Offsets count payload bytes from the start of the connection;
/// a FIN takes the offset after the last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first payload byte.
    pub seq: u64,
    /// The next offset that the sender of this segment expects.
    pub ack: u64,
    /// Payload bytes.
    pub len: u32,
    /// Bytes after `ack` that the sender of this segment takes.
    pub window: u32,
    /// Selective acknowledgements, the newest first: `(start, end)` relative to `ack`, wrapping.
    pub sack: [(u32, u32); 3],
    /// Milliseconds on the sender's clock (RFC 7323).
    pub stamp: u32,
    /// The peer's `stamp` echoed.
    pub echo: u32,
    /// How many of `sack` are used.
    pub blocks: u8,
    /// SYN, ACK, FIN, and whether `sack[0]` reports a duplicate (RFC 2883).
    pub(crate) flags: Flags,
}

/// The flags of a [`Segment`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub u8);

impl Flags {
    /// Opens a connection.
    pub(crate) const SYN: Flags = Flags(1);
    /// `ack` is valid.
    pub(crate) const ACK: Flags = Flags(2);
    /// The last byte has been sent.
    pub(crate) const FIN: Flags = Flags(4);
    /// The first selective acknowledgement reports bytes received twice.
    pub(crate) const DUPLICATE: Flags = Flags(8);
    /// Asks for an acknowledgement: a probe of a closed window.
    pub(crate) const PROBE: Flags = Flags(16);

    /// Whether all flags of `other` are set.
    pub(crate) const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
    /// These flags and those of `other`.
    #[must_use]
    pub(crate) const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl Segment {
    /// Bytes of the IP packets that carry it.
    pub(crate) fn wire_bytes(&self, config: &Config) -> u32 {
        self.packets(config) * self.header_bytes(config) + self.len
    }

    /// Header bytes of each packet.
    pub(crate) fn header_bytes(&self, config: &Config) -> u32 {
        let sack_option = if self.blocks > 0 { 4 + 8 * u32::from(self.blocks) } else { 0 };
        config.header_bytes + sack_option
    }

    /// Number of packets: more than one if it stands for a train.
    pub(crate) fn packets(&self, config: &Config) -> u32 {
        if self.len <= config.mss { 1 } else { self.len.div_ceil(config.mss) }
    }
}
