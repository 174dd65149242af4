//! What things are called: numbers with a type each.

/// A circuit's number on one channel. The side that opened the channel sets the top bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CircId(pub u32);

/// A stream's number on one circuit; zero means the circuit itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

/// A relay as the directory numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayId(pub u32);

/// A secret of the two sides of a move ([`crate::switching`]), by which they know its two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub [u8; 8]);

/// A channel, the connection to a neighbour, as one node numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A leg, one circuit on one channel, as one node numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegId(pub(crate) u32);

/// A circuit as one node numbers it; reused once the circuit is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CircuitKey(pub u32);

/// A stream of one circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// On this circuit of the node.
    pub circuit: CircuitKey,
    /// With this number.
    pub stream: StreamId,
}

/// A side of a circuit at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Towards the client.
    Prev,
    /// Towards the exit.
    Next,
}
