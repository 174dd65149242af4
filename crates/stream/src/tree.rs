//! The tree of one slice, and the gain of moves in it (thesis section 6.4.4).
//!
//! The cost of a tree is the sum of all latencies to the server. Each viewer stores its latency to the server and the
//! size of its subtree, so the gain of a move does not require a walk over the subtree.

use crate::latency::Latencies;
use crate::{Peer, SERVER};

/// Stands for a missing parent.
pub const NOBODY: Peer = Peer::MAX;

/// A tree with [`SERVER`] as its root.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    parent: Peer,
    children: Vec<Peer>,
    /// Microseconds to the server along the tree; for an orphan, to the top of its subtree.
    delay: i64,
    /// Number of nodes of its subtree, including itself.
    size: i64,
}

impl Tree {
    /// Only the server, for numbers below `peers`.
    pub(crate) fn new(peers: usize) -> Tree {
        let node = Node { parent: NOBODY, children: Vec::new(), delay: 0, size: 1 };
        Tree { nodes: vec![node; peers] }
    }

    fn node(&self, peer: Peer) -> &Node {
        &self.nodes[usize::from(peer)]
    }

    fn node_mut(&mut self, peer: Peer) -> &mut Node {
        &mut self.nodes[usize::from(peer)]
    }

    /// The parent of `peer`; [`NOBODY`] for the server and for orphans.
    pub fn parent(&self, peer: Peer) -> Peer {
        self.node(peer).parent
    }

    /// The children of `peer`.
    pub fn children(&self, peer: Peer) -> &[Peer] {
        &self.node(peer).children
    }

    /// Microseconds from the server to `peer` along the tree.
    pub fn delay(&self, peer: Peer) -> i64 {
        self.node(peer).delay
    }

    /// Number of nodes of the subtree of `peer`.
    pub(crate) fn size(&self, peer: Peer) -> i64 {
        self.node(peer).size
    }

