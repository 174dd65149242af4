//! Replay defence: the packets opened under the key of one epoch.

use std::collections::BTreeSet;

use crate::wire::OpenError;

/// Maximum number of tags per epoch: 2,200 Sphinx packets/s for an hour, 8 bytes each plus the set.
const MOST: usize = 8_000_000;

/// Tags of opened packets. Tags that are not yet in the peer's file are kept separately.
#[derive(Debug, Default)]
pub struct ReplayTags {
    seen: BTreeSet<u64>,
    fresh: Vec<u64>,
}

impl ReplayTags {
    /// Whether the packet with this tag was opened.
    pub(crate) fn contains(&self, tag: u64) -> bool {
        self.seen.contains(&tag)
    }

    /// Records a packet.
    ///
    /// # Errors
    /// [`OpenError::Full`] at the limit.
    pub(crate) fn insert(&mut self, tag: u64) -> Result<(), OpenError> {
        if self.full() {
            return Err(OpenError::Full);
        }
        if self.seen.insert(tag) {
            self.fresh.push(tag);
        }
        Ok(())
    }

    /// Whether the limit is reached.
    pub(crate) fn full(&self) -> bool {
        self.seen.len() >= MOST
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
