//! Connections over the underlay, for applications that only count bytes.

use tidegate_control::units::Time;

use crate::observe::Host;
use crate::queue::Queue;
use crate::tcp::{Arrival, Config, Endpoint, Segment, State};
use crate::underlay::{NetEvent, Underlay};

/// A connection, by its number.
pub type ConnId = usize;
/// One end of it: who connected is [`ACTIVE`].
pub type Side = usize;
/// The end that connected.
pub const ACTIVE: Side = 0;
/// The end that was connected to.
pub const PASSIVE: Side = 1;

/// What travels: a segment for an end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    conn: ConnId,
    to: Side,
    segment: Segment,
}

/// A connection's timer is due.
#[derive(Clone, Copy, Debug)]
pub struct TimerEvent(ConnId, Side);

/// All connections of a run.
pub struct Wires<E> {
    /// Pending events.
    pub queue: Queue<E>,
    underlay: Underlay<Carried>,
    config: Config,
    connections: Vec<Connection>,
}

struct Connection {
    hosts: [Host; 2],
    ends: [Endpoint; 2],
    /// When the next timer event of an end is due.
    timers: [Time; 2],
    open: bool,
}

impl<E: From<NetEvent> + From<TimerEvent>> Wires<E> {
    pub fn new(underlay: Underlay<Carried>, config: Config) -> Wires<E> {
        Wires { queue: Queue::new(), underlay, config, connections: Vec::new() }
    }

    /// Begins to connect.
    pub fn connect(&mut self, from: Host, to: Host) -> ConnId {
        let id = self.connections.len();
        let mut ends = [Endpoint::active(&self.config), Endpoint::passive(&self.config)];
        ends[ACTIVE].connect(self.queue.now());
        let timers = [Time::NEVER; 2];
        self.connections.push(Connection { hosts: [from, to], ends, timers, open: true });
        self.flush(id, ACTIVE);
        id
    }

    /// Both ends forget the connection at once.
    pub fn drop(&mut self, id: ConnId) {
        self.connections[id].open = false;
    }

    /// Appends bytes; gives how many the send buffer took.
    pub fn write(&mut self, id: ConnId, side: Side, bytes: u64) -> u64 {
        let written = self.connections[id].ends[side].write(bytes);
        self.flush(id, side);
        written
    }

    /// Takes up to so many bytes out of the receive buffer.
    pub fn read(&mut self, id: ConnId, side: Side, bytes: u64) -> u64 {
        let now = self.queue.now();
        let read = self.connections[id].ends[side].read(&self.config, now, bytes);
        if read > 0 {
            self.flush(id, side);
        }
        read
    }

    /// Bytes that can be read.
    pub fn readable(&self, id: ConnId, side: Side) -> u64 {
        self.connections[id].ends[side].readable()
    }

    /// Bytes that the send buffer takes.
    pub fn space(&self, id: ConnId, side: Side) -> u64 {
        self.connections[id].ends[side].send_space()
    }

    fn flush(&mut self, id: ConnId, side: Side) {
        let now = self.queue.now();
        let connection = &mut self.connections[id];
        let way = (connection.hosts[side], connection.hosts[1 - side]);
        while let Some(segment) = connection.ends[side].poll_transmit(&self.config, now) {
            let carried = Carried { conn: id, to: 1 - side, segment };
            let bytes = segment.wire_bytes(&self.config);
            self.underlay.send(&mut self.queue, way, id as u32, bytes, carried);
        }
        let due = connection.ends[side].next_timeout();
        if due < connection.timers[side] {
            connection.timers[side] = due;
            self.queue.push(due.max(now), TimerEvent(id, side).into());
        }
    }

    /// A packet moves on; what it brought, if it arrived at an open connection.
    pub fn on_net(&mut self, event: NetEvent) -> Option<(ConnId, Side, Arrival)> {
        let Carried { conn, to, segment } = self.underlay.handle(&mut self.queue, event)?.payload;
        let now = self.queue.now();
        let connection = &mut self.connections[conn];
        if !connection.open {
            return None;
        }
        let arrival = connection.ends[to].on_segment(&self.config, now, &segment);
        self.flush(conn, to);
        Some((conn, to, arrival))
    }

    /// A timer is due; whether the connection broke of it.
    pub fn on_timer(&mut self, TimerEvent(id, side): TimerEvent) -> Option<ConnId> {
        let now = self.queue.now();
        let connection = &mut self.connections[id];
        connection.timers[side] = Time::NEVER;
        if !connection.open {
            return None;
        }
        connection.ends[side].on_timeout(&self.config, now);
        if connection.ends[side].state() == State::Broken {
            connection.open = false;
            return Some(id);
        }
        self.flush(id, side);
        None
    }
}
