//! How a client selects the relays of its circuits.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;

use crate::identity::random;

/// A relay as the client knows it.
#[derive(Clone)]
pub(crate) struct Known {
    pub id: RelayId,
    pub nickname: String,
    pub bandwidth: u64,
    pub exit: bool,
}

/// Relays to avoid until a deadline: suspects of circuits that broke or were slow. A relay that is down would
/// also break the next circuit.
#[derive(Default)]
pub(crate) struct Avoided(BTreeMap<RelayId, Time>);

impl Avoided {
    const FOR: Span = Span::from_secs(10);

    /// A circuit broke or was slow, perhaps because of these relays.
    pub(crate) fn add(&mut self, now: Time, relays: &[Known]) {
        self.0.retain(|_, until| now < *until);
        self.0.extend(relays.iter().map(|relay| (relay.id, now + Avoided::FOR)));
    }

    /// The relays that are not avoided, then also those that have been avoided longest, and so on to all relays. The guard
    /// is never avoided.
    pub(crate) fn candidates(
        &self,
        now: Time,
        relays: &[Known],
        guard: Option<RelayId>,
    ) -> impl Iterator<Item = Vec<Known>> {
        let mut until: BTreeSet<Time> = self.0.values().copied().filter(|until| now < *until).collect();
        until.insert(now);
        until.into_iter().map(move |readmitted| {
            let avoided = |relay: &Known| self.0.get(&relay.id).is_some_and(|until| readmitted < *until);
            relays.iter().filter(|relay| Some(relay.id) == guard || !avoided(relay)).cloned().collect()
        })
    }
}

/// Draws an index by weight.
fn draw(weights: &[u64]) -> Option<usize> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut point = u128::from_le_bytes(random()).checked_rem(total)?;
    weights.iter().position(|weight| match point.checked_sub(u128::from(*weight)) {
        Some(rest) => {
            point = rest;
            false
        }
        None => true,
    })
}

/// Draws a path of `hops` different relays by bandwidth, an exit last. It reuses the guard while that is listed. A
/// path `beside` another ends at the same exit, and shares no other relay with it.
pub(crate) fn path(
    relays: &[Known],
    hops: usize,
    kept: &Cell<Option<RelayId>>,
    beside: &[Known],
) -> Option<Vec<Known>> {
    let pick = |fits: &dyn Fn(&Known) -> bool| {
        let weights: Vec<u64> =
            relays.iter().map(|relay| if fits(relay) { relay.bandwidth.max(1) } else { 0 }).collect();
        draw(&weights).map(|index| relays[index].clone())
    };
    let is_taken = |id: RelayId| beside.iter().any(|other| other.id == id);
    let guard = kept.get().filter(|guard| !is_taken(*guard));
    // Draw the exit first: exits are scarce, and the guard must not use one up.
    let exit = match beside.last() {
        Some(exit) => exit.clone(),
        None => pick(&|relay| relay.exit && Some(relay.id) != guard)?,
    };
    let mut path = vec![exit];
    while path.len() < hops {
        let guards = path.len() + 1 == hops;
        let known = relays.iter().find(|relay| guards && Some(relay.id) == guard).cloned();
        let fresh = |relay: &Known| {
            path.iter().all(|other| other.id != relay.id)
                && !is_taken(relay.id)
                && (guards || Some(relay.id) != guard)
        };
        path.push(known.or_else(|| pick(&fresh))?);
    }
    path.reverse();
    kept.set(Some(path[0].id));
    Some(path)
}

