//! The viewers' side: knows manifests, checks packets, and holds packets that no manifest lists yet.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use ed25519_dalek::VerifyingKey;
use tidegate_control::units::{Span, Time};

use super::{GROUPS, Hash, Manifest, hash};
use crate::packet::Key;
use crate::{MAX_SLICES, Peer};

/// Manifests that are kept at most; the reorder buffer usually forgets them earlier.
const MOST_MANIFESTS: usize = 4096;
/// Packets of one slice that wait for their manifests at most.
const MOST_HELD: usize = 64;
/// How long a packet waits before its manifest is requested, and between requests.
///
/// Trees differ in depth, so manifests arrive later than some packets. When a later manifest is here, one is lost.
const WAIT: Span = Span::from_millis(50);
const AGAIN: Span = Span::from_millis(150);
/// Requests within that time, so that forged positions cause few. An honest stream has few manifests that are missing.
const ASKS_AT_ONCE: u8 = 128;
/// Requests for one manifest.
const MOST_ASKS: u8 = 8;
/// The manifests of a peer are ignored this long after a forged one, which bounds the checks of signatures.
const DISTRUST: Span = Span::from_secs(1);
const MOST_DISTRUSTED: usize = 64;

/// The result of checking a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The server sent it.
    Genuine,
    /// The server sent another packet, or none, at this position.
    Forged,
    /// Its manifest is not here yet.
    Unknown,
}

/// The result of a manifest's arrival.
pub(crate) enum Added {
    /// It is new; this slice's tree carries it.
    New(u8),
    /// It is known, or too late.
    Known,
    /// It is malformed or not signed by the server.
    Forged,
    /// It is not looked at, because its sender forged one a moment ago.
    Ignored,
}

/// A packet that waits for its manifest.
pub(crate) struct Held {
    at: Time,
    pub(crate) from: Peer,
    /// Whether it came through its tree.
    pub(crate) tree: bool,
    pub(crate) key: Key,
    pub(crate) bytes: Bytes,
    asked: u8,
    ask_at: Time,
}

/// Checks the packets of a viewer.
pub(crate) struct Verifier {
    public: Option<VerifyingKey>,
    /// Manifests and their first packets, in order. They are few, and most packets are of the last ones.
    manifests: VecDeque<(Key, Rc<Manifest>)>,
    held: VecDeque<Held>,
    distrusted: BTreeMap<Peer, Time>,
    shared: SharedChecks,
    /// Requests since a time.
    asks: (Time, u8),
}

impl Verifier {
    pub(crate) fn new(shared: SharedChecks) -> Verifier {
        Verifier {
            public: None,
            manifests: VecDeque::new(),
            held: VecDeque::new(),
            distrusted: BTreeMap::new(),
            shared,
            asks: (Time::ZERO, 0),
        }
    }

    /// Starts over with a server's key. Returns whether the key is valid.
    pub(crate) fn restart(&mut self, public: &[u8; 32]) -> bool {
        *self = Verifier::new(self.shared.clone());
        self.public = VerifyingKey::from_bytes(public).ok();
        self.public.is_some()
    }

    /// The manifest that lists a packet.
    pub(crate) fn manifest(&self, key: Key) -> Option<&Manifest> {
        self.candidate(key).filter(|manifest| manifest.hash_of(key).is_some())
    }

    /// The only manifest that may list a packet: the last one that begins with it or before it.
    fn candidate(&self, key: Key) -> Option<&Manifest> {
        let place = match self.place(key) {
            Ok(place) => place,
            Err(after) => after.checked_sub(1)?,
        };
        self.manifests.get(place).map(|(_, manifest)| &**manifest)
    }

    /// Where the manifest with this first packet is, or where it would be.
    fn place(&self, start: Key) -> Result<usize, usize> {
        self.manifests.binary_search_by_key(&start, |(start, _)| *start)
    }

    /// Checks an encoded packet.
    pub(crate) fn check(&self, key: Key, bytes: &Bytes) -> Check {
        let Some(listed) = self.candidate(key).and_then(|manifest| manifest.hash_of(key)) else {
            return Check::Unknown;
        };
        if self.shared.hash(key, bytes) == *listed { Check::Genuine } else { Check::Forged }
    }

    /// Takes a manifest. `oldest` is the first group that is still of use.
    pub(crate) fn add(&mut self, now: Time, from: Peer, encoded: &Bytes, oldest: u32) -> Added {
        self.distrusted.retain(|_, since| now.since(*since) < DISTRUST);
        if self.distrusted.contains_key(&from) {
            return Added::Ignored;
        }
        let Some(manifest) = Manifest::read(encoded) else { return Added::Forged };
        let place = match self.place(manifest.start) {
            Err(place) if manifest.last_group() >= oldest => place,
            _ => return Added::Known,
        };
        let Some(manifest) = self.public.as_ref().and_then(|key| self.shared.verify(manifest, key)) else {
            if self.distrusted.len() < MOST_DISTRUSTED {
                self.distrusted.insert(from, now);
            }
            return Added::Forged;
        };
        let tree = manifest.tree;
        for held in self.held.iter_mut().filter(|held| held.asked == 0 && held.key < manifest.start) {
            held.ask_at = now;
        }
        self.manifests.insert(place, (manifest.start, manifest));
        while let Some((_, first)) = self.manifests.front()
            && (self.manifests.len() > MOST_MANIFESTS || first.last_group() < oldest)
        {
            self.manifests.pop_front();
        }
        Added::New(tree)
    }

