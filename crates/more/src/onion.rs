//! Datagrams: what is in them, how a sender builds them, how a peer opens them.
//!
//! A data datagram is a kind byte and a Sphinx packet; its innermost message holds a reply block (SURB) over
//! the same relays and the body. An acknowledgement is a kind byte, an annex and a Sphinx packet made from
//! that reply block. In the annex each relay on the way back adds the rate it offers, under a key that it
//! shares with the sender alone, so that relays do not read each other's offers.

use sha2::{Digest, Sha256};
use sphinx_packet::constants::NODE_ADDRESS_LENGTH;
use sphinx_packet::header::HEADER_SIZE;
use sphinx_packet::header::delays::Delay;
use sphinx_packet::header::keys::KeyMaterial;
use sphinx_packet::header::shared_secret::ExpandedSharedSecret;
use sphinx_packet::payload::PAYLOAD_OVERHEAD_SIZE;
use sphinx_packet::route::{Destination, DestinationAddressBytes, Node, NodeAddressBytes};
use sphinx_packet::version::PAYLOAD_KEYS_SEEDS_VERSION;
use sphinx_packet::{SURB, SURBMaterial, SphinxPacket, SphinxPacketBuilder};
use tidegate_control::paths::Peer;
use x25519_dalek::{PublicKey, StaticSecret};

/// Bytes of a data datagram: an Ethernet frame of 1500 bytes less 28 for IP and UDP.
pub const DATA_SIZE: usize = 1472;
/// Bytes of an acknowledgement.
pub const ACK_SIZE: usize = 1 + ANNEX + HEADER_SIZE + ACK_PAYLOAD;
/// What a data datagram counts against forwarding limits: the whole frame, the thesis' M.
pub const PACKET: u32 = 1500;
/// The most relays on a path: Sphinx packets pass five hops, the last of which is the destination.
pub const MAX_RELAYS: usize = 4;
/// The most bytes of a body.
pub const BODY: usize = DATA_SIZE - 1 - HEADER_SIZE - PAYLOAD_OVERHEAD_SIZE - 2 - SURB_MOST;

/// Bytes of the annex: a four-byte rate for each of eight relays.
const ANNEX: usize = 32;
const ACK_PAYLOAD: usize = 64;
/// A reply block over five hops: header, first hop, a seed per hop.
const SURB_MOST: usize = HEADER_SIZE + NODE_ADDRESS_LENGTH + 16 * (MAX_RELAYS + 1);
const DATA: u8 = 1;
const ACK: u8 = 2;

/// Names a packet to its sender, and to nobody else.
pub type PacketId = [u8; 16];

/// 32 unpredictable bytes per call.
pub type Entropy<'a> = &'a mut dyn FnMut() -> [u8; 32];

/// A hop of a path.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// Number in the directory.
    pub peer: Peer,
    /// Its public key.
    pub key: [u8; 32],
}

/// What a sender keeps of a packet to read its acknowledgement's annex: a key per relay, first relay first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnexKeys(Vec<[u8; ANNEX]>);

/// What an opened datagram asks for.
#[derive(Debug)]
pub enum Opened {
    /// Pass this datagram on.
    Forward {
        /// To this peer.
        to: Peer,
        /// As it is.
        datagram: Vec<u8>,
    },
    /// A body for this peer.
    Data {
        /// What the sender wrote.
        body: Vec<u8>,
        /// With which to acknowledge it.
        reply: Reply,
    },
    /// An acknowledgement of a packet this peer sent.
    Ack {
        /// The packet.
        id: PacketId,
        /// For [`AnnexKeys::stamps`].
        annex: [u8; ANNEX],
        /// What the receiver wrote.
        message: Vec<u8>,
    },
}

/// A single-use reply block.
#[derive(Debug)]
pub struct Reply(SURB);

/// Why a datagram cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Neither size nor kind fit.
    Shape,
    /// Its integrity check fails: forged, damaged, or for another key.
    Forged,
    /// It was opened before.
    Replayed,
    /// It opens, but what is inside makes no sense.
    Inside,
}

/// Which class a datagram is in, by its size and first byte alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A data datagram.
    Data,
    /// An acknowledgement.
    Ack,
}

