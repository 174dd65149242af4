//! What server and viewers tell each other over their reliable channel.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Peer;
use crate::packet::{Key, MAX_CHAIN};

/// The longest encoded message. A peer that announces a longer one is cut off.
pub const LONGEST: usize = 1024;
/// The version of this protocol; others are refused.
pub const VERSION: u8 = 2;

/// Where a viewer is found, and how it proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    /// Where it accepts connections.
    pub address: SocketAddr,
    /// SHA-256 of its certificate.
    pub fingerprint: [u8; 32],
}

/// A message. Its direction is in the name of its group below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// Viewer: I want to watch.
    Join(Join),
    /// Viewer: I got that ping.
    Pong {
        /// The ping's number.
        number: u32,
        /// What the packet that the ping asked about looks like here; zero if it is not here.
        digest: u64,
    },
    /// Viewer: that exploration packet reached me, the last of its chain.
    Explored {
        /// The packet's number.
        id: u32,
        /// What viewers waited for connections, microseconds.
        held: u32,
        /// The rates that the chain's viewers offer, kbit/s.
        stamps: Vec<u32>,
    },
    /// Viewer: that slice does not come from its parent as it should.
    Complaint {
        /// The slice.
        slice: u8,
        /// Who should send it.
        parent: Peer,
        /// Whether nothing comes; else too little.
        silent: bool,
    },
    /// Viewer: how it went since the last report.
    Report(Report),
    /// Viewer: I leave.
    Leave,
    /// Server: you are in.
    Welcome(Welcome),
    /// Server: you are not in, and why.
    Refused(Refusal),
    /// Server: are you there?
    Ping(Ping),
    /// Server: send that slice to that child from now on. The contact comes with the first slice.
    Adopt {
        /// The slice.
        slice: u8,
        /// The child.
        child: Peer,
    },
    /// Server: stop sending that slice to that child.
    Release {
        /// The slice.
        slice: u8,
        /// The child.
        child: Peer,
    },
    /// Server: that peer sends you that slice from now on.
    Parent {
        /// The slice.
        slice: u8,
        /// The parent.
        parent: Peer,
        /// How many hops you are from the server.
        depth: u8,
    },
    /// Server: this is where that peer is found.
    Meet(Peer, Contact),
    /// Server: that peer is gone.
    Forget(Peer),
}

/// What a viewer says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// [`VERSION`].
    pub version: u8,
    /// What the server asks for, if it asks for one: see `Settings::token` of the server.
    pub token: [u8; 16],
    /// What it thinks it can send, bits per second. A claim.
    pub uplink: u64,
    /// Whether it forwards at all.
    pub forwards: bool,
}

/// What a viewer must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Its number.
    pub me: Peer,
    /// Data slices.
    pub slices: u8,
    /// Parity slices.
    pub parity: u8,
}

/// A ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Comes back in the pong.
    pub number: u32,
    /// Milliseconds of the server's clock.
    pub clock: u32,
    /// The round trip between server and viewer as the server knows it, microseconds.
    pub round_trip: u32,
    /// The newest group of the stream.
    pub newest: u32,
    /// A packet whose digest the pong must bring.
    pub audit: Key,
}

/// What a viewer saw; counters since it joined.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Packets played.
    pub delivered: u32,
    /// Packets given up.
    pub gaps: u32,
    /// Packets that came twice.
    pub duplicates: u32,
    /// Packets that parity made good.
    pub recovered: u32,
    /// Bytes sent to other viewers.
    pub forwarded: u64,
    /// The median packet's age when played lately, ms.
    pub lag: u32,
}

/// Why a viewer is not in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Server and viewers cannot carry another viewer: needed and offered, bits per second.
    Overloaded {
        /// What all viewers with this one would take.
        needed: u64,
        /// What the uplinks give.
        offered: u64,
    },
    /// No more viewers are taken, however many could be served.
    Full,
    /// The token is not the server's.
    Token,
    /// Another version of the protocol.
    Version,
    /// Too many attempts from this address.
    TooOften,
    /// Another server has room.
    Redirect(SocketAddr),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Overloaded { needed, offered } => write!(
                f,
                "the stream is overloaded: with you it takes {:.1} Mbit/s, the uplinks of server and viewers give {:.1}",
                *needed as f64 / 1e6,
                *offered as f64 / 1e6
            ),
            Refusal::Full => f.write_str("the server takes no more viewers"),
            Refusal::Token => {
                f.write_str("the token is not the server's: give the one it was started with (--token)")
            }
            Refusal::Version => f.write_str("the server speaks another version: use the same release"),
            Refusal::TooOften => f.write_str("too many attempts from this address: wait a minute"),
            Refusal::Redirect(to) => write!(f, "the server has no room, {to} may have some"),
        }
    }
}

impl Message {
    /// The bytes.
    ///
    /// # Panics
    /// If it is longer than [`LONGEST`]: lists are bounded where messages are made.
    pub fn encode(&self) -> Vec<u8> {
        let bytes = postcard::to_allocvec(self).expect("plain data can be written");
        assert!(bytes.len() <= LONGEST, "messages are short");
        bytes
    }

    /// Reads a message; none if it is not one, with something after it, or with lists that are too long.
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
