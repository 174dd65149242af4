//! The ntor-v3 handshake (proposal 332): like [`ntor`](super::ntor), but with the relay's Ed25519 identity
//! and with an encrypted message from each side: the client requests properties of the circuit, the relay grants them.

use aes::Aes256;
use ctr::cipher::{KeyIvInit as _, StreamCipher as _};
use sha3::digest::{ExtendableOutput as _, Update as _, XofReader as _};
use sha3::{Digest as _, Sha3_256, Shake256};
use subtle::ConstantTimeEq as _;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};
use zeroize::Zeroizing;

use super::cgo;
use super::ntor::{HopKeys, NtorError};

const PROTOCOL: &[u8] = b"ntor3-curve25519-sha3_256-1";
/// Verification string of the use "circuit extension" (proposal 332).
const VERIFICATION: &[u8] = b"circuit extend";
/// Identity, onion key, ephemeral key in front of the client's message, and the MAC behind it.
const HEAD: usize = 96;
const MAC: usize = 32;

/// Public keys of a relay, as a client knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Public {
    /// The Ed25519 identity.
    pub identity: [u8; 32],
    /// The onion key `B`.
    pub onion: [u8; 32],
}

fn tweak(what: &str) -> Vec<u8> {
    [PROTOCOL, b":", what.as_bytes()].concat()
}

/// Appends a byte string behind its length.
fn encapsulate(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_be_bytes(), bytes].concat()
}

fn hash(bytes: &[u8], what: &str) -> [u8; 32] {
    Sha3_256::digest([encapsulate(&tweak(what)), bytes.to_vec()].concat()).into()
}

fn expand<const N: usize>(bytes: &[u8], what: &str) -> [u8; N] {
    let mut shake = Shake256::default();
    shake.update(&encapsulate(&tweak(what)));
    shake.update(bytes);
    let mut out = [0; N];
    shake.finalize_xof().read(&mut out);
    out
}

fn encrypt(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    let key: &[u8; 32] = key.try_into().expect("32 bytes");
    ctr::Ctr128BE::<Aes256>::new(key.into(), &[0; 16].into()).apply_keystream(&mut bytes);
    bytes
}

fn exchange(secret: &[u8; 32], public: &[u8; 32]) -> Result<[u8; 32], NtorError> {
    let shared = x25519(*secret, *public);
    if shared == [0; 32] { Err(NtorError::Rejected) } else { Ok(shared) }
}

/// Keys of the client's message: encryption key and MAC key.
fn first_keys(bx: &[u8; 32], relay: &Public, client: &[u8; 32]) -> [u8; 64] {
    let input = [&bx[..], &relay.identity, client, &relay.onion, PROTOCOL, &encapsulate(VERIFICATION)];
    expand(&input.concat(), "kdf_phase1")
}

fn first_mac(key: &[u8], relay: &Public, client: &[u8; 32], encrypted: &[u8]) -> [u8; MAC] {
    let said = [&encapsulate(key), &relay.identity[..], &relay.onion, client, encrypted].concat();
    hash(&said, "msg_mac")
}

/// Bytes of key material: both directions of Counter Galois Onion and the binding.
const MATERIAL: usize = 2 * cgo::SEED + BINDING;
/// Bytes that prove knowledge of a circuit's keys.
const BINDING: usize = 20;

/// Key material of a hop. The parties use a part of it, as they have agreed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeyMaterial(Zeroizing<[u8; MATERIAL]>);

/// Keys of a hop under Counter Galois Onion.
pub(crate) struct CgoKeys {
    /// Key material of the direction away from the client.
    pub forward: Zeroizing<[u8; cgo::SEED]>,
    /// Key material of the direction to the client.
    pub backward: Zeroizing<[u8; cgo::SEED]>,
    /// As [`HopKeys::binding`].
    pub binding: [u8; BINDING],
}

