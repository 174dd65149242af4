//! Messages between the processes of a divided run: packets, and effects on a connection's other end that an undivided
//! run applies at once.
//!
//! Both processes keep a shared connection, each with its own end. The opener numbers it among the connections that it
//! opened to the other; the acceptor keeps them in that order.

use tidegate_control::units::Time;
use tidegate_proto::cell::Cell;
use tidegate_proto::onion::Clear;

use super::ends::{Across, Attached, ConnectionId, EndId, Place, Unread, Wire};
use super::profile::TcpProfile;
use crate::packet::Leaving;
use crate::world::applications::TransferState;

/// Messages from one process to another; they apply in this order.
#[derive(Default)]
pub(in crate::world) struct Outbox {
    pub messages: Vec<ProcessMessage>,
    pub cells: Vec<Written>,
    /// A packet's flow is the connection's number.
    pub packets: Vec<Leaving<Wire>>,
}

/// A run of cells that was written to a connection, to be read when everything up to its offset has arrived.
pub(in crate::world) struct Written {
    pub number: u32,
    pub from_opener: bool,
    pub place: Place,
    pub cell: Cell<Clear>,
}

/// A message besides cells and packets.
pub(in crate::world) enum ProcessMessage {
    /// A connection was opened, the next of those between the two.
    Open(Box<Opening>),
    /// A message about a connection.
    About { number: u32, from_opener: bool, what: ConnectionMessage },
    /// A client has begun a transfer with an exit or a server here.
    Begun(Box<(u32, TransferState)>),
    /// It is over.
    Over(u32),
}

/// A message about a connection.
pub(in crate::world) enum ConnectionMessage {
    /// A cell that goes out of band arrives then.
    OutOfBand(Time, Box<Cell<Clear>>),
    /// The server will write this many bytes.
    Announced(u64),
    /// The other end is closed.
    Closed,
}

/// A new connection, described for its acceptor.
pub(in crate::world) struct Opening {
    pub number: ConnectionId,
    pub hosts: [u32; 2],
    pub attached: [Attached; 2],
    pub profile: TcpProfile,
    pub flights: u32,
    /// It was open before the run began.
    pub stands: bool,
}

/// A process' messages to the others, and the connections that it shares with them.
pub(in crate::world) struct Borders {
    /// By process: messages to send at the end of the window.
    pub told: Vec<Outbox>,
    /// By process: number of connections opened to it.
    pub opened: Vec<u32>,
    /// By process: the connections that it has opened, in order.
    pub accepted: Vec<Vec<ConnectionId>>,
}

impl Borders {
    /// No messages yet.
    pub(crate) fn new(processes: u32) -> Borders {
        let each = processes as usize;
        Borders {
            told: (0..each).map(|_| Outbox::default()).collect(),
            opened: vec![0; each],
            accepted: vec![Vec::new(); each],
        }
    }

    /// Queues a message from an end at `side` to the other end.
    pub(crate) fn tell(&mut self, across: Across, side: u8, what: ConnectionMessage) {
        let about = ProcessMessage::About { number: across.number, from_opener: side == 0, what };
        self.send(across.process, about);
    }

    /// Queues a message to a process.
    pub(crate) fn send(&mut self, process: u32, message: ProcessMessage) {
        self.told[process as usize].messages.push(message);
    }

    /// Queues cells that an end has written.
    pub(crate) fn cells(&mut self, across: Across, side: u8, cells: &mut Unread) {
        let Across { process, number } = across;
        let written = |(place, cell)| Written { number, from_opener: side == 0, place, cell };
        self.told[process as usize].cells.extend(cells.drain(..).map(written));
    }

    /// Finds the local end of a connection by its number in messages of process `from`.
    pub(crate) fn here(&self, from: u32, number: u32, from_opener: bool) -> EndId {
        let connection =
            if from_opener { self.accepted[from as usize][number as usize] } else { ConnectionId(number) };
        EndId { connection, side: u8::from(from_opener) }
    }
}
