//! A router's keys and certificates (tor-spec, "Certificate and CERTS cell"; cert-spec): the RSA identity behind
//! its fingerprint, its Ed25519 identity, and the short-lived keys that the Ed25519 identity certifies.

use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use rsa::pkcs1::EncodeRsaPublicKey as _;
use rsa::pkcs8::DecodePublicKey as _;
use rsa::traits::PublicKeyParts as _;
use rsa::{Pkcs1v15Sign, RsaPrivateKey, RsaPublicKey};
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha512};
use zeroize::Zeroizing;

use super::der;
use super::lifetimes::{KeyLifetimes, seconds};
use super::onion_keys::{OnionKey, OnionKeys, array};
use super::rsa_keys::{self, Invalid};

/// SHA-256 of a TLS certificate, which identifies the other end of a connection.
pub type Fingerprint = [u8; 32];

/// Certificate types: RSA identity, Ed25519 identity -> signing key, signing key -> TLS certificate, signing key ->
/// link authentication key, RSA identity -> Ed25519 identity, onion key -> Ed25519 identity.
pub(crate) const RSA_IDENTITY: u8 = 2;
/// See [`RSA_IDENTITY`].
pub(crate) const SIGNING: u8 = 4;
/// See [`RSA_IDENTITY`].
pub(crate) const LINK: u8 = 5;
/// See [`RSA_IDENTITY`].
pub(crate) const AUTH: u8 = 6;
/// See [`RSA_IDENTITY`].
pub(crate) const CROSS: u8 = 7;
/// Certificate type: a service's blinded key -> the key that signs its descriptor (rend-spec-v3).
pub const ONION_DESCRIPTOR: u8 = 8;
/// See [`RSA_IDENTITY`].
pub(crate) const ONION: u8 = 10;
/// Type of the certified key: an Ed25519 key, or the SHA-256 of an X.509 certificate.
pub(super) const ED25519: u8 = 1;
const X509: u8 = 3;
/// The extension that holds the signing key.
const SIGNED_WITH: u8 = 4;
const CROSS_PREFIX: &[u8] = b"Tor TLS RSA/Ed25519 cross-certificate";
const HOUR: u64 = 3600;
/// Lifetime of an onion key's cross-certificate. It outlasts the next descriptor by far.
const CROSSED: u64 = 30 * 24 * HOUR;

/// A router's long-term secrets: its identity, which never changes, and its onion keys.
pub struct RouterKeys {
    rsa: RsaPrivateKey,
    identity: SigningKey,
    onion: OnionKeys,
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

impl RouterKeys {
    /// Generates keys. `fill` fills memory with random bytes.
    pub fn generate(fill: &mut dyn FnMut(&mut [u8])) -> RouterKeys {
        let mut identity = Zeroizing::new([0; 32]);
        fill(&mut identity[..]);
        let onion = OnionKeys::new(OnionKey::generate(fill));
        RouterKeys { rsa: rsa_keys::draw(fill), identity: SigningKey::from_bytes(&identity), onion }
    }

    /// The identity as bytes for storage: RSA in PKCS #1, then Ed25519.
    pub fn to_bytes(&self) -> [Zeroizing<Vec<u8>>; 2] {
        [rsa_keys::write(&self.rsa), Zeroizing::new(self.identity.to_bytes().to_vec())]
    }

    /// Restores the identity from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// If the bytes are not valid keys.
    pub fn from_bytes(identity: [&[u8]; 2], onion: OnionKeys) -> Result<RouterKeys, Invalid> {
        let [rsa, ed25519] = identity;
        let identity = SigningKey::from_bytes(&array(ed25519)?);
        Ok(RouterKeys { rsa: rsa_keys::read(rsa)?, identity, onion })
    }

    /// SHA-1 of the RSA identity: the router's fingerprint.
    pub fn fingerprint(&self) -> [u8; 20] {
        Sha1::digest(rsa_keys::public(&self.rsa)).into()
    }

    /// The Ed25519 identity.
    pub fn ed25519(&self) -> [u8; 32] {
        self.identity.verifying_key().to_bytes()
    }

    /// The onion keys.
    pub fn onion_keys(&self) -> &OnionKeys {
        &self.onion
    }

    /// Replaces the onion keys.
    pub fn set_onion_keys(&mut self, onion: OnionKeys) {
        self.onion = onion;
    }

    /// Public half of the announced ntor onion key.
    pub fn onion(&self) -> [u8; 32] {
        self.onion.current().ntor()[1]
    }