impl KeyMaterial {
    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("the material is longer")
    }

    /// The keys of layers of AES-CTR and SHA-1.
    pub(crate) fn hop(&self) -> HopKeys {
        HopKeys {
            forward_digest: self.part(0),
            backward_digest: self.part(20),
            forward: self.part(40),
            backward: self.part(56),
            binding: self.part(72),
        }
    }

    /// The keys of layers of Counter Galois Onion.
    pub(crate) fn cgo(&self) -> CgoKeys {
        CgoKeys {
            forward: Zeroizing::new(self.part(0)),
            backward: Zeroizing::new(self.part(cgo::SEED)),
            binding: self.part(2 * cgo::SEED),
        }
    }
}

/// Result of the handshake, the same on both sides.
struct Shared {
    message_key: [u8; 32],
    material: KeyMaterial,
    verify: [u8; 32],
}

fn derive(yx: &[u8; 32], bx: &[u8; 32], relay: &Public, client: &[u8; 32], server: &[u8; 32]) -> Shared {
    let input =
        [&yx[..], bx, &relay.identity, &relay.onion, client, server, PROTOCOL, &encapsulate(VERIFICATION)]
            .concat();
    let stream = Zeroizing::new(expand::<{ 32 + MATERIAL }>(&hash(&input, "key_seed"), "kdf_final"));
    let (message_key, material) = stream.split_first_chunk().expect("it is longer than 32 bytes");
    let material = KeyMaterial(Zeroizing::new(material.try_into().expect("32 bytes are split off")));
    Shared { message_key: *message_key, material, verify: hash(&input, "verify") }
}

fn authenticate(
    shared: &Shared,
    relay: &Public,
    ends: [&[u8; 32]; 2],
    mac: &[u8; MAC],
    encrypted: &[u8],
) -> [u8; 32] {
    let [client, server] = ends;
    let input = [
        &shared.verify[..],
        &relay.identity,
        &relay.onion,
        server,
        client,
        mac,
        &encapsulate(encrypted),
        PROTOCOL,
        b"Server",
    ];
    hash(&input.concat(), "auth_final")
}

/// Compares two byte strings in constant time.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

/// A client that waits for the relay's reply.
pub struct ClientHandshake {
    relay: Public,
    ephemeral: [u8; 32],
    public: [u8; 32],
    bx: [u8; 32],
    mac: [u8; MAC],
}

impl ClientHandshake {
    /// Begins with a fresh random secret and a message. The onion skin goes into a CREATE2 cell. `None` if the
    /// relay's key is of low order.
    pub(crate) fn start(
        relay: Public,
        ephemeral: [u8; 32],
        message: &[u8],
    ) -> Option<(ClientHandshake, Vec<u8>)> {
        let public = x25519(ephemeral, X25519_BASEPOINT_BYTES);
        let bx = exchange(&ephemeral, &relay.onion).ok()?;
        let keys = first_keys(&bx, &relay, &public);
        let encrypted = encrypt(&keys[..32], message);
        let mac = first_mac(&keys[32..], &relay, &public, &encrypted);
        let skin = [&relay.identity[..], &relay.onion, &public, &encrypted, &mac].concat();
        Some((ClientHandshake { relay, ephemeral, public, bx, mac }, skin))
    }

    /// Checks the relay's reply. Returns the keys and the relay's message.
    ///
    /// # Errors
    /// [`NtorError::Rejected`] if the sender of the reply does not hold the onion key.
    pub(crate) fn finish(self, reply: &[u8]) -> Result<(KeyMaterial, Vec<u8>), NtorError> {
        let (server, rest) = reply.split_first_chunk::<32>().ok_or(NtorError::Rejected)?;
        let (proof, encrypted) = rest.split_first_chunk::<32>().ok_or(NtorError::Rejected)?;
        let yx = exchange(&self.ephemeral, server)?;
        let shared = derive(&yx, &self.bx, &self.relay, &self.public, server);
        let expected = authenticate(&shared, &self.relay, [&self.public, server], &self.mac, encrypted);
        if !same(&expected, proof) {
            return Err(NtorError::Rejected);
        }
        let message = encrypt(&shared.message_key, encrypted);
        Ok((shared.material, message))
    }
}

