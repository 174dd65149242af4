//! A node of the overlay, a relay or a client, as its driver sees it: a [`Machine`] with these inputs and outputs.

use tidegate_control::machine::Machine;
use tidegate_control::units::{Span, Time};

use crate::cell::{Cell, EndReason};
use crate::ids::{ChannelId, RelayId};
pub use crate::ids::{CircuitKey, StreamKey};
use crate::onion::Onion;
pub use crate::sink::{Budget, Sink, Socket};
use crate::switching::MoveTimes;

/// What a node asks of its driver, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output<O: Onion> {
    /// Connect to a relay; then say [`Node::channel_opened`] or [`Node::channel_closed`].
    OpenChannel(ChannelId, RelayId),
    /// Close the connection once what was popped is written; the id is free again.
    CloseChannel(ChannelId),
    /// Take the cell to the channel's other end past the network, in exactly this time: only a simulation can.
    OutOfBand(ChannelId, Cell<O>, Span),
    /// The channel has cells: [`Node::drain`] it. Said once until a drain has taken all or was
    /// [paused](Budget::Paused).
    Flush(ChannelId),
    /// Say the state of the channel's socket: [`Node::socket`].
    Inspect(ChannelId),
    /// Exit: connect the stream to the address; then say [`Node::stream_connected`] or
    /// [`Node::stream_ended`].
    Connect(StreamKey, O::Address),
    /// Application bytes for the stream's local side.
    Deliver(StreamKey, u16, O::Data),
    /// The stream may package again: call [`Node::package`] for at most so many cells if it has bytes.
    Package(StreamKey, u32),
    /// The stream is over; its key is free again.
    StreamClosed(StreamKey, EndReason),
    /// Client: the circuit carries streams from now on.
    CircuitBuilt(CircuitKey),
    /// Client: the circuit's streams go over it and those that were [linked](crate::client::Client::link) with it, as many
    /// of them as are left.
    Linked(CircuitKey),
    /// Client: the exit connected the stream.
    StreamConnected(StreamKey),
    /// This node has moved the circuit to another connection, or over to another circuit's relays; so long it
    /// took.
    Switched(CircuitKey, MoveTimes),
    /// Client: the circuit is gone, and its streams with it.
    CircuitClosed(CircuitKey),
}

/// Where application bytes to be packaged come from.
pub trait Source<O: Onion> {
    /// Takes up to `max` bytes: how many, and which. `None` if there are none now.
    fn take(&mut self, max: u16) -> Option<(u16, O::Data)>;
}

impl<O: Onion, F: FnMut(u16) -> Option<(u16, O::Data)>> Source<O> for F {
    fn take(&mut self, max: u16) -> Option<(u16, O::Data)> {
        self(max)
    }
}

/// A node of the overlay: a relay or a client.
pub trait Node<O: Onion>: Machine<Output = Output<O>> {
    /// A neighbour connected to us; a relay proves who it is, a client does not.
    fn channel_accepted(&mut self, peer: Option<RelayId>) -> ChannelId;
    /// The neighbour understands nothing beyond Tor's protocol: it gets no plans, circuits do not move to and from
    /// it, and share a connection. To be said before the channel is used.
    fn channel_is_stock(&mut self, channel: ChannelId);
    /// The neighbour does not speak the transport that is configured: circuits to it share a connection. To be said before
    /// the channel is used.
    fn channel_is_shared(&mut self, channel: ChannelId);
    /// A channel we asked for is open.
    fn channel_opened(&mut self, now: Time, channel: ChannelId);
    /// A channel broke or could not be opened. Its id is free again.
    fn channel_closed(&mut self, now: Time, channel: ChannelId);
    /// A cell arrived.
    fn cell(&mut self, now: Time, channel: ChannelId, cell: Cell<O>);
    /// Writes a channel's cells, as far as the connection takes them.
    fn drain(&mut self, now: Time, channel: ChannelId, sink: &mut dyn Sink<O>);
    /// Answers [`Output::Inspect`]; `None` if the driver does not know.
    fn socket(&mut self, now: Time, channel: ChannelId, state: Option<Socket>);
    /// Packages bytes of a stream into at most `cells` cells, as far as windows and queues allow.
    fn package(&mut self, now: Time, stream: StreamKey, cells: u32, source: &mut dyn Source<O>);
    /// Exit: the stream's connection is open.
    fn stream_connected(&mut self, now: Time, stream: StreamKey);
    /// Exit: so many more bytes are to come from the stream's server (`u64::MAX`: without end), for a controller that
    /// goes by it. Only a simulation knows.
    fn announced(&mut self, _stream: StreamKey, _bytes: u64) {}
    /// The stream's local side holds so many bytes that it has not taken yet: said when it changes.
    fn backlog(&mut self, now: Time, stream: StreamKey, bytes: u64);
    /// The local side ended the stream, or could not connect it.
    fn stream_ended(&mut self, now: Time, stream: StreamKey);
    /// The last timeout took so long to handle: whether a controller solved a problem in it. A simulation, where nothing
    /// takes time, has nothing to say.
    fn took(&mut self, _now: Time, _spent: Span) -> bool {
        false
    }
    /// Cells waiting in circuit queues and bytes in output buffers.
    fn waiting(&self) -> (u64, u64);
}
