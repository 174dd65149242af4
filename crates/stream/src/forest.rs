//! The trees of all slices under one budget of children (thesis section 6.4.4).
//!
//! Operations: join, leave, adopt, switch, placement of orphans, demotion to leaf.

use std::collections::BTreeSet;

use tidegate_control::random::Random;

use crate::latency::Latencies;
use crate::room::{Place, Rooms};
use crate::tree::{NOBODY, Tree};
use crate::{Peer, SERVER};

/// Restricts which peers may have children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Any peer in any tree, as far as its uplink carries them (the thesis).
    Any,
    /// Each viewer in one tree only (SplitStream: Castro et al., SOSP 2003).
    OneTree,
    /// Only the server (unicast).
    Unicast,
}

/// A change of a child's parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The slice.
    pub slice: usize,
    /// The child.
    pub child: Peer,
    /// The old parent, or [`NOBODY`].
    pub from: Peer,
    /// The new parent, or [`NOBODY`].
    pub to: Peer,
}

/// The trees of all slices.
#[derive(Clone, Debug)]
pub struct Forest {
    trees: Vec<Tree>,
    rooms: Rooms,
    members: Vec<Peer>,
    /// Tops of the subtrees without a parent, by slice.
    orphans: BTreeSet<(usize, Peer)>,
    /// Whether an orphan or free capacity appeared since the last placement of orphans.
    news: bool,
    /// Slices that are not sent now.
    silent: Vec<bool>,
    rule: Rule,
    /// Uncertainty of latencies, microseconds. A move must gain more than this per viewer.
    noise: i64,
    changes: Vec<Change>,
}

/// Minimum gain of a move, microseconds summed over the subtree.
const WORTH: i64 = 40_000;
/// Minimum gain of a move, as a divisor of the subtree's latency.
const WORTHY: i64 = 5;
/// Cost of another slice from the same parent, microseconds. A viewer should not lose all slices with one parent.
const SHARED: i64 = 15_000;

impl Forest {
    /// Trees with only the server, for numbers below `peers`.
    pub(crate) fn new(peers: usize, slices: usize, rule: Rule) -> Forest {
        let mut rooms = Rooms::new(peers);
        rooms.change(SERVER, |place| place.member = true);
        Forest {
            trees: vec![Tree::new(peers); slices],
            rooms,
            members: Vec::new(),
            orphans: BTreeSet::new(),
            news: false,
            silent: vec![false; slices],
            rule,
            noise: 0,
            changes: Vec::new(),
        }
    }

    /// The tree of a slice.
    pub fn tree(&self, slice: usize) -> &Tree {
        &self.trees[slice]
    }

    /// Number of slices, including parity.
    pub fn slices(&self) -> usize {
        self.trees.len()
    }

    /// The viewers, in no particular order.
    pub fn members(&self) -> &[Peer] {
        &self.members
    }

    /// The budget of children of `peer` over all slices, and how many it has.
    pub fn load(&self, peer: Peer) -> (usize, usize) {
        let place = self.rooms.of(peer);
        (place.budget, place.used)
    }

    /// Whether one of two peers is the parent of the other in any slice.
    pub(crate) fn are_related(&self, a: Peer, b: Peer) -> bool {
        self.trees.iter().any(|tree| tree.parent(a) == b || tree.parent(b) == a)
    }

    /// Sum of the budgets of all peers.
    pub(crate) fn capacity(&self) -> usize {
        self.rooms.capacity()
    }

    /// Number of subtrees without a parent.
    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Takes the changes since the last call, in order.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Capacity divided by the number of children that all viewers are.
    pub(crate) fn spare(&self) -> f64 {
        self.capacity() as f64 / self.needed(self.members.len()).max(1) as f64
    }

    /// Number of children that `viewers` viewers are over all active slices.
    fn needed(&self, viewers: usize) -> usize {
        viewers * self.silent.iter().filter(|silent| !**silent).count()
    }

    /// Whether the capacity suffices for one more viewer that brings `budget`.
    pub(crate) fn feasible_with(&self, budget: usize) -> bool {
        let needed = self.needed(self.members.len() + 1);
        match self.rule {
            Rule::Unicast => self.rooms.of(SERVER).budget >= needed,
            Rule::Any | Rule::OneTree => self.capacity() + budget >= needed,
        }
    }

