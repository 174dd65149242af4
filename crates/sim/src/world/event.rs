//! Events of a world.

use tidegate_proto::ids::CircuitKey;

use super::connections::{ConnectionId, EndId};
use crate::underlay::NetEvent;

/// An event of a world. Kept small: a run has one pending per packet in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A packet moves.
    Net(NetEvent),
    /// A TCP timer may be due.
    Tcp(EndId),
    /// Lanes of a QUIC connection take bytes again.
    Roomy(EndId),
    /// A host's bucket is refilled or its processor is free.
    Pump(u32),
    /// A timeout of a host's node may be due.
    Node(u32),
    /// A user's first circuit, or next request.
    User(u32),
    /// A transfer's time is up.
    Timeout(u32),
    /// A circuit that a client builds may have taken too long: (host, its key there).
    CircuitTimeout(u32, CircuitKey),
    /// A side of a Markov stream writes: (transfer, whether it is the server).
    Packet(u32, bool),
    /// Relays' queues are sampled.
    Sample,
    /// A message that goes out of band arrives.
    OutOfBand(u32),
    /// The other end of a connection was closed, at a host of another process.
    Closed(ConnectionId),
    /// A host goes down: what runs on it starts afresh.
    HostDown(u32),
    /// An event of FlashFlow's roles: an index into their list.
    Measurement(u32),
}

impl From<NetEvent> for Event {
    fn from(event: NetEvent) -> Event {
        Event::Net(event)
    }
}
