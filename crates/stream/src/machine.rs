//! Inputs and outputs of the machines.

use bytes::Bytes;

use crate::message::{Contact, Message};
use crate::peer::Peer;

/// Input of a machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// A datagram from an authenticated peer.
    Datagram {
        /// The sender.
        from: Peer,
        /// The encoded datagram.
        bytes: Bytes,
    },
    /// A message over the reliable channel between server and viewer.
    Message {
        /// The viewer, or [`crate::SERVER`].
        from: Peer,
        /// The message.
        message: Message,
    },
    /// The connection to this peer ended.
    Lost(Peer),
}

/// Output of a machine: a request to its driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a datagram, unreliably.
    Datagram {
        /// The receiver.
        to: Peer,
        /// The encoded datagram.
        bytes: Bytes,
    },
    /// Send a message over the reliable channel between server and viewer.
    Message {
        /// The receiver.
        to: Peer,
        /// The message.
        message: Message,
    },
    /// Datagrams may go to this peer from now on, at this contact.
    Meet(Peer, Contact),
    /// End the connection to this peer after the pending outputs.
    Part(Peer),
    /// The next bytes of the stream for the player: whole TS packets.
    Deliver(Bytes),
    /// The stream ended: the player has all of it.
    End,
}
