//! Messages of onion services as introduction and rendezvous points read them (rend-spec-v3, "The introduction
//! protocol" and "The rendezvous protocol").

use sha3::{Digest as _, Sha3_256};
use subtle::ConstantTimeEq as _;

use super::cert;

/// The type of authentication keys: Ed25519.
const ED25519: u8 = 2;
const SIGNED_PREFIX: &[u8] = b"Tor establish-intro cell v1";
/// The extension of ESTABLISH_INTRO with limits of introductions, and its parameters (proposal 305).
const LIMITS: u8 = 1;
const RATE: u8 = 1;
const BURST: u8 = 2;
/// The maximum of both (tor: `HS_CONFIG_V3_DOS_DEFENSE_RATE_PER_SEC_MAX`).
const MAX_LIMIT: u64 = i32::MAX as u64;

/// Bytes of the zero key of version 2 in INTRODUCE1.
const LEGACY: usize = 20;
/// Bytes of a rendezvous cookie.
pub(crate) const COOKIE: usize = 20;

/// A key with which clients name an introduction circuit.
pub(crate) type AuthKey = [u8; 32];

/// How many introductions a service accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntroductionLimit {
    /// Introductions per second.
    pub rate: u32,
    /// Introductions at once after a quiet time.
    pub burst: u32,
}

/// A service's instruction on a limit of introductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceLimit {
    /// Nothing: the consensus decides.
    Unstated,
    /// It wants none.
    Unlimited,
    /// It wants this one.
    At(IntroductionLimit),
}

/// A verified ESTABLISH_INTRO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EstablishIntro {
    /// The circuit's authentication key.
    pub key: AuthKey,
    /// The service's limit of introductions.
    pub limit: ServiceLimit,
}

/// Splits off a number of bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

/// Splits off the authentication key with its type and length.
fn take_key(bytes: &mut &[u8]) -> Option<AuthKey> {
    (take(bytes)? == [ED25519, 0, 32]).then(|| take(bytes)).flatten()
}

/// Splits off a list of extensions. Returns types and contents.
fn take_extensions<'a>(bytes: &mut &'a [u8]) -> Option<Vec<(u8, &'a [u8])>> {
    let [count] = take(bytes)?;
    let mut extensions = Vec::new();
    for _ in 0..count {
        let [kind, length] = take(bytes)?;
        let (content, rest) = bytes.split_at_checked(length.into())?;
        *bytes = rest;
        extensions.push((kind, content));
    }
    Some(extensions)
}

/// The limit in an extension. As in tor, one that cannot be read states nothing, and values out of range mean no limit.
fn limit(content: &[u8]) -> ServiceLimit {
    match rate_and_burst(content) {
        None => ServiceLimit::Unstated,
        Some((rate, burst)) if (1..=MAX_LIMIT).contains(&rate) && (rate..=MAX_LIMIT).contains(&burst) => {
            ServiceLimit::At(IntroductionLimit { rate: rate as u32, burst: burst as u32 })
        }
        Some(_) => ServiceLimit::Unlimited,
    }
}

/// The parameters of an extension; those that it does not state are 0. `None` if it cannot be read.
fn rate_and_burst(mut content: &[u8]) -> Option<(u64, u64)> {
    let [count] = take(&mut content)?;
    let (mut rate, mut burst) = (0, 0);
    for _ in 0..count {
        let [kind] = take(&mut content)?;
        let value = u64::from_be_bytes(take(&mut content)?);
        match kind {
            RATE => rate = value,
            BURST => burst = value,
            _ => return None,
        }
    }
    Some((rate, burst))
}

impl EstablishIntro {
    /// Parses and verifies a message on a circuit with this binding. `None` if it is malformed, or if the sender does not
    /// hold the authentication key or is not the circuit's client.
    pub(crate) fn read(message: &[u8], binding: &[u8; 20]) -> Option<EstablishIntro> {
        let rest = &mut &message[..];
        let key = take_key(rest)?;
        let extensions = take_extensions(rest)?;
        let authenticated = &message[..message.len() - rest.len()];
        let mac: [u8; 32] = take(rest)?;
        let signed = &message[..message.len() - rest.len()];
        let signature: [u8; 64] = (take(rest)? == [0, 64]).then(|| take(rest)).flatten()?;
        let mut hash = Sha3_256::new_with_prefix((binding.len() as u64).to_be_bytes());
        hash.update(binding);
        hash.update(authenticated);
        let bound = bool::from(hash.finalize().ct_eq(&mac));
        let valid = bound && cert::verifies(&key, &[SIGNED_PREFIX, signed].concat(), &signature);
        let stated = extensions.iter().find(|(kind, _)| *kind == LIMITS);
        let limit = stated.map_or(ServiceLimit::Unstated, |(_, content)| limit(content));
        valid.then_some(EstablishIntro { key, limit })
    }
}

