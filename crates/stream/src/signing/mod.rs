//! Signed content: the server signs groups of packets, and viewers drop packets that are not of the server.
//!
//! A `Manifest` lists the hashes of some consecutive packets under one Ed25519 signature. It leaves before its packets,
//! along the tree of one slice. A viewer forwards and plays a packet only if a manifest lists it, so a viewer that alters
//! packets reaches its own children, which detect it, and no one below them.
//!
//! * [`Signer`]: the server's side. `verifier`: the viewers' side.

mod signer;
mod verifier;

use bytes::{BufMut as _, Bytes, BytesMut};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};

use crate::packet::{Key, MANIFEST};
pub use signer::Signer;
pub(crate) use verifier::Check;
pub use verifier::SharedChecks;
pub(crate) use verifier::{Added, Held, Verifier};

/// Bytes of a packet's hash in a manifest.
///
/// A forger must find a second packet for a hash within the seconds that a packet is of use, with 2^64 tries. Longer
/// hashes would take more than 1 % of the stream.
const HASH: usize = 8;
/// Groups under one signature. Fewer would cost more than 1 % of the bytes.
const GROUPS: u32 = 4;
/// Maximum number of packets of a manifest, so that it fits a datagram.
const MOST: usize = 128;
const HEAD: usize = 1 + 4 + 1 + 1 + 1;
const SIGNATURE: usize = 64;
/// Keeps these signatures apart from others by the same key.
const CONTEXT: &[u8] = b"tidegate-stream manifest 1";

type Hash = [u8; HASH];

/// The hash of an encoded packet.
fn hash(packet: &[u8]) -> Hash {
    let whole: [u8; 32] = Sha256::digest(packet).into();
    let (hash, _) = whole.split_first_chunk().expect("32 bytes are more than 8");
    *hash
}

/// The signed hashes of consecutive packets.
#[derive(Debug, PartialEq)]
pub(crate) struct Manifest {
    /// The first packet.
    pub start: Key,
    /// The slice; its tree carries the manifest.
    pub tree: u8,
    /// Number of slices, including parity.
    total: u8,
    hashes: Vec<Hash>,
    encoded: Bytes,
}

impl Manifest {
    /// Signs the hashes of packets from `start` on. Packets that are not sent have a hash of zeros.
    fn sign(key: &SigningKey, start: Key, tree: u8, total: usize, hashes: Vec<Hash>) -> Manifest {
        let mut out = BytesMut::with_capacity(HEAD + hashes.len() * HASH + SIGNATURE);
        out.put_u8(MANIFEST);
        out.put_u32(start.group);
        out.put_slice(&[start.slice, tree, total as u8]);
        hashes.iter().for_each(|hash| out.put_slice(hash));
        let signature = key.sign(&[CONTEXT, &out].concat());
        out.put_slice(&signature.to_bytes());
        Manifest { start, tree, total: total as u8, hashes, encoded: out.freeze() }
    }

    /// Reads a manifest without checking its signature; `None` if it is malformed.
    fn read(encoded: &Bytes) -> Option<Manifest> {
        let (head, rest) = encoded.split_first_chunk::<HEAD>()?;
        let (hashes, _) = rest.split_last_chunk::<SIGNATURE>()?;
        let [kind, a, b, c, d, slice, tree, total] = *head;
        let sound = kind == MANIFEST
            && hashes.len() % HASH == 0
            && (1..=MOST).contains(&(hashes.len() / HASH))
            && slice < total
            && tree < total
            && usize::from(total) <= crate::MAX_SLICES;
        let hashes = hashes.chunks_exact(HASH).map(|hash| hash.try_into().expect("chunks are exact"));
        sound.then(|| Manifest {
            start: Key { group: u32::from_be_bytes([a, b, c, d]), slice },
            tree,
            total,
            hashes: hashes.collect(),
            encoded: encoded.clone(),
        })
    }

    /// Whether the signature is by this key.
    fn is_by(&self, key: &VerifyingKey) -> bool {
        let Some((signed, signature)) = self.encoded.split_last_chunk::<SIGNATURE>() else { return false };
        key.verify_strict(&[CONTEXT, signed].concat(), &Signature::from_bytes(signature)).is_ok()
    }

    /// The manifest as a datagram.
    pub(crate) fn encoded(&self) -> &Bytes {
        &self.encoded
    }

    /// The hash that is listed for a packet, if any.
    fn hash_of(&self, key: Key) -> Option<&Hash> {
        let groups = usize::try_from(key.group.checked_sub(self.start.group)?).ok()?;
        let at = (groups.checked_mul(usize::from(self.total))? + usize::from(key.slice))
            .checked_sub(usize::from(self.start.slice))?;
        self.hashes.get(at).filter(|_| key.slice < self.total)
    }

    /// The last group that it lists.
    fn last_group(&self) -> u32 {
        let last = usize::from(self.start.slice) + self.hashes.len() - 1;
        self.start.group.saturating_add((last / usize::from(self.total)) as u32)
    }
}

#[cfg(test)]
mod tests;
