//! A relay's onion keys: the announced one and, for a grace period, the previous one (tor-spec, "Keys and names";
//! dir-spec, `onion-key-rotation-days`).

use rsa::RsaPrivateKey;
use sha2::{Digest as _, Sha512};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};
use zeroize::{Zeroize as _, Zeroizing};

use super::lifetimes::{KeyLifetimes, seconds};
use super::rsa_keys::{self, Invalid};

/// An onion key, with which a relay answers key exchanges.
#[derive(Clone)]
pub struct OnionKey {
    /// The key of ntor and ntor-v3.
    pub(super) ntor: Ntor,
    /// The key of TAP, the oldest handshake. Descriptors must contain it, but no handshake uses it.
    pub(super) tap: RsaPrivateKey,
}

/// The secret half of an ntor onion key.
#[derive(Clone)]
pub(super) struct Ntor(pub(super) [u8; 32]);

impl Drop for Ntor {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Ntor {
    /// The same key as an expanded Ed25519 key.
    pub(super) fn expanded(&self) -> [u8; 64] {
        let half = Sha512::digest([&self.0[..], b"tidegate"].concat());
        [&self.0[..], &half[32..]].concat().try_into().expect("32 and half of 64 bytes")
    }
}

impl OnionKey {
    /// Generates a key. `fill` fills memory with random bytes.
    pub fn generate(fill: &mut dyn FnMut(&mut [u8])) -> OnionKey {
        let mut ntor = Ntor([0; 32]);
        fill(&mut ntor.0);
        OnionKey { ntor, tap: rsa_keys::draw(fill) }
    }

    /// From the ntor secret, followed by the TAP key in PKCS #1.
    ///
    /// # Errors
    /// If the bytes are not valid keys.
    pub fn from_bytes(ntor: &[u8], tap: &[u8]) -> Result<OnionKey, Invalid> {
        Ok(OnionKey { ntor: Ntor(array(ntor)?), tap: rsa_keys::read(tap)? })
    }

    /// The format of [`from_bytes`](Self::from_bytes).
    pub fn to_bytes(&self) -> [Zeroizing<Vec<u8>>; 2] {
        [Zeroizing::new(self.ntor.0.to_vec()), rsa_keys::write(&self.tap)]
    }

    /// The ntor key: secret and public half.
    pub fn ntor(&self) -> [[u8; 32]; 2] {
        [self.ntor.0, x25519(self.ntor.0, X25519_BASEPOINT_BYTES)]
    }
}

pub(super) fn array(bytes: &[u8]) -> Result<[u8; 32], Invalid> {
    bytes.try_into().map_err(|_| Invalid("a key is not 32 bytes"))
}

/// Current and previous onion key of a relay. Times are seconds since 1970.
#[derive(Clone)]
pub struct OnionKeys {
    current: OnionKey,
    /// Since when the current key is announced; its lifetime begins then.
    since: Option<u64>,
    /// The previous ntor secret, and the end of its grace period.
    previous: Option<(Ntor, u64)>,
}

impl OnionKeys {
    /// A key that was never announced.
    pub(crate) fn new(current: OnionKey) -> OnionKeys {
        OnionKeys { current, since: None, previous: None }
    }

    /// Restores stored keys.
    ///
    /// # Errors
    /// If the previous key is invalid.
    pub fn kept(
        current: OnionKey,
        since: Option<u64>,
        previous: Option<(&[u8], u64)>,
    ) -> Result<OnionKeys, Invalid> {
        let previous = previous.map(|(secret, until)| Ok((Ntor(array(secret)?), until))).transpose()?;
        Ok(OnionKeys { current, since, previous })
    }

    /// The announced key.
    pub fn current(&self) -> &OnionKey {
        &self.current
    }

    /// Since when the current key is announced.
    pub fn since(&self) -> Option<u64> {
        self.since
    }

    /// The previous ntor secret, and the end of its grace period.
    pub fn previous(&self) -> Option<([u8; 32], u64)> {
        self.previous.as_ref().map(|(secret, until)| (secret.0, *until))
    }

    /// Whether [`advanced`](Self::advanced) should be given a fresh key.
    pub fn wants_successor(&self, now: u64, lifetimes: &KeyLifetimes) -> bool {
        self.since.is_some_and(|since| now >= since + seconds(lifetimes.onion))
    }

    /// When to call [`advanced`](Self::advanced) next.
    pub fn next_change(&self, lifetimes: &KeyLifetimes) -> u64 {
        let replaced = self.since.map_or(0, |since| since + seconds(lifetimes.onion));
        self.previous.as_ref().map_or(replaced, |(_, until)| replaced.min(*until))
    }

