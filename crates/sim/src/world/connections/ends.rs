//! A connection of the run and its two ends: TCP, QUIC, or a lane (a stream) of a QUIC connection.

use std::collections::VecDeque;
use std::ops::Range;

use tidegate_control::units::Time;
use tidegate_proto::cell::Cell;
use tidegate_proto::ids::{ChannelId, StreamKey};
use tidegate_proto::onion::Clear;
use tidegate_proto::transport::DecayingCount;

use super::follow::Follow;
use super::profile::TcpProfile;
use crate::event_loop::Timer;
use crate::observe::HostTotals;
use crate::quic::Lanes;
use crate::tcp::{self, Flags, Segment};

/// A connection of the run, numbered in the order of opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) struct ConnectionId(pub u32);

/// One end of a connection: 0 opened it, 1 accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) struct EndId {
    pub connection: ConnectionId,
    pub side: u8,
}

impl EndId {
    pub(crate) fn other(self) -> EndId {
        EndId { side: 1 - self.side, ..self }
    }
}

/// Cells in flight from one end to the other: runs of equal ones in one TLS record.
pub(in crate::world) type Unread = VecDeque<(Place, Cell<Clear>)>;

const _: () = assert!(size_of::<(Place, Cell<Clear>)>() == 48);

/// Where a run of cells ends, and the number of its cells. Packed, because a network has millions in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) struct Place(u64);

impl Place {
    const COUNT_BITS: u32 = 12;
    /// Most cells of a run.
    pub(crate) const CELLS: u32 = (1 << Place::COUNT_BITS) - 1;

    /// So many cells in the record up to `offset`.
    ///
    /// # Panics
    /// If there are more than [`Place::CELLS`], or 4 PiB come before them.
    pub(crate) fn new(offset: u64, count: u32) -> Place {
        assert!(offset < 1 << (u64::BITS - Place::COUNT_BITS) && count <= Place::CELLS);
        Place(offset << Place::COUNT_BITS | u64::from(count))
    }

    /// Offset after the TLS record.
    pub(crate) fn offset(self) -> u64 {
        self.0 >> Place::COUNT_BITS
    }

    /// Number of cells.
    pub(crate) fn count(self) -> u32 {
        self.0 as u32 & Place::CELLS
    }
}

/// Memory of idle directions, reused for directions that begin, because recently used memory is in the processor's
/// cache.
#[derive(Debug, Default)]
pub(in crate::world) struct Spare(Vec<Unread>);

impl Spare {
    /// Highest capacity to keep, in runs; larger memory returns to the system.
    const CELLS: usize = 64;

    /// Makes room before a run is added. Long queues grow by a quarter instead of doubling.
    #[inline]
    pub(crate) fn give(&mut self, cells: &mut Unread) {
        if cells.capacity() == cells.len() {
            self.grow(cells);
        }
    }

    #[cold]
    fn grow(&mut self, cells: &mut Unread) {
        if cells.is_empty() {
            *cells = self.0.pop().unwrap_or_default();
        }
        if cells.len() >= Spare::CELLS {
            cells.reserve_exact(cells.len() / 4);
        } else {
            cells.reserve(1);
        }
    }

    /// Takes back the memory of a direction if it is empty.
    pub(crate) fn take_empty(&mut self, cells: &mut Unread) {
        if cells.is_empty() {
            self.take(cells);
        }
    }

    /// Takes the memory of a direction and forgets its cells.
    pub(crate) fn take(&mut self, cells: &mut Unread) {
        let mut spare = std::mem::take(cells);
        if (1..=Spare::CELLS).contains(&spare.capacity()) {
            spare.clear();
            self.0.push(spare);
        }
    }
}

/// Payload of a packet: a segment for one end of a connection (its number is the packet's flow). Small, because a run
/// has one per packet in flight.
#[derive(Debug)]
pub(in crate::world) struct Wire {
    seq: u64,
    ack: u64,
    /// Boxed, because few segments carry selective acknowledgements.
    sack: Option<Box<Sack>>,
    window: u32,
    stamp: u32,
    echo: u32,
    /// 16 bits hold the length of every IP packet.
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
    pub(crate) fn new(to: u8, segment: &Segment) -> Wire {
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

    /// Some packets of a train, with their bytes.
    pub(crate) fn cut(&self, packets: Range<u32>, config: &tcp::Config) -> (Wire, u32) {
        let mut segment = self.segment();
        let (from, until) = (packets.start * config.mss, (packets.end * config.mss).min(segment.len));
        (segment.seq, segment.len) = (segment.seq + u64::from(from), until - from);
        (Wire::new(self.to(), &segment), segment.wire_bytes(config))
    }

    /// The end that it is for.
    pub(crate) fn to(&self) -> u8 {
        u8::from(self.accepted)
    }

    pub(crate) fn segment(&self) -> Segment {
        let Wire { seq, ack, window, stamp, echo, flags, .. } = *self;
        let (blocks, sack) =
            self.sack.as_deref().map(|Sack(blocks, sack)| (*blocks, *sack)).unwrap_or_default();
        Segment { seq, ack, len: self.len.into(), window, sack, stamp, echo, blocks, flags }
    }
}

/// The QUIC connection of a lane.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Over {
    pub trunk: ConnectionId,
    /// The acceptor of the QUIC connection opened the lane.
    pub flipped: bool,
}

