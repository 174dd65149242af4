//! What goes into a machine and comes out of it.

use bytes::Bytes;

use crate::message::{Contact, Message};
use crate::peer::Peer;

/// What happens to a machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// A datagram came from a peer that proved to be who it is.
    Datagram {
        /// Who sent it.
        from: Peer,
        /// What it is.
        bytes: Bytes,
    },
    /// A message came over the reliable channel between the server and a viewer.
    Message {
        /// The viewer, or [`crate::SERVER`].
        from: Peer,
        /// What it says.
        message: Message,
    },
    /// The connection to that peer is no more.
    Lost(Peer),
}

/// What a machine wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a datagram; it may get lost.
    Datagram {
        /// To whom.
        to: Peer,
        /// What.
        bytes: Bytes,
    },
    /// Send a message over the reliable channel between the server and a viewer.
    Message {
        /// To whom.
        to: Peer,
        /// What.
        message: Message,
    },
    /// From now on datagrams can go to that peer, which is found there.
    Meet(Peer, Contact),
    /// Nothing more goes to that peer: end the connection once what is on its way has left.
    Part(Peer),
    /// The next bytes of the stream, whole TS packets.
    Deliver(Bytes),
}