/// The relay's side: answers an onion skin with a fresh random secret. `grant` maps the client's message to the
/// relay's; `None` if the client asks for what the relay does not support.
///
/// # Errors
/// If the onion skin is for another relay or onion key, or was modified, or if `grant` refuses.
pub(crate) fn answer(
    relay: &Public,
    onion: &[u8; 32],
    skin: &[u8],
    ephemeral: &[u8; 32],
    grant: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
) -> Result<(KeyMaterial, Vec<u8>), NtorError> {
    let (head, rest) = skin.split_first_chunk::<HEAD>().ok_or(NtorError::Rejected)?;
    let (encrypted, mac) = rest.split_last_chunk::<MAC>().ok_or(NtorError::Rejected)?;
    if head[..32] != relay.identity || head[32..64] != relay.onion {
        return Err(NtorError::WrongRelay);
    }
    let client: [u8; 32] = head[64..].try_into().expect("96 - 64 = 32");
    let bx = exchange(onion, &client)?;
    let keys = first_keys(&bx, relay, &client);
    // The MAC covers the client's message: check it before decryption (proposal 332).
    if !same(&first_mac(&keys[32..], relay, &client, encrypted), mac) {
        return Err(NtorError::Rejected);
    }
    let message = encrypt(&keys[..32], encrypted);
    let server = x25519(*ephemeral, X25519_BASEPOINT_BYTES);
    let yx = exchange(ephemeral, &client)?;
    let shared = derive(&yx, &bx, relay, &client, &server);
    let said = encrypt(&shared.message_key, &grant(&message).ok_or(NtorError::Unsupported)?);
    let proof = authenticate(&shared, relay, [&client, &server], mac, &said);
    Ok((shared.material, [&server[..], &proof, &said].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_derive_the_same_keys_and_hear_each_other() {
        let onion = [7; 32];
        let relay = Public { identity: [3; 32], onion: x25519(onion, X25519_BASEPOINT_BYTES) };
        let (client, skin) = ClientHandshake::start(relay, [9; 32], b"please").unwrap();
        let grant = |asked: &[u8]| {
            assert_eq!(asked, b"please");
            Some(b"granted".to_vec())
        };
        let (theirs, reply) = answer(&relay, &onion, &skin, &[5; 32], grant).unwrap();
        let (ours, said) = client.finish(&reply).unwrap();
        assert!(ours == theirs);
        assert_eq!(said, b"granted");
        let refused = answer(&relay, &onion, &skin, &[5; 32], |_| None);
        assert_eq!(refused.err(), Some(NtorError::Unsupported));
    }

    #[test]
    fn a_changed_byte_anywhere_is_refused() {
        let onion = [7; 32];
        let relay = Public { identity: [3; 32], onion: x25519(onion, X25519_BASEPOINT_BYTES) };
        let start = || ClientHandshake::start(relay, [9; 32], b"please").unwrap();
        let (_, skin) = start();
        let (_, reply) = answer(&relay, &onion, &skin, &[5; 32], |_| Some(b"granted".to_vec())).unwrap();
        for at in 0..skin.len() {
            let mut changed = skin.clone();
            changed[at] ^= 1;
            assert!(answer(&relay, &onion, &changed, &[5; 32], |_| Some(Vec::new())).is_err(), "byte {at}");
        }
        for at in 0..reply.len() {
            let mut changed = reply.clone();
            changed[at] ^= 1;
            assert!(start().0.finish(&changed).is_err(), "byte {at}");
        }
        assert!(answer(&relay, &onion, &skin[..100], &[5; 32], |_| Some(Vec::new())).is_err());
    }
}
