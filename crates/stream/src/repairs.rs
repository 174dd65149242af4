//! Repairs of the server: what is left for them, and who was sent what lately.

use std::collections::{BTreeSet, VecDeque};

use tidegate_control::units::{Span, Time};

use crate::Peer;
use crate::bucket::Bucket;
use crate::packet::Key;

/// What a viewer was sent is on its way to those below it for so long.
const PASSING: Span = Span::from_millis(400);

/// Repairs.
#[derive(Debug)]
pub struct Repairs {
    /// What is left for them.
    pub left: Bucket,
    sent: VecDeque<(Time, Key, Peer)>,
    /// The same, to look up.
    known: BTreeSet<(Key, Peer)>,
}

impl Default for Repairs {
    fn default() -> Repairs {
        Repairs { left: Bucket::FULL, sent: VecDeque::new(), known: BTreeSet::new() }
    }
}

impl Repairs {
    /// A viewer is sent a packet.
    pub fn sent(&mut self, now: Time, key: Key, peer: Peer) {
        if self.known.insert((key, peer)) {
            self.sent.push_back((now, key, peer));
        }
    }

    /// Whether a viewer was sent a packet lately.
    pub fn has(&self, key: Key, peer: Peer) -> bool {
        self.known.contains(&(key, peer))
    }

    /// Forgets what was sent long ago.
    pub fn forget(&mut self, now: Time) {
        while let Some((at, key, peer)) = self.sent.front()
            && now.since(*at) > PASSING
        {
            self.known.remove(&(*key, *peer));
            self.sent.pop_front();
        }
    }
}
