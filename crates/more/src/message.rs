//! Packets to a receiver that hides: receiver paths, and what travels over them (thesis section 3.1.3).
//!
//! A receiver path is the address of its first relay and a Sphinx header that its owner built over relays of
//! its own selection: the header half of a single-use reply block. Whoever uses it prepends its own sender path;
//! the last relay of that swaps the headers. What is inside is encrypted to the owner's key alone. The relays
//! of a receiver path each apply a cipher to the packet, which its owner, who knows all their keys, undoes:
//! so the same packet looks different on every link, and can be filled up to the one size on its way.
//!
//! A message carries the writer's own receiver path for the answer, and the answer a fresh one of the
//! receiver's for the next message, since relays refuse to pass any header twice.

use sha2::{Digest, Sha256};
use sphinx_packet::header::HEADER_SIZE;
use sphinx_packet::payload::key::{PayloadKey, derive_payload_key};
use sphinx_packet::payload::{PAYLOAD_OVERHEAD_SIZE, Payload};
use tidegate_control::paths::Peer;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::onion::{AnnexKeys, Epoch, MAX_RELAYS, PASS, PASS_HEAD, annex_key, seeds, surb, wrap_route};
use crate::routes::{Inbound, Outbound, Seed, label};
use crate::wire::{ANNEX, Class, DATA_SIZE, Entropy, PacketId};

/// Bytes of a receiver path.
pub const PATH_SIZE: usize = 1 + 2 + 8 + HEADER_SIZE;
/// Bytes of text beside the receiver path in a message or an answer.
pub const TEXT: usize = sealed_size(Class::Data) - 32 - PAYLOAD_OVERHEAD_SIZE - PATH_SIZE;

/// Bytes of what crosses a receiver path: all of a datagram but two headers and what goes with them.
const fn sealed_size(class: Class) -> usize {
    let onion = match class {
        Class::Reply => 1 + ANNEX,
        _ => 1,
    };
    DATA_SIZE - onion - HEADER_SIZE - PAYLOAD_OVERHEAD_SIZE - PASS_HEAD
}

/// A way to a receiver that does not say where it is; good for one packet.
#[derive(Clone, PartialEq, Eq)]
pub struct ReceiverPath([u8; PATH_SIZE]);

impl std::fmt::Debug for ReceiverPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReceiverPath(from peer {})", self.entry())
    }
}

impl ReceiverPath {
    /// As it is written: the epoch modulo 16, two bytes of the first relay's number, the label of a route there,
    /// the header.
    pub fn to_bytes(&self) -> [u8; PATH_SIZE] {
        self.0
    }

    /// Reads what [`ReceiverPath::to_bytes`] wrote. Whether it leads anywhere its use will show.
    pub fn from_bytes(bytes: [u8; PATH_SIZE]) -> ReceiverPath {
        ReceiverPath(bytes)
    }

    /// Its first relay, the only one that others know.
    pub fn entry(&self) -> Peer {
        Peer::from_be_bytes([self.0[1], self.0[2]])
    }

    /// The key epoch it was built for, modulo 16.
    pub fn epoch(&self) -> u8 {
        self.0[0]
    }
}

/// What its owner keeps of a receiver path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathKeys {
    seeds: Vec<Seed>,
    /// To read what the relays stamped on a reply: the relay next to the owner first.
    pub annex: AnnexKeys,
}

impl PathKeys {
    /// A path over `relays` (the one next to the receiver last) to `me`, which the receiver knows by `id`.
    ///
    /// # Panics
    /// If there are no relays or more than [`MAX_RELAYS`], or the identifier is zero.
    pub fn draw(
        epoch: &Epoch,
        relays: &[Peer],
        me: Peer,
        id: PacketId,
        entropy: Entropy,
    ) -> (ReceiverPath, PathKeys) {
        assert!((1..=MAX_RELAYS).contains(&relays.len()), "a path has 1 to {MAX_RELAYS} relays");
        assert!(id != [0; 16], "zero names no path");
        let (block, keys) = surb(&epoch.path(relays.iter().chain([&me])), id, &label, entropy);
        let seeds = seeds(&keys);
        let mut bytes = [0; PATH_SIZE];
        bytes[0] = epoch.tag;
        bytes[1..3].copy_from_slice(&relays[0].to_be_bytes());
        bytes[3..11].copy_from_slice(&label(&seeds[0]).to_be_bytes());
        bytes[11..].copy_from_slice(&block.to_bytes()[..HEADER_SIZE]);
        let annex = keys.expanded_shared_secrets[..relays.len()].iter().rev().map(annex_key).collect();
        (ReceiverPath(bytes), PathKeys { seeds, annex: AnnexKeys(annex) })
    }

    /// What the first relay knows cells along this path by.
    pub fn label(&self) -> u64 {
        label(&self.seeds[0])
    }

    /// For the cells that follow along this path.
    pub(crate) fn route(&self) -> Inbound {
        Inbound::new(&self.seeds[..self.seeds.len() - 1])
    }

