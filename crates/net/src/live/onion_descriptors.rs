//! Descriptors of onion services, as the directory that stores them sees them (rend-spec-v3, "Outer wrapper"): who
//! published them, and for how long. Their contents are encrypted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use tidegate_control::shares::{Shares, network};
use tidegate_control::units::{Span, Time};
use tidegate_proto::crypto::cert;

/// Maximum size of a descriptor, bytes (rend-spec-v3: the consensus parameter `HSV3MaxDescriptorSize`).
pub(crate) const LONGEST: usize = 50_000;
/// Bounds of a descriptor's lifetime, minutes.
const LIFETIMES: std::ops::RangeInclusive<u64> = 30..=720;
/// Bytes of an encrypted part besides the ciphertext: salt and MAC.
const OVERHEAD: usize = 16 + 32;
const SIGNED_PREFIX: &[u8] = b"Tor onion service descriptor sig v3";
/// Maximum of all descriptors, bytes. The public network's 3,000 descriptors per directory take 45 MB.
const MEMORY: usize = 128 << 20;
/// Maximum number of descriptors.
const PLACES: usize = 16_384;

/// The blinded key of a service in a time period.
pub(crate) type BlindedKey = [u8; 32];

/// The parts of a descriptor that a directory reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outer {
    key: BlindedKey,
    revision: u64,
    lifetime: Span,
}

/// Why a descriptor is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// It is too long, malformed, or not signed by its service.
    Invalid,
    /// A descriptor with this revision or a later one is stored.
    Old,
}

/// The blinded key in base 64, as requests name it.
pub(crate) fn blinded_key(text: &str) -> Option<BlindedKey> {
    STANDARD_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// Keyword and arguments of a line, and the object behind it.
type Item<'a> = (&'a str, &'a str, Option<Vec<u8>>);

/// The items of a document.
fn items(text: &str) -> Option<Vec<Item<'_>>> {
    let mut items = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (keyword, arguments) = line.split_once(' ').unwrap_or((line, ""));
        let mut object = None;
        if let Some(kind) = lines.peek().and_then(|line| line.strip_prefix("-----BEGIN ")) {
            lines.next();
            let end = format!("-----END {kind}");
            let mut encoded = String::new();
            loop {
                match lines.next()? {
                    line if line == end => break,
                    line => encoded.push_str(line),
                }
            }
            object = Some(STANDARD.decode(encoded).ok()?);
        }
        items.push((keyword, arguments, object));
    }
    Some(items)
}

/// Parses and verifies the outer part of a descriptor at a time in seconds since 1970.
fn outer(text: &str, now: u64) -> Option<Outer> {
    let (signed, signature) = text.strip_suffix('\n')?.rsplit_once("\nsignature ")?;
    let items = items(signed)?;
    // Each item occurs once; unknown ones are ignored.
    let item = |keyword: &str| {
        let mut all = items.iter().filter(|(other, ..)| *other == keyword);
        all.next().filter(|_| all.next().is_none())
    };
    let number = |keyword: &str| item(keyword)?.1.parse::<u64>().ok();
    let object = |keyword: &str| item(keyword)?.2.as_deref();
    if items.first().map(|(keyword, version, _)| (*keyword, *version)) != Some(("hs-descriptor", "3")) {
        return None;
    }
    item("hs-descriptor")?;
    let lifetime = number("descriptor-lifetime").filter(|minutes| LIFETIMES.contains(minutes))?;
    let revision = number("revision-counter")?;
    if object("superencrypted")?.len() <= OVERHEAD {
        return None;
    }
    let certificate = object("descriptor-signing-key-cert")?;
    let (signing, key) = cert::certified(certificate, cert::ONION_DESCRIPTOR, now).ok()?;
    let signature: [u8; 64] = STANDARD_NO_PAD.decode(signature).ok()?.try_into().ok()?;
    let valid = cert::verifies(&signing, &[SIGNED_PREFIX, signed.as_bytes(), b"\n"].concat(), &signature);
    valid.then_some(Outer { key, revision, lifetime: Span::from_secs(60 * lifetime) })
}

struct Stored {
    text: Arc<str>,
    revision: u64,
    until: Time,
    used: Time,
}

