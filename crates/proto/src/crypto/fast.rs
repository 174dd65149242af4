//! CREATE_FAST (tor-spec, "CREATE_FAST/CREATED_FAST cells" and "KDF-TOR"): a key exchange between a
//! client and its guard without public keys: TLS alone protects it. Keys are SHA-1 of both sides' random bytes and a
//! counter.

use sha1::{Digest as _, Sha1};

use super::ntor::HopKeys;

/// Random bytes of each side.
pub const HALF: usize = 20;

/// Derives the keys from both halves, and the digest that proves to the client that the relay has them.
pub fn derive(client: &[u8; HALF], relay: &[u8; HALF]) -> (HopKeys, [u8; HALF]) {
    let block = |n: u8| -> [u8; 20] { Sha1::digest([&client[..], relay, &[n]].concat()).into() };
    let stream: Vec<u8> = (0..5).flat_map(block).collect();
    let proof = block(0);
    let keys = HopKeys {
        forward_digest: stream[20..40].try_into().expect("20 bytes"),
        backward_digest: stream[40..60].try_into().expect("20 bytes"),
        forward: stream[60..76].try_into().expect("16 bytes"),
        backward: stream[76..92].try_into().expect("16 bytes"),
        binding: proof,
    };
    (keys, proof)
}
