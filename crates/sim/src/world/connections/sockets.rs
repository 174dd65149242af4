//! TCP as an application uses it: bytes written and read, without content.

use tidegate_control::units::Time;

use super::ends::EndId;
use super::table::Connections;
use crate::queue::Queue;
use crate::world::event::Event;

/// The sockets of a process, for FlashFlow's roles.
pub(in crate::world) struct Sockets<'w> {
    pub now: Time,
    pub connections: &'w mut Connections,
    pub queue: &'w mut Queue<Event>,
}

impl Sockets<'_> {
    fn transmit(&mut self, id: EndId) {
        self.connections.transmit(self.now, self.queue, id);
    }

    /// Appends bytes; returns how many the send buffer took.
    pub(crate) fn write(&mut self, id: EndId, bytes: u64) -> u64 {
        let written = self.connections.tcp(id).map_or(0, |(tcp, _)| tcp.write(bytes));
        self.transmit(id);
        written
    }

    /// Takes up to `bytes` bytes out of the receive buffer; returns how many.
    pub(crate) fn read(&mut self, id: EndId, bytes: u64) -> u64 {
        let now = self.now;
        let read = self.connections.tcp(id).map_or(0, |(tcp, config)| tcp.read(config, now, bytes));
        if read > 0 {
            self.transmit(id);
        }
        read
    }

    /// Bytes in the receive buffer.
    pub(crate) fn readable(&mut self, id: EndId) -> u64 {
        self.connections.tcp(id).map_or(0, |(tcp, _)| tcp.readable())
    }

    /// Bytes that the send buffer takes.
    pub(crate) fn space(&mut self, id: EndId) -> u64 {
        self.connections.tcp(id).map_or(0, |(tcp, _)| tcp.send_space())
    }
}