impl Over {
    /// The other side of a lane's `side`, or of the trunk's, in the other's numbers.
    pub(crate) fn side(self, side: u8) -> u8 {
        side ^ u8::from(self.flipped)
    }
}

/// The other process of a connection, and the connection's number there: among those opened to it, or there.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Across {
    pub process: u32,
    pub number: u32,
}

/// The lanes of a QUIC connection.
#[derive(Debug, Default)]
pub(in crate::world) struct Trunk {
    /// By the end that writes.
    pub written_by: [Lanes; 2],
    /// Whether an end's handshake is over.
    pub open: [bool; 2],
    /// Lanes that wait for the handshake at their opener's end.
    pub waiting: Vec<EndId>,
    /// An event is pending that tells an end's writers to go on.
    pub waking: [bool; 2],
}

/// A connection and its two ends. Fields used by both ends come first: a packet's arrival uses them and one end.
#[repr(C, align(64))]
pub(in crate::world) struct Connection {
    /// By writer: cells that the other end has not read yet.
    pub cells: [Unread; 2],
    /// The followed cells among them.
    pub follows: Vec<Follow>,
    pub profile: TcpProfile,
    /// Packets of one burst cross the network as a train.
    pub trains: bool,
    /// The opener wants it closed once everything it wrote has been acknowledged.
    pub closing: bool,
    /// Flights of TLS and the link protocol that have still to arrive before cells may go: an even number while it
    /// is the acceptor who waits for one.
    pub flights: u32,
    /// The other end is at a host of another process. The end here is a stand-in; only its host is valid.
    pub across: Option<Across>,
    /// A lane's QUIC connection. The ends' own TCP stays idle then.
    pub over: Option<Over>,
    /// A QUIC connection's lanes.
    pub trunk: Option<Box<Trunk>>,
    pub ends: [End; 2],
}

/// The user of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) enum Attached {
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
    /// The lanes of a QUIC connection.
    Trunk,
}

pub(in crate::world) struct End {
    pub host: u32,
    pub tcp: tcp::Endpoint,
    pub attached: Attached,
    pub timer: Timer,
    /// Time of the last event of a train from here.
    pub train_due: Time,
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
    /// Cells written, where a relay prefers connections that carry few.
    pub loudness: DecayingCount,
}

/// A TLS record that is being written to TCP. Its cells stay in the output buffer until TCP has taken all of it, as in
/// tor, which repeats `SSL_write` until then.
#[derive(Clone, Copy, Debug)]
pub(in crate::world) struct Record {
    pub cells: u32,
    pub bytes: u64,
    pub left: u64,
}

impl Connection {
    pub(crate) fn new(ends: [End; 2], profile: TcpProfile, flights: u32) -> Connection {
        let cells = [VecDeque::new(), VecDeque::new()];
        let trunk = (ends[0].attached == Attached::Trunk).then(Box::default);
        Connection {
            cells,
            follows: Vec::new(),
            profile,
            trains: false,
            closing: false,
            flights,
            across: None,
            over: None,
            trunk,
            ends,
        }
    }

    /// Both ends with their numbers.
    pub(crate) fn sides(&self) -> impl Iterator<Item = (usize, &End, &Connection)> {
        self.ends.iter().enumerate().map(move |(side, end)| (side, end, self))
    }

    /// Followed cells of a lane that were written by the host at an end of its QUIC connection.
    pub(crate) fn followed_by(&mut self, writer: EndId) -> impl Iterator<Item = &mut Follow> {
        let side = self.over.map_or(writer.side, |over| over.side(writer.side));
        self.follows.iter_mut().filter(move |follow| follow.writer == side)
    }

    /// The transfer that the accepting end serves.
    pub(crate) fn server_transfer(&self) -> Option<u32> {
        match self.ends[1].attached {
            Attached::Server(transfer) => Some(transfer),
            _ => None,
        }
    }
}

impl End {
    pub(crate) fn new(host: u32, tcp: tcp::Endpoint, attached: Attached) -> End {
        End {
            host,
            tcp,
            attached,
            timer: Timer::default(),
            train_due: Time::ZERO,
            wants_write: false,
            record: None,
            unwritten: 0,
            unpackaged: 0,
            written: 0,
            loudness: DecayingCount::default(),
        }
    }

    /// Touches all hot fields; ignore the returned value.
    pub(crate) fn look(&self) -> u64 {
        self.tcp.look() ^ self.written ^ self.timer.due().0 ^ u64::from(self.host)
    }

    pub(crate) fn add_tcp_totals(&self, config: &tcp::Config, totals: &mut HostTotals) {
        let info = self.tcp.info(config);
        totals.retransmissions += u64::from(info.retransmissions);
        totals.timeouts += u64::from(info.timeouts);
    }
}
