//! What LINK and LINKED say (proposal 329).

/// What a side wishes for what the other sends (proposal 329, "DESIRED_UX").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing in particular.
    None,
    /// Little delay: on the leg with the least round-trip time alone.
    MinLatency,
    /// That, and few messages that wait for others.
    MinLatencyLowMemory,
    /// A high rate: over all legs, that with the least round-trip time first.
    Throughput,
    /// That, and few messages that wait for others.
    ThroughputLowMemory,
}

/// What LINK and LINKED say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// What a set's legs have in common; who knows it can say something in its streams.
    pub nonce: [u8; 32],
    /// Messages that the speaker has sent over the set's other legs, and that it has delivered.
    pub sent: u64,
    /// See `sent`.
    pub delivered: u64,
    /// What it wishes.
    pub wish: Wish,
}

impl Link {
    /// Bytes of a message.
    pub const BYTES: usize = 50;

    /// As it goes over the wire: version 1.
    pub fn write(&self) -> [u8; Link::BYTES] {
        let mut bytes = [0; Link::BYTES];
        bytes[0] = 1;
        bytes[1..33].copy_from_slice(&self.nonce);
        bytes[33..41].copy_from_slice(&self.sent.to_be_bytes());
        bytes[41..49].copy_from_slice(&self.delivered.to_be_bytes());
        bytes[49] = self.wish as u8;
        bytes
    }

    /// What was written; `None` if it is short, or of another version.
    pub fn read(bytes: &[u8]) -> Option<Link> {
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
