//! The content of LINK and LINKED (proposal 329).

/// How a side wants the other to divide its messages (proposal 329, "DESIRED_UX").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// No preference.
    None,
    /// Low delay: only the leg with the least round-trip time.
    MinLatency,
    /// Low delay and few messages in the reorder buffer.
    MinLatencyLowMemory,
    /// High rate: all legs, the one with the least round-trip time first.
    Throughput,
    /// High rate and few messages in the reorder buffer.
    ThroughputLowMemory,
}

/// The content of LINK and LINKED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The set's secret: a peer that knows it can join the set.
    pub nonce: [u8; 32],
    /// Messages that the sender of this LINK has sent over the set's other legs.
    pub sent: u64,
    /// Messages that it has delivered.
    pub delivered: u64,
    /// Its wish for the other side's messages.
    pub wish: Wish,
}

impl Link {
    /// Length of the message in bytes.
    pub(crate) const BYTES: usize = 50;

    /// The wire format, version 1.
    pub(crate) fn write(&self) -> [u8; Link::BYTES] {
        let mut bytes = [0; Link::BYTES];
        bytes[0] = 1;
        bytes[1..33].copy_from_slice(&self.nonce);
        bytes[33..41].copy_from_slice(&self.sent.to_be_bytes());
        bytes[41..49].copy_from_slice(&self.delivered.to_be_bytes());
        bytes[49] = self.wish as u8;
        bytes
    }

    /// Parses the wire format; `None` if it is too short or of another version.
    pub(crate) fn read(bytes: &[u8]) -> Option<Link> {
        let bytes: &[u8; Link::BYTES] = bytes.first_chunk()?;
        let [1, ..] = bytes else { return None };
        let number = |at: usize| Some(u64::from_be_bytes(*bytes[at..].first_chunk()?));
        let wish = match bytes[49] {
            0 => Wish::None,
            1 => Wish::MinLatency,
            2 => Wish::MinLatencyLowMemory,
            3 => Wish::Throughput,
            4 => Wish::ThroughputLowMemory,
            _ => return None,
        };
        Some(Link { nonce: *bytes[1..].first_chunk()?, sent: number(33)?, delivered: number(41)?, wish })
    }
}