    /// Adds a viewer to every tree.
    pub(crate) fn join(&mut self, peer: Peer, budget: usize, latencies: &Latencies) {
        self.members.push(peer);
        self.carry(peer, |place| (place.member, place.budget) = (true, budget));
        for slice in (0..self.slices()).filter(|slice| !self.silent[*slice]).collect::<Vec<_>>() {
            self.orphans.insert((slice, peer));
            self.place(slice, peer, latencies);
        }
    }

    /// Starts or stops a slice. Children leave a stopped slice and free its capacity.
    pub(crate) fn set_active(&mut self, slice: usize, active: bool, latencies: &Latencies) {
        if self.silent[slice] != active {
            return;
        }
        self.silent[slice] = !active;
        for peer in self.members.clone() {
            if !active {
                self.move_under(slice, peer, NOBODY, latencies);
                self.orphans.remove(&(slice, peer));
            } else if !self.rooms.of(peer).suspended {
                self.orphans.insert((slice, peer));
                self.news = true;
            }
        }
        self.place_orphans(latencies);
    }

    /// Removes a viewer and finds new parents for its children.
    pub(crate) fn leave(&mut self, peer: Peer, latencies: &Latencies) {
        self.members.retain(|member| *member != peer);
        for slice in 0..self.slices() {
            self.orphans.remove(&(slice, peer));
            for child in self.trees[slice].children(peer).to_vec() {
                self.move_under(slice, child, NOBODY, latencies);
            }
            self.move_under(slice, peer, NOBODY, latencies);
            self.orphans.remove(&(slice, peer));
        }
        self.carry(peer, |place| *place = Place::default());
        self.place_orphans(latencies);
    }

    /// Detaches a silent viewer from all trees until [`Forest::set_avoided`].
    pub(crate) fn suspend(&mut self, peer: Peer, latencies: &Latencies) {
        self.carry(peer, |place| (place.avoided, place.suspended) = (true, true));
        for slice in 0..self.slices() {
            for child in self.trees[slice].children(peer).to_vec() {
                self.move_under(slice, child, NOBODY, latencies);
            }
            self.move_under(slice, peer, NOBODY, latencies);
            self.orphans.remove(&(slice, peer));
        }
        self.place_orphans(latencies);
    }

    /// Changes the budget of a viewer. Excess children, small subtrees and weak viewers first, go to other parents.
    pub(crate) fn set_budget(&mut self, peer: Peer, budget: usize, latencies: &Latencies) {
        let Place { member, used, budget: before, .. } = *self.rooms.of(peer);
        if !member || budget == before {
            return;
        }
        self.carry(peer, |place| place.budget = budget);
        let excess = used.saturating_sub(budget);
        if excess > 0 {
            let mut children: Vec<(i64, usize, usize, Peer)> = Vec::with_capacity(used);
            for (slice, tree) in self.trees.iter().enumerate() {
                let weight = |child: Peer| (tree.size(child), self.rooms.of(child).budget);
                children.extend(tree.children(peer).iter().map(|child| {
                    let (size, budget) = weight(*child);
                    (size, budget, slice, *child)
                }));
            }
            children.sort_unstable();
            for (.., slice, child) in children.into_iter().take(excess) {
                self.place_elsewhere(slice, child, latencies);
            }
        }
    }

    /// Sets whether a viewer gets new children. The end of avoidance also ends a suspension.
    pub(crate) fn set_avoided(&mut self, peer: Peer, avoided: bool) {
        let Place { avoided: before, suspended, .. } = *self.rooms.of(peer);
        if before == avoided {
            return;
        }
        self.carry(peer, |place| (place.avoided, place.suspended) = (avoided, place.suspended && avoided));
        // Capacity below this viewer is usable again.
        self.news = true;
        if suspended {
            let sent = (0..self.slices()).filter(|slice| !self.silent[*slice]);
            self.orphans.extend(sent.map(|slice| (slice, peer)));
        }
    }

    /// Changes a place and notes new capacity.
    fn carry(&mut self, peer: Peer, change: impl FnOnce(&mut Place)) {
        self.news |= self.rooms.change(peer, change);
    }

    /// Moves `child` to another parent if one has capacity.
    ///
    /// Otherwise the child takes the place of its parent if that is avoided. If the parent has too many children, the
    /// child becomes an orphan; else it stays.
    pub(crate) fn place_elsewhere(&mut self, slice: usize, child: Peer, latencies: &Latencies) {
        let parent = self.trees[slice].parent(child);
        if parent == NOBODY {
            return;
        }
        let Place { used, budget, avoided, .. } = *self.rooms.of(parent);
        match self.best_parent(slice, child, parent, latencies) {
            Some(other) => self.move_under(slice, child, other, latencies),
            None if avoided && self.take_place(slice, child, parent, latencies) => {}
            None if used > budget => {
                self.move_under(slice, child, NOBODY, latencies);
                self.place(slice, child, latencies);
            }
            None => {}
        }
    }

