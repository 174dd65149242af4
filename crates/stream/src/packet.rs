//! Datagrams between peers: video, manifests, exploration and requests for repair.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::Peer;

/// Maximum number of slices, including parity.
pub const MAX_SLICES: usize = 32;
/// Maximum payload of a packet: six TS packets, which fit the smallest datagram of QUIC.
pub const PAYLOAD: usize = 6 * 188;
/// Maximum length of the chain of an exploration packet.
pub(crate) const MAX_CHAIN: usize = 4;
/// Maximum number of keys in a request for repair.
pub(crate) const MAX_NACKS: usize = 48;
/// Approximate overhead of QUIC, UDP and IP per datagram, for rate limits.
pub const WIRE: usize = 28 + 1 + 8 + 2 + 3 + 16;

const VIDEO: u8 = 1;
const EXPLORE: u8 = 2;
const NACK: u8 = 3;
/// First byte of an encoded manifest; see [`crate::signing`].
pub const MANIFEST: u8 = 4;

/// The position of a packet: groups hold one packet per slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Number of the group.
    pub group: u32,
    /// Slice: data slices first, then parity slices.
    pub slice: u8,
}

/// Marks a request for the manifest that lists a packet, in place of the packet.
const OF_MANIFEST: u8 = 0x80;

impl Key {
    /// The key that requests the manifest which lists this packet.
    pub(crate) fn of_manifest(self) -> Key {
        Key { slice: self.slice | OF_MANIFEST, ..self }
    }

    /// The packet of which the manifest is requested; `None` if this key requests a packet itself.
    pub(crate) fn listed(self) -> Option<Key> {
        (self.slice & OF_MANIFEST != 0).then_some(Key { slice: self.slice & !OF_MANIFEST, ..self })
    }
}

/// A datagram.
#[derive(Clone, Debug, PartialEq)]
pub enum Datagram {
    /// A packet of the stream.
    Video(Video),
    /// An exploration packet.
    Explore(Explore),
    /// A manifest, encoded.
    Manifest(Bytes),
    /// A request to send these packets again.
    Nack(Vec<Key>),
}

/// A packet of the stream. It passes its slice's tree unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Video {
    /// Its position.
    pub key: Key,
    /// Number of data slices of its group.
    pub data: u8,
    /// When the server began its group, ms of the server's clock. All packets of a group carry the same.
    pub sent: u32,
    /// Whole TS packets, or a parity shard.
    pub payload: Bytes,
}

/// A packet over a chain of viewers. The last viewer acknowledges it to the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Explore {
    /// Number, chosen by the server.
    pub id: u32,
    /// Index in `chain` of the viewer that receives it now.
    pub at: u8,
    /// The viewers on its path.
    pub chain: Vec<Peer>,
    /// Time the viewers spent on connecting, microseconds, which is not latency.
    pub held: u32,
    /// Rates that the viewers before `at` offer, kbit/s.
    pub stamps: Vec<u32>,
    /// A packet of the stream, so that exploration also repairs.
    pub cargo: Bytes,
}

impl Video {
    /// Length of the header before the payload.
    pub(crate) const HEAD: usize = 1 + 1 + 1 + 4 + 4;

    /// Encodes the datagram.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(Video::HEAD + self.payload.len());
        out.put_u8(VIDEO);
        out.put_u8(self.key.slice);
        out.put_u8(self.data);
        out.put_u32(self.key.group);
        out.put_u32(self.sent);
        out.put_slice(&self.payload);
        out.freeze()
    }

    fn decode(bytes: &Bytes) -> Option<Video> {
        let (head, payload) = bytes.split_first_chunk::<{ Video::HEAD }>()?;
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let sound = usize::from(head[1]) < MAX_SLICES && head[2] >= 1 && payload.len() <= PAYLOAD + 2;
        sound.then(|| Video {
            key: Key { slice: head[1], group: number(3) },
            data: head[2],
            sent: number(7),
            payload: bytes.slice(Video::HEAD..),
        })
    }
}