    /// The keys as of `now`; `None` if they do not change. A fresh key replaces the current one, which still answers
    /// for the grace period. A key that was generated while the clock was ahead does not last longer.
    pub fn advanced(&self, now: u64, lifetimes: &KeyLifetimes, fresh: Option<OnionKey>) -> Option<OnionKeys> {
        let latest = now + seconds(lifetimes.onion_grace);
        if let Some(fresh) = fresh {
            let previous = Some((self.current.ntor.clone(), latest));
            return Some(OnionKeys { current: fresh, since: Some(now), previous });
        }
        let since = self.since.map_or(now, |since| since.min(now));
        let until =
            self.previous.as_ref().map(|(_, until)| (*until).min(latest)).filter(|until| *until > now);
        if self.since == Some(since) && self.previous.as_ref().map(|(_, until)| *until) == until {
            return None;
        }
        let previous = self.previous.clone().zip(until).map(|((secret, _), until)| (secret, until));
        Some(OnionKeys { current: self.current.clone(), since: Some(since), previous })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::keys::Parameters as _;
    use tidegate_control::random::Seed;
    use tidegate_control::units::Span;

    use super::*;

    const LIFETIMES: KeyLifetimes = KeyLifetimes {
        onion: Span::from_secs(100),
        onion_grace: Span::from_secs(30),
        signing: Span::from_secs(100),
        link: Span::from_secs(10),
    };
    const NOW: u64 = 1_800_000_000;

    fn key(seed: u64) -> OnionKey {
        let mut random = Seed::root(seed).random();
        OnionKey::generate(&mut |bytes| bytes.iter_mut().for_each(|byte| *byte = random.bits() as u8))
    }

    #[test]
    fn a_key_is_replaced_in_time_and_the_one_before_answers_for_a_while() {
        let (first, second) = (key(1), key(2));
        let drawn = OnionKeys::new(first.clone());
        assert_eq!(drawn.next_change(&LIFETIMES), 0, "its lifetime has not begun");
        assert!(!drawn.wants_successor(NOW, &LIFETIMES));
        let announced = drawn.advanced(NOW, &LIFETIMES, None).unwrap();
        assert_eq!((announced.since(), announced.next_change(&LIFETIMES)), (Some(NOW), NOW + 100));
        assert!(announced.advanced(NOW + 99, &LIFETIMES, None).is_none(), "the keys do not change");
        assert!(!announced.wants_successor(NOW + 99, &LIFETIMES));
        assert!(announced.wants_successor(NOW + 100, &LIFETIMES));

        let replaced = announced.advanced(NOW + 100, &LIFETIMES, Some(second.clone())).unwrap();
        assert_eq!(replaced.current().ntor(), second.ntor());
        assert_eq!(replaced.previous(), Some((first.ntor()[0], NOW + 130)));
        assert_eq!(replaced.next_change(&LIFETIMES), NOW + 130);
        assert!(replaced.advanced(NOW + 129, &LIFETIMES, None).is_none());
        let alone = replaced.advanced(NOW + 130, &LIFETIMES, None).unwrap();
        assert_eq!((alone.previous(), alone.since()), (None, Some(NOW + 100)));
        assert_eq!(alone.next_change(&LIFETIMES), NOW + 200);
    }

    #[test]
    fn a_clock_that_was_ahead_makes_no_key_last_longer() {
        let ahead = OnionKeys::kept(key(1), Some(NOW + 5000), Some((&[7; 32], NOW + 6000))).unwrap();
        let now = ahead.advanced(NOW, &LIFETIMES, None).unwrap();
        assert_eq!((now.since(), now.previous()), (Some(NOW), Some(([7; 32], NOW + 30))));
        // A relay that was off for a long time renews its key at once.
        let late = now.advanced(NOW + 5000, &LIFETIMES, Some(key(2))).unwrap();
        assert_eq!(late.previous(), Some((key(1).ntor()[0], NOW + 5030)));
    }

    #[test]
    fn malformed_keys_are_refused() {
        assert!(OnionKey::from_bytes(&[1; 31], &key(1).to_bytes()[1]).is_err());
        assert!(OnionKey::from_bytes(&[1; 32], &[1; 32]).is_err());
        assert!(OnionKeys::kept(key(1), None, Some((&[1; 33], NOW))).is_err());
    }

    #[test]
    fn lifetimes_that_contradict_each_other_are_refused() {
        assert_eq!(KeyLifetimes::default().mistake(), None);
        assert_eq!(LIFETIMES.mistake(), None);
        let long = KeyLifetimes { onion_grace: Span::from_secs(101), ..LIFETIMES };
        assert!(long.mistake().unwrap().0.contains("onion-grace"));
        let long = KeyLifetimes { link: Span::from_secs(101), ..LIFETIMES };
        assert!(long.mistake().unwrap().0.contains("`link` is longer"));
    }
}