    /// Public keys of the RSA identity and of the TAP onion key, in PKCS #1.
    pub fn rsa_public(&self) -> [Vec<u8>; 2] {
        [rsa_keys::public(&self.rsa), rsa_keys::public(&self.onion.current().tap)]
    }

    /// Signs with the RSA identity as dir-spec signs descriptors: PKCS #1 padding without a DigestInfo.
    pub fn sign_rsa(&self, digest: &[u8]) -> Vec<u8> {
        rsa_keys::sign(&self.rsa, digest)
    }

    /// Signs with the Ed25519 identity.
    pub fn sign_ed25519(&self, message: &[u8]) -> [u8; 64] {
        self.identity.sign(message).to_bytes()
    }

    /// Signature of the TAP onion key over both identities (dir-spec, `onion-key-crosscert`).
    pub fn tap_cross_certificate(&self) -> Vec<u8> {
        rsa_keys::sign(&self.onion.current().tap, &[&self.fingerprint()[..], &self.ed25519()].concat())
    }

    /// Certificate of the Ed25519 identity by the ntor onion key, and the sign bit of that key as an Ed25519 key.
    pub fn onion_cross_certificate(&self, now: u64) -> (Vec<u8>, u8) {
        let secret = ExpandedSecretKey::from_bytes(&self.onion.current().ntor.expanded());
        let public = VerifyingKey::from(&secret);
        let sign = |body: &[u8]| raw_sign::<Sha512>(&secret, body, &public);
        let body = body(ONION, ED25519, &self.ed25519(), now + CROSSED, None);
        ([&body[..], &sign(&body).to_bytes()].concat(), public.to_bytes()[31] >> 7)
    }

    /// Certifies the short-lived keys: a signing key, and with it, until `link_until` (seconds since 1970), the TLS
    /// certificate and a fresh key for AUTHENTICATE, generated from a seed.
    pub fn certify(
        &self,
        signing: Signing,
        link_until: u64,
        tls_certificate: &[u8],
        seed: [u8; 32],
    ) -> Certified {
        let auth = SigningKey::from_bytes(&seed);
        let identity = self.ed25519();
        let signing_body =
            body(SIGNING, ED25519, signing.key.verifying_key().as_bytes(), signing.until, Some(&identity));
        let by_signing = |kind, key_type, key: &[u8; 32]| {
            let body = body(kind, key_type, key, link_until, None);
            [&body[..], &signing.key.sign(&body).to_bytes()].concat()
        };
        // The RSA identity certifies the Ed25519 identity (cert-spec, "RSA->Ed25519 cross-certificate").
        let crossed = [&identity[..], &hours(signing.until)].concat();
        let signature = self.sign_rsa(&sha256(&[CROSS_PREFIX, &crossed].concat()));
        let tls_digest = sha256(tls_certificate);
        Certified {
            fingerprint: self.fingerprint(),
            rsa_digest: sha256(&rsa_keys::public(&self.rsa)),
            ed25519: identity,
            tls_digest,
            rsa_certificate: rsa_keys::self_signed(&self.rsa),
            signing_certificate: [&signing_body[..], &self.sign_ed25519(&signing_body)].concat(),
            link_certificate: by_signing(LINK, X509, &tls_digest),
            auth_certificate: by_signing(AUTH, ED25519, auth.verifying_key().as_bytes()),
            cross_certificate: [&crossed[..], &[signature.len() as u8], &signature].concat(),
            link_until,
            signing,
            auth,
        }
    }
}

/// A signing key that the identity certifies, with its expiry in seconds since 1970.
#[derive(Clone)]
pub struct Signing {
    key: SigningKey,
    until: u64,
}

impl Signing {
    /// From a fresh random seed.
    pub fn new(seed: [u8; 32], until: u64) -> Signing {
        Signing { key: SigningKey::from_bytes(&seed), until }
    }
}

/// Rounds an expiry down to whole hours, the unit of certificates, so that keys never outlive them.
fn hours(until: u64) -> [u8; 4] {
    (until.div_ceil(HOUR) as u32).to_be_bytes()
}

/// An Ed25519 certificate without its signature.
pub(super) fn body(
    kind: u8,
    key_type: u8,
    key: &[u8; 32],
    until: u64,
    signed_with: Option<&[u8; 32]>,
) -> Vec<u8> {
    let mut body =
        [&[1, kind], &hours(until)[..], &[key_type], key, &[u8::from(signed_with.is_some())]].concat();
    if let Some(signer) = signed_with {
        body.extend_from_slice(&[0, 32, SIGNED_WITH, 0]);
        body.extend_from_slice(signer);
    }
    body
}

/// A router's short-lived keys and certificates.
pub struct Certified {
    /// The router's fingerprint.
    pub fingerprint: [u8; 20],
    /// SHA-256 of the RSA identity.
    pub rsa_digest: [u8; 32],
    /// The Ed25519 identity.
    pub ed25519: [u8; 32],
    /// SHA-256 of our TLS certificate.
    pub tls_digest: [u8; 32],
    rsa_certificate: Vec<u8>,
    /// Ed25519 identity -> signing key.
    pub signing_certificate: Vec<u8>,
    link_certificate: Vec<u8>,
    auth_certificate: Vec<u8>,
    cross_certificate: Vec<u8>,
    link_until: u64,
    signing: Signing,
    auth: SigningKey,
}

/// Which certificates to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// That of the TLS key, with the same signing key.
    Link,
    /// That of the signing key, and all that it signed.
    Signing,
}

