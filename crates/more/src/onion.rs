//! Datagrams: what is in them, how a sender builds them, how a peer opens them.
//!
//! A data datagram is a kind byte and a Sphinx packet; its innermost message holds a reply block (SURB) over
//! the same relays and the body. An acknowledgement is a kind byte, an annex and a Sphinx packet made from
//! that reply block. In the annex each relay on the way back adds the rate it offers, under a key that it
//! shares with the sender alone, so that relays do not read each other's offers.
//!
//! To a receiver that hides ([`crate::letter`]) the last relay of the sender path finds a second header
//! inside and passes the packet on under it; the answer comes back the same way as a `Reply`, an
//! acknowledgement of the size of a data datagram.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
use tidegate_control::units::Time;
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
pub const BODY: usize = DATA_SIZE - 1 - HEADER_SIZE - PAYLOAD_OVERHEAD_SIZE - 3 - SURB_MOST;

/// Bytes of the annex: eight four-byte numbers, a rate for each relay and one duration.
pub const ANNEX: usize = 32;
const ACK_PAYLOAD: usize = 64;
/// A reply block over five hops: header, first hop, a seed per hop.
const SURB_MOST: usize = HEADER_SIZE + NODE_ADDRESS_LENGTH + 16 * (MAX_RELAYS + 1);
const DATA: u8 = 1;
const ACK: u8 = 2;
const REPLY: u8 = 3;
/// First byte of a message for a path's last hop: a body for it, or a packet to pass on.
const DELIVER: u8 = 0;
pub(crate) const PASS: u8 = 1;
/// What precedes the packet to pass on: the command, a token, the next peer, its header.
pub(crate) const PASS_HEAD: usize = 1 + 8 + 2 + HEADER_SIZE;

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
pub struct AnnexKeys(pub(crate) Vec<[u8; ANNEX]>);

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
    /// Something came over a receiver path of this peer, as its relays left it.
    Letter {
        /// The receiver path.
        id: PacketId,
        /// Rates that relays stamped, if it is a reply.
        annex: [u8; ANNEX],
        /// For [`crate::letter::PathKeys::unwrap`].
        payload: Vec<u8>,
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
    /// An acknowledgement as large as data, which answers over a receiver path.
    Reply,
}

impl Class {
    /// Where the Sphinx packet begins.
    pub(crate) fn onion(self) -> usize {
        if self == Class::Data { 1 } else { 1 + ANNEX }
    }
}

/// The class of a datagram; none if it is neither.
pub fn class(datagram: &[u8]) -> Option<Class> {
    match (datagram.first(), datagram.len()) {
        (Some(&DATA), DATA_SIZE) => Some(Class::Data),
        (Some(&ACK), ACK_SIZE) => Some(Class::Ack),
        (Some(&REPLY), DATA_SIZE) => Some(Class::Reply),
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
    let mut message = vec![DELIVER];
    message.extend_from_slice(&(surb.len() as u16).to_be_bytes());
    message.extend_from_slice(&surb);
    message.extend_from_slice(body);
    let route: Vec<Hop> = relays.iter().copied().chain([to]).collect();
    (wrap(Class::Data, &route, message, entropy), keys)
}

/// A datagram of the full size that brings `message` to the last hop of `route`.
pub(crate) fn wrap(class: Class, route: &[Hop], message: Vec<u8>, entropy: Entropy) -> Vec<u8> {
    let nodes: Vec<Node> = route.iter().copied().map(node).collect();
    let secret = StaticSecret::from(entropy());
    let packet = SphinxPacketBuilder::new()
        .with_payload_size(DATA_SIZE - class.onion() - HEADER_SIZE)
        .with_initial_secret(&secret)
        .build_packet(message, &nodes, &destination([0; 16]), &delays(route.len(), 0))
        .expect("path and sizes were checked");
    let mut datagram = vec![if class == Class::Data { DATA } else { REPLY }];
    if class == Class::Reply {
        datagram.extend_from_slice(&entropy());
    }
    datagram.extend_from_slice(&packet.to_bytes());
    debug_assert_eq!(datagram.len(), DATA_SIZE);
    datagram
}

/// A reply block over `back`, whose last hop is the peer it leads to, and the annex keys of the hops before.
fn reply_block(back: &[Hop], id: PacketId, entropy: Entropy) -> (Reply, AnnexKeys) {
    let (surb, keys) = surb(back, id, 0, entropy);
    let relays = &keys.expanded_shared_secrets[..back.len() - 1];
    (Reply(surb), AnnexKeys(relays.iter().map(annex_key).collect()))
}

/// A header over `back` that the last hop of it knows by `id`. The first hop finds `token` in it.
pub(crate) fn surb(back: &[Hop], id: PacketId, token: u64, entropy: Entropy) -> (SURB, KeyMaterial) {
    let route: Vec<Node> = back.iter().copied().map(node).collect();
    let secret = entropy();
    let keys = KeyMaterial::derive(&route, &StaticSecret::from(secret));
    let delays = delays(route.len(), token);
    let material = SURBMaterial::new(route, delays, destination(id), PAYLOAD_KEYS_SEEDS_VERSION);
    (SURB::new(StaticSecret::from(secret), material).expect("path and version are right"), keys)
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
    pub fn stamps(&self, annex: [u8; ANNEX]) -> Vec<f32> {
        self.read(annex).0
    }

    /// The rates, and for how many seconds a packet was beyond the last relay of the sender path; zero if
    /// that relay did not time it.
    pub fn read(&self, mut annex: [u8; ANNEX]) -> (Vec<f32>, f32) {
        let number = |annex: &[u8; ANNEX]| f32::from_le_bytes([annex[0], annex[1], annex[2], annex[3]]);
        let within = |value: f32, most: f32| if value > 0.0 && value <= most { value } else { 0.0 };
        let mut stamps = Vec::with_capacity(self.0.len());
        // The first relay of the path was the last to write.
        for key in &self.0 {
            annex.iter_mut().zip(key).for_each(|(byte, k)| *byte ^= k);
            stamps.push(within(number(&annex), MAX_RATE));
            annex.copy_within(4.., 0);
        }
        (stamps, within(number(&annex), 3600.0))
    }
}

/// No peer forwards more bytes per second than this.
const MAX_RATE: f32 = 1e10;

/// What a peer remembers from packet to packet, and says in acknowledgements.
pub struct Memory<'a> {
    /// The rate it offers, bytes/s.
    pub stamp: f32,
    /// Tags of packets that were opened before.
    pub tags: &'a mut BTreeSet<[u8; 16]>,
    /// Packets passed on into receiver paths.
    pub stays: &'a mut Stays,
    /// Now.
    pub now: Time,
}

