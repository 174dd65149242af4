//! Handovers: an old parent goes on serving a child for a moment after the child moved.

use std::collections::VecDeque;

use tidegate_control::units::{Span, Time};

use crate::Peer;

/// How long the old parent goes on after the new parent was told to begin.
const OVERLAP: Span = Span::from_millis(400);

/// A child that its old parent still serves.
pub(super) struct Handover {
    until: Time,
    pub(super) slice: usize,
    pub(super) from: Peer,
    pub(super) child: Peer,
}

/// The handovers in progress, in order of their ends.
#[derive(Default)]
pub(super) struct Handovers {
    pending: VecDeque<Handover>,
}

impl Handovers {
    /// `child` moves away from `from`.
    pub(super) fn begin(&mut self, now: Time, slice: usize, from: Peer, child: Peer) {
        self.pending.push_back(Handover { until: now + OVERLAP, slice, from, child });
    }

    /// `child` moves back to `parent`, which must not release it.
    pub(super) fn cancel(&mut self, slice: usize, parent: Peer, child: Peer) {
        self.pending.retain(|old| (old.slice, old.from, old.child) != (slice, parent, child));
    }

    /// Removes the next handover that is over.
    pub(super) fn pop_finished(&mut self, now: Time) -> Option<Handover> {
        self.pending.front().filter(|handover| handover.until <= now)?;
        self.pending.pop_front()
    }

    /// The children that `parent` still serves in a slice.
    pub(super) fn children(&self, slice: usize, parent: Peer) -> impl Iterator<Item = Peer> {
        let of_parent = move |old: &&Handover| (old.slice, old.from) == (slice, parent);
        self.pending.iter().filter(of_parent).map(|old| old.child)
    }

    /// Whether one of two peers still serves the other.
    pub(super) fn connect(&self, a: Peer, b: Peer) -> bool {
        self.pending.iter().any(|old| [(a, b), (b, a)].contains(&(old.from, old.child)))
    }

    /// Removes the handovers of a viewer that left.
    pub(super) fn forget(&mut self, peer: Peer) {
        self.pending.retain(|old| old.from != peer && old.child != peer);
    }
}
