//! Which packets were opened before under one epoch's key.

use std::collections::BTreeSet;

use crate::wire::OpenError;

/// Most packets remembered per epoch, 8 bytes each and the set's share: 2,200 Sphinx packets a second for an hour.
const MOST: usize = 8_000_000;

/// The tags of opened packets. Those that are not yet in the file that outlives the process are kept apart.
#[derive(Debug, Default)]
pub struct ReplayTags {
    seen: BTreeSet<u64>,
    fresh: Vec<u64>,
}

impl ReplayTags {
    /// Whether the packet with this tag was opened.
    pub fn contains(&self, tag: u64) -> bool {
        self.seen.contains(&tag)
    }

    /// Remembers a packet.
    ///
    /// # Errors
    /// [`OpenError::Full`] if no more can be.
    pub fn insert(&mut self, tag: u64) -> Result<(), OpenError> {
        if self.full() {
            return Err(OpenError::Full);
        }
        if self.seen.insert(tag) {
            self.fresh.push(tag);
        }
        Ok(())
    }

    /// Whether no more can be remembered.
    pub fn full(&self) -> bool {
        self.seen.len() >= MOST
    }

    /// Remembers what an earlier process of this peer opened.
    pub fn restore(&mut self, tags: impl IntoIterator<Item = u64>) {
        self.seen.extend(tags.into_iter().take(MOST));
    }

    /// Tags since the last call, to be written down.
    pub fn take_fresh(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.fresh)
    }
}
