//! The server's side: collects packets, signs their hashes, and sends the packets behind the manifest.

use std::collections::VecDeque;

use bytes::Bytes;
use ed25519_dalek::SigningKey;
use tidegate_control::units::{Span, Time};

use super::{GROUPS, Hash, MOST, Manifest, hash};
use crate::packet::Key;

/// A manifest is signed after this time, however few packets there are.
const LONGEST: Span = Span::from_millis(250);
/// How long a manifest leaves before its packets: trees differ in depth, and packets wait for manifests.
const LEAD: Span = Span::from_millis(100);
/// How long manifests stay for repairs.
const KEEP: Span = Span::from_secs(4);

/// Signs a stream and delays it until it is signed.
///
/// All packets of a manifest are delayed by the same time, so they keep their distances.
pub struct Signer {
    key: SigningKey,
    total: usize,
    /// Packets that are not signed yet, with the time of the first.
    block: Vec<(Time, Key, Bytes)>,
    /// Signed packets, with the times when they leave.
    leaving: VecDeque<(Time, Key, Bytes)>,
    /// Manifests that leave now, with their slices.
    manifests: Vec<(usize, Bytes)>,
    recent: VecDeque<(Time, Manifest)>,
    /// Number of manifests so far.
    signed: u64,
    /// Group of the last packet that left.
    newest: u32,
}

impl Signer {
    /// A signer of a stream with so many slices, including parity.
    pub fn new(secret: &[u8; 32], total: usize) -> Signer {
        Signer {
            key: SigningKey::from_bytes(secret),
            total,
            block: Vec::new(),
            leaving: VecDeque::new(),
            manifests: Vec::new(),
            recent: VecDeque::new(),
            signed: 0,
            newest: 1,
        }
    }

    /// The key with which viewers verify.
    pub fn public(&self) -> [u8; 32] {
        self.key.verifying_key().to_bytes()
    }

    /// Group of the last packet that left.
    pub(crate) fn newest(&self) -> u32 {
        self.newest
    }

    /// Takes the next packet. `active` is the number of data slices in use, among which manifests take turns.
    pub fn push(&mut self, now: Time, key: Key, packet: Bytes, active: usize) {
        if let Some((_, first, _)) = self.block.first()
            && self.place(*first, key) >= MOST
        {
            self.sign(now, active);
        }
        self.block.push((now, key, packet));
        let first = self.block[0].1;
        if usize::from(key.slice) + 1 == self.total && key.group - first.group + 1 >= GROUPS {
            self.sign(now, active);
        }
    }

    /// Position of a packet in a manifest that begins with `first`.
    fn place(&self, first: Key, key: Key) -> usize {
        (key.group - first.group) as usize * self.total + usize::from(key.slice) - usize::from(first.slice)
    }

    /// When [`Signer::due`] has something to send.
    pub(crate) fn next_time(&self) -> Time {
        if !self.manifests.is_empty() {
            return Time::ZERO;
        }
        let leaves = self.leaving.front().map_or(Time::NEVER, |(at, ..)| *at);
        self.block.first().map_or(leaves, |(since, ..)| leaves.min(*since + LONGEST))
    }

    /// Returns the manifests and packets that leave now, with their slices.
    pub fn due(&mut self, now: Time, active: usize) -> Vec<(usize, Bytes)> {
        if self.block.first().is_some_and(|(since, ..)| *since + LONGEST <= now) {
            self.sign(now, active);
        }
        let mut due = std::mem::take(&mut self.manifests);
        while let Some((at, ..)) = self.leaving.front()
            && *at <= now
            && let Some((_, key, bytes)) = self.leaving.pop_front()
        {
            self.newest = key.group;
            due.push((usize::from(key.slice), bytes));
        }
        due
    }

    fn sign(&mut self, now: Time, active: usize) {
        let Some((since, start, _)) = self.block.first().cloned() else { return };
        let last = self.block.last().map_or(0, |(_, key, _)| self.place(start, *key));
        let mut hashes: Vec<Hash> = vec![Hash::default(); last + 1];
        for (_, key, packet) in &self.block {
            hashes[self.place(start, *key)] = hash(packet);
        }
        let tree = (self.signed % active as u64) as u8;
        self.signed += 1;
        let manifest = Manifest::sign(&self.key, start, tree, self.total, hashes);
        self.manifests.push((usize::from(tree), manifest.encoded.clone()));
        // A driver that was late must not delay packets of later blocks.
        let delay = now.since(since).min(LONGEST) + LEAD;
        for (at, key, packet) in self.block.drain(..) {
            self.leaving.push_back((at + delay, key, packet));
        }
        self.recent.push_back((now, manifest));
        while self.recent.front().is_some_and(|(at, _)| now.since(*at) > KEEP) {
            self.recent.pop_front();
        }
    }

    /// The manifest that lists a packet, if it is still kept.
    pub(crate) fn manifest(&self, key: Key) -> Option<&Manifest> {
        let after = self.recent.partition_point(|(_, manifest)| manifest.start <= key);
        let (_, manifest) = self.recent.get(after.checked_sub(1)?)?;
        manifest.hash_of(key).map(|_| manifest)
    }
}