/// The class of a datagram; none if it is neither.
pub fn class(datagram: &[u8]) -> Option<Class> {
    match (datagram.first(), datagram.len()) {
        (Some(&DATA), DATA_SIZE) => Some(Class::Data),
        (Some(&ACK), ACK_SIZE) => Some(Class::Ack),
        _ => None,
    }
}

/// Builds a data datagram over `relays` to `to`, acknowledged over the same relays to `me`.
///
/// # Panics
/// If there are no relays or more than [`MAX_RELAYS`], or `body` is longer than [`BODY`].
pub fn build(
    relays: &[Hop],
    to: Hop,
    me: Hop,
    id: PacketId,
    body: &[u8],
    entropy: Entropy,
) -> (Vec<u8>, AnnexKeys) {
    assert!((1..=MAX_RELAYS).contains(&relays.len()), "a path has 1 to {MAX_RELAYS} relays");
    assert!(body.len() <= BODY, "a body has at most {BODY} bytes");
    let back: Vec<Hop> = relays.iter().rev().copied().chain([me]).collect();
    let (reply, mut keys) = reply_block(&back, id, entropy);
    keys.0.reverse();
    let surb = reply.0.to_bytes();
    let mut message = (surb.len() as u16).to_be_bytes().to_vec();
    message.extend_from_slice(&surb);
    message.extend_from_slice(body);
    let route: Vec<Node> = relays.iter().copied().chain([to]).map(node).collect();
    let secret = StaticSecret::from(entropy());
    let packet = SphinxPacketBuilder::new()
        .with_payload_size(DATA_SIZE - 1 - HEADER_SIZE)
        .with_initial_secret(&secret)
        .build_packet(message, &route, &destination([0; 16]), &no_delays(route.len()))
        .expect("path and sizes were checked");
    let mut datagram = vec![DATA];
    datagram.extend_from_slice(&packet.to_bytes());
    debug_assert_eq!(datagram.len(), DATA_SIZE);
    (datagram, keys)
}

/// A reply block over `back`, whose last hop is the peer it leads to, and the annex keys of the hops before.
fn reply_block(back: &[Hop], id: PacketId, entropy: Entropy) -> (Reply, AnnexKeys) {
    let route: Vec<Node> = back.iter().copied().map(node).collect();
    let bytes = entropy();
    let keys = KeyMaterial::derive(&route, &StaticSecret::from(bytes));
    let last = route.len() - 1;
    let annex = keys.expanded_shared_secrets[..last].iter().map(annex_key).collect();
    let delays = no_delays(route.len());
    let material = SURBMaterial::new(route, delays, destination(id), PAYLOAD_KEYS_SEEDS_VERSION);
    let surb = SURB::new(StaticSecret::from(bytes), material).expect("path and version are right");
    (Reply(surb), AnnexKeys(annex))
}

impl Reply {
    /// The acknowledgement, and the peer to hand it to. `message` is cut to what fits.
    pub fn acknowledge(self, message: &[u8], entropy: Entropy) -> Option<(Peer, Vec<u8>)> {
        let most = ACK_PAYLOAD - PAYLOAD_OVERHEAD_SIZE;
        let (packet, first) = self.0.use_surb(&message[..message.len().min(most)], ACK_PAYLOAD).ok()?;
        let mut datagram = vec![ACK];
        // Random at first, so that a relay cannot tell how many came before it.
        datagram.extend_from_slice(&entropy());
        datagram.extend_from_slice(&packet.to_bytes());
        Some((peer_of(&first)?, datagram))
    }

    fn from_bytes(bytes: &[u8]) -> Option<Reply> {
        SURB::from_bytes(bytes).ok().map(Reply)
    }
}

impl AnnexKeys {
    /// The rates that relays wrote into an annex, first relay of the path first, in bytes/s; zero for what
    /// is no rate.
    pub fn stamps(&self, mut annex: [u8; ANNEX]) -> Vec<f32> {
        let mut stamps = Vec::with_capacity(self.0.len());
        // The first relay of the path was the last to write.
        for key in &self.0 {
            annex.iter_mut().zip(key).for_each(|(byte, k)| *byte ^= k);
            let rate = f32::from_le_bytes([annex[0], annex[1], annex[2], annex[3]]);
            stamps.push(if rate > 0.0 && rate <= MAX_RATE { rate } else { 0.0 });
            annex.copy_within(4.., 0);
        }
        stamps
    }
}

