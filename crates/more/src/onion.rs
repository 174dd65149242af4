//! Format of datagrams: building and opening.
//!
//! A data datagram is a kind byte and a Sphinx packet. Its innermost message holds a reply block (SURB) over the same
//! relays and the body. An acknowledgement is a kind byte, an annex and a Sphinx packet made from that reply block.
//! On the way back each relay adds the rate that it offers to the annex, encrypted under a key shared with the
//! sender, so that relays cannot read each other's offers.
//!
//! On the path to a hidden receiver ([`crate::message`]), the last relay of the sender path finds a second header
//! inside and forwards the packet under it. The answer comes back the same way as a `Reply`, an acknowledgement of
//! the size of a data datagram. Either may leave a route (`routes`) for cells. The upper half of the kind
//! byte is the header's key epoch modulo 16.

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

/// Maximum number of relays on a path. Sphinx packets pass five hops, including the destination.
pub const MAX_RELAYS: usize = 4;
/// Maximum length of a body, bytes.
pub(crate) const BODY: usize = DATA_SIZE - 1 - HEADER_SIZE - PAYLOAD_OVERHEAD_SIZE - 3 - SURB_MOST;

/// Length of a reply block over five hops: header, first hop, a seed per hop.
const SURB_MOST: usize = HEADER_SIZE + NODE_ADDRESS_LENGTH + 16 * (MAX_RELAYS + 1);
/// First byte of the message for the last hop: a body, or a packet to forward.
const DELIVER: u8 = 0;
pub(crate) const PASS: u8 = 1;
/// Length of the fields before a packet to forward: command, token, epoch, next peer, label of its route, header.
pub(crate) const PASS_HEAD: usize = 1 + 8 + 1 + 2 + 8 + HEADER_SIZE;

/// A hop of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// Number in the directory.
    pub peer: Peer,
    /// Its public key in the epoch.
    pub key: [u8; 32],
}

/// The keys of all peers in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The epoch modulo 16, as in datagrams.
    pub tag: u8,
    /// Keys by number of the peer.
    pub keys: Vec<[u8; 32]>,
}

impl Epoch {
    /// The keys of epoch `number`.
    pub fn new(number: u32, keys: Vec<[u8; 32]>) -> Epoch {
        Epoch { tag: (number % 16) as u8, keys }
    }

    /// A peer as a hop.
    pub(crate) fn hop(&self, peer: Peer) -> Hop {
        Hop { peer, key: self.keys[usize::from(peer)] }
    }

    /// Peers as a path.
    pub(crate) fn path<'a>(&self, peers: impl IntoIterator<Item = &'a Peer>) -> Vec<Hop> {
        peers.into_iter().map(|peer| self.hop(*peer)).collect()
    }
}

/// Keys that decrypt the annex of an acknowledgement, one per relay, the first relay first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnexKeys(pub(crate) Vec<[u8; ANNEX]>);

/// Result of opening a datagram.
#[derive(Debug)]
pub enum Opened {
    /// Forward a datagram.
    Forward {
        /// The next peer.
        to: Peer,
        /// The datagram.
        datagram: Vec<u8>,
    },
    /// A body that ends at this peer.
    Data {
        /// The body.
        body: Vec<u8>,
        /// Makes the acknowledgement.
        reply: Reply,
    },
    /// An acknowledgement of a packet of this peer.
    Ack {
        /// The packet.
        id: PacketId,
        /// For `AnnexKeys::stamps`.
        annex: [u8; ANNEX],
        /// The receiver's text.
        message: Vec<u8>,
    },
    /// A cell on a route that ends at this peer.
    Cell {
        /// The path on which the route was established.
        id: PacketId,
        /// Rates that the relays stamped.
        annex: [u8; ANNEX],
        /// The payload, still encrypted.
        payload: Vec<u8>,
    },
    /// A relay of a route of this peer dropped a cell.
    Refused {
        /// The first relay of the route.
        first: Peer,
        /// The route's label there.
        label: u64,
        /// For `Outbound::refused`.
        block: [u8; 16],
    },
    /// A packet over a receiver path of this peer.
    Message {
        /// The receiver path.
        id: PacketId,
        /// In a reply, the rates that the relays stamped.
        annex: [u8; ANNEX],
        /// For `crate::message::PathKeys::unwrap`.
        payload: Vec<u8>,
    },
}

/// A single-use reply block, and its epoch.
#[derive(Debug)]
pub struct Reply(SURB, u8);

/// Builds a data datagram along `path` to its last peer. The acknowledgement returns to `me` over the same relays.
///
/// # Panics
/// If the number of relays is zero or above [`MAX_RELAYS`], or `body` is longer than `BODY`.
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

/// Builds a full-size datagram for the last hop of `route`, and the route it leaves.
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

/// The label of cells at the next hop, for each hop.
fn onward_labels(seeds: &[Seed]) -> Vec<u64> {
    seeds[1..].iter().map(label).chain([0]).collect()
}

