//! Repairs: the server sends missing packets again, within limits.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use tidegate_control::units::{Rate, Span, Time};

use crate::Peer;
use crate::bucket::Bucket;
use crate::forest::Forest;
use crate::packet::{Key, PAYLOAD};
use crate::signing::Signer;
use crate::source::Source;

/// Share of the server's uplink for repairs; half of it while viewers lack parents.
const SHARE: f64 = 0.08;
/// How long a repaired packet takes to reach the viewers below the repaired one.
const PASSING: Span = Span::from_millis(400);

/// Limits repairs and remembers recent ones.
pub(super) struct Repairs {
    uplink: Rate,
    left: Bucket,
    /// Recent repairs in order of time, and the same as a set.
    sent: VecDeque<(Time, Key, Peer)>,
    known: BTreeSet<(Key, Peer)>,
}

/// Packets and manifests that the server has sent.
pub(super) struct Sent<'a> {
    pub(super) source: &'a Source,
    pub(super) signer: &'a Signer,
}

impl Sent<'_> {
    /// A packet or manifest for a request, with its slice.
    fn get(&self, key: Key) -> Option<(Key, usize, Bytes)> {
        let Some(listed) = key.listed() else {
            return self.source.get(key).map(|bytes| (key, usize::from(key.slice), bytes));
        };
        let manifest = self.signer.manifest(listed)?;
        Some((manifest.start.of_manifest(), usize::from(manifest.tree), manifest.encoded().clone()))
    }
}

/// The answer to a request for repairs.
pub(super) struct Repaired {
    pub(super) packets: Vec<Bytes>,
    /// Number of packets that the limits forbid.
    pub(super) denied: u64,
}

impl Repairs {
    pub(super) fn new(uplink: Rate) -> Repairs {
        Repairs { uplink, left: Bucket::FULL, sent: VecDeque::new(), known: BTreeSet::new() }
    }

    /// Chooses the packets to send again. `bucket` limits the viewer that asks.
    pub(super) fn answer(
        &mut self,
        now: Time,
        request: (Peer, &[Key]),
        bucket: &mut Bucket,
        in_need: bool,
        sent: &Sent<'_>,
        forest: &Forest,
    ) -> Repaired {
        let share = if in_need { SHARE / 2.0 } else { SHARE };
        let all = self.uplink.as_bytes_per_s() * share;
        // One viewer gets at most a quarter of all repairs and a quarter of the stream.
        let one = (sent.source.rate().as_bytes_per_s() * 0.25).min(all / 4.0).max(2.0 * PAYLOAD as f64);
        self.forget_old(now);
        let (from, keys) = request;
        let mut repaired = Repaired { packets: Vec::new(), denied: 0 };
        for key in keys {
            // A packet that is too old, or was never sent, cannot be repaired.
            let Some((key, slice, bytes)) = sent.get(*key) else { continue };
            let mut ancestors = forest.tree(slice).upwards(from).skip(1);
            if ancestors.any(|peer| self.known.contains(&(key, peer))) {
                // The tree delivers the packet soon.
                continue;
            }
            let cost = bytes.len() as f64;
            let granted = bucket.take(now, cost, one, 4.0 * one)
                && self.left.take(now, cost, all, (2.0 * all).max(8.0 * PAYLOAD as f64));
            if !granted {
                repaired.denied += 1;
                continue;
            }
            if self.known.insert((key, from)) {
                self.sent.push_back((now, key, from));
            }
            repaired.packets.push(bytes);
        }
        repaired
    }

    fn forget_old(&mut self, now: Time) {
        while let Some((at, key, peer)) = self.sent.front()
            && now.since(*at) > PASSING
        {
            self.known.remove(&(*key, *peer));
            self.sent.pop_front();
        }
    }
}
