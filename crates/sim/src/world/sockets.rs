//! TCP as an application has it, for those of a host that are no nodes: bytes written and read, without content.

use tidegate_control::units::Time;

use super::ends::{Connection, EndId, Wire};
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
    pub parameters: &'w [tcp::Config; 3],
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

    /// Sends what TCP may send now, and arms its timer.
    pub fn transmit(&mut self, id: EndId) {
        let now = self.now;
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() else { return };
        let config = &self.parameters[connection.profile as usize];
        let to = connection.ends[1 - usize::from(id.side)].host;
        let follows = &mut connection.follows;
        let end = &mut connection.ends[usize::from(id.side)];
        while let Some(segment) = end.tcp.poll_transmit(config, now) {
            for follow in follows.iter_mut().filter(|follow| follow.writer == id.side) {
                follow.transmitted(now, segment.seq, segment.len);
            }
            let bytes = segment.wire_bytes(config);
            let wire = Wire::new(1 - id.side, &segment);
            let hosts = (Host(end.host), Host(to));
            self.underlay.send(self.queue, hosts, id.connection.0, bytes, wire);
        }
        let timeout = end.tcp.next_timeout();
        if timeout < end.armed {
            end.armed = timeout.max(now);
            self.queue.push(end.armed, Event::Tcp(id));
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
