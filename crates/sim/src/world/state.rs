//! Everything a run knows, and what it waits for.

use slab::Slab;
use tidegate_control::units::Time;
use tidegate_proto::cell::Cell;
use tidegate_proto::ids::CircuitKey;
use tidegate_proto::onion::Clear;
use tidegate_proto::pool::Pool;

use super::ends::{Connection, ConnectionId, EndId, Wire};
use super::host::HostState;
use super::users::Users;
use crate::lies::Lies;
use crate::observe::{Observation, Recorder};
use crate::plan::{Plan, System};
use crate::queue::Queue;
use crate::tcp;
use crate::underlay::{NetEvent, Underlay};

/// What the world waits for. Kept small: a run has as many pending as packets in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A packet moves.
    Net(NetEvent),
    /// A TCP timer may be due.
    Tcp(EndId),
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
    /// A host goes down: what runs on it starts afresh.
    HostDown(u32),
}

impl From<NetEvent> for Event {
    fn from(event: NetEvent) -> Event {
        Event::Net(event)
    }
}

/// A run under way.
pub(super) struct World<'a, R: Recorder> {
    pub plan: &'a Plan,
    pub system: &'a System,
    pub recorder: &'a mut R,
    pub now: Time,
    pub queue: Queue<Event>,
    pub underlay: Underlay<Wire>,
    pub hosts: Vec<HostState>,
    /// Never reused, so that a late packet or timer finds nothing instead of a stranger.
    pub connections: Vec<Option<Box<Connection>>>,
    /// Cells written to connections and not yet read, each with the offset after its TLS record.
    pub written: Pool<(u64, Cell<Clear>)>,
    /// Those of them that are open, and a few that no longer are.
    pub live: Vec<ConnectionId>,
    /// Messages on their way out of band, and whom they go to.
    pub out_of_band: Slab<(EndId, Cell<Clear>)>,
    /// TCP on each [`super::ends::TcpProfile`].
    pub tcp_parameters: [tcp::Config; 3],
    pub users: Users,
    pub lies: Lies,
    /// Data cells packaged for clients, to pick those that are followed.
    pub packaged: u64,
    pub cells_delivered: u64,
}

impl<R: Recorder> World<'_, R> {
    pub(super) fn record(&mut self, observation: Observation) {
        self.recorder.record(self.now, &observation);
    }
}