/// The path with another middle of higher bandwidth, drawn by bandwidth; `None` if other middles are not faster.
pub(crate) fn over_better_middle(relays: &[Known], mut path: Vec<Known>) -> Option<Vec<Known>> {
    let [_, middle, _] = &path[..] else { return None };
    let better =
        |relay: &Known| relay.bandwidth > middle.bandwidth && path.iter().all(|other| other.id != relay.id);
    let weights: Vec<u64> =
        relays.iter().map(|relay| if better(relay) { relay.bandwidth } else { 0 }).collect();
    path[1] = relays[draw(&weights)?].clone();
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_drawn_by_weight() {
        assert_eq!(draw(&[]), None);
        assert_eq!(draw(&[0, 0]), None);
        assert!((0..100).all(|_| draw(&[0, 7, 0]) == Some(1)));
        let drawn: Vec<usize> = (0..1000).map(|_| draw(&[9, 1]).unwrap()).collect();
        let rare = drawn.iter().filter(|index| **index == 1).count();
        assert!((20..300).contains(&rare), "{rare} of 1000 at one in ten");
    }

    #[test]
    fn a_better_middle_is_faster_and_not_on_the_path() {
        let relay = |n: u32| Known {
            id: RelayId(n),
            nickname: format!("{n}"),
            bandwidth: u64::from(n) + 1,
            exit: true,
        };
        let relays: Vec<Known> = (0..5).map(relay).collect();
        let path = |ids: [u32; 3]| ids.map(relay).to_vec();
        for _ in 0..50 {
            let better = over_better_middle(&relays, path([4, 1, 0])).unwrap();
            assert!([2, 3].contains(&better[1].id.0), "{}", better[1].id.0);
            assert_eq!((better[0].id, better[2].id), (RelayId(4), RelayId(0)));
        }
        assert!(over_better_middle(&relays, path([0, 4, 1])).is_none(), "no relay is faster");
        assert!(over_better_middle(&relays, path([4, 3, 0])).is_none(), "the faster one is the guard");
    }

    #[test]
    fn relays_of_a_broken_circuit_are_avoided_for_a_while() {
        let relay = |n: u32| Known { id: RelayId(n), nickname: format!("{n}"), bandwidth: 5, exit: true };
        let relays: Vec<Known> = (0..5).map(relay).collect();
        let mut avoided = Avoided::default();
        avoided.add(Time::ZERO + Span::from_secs(1), &relays[1..3]);
        avoided.add(Time::ZERO + Span::from_secs(2), &relays[3..4]);
        let ids = |at: u64| -> Vec<Vec<u32>> {
            let candidates = avoided.candidates(Time::ZERO + Span::from_secs(at), &relays, Some(RelayId(2)));
            candidates.map(|relays| relays.iter().map(|relay| relay.id.0).collect()).collect()
        };
        let all = vec![0, 1, 2, 3, 4];
        assert_eq!(ids(10), [vec![0, 2, 4], vec![0, 1, 2, 4], all.clone()], "the guard stays");
        assert_eq!(ids(11), [vec![0, 1, 2, 4], all.clone()]);
        assert_eq!(ids(12), [all]);
    }

    #[test]
    fn two_paths_share_only_the_exit_and_keep_their_guards() {
        let relay = |n: u32| Known { id: RelayId(n), nickname: format!("{n}"), bandwidth: 5, exit: n < 2 };
        let relays: Vec<Known> = (0..6).map(relay).collect();
        let (kept, second) = (Cell::new(None), Cell::new(None));
        let ids = |path: &[Known]| path.iter().map(|relay| relay.id).collect::<Vec<RelayId>>();
        for _ in 0..50 {
            let one = path(&relays, 3, &kept, &[]).unwrap();
            let other = path(&relays, 3, &second, &one).unwrap();
            assert_eq!((one[0].id, other[0].id), (kept.get().unwrap(), second.get().unwrap()));
            let (one, other) = (ids(&one), ids(&other));
            assert_eq!(one[2], other[2]);
            assert!(!one[..2].iter().any(|relay| other.contains(relay)), "{one:?} {other:?}");
        }
        let one = path(&relays[..4], 3, &Cell::new(None), &[]).unwrap();
        assert!(path(&relays[..4], 3, &Cell::new(None), &one).is_none(), "there are too few");
    }
}