impl Certified {
    /// When to renew which certificates, before they expire; in seconds since 1970.
    pub fn renewal(&self, lifetimes: &KeyLifetimes) -> (u64, Renewal) {
        let before = |until: u64, span| until.saturating_sub(seconds(span) / 10);
        let (signing, link) =
            (before(self.signing.until, lifetimes.signing), before(self.link_until, lifetimes.link));
        if signing <= link { (signing, Renewal::Signing) } else { (link, Renewal::Link) }
    }

    /// The signing key, to certify further keys.
    pub fn signing(&self) -> &Signing {
        &self.signing
    }

    /// The body of a CERTS cell.
    pub(crate) fn certs(&self, initiator: bool) -> Vec<u8> {
        let third = if initiator { (AUTH, &self.auth_certificate) } else { (LINK, &self.link_certificate) };
        let all = [
            (RSA_IDENTITY, &self.rsa_certificate),
            (SIGNING, &self.signing_certificate),
            third,
            (CROSS, &self.cross_certificate),
        ];
        let mut body = vec![all.len() as u8];
        for (kind, certificate) in all {
            body.push(kind);
            body.extend_from_slice(&(certificate.len() as u16).to_be_bytes());
            body.extend_from_slice(certificate);
        }
        body
    }

    /// Signs a descriptor.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.signing.key.sign(message).to_bytes()
    }

    /// Signs an AUTHENTICATE cell.
    pub(crate) fn authenticate(&self, message: &[u8]) -> [u8; 64] {
        self.auth.sign(message).to_bytes()
    }
}

/// Checks a certificate that names its signer. Returns the certified Ed25519 key and the signer.
///
/// # Errors
/// If it is malformed, expired at `now` (seconds since 1970), of another kind, or not signed by the signer.
pub fn certified(certificate: &[u8], kind: u8, now: u64) -> Result<([u8; 32], [u8; 32]), Invalid> {
    let (checked, signer) = check(certificate, kind, ED25519, None, now)?;
    Ok((checked.key, signer))
}

/// A verified Ed25519 certificate.
struct Checked {
    key: [u8; 32],
}

fn check(
    certificate: &[u8],
    kind: u8,
    key_type: u8,
    signer: Option<&[u8; 32]>,
    now: u64,
) -> Result<(Checked, [u8; 32]), Invalid> {
    let short = Invalid("a certificate is too short");
    let (signed, signature) = certificate.split_last_chunk::<64>().ok_or(short)?;
    let (head, mut rest) = signed.split_first_chunk::<40>().ok_or(short)?;
    // Version, type, expiry, key type, key, number of extensions (cert-spec, "Ed25519 Certificates").
    if head[..2] != [1, kind] || head[6] != key_type {
        return Err(Invalid("a certificate has the wrong type"));
    }
    let hours = u32::from_be_bytes(head[2..6].try_into().expect("4 bytes"));
    if u64::from(hours) * HOUR < now {
        return Err(Invalid("a certificate has expired"));
    }
    let mut said = None;
    for _ in 0..head[39] {
        let (&[high, low, extension, flags], content) = rest.split_first_chunk::<4>().ok_or(short)?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (content, next) = content.split_at_checked(length).ok_or(short)?;
        match (extension, <[u8; 32]>::try_from(content)) {
            (SIGNED_WITH, Ok(key)) => said = Some(key),
            // AFFECTS_VALIDATION: the certificate is invalid for readers that do not know the extension.
            _ if flags & 1 != 0 => return Err(Invalid("a certificate has an unknown extension")),
            _ => {}
        }
        rest = next;
    }
    let signer = match (signer, said) {
        (Some(signer), said) if said.is_none_or(|said| said == *signer) => *signer,
        (None, Some(said)) => said,
        _ => return Err(Invalid("a certificate is signed with another key")),
    };
    let invalid = Invalid("a certificate's signature is wrong");
    let public = VerifyingKey::from_bytes(&signer).map_err(|_| invalid)?;
    public.verify_strict(signed, &Signature::from_bytes(signature)).map_err(|_| invalid)?;
    Ok((Checked { key: head[7..39].try_into().expect("32 bytes") }, signer))
}

