//! Identifiers of circuits, streams, channels, legs and relays.

/// A circuit id on one channel (tor-spec, "Choosing circuit IDs in create cells").
///
/// The side that opened the channel sets the top bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CircId(pub u32);

/// Set in the circuit ids that the opener of a channel gives, so that both sides can create circuits.
const OPENER_BIT: u32 = 1 << 31;

impl CircId {
    /// The id with this number, as given by the side that opened the channel or by the other side.
    pub(crate) fn given_by(opener: bool, number: u32) -> CircId {
        CircId((number & !OPENER_BIT) | if opener { OPENER_BIT } else { 0 })
    }

    /// Whether that side of the channel may give the id. Zero names the channel itself.
    pub(crate) fn is_given_by(self, opener: bool) -> bool {
        (self.0 & OPENER_BIT != 0) == opener && self.0 & !OPENER_BIT != 0
    }
}

/// A stream id on one circuit. Zero names the circuit itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// A relay's number in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayId(pub u32);

/// Shared secret of the two sides of a move ([`crate::switching`]). It pairs a LEAVE with its JOIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub [u8; 8]);

/// One node's id of a channel, which is a connection to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

impl ChannelId {
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One node's id of a leg, which is one circuit on one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LegId(pub(crate) u32);

impl LegId {
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One node's key of a circuit. A key is reused once its circuit is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CircuitKey(pub u32);

/// A stream of one circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// The circuit that carries the stream.
    pub circuit: CircuitKey,
    /// The stream's id on that circuit.
    pub stream: StreamId,
}

/// Direction of a circuit at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Towards the client.
    Prev,
    /// Towards the exit.
    Next,
}
