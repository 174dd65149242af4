//! Over which relays a client's circuits go.

use std::cell::Cell;

use tidegate_proto::cell::RelayId;

use crate::identity::random;

/// A relay as the client knows it.
#[derive(Clone)]
pub struct Known {
    pub id: RelayId,
    pub nickname: String,
    pub bandwidth: u64,
    pub exit: bool,
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

/// A path of so many of these relays by bandwidth, all different: an exit last, the same guard first as long as it is
/// listed. `beside` another path it ends at the same exit and shares no other relay with it.
pub fn path(
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
    fn two_paths_share_the_exit_alone_and_each_keeps_its_guard() {
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
