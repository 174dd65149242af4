//! TCP as an application has it, for those of a host that are no nodes: bytes written and read, without content.

use tidegate_control::units::Time;

use super::ends::{Connection, EndId, Trunk, Wire};
use super::event::Event;
use crate::observe::Host;
use crate::queue::Queue;
use crate::tcp;
use crate::underlay::Underlay;

/// A run's connections and what carries their segments.
pub(super) struct Sockets<'w> {
    pub now: Time,
    pub connections: &'w mut [Option<Box<Connection>>],
    /// TCP on each [`super::ends::TcpProfile`].
    pub parameters: &'w [tcp::Config; 4],
    pub underlay: &'w mut Underlay<Wire>,
    pub queue: &'w mut Queue<Event>,
}

impl Sockets<'_> {
    /// The end's TCP and its parameters, while the connection lasts.
    fn tcp(&mut self, id: EndId) -> Option<(&mut tcp::Endpoint, &tcp::Config)> {
        let connection = self.connections[id.connection.0 as usize].as_deref_mut()?;
        let config = &self.parameters[connection.profile as usize];
        Some((&mut connection.ends[usize::from(id.side)].tcp, config))
    }

    /// Sends what TCP may send now, and arms its timer. A lane's bytes leave with those of its QUIC connection.
    pub fn transmit(&mut self, mut id: EndId) {
        let now = self.now;
        if let Some(over) = self.connections[id.connection.0 as usize].as_deref().and_then(|lane| lane.over) {
            id = EndId { connection: over.trunk, side: over.side(id.side) };
        }
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() else { return };
        let mut trunk = connection.trunk.take();
        let carries_lanes = trunk.is_some();
        let config = &self.parameters[connection.profile as usize];
        let to = connection.ends[1 - usize::from(id.side)].host;
        let follows = &mut connection.follows;
        let end = &mut connection.ends[usize::from(id.side)];
        let mut sent = Vec::new();
        let mut next = |tcp: &mut tcp::Endpoint| {
            if let Some(trunk) = &mut trunk {
                trunk.written_by[usize::from(id.side)].fill(tcp, config);
            }
            tcp.poll_transmit(config, now)
        };
        while let Some(segment) = next(&mut end.tcp) {
            for follow in follows.iter_mut().filter(|follow| follow.writer == id.side) {
                follow.transmitted(now, segment.seq, segment.len);
            }
            if carries_lanes {
                sent.push((segment.seq, segment.len));
            }
            let bytes = segment.wire_bytes(config);
            let wire = Wire::new(1 - id.side, &segment);
            let hosts = (Host(end.host), Host(to));
            let departs = self.underlay.send(self.queue, hosts, id.connection.0, bytes, wire);
            end.tcp.queued(departs, segment.len);
        }
        let timeout = end.tcp.next_timeout();
        if timeout < end.armed {
            end.armed = timeout.max(now);
            self.queue.push(end.armed, Event::Tcp(id));
        }
        if let Some(trunk) = trunk {
            self.lanes_sent(id, trunk, &sent);
        }
    }

    /// These segments of a QUIC connection have left: follows their cells, and has writers go on that have room now.
    fn lanes_sent(&mut self, id: EndId, mut trunk: Box<Trunk>, sent: &[(u64, u32)]) {
        let side = usize::from(id.side);
        let lanes = &trunk.written_by[side];
        for (lane, from, upto) in sent.iter().flat_map(|(seq, len)| lanes.within(*seq, *len)) {
            let lane = self.connections[lane as usize].as_deref_mut();
            for follow in lane.into_iter().flat_map(|lane| lane.followed_by(id)) {
                follow.transmitted(self.now, from, (upto - from) as u32);
            }
        }
        if lanes.any_roomy() && !trunk.waking[side] {
            trunk.waking[side] = true;
            self.queue.push(self.now, Event::Roomy(id));
        }
        if let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() {
            connection.trunk = Some(trunk);
        }
    }

    /// Appends bytes; gives how many the send buffer took.
    pub fn write(&mut self, id: EndId, bytes: u64) -> u64 {
        let written = self.tcp(id).map_or(0, |(tcp, _)| tcp.write(bytes));
        self.transmit(id);
        written
    }

    /// Takes up to so many bytes out of the receive buffer.
    pub fn read(&mut self, id: EndId, bytes: u64) -> u64 {
        let now = self.now;
        let read = self.tcp(id).map_or(0, |(tcp, config)| tcp.read(config, now, bytes));
        if read > 0 {
            self.transmit(id);
        }
        read
    }

    /// Bytes that can be read.
    pub fn readable(&mut self, id: EndId) -> u64 {
        self.tcp(id).map_or(0, |(tcp, _)| tcp.readable())
    }

    /// Bytes that the send buffer takes.
    pub fn space(&mut self, id: EndId) -> u64 {
        self.tcp(id).map_or(0, |(tcp, _)| tcp.send_space())
    }
}
