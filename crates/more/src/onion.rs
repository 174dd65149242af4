//! Datagrams: what is in them, how a sender builds them, how a peer opens them.
//!
//! A data datagram is a kind byte and a Sphinx packet; its innermost message holds a reply block (SURB) over
//! the same relays and the body. An acknowledgement is a kind byte, an annex and a Sphinx packet made from
//! that reply block. In the annex each relay on the way back adds the rate it offers, under a key that it
//! shares with the sender alone, so that relays do not read each other's offers.
//!
//! To a receiver that hides ([`crate::message`]) the last relay of the sender path finds a second header
//! inside and passes the packet on under it; the answer comes back the same way as a `Reply`, an
//! acknowledgement of the size of a data datagram. Either may leave a route behind it ([`crate::routes`]), on
//! which cells follow. The upper half of a kind byte is the key epoch its header was built for, modulo 16.

use std::collections::{BTreeMap, VecDeque};

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

use crate::replay::ReplayTags;
use crate::routes::{Onward, Outbound, Seed, label};
use crate::wire::{
    ACK_PAYLOAD, ANNEX, Class, DATA_SIZE, Entropy, OpenError, PacketId, class, kind, within, within_rate,
};

/// The most relays on a path: Sphinx packets pass five hops, the last of which is the destination.
pub const MAX_RELAYS: usize = 4;
/// The most bytes of a body.
pub const BODY: usize = DATA_SIZE - 1 - HEADER_SIZE - PAYLOAD_OVERHEAD_SIZE - 3 - SURB_MOST;

/// A reply block over five hops: header, first hop, a seed per hop.
const SURB_MOST: usize = HEADER_SIZE + NODE_ADDRESS_LENGTH + 16 * (MAX_RELAYS + 1);
/// First byte of a message for a path's last hop: a body for it, or a packet to pass on.
const DELIVER: u8 = 0;
pub(crate) const PASS: u8 = 1;
/// What precedes the packet to pass on: the command, a token, the epoch and the next peer, the label of a route
/// there, its header.
pub(crate) const PASS_HEAD: usize = 1 + 8 + 1 + 2 + 8 + HEADER_SIZE;

/// A hop of a path.
#[derive(Clone, Copy, Debug)]
pub struct Hop {
    /// Number in the directory.
    pub peer: Peer,
    /// Its public key in the epoch.
    pub key: [u8; 32],
}

/// All peers' keys of one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The epoch modulo 16, as datagrams name it.
    pub tag: u8,
    /// By number of the peer.
    pub keys: Vec<[u8; 32]>,
}

impl Epoch {
    /// The keys of epoch `number`.
    pub fn new(number: u32, keys: Vec<[u8; 32]>) -> Epoch {
        Epoch { tag: (number % 16) as u8, keys }
    }

    /// A peer as a hop.
    pub fn hop(&self, peer: Peer) -> Hop {
        Hop { peer, key: self.keys[usize::from(peer)] }
    }

    /// Peers as a path.
    pub fn path<'a>(&self, peers: impl IntoIterator<Item = &'a Peer>) -> Vec<Hop> {
        peers.into_iter().map(|peer| self.hop(*peer)).collect()
    }
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
    /// A cell came over a route that ends at this peer.
    Cell {
        /// The path that the route goes back to.
        id: PacketId,
        /// Rates that relays stamped.
        annex: [u8; ANNEX],
        /// As the route's relays left it.
        payload: Vec<u8>,
    },
    /// A relay of a route that begins at this peer dropped a cell.
    Refused {
        /// The first relay of the route.
        first: Peer,
        /// The route's label there.
        label: u64,
        /// For [`Outbound::refused`].
        block: [u8; 16],
    },
    /// Something came over a receiver path of this peer, as its relays left it.
    Message {
        /// The receiver path.
        id: PacketId,
        /// Rates that relays stamped, if it is a reply.
        annex: [u8; ANNEX],
        /// For [`crate::message::PathKeys::unwrap`].
        payload: Vec<u8>,
    },
}

/// A single-use reply block, and the epoch it was built in.
#[derive(Debug)]
pub struct Reply(SURB, u8);