/// The authentication key in an INTRODUCE1; `None` if the message is malformed.
pub(crate) fn introduced_to(message: &[u8]) -> Option<AuthKey> {
    let rest = &mut &message[..];
    let legacy: [u8; LEGACY] = take(rest)?;
    let key = take_key(rest)?;
    take_extensions(rest)?;
    (legacy == [0; LEGACY] && !rest.is_empty()).then_some(key)
}

/// The answer to an INTRODUCE1 (rend-spec-v3, "INTRODUCE_ACK").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntroduceStatus {
    /// The service receives it.
    Success = 0,
    /// No service has this authentication key here, or it accepts no more introductions now.
    Unknown = 1,
    /// The message is malformed.
    Malformed = 2,
    /// It cannot be passed on.
    NotRelayed = 3,
}

impl IntroduceStatus {
    /// The message: the status and no extensions.
    pub(crate) fn write(self) -> [u8; 3] {
        [0, self as u8, 0]
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::*;

    const BINDING: [u8; 20] = [7; 20];

    /// An ESTABLISH_INTRO with these extensions, as a service writes it.
    fn establish(extensions: &[u8]) -> Vec<u8> {
        let key = SigningKey::from_bytes(&[3; 32]);
        let head = [&[ED25519, 0, 32], &key.verifying_key().to_bytes()[..], extensions].concat();
        let mac = Sha3_256::digest([&[0, 0, 0, 0, 0, 0, 0, 20], &BINDING[..], &head].concat());
        let signed = [&head[..], &mac].concat();
        let signature = key.sign(&[SIGNED_PREFIX, &signed].concat()).to_bytes();
        [&signed[..], &[0, 64], &signature].concat()
    }

    fn limits(parameters: &[(u8, u64)]) -> Vec<u8> {
        let values =
            parameters.iter().flat_map(|(kind, value)| [&[*kind], &value.to_be_bytes()[..]].concat());
        let content: Vec<u8> = [parameters.len() as u8].into_iter().chain(values).collect();
        [&[1, LIMITS, content.len() as u8], &content[..]].concat()
    }

    #[test]
    fn only_the_circuits_service_establishes() {
        let message = establish(&[0]);
        let key = SigningKey::from_bytes(&[3; 32]).verifying_key().to_bytes();
        assert_eq!(
            EstablishIntro::read(&message, &BINDING),
            Some(EstablishIntro { key, limit: ServiceLimit::Unstated })
        );
        assert_eq!(EstablishIntro::read(&message, &[8; 20]), None, "replayed on another circuit");
        for at in 0..message.len() {
            let mut changed = message.clone();
            changed[at] ^= 1;
            assert_eq!(EstablishIntro::read(&changed, &BINDING), None, "byte {at}");
            assert_eq!(EstablishIntro::read(&message[..at], &BINDING), None, "{at} bytes");
        }
    }

    #[test]
    fn limits_are_read_and_invalid_ones_ignored() {
        let of = |extensions: &[u8]| EstablishIntro::read(&establish(extensions), &BINDING).unwrap().limit;
        let set = ServiceLimit::At(IntroductionLimit { rate: 2, burst: 5 });
        assert_eq!(of(&limits(&[(RATE, 2), (BURST, 5)])), set);
        assert_eq!(of(&limits(&[(BURST, 5), (RATE, 2)])), set);
        // Unknown extensions are skipped.
        assert_eq!(of(&[&[2, 9, 1, 1][..], &limits(&[(RATE, 2), (BURST, 5)])[1..]].concat()), set);
        for parameters in [
            &[(RATE, 0), (BURST, 0)][..],
            &[(RATE, 5), (BURST, 2)],
            &[(RATE, 2)],
            &[(RATE, 1), (BURST, 1 << 31)],
            &[],
        ] {
            assert_eq!(of(&limits(parameters)), ServiceLimit::Unlimited, "{parameters:?}");
        }
        let unknown = [(RATE, 1), (BURST, 2), (3, 4)];
        assert_eq!(of(&limits(&unknown)), ServiceLimit::Unstated);
        assert_eq!(of(&[1, LIMITS, 1, 2]), ServiceLimit::Unstated, "cut");
    }

    #[test]
    fn introductions_name_a_key() {
        let message = [&[0; 20][..], &[ED25519, 0, 32], &[5; 32], &[1, 9, 1, 1], &[8; 50]].concat();
        assert_eq!(introduced_to(&message), Some([5; 32]));
        for cut in 0..message.len() - 49 {
            assert_eq!(introduced_to(&message[..cut]), None, "{cut} bytes");
        }
        for at in [0, 19, 20, 21, 22] {
            let mut changed = message.clone();
            changed[at] ^= 1;
            assert_eq!(introduced_to(&changed), None, "byte {at}");
        }
    }
}
