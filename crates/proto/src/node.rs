//! The contract between a node and what drives it.

use tidegate_control::units::Time;

use crate::cell::{Cell, RelayId, StreamId};
use crate::links::{ChannelId, Departure, kist};
use crate::onion::Onion;
use crate::switching::Parts;

/// A circuit as one node numbers it; reused after [`Output::CircuitClosed`].
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

/// What a node asks of its driver, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output<O: Onion> {
    /// Connect to a relay; then say [`Node::channel_opened`] or [`Node::channel_closed`].
    OpenChannel(ChannelId, RelayId),
    /// Close the connection once what was popped is written; the id is free again.
    CloseChannel(ChannelId),
    /// Take the cell to the channel's other end past the network: only a simulation can.
    Aside(ChannelId, Cell<O>),
    /// The channel has cells: [`Node::pop`] them while the connection takes them. Said once until
    /// `pop` has answered `None`.
    Flush(ChannelId),
    /// Call [`Node::schedule`] at this time.
    Schedule(Time),
    /// Exit: connect the stream to the address; then say [`Node::stream_connected`] or
    /// [`Node::stream_ended`].
    Connect(StreamKey, O::Address),
    /// Application bytes for the stream's local side.
    Deliver(StreamKey, u16, O::Data),
    /// The stream may package again: call [`Node::package`] for at most so many cells if it has bytes.
    Package(StreamKey, u32),
    /// The stream is over; its key is free again.
    StreamClosed(StreamKey),
    /// Client: the circuit carries streams from now on.
    CircuitBuilt(CircuitKey),
    /// Client: the exit connected the stream.
    StreamConnected(StreamKey),
    /// This node has moved the circuit to another connection, or over to another circuit's relays; so long it
    /// took.
    Switched(CircuitKey, Parts),
    /// Client: the circuit is gone, and its streams with it.
    CircuitClosed(CircuitKey),
}

/// Where application bytes to be packaged come from.
pub trait Source<O: Onion> {
    /// Takes up to `max` bytes: how many, and which. `None` if there are none now.
    fn take(&mut self, max: u16) -> Option<(u16, O::Data)>;
}

/// A node of the overlay: a relay or a client.
pub trait Node<O: Onion> {
    /// A neighbour connected to us; a relay proves who it is, a client does not.
    fn channel_accepted(&mut self, peer: Option<RelayId>) -> ChannelId;
    /// A channel we asked for is open.
    fn channel_opened(&mut self, now: Time, channel: ChannelId);
    /// A channel broke or could not be opened. Its id is free again.
    fn channel_closed(&mut self, now: Time, channel: ChannelId);
    /// A cell arrived.
    fn cell(&mut self, now: Time, channel: ChannelId, cell: Cell<O>);
    /// Cells that [`Node::pop`] gives at least: the output buffer, not what would refill it.
    fn ready(&self, channel: ChannelId) -> u64;
    /// Bytes of the next `cells` cells, which must be [ready](Node::ready).
    fn ready_bytes(&self, channel: ChannelId, cells: u64) -> u64;
    /// The next cell to write to a channel.
    fn pop(&mut self, now: Time, channel: ChannelId) -> Option<Departure<O>>;
    /// The driver stops writing a channel before it is empty: the node says [`Output::Flush`] again when more
    /// cells come.
    fn hold(&mut self, channel: ChannelId);
    /// Moves cells to output buffers as the states of the channels' sockets allow: a run of KIST.
    fn schedule(&mut self, now: Time, socket: &mut dyn FnMut(ChannelId) -> kist::Socket);
    /// Packages bytes of a stream into at most `cells` cells, as far as windows and queues allow.
    fn package(&mut self, now: Time, stream: StreamKey, cells: u32, source: &mut dyn Source<O>);
    /// Exit: the stream's connection is open.
    fn stream_connected(&mut self, now: Time, stream: StreamKey);
    /// The stream's local side holds so many bytes that it has not taken yet: said when it changes.
    fn backlog(&mut self, now: Time, stream: StreamKey, bytes: u64);
    /// The local side ended the stream, or could not connect it.
    fn stream_ended(&mut self, now: Time, stream: StreamKey);
    /// The next thing to do.
    fn poll(&mut self) -> Option<Output<O>>;
    /// Cells waiting in circuit queues and bytes in output buffers.
    fn waiting(&self) -> (u64, u64);
}