/// Builds a data datagram along `path`, whose last peer it is for, acknowledged over the same relays to `me`.
///
/// # Panics
/// If there are no relays or more than [`MAX_RELAYS`], or `body` is longer than [`BODY`].
pub fn build(
    epoch: &Epoch,
    path: &[Peer],
    me: Peer,
    id: PacketId,
    body: &[u8],
    entropy: Entropy,
) -> (Vec<u8>, AnnexKeys) {
    let (to, relays) = path.split_last().expect("a path has an end");
    assert!((1..=MAX_RELAYS).contains(&relays.len()), "a path has 1 to {MAX_RELAYS} relays");
    assert!(body.len() <= BODY, "a body has at most {BODY} bytes");
    let back = epoch.path(relays.iter().rev().chain([&me]));
    let (surb, keys) = surb(&back, id, &|_| 0, entropy);
    let annexes = keys.expanded_shared_secrets[..back.len() - 1].iter().rev().map(annex_key);
    let surb = surb.to_bytes();
    let mut message = vec![DELIVER];
    message.extend_from_slice(&(surb.len() as u16).to_be_bytes());
    message.extend_from_slice(&surb);
    message.extend_from_slice(body);
    let route = epoch.path(relays.iter().chain([to]));
    let secret = StaticSecret::from(entropy());
    let datagram = wrap(Class::Data, epoch.tag, &route, &secret, &vec![0; route.len()], &message, entropy);
    (datagram, AnnexKeys(annexes.collect()))
}

/// A datagram of the full size that brings `message` to the last hop of `route`, and the route it leaves behind.
pub(crate) fn wrap_route(
    class: Class,
    epoch: u8,
    route: &[Hop],
    message: &[u8],
    entropy: Entropy,
) -> (Vec<u8>, Outbound) {
    let nodes: Vec<Node> = route.iter().copied().map(node).collect();
    let secret = StaticSecret::from(entropy());
    let seeds = seeds(&KeyMaterial::derive(&nodes, &secret));
    let datagram = wrap(class, epoch, route, &secret, &onward_labels(&seeds), message, entropy);
    (datagram, Outbound::new(route[0].peer, &seeds))
}

/// For each hop the label that cells have at the next one.
fn onward_labels(seeds: &[Seed]) -> Vec<u64> {
    seeds[1..].iter().map(label).chain([0]).collect()
}

/// What each hop shares with the source.
pub(crate) fn seeds(keys: &KeyMaterial) -> Vec<Seed> {
    keys.expanded_shared_secrets.iter().map(|secret| *secret.payload_key_seed()).collect()
}

/// A datagram of the full size that brings `message` to the last hop of `route`; `onward`: per hop the label of
/// a route at the next one.
fn wrap(
    class: Class,
    epoch: u8,
    route: &[Hop],
    secret: &StaticSecret,
    onward: &[u64],
    message: &[u8],
    entropy: Entropy,
) -> Vec<u8> {
    let nodes: Vec<Node> = route.iter().copied().map(node).collect();
    let packet = SphinxPacketBuilder::new()
        .with_payload_size(DATA_SIZE - class.onion() - HEADER_SIZE)
        .with_initial_secret(secret)
        .build_packet(message, &nodes, &destination([0; 16]), &delays(onward))
        .expect("path and sizes were checked");
    let mut datagram = vec![kind(class, epoch)];
    if class == Class::Reply {
        datagram.extend_from_slice(&entropy());
    }
    datagram.extend_from_slice(&packet.to_bytes());
    debug_assert_eq!(datagram.len(), DATA_SIZE);
    datagram
}

/// A header over `back` that the last hop of it knows by `id`, and its keys. Each hop finds in it what `onward`
/// makes of the seed of the hop after it.
pub(crate) fn surb(
    back: &[Hop],
    id: PacketId,
    onward: &dyn Fn(&Seed) -> u64,
    entropy: Entropy,
) -> (SURB, KeyMaterial) {
    let route: Vec<Node> = back.iter().copied().map(node).collect();
    let secret = entropy();
    let keys = KeyMaterial::derive(&route, &StaticSecret::from(secret));
    let labels: Vec<u64> = seeds(&keys)[1..].iter().map(onward).chain([0]).collect();
    let material = SURBMaterial::new(route, delays(&labels), destination(id), PAYLOAD_KEYS_SEEDS_VERSION);
    (SURB::new(StaticSecret::from(secret), material).expect("path and version are right"), keys)
}