/// The identity in a peer's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    /// SHA-1 of the RSA identity.
    pub fingerprint: [u8; 20],
    /// SHA-256 of it.
    pub rsa_digest: [u8; 32],
    /// The Ed25519 identity.
    pub ed25519: [u8; 32],
    /// Initiator: the key that signs its AUTHENTICATE cell.
    pub auth: Option<[u8; 32]>,
}

/// Checks the body of a peer's CERTS cell. `tls`: SHA-256 of its TLS certificate if it is the responder; an
/// initiator proves the connection by AUTHENTICATE.
///
/// # Errors
/// If a certificate is missing, malformed, expired or does not match the others.
pub fn check_certs(body: &[u8], tls: Option<&[u8; 32]>, now: u64) -> Result<Proved, Invalid> {
    let short = Invalid("the CERTS cell is too short");
    let (&count, mut rest) = body.split_first().ok_or(short)?;
    let mut found: [Option<&[u8]>; 8] = [None; 8];
    for _ in 0..count {
        let (&[kind, high, low], bytes) = rest.split_first_chunk::<3>().ok_or(short)?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (certificate, next) = bytes.split_at_checked(length).ok_or(short)?;
        // Each type may appear once (tor-spec, "CERTS cells").
        if let Some(place) = found.get_mut(usize::from(kind))
            && place.replace(certificate).is_some()
        {
            return Err(Invalid("the CERTS cell has two certificates of one type"));
        }
        rest = next;
    }
    let get = |kind: u8| found[usize::from(kind)].ok_or(Invalid("a certificate is missing"));
    let (signing, identity) = check(get(SIGNING)?, SIGNING, ED25519, None, now)?;
    let auth = match tls {
        Some(tls) => {
            let (link, _) = check(get(LINK)?, LINK, X509, Some(&signing.key), now)?;
            if link.key != *tls {
                return Err(Invalid("the connection has another TLS certificate than the certified one"));
            }
            None
        }
        None => Some(check(get(AUTH)?, AUTH, ED25519, Some(&signing.key), now)?.0.key),
    };
    let rsa = rsa_identity(get(RSA_IDENTITY)?)?;
    check_cross(get(CROSS)?, &rsa, &identity, now)?;
    let der = rsa.to_pkcs1_der().map_err(|_| Invalid("the RSA identity cannot be encoded"))?;
    let fingerprint = Sha1::digest(der.as_bytes()).into();
    Ok(Proved { fingerprint, rsa_digest: sha256(der.as_bytes()), ed25519: identity, auth })
}

fn rsa_identity(certificate: &[u8]) -> Result<RsaPublicKey, Invalid> {
    let invalid = Invalid("the RSA identity's certificate is wrong");
    let parts = der::parse(certificate).ok_or(invalid)?;
    let rsa = RsaPublicKey::from_public_key_der(parts.public_key_info).map_err(|_| invalid)?;
    if rsa.size() * 8 != rsa_keys::BITS {
        return Err(Invalid("the RSA identity is not 1024 bits long"));
    }
    rsa.verify(rsa_keys::scheme(), &sha256(parts.to_be_signed), parts.signature).map_err(|_| invalid)?;
    Ok(rsa)
}

fn check_cross(bytes: &[u8], rsa: &RsaPublicKey, identity: &[u8; 32], now: u64) -> Result<(), Invalid> {
    let invalid = Invalid("the cross-certificate is wrong");
    let (signed, rest) = bytes.split_first_chunk::<36>().ok_or(invalid)?;
    let (&length, signature) = rest.split_first().ok_or(invalid)?;
    let hours = u32::from_be_bytes(signed[32..].try_into().expect("4 bytes"));
    if signed[..32] != *identity || usize::from(length) != signature.len() || u64::from(hours) * HOUR < now {
        return Err(invalid);
    }
    let digest = sha256(&[CROSS_PREFIX, signed].concat());
    rsa.verify(Pkcs1v15Sign::new_unprefixed(), &digest, signature).map_err(|_| invalid)
}

/// Verifies a signature.
pub fn verifies(key: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    let public = VerifyingKey::from_bytes(key);
    public.is_ok_and(|public| public.verify_strict(message, &Signature::from_bytes(signature)).is_ok())
}
