//! Test authorities: certificates and a signed consensus as Tor's authorities make them.
//!
//! See dir-spec, "Key certificates" and "Signing the document". They serve networks on one machine and tests;
//! [`authority`](crate::authority) verifies them.

use std::ops::Range;

use rsa::pkcs1::EncodeRsaPublicKey as _;
use rsa::rand_core::{CryptoRng, Error, RngCore};
use rsa::{Pkcs1v15Sign, RsaPrivateKey, RsaPublicKey};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use tidegate_control::flashflow::bandwidth_file::iso;
use tidegate_control::random::Random;

use crate::consensus::RouterStatus;
use crate::identity::{Identity, to_base64};

/// Length of keys: fast to generate, and sufficient for a test network.
const BITS: usize = 1024;

/// Keys of a test authority. They derive from a seed, so they are not secret.
#[derive(Debug)]
pub struct Authority {
    identity: RsaPrivateKey,
    signing: RsaPrivateKey,
}

impl Authority {
    /// Draws the keys.
    pub fn draw(random: &mut Random) -> Authority {
        let mut key =
            || RsaPrivateKey::new(&mut Drawn(random), BITS).expect("a key of this size can be made");
        Authority { identity: key(), signing: key() }
    }

    /// The digest of its identity key.
    pub fn identity(&self) -> Identity {
        Identity(Sha1::digest(der(&self.identity.to_public_key())).into())
    }

    /// Makes its certificate for a range of Unix time.
    pub fn certificate(&self, valid: Range<u64>) -> String {
        let key = |key: &RsaPrivateKey| armour("RSA PUBLIC KEY", &der(&key.to_public_key()));
        let crossed = sign(&self.signing, &self.identity().0);
        let signed = format!(
            "dir-key-certificate-version 3\nfingerprint {}\ndir-key-published {}\ndir-key-expires {}\n\
             dir-identity-key\n{}dir-signing-key\n{}dir-key-crosscert\n{}dir-key-certification\n",
            self.identity(),
            calendar(valid.start),
            calendar(valid.end),
            key(&self.identity),
            key(&self.signing),
            armour("ID SIGNATURE", &crossed),
        );
        let certification = sign(&self.identity, &Sha1::digest(&signed));
        signed + &armour("SIGNATURE", &certification)
    }

    fn signature(&self, digest: &[u8]) -> String {
        let key = Identity(Sha1::digest(der(&self.signing.to_public_key())).into());
        let signature = armour("SIGNATURE", &sign(&self.signing, digest));
        format!("directory-signature sha256 {} {key}\n{signature}", self.identity())
    }
}

/// Makes a consensus of these relays, signed by all authorities.
///
/// Its flavour is microdesc if a relay has a microdescriptor.
pub fn consensus(
    valid_after: u64,
    shared_random: &[u8; 32],
    relays: &[RouterStatus],
    authorities: &[Authority],
) -> String {
    let mut relays: Vec<&RouterStatus> = relays.iter().collect();
    relays.sort_by_key(|relay| relay.identity);
    let microdesc = relays.iter().any(|relay| relay.microdescriptor.is_some());
    let mut text = format!(
        "network-status-version 3{}\nvote-status consensus\nconsensus-method 33\nvalid-after {}\nfresh-until {}\n\
         valid-until {}\nvoting-delay 300 300\nknown-flags Exit Fast Guard Running Stable Valid\n\
         shared-rand-current-value 9 {}\n",
        if microdesc { " microdesc" } else { "" },
        calendar(valid_after),
        calendar(valid_after + 3600),
        calendar(valid_after + 3 * 3600),
        to_base64(shared_random) + "=",
    );
    for relay in relays {
        let RouterStatus { nickname, address, or_port, bandwidth, .. } = relay;
        let identity = to_base64(&relay.identity.0);
        // Only the `ns` flavour has a descriptor digest in its `r` line. Its value is not used.
        let digest = if microdesc { "" } else { "AAAAAAAAAAAAAAAAAAAAAAAAAAA " };
        let published = calendar(valid_after);
        text += &format!("r {nickname} {identity} {digest}{published} {address} {or_port} 0\n");
        if let Some(digest) = &relay.microdescriptor {
            text += &format!("m {}\n", to_base64(digest));
        }
        text += &format!("s {}\n", relay.flags.names().collect::<Vec<_>>().join(" "));
        text += &format!("w Bandwidth={bandwidth}\n");
    }
    text += "directory-footer\n";
    let digest = Sha256::digest(format!("{text}directory-signature "));
    authorities.iter().for_each(|authority| text += &authority.signature(&digest));
    text
}