/// No peer forwards more bytes per second than this.
const MAX_RATE: f32 = 1e10;

/// A peer's secret key with what it has opened before.
pub trait Seen {
    /// Whether a packet with this tag was opened; remembers it if `add`.
    fn seen(&mut self, tag: [u8; 16], add: bool) -> bool;
}

/// Opens a datagram with a peer's secret. `stamp` is the rate it offers, written into acknowledgements.
///
/// # Errors
/// [`OpenError`]; whoever sent the datagram is to blame, and nothing is remembered of it.
pub fn open(
    datagram: &[u8],
    secret: &StaticSecret,
    stamp: f32,
    seen: &mut dyn Seen,
) -> Result<Opened, OpenError> {
    let class = class(datagram).ok_or(OpenError::Shape)?;
    let onion = if class == Class::Data { 1 } else { 1 + ANNEX };
    let packet = SphinxPacket::from_bytes(&datagram[onion..]).map_err(|_| OpenError::Forged)?;
    let shared = packet.header.compute_expanded_shared_secret(secret);
    let mut tag = [0; 16];
    tag.copy_from_slice(&shared.replay_tag()[..16]);
    if seen.seen(tag, false) {
        return Err(OpenError::Replayed);
    }
    let opened = packet.process_with_expanded_secret(&shared).map_err(|_| OpenError::Forged)?;
    seen.seen(tag, true);
    use sphinx_packet::ProcessedPacketData::{FinalHop, ForwardHop};
    match (opened.data, class) {
        (ForwardHop { next_hop_packet, next_hop_address, .. }, _) => {
            let mut datagram = datagram[..onion].to_vec();
            if class == Class::Ack {
                let annex = &mut datagram[1..];
                annex.copy_within(..ANNEX - 4, 4);
                annex[..4].copy_from_slice(&stamp.to_le_bytes());
                annex.iter_mut().zip(annex_key(&shared)).for_each(|(byte, k)| *byte ^= k);
            }
            datagram.extend_from_slice(&next_hop_packet.to_bytes());
            Ok(Opened::Forward { to: peer_of(&next_hop_address).ok_or(OpenError::Inside)?, datagram })
        }
        (FinalHop { payload, .. }, Class::Data) => {
            let message = payload.recover_plaintext().map_err(|_| OpenError::Inside)?;
            let (length, rest) = message.split_first_chunk::<2>().ok_or(OpenError::Inside)?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (surb, body) = rest.split_at_checked(length).ok_or(OpenError::Inside)?;
            let reply = Reply::from_bytes(surb).ok_or(OpenError::Inside)?;
            Ok(Opened::Data { body: body.to_vec(), reply })
        }
        (FinalHop { identifier, payload, .. }, Class::Ack) => {
            let message = payload.recover_plaintext().map_err(|_| OpenError::Inside)?;
            let annex = datagram[1..onion].try_into().expect("as long as an annex");
            Ok(Opened::Ack { id: identifier, annex, message })
        }
    }
}

fn annex_key(shared: &ExpandedSharedSecret) -> [u8; ANNEX] {
    let digest = Sha256::new().chain_update(b"tidegate more annex").chain_update(shared.payload_key_seed());
    digest.finalize().into()
}

fn node(hop: Hop) -> Node {
    let mut address = [0; NODE_ADDRESS_LENGTH];
    address[..2].copy_from_slice(&hop.peer.to_be_bytes());
    Node::new(NodeAddressBytes::from_bytes(address), PublicKey::from(hop.key))
}

fn peer_of(address: &NodeAddressBytes) -> Option<Peer> {
    let bytes = address.as_bytes();
    bytes[2..].iter().all(|byte| *byte == 0).then(|| Peer::from_be_bytes([bytes[0], bytes[1]]))
}

fn destination(id: PacketId) -> Destination {
    Destination::new(DestinationAddressBytes::from_bytes([0; 32]), id)
}

fn no_delays(hops: usize) -> Vec<Delay> {
    vec![Delay::new_from_nanos(0); hops]
}