/// When packets that were passed on into receiver paths left, by the sender's token: their replies come back
/// with the same token, and what lies between is the receiver path's part of the round trip.
#[derive(Debug, Default)]
pub struct Stays {
    left: BTreeMap<u64, Time>,
    order: VecDeque<u64>,
}

/// Packets that are timed at once; the oldest are forgotten.
const STAYS: usize = 16_384;

impl Stays {
    fn leave(&mut self, token: u64, now: Time) {
        if self.order.len() >= STAYS {
            self.order.pop_front().map(|oldest| self.left.remove(&oldest));
        }
        if self.left.insert(token, now).is_none() {
            self.order.push_back(token);
        }
    }

    /// Seconds since the packet left; zero if it is not known.
    fn back(&self, token: u64, now: Time) -> f32 {
        self.left.get(&token).map_or(0.0, |left| now.since(*left).as_secs_f64() as f32)
    }
}

/// Opens a datagram with a peer's secret.
///
/// # Errors
/// [`OpenError`]; whoever sent the datagram is to blame, and nothing is remembered of it.
pub fn open(datagram: &[u8], secret: &StaticSecret, memory: Memory) -> Result<Opened, OpenError> {
    let class = class(datagram).ok_or(OpenError::Shape)?;
    let onion = class.onion();
    let packet = SphinxPacket::from_bytes(&datagram[onion..]).map_err(|_| OpenError::Forged)?;
    let shared = packet.header.compute_expanded_shared_secret(secret);
    let mut tag = [0; 16];
    tag.copy_from_slice(&shared.replay_tag()[..16]);
    if memory.tags.contains(&tag) {
        return Err(OpenError::Replayed);
    }
    let opened = packet.process_with_expanded_secret(&shared).map_err(|_| OpenError::Forged)?;
    memory.tags.insert(tag);
    let annex = || datagram[1..1 + ANNEX].try_into().expect("as long as an annex");
    use sphinx_packet::ProcessedPacketData::{FinalHop, ForwardHop};
    match (opened.data, class) {
        (ForwardHop { next_hop_packet, next_hop_address, delay }, _) => {
            let mut datagram = datagram[..onion].to_vec();
            if class != Class::Data {
                let token = delay.to_nanos();
                let stay = (token != 0).then(|| memory.stays.back(token, memory.now));
                write_annex(&mut datagram[1..], memory.stamp, stay, &shared);
            }
            datagram.extend_from_slice(&next_hop_packet.to_bytes());
            Ok(Opened::Forward { to: peer_of(&next_hop_address).ok_or(OpenError::Inside)?, datagram })
        }
        (FinalHop { identifier, payload, .. }, Class::Ack) => {
            let message = payload.recover_plaintext().map_err(|_| OpenError::Inside)?;
            Ok(Opened::Ack { id: identifier, annex: annex(), message })
        }
        (FinalHop { identifier, payload, .. }, _) if identifier != [0; 16] => {
            let annex = if class == Class::Reply { annex() } else { [0; ANNEX] };
            Ok(Opened::Letter { id: identifier, annex, payload: payload.as_bytes().to_vec() })
        }
        (FinalHop { payload, .. }, _) => {
            let message = payload.recover_plaintext().map_err(|_| OpenError::Inside)?;
            match message.split_first() {
                Some((&DELIVER, message)) if class == Class::Data => deliver(message),
                Some((&PASS, _)) => pass(class, &message, &shared, memory),
                _ => None,
            }
            .ok_or(OpenError::Inside)
        }
    }
}

