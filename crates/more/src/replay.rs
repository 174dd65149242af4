//! Replay defence: the packets opened under the key of one epoch.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::paths::Peer;
use tidegate_control::shares::most_for_one;

use crate::wire::OpenError;

/// Maximum number of tags per epoch: 2,200 Sphinx packets/s for an hour, 8 bytes each plus the set.
const MOST: usize = 8_000_000;

/// Tags of opened packets. Tags that are not yet in the peer's file are kept separately.
///
/// Tags cannot make room for others, so [`most_for_one`] limits those of a network.
#[derive(Debug)]
pub struct ReplayTags {
    most: usize,
    seen: BTreeSet<u64>,
    fresh: Vec<u64>,
    /// Tags of each network's packets, by its first peer.
    of: BTreeMap<Peer, usize>,
}

impl Default for ReplayTags {
    fn default() -> ReplayTags {
        let (seen, fresh, of) = Default::default();
        ReplayTags { most: MOST, seen, fresh, of }
    }
}

impl ReplayTags {
    /// Whether the packet with this tag was opened.
    pub(crate) fn contains(&self, tag: u64) -> bool {
        self.seen.contains(&tag)
    }

    /// Records a packet of a network.
    ///
    /// # Errors
    /// [`OpenError::Full`] at the network's limit.
    pub(crate) fn insert(&mut self, network: Peer, tag: u64) -> Result<(), OpenError> {
        if self.full(network) {
            return Err(OpenError::Full);
        }
        if self.seen.insert(tag) {
            self.fresh.push(tag);
            *self.of.entry(network).or_default() += 1;
        }
        Ok(())
    }

    /// Whether a network has reached its limit.
    pub(crate) fn full(&self, network: Peer) -> bool {
        let own = self.of.get(&network).copied().unwrap_or(0);
        own >= most_for_one(self.most, self.seen.len())
    }

    /// Restores the tags of an earlier process of this peer.
    pub fn restore(&mut self, tags: impl IntoIterator<Item = u64>) {
        self.seen.extend(tags.into_iter().take(MOST));
    }

    /// Takes the tags since the last call, for the peer's file.
    pub fn take_fresh(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_leaves_as_much_memory_as_it_uses() {
        let mut tags = ReplayTags { most: 1000, ..ReplayTags::default() };
        let mut drawn = 0..;
        let mut fill = |tags: &mut ReplayTags, network| {
            let tag = |_: &usize| tags.insert(network, drawn.next().expect("there are more")).is_ok();
            (0..2000).take_while(tag).count()
        };
        let counts = [1, 2, 3, 1].map(|network| fill(&mut tags, network));
        assert_eq!(counts, [500, 250, 125, 0]);
        assert_eq!((0..10).filter(|newcomer| !tags.full(10 + newcomer)).count(), 10);
        let mut full = ReplayTags { most: 2, ..ReplayTags::default() };
        full.restore([7, 8]);
        assert!(full.full(1), "a packet that cannot be remembered is refused");
    }
}