/// The stored descriptors.
pub(crate) struct Descriptors {
    stored: BTreeMap<BlindedKey, Stored>,
    /// Their places, by the neighbour that they came through.
    places: Shares<IpAddr, IpAddr, BlindedKey>,
    expiries: BTreeSet<(Time, BlindedKey)>,
    bytes: usize,
    memory: usize,
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors {
            stored: BTreeMap::new(),
            places: Shares::new(PLACES),
            expiries: BTreeSet::new(),
            bytes: 0,
            memory: MEMORY,
        }
    }
}

impl Descriptors {
    /// The number of stored descriptors.
    pub(crate) fn len(&self) -> usize {
        self.stored.len()
    }

    /// Whether none is stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Stores a descriptor that came through a neighbour's address. `now` with the calendar time in seconds since 1970.
    ///
    /// # Errors
    /// If it is invalid or not newer than the stored one.
    pub(crate) fn store(
        &mut self,
        (now, unix): (Time, u64),
        from: Option<IpAddr>,
        text: &str,
    ) -> Result<(), Rejected> {
        if text.len() > LONGEST {
            return Err(Rejected::Invalid);
        }
        let Outer { key, revision, lifetime } = outer(text, unix).ok_or(Rejected::Invalid)?;
        self.expire(now);
        if self.stored.get(&key).is_some_and(|stored| stored.revision >= revision) {
            return Err(Rejected::Old);
        }
        self.remove(&key);
        let of = network(from.unwrap_or(Ipv4Addr::UNSPECIFIED.into()));
        self.make_room(&of, text.len());
        self.places.admit(now, of, key);
        self.bytes += text.len();
        let until = now + lifetime;
        self.expiries.insert((until, key));
        self.stored.insert(key, Stored { text: text.into(), revision, until, used: now });
        Ok(())
    }

    /// The descriptor of a blinded key.
    pub(crate) fn find(&mut self, now: Time, key: &BlindedKey) -> Option<Arc<str>> {
        self.expire(now);
        let stored = self.stored.get_mut(key)?;
        stored.used = now;
        Some(stored.text.clone())
    }

    fn remove(&mut self, key: &BlindedKey) {
        if let Some(stored) = self.stored.remove(key) {
            self.bytes -= stored.text.len();
            self.places.release(key);
            self.expiries.remove(&(stored.until, *key));
        }
    }

    fn expire(&mut self, now: Time) {
        while let Some((until, key)) = self.expiries.first().copied()
            && until <= now
        {
            self.remove(&key);
        }
    }