    /// Undoes what the relays of the path did to what came over it.
    fn unwrap(&self, class: Class, payload: &[u8]) -> Option<Vec<u8>> {
        let mut payload = Payload::from_bytes(payload).ok()?;
        for seed in self.seeds.iter().rev() {
            payload = payload.add_encryption_layer(derive_payload_key(seed)).ok()?;
        }
        Some(payload.as_bytes().get(..sealed_size(class))?.to_vec())
    }

    /// Opens a message that came over this path with the receiver's secret.
    pub fn message(&self, secret: &StaticSecret, payload: &[u8]) -> Option<(Message, Session)> {
        let sealed = self.unwrap(Class::Data, payload)?;
        let (key, sealed) = sealed.split_first_chunk::<32>()?;
        let shared = secret.diffie_hellman(&PublicKey::from(*key));
        let plain = unseal(sealed, &seed(shared.as_bytes(), b"message"))?;
        Some((Message::parse(&plain)?, Session::new(shared.as_bytes())))
    }

    /// Opens the answer to a message, which came over this path.
    pub fn answer(&self, session: &Session, payload: &[u8]) -> Option<Message> {
        Message::parse(&unseal(&self.unwrap(Class::Reply, payload)?, &session.answer)?)
    }
}

/// What the two ends of a path share: with it the answer and the cells both ways are encrypted.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Session {
    answer: Seed,
    /// Of cells to the receiver: keys, not their seeds, for a route's cells all use them.
    pub(crate) up: PayloadKey,
    /// Of cells from it.
    pub(crate) down: PayloadKey,
}

impl Session {
    fn new(shared: &[u8; 32]) -> Session {
        let cells = |which: &[u8]| derive_payload_key(&seed(shared, which));
        Session { answer: seed(shared, b"answer"), up: cells(b"up"), down: cells(b"down") }
    }
}

/// What a message or an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where the next packet to its writer may go.
    pub path: ReceiverPath,
    /// At most [`TEXT`] bytes.
    pub text: Vec<u8>,
}

impl Message {
    fn parse(plain: &[u8]) -> Option<Message> {
        let (path, text) = plain.split_first_chunk::<PATH_SIZE>()?;
        Some(Message { path: ReceiverPath(*path), text: text.to_vec() })
    }

    fn plain(&self) -> Vec<u8> {
        assert!(self.text.len() <= TEXT, "a text has at most {TEXT} bytes");
        [&self.path.0[..], &self.text].concat()
    }

    /// The datagram that brings this message over `relays` into a receiver path, whose owner has `key`, and the
    /// route that it leaves there. The last of the relays times it under `token`, if that is not zero.
    pub fn send(
        &self,
        epoch: &Epoch,
        relays: &[Peer],
        token: u64,
        into: &ReceiverPath,
        key: [u8; 32],
        entropy: Entropy,
    ) -> (Vec<u8>, Session, Outbound) {
        let own = StaticSecret::from(entropy());
        let shared = own.diffie_hellman(&PublicKey::from(key));
        let size = sealed_size(Class::Data) - 32;
        let sealed = seal(&self.plain(), &seed(shared.as_bytes(), b"message"), size);
        let sealed = [&PublicKey::from(&own).to_bytes()[..], &sealed].concat();
        let message = passed(token, into, &sealed);
        let (datagram, outbound) = wrap_route(Class::Data, epoch.tag, &epoch.path(relays), &message, entropy);
        (datagram, Session::new(shared.as_bytes()), outbound)
    }

    /// The datagram that brings this as an answer over `relays` into the path that a message named.
    pub fn reply(
        &self,
        epoch: &Epoch,
        relays: &[Peer],
        into: &ReceiverPath,
        session: &Session,
        entropy: Entropy,
    ) -> (Vec<u8>, Outbound) {
        let sealed = seal(&self.plain(), &session.answer, sealed_size(Class::Reply));
        let message = passed(0, into, &sealed);
        wrap_route(Class::Reply, epoch.tag, &epoch.path(relays), &message, entropy)
    }
}

/// The message for the last relay of a sender path.
fn passed(token: u64, into: &ReceiverPath, sealed: &[u8]) -> Vec<u8> {
    [&[PASS], &token.to_be_bytes()[..], &into.0, sealed].concat()
}

/// A key for one direction.
fn seed(shared: &[u8; 32], direction: &[u8]) -> Seed {
    let digest = Sha256::new().chain_update(b"tidegate more ").chain_update(direction).chain_update(shared);
    let digest: [u8; 32] = digest.finalize().into();
    *digest.first_chunk().expect("32 bytes")
}

/// Encrypts under a fresh key with Sphinx's wide-block cipher; leading zeros inside prove integrity.
fn seal(plain: &[u8], seed: &[u8; 16], size: usize) -> Vec<u8> {
    let payload = Payload::encapsulate_message(plain, &[*seed], size).expect("sizes were checked");
    payload.as_bytes().to_vec()
}

fn unseal(sealed: &[u8], seed: &[u8; 16]) -> Option<Vec<u8>> {
    let payload = Payload::from_bytes(sealed).ok()?;
    payload.unwrap(derive_payload_key(seed)).ok()?.recover_plaintext().ok()
}
