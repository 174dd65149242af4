//! RSA keys of Tor: 1024-bit identity and onion keys, and keys of TLS certificates.

use rsa::pkcs1::{
    DecodeRsaPrivateKey as _, DecodeRsaPublicKey as _, EncodeRsaPrivateKey as _, EncodeRsaPublicKey as _,
};
use rsa::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _};
use rsa::rand_core::{CryptoRng, Error, RngCore};
use rsa::traits::PublicKeyParts as _;
use rsa::{Pkcs1v15Sign, RsaPrivateKey, RsaPublicKey};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::der;

/// DigestInfo of SHA-256 (RFC 8017).
const SHA256_INFO: [u8; 19] =
    [0x30, 0x31, 0x30, 0x0d, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1, 5, 0, 4, 0x20];
/// Bits of an identity or an old onion key, and of a TLS key.
pub(super) const BITS: usize = 1024;
const TLS_BITS: usize = 2048;

/// A certificate or key is invalid; the text says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Adapts a function that fills memory to the RSA crate's interface for randomness.
struct Filled<'a>(&'a mut dyn FnMut(&mut [u8]));

impl RngCore for Filled<'_> {
    fn next_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        (self.0)(&mut bytes);
        u32::from_le_bytes(bytes)
    }
    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        (self.0)(&mut bytes);
        u64::from_le_bytes(bytes)
    }
    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        (self.0)(bytes);
    }
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        (self.0)(bytes);
        Ok(())
    }
}

impl CryptoRng for Filled<'_> {}

/// Generates an identity or onion key.
pub(super) fn draw(fill: &mut dyn FnMut(&mut [u8])) -> RsaPrivateKey {
    RsaPrivateKey::new(&mut Filled(fill), BITS).expect("a key of this size can be made")
}

/// Parses an identity or onion key from PKCS #1.
pub(super) fn read(der: &[u8]) -> Result<RsaPrivateKey, Invalid> {
    match RsaPrivateKey::from_pkcs1_der(der) {
        Ok(key) if key.size() * 8 == BITS => Ok(key),
        _ => Err(Invalid("an RSA key is not a PKCS #1 key of 1024 bits")),
    }
}

/// Encodes a key in PKCS #1.
pub(super) fn write(key: &RsaPrivateKey) -> Zeroizing<Vec<u8>> {
    let der = key.to_pkcs1_der().expect("a private key can be written");
    Zeroizing::new(der.as_bytes().to_vec())
}

/// Encodes the public half in PKCS #1.
pub(super) fn public(key: &RsaPrivateKey) -> Vec<u8> {
    key.to_public_key().to_pkcs1_der().expect("a public key can be written").into_vec()
}

/// Signs a digest with PKCS #1 padding and without a DigestInfo.
pub(super) fn sign(key: &RsaPrivateKey, digest: &[u8]) -> Vec<u8> {
    key.sign(Pkcs1v15Sign::new_unprefixed(), digest).expect("a digest is shorter than the key")
}

/// Whether an identity, in PKCS #1, signed a digest as `sign` does.
pub fn verifies(identity: &[u8], digest: &[u8], signature: &[u8]) -> bool {
    RsaPublicKey::from_pkcs1_der(identity).is_ok_and(|key| {
        key.size() * 8 == BITS && key.verify(Pkcs1v15Sign::new_unprefixed(), digest, signature).is_ok()
    })
}

/// Signature scheme of X.509 certificates.
pub(super) fn scheme() -> Pkcs1v15Sign {
    Pkcs1v15Sign { hash_len: Some(32), prefix: SHA256_INFO.into() }
}

/// A self-signed X.509 certificate of the key.
pub(super) fn self_signed(key: &RsaPrivateKey) -> Vec<u8> {
    let info = key.to_public_key().to_public_key_der().expect("a public key can be written");
    let signed = der::to_be_signed(1, ["200101000000Z", "491231235959Z"], info.as_bytes());
    let digest: [u8; 32] = Sha256::digest(&signed).into();
    let signature = key.sign(scheme(), &digest).expect("a digest is shorter than the key");
    der::certificate(&signed, &signature)
}

/// Generates a TLS certificate and its key in PKCS #8. The key is RSA as tor's own: tor rejects other keys with
/// `expecting an rsa key`.
pub fn tls_identity(fill: &mut dyn FnMut(&mut [u8])) -> (Vec<u8>, Zeroizing<Vec<u8>>) {
    let key = RsaPrivateKey::new(&mut Filled(fill), TLS_BITS).expect("a key of this size can be made");
    let secret = key.to_pkcs8_der().expect("a private key can be written");
    (self_signed(&key), Zeroizing::new(secret.as_bytes().to_vec()))
}
