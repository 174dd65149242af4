//! TLS and the link protocol between TCP's handshake and a channel's first cell: flights of bytes, to and fro.

use tidegate_control::units::Time;

use super::ends::EndId;
use super::table::Connections;
use crate::queue::Queue;
use crate::world::event::Event;

/// Approximate bytes of a client's flight: a ClientHello, or VERSIONS with the end of TLS.
const ASKS: u64 = 400;
/// Approximate bytes of a server's flight: ServerHello and certificate, or VERSIONS, CERTS, AUTH_CHALLENGE and NETINFO.
const ANSWERS: u64 = 1_900;

/// How far the handshake is at an end that had something to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) enum Handshake {
    /// It is under way.
    Waiting,
    /// The acceptor has sent its last flight: it may send cells, and reads none yet.
    Answered,
    /// It has just ended.
    Ended,
    /// It ended earlier.
    Over,
}

impl Connections {
    /// TCP is established at an end: the opener sends the first flight. Returns whether the channel opens without one.
    pub(crate) fn begin_handshake(&mut self, now: Time, queue: &mut Queue<Event>, id: EndId) -> bool {
        let flights = self.live(id.connection).expect("its segment has just arrived").flights;
        if flights > 0 && id.side == 0 {
            self.send_flight(now, queue, id, ASKS);
        }
        flights == 0
    }

    /// Reads a flight if a whole one has arrived, and answers it. A closed connection waits for ever.
    pub(crate) fn continue_handshake(&mut self, now: Time, queue: &mut Queue<Event>, id: EndId) -> Handshake {
        let connection = match self.all[id.connection.0 as usize].as_deref_mut() {
            Some(connection) if connection.flights > 0 => connection,
            Some(_) => return Handshake::Over,
            None => return Handshake::Waiting,
        };
        // Flights alternate; the client asks first, so an even count means that the acceptor waits.
        let (turn, bytes) = if connection.flights % 2 == 0 { (1, ASKS) } else { (0, ANSWERS) };
        let config = &self.parameters[connection.profile as usize];
        let tcp = &mut connection.ends[usize::from(id.side)].tcp;
        if id.side != turn || tcp.readable() < bytes {
            return Handshake::Waiting;
        }
        tcp.read(config, now, bytes);
        connection.flights -= 1;
        match (id.side, connection.flights) {
            (0, 0) => Handshake::Ended,
            (0, _) => {
                self.send_flight(now, queue, id, ASKS);
                Handshake::Waiting
            }
            (_, left) => {
                self.send_flight(now, queue, id, ANSWERS);
                if left == 1 { Handshake::Answered } else { Handshake::Waiting }
            }
        }
    }

    fn send_flight(&mut self, now: Time, queue: &mut Queue<Event>, id: EndId, bytes: u64) {
        let connection = self.live_mut(id.connection).expect("it takes part in a handshake");
        let end = &mut connection.ends[usize::from(id.side)];
        end.written += bytes;
        end.tcp.write(bytes);
        // The other process does not report that the other end reads the flight, so it counts as read.
        if connection.across.is_some() {
            connection.flights -= 1;
        }
        self.transmit(now, queue, id);
    }
}