    /// The path from `peer` to the top of its subtree, `peer` first.
    pub(crate) fn upwards(&self, peer: Peer) -> impl Iterator<Item = Peer> + '_ {
        std::iter::successors(Some(peer), |at| Some(self.parent(*at)).filter(|parent| *parent != NOBODY))
    }

    /// Number of hops from the server; `None` in detached subtrees.
    pub(crate) fn depth(&self, peer: Peer) -> Option<usize> {
        let (mut hops, mut top) = (0, peer);
        for at in self.upwards(peer) {
            (hops, top) = (hops + 1, at);
        }
        (top == SERVER).then_some(hops - 1)
    }

    /// Whether `peer` is `above` or in its subtree.
    pub(crate) fn is_below(&self, peer: Peer, above: Peer) -> bool {
        self.upwards(peer).any(|at| at == above)
    }

    /// Whether a path leads from the server to `peer`.
    pub(crate) fn is_attached(&self, peer: Peer) -> bool {
        self.is_below(peer, SERVER)
    }

    /// Sum of all latencies to the server, microseconds, without detached subtrees.
    #[cfg(test)]
    pub(crate) fn cost(&self) -> i64 {
        let below = |peer: Peer| self.children(peer).iter().copied();
        let mut todo: Vec<Peer> = below(SERVER).collect();
        let mut sum = 0;
        while let Some(peer) = todo.pop() {
            sum += self.delay(peer);
            todo.extend(below(peer));
        }
        sum
    }

    /// Attaches `child` with its subtree to `parent`.
    ///
    /// # Panics
    /// If `child` has a parent, or would become its own ancestor.
    pub(crate) fn attach(&mut self, child: Peer, parent: Peer, latencies: &Latencies) {
        assert!(self.parent(child) == NOBODY && child != SERVER, "{child} has a parent");
        assert!(!self.is_below(parent, child), "{child} under {parent} would be a ring");
        self.node_mut(child).parent = parent;
        self.node_mut(parent).children.push(child);
        let by = self.delay(parent) + i64::from(latencies.between(parent, child)) - self.delay(child);
        self.shift(child, by);
        self.resize(parent, self.size(child));
    }

    /// Detaches `child` with its subtree.
    pub(crate) fn detach(&mut self, child: Peer) {
        let parent = std::mem::replace(&mut self.node_mut(child).parent, NOBODY);
        if parent != NOBODY {
            self.node_mut(parent).children.retain(|other| *other != child);
            self.shift(child, -self.delay(child));
            self.resize(parent, -self.size(child));
        }
    }

    /// Changes the delays of a subtree.
    fn shift(&mut self, top: Peer, by: i64) {
        let mut todo = vec![top];
        while let Some(peer) = todo.pop() {
            self.node_mut(peer).delay += by;
            todo.extend_from_slice(self.children(peer));
        }
    }

    fn resize(&mut self, from: Peer, by: i64) {
        let mut at = from;
        while at != NOBODY {
            self.node_mut(at).size += by;
            at = self.parent(at);
        }
    }

    /// Decrease of the cost if `child` moves under `parent`.
    ///
    /// `None` if that is impossible or changes nothing.
    pub(crate) fn gain_of_adopting(&self, parent: Peer, child: Peer, latencies: &Latencies) -> Option<i64> {
        let new = self.delay(parent) + i64::from(latencies.between(parent, child));
        let gain = (self.delay(child) - new) * self.size(child);
        // The walk is expensive and most moves gain nothing, so it comes last.
        let sound = gain > 0 && self.parent(child) != parent && self.parent(child) != NOBODY;
        (sound && !self.is_below(parent, child)).then_some(gain)
    }

    /// Decrease of the cost if `a` and `b` exchange their parents and children.
    ///
    /// `None` if one is an orphan or an ancestor of the other.
    pub(crate) fn gain_of_switching(&self, a: Peer, b: Peer, latencies: &Latencies) -> Option<i64> {
        let parents = (self.parent(a), self.parent(b));
        if a == b || parents.0 == NOBODY || parents.1 == NOBODY {
            return None;
        }
        let between = |x: Peer, y: Peer| i64::from(latencies.between(x, y));
        let place = |from: Peer, to: Peer| {
            // `to` takes the position of `from`.
            let delay = self.delay(self.parent(from)) + between(self.parent(from), to);
            let children = self.children(from).iter();
            let below: i64 =
                children.map(|c| self.size(*c) * (delay + between(to, *c) - self.delay(*c))).sum();
            delay + below
        };
        let gain = self.delay(a) + self.delay(b) - place(a, b) - place(b, a);
        let sound = gain > 0 && !self.is_below(a, b) && !self.is_below(b, a);
        sound.then_some(gain)
    }

    /// `a` and `b` exchange their parents and children. Neither may be an ancestor of the other.
    pub(crate) fn switch(&mut self, a: Peer, b: Peer, latencies: &Latencies) {
        let (above_a, above_b) = (self.parent(a), self.parent(b));
        let (below_a, below_b) = (self.children(a).to_vec(), self.children(b).to_vec());
        for child in below_a.iter().chain(&below_b).chain([&a, &b]) {
            self.detach(*child);
        }
        self.attach(a, above_b, latencies);
        self.attach(b, above_a, latencies);
        below_a.iter().for_each(|child| self.attach(*child, b, latencies));
        below_b.iter().for_each(|child| self.attach(*child, a, latencies));
    }

    /// Recomputes all delays from new latencies.
    pub(crate) fn refresh(&mut self, latencies: &Latencies) {
        let mut todo = vec![SERVER];
        while let Some(peer) = todo.pop() {
            let from = self.delay(peer);
            for child in self.children(peer).to_vec() {
                self.node_mut(child).delay = from + i64::from(latencies.between(peer, child));
                todo.push(child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_control::random::Seed;

    use super::*;

    const PEERS: usize = 24;

    /// A random tree over random latencies.
    fn random_tree(seed: u64) -> (Tree, Latencies) {
        let mut random = Seed::root(seed).random();
        let mut latencies = Latencies::new(PEERS);
        for a in 0..PEERS as Peer {
            for b in 0..a {
                let sample = random.uniform(1e3, 9e4);
                latencies.measured(a, b, sample, &mut random);
            }
        }
        let mut tree = Tree::new(PEERS);
        for peer in 1..PEERS as Peer {
            tree.attach(peer, random.below(usize::from(peer)) as Peer, &latencies);
        }
        (tree, latencies)
    }

    /// Compares sizes and delays with recomputed ones.
    fn check(tree: &Tree, latencies: &Latencies) {
        let mut fresh = tree.clone();
        fresh.refresh(latencies);
        for peer in 0..PEERS as Peer {
            assert!(tree.is_attached(peer), "{peer} is adrift");
            assert_eq!(fresh.delay(peer), tree.delay(peer), "{peer}");
            let size: i64 = tree.children(peer).iter().map(|child| tree.size(*child)).sum();
            assert_eq!(tree.size(peer), size + 1, "{peer}");
        }
    }

    proptest! {
        #[test]
        fn gains_match_moves_and_rings_never_form(seed: u64) {
            let (mut tree, latencies) = random_tree(seed);
            let mut random = Seed::root(seed).fork("moves").random();
            for _ in 0..200 {
                let (a, b) = (1 + random.below(PEERS - 1) as Peer, random.below(PEERS) as Peer);
                let before = tree.cost();
                let gain = if random.chance(0.5) {
                    let gain = tree.gain_of_adopting(b, a, &latencies);
                    if gain.is_some() {
                        tree.detach(a);
                        tree.attach(a, b, &latencies);
                    }
                    gain
                } else {
                    let gain = tree.gain_of_switching(a, b, &latencies);
                    if gain.is_some() {
                        tree.switch(a, b, &latencies);
                    }
                    gain
                };
                check(&tree, &latencies);
                prop_assert_eq!(before - tree.cost(), gain.unwrap_or(0));
            }
        }
    }
}
