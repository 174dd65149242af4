//! Family keys (proposal 321): relays of one operator prove with certificates of a common key that they are a family.

use ed25519_dalek::VerifyingKey;
use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use sha2::Sha512;

use super::cert::{self, ED25519};
use super::rsa_keys::Invalid;

/// Certificate type: family key -> Ed25519 identity (cert-spec, `FAMILY_V_IDENTITY`).
const FAMILY: u8 = 12;
/// The head of the file that `tor --keygen-family` writes. The expanded secret key follows.
const HEAD: &[u8; 32] = b"== ed25519v1-secret: fmly-id ==\0";
/// Lifetime of a certificate, seconds. Each descriptor has a new one. Source: tor 0.4.9's descriptors.
const CERTIFIED: u64 = 30 * 24 * 3600;

/// The secret key of a family.
pub struct FamilyKey {
    secret: ExpandedSecretKey,
    public: VerifyingKey,
}

impl FamilyKey {
    /// Reads the contents of a `.secret_family_key` of tor.
    ///
    /// # Errors
    /// If it is not such a file.
    pub fn from_file(contents: &[u8]) -> Result<FamilyKey, Invalid> {
        let wrong = Invalid("is not a file of `tor --keygen-family`");
        let (head, secret) = contents.split_first_chunk::<32>().ok_or(wrong)?;
        let secret: &[u8; 64] = secret.try_into().map_err(|_| wrong)?;
        if head != HEAD {
            return Err(wrong);
        }
        let secret = ExpandedSecretKey::from_bytes(secret);
        let public = VerifyingKey::from(&secret);
        Ok(FamilyKey { secret, public })
    }

    /// The family's name: the public key.
    pub fn public(&self) -> [u8; 32] {
        self.public.to_bytes()
    }

    /// Certifies at `now`, in seconds since 1970, that a relay with this Ed25519 identity belongs to the family.
    pub fn certify(&self, identity: &[u8; 32], now: u64) -> Vec<u8> {
        let body = cert::body(FAMILY, ED25519, identity, now + CERTIFIED, Some(&self.public()));
        let signature = raw_sign::<Sha512>(&self.secret, &body, &self.public);
        [&body[..], &signature.to_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// A secret key that tor 0.4.9.11 generated.
    fn file() -> Vec<u8> {
        let secret = "1835a58d9d2e4ae7c02ef87578fa70e439c8d379ce72b9a2a9efd12826508a69\
            7bbbb49c8eddff8902d92774cc1f4d340248f75df04fad502c865a598d72b630";
        [&HEAD[..], &bytes(secret)].concat()
    }

    /// The certificate in the descriptor of a relay of tor 0.4.9.11 with that key, published on 2026-11-26 16:50:25.
    #[test]
    fn certificates_are_those_of_tor() {
        let family = FamilyKey::from_file(&file()).unwrap();
        let public = "c111681fa8e9ad4305d8ec01b6f124ea8c40c3a527745cdbfe4068bc070d4766";
        assert_eq!(family.public().to_vec(), bytes(public));
        let identity = "1d78c053640ea17a28e2fa375c58b01415b0d851602c1a6c5090e77d646e88ca";
        let of_tor = "010c00079f49011d78c053640ea17a28e2fa375c58b01415b0d851602c1a6c5090e77d646e88ca0100200400\
            c111681fa8e9ad4305d8ec01b6f124ea8c40c3a527745cdbfe4068bc070d47667906487f20a71811\
            59d1287eaac9d8e95b88919fe34b9552130f65ebf778b10dc6c58e37576a5926c11ca3ff8039a94d\
            0492e0af4b0b61f78b852833f621f70e";
        let ours = family.certify(&bytes(identity).try_into().unwrap(), 1_795_711_825);
        assert_eq!(ours, bytes(of_tor));
        assert_eq!(cert::certified(&ours, FAMILY, 1_795_711_825).unwrap().1, family.public());
    }

    #[test]
    fn other_files_are_refused() {
        let file = file();
        let other = [b"== ed25519v1-secret: type0 ==\0\0\0", &file[32..]].concat();
        for bad in [&file[..95], &[&file[..], b"x"].concat(), b"", &other] {
            assert!(FamilyKey::from_file(bad).is_err(), "{} bytes", bad.len());
        }
    }
}
