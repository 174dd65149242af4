//! Turns at a resource that serves one at a time: groups take turns, and the entries of a group share those of the group.
//!
//! So an address with a thousand connections has as many turns as an address with one.

use std::collections::{BTreeMap, BTreeSet};

/// A group, of which the entries share the turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing<G> {
    /// The group.
    pub group: G,
    /// Its turns in a round, at least 1. A group with fewer entries has a turn for each.
    pub turns: usize,
}

/// Waiting entries `E` of groups `G`.
#[derive(Clone, Debug)]
pub struct Turns<G, E> {
    /// The last number of an entry or a turn.
    last: u64,
    /// The order of turns.
    order: BTreeMap<u64, Turn<G, E>>,
    groups: BTreeMap<G, Group<E>>,
    /// The group that has its turn, if others of its entries wait. It waits again when its turn is over, as an entry does that
    /// wants another one: otherwise it would have more turns than a single entry.
    in_turn: Option<G>,
}

#[derive(Clone, Debug)]
enum Turn<G, E> {
    Group(G),
    Alone(E),
}

#[derive(Clone, Debug)]
struct Group<E> {
    /// Its turns in the order: at most `most` with the one that it has now, and at most one for each entry.
    turns: BTreeSet<u64>,
    most: usize,
    entries: BTreeMap<u64, E>,
}

/// The place of a waiting entry.
#[derive(Clone, Debug)]
pub struct Place<G> {
    group: Option<G>,
    number: u64,
}

impl<G, E> Default for Turns<G, E> {
    fn default() -> Self {
        Turns { last: 0, order: BTreeMap::new(), groups: BTreeMap::new(), in_turn: None }
    }
}

impl<G: Ord + Clone, E> Turns<G, E> {
    /// Lets an entry wait for a turn of its group; `None`: for one of its own.
    pub fn wait(&mut self, sharing: Option<Sharing<G>>, entry: E) -> Place<G> {
        self.last += 1;
        let number = self.last;
        let Some(Sharing { group, turns }) = sharing else {
            self.order.insert(number, Turn::Alone(entry));
            return Place { group: None, number };
        };
        let empty = || Group { turns: BTreeSet::new(), most: turns, entries: BTreeMap::new() };
        let waiting = self.groups.entry(group.clone()).or_insert_with(empty);
        waiting.most = turns;
        waiting.entries.insert(number, entry);
        self.queue(&group);
        Place { group: Some(group), number }
    }

    /// Puts a turn of a group at the end of the order, if the group may have another one.
    fn queue(&mut self, group: &G) {
        let Some(waiting) = self.groups.get_mut(group) else { return };
        let now = usize::from(self.in_turn.as_ref() == Some(group));
        if waiting.turns.len() < waiting.entries.len() && waiting.turns.len() + now < waiting.most {
            self.last += 1;
            waiting.turns.insert(self.last);
            self.order.insert(self.last, Turn::Group(group.clone()));
        }
    }

    /// Ends the present turn, and takes the entry that has the next one.
    pub fn take(&mut self) -> Option<E> {
        if let Some(group) = self.in_turn.take() {
            self.queue(&group);
        }
        let (number, turn) = self.order.pop_first()?;
        match turn {
            Turn::Alone(entry) => Some(entry),
            Turn::Group(group) => {
                let waiting = self.groups.get_mut(&group)?;
                waiting.turns.remove(&number);
                let (_, entry) = waiting.entries.pop_first()?;
                if waiting.entries.is_empty() {
                    self.groups.remove(&group);
                } else {
                    self.in_turn = Some(group);
                }
                Some(entry)
            }
        }
    }

    /// Removes an entry, if it still waits.
    pub fn leave(&mut self, place: &Place<G>) {
        let Some(group) = &place.group else {
            self.order.remove(&place.number);
            return;
        };
        let Some(waiting) = self.groups.get_mut(group) else { return };
        waiting.entries.remove(&place.number);
        // A group has at most one turn for each entry.
        let turn = (waiting.turns.len() > waiting.entries.len()).then(|| waiting.turns.pop_last()).flatten();
        turn.and_then(|turn| self.order.remove(&turn));
        if waiting.entries.is_empty() {
            self.groups.remove(group);
        }
    }