impl Reply {
    /// The acknowledgement, and the peer to hand it to. `message` is cut to what fits.
    pub fn acknowledge(self, message: &[u8], entropy: Entropy) -> Option<(Peer, Vec<u8>)> {
        let most = ACK_PAYLOAD - PAYLOAD_OVERHEAD_SIZE;
        let (packet, first) = self.0.use_surb(&message[..message.len().min(most)], ACK_PAYLOAD).ok()?;
        let mut datagram = vec![kind(Class::Ack, self.1)];
        // Random at first, so that a relay cannot tell how many came before it.
        datagram.extend_from_slice(&entropy());
        datagram.extend_from_slice(&packet.to_bytes());
        Some((peer_of(&first)?, datagram))
    }

    fn from_bytes(bytes: &[u8], epoch: u8) -> Option<Reply> {
        SURB::from_bytes(bytes).ok().map(|surb| Reply(surb, epoch))
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
        let mut stamps = Vec::with_capacity(self.0.len());
        // The first relay of the path was the last to write.
        for key in &self.0 {
            annex.iter_mut().zip(key).for_each(|(byte, k)| *byte ^= k);
            stamps.push(within_rate(number(&annex)));
            annex.copy_within(4.., 0);
        }
        (stamps, within(number(&annex), 3600.0))
    }
}

/// What a peer remembers from packet to packet, and says in acknowledgements.
pub struct Memory<'a> {
    /// The rate it offers, bytes/s.
    pub stamp: f32,
    /// Packets that were opened before.
    pub tags: &'a mut ReplayTags,
    /// Packets passed on into receiver paths.
    pub transit_times: &'a mut TransitTimes,
    /// Now.
    pub now: Time,
}

/// When packets that were passed on into receiver paths left, by the sender's token: their replies come back
/// with the same token, and what lies between is the receiver path's part of the round trip.
#[derive(Debug, Default)]
pub struct TransitTimes {
    left: BTreeMap<u64, Time>,
    order: VecDeque<u64>,
}

/// Packets that are timed at once; the oldest are forgotten.
const TRANSIT_TIMES: usize = 16_384;

impl TransitTimes {
    fn leave(&mut self, token: u64, now: Time) {
        if self.order.len() >= TRANSIT_TIMES {
            self.order.pop_front().map(|oldest| self.left.remove(&oldest));
        }
        if self.left.insert(token, now).is_none() {
            self.order.push_back(token);
        }
    }

    /// Seconds since the packet left, if one with this token did.
    fn back(&self, token: u64, now: Time) -> Option<f32> {
        self.left.get(&token).map(|left| now.since(*left).as_secs_f64() as f32)
    }
}

/// The seed of a route behind an opened packet, and where it leads.
pub(crate) type Left = Option<(Seed, Onward)>;

