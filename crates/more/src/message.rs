//! Receiver paths, and packets over them to a hidden receiver (thesis section 3.1.3).
//!
//! A receiver path is the number of its first relay and a Sphinx header over relays that its owner selected: the
//! header half of a single-use reply block. A sender prepends its own sender path, and the last relay of that path
//! swaps the headers. The contents are encrypted to the owner's key. Each relay of the receiver path applies a cipher
//! to the packet; the owner knows the keys and reverts them. So the packet looks different on every link, and relays
//! can pad it to the full size.
//!
//! A message carries a receiver path of its writer for the answer. The answer carries a fresh path of the receiver
//! for the next message, since relays refuse to pass a header twice.

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

/// Length of a receiver path, bytes.
pub const PATH_SIZE: usize = 1 + 2 + 8 + HEADER_SIZE;
/// Length of the text in a message or an answer, bytes.
pub(crate) const TEXT: usize = sealed_size(Class::Data) - 32 - PAYLOAD_OVERHEAD_SIZE - PATH_SIZE;

/// Length of the contents that cross a receiver path: a datagram without two headers and their fields.
const fn sealed_size(class: Class) -> usize {
    let onion = match class {
        Class::Reply => 1 + ANNEX,
        _ => 1,
    };
    DATA_SIZE - onion - HEADER_SIZE - PAYLOAD_OVERHEAD_SIZE - PASS_HEAD
}

/// An anonymous path to a receiver, for one packet.
#[derive(Clone, PartialEq, Eq)]
pub struct ReceiverPath([u8; PATH_SIZE]);

impl std::fmt::Debug for ReceiverPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReceiverPath(from peer {})", self.entry())
    }
}

impl ReceiverPath {
    /// Encodes the path: epoch modulo 16, number of the first relay (two bytes), label of the route there, header.
    pub fn to_bytes(&self) -> [u8; PATH_SIZE] {
        self.0
    }

    /// Decodes a path. Only its use shows whether it is valid.
    pub(crate) fn from_bytes(bytes: [u8; PATH_SIZE]) -> ReceiverPath {
        ReceiverPath(bytes)
    }

    /// The first relay, the only one that others know.
    pub(crate) fn entry(&self) -> Peer {
        Peer::from_be_bytes([self.0[1], self.0[2]])
    }

    /// The key epoch of the path, modulo 16.
    pub(crate) fn epoch(&self) -> u8 {
        self.0[0]
    }
}

/// Secrets of a receiver path that its owner keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathKeys {
    seeds: Vec<Seed>,
    /// Reads the stamps on a reply; the relay next to the owner first.
    pub annex: AnnexKeys,
}

impl PathKeys {
    /// Makes a path over `relays` (the one next to the receiver last) to `me`. The receiver recognises it by `id`.
    ///
    /// # Panics
    /// If the number of relays is zero or above [`MAX_RELAYS`], or `id` is zero.
    pub(crate) fn draw(
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

    /// The label of cells on this path at the first relay.
    pub(crate) fn label(&self) -> u64 {
        label(&self.seeds[0])
    }

    /// The receiving end of a route along this path.
    pub(crate) fn route(&self) -> Inbound {
        Inbound::new(&self.seeds[..self.seeds.len() - 1])
    }

    /// Reverts the ciphers of the relays.
    fn unwrap(&self, class: Class, payload: &[u8]) -> Option<Vec<u8>> {
        let mut payload = Payload::from_bytes(payload).ok()?;
        for seed in self.seeds.iter().rev() {
            payload = payload.add_encryption_layer(derive_payload_key(seed)).ok()?;
        }
        Some(payload.as_bytes().get(..sealed_size(class))?.to_vec())
    }

    /// Decrypts a message that came over this path with the receiver's secret.
    pub(crate) fn message(&self, secret: &StaticSecret, payload: &[u8]) -> Option<(Message, Session)> {
        let sealed = self.unwrap(Class::Data, payload)?;
        let (key, sealed) = sealed.split_first_chunk::<32>()?;
        let shared = secret.diffie_hellman(&PublicKey::from(*key));
        let plain = unseal(sealed, &seed(shared.as_bytes(), b"message"))?;
        Some((Message::parse(&plain)?, Session::new(shared.as_bytes())))
    }

    /// Decrypts the answer to a message.
    pub(crate) fn answer(&self, session: &Session, payload: &[u8]) -> Option<Message> {
        Message::parse(&unseal(&self.unwrap(Class::Reply, payload)?, &session.answer)?)
    }
}

/// Secrets that both ends of a path share, for the answer and for cells in both directions.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Session {
    answer: Seed,
    /// Key for cells to the receiver. The derived key is stored, since all cells of a route use it.
    pub(crate) up: PayloadKey,
    /// Key for cells from the receiver.
    pub(crate) down: PayloadKey,
}

impl Session {
    pub(crate) fn new(shared: &[u8; 32]) -> Session {
        let cells = |which: &[u8]| derive_payload_key(&seed(shared, which));
        Session { answer: seed(shared, b"answer"), up: cells(b"up"), down: cells(b"down") }
    }
}

/// Contents of a message or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Path for the next packet to its writer.
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

    /// Makes the message's datagram over `relays` and `into`, and the route it leaves.
    ///
    /// `key` is the key of the path's owner. The last of the relays measures the transit time under `token`, unless
    /// it is zero.
    pub(crate) fn send(
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

    /// Encodes an answer into a datagram over `relays` and the path `into` of the message.
    pub(crate) fn reply(
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

/// The command for the last relay of a sender path.
fn passed(token: u64, into: &ReceiverPath, sealed: &[u8]) -> Vec<u8> {
    [&[PASS], &token.to_be_bytes()[..], &into.0, sealed].concat()
}

/// Derives a key for one direction.
fn seed(shared: &[u8; 32], direction: &[u8]) -> Seed {
    let digest = Sha256::new().chain_update(b"tidegate more ").chain_update(direction).chain_update(shared);
    let digest: [u8; 32] = digest.finalize().into();
    *digest.first_chunk().expect("32 bytes")
}

/// Encrypts under a fresh key with Sphinx's wide-block cipher. Leading zeros inside prove integrity.
fn seal(plain: &[u8], seed: &[u8; 16], size: usize) -> Vec<u8> {
    let payload = Payload::encapsulate_message(plain, &[*seed], size).expect("sizes were checked");
    payload.as_bytes().to_vec()
}

fn unseal(sealed: &[u8], seed: &[u8; 16]) -> Option<Vec<u8>> {
    let payload = Payload::from_bytes(sealed).ok()?;
    payload.unwrap(derive_payload_key(seed)).ok()?.recover_plaintext().ok()
}