    /// Keeps only the entries for which `stays` returns true.
    pub fn retain(&mut self, stays: impl Fn(&E) -> bool) {
        for waiting in self.groups.values_mut() {
            waiting.entries.retain(|_, entry| stays(entry));
            while waiting.turns.len() > waiting.entries.len() {
                waiting.turns.pop_last();
            }
        }
        self.groups.retain(|_, waiting| !waiting.entries.is_empty());
        self.order.retain(|number, turn| match turn {
            Turn::Alone(entry) => stays(entry),
            Turn::Group(group) => {
                self.groups.get(group).is_some_and(|waiting| waiting.turns.contains(number))
            }
        });
    }

    /// Whether no entry waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.groups.is_empty()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Turns::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The group of that letter, which has one turn.
    fn one(group: Option<char>) -> Option<Sharing<char>> {
        group.map(|group| Sharing { group, turns: 1 })
    }

    fn rest(turns: &mut Turns<char, u32>) -> Vec<u32> {
        let taken = std::iter::from_fn(|| turns.take()).collect();
        assert!(turns.is_empty() && turns.groups.is_empty());
        taken
    }

    #[test]
    fn groups_take_turns_and_share_them_in_order() {
        let mut turns = Turns::default();
        for entry in 1..=4 {
            turns.wait(one(Some('a')), entry);
        }
        for (group, entry) in [(Some('b'), 10), (None, 20), (None, 21), (Some('b'), 11)] {
            turns.wait(one(group), entry);
        }
        assert_eq!(rest(&mut turns), [1, 10, 20, 21, 2, 11, 3, 4]);
    }

    /// Entries that want another turn after each one. A group of many has as many turns as one entry.
    #[test]
    fn a_crowd_has_as_many_turns_as_one() {
        let mut turns = Turns::default();
        let group = |entry: u32| match entry {
            0 => Some('b'),
            1 => None,
            _ => Some('a'),
        };
        for entry in 1..100 {
            turns.wait(one(group(entry)), entry);
        }
        let (mut counts, mut served) = ([0; 3], 0);
        for _ in 0..300 {
            let next = turns.take().expect("many wait");
            turns.wait(one(group(served)), served);
            counts[served.min(2) as usize] += 1;
            served = next;
        }
        assert!(counts.iter().all(|count| (99..=101).contains(count)), "{counts:?}");
    }

    /// A group with several turns has one for each entry, up to that number.
    #[test]
    fn a_group_has_no_more_turns_than_entries_and_than_it_may() {
        for (entries, turns, share) in [(3, 4, 3), (4, 4, 4), (100, 4, 4)] {
            let group = |entry: u32| (entry > 0).then_some(Sharing { group: 'a', turns });
            let mut waiting = Turns::default();
            for entry in 0..=entries {
                waiting.wait(group(entry), entry);
            }
            let (mut alone, mut served) = (0, waiting.take().unwrap());
            for _ in 0..1000 {
                alone += u32::from(served == 0);
                let next = waiting.take().expect("many wait");
                waiting.wait(group(served), served);
                served = next;
            }
            let due = 1000 / (share + 1);
            assert!(alone.abs_diff(due) <= due / 20, "{entries} entries: {alone} of {due}");
            waiting.retain(|entry| *entry % 2 == 0);
            let mut left: Vec<u32> = std::iter::from_fn(|| waiting.take()).collect();
            left.push(served);
            left.sort_unstable();
            left.dedup();
            assert!(left.iter().filter(|entry| **entry % 2 == 0).count() as u32 >= entries / 2, "{left:?}");
        }
    }

    #[test]
    fn entries_that_leave_hold_up_none() {
        let mut turns = Turns::default();
        let waiting = [(Some('a'), 1), (Some('a'), 2), (Some('b'), 3), (None, 4), (None, 5)];
        let places: Vec<_> =
            waiting.into_iter().map(|(group, entry)| turns.wait(one(group), entry)).collect();
        for place in [0, 2, 3] {
            turns.leave(&places[place]);
            turns.leave(&places[place]);
        }
        // A group without entries is gone, and may come again.
        turns.wait(one(Some('b')), 6);
        assert_eq!(rest(&mut turns), [2, 5, 6]);
        turns.leave(&places[1]);
        for (group, entry) in waiting {
            turns.wait(one(group), entry);
        }
        turns.retain(|entry| ![1, 3, 5].contains(entry));
        assert_eq!(rest(&mut turns), [2, 4]);
        turns.wait(one(Some('a')), 7);
        turns.clear();
        assert!(rest(&mut turns).is_empty());
    }
}
