//! Messages on the reliable channel between server and viewer.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Peer;
use crate::packet::MAX_CHAIN;

/// Maximum length of an encoded message. A longer one ends the connection.
pub const LONGEST: usize = 1024;
/// Version of the protocol. The server refuses other versions.
pub const VERSION: u8 = 4;

/// Address and identity of a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// Address for incoming connections.
    pub address: SocketAddr,
    /// SHA-256 of its certificate.
    pub fingerprint: [u8; 32],
}

/// A message. Each variant names its sender first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Viewer: asks to watch.
    Join(Join),
    /// Viewer: answers a ping.
    Pong {
        /// Number of the ping.
        number: u32,
    },
    /// Viewer: acknowledges an exploration packet, as the last of its chain.
    Explored {
        /// Number of the packet.
        id: u32,
        /// Time the viewers of the chain spent on connecting, microseconds.
        held: u32,
        /// Rates that the viewers of the chain offer, kbit/s.
        stamps: Vec<u32>,
    },
    /// Viewer: complains that a parent does not deliver a slice.
    Complaint {
        /// The slice.
        slice: u8,
        /// The parent.
        parent: Peer,
        /// The parent's fault.
        fault: Fault,
    },
    /// Viewer: reports its counters.
    Report(Report),
    /// Viewer: leaves.
    Leave,
    /// Server: admits the viewer.
    Welcome(Welcome),
    /// Server: refuses the viewer, with the reason.
    Refused(Refusal),
    /// Server: checks that the viewer answers.
    Ping(Ping),
    /// Server: orders a parent to send a slice to a child. The contact precedes the first slice.
    Adopt {
        /// The slice.
        slice: u8,
        /// The child.
        child: Peer,
    },
    /// Server: orders a parent to stop sending a slice to a child.
    Release {
        /// The slice.
        slice: u8,
        /// The child.
        child: Peer,
    },
    /// Server: announces the new parent of a slice.
    Parent {
        /// The slice.
        slice: u8,
        /// The parent.
        parent: Peer,
        /// Number of hops from the server to the viewer.
        depth: u8,
    },
    /// Server: introduces a peer at this contact.
    Meet(Peer, Contact),
    /// Server: announces that a peer is gone.
    Forget(Peer),
    /// Server: announces that the stream ended before this group.
    End(u32),
}

/// The kind of fault of a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fault {
    /// It sends too little; its budget is lowered.
    Loses,
    /// It sends nothing.
    Silent,
    /// It sends packets or manifests that are not of the server.
    Forges,
}

/// A viewer's request to join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// [`VERSION`].
    pub version: u8,
    /// The server's secret, if it requires one; see `ServerConfig::token`.
    pub token: [u8; 16],
    /// The uplink that the viewer claims, bit/s.
    pub uplink: u64,
    /// Whether the viewer forwards packets.
    pub forwards: bool,
}

/// Parameters for an admitted viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The viewer's number.
    pub me: Peer,
    /// Number of data slices.
    pub slices: u8,
    /// Number of parity slices.
    pub parity: u8,
    /// The Ed25519 key with which the server signs the stream.
    pub key: [u8; 32],
}

/// A ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Number, which the pong repeats.
    pub number: u32,
    /// Time of the server's clock, ms.
    pub clock: u32,
    /// Smoothed round-trip time between server and viewer, microseconds.
    pub round_trip: u32,
    /// The newest group of the stream.
    pub newest: u32,
}

/// Counters of a viewer since it joined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Packets handed to the player.
    pub delivered: u32,
    /// Packets that the player skipped.
    pub gaps: u32,
    /// Packets that arrived twice.
    pub duplicates: u32,
    /// Packets that parity recovered.
    pub recovered: u32,
    /// Bytes sent to other viewers.
    pub forwarded: u64,
    /// Median age of recently played packets, ms.
    pub lag: u32,
}

/// Reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Server and viewers lack the capacity for another viewer.
    Overloaded {
        /// Rate for all viewers including this one, bit/s.
        needed: u64,
        /// Capacity of all uplinks, bit/s.
        offered: u64,
    },
    /// The maximum number of viewers is reached.
    Full,
    /// The token is wrong.
    Token,
    /// The version of the protocol differs.
    Version,
    /// This address makes too many attempts.
    TooOften,
    /// Join the server at this address instead.
    Redirect(SocketAddr),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Overloaded { needed, offered } => write!(
                f,
                "the stream is overloaded: another viewer needs {:.1} Mbit/s in total, all uplinks offer {:.1} Mbit/s; join later",
                *needed as f64 / 1e6,
                *offered as f64 / 1e6
            ),
            Refusal::Full => f.write_str("the server has its maximum number of viewers; join later"),
            Refusal::Token => f.write_str("the token is wrong; give a copy of the server's --token-file"),
            Refusal::Version => f.write_str("the server has another protocol version; use the same release"),
            Refusal::TooOften => f.write_str("too many attempts from this address; wait a minute"),
            Refusal::Redirect(to) => write!(f, "the server is full; try {to}"),
        }
    }
}

impl Message {
    /// Encodes the message.
    ///
    /// # Panics
    /// If the result is longer than [`LONGEST`]; the senders bound all lists.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = postcard::to_allocvec(self).expect("messages serialise");
        assert!(bytes.len() <= LONGEST, "message of {} bytes", bytes.len());
        bytes
    }

    /// Decodes a message; `None` if it is malformed, too long or has trailing bytes.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
        let long = matches!(&message, Message::Explored { stamps, .. } if stamps.len() > MAX_CHAIN);
        (rest.is_empty() && !long && bytes.len() <= LONGEST).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_garbage_is_refused() {
        let contact = Contact { address: "[::1]:9".parse().unwrap(), fingerprint: [7; 32] };
        for message in [
            Message::Join(Join { version: VERSION, token: [1; 16], uplink: 6_000_000, forwards: true }),
            Message::Explored { id: 1, held: 2, stamps: vec![3, 4] },
            Message::Meet(9, contact),
            Message::Refused(Refusal::Overloaded { needed: 9, offered: 8 }),
        ] {
            let mut bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            bytes.push(0);
            assert_eq!(Message::decode(&bytes), None);
        }
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[0xff; 200]), None);
        assert_eq!(
            Message::decode(&Message::Explored { id: 1, held: 2, stamps: vec![0; 90] }.encode()),
            None
        );
    }
}
