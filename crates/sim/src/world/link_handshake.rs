//! TLS and the link protocol between TCP's handshake and a channel's first cell: flights of bytes, to and fro.

use tidegate_proto::cell::RelayId;

use super::ends::{Attached, EndId};
use super::state::World;

/// About what a flight has: a ClientHello, VERSIONS with the end of TLS.
const ASKS: u64 = 400;
/// A ServerHello with its certificate; VERSIONS, CERTS, AUTH_CHALLENGE and NETINFO.
const ANSWERS: u64 = 1_900;

impl World<'_> {
    /// TCP is established at an end: the opener sends the first flight, or none is asked for.
    pub(super) fn begin_link_handshake(&mut self, id: EndId) {
        match self.connection(id.connection) {
            Some(connection) if connection.flights == 0 => self.channel_opened(id),
            Some(_) if id.side == 0 => self.send_flight(id, ASKS),
            _ => {}
        }
    }

    /// Reads what belongs to the handshake; true once that is over and cells may be read.
    pub(super) fn link_handshake_over(&mut self, id: EndId) -> bool {
        let now = self.now;
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() else {
            return false;
        };
        if connection.flights == 0 {
            return true;
        }
        let (turn, bytes) = if connection.flights % 2 == 0 { (1, ASKS) } else { (0, ANSWERS) };
        let config = &self.tcp_parameters[connection.profile as usize];
        let tcp = &mut connection.ends[usize::from(id.side)].tcp;
        if id.side != turn || tcp.readable() < bytes {
            return false;
        }
        tcp.read(config, now, bytes);
        connection.flights -= 1;
        match (id.side, connection.flights) {
            (0, 0) => {
                self.channel_opened(id);
                return true;
            }
            (0, _) => self.send_flight(id, ASKS),
            (_, left) => {
                self.send_flight(id, ANSWERS);
                // The acceptor has had its last word: what it sends from now on are cells.
                if left == 1 {
                    self.channel_opened(id);
                }
            }
        }
        false
    }

    fn send_flight(&mut self, id: EndId, bytes: u64) {
        if let Some(connection) = self.connection(id.connection) {
            let end = &mut connection.ends[usize::from(id.side)];
            end.written += bytes;
            end.tcp.write(bytes);
            // Nobody here will see what the other end does with it.
            if connection.across.is_some() {
                connection.flights -= 1;
            }
        }
        self.transmit(id);
    }

    /// The end's node may use the channel.
    pub(super) fn channel_opened(&mut self, id: EndId) {
        let now = self.now;
        let Some(end) = self.end(id) else { return };
        let (host, attached) = (end.host, end.attached);
        match attached {
            Attached::Channel(channel) => {
                self.hosts[host as usize].node().channel_opened(now, channel);
                self.drain(host);
            }
            Attached::Pending if id.side == 1 => {
                let Some(opener) = self.end(id.other()) else { return };
                let from = opener.host;
                let peer = self.is_relay(from).then_some(RelayId(from));
                let channel = self.hosts[host as usize].node().channel_accepted(peer);
                self.hosts[host as usize].set_channel(channel, Some(id));
                if let Some(end) = self.end(id) {
                    end.attached = Attached::Channel(channel);
                }
            }
            Attached::Trunk => self.trunk_opened(id),
            _ => {}
        }
    }
}