fn sign(key: &RsaPrivateKey, digest: &[u8]) -> Vec<u8> {
    key.sign(Pkcs1v15Sign::new_unprefixed(), digest).expect("a digest is shorter than the key")
}

fn der(key: &RsaPublicKey) -> Vec<u8> {
    key.to_pkcs1_der().expect("a public key can be written").into_vec()
}

fn calendar(unix: u64) -> String {
    iso(unix).replace('T', " ")
}

fn armour(kind: &str, bytes: &[u8]) -> String {
    let mut text = to_base64(bytes);
    text += &"=".repeat((4 - text.len() % 4) % 4);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect::<Vec<_>>().join("\n");
    format!("-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n")
}

/// Adapts the generator to the traits of the RSA crate.
struct Drawn<'a>(&'a mut Random);

impl RngCore for Drawn<'_> {
    fn next_u32(&mut self) -> u32 {
        self.0.bits() as u32
    }
    fn next_u64(&mut self) -> u64 {
        self.0.bits()
    }
    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(32).for_each(|part| part.copy_from_slice(&self.0.bytes()[..part.len()]));
    }
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

impl CryptoRng for Drawn<'_> {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tidegate_control::random::Seed;

    use super::*;
    use crate::authority::Certificates;
    use crate::consensus::{Flags, read, shared_random};
    use crate::document::Document;

    #[test]
    fn signed_documents_are_verified() {
        let mut random = Seed::root(1).random();
        let authorities = [Authority::draw(&mut random), Authority::draw(&mut random)];
        let relay = |n: u8, digest: Option<u8>| RouterStatus {
            nickname: format!("r{n}"),
            identity: Identity([n; 20]),
            address: [192, 0, 2, n].into(),
            or_port: 9001,
            flags: Flags::from_names(["Running", "Fast"]),
            version: None,
            bandwidth: 77,
            unmeasured: false,
            ports: None,
            microdescriptor: digest.map(|byte| [byte; 32]),
        };
        let mut certificates = Certificates::default();
        for authority in &authorities {
            let text = authority.certificate(999_000..2_000_000);
            certificates.read(&Document::new("certificates", text).unwrap()).unwrap();
        }
        let trusted: BTreeSet<Identity> = authorities.iter().map(Authority::identity).collect();
        for relays in [[relay(9, None), relay(2, None)], [relay(9, Some(1)), relay(2, Some(2))]] {
            let text = consensus(1_000_000, &[7; 32], &relays, &authorities);
            let document = Document::new("consensus", text.clone()).unwrap();
            let read = read(&document).unwrap();
            assert_eq!((read.valid_after, read.relays.len()), (1_000_000, 2));
            assert_eq!(shared_random(&document), Some([7; 32]));
            assert!(read.relays.iter().rev().eq(&relays), "{:?}", read.relays);
            assert_eq!(certificates.verify(&document, 1_000_000, &trusted).unwrap().len(), 2);
            assert!(certificates.verify(&document, 2_000_000, &trusted).is_err(), "the keys are over");
            let forged = Document::new("consensus", text.replace("Bandwidth=77", "Bandwidth=78")).unwrap();
            assert!(certificates.verify(&forged, 1_000_000, &trusted).is_err());
        }
    }
}