/// Opens a Sphinx datagram with a peer's secret. Gives what it asks for and the route that it leaves.
///
/// # Errors
/// [`OpenError`]; whoever sent the datagram is to blame, and nothing is remembered of it.
pub(crate) fn open(
    datagram: &[u8],
    secret: &StaticSecret,
    memory: Memory,
) -> Result<(Opened, Left), OpenError> {
    let (class, epoch) = class(datagram).ok_or(OpenError::Shape)?;
    let onion = class.onion();
    let packet = SphinxPacket::from_bytes(&datagram[onion..]).map_err(|_| OpenError::Forged)?;
    let shared = packet.header.compute_expanded_shared_secret(secret);
    let tag = u64::from_be_bytes(*shared.replay_tag().first_chunk().expect("a tag is longer"));
    if memory.tags.contains(tag) {
        return Err(OpenError::Replayed);
    }
    let opened = packet.process_with_expanded_secret(&shared).map_err(|_| OpenError::Forged)?;
    memory.tags.insert(tag)?;
    let seed = *shared.payload_key_seed();
    let annex = || datagram[1..1 + ANNEX].try_into().expect("as long as an annex");
    use sphinx_packet::ProcessedPacketData::{FinalHop, ForwardHop};
    match (opened.data, class) {
        (ForwardHop { next_hop_packet, next_hop_address, delay }, _) => {
            let mut datagram = datagram[..onion].to_vec();
            if class != Class::Data {
                // The way back through the relay that swapped headers has the token for its label.
                let stay = memory.transit_times.back(label(&seed), memory.now);
                write_annex(&mut datagram[1..], memory.stamp, stay, &shared);
            }
            datagram.extend_from_slice(&next_hop_packet.to_bytes());
            let to = peer_of(&next_hop_address).ok_or(OpenError::Inside)?;
            let onward = Onward::Pass { to, label: delay.to_nanos(), refusals: true };
            let left = (delay.to_nanos() != 0).then_some((seed, onward));
            Ok((Opened::Forward { to, datagram }, left))
        }
        (FinalHop { identifier, payload, .. }, Class::Ack) => {
            let message = payload.recover_plaintext().map_err(|_| OpenError::Inside)?;
            Ok((Opened::Ack { id: identifier, annex: annex(), message }, None))
        }
        (FinalHop { identifier, payload, .. }, _) if identifier != [0; 16] => {
            let annex = if class == Class::Reply { annex() } else { [0; ANNEX] };
            let left = Some((seed, Onward::End(identifier)));
            Ok((Opened::Message { id: identifier, annex, payload: payload.as_bytes().to_vec() }, left))
        }
        (FinalHop { payload, .. }, _) => {
            let message = payload.recover_plaintext().map_err(|_| OpenError::Inside)?;
            match message.split_first() {
                Some((&DELIVER, message)) if class == Class::Data => {
                    deliver(message, epoch).map(|data| (data, None))
                }
                Some((&PASS, _)) => pass(class, &message, &shared, memory),
                _ => None,
            }
            .ok_or(OpenError::Inside)
        }
    }
}

/// A body for this peer.
fn deliver(message: &[u8], epoch: u8) -> Option<Opened> {
    let (length, rest) = message.split_first_chunk::<2>()?;
    let (surb, body) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some(Opened::Data { body: body.to_vec(), reply: Reply::from_bytes(surb, epoch)? })
}

/// A packet to be passed on under the header inside it, filled up to the size all have.
fn pass(
    class: Class,
    message: &[u8],
    shared: &ExpandedSharedSecret,
    memory: Memory,
) -> Option<(Opened, Left)> {
    if message.len() < PASS_HEAD + 32 {
        return None;
    }
    let number = |at: usize| message[at..at + 8].try_into().ok().map(u64::from_be_bytes);
    let (token, epoch, onward) = (number(1)?, message[9], number(12)?);
    let to = Peer::from_be_bytes([message[10], message[11]]);
    let mut filling = Filling::new(shared);
    let mut datagram = Vec::with_capacity(DATA_SIZE);
    datagram.push(kind(class, epoch));
    if class == Class::Reply {
        datagram.extend_from_slice(&filling.next());
    } else if token != 0 {
        memory.transit_times.leave(token, memory.now);
    }
    datagram.extend_from_slice(&message[20..]);
    while datagram.len() < DATA_SIZE {
        datagram.extend_from_slice(&filling.next());
    }
    datagram.truncate(DATA_SIZE);
    // What refuses beyond is unknown to this packet's source: its refusals say nothing to it.
    let onward = Onward::Pass { to, label: onward, refusals: false };
    Some((Opened::Forward { to, datagram }, Some((*shared.payload_key_seed(), onward))))
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

/// The per-hop field that mixes use for delays: here a route's label at the next hop.
fn delays(onward: &[u64]) -> Vec<Delay> {
    onward.iter().map(|label| Delay::new_from_nanos(*label)).collect()
}