/// The secrets shared with each hop.
pub(crate) fn seeds(keys: &KeyMaterial) -> Vec<Seed> {
    keys.expanded_shared_secrets.iter().map(|secret| *secret.payload_key_seed()).collect()
}

/// Builds a full-size datagram with `message` for the last hop of `route`.
///
/// `onward` holds, per hop, the label of a route at the next hop.
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

/// Builds a header over `back` and its keys. The last hop recognises it by `id`.
///
/// `onward` computes the field for each hop from the seed of the next one.
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
    /// Makes the acknowledgement and returns it with its next peer. `message` is truncated if necessary.
    pub fn acknowledge(self, message: &[u8], entropy: Entropy) -> Option<(Peer, Vec<u8>)> {
        let most = ACK_PAYLOAD - PAYLOAD_OVERHEAD_SIZE;
        let (packet, first) = self.0.use_surb(&message[..message.len().min(most)], ACK_PAYLOAD).ok()?;
        let mut datagram = vec![kind(Class::Ack, self.1)];
        // Random filling hides from a relay how many relays wrote before it.
        datagram.extend_from_slice(&entropy());
        datagram.extend_from_slice(&packet.to_bytes());
        Some((peer_of(&first)?, datagram))
    }

    fn from_bytes(bytes: &[u8], epoch: u8) -> Option<Reply> {
        SURB::from_bytes(bytes).ok().map(|surb| Reply(surb, epoch))
    }
}

impl AnnexKeys {
    /// Decrypts the rates of an annex, bytes/s, from the first relay on.
    ///
    /// Invalid rates are zero.
    pub(crate) fn stamps(&self, annex: [u8; ANNEX]) -> Vec<f32> {
        self.read(annex).0
    }

    /// Decrypts the rates and the time beyond the sender path, seconds.
    ///
    /// The time is zero if its last relay did not measure it.
    pub(crate) fn read(&self, mut annex: [u8; ANNEX]) -> (Vec<f32>, f32) {
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

/// State of a peer that opening a datagram uses and changes.
pub(crate) struct Memory<'a> {
    /// The rate that it offers, bytes/s.
    pub stamp: f32,
    /// Packets that were opened before.
    pub tags: &'a mut ReplayTags,
    /// The network of the neighbour that sent the packet, which the tag counts for.
    pub network: Peer,
    /// Packets forwarded into receiver paths.
    pub transit_times: &'a mut TransitTimes,
    /// The current time.
    pub now: Time,
}

/// Departure times of packets into receiver paths, by the sender's token.
///
/// Replies carry the same token, so the difference is the round-trip time of the receiver path.
#[derive(Debug, Default)]
pub(crate) struct TransitTimes {
    left: BTreeMap<u64, Time>,
    order: VecDeque<u64>,
}

/// Maximum number of measured packets; the oldest are dropped.
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

    /// Seconds since the packet with this token left, if known.
    fn back(&self, token: u64, now: Time) -> Option<f32> {
        self.left.get(&token).map(|left| now.since(*left).as_secs_f64() as f32)
    }
}

/// Seed and destination of the route that an opened packet leaves.
pub(crate) type Left = Option<(Seed, Onward)>;

/// Opens a Sphinx datagram with a peer's secret. Returns the result and the route that it leaves.
///
/// # Errors
/// [`OpenError`]; the sender is responsible, and nothing is remembered.
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
    memory.tags.insert(memory.network, tag)?;
    let seed = *shared.payload_key_seed();
    let annex = || datagram[1..1 + ANNEX].try_into().expect("as long as an annex");
    use sphinx_packet::ProcessedPacketData::{FinalHop, ForwardHop};
    match (opened.data, class) {
        (ForwardHop { next_hop_packet, next_hop_address, delay }, _) => {
            let mut datagram = datagram[..onion].to_vec();
            if class != Class::Data {
                // On the way back, the relay that swapped headers uses the token as its label.
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

/// Parses a body that ends at this peer.
fn deliver(message: &[u8], epoch: u8) -> Option<Opened> {
    let (length, rest) = message.split_first_chunk::<2>()?;
    let (surb, body) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some(Opened::Data { body: body.to_vec(), reply: Reply::from_bytes(surb, epoch)? })
}

/// Swaps the headers: forwards the packet under the header inside it, padded to the full size.
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
    // The source does not know the relays beyond, so their refusals are useless to it.
    let onward = Onward::Pass { to, label: onward, refusals: false };
    Some((Opened::Forward { to, datagram }, Some((*shared.payload_key_seed(), onward))))
}

/// A stream of pseudorandom bytes for padding.
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

/// Uses the per-hop delay field of mixes for a route's label at the next hop.
fn delays(onward: &[u64]) -> Vec<Delay> {
    onward.iter().map(|label| Delay::new_from_nanos(*label)).collect()
}
