//! The interface between a node of the overlay (relay or client) and its driver: a [`Machine`] with these inputs and
//! outputs.

use std::net::IpAddr;

use tidegate_control::machine::Machine;
use tidegate_control::units::{Span, Time};

use crate::cell::{Cell, EndReason};
use crate::ending::Ending;
use crate::ids::{ChannelId, RelayId};
pub use crate::ids::{CircuitKey, StreamKey};
use crate::onion::Onion;
pub use crate::sink::{Budget, Sink, Socket};
use crate::switching::MoveTimes;

/// A request of a node to its driver. The driver handles requests in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output<O: Onion> {
    /// Connect to a relay, then call [`Node::channel_opened`] or [`Node::channel_closed`].
    OpenChannel(ChannelId, RelayId),
    /// Close the connection once the drained cells are written. The id is free again.
    CloseChannel(ChannelId),
    /// Deliver the cell to the channel's other end after exactly this time, past the network. Simulation only.
    OutOfBand(ChannelId, Cell<O>, Span),
    /// The channel has cells: call [`Node::drain`]. The request is not repeated until a drain has taken all cells or
    /// was [paused](Budget::Paused).
    Flush(ChannelId),
    /// Report the state of the channel's socket with [`Node::socket`].
    Inspect(ChannelId),
    /// Exit: connect the stream to the address, then call [`Node::stream_connected`] or
    /// [`Node::stream_ended`].
    Connect(StreamKey, O::Address),
    /// Application bytes for the stream's local side, of so many equal messages: one, unless cells are simulated.
    Deliver(StreamKey, u16, O::Data, u32),
    /// The stream may package again: if it has bytes, call [`Node::package`] for at most this number of cells.
    Package(StreamKey, u32),
    /// The stream is over; its key is free again.
    StreamClosed(StreamKey, EndReason),
    /// Client: the circuit is built and can carry streams.
    CircuitBuilt(CircuitKey),
    /// Client: the circuit's streams now use this circuit and the remaining circuits that were
    /// [linked](crate::client::Client::link) with it.
    Linked(CircuitKey),
    /// Client: the exit connected the stream.
    StreamConnected(StreamKey),
    /// Client: the exit answered a RESOLVE request, in wire format. The stream is over; its key is free again.
    Resolved(StreamKey, Box<[u8]>),
    /// This node has moved the circuit to another connection, or to another circuit's relays, in these times.
    Switched(CircuitKey, MoveTimes),
    /// Relay: it closed the circuit for this reason.
    CircuitEnded(CircuitKey, Ending),
    /// Client: the circuit is gone, and its streams with it.
    CircuitClosed(CircuitKey),
}

/// A source of application bytes to package.
pub trait Source<O: Onion> {
    /// Takes up to `max` bytes: their number, and the bytes. `None` if the source is empty for now.
    fn take(&mut self, max: u16) -> Option<(u16, O::Data)>;
    /// As [`take`](Source::take), for a run of at most `cells` cells. Each gets the number of bytes returned, and the same
    /// bytes or what stands for them. Also returns the number of cells.
    fn take_run(&mut self, max: u16, _cells: u32) -> Option<(u16, O::Data, u32)> {
        self.take(max).map(|(bytes, data)| (bytes, data, 1))
    }
}

impl<O: Onion, F: FnMut(u16) -> Option<(u16, O::Data)>> Source<O> for F {
    fn take(&mut self, max: u16) -> Option<(u16, O::Data)> {
        self(max)
    }
}

/// A node of the overlay: a relay or a client.
pub trait Node<O: Onion>: Machine<Output = Output<O>> {
    /// A neighbour connected to us. A relay proves its identity; a client does not.
    fn channel_accepted(&mut self, peer: Option<RelayId>) -> ChannelId;
    /// The neighbour supports Tor's protocol only: it receives no plans, and circuits share one connection and do not
    /// move. Call this before the channel is used.
    fn channel_is_stock(&mut self, channel: ChannelId);
    /// The neighbour does not support the configured transport: circuits to it share a connection. Call this before the
    /// channel is used.
    fn channel_is_shared(&mut self, channel: ChannelId);
    /// A requested channel leads to this address. Call this before it is open; simulations do not.
    fn channel_is_at(&mut self, _now: Time, _channel: ChannelId, _address: IpAddr) {}
    /// A requested channel is open.
    fn channel_opened(&mut self, now: Time, channel: ChannelId);
    /// A channel broke or could not be opened. Its id is free again.
    fn channel_closed(&mut self, now: Time, channel: ChannelId);
    /// A cell arrived.
    fn cell(&mut self, now: Time, channel: ChannelId, cell: Cell<O>);
    /// Runs of cells arrived together, in this order: each is a cell, and how many equal ones there are.
    fn cells_arrived(
        &mut self,
        now: Time,
        channel: ChannelId,
        runs: &mut dyn Iterator<Item = (Cell<O>, u32)>,
    ) {
        for (cell, count) in runs {
            self.each_cell(now, channel, cell, count);
        }
    }
    /// Handles the cells of a run one by one.
    fn each_cell(&mut self, now: Time, channel: ChannelId, cell: Cell<O>, count: u32) {
        (1..count).for_each(|_| self.cell(now, channel, cell.clone()));
        self.cell(now, channel, cell);
    }
    /// Writes a channel's cells to `sink`, as far as the connection takes them.
    fn drain(&mut self, now: Time, channel: ChannelId, sink: &mut dyn Sink<O>);
    /// Answers [`Output::Inspect`]; `None` if the state is unknown.
    fn socket(&mut self, now: Time, channel: ChannelId, state: Option<Socket>);
    /// Packages bytes of a stream into at most `cells` cells, as far as windows and queues allow.
    fn package(&mut self, now: Time, stream: StreamKey, cells: u32, source: &mut dyn Source<O>);
    /// Exit: the stream's connection is open.
    fn stream_connected(&mut self, now: Time, stream: StreamKey);
    /// Exit: the stream's server will send this number of further bytes (`u64::MAX`: without end). Some controllers use
    /// it. Simulation only.
    fn announced(&mut self, _stream: StreamKey, _bytes: u64) {}
    /// The number of delivered bytes that the stream's local side has not consumed yet has changed to `bytes`. Their buffers
    /// take so much `memory`.
    fn backlog(&mut self, now: Time, stream: StreamKey, bytes: u64, memory: u64);
    /// The local side ended the stream, or could not connect it.
    fn stream_ended(&mut self, now: Time, stream: StreamKey);
    /// Reports how long the last timeout took to handle. Returns whether a controller solved a problem in it. Simulations
    /// do not call it, because they do not simulate computing time.
    fn took(&mut self, _now: Time, _spent: Span) -> bool {
        false
    }
    /// Cells waiting in circuit queues and bytes in output buffers.
    fn waiting(&self) -> (u64, u64);
}
