//! A TCP connection of the run and its two ends.

use std::collections::VecDeque;

use tidegate_control::units::Time;
use tidegate_proto::ids::{ChannelId, StreamKey};
use tidegate_proto::pool::List;
use tidegate_proto::transport::DecayingCount;

use super::follow::Follow;
use crate::observe::HostTotals;
use crate::tcp::{self, Flags, Segment};

/// A connection of the run, numbered in the order of opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId(pub u32);

/// One end of a connection: 0 opened it, 1 accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndId {
    pub connection: ConnectionId,
    pub side: u8,
}

impl EndId {
    pub fn other(self) -> EndId {
        EndId { side: 1 - self.side, ..self }
    }
}

/// What a packet carries: a segment for one end of a connection (its number is the packet's flow), small, because a run
/// has as many as packets are under way.
#[derive(Debug)]
pub(super) struct Wire {
    seq: u64,
    ack: u64,
    /// Few segments carry any.
    sack: Option<Box<Sack>>,
    window: u32,
    stamp: u32,
    echo: u32,
    /// No IP packet is longer.
    len: u16,
    flags: Flags,
    /// It goes to the end that accepted the connection.
    accepted: bool,
}

/// How many selective acknowledgements there are, and which.
#[derive(Debug)]
struct Sack(u8, [(u32, u32); 3]);

const _: () = assert!(size_of::<Wire>() == 40);

impl Wire {
    pub fn new(to: u8, segment: &Segment) -> Wire {
        let Segment { seq, ack, len, window, sack, stamp, echo, blocks, flags } = *segment;
        Wire {
            seq,
            ack,
            sack: (blocks > 0).then(|| Box::new(Sack(blocks, sack))),
            window,
            stamp,
            echo,
            len: u16::try_from(len).expect("a segment fits into an IP packet"),
            flags,
            accepted: to == 1,
        }
    }

    /// The end that it is for.
    pub fn to(&self) -> u8 {
        u8::from(self.accepted)
    }

    pub fn segment(&self) -> Segment {
        let Wire { seq, ack, window, stamp, echo, flags, .. } = *self;
        let (blocks, sack) =
            self.sack.as_deref().map(|Sack(blocks, sack)| (*blocks, *sack)).unwrap_or_default();
        Segment { seq, ack, len: self.len.into(), window, sack, stamp, echo, blocks, flags }
    }
}

/// Which TCP parameters a connection has: an index into `super::state::World::tcp_parameters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpProfile {
    /// Between machines.
    Internet,
    /// Between two processes of one machine.
    Loopback,
    /// Between two relays that speak IPsec.
    Ipsec,
}

pub(super) struct Connection {
    pub ends: [End; 2],
    pub profile: TcpProfile,
    /// The opener wants it closed once everything it wrote has been acknowledged.
    pub closing: bool,
    /// Flights of TLS and the link protocol that have still to arrive before cells may go: an even number while it
    /// is the acceptor who waits for one.
    pub flights: u32,
}

/// What an end is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attached {
    /// Nothing yet: the handshake is under way.
    Pending,
    /// A channel of the host's node.
    Channel(ChannelId),
    /// An exit's stream.
    Stream(StreamKey),
    /// The server's side of a transfer.
    Server(u32),
    /// A measurement circuit: the measurer opened it.
    Echo(u32),
}

pub(super) struct End {
    pub host: u32,
    pub tcp: tcp::Endpoint,
    pub attached: Attached,
    /// The earliest pending timer event.
    pub armed: Time,
    /// The node has cells for us that TCP did not take.
    pub wants_write: bool,
    /// A TLS record of which TCP has taken a part.
    pub record: Option<Record>,
    /// Exit: bytes for the server that TCP did not take.
    pub unwritten: u64,
    /// Exit: bytes of the last read from the server that are not in cells yet.
    pub unpackaged: u32,
    /// Bytes written so far.
    pub written: u64,
    /// Cells written and not yet read by the other end, each with the offset after its TLS record.
    pub cells: List,
    /// Those of them that are followed.
    pub follows: VecDeque<Follow>,
    /// Cells written, where a relay prefers connections that carry few.
    pub loudness: DecayingCount,
}

/// A TLS record on its way into TCP. Its cells stay in the output buffer until TCP has taken all of it, as in
/// tor, whose `SSL_write` is repeated until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub cells: u32,
    pub bytes: u64,
    pub left: u64,
}

impl Connection {
    /// The transfer that the accepting end serves.
    pub fn server_transfer(&self) -> Option<u32> {
        match self.ends[1].attached {
            Attached::Server(transfer) => Some(transfer),
            _ => None,
        }
    }
}

impl End {
    pub fn new(host: u32, tcp: tcp::Endpoint, attached: Attached) -> End {
        End {
            host,
            tcp,
            attached,
            armed: Time::NEVER,
            wants_write: false,
            record: None,
            unwritten: 0,
            unpackaged: 0,
            written: 0,
            cells: List::default(),
            follows: VecDeque::new(),
            loudness: DecayingCount::default(),
        }
    }

    pub fn add_tcp_totals(&self, config: &tcp::Config, totals: &mut HostTotals) {
        let info = self.tcp.info(config);
        totals.retransmissions += u64::from(info.retransmissions);
        totals.timeouts += u64::from(info.timeouts);
    }
}