/// A body for this peer.
fn deliver(message: &[u8]) -> Option<Opened> {
    let (length, rest) = message.split_first_chunk::<2>()?;
    let (surb, body) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some(Opened::Data { body: body.to_vec(), reply: Reply::from_bytes(surb)? })
}

/// A packet to be passed on under the header inside it, filled up to the size all have.
fn pass(class: Class, message: &[u8], shared: &ExpandedSharedSecret, memory: Memory) -> Option<Opened> {
    if message.len() < PASS_HEAD + 32 {
        return None;
    }
    let token = u64::from_be_bytes(message[1..9].try_into().ok()?);
    let to = Peer::from_be_bytes([message[9], message[10]]);
    let mut filling = Filling::new(shared);
    let mut datagram = Vec::with_capacity(DATA_SIZE);
    datagram.push(if class == Class::Data { DATA } else { REPLY });
    if class == Class::Reply {
        datagram.extend_from_slice(&filling.next());
    } else if token != 0 {
        memory.stays.leave(token, memory.now);
    }
    datagram.extend_from_slice(&message[11..]);
    while datagram.len() < DATA_SIZE {
        datagram.extend_from_slice(&filling.next());
    }
    datagram.truncate(DATA_SIZE);
    Some(Opened::Forward { to, datagram })
}

/// Bytes that nobody without the shared secret can tell from random.
struct Filling {
    seed: [u8; 32],
    count: u32,
}

impl Filling {
    fn new(shared: &ExpandedSharedSecret) -> Filling {
        let digest =
            Sha256::new().chain_update(b"tidegate more fill").chain_update(shared.payload_key_seed());
        Filling { seed: digest.finalize().into(), count: 0 }
    }

    fn next(&mut self) -> [u8; 32] {
        self.count += 1;
        Sha256::new().chain_update(self.seed).chain_update(self.count.to_be_bytes()).finalize().into()
    }
}

fn write_annex(annex: &mut [u8], stamp: f32, stay: Option<f32>, shared: &ExpandedSharedSecret) {
    for value in stay.into_iter().chain([stamp]) {
        annex.copy_within(..ANNEX - 4, 4);
        annex[..4].copy_from_slice(&value.to_le_bytes());
    }
    annex.iter_mut().zip(annex_key(shared)).for_each(|(byte, k)| *byte ^= k);
}

pub(crate) fn annex_key(shared: &ExpandedSharedSecret) -> [u8; ANNEX] {
    let digest = Sha256::new().chain_update(b"tidegate more annex").chain_update(shared.payload_key_seed());
    digest.finalize().into()
}

fn node(hop: Hop) -> Node {
    let mut address = [0; NODE_ADDRESS_LENGTH];
    address[..2].copy_from_slice(&hop.peer.to_be_bytes());
    Node::new(NodeAddressBytes::from_bytes(address), PublicKey::from(hop.key))
}

pub(crate) fn peer_of(address: &NodeAddressBytes) -> Option<Peer> {
    let bytes = address.as_bytes();
    bytes[2..].iter().all(|byte| *byte == 0).then(|| Peer::from_be_bytes([bytes[0], bytes[1]]))
}

fn destination(id: PacketId) -> Destination {
    Destination::new(DestinationAddressBytes::from_bytes([0; 32]), id)
}

/// The per-hop field that mixes use for delays: here the first hop's holds the sender's token.
fn delays(hops: usize, token: u64) -> Vec<Delay> {
    (0..hops).map(|hop| Delay::new_from_nanos(if hop == 0 { token } else { 0 })).collect()
}