    /// Removes descriptors of the neighbour that has the most until another one of `bytes` fits.
    fn make_room(&mut self, of: &(IpAddr, IpAddr), bytes: usize) {
        while !self.is_empty() && (self.len() >= PLACES || self.bytes + bytes > self.memory) {
            self.places.set_places(self.len());
            let stored = &self.stored;
            let used = |key: &BlindedKey| stored.get(key).map_or(Time::ZERO, |stored| stored.used);
            let Some(displaced) = self.places.displaced(of, used) else { return };
            self.remove(&displaced);
        }
        self.places.set_places(PLACES);
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::*;

    /// Seconds since 1970.
    const NOW: u64 = 1_795_000_000;
    const SERVICE: u8 = 1;

    fn armour(kind: &str, bytes: &[u8]) -> String {
        let encoded = STANDARD.encode(bytes);
        let lines: Vec<&str> =
            encoded.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----", lines.join("\n"))
    }

    /// A descriptor of a service, with a certificate until a time, and its text changed before it is signed.
    fn signed(service: u8, until: u64, revision: u64, change: impl Fn(String) -> String) -> String {
        let [blinded, signing] = [service, 99].map(|seed| SigningKey::from_bytes(&[seed; 32]));
        let key = |key: &SigningKey| key.verifying_key().to_bytes();
        let hours = ((until / 3600) as u32).to_be_bytes();
        let body = [&[1, 8], &hours[..], &[1], &key(&signing), &[1, 0, 32, 4, 0], &key(&blinded)].concat();
        let certificate = [&body[..], &blinded.sign(&body).to_bytes()].concat();
        let text = change(format!(
            "hs-descriptor 3\ndescriptor-lifetime 180\ndescriptor-signing-key-cert\n{}\nrevision-counter {revision}\n\
             superencrypted\n{}\n",
            armour("ED25519 CERT", &certificate),
            armour("MESSAGE", &[7; 200]),
        ));
        let signature = signing.sign(&[SIGNED_PREFIX, text.as_bytes()].concat());
        format!("{text}signature {}\n", STANDARD_NO_PAD.encode(signature.to_bytes()))
    }

    fn descriptor(service: u8, revision: u64) -> String {
        signed(service, NOW + 7200, revision, |text| text)
    }

    fn key(service: u8) -> BlindedKey {
        SigningKey::from_bytes(&[service; 32]).verifying_key().to_bytes()
    }

    fn from(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, n]))
    }

    #[test]
    fn descriptors_are_found_by_their_blinded_key_until_they_expire() {
        let mut all = Descriptors::default();
        all.store((Time::ZERO, NOW), from(1), &descriptor(SERVICE, 5)).unwrap();
        let name = STANDARD_NO_PAD.encode(key(SERVICE));
        assert_eq!(blinded_key(&name), Some(key(SERVICE)));
        assert_eq!(all.find(Time::ZERO, &key(SERVICE)).as_deref(), Some(&descriptor(SERVICE, 5)[..]));
        assert_eq!(all.find(Time::ZERO, &key(2)), None);
        for old in [4, 5] {
            let stored = all.store((Time::ZERO, NOW), from(1), &descriptor(SERVICE, old));
            assert_eq!(stored, Err(Rejected::Old), "revision {old}");
        }
        all.store((Time::ZERO, NOW), from(2), &descriptor(SERVICE, 6)).unwrap();
        let end = Time::ZERO + Span::from_secs(180 * 60);
        assert_eq!(all.find(Time(end.0 - 1), &key(SERVICE)).as_deref(), Some(&descriptor(SERVICE, 6)[..]));
        assert_eq!(all.find(end, &key(SERVICE)), None);
        assert!(all.is_empty() && all.places.is_empty() && all.expiries.is_empty());
        assert_eq!(all.bytes, 0);
    }

    #[test]
    fn only_the_services_own_descriptors_are_stored() {
        let mut all = Descriptors::default();
        let mut store = |text: &str| all.store((Time::ZERO, NOW), from(1), text);
        let good = descriptor(SERVICE, 5);
        for at in (0..good.len()).step_by(7) {
            assert_eq!(store(&good[..at]), Err(Rejected::Invalid), "{at} bytes");
            let mut changed = good.clone().into_bytes();
            changed[at] ^= 1;
            if let Ok(changed) = String::from_utf8(changed) {
                assert_eq!(store(&changed), Err(Rejected::Invalid), "byte {at}: {changed}");
            }
        }
        type Change = fn(String) -> String;
        let changes: [Change; 8] = [
            |text| text.replace("hs-descriptor 3", "hs-descriptor 2"),
            |text| text.replace("lifetime 180", "lifetime 29"),
            |text| text.replace("lifetime 180", "lifetime 721"),
            |text| text.replace("revision-counter 5", "revision-counter -5"),
            |text| text.replace("revision-counter 5\n", ""),
            |text| text.replace("revision-counter 5\n", "revision-counter 5\nrevision-counter 6\n"),
            |text| text.replace("superencrypted", "encrypted"),
            |text| format!("{text}padding {}\n", "x".repeat(LONGEST)),
        ];
        for change in changes {
            let text = signed(SERVICE, NOW + 7200, 5, change);
            assert_eq!(store(&text), Err(Rejected::Invalid), "{text:.600}");
        }
        assert_eq!(store(&signed(SERVICE, NOW - 7200, 5, |text| text)), Err(Rejected::Invalid), "expired");
        let unknown = signed(SERVICE, NOW + 7200, 5, |text| format!("{text}another item\n"));
        assert_eq!(store(&unknown), Ok(()), "unknown items are ignored");
    }

    #[test]
    fn the_neighbour_with_the_most_descriptors_makes_room() {
        let size = descriptor(1, 5).len();
        let mut all = Descriptors { memory: 10 * size, ..Descriptors::default() };
        let mut store = |from: Option<IpAddr>, service: u8, second: u64| {
            let now = Time::ZERO + Span::from_secs(second);
            all.store((now, NOW), from, &descriptor(service, 5)).unwrap();
            assert!(all.bytes <= 10 * size && all.len() == all.places.len());
        };
        store(from(2), 100, 0);
        for n in 1..60 {
            store(from(1), n, n.into());
        }
        assert!(all.find(Time::ZERO, &key(100)).is_some(), "the other neighbour's stays");
        assert!(all.find(Time::ZERO, &key(59)).is_some(), "the latest is there");
        assert!(all.find(Time::ZERO, &key(1)).is_none(), "the flood's oldest is gone");
        assert_eq!(all.len(), 10);
    }
}