    /// Places orphans, the largest subtrees first, if anything changed since.
    pub(crate) fn place_orphans(&mut self, latencies: &Latencies) {
        if !std::mem::take(&mut self.news) {
            return;
        }
        let mut waiting: Vec<(usize, Peer)> = self.orphans.iter().copied().collect();
        waiting.sort_by_key(|(slice, peer)| (-self.trees[*slice].size(*peer), *slice, *peer));
        for (slice, peer) in waiting {
            self.place(slice, peer, latencies);
        }
    }

    /// Recomputes the delays. Latencies are uncertain by `noise` microseconds.
    pub(crate) fn refresh(&mut self, latencies: &Latencies, noise: i64) {
        self.noise = noise;
        self.trees.iter_mut().for_each(|tree| tree.refresh(latencies));
    }

    /// Tries random moves and makes at most `most` of those that gain enough.
    pub(crate) fn optimise(&mut self, tries: usize, most: usize, random: &mut Random, latencies: &Latencies) {
        let mut made = 0;
        for _ in 0..tries {
            if self.members.len() < 2 || made >= most {
                return;
            }
            let slice = random.below(self.slices());
            let child = self.members[random.below(self.members.len())];
            let other = match random.below(self.members.len() + 1) {
                0 => SERVER,
                n => self.members[n - 1],
            };
            if self.may_adopt(slice, other) {
                let gain = self.trees[slice].gain_of_adopting(other, child, latencies);
                let unrest = gain.map(|_| {
                    let old = self.trees[slice].parent(child);
                    let tree = &self.trees[slice];
                    let size = tree.size(child);
                    let worth = WORTH.max(tree.delay(child) * size / WORTHY).max(self.noise * size);
                    worth + SHARED * (self.shared(other, child) - self.shared(old, child) + 1)
                });
                if gain > unrest {
                    self.move_under(slice, child, other, latencies);
                    made += 1;
                    continue;
                }
            }
            let tree = &self.trees[slice];
            let worth = WORTH.max(self.noise * (tree.size(child) + tree.size(other)));
            if self.may_switch(slice, child, other)
                && tree.gain_of_switching(child, other, latencies) > Some(worth)
            {
                self.switch(slice, child, other, latencies);
                made += 1;
            }
        }
    }

    /// Number of slices that `child` gets from `parent`.
    fn shared(&self, parent: Peer, child: Peer) -> i64 {
        self.trees.iter().filter(|tree| tree.parent(child) == parent).count() as i64
    }

    fn may_have_children(&self, slice: usize, peer: Peer) -> bool {
        match self.rule {
            _ if peer == SERVER => true,
            Rule::Any => true,
            Rule::OneTree => usize::from(peer) % self.slices() == slice,
            Rule::Unicast => false,
        }
    }

    fn may_adopt(&self, slice: usize, peer: Peer) -> bool {
        let place = self.rooms.of(peer);
        place.used < place.budget && !place.avoided && self.may_have_children(slice, peer)
    }

    fn may_switch(&self, slice: usize, a: Peer, b: Peer) -> bool {
        let tree = &self.trees[slice];
        let (of_a, of_b) = (tree.children(a).len(), tree.children(b).len());
        let takes = |peer: Peer, gives: usize, gets: usize| {
            let place = self.rooms.of(peer);
            gets == 0
                || gets <= gives && self.may_have_children(slice, peer)
                || place.used - gives + gets <= place.budget
                    && !place.avoided
                    && self.may_have_children(slice, peer)
        };
        of_a + of_b > 0 && takes(a, of_a, of_b) && takes(b, of_b, of_a)
    }

    fn switch(&mut self, slice: usize, a: Peer, b: Peer, latencies: &Latencies) {
        let tree = &self.trees[slice];
        let mut moved: Vec<Peer> = tree.children(a).iter().chain(tree.children(b)).copied().collect();
        moved.extend([a, b]);
        let before: Vec<Peer> = moved.iter().map(|peer| tree.parent(*peer)).collect();
        self.trees[slice].switch(a, b, latencies);
        for (child, from) in moved.into_iter().zip(before) {
            let to = self.trees[slice].parent(child);
            if from != to {
                self.carry(from, |place| place.used -= 1);
                self.carry(to, |place| place.used += 1);
                self.changes.push(Change { slice, child, from, to });
            }
        }
    }

