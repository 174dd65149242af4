//! Invariants of the trees.

use proptest::prelude::*;
use tidegate_control::random::Seed;

use super::*;

const PEERS: usize = 40;
const SLICES: usize = 4;

fn latencies(seed: u64) -> Latencies {
    let mut random = Seed::root(seed).random();
    let mut latencies = Latencies::new(PEERS);
    for a in 0..PEERS as Peer {
        for b in 0..a {
            let sample = random.uniform(1e3, 9e4);
            latencies.measured(a, b, sample, &mut random);
        }
    }
    latencies
}

/// Checks all invariants.
fn check(forest: &Forest) {
    let mut used = [0; PEERS];
    for (slice, tree) in forest.trees.iter().enumerate() {
        for peer in forest.members() {
            let path: Vec<Peer> = tree.upwards(*peer).take(PEERS + 1).collect();
            assert!(path.len() <= PEERS, "a ring around {peer}");
            let top = path[path.len() - 1];
            let waits = forest.orphans.contains(&(slice, top)) || forest.rooms.of(top).suspended;
            assert!(top == SERVER || waits, "{top} is lost");
        }
        for (peer, used) in used.iter_mut().enumerate() {
            *used += tree.children(peer as Peer).len();
            let may = forest.may_have_children(slice, peer as Peer);
            assert!(may || tree.children(peer as Peer).is_empty(), "{peer} may have no children");
        }
    }
    for (peer, used) in used.iter().enumerate() {
        let (budget, known) = forest.load(peer as Peer);
        assert_eq!(*used, known, "{peer}");
        assert!(*used <= budget, "{peer} carries {used} of {budget}");
    }
}

/// Replays the changes as viewers see them: the parent of each child.
fn replay(parents: &mut [[Peer; PEERS]; SLICES], forest: &mut Forest) {
    for change in forest.take_changes() {
        let at = &mut parents[change.slice][usize::from(change.child)];
        assert_eq!(*at, change.from, "{change:?}");
        *at = change.to;
    }
    for (slice, tree) in forest.trees.iter().enumerate() {
        for peer in 1..PEERS as Peer {
            assert_eq!(tree.parent(peer), parents[slice][usize::from(peer)]);
        }
    }
}

proptest! {
    #[test]
    fn invariants_hold_for_any_operations(seed: u64, rule in 0usize..3) {
        let rule = [Rule::Any, Rule::OneTree, Rule::Unicast][rule];
        let latencies = latencies(seed);
        let mut random = Seed::root(seed).fork("events").random();
        let mut forest = Forest::new(PEERS, SLICES, rule);
        let mut parents = [[NOBODY; PEERS]; SLICES];
        forest.set_budget(SERVER, 10 + random.below(20), &latencies);
        for _ in 0..120 {
            let peer = 1 + random.below(PEERS - 1) as Peer;
            let member = forest.members().contains(&peer);
            match random.below(6) {
                0 | 1 if !member => forest.join(peer, random.below(10), &latencies),
                0 if member => forest.leave(peer, &latencies),
                2 => forest.set_budget(peer, random.below(10), &latencies),
                4 if member && forest.rooms.of(peer).suspended => forest.set_avoided(peer, false),
                4 if member => forest.suspend(peer, &latencies),
                3 if member => forest.place_elsewhere(random.below(SLICES), peer, &latencies),
                _ => forest.optimise(50, 10, &mut random, &latencies),
            }
            forest.place_orphans(&latencies);
            check(&forest);
            replay(&mut parents, &mut forest);
        }
    }

    #[test]
    fn every_viewer_with_capacity_is_served(seed: u64) {
        let latencies = latencies(seed);
        let mut random = Seed::root(seed).random();
        let mut forest = Forest::new(PEERS, SLICES, Rule::Any);
        forest.set_budget(SERVER, 2 * SLICES, &latencies);
        for peer in 1..PEERS as Peer {
            let budget = random.below(2 * SLICES + 2);
            if forest.feasible_with(budget) {
                forest.join(peer, budget, &latencies);
                prop_assert_eq!(forest.orphans(), 0, "{} has no place", peer);
            }
            forest.optimise(20, 20, &mut random, &latencies);
            check(&forest);
        }
    }

    #[test]
    fn optimising_only_helps(seed: u64) {
        let latencies = latencies(seed);
        let mut random = Seed::root(seed).random();
        let mut forest = Forest::new(PEERS, SLICES, Rule::Any);
        forest.set_budget(SERVER, 2 * SLICES, &latencies);
        (1..PEERS as Peer).for_each(|peer| forest.join(peer, SLICES + 1, &latencies));
        let cost = |forest: &Forest| (0..SLICES).map(|s| forest.tree(s).cost()).sum::<i64>();
        let before = cost(&forest);
        forest.optimise(20_000, 20_000, &mut random, &latencies);
        prop_assert!(cost(&forest) < before);
        check(&forest);
    }
}

#[test]
fn a_smaller_budget_keeps_large_subtrees() {
    let latencies = latencies(1);
    let mut forest = Forest::new(PEERS, 1, Rule::Any);
    forest.set_budget(SERVER, 2, &latencies);
    forest.join(1, 3, &latencies);
    forest.join(2, 0, &latencies);
    forest.set_budget(SERVER, 1, &latencies);
    forest.join(3, 2, &latencies);
    forest.join(4, 0, &latencies);
    check(&forest);
    forest.set_budget(1, 1, &latencies);
    assert_eq!(forest.orphans(), 0);
    check(&forest);
    forest.set_budget(3, 0, &latencies);
    assert!(forest.orphans() > 0, "three viewers cannot hang on two places");
    check(&forest);
}

#[test]
fn viewers_are_not_placed_below_a_silent_one() {
    let latencies = latencies(1);
    let mut forest = Forest::new(PEERS, 1, Rule::Any);
    forest.set_budget(SERVER, 1, &latencies);
    (1..6).for_each(|peer| forest.join(peer, 3, &latencies));
    let silent = forest.tree(0).children(SERVER)[0];
    let complaining = forest.tree(0).children(silent).to_vec();
    forest.set_avoided(silent, true);
    for child in complaining {
        forest.place_elsewhere(0, child, &latencies);
        check(&forest);
        assert!(!forest.tree(0).is_below(child, silent), "{child} still gets nothing");
    }
    assert!(forest.tree(0).is_attached(silent));
}