    /// Holds a packet until its manifest arrives. The oldest one of its slice makes room.
    pub(crate) fn hold(&mut self, now: Time, from: Peer, tree: bool, key: Key, bytes: Bytes) {
        let same = |held: &Held| held.key.slice == key.slice;
        if self.held.iter().filter(|held| same(held)).count() >= MOST_HELD
            && let Some(first) = self.held.iter().position(same)
        {
            self.held.remove(first);
        }
        self.held.push_back(Held { at: now, from, tree, key, bytes, asked: 0, ask_at: now + WAIT });
    }

    /// Whether a packet is held.
    pub(crate) fn holds(&self, key: Key) -> bool {
        self.held.iter().any(|held| held.key == key)
    }

    /// Takes the packets of which the manifest is here.
    pub(crate) fn take_listed(&mut self) -> Vec<Held> {
        let (listed, held) =
            std::mem::take(&mut self.held).into_iter().partition(|held| self.manifest(held.key).is_some());
        self.held = held;
        listed.into()
    }

    /// When [`Verifier::ask`] is due.
    pub(crate) fn next_time(&self) -> Time {
        let next = self.held.iter().map(|held| held.ask_at).min().unwrap_or(Time::NEVER);
        let (since, asks) = self.asks;
        if asks < ASKS_AT_ONCE { next } else { next.max(since + AGAIN) }
    }

    /// Drops packets after `patience` and chooses the next request for a manifest.
    ///
    /// Returns a packet that the manifest lists, the sender of this packet, and the number of requests before. The
    /// sender has the manifest, because it checked the packet. `None` means that no request is due.
    pub(crate) fn ask(&mut self, now: Time, patience: Span) -> Option<(Key, Peer, u8)> {
        self.held.retain(|held| now.since(held.at) <= patience && held.asked <= MOST_ASKS);
        if now.since(self.asks.0) >= AGAIN {
            self.asks = (now, 0);
        }
        if self.asks.1 >= ASKS_AT_ONCE {
            return None;
        }
        let due = self.held.iter().filter(|held| held.ask_at <= now);
        // A forged position must not delay the requests for others.
        let first = due.min_by_key(|held| (held.asked, held.key))?;
        let (key, from, asked) = (first.key, first.from, first.asked);
        self.asks.1 += 1;
        // One manifest lists its neighbours too.
        for held in self.held.iter_mut().filter(|held| held.key.group.abs_diff(key.group) < GROUPS) {
            (held.asked, held.ask_at) = (asked + 1, now + AGAIN);
        }
        Some((key, from, asked))
    }
}

/// Results of checks that the viewers of one process share.
///
/// A simulation hands the same bytes to thousands of viewers. The result for the same memory is the same, so it is
/// computed once. By default nothing is shared.
#[derive(Clone, Default)]
pub struct SharedChecks(Option<Rc<RefCell<Results>>>);

impl fmt::Debug for SharedChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedChecks").field(&self.0.is_some()).finish()
    }
}

struct Results {
    hashes: Vec<Option<(Bytes, Hash)>>,
    manifests: Vec<Option<(Bytes, Option<Rc<Manifest>>)>>,
}

/// Places for results: packets and manifests of the last seconds.
const PACKETS: usize = 1 << 13;
const MANIFESTS: usize = 1 << 9;

/// Whether both are the same memory. The stored bytes keep it from being used again.
fn is_same(a: &Bytes, b: &Bytes) -> bool {
    a.as_ptr() == b.as_ptr() && a.len() == b.len()
}

impl SharedChecks {
    /// Results for viewers of one process that hold the same server's key.
    pub fn shared() -> SharedChecks {
        let results = Results { hashes: vec![None; PACKETS], manifests: vec![None; MANIFESTS] };
        SharedChecks(Some(Rc::new(RefCell::new(results))))
    }

    fn hash(&self, key: Key, bytes: &Bytes) -> Hash {
        let Some(results) = &self.0 else { return hash(bytes) };
        let place = (key.group as usize * MAX_SLICES + usize::from(key.slice)) % PACKETS;
        let place = &mut results.borrow_mut().hashes[place];
        match place {
            Some((known, hash)) if is_same(known, bytes) => *hash,
            _ => place.insert((bytes.clone(), hash(bytes))).1,
        }
    }

    fn verify(&self, manifest: Manifest, key: &VerifyingKey) -> Option<Rc<Manifest>> {
        let check = |manifest: Manifest| manifest.is_by(key).then(|| Rc::new(manifest));
        let Some(results) = &self.0 else { return check(manifest) };
        let place = &mut results.borrow_mut().manifests[manifest.start.group as usize % MANIFESTS];
        match place {
            Some((known, result)) if is_same(known, &manifest.encoded) => result.clone(),
            _ => {
                let bytes = manifest.encoded.clone();
                place.insert((bytes, check(manifest))).1.clone()
            }
        }
    }
}