impl Explore {
    /// Encodes the datagram.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(16 + 6 * self.chain.len() + self.cargo.len());
        out.put_u8(EXPLORE);
        out.put_u32(self.id);
        out.put_u8(self.at);
        out.put_u8(self.chain.len() as u8);
        self.chain.iter().for_each(|peer| out.put_u16(*peer));
        out.put_u32(self.held);
        self.stamps.iter().for_each(|stamp| out.put_u32(*stamp));
        out.put_slice(&self.cargo);
        out.freeze()
    }

    fn decode(bytes: &Bytes) -> Option<Explore> {
        let (head, mut rest) = bytes.split_first_chunk::<7>()?;
        let (at, chain) = (usize::from(head[5]), usize::from(head[6]));
        if at >= chain || chain > MAX_CHAIN || rest.len() < chain * 2 + 4 + at * 4 {
            return None;
        }
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at(count);
            rest = left;
            taken.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
        };
        let peers = (0..chain).map(|_| take(2) as Peer).collect();
        let held = take(4);
        let stamps = (0..at).map(|_| take(4)).collect();
        let cargo = bytes.slice(bytes.len() - rest.len()..);
        let id = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        Some(Explore { id, at: at as u8, chain: peers, held, stamps, cargo })
    }
}

/// Encodes a request for repair of at most `MAX_NACKS` packets.
pub(crate) fn nack(keys: &[Key]) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + 5 * keys.len());
    out.put_u8(NACK);
    for key in keys {
        out.put_u32(key.group);
        out.put_u8(key.slice);
    }
    out.freeze()
}

/// Decodes a datagram in time proportional to its length; `None` if it is malformed.
pub fn decode(bytes: &Bytes) -> Option<Datagram> {
    match *bytes.first()? {
        VIDEO => Video::decode(bytes).map(Datagram::Video),
        EXPLORE => Explore::decode(bytes).map(Datagram::Explore),
        MANIFEST => Some(Datagram::Manifest(bytes.clone())),
        NACK if bytes.len() % 5 == 1 && bytes.len() <= 1 + 5 * MAX_NACKS => {
            let keys = bytes[1..].chunks_exact(5);
            let key = |c: &[u8]| Key { group: u32::from_be_bytes([c[0], c[1], c[2], c[3]]), slice: c[4] };
            Some(Datagram::Nack(keys.map(key).collect()))
        }
        _ => None,
    }
}

/// A datagram with another content, as a viewer that forges sends it. Its position stays, so it looks genuine.
pub fn altered(bytes: &[u8]) -> Bytes {
    let mut forged = bytes.to_vec();
    forged.iter_mut().skip(Video::HEAD + 9).for_each(|byte| *byte ^= 0x55);
    forged.into()
}

/// The account of an encoded datagram.
pub fn share(bytes: &[u8]) -> Share {
    match bytes.first() {
        Some(&VIDEO) => Share::Video,
        Some(&EXPLORE) => Share::Exploration,
        Some(&MANIFEST) => Share::Signatures,
        _ => Share::Control,
    }
}

/// Account for the bytes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Video, parity and repairs.
    Video,
    /// Exploration.
    Exploration,
    /// Manifests.
    Signatures,
    /// Requests for repair.
    Control,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn datagrams_round_trip() {
        let payload = Bytes::from(vec![0x47; 188]);
        let video = Video { key: Key { group: 7, slice: 3 }, data: 10, sent: 123_456, payload };
        assert_eq!(decode(&video.encode()), Some(Datagram::Video(video.clone())));
        let explore = Explore {
            id: 9,
            at: 1,
            chain: vec![4, 5, 6],
            held: 70,
            stamps: vec![6000],
            cargo: video.encode(),
        };
        assert_eq!(decode(&explore.encode()), Some(Datagram::Explore(explore)));
        let keys = vec![Key { group: 1, slice: 2 }, Key { group: u32::MAX, slice: 0 }];
        assert_eq!(decode(&nack(&keys)), Some(Datagram::Nack(keys)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..1300)) {
            for kind in [None, Some(VIDEO), Some(EXPLORE), Some(NACK), Some(MANIFEST)] {
                let mut bytes = bytes.clone();
                if let (Some(kind), Some(first)) = (kind, bytes.first_mut()) {
                    *first = kind;
                }
                match decode(&Bytes::from(bytes)) {
                    Some(Datagram::Video(video)) => prop_assert!(video.payload.len() <= PAYLOAD + 2),
                    Some(Datagram::Explore(explore)) => {
                        prop_assert!(explore.chain.len() <= MAX_CHAIN);
                        prop_assert_eq!(explore.stamps.len(), usize::from(explore.at));
                    }
                    Some(Datagram::Nack(keys)) => prop_assert!(keys.len() <= MAX_NACKS),
                    Some(Datagram::Manifest(_)) | None => {}
                }
            }
        }
    }
}