    /// Changes a parent. Apart from switches, this is the only function that does.
    fn move_under(&mut self, slice: usize, child: Peer, to: Peer, latencies: &Latencies) {
        let from = self.trees[slice].parent(child);
        if from == to {
            return;
        }
        self.trees[slice].detach(child);
        if from != NOBODY {
            self.carry(from, |place| place.used -= 1);
        }
        if to == NOBODY {
            self.orphans.insert((slice, child));
        } else {
            self.trees[slice].attach(child, to, latencies);
            self.carry(to, |place| place.used += 1);
            self.orphans.remove(&(slice, child));
        }
        // A new orphan, or capacity below a placed one.
        self.news |= from == NOBODY || to == NOBODY;
        self.changes.push(Change { slice, child, from, to });
    }

    /// Moves `child` to the place of its parent, if the child has enough capacity.
    fn take_place(&mut self, slice: usize, child: Peer, parent: Peer, latencies: &Latencies) -> bool {
        let above = self.trees[slice].parent(parent);
        let silent = |peer: Peer| self.rooms.of(peer).avoided;
        if above == NOBODY || self.trees[slice].upwards(above).any(silent) || !self.may_adopt(slice, child) {
            return false;
        }
        self.move_under(slice, child, NOBODY, latencies);
        self.move_under(slice, parent, NOBODY, latencies);
        self.move_under(slice, child, above, latencies);
        self.move_under(slice, parent, child, latencies);
        true
    }

    /// Places an orphan. Without capacity outside its own subtree, it takes the place of a leaf.
    fn place(&mut self, slice: usize, orphan: Peer, latencies: &Latencies) {
        if let Some(parent) = self.best_parent(slice, orphan, NOBODY, latencies) {
            return self.move_under(slice, orphan, parent, latencies);
        }
        let below = |peer: &Peer| self.trees[slice].is_below(*peer, orphan);
        // All free capacity is in the orphan's own subtree, which it cannot use before it has a parent itself.
        // So it takes a leaf's place, and the leaf moves below it.
        if !self.rooms.open().iter().any(|peer| self.may_adopt(slice, *peer) && below(peer)) {
            return;
        }
        let tree = &self.trees[slice];
        let keeps = |parent: Peer| {
            let place = self.rooms.of(parent);
            place.used <= place.budget && !place.avoided
        };
        let leaf = |peer: &&Peer| {
            let sound = tree.children(**peer).is_empty() && tree.is_attached(**peer);
            sound && keeps(tree.parent(**peer))
        };
        let found = self.members.iter().filter(leaf).min_by_key(|peer| {
            let parent = tree.parent(**peer);
            (tree.delay(parent) + i64::from(latencies.between(parent, orphan)), **peer)
        });
        let Some(&leaf) = found else { return };
        let parent = tree.parent(leaf);
        self.move_under(slice, leaf, NOBODY, latencies);
        self.move_under(slice, orphan, parent, latencies);
        if let Some(parent) = self.best_parent(slice, leaf, NOBODY, latencies) {
            self.move_under(slice, leaf, parent, latencies);
        }
    }

    /// The best parent with capacity for `child`, except `other`: the nearest to the server.
    fn best_parent(&self, slice: usize, child: Peer, other: Peer, latencies: &Latencies) -> Option<Peer> {
        let tree = &self.trees[slice];
        let mut best: Option<(i64, Peer)> = None;
        for peer in self.rooms.open().iter().copied() {
            if [child, other].contains(&peer) || !self.may_adopt(slice, peer) {
                continue;
            }
            let cost = tree.delay(peer) + i64::from(latencies.between(peer, child));
            if best.is_some_and(|best| (cost, peer) >= best) {
                continue;
            }
            let cost = cost + SHARED * self.shared(peer, child);
            if best.is_some_and(|best| (cost, peer) >= best) {
                continue;
            }
            // The walk to the top is expensive, so it comes last. It prevents rings and detached or silent parents.
            let mut top = peer;
            let outside = tree.upwards(peer).all(|at| {
                top = at;
                at != child && !self.rooms.of(at).avoided
            });
            if outside && top == SERVER {
                best = Some((cost, peer));
            }
        }
        best.map(|(_, peer)| peer)
    }
}

#[cfg(test)]
mod tests;
