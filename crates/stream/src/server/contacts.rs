//! Who is told of whom: contacts, and what changed in the trees.

use tidegate_control::units::{Span, Time};

use super::Server;
use crate::message::Message;
use crate::tree::NOBODY;
use crate::{Peer, SERVER};

/// The old parent goes on for so long after the new one was told to begin.
const OVERLAP: Span = Span::from_millis(400);
/// The most contacts of one viewer beyond those that trees need.
const MET: usize = 32;

impl Server {
    /// Both learn where the other is found.
    pub(super) fn meet(&mut self, a: Peer, b: Peer) {
        for (peer, other) in [(a, b), (b, a)] {
            let Some(contact) = self.member(other).map(|member| member.contact) else { return };
            let Some(member) = &mut self.members[usize::from(peer)] else { return };
            if !member.met.contains(&other) {
                member.met.push(other);
                let forgotten = if member.met.len() > MET { self.forgettable(peer) } else { None };
                self.tell(peer, Message::Meet(other, contact));
                if let Some(old) = forgotten {
                    self.part(peer, old);
                }
            }
        }
    }

    /// The oldest contact of `peer` that no tree needs.
    fn forgettable(&self, peer: Peer) -> Option<Peer> {
        let needed = |other: Peer| {
            let related = |slice| {
                let tree = self.forest.tree(slice);
                tree.parent(peer) == other || tree.parent(other) == peer
            };
            (0..self.forest.slices()).any(related)
                || self.releases.iter().any(|(_, _, from, child)| {
                    (*from, *child) == (peer, other) || (*from, *child) == (other, peer)
                })
        };
        let met = &self.member(peer)?.met;
        met[..met.len() - 1].iter().copied().find(|other| !needed(*other))
    }

    fn part(&mut self, a: Peer, b: Peer) {
        for (peer, other) in [(a, b), (b, a)] {
            if let Some(member) = &mut self.members[usize::from(peer)] {
                member.met.retain(|met| *met != other);
                self.tell(peer, Message::Forget(other));
            }
        }
    }

    /// Tells viewers what changed in the trees: the new parent at once, the old one a little later.
    pub(super) fn tell_changes(&mut self, now: Time) {
        for change in self.forest.take_changes() {
            let (at, child) = (change.slice as u8, change.child);
            self.counters.moves += 1;
            if change.from != NOBODY {
                self.releases.push_back((now + OVERLAP, change.slice, change.from, child));
            }
            if change.to == NOBODY {
                continue;
            }
            // Whom it goes back to must not release it.
            self.releases.retain(|(_, s, from, c)| (*s, *from, *c) != (change.slice, change.to, child));
            if change.to != SERVER {
                self.meet(change.to, child);
                self.tell(change.to, Message::Adopt { slice: at, child });
            }
            let depth = self.forest.tree(change.slice).depth(child).unwrap_or(0).min(255) as u8;
            if self.member(child).is_some() {
                self.tell(child, Message::Parent { slice: at, parent: change.to, depth });
            }
        }
    }

    pub(super) fn release(&mut self, now: Time) {
        while self.releases.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, slice, from, child)) = self.releases.pop_front() else { break };
            if from != SERVER && self.member(from).is_some() {
                self.tell(from, Message::Release { slice: slice as u8, child });
            }
        }
    }
}
