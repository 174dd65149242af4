//! Turns at a resource that serves one at a time: groups take turns, and the entries of a group share those of the group.
//!
//! So an address with a thousand connections has as many turns as an address with one.

use std::collections::BTreeMap;

/// Waiting entries `E` of groups `G`.
#[derive(Clone, Debug)]
pub struct Turns<G, E> {
    /// The last number of an entry or a turn.
    last: u64,
    /// The order of turns. A group with waiting entries is in it once, except during its turn.
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
    /// Its turn in the order; `None` during its turn.
    turn: Option<u64>,
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
    pub fn wait(&mut self, group: Option<G>, entry: E) -> Place<G> {
        self.last += 1;
        let number = self.last;
        if let Some(group) = &group {
            let waiting = self.groups.entry(group.clone()).or_insert_with(|| {
                self.order.insert(number, Turn::Group(group.clone()));
                Group { turn: Some(number), entries: BTreeMap::new() }
            });
            waiting.entries.insert(number, entry);
        } else {
            self.order.insert(number, Turn::Alone(entry));
        }
        Place { group, number }
    }

    /// Ends the present turn, and takes the entry that has the next one.
    pub fn take(&mut self) -> Option<E> {
        if let Some(group) = self.in_turn.take()
            && let Some(waiting) = self.groups.get_mut(&group)
            && waiting.turn.is_none()
        {
            self.last += 1;
            waiting.turn = Some(self.last);
            self.order.insert(self.last, Turn::Group(group));
        }
        match self.order.pop_first()?.1 {
            Turn::Alone(entry) => Some(entry),
            Turn::Group(group) => {
                let waiting = self.groups.get_mut(&group)?;
                let (_, entry) = waiting.entries.pop_first()?;
                if waiting.entries.is_empty() {
                    self.groups.remove(&group);
                } else {
                    waiting.turn = None;
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
        if waiting.entries.is_empty() {
            waiting.turn.and_then(|turn| self.order.remove(&turn));
            self.groups.remove(group);
        }
    }

    /// Keeps only the entries for which `stays` returns true.
    pub fn retain(&mut self, stays: impl Fn(&E) -> bool) {
        for waiting in self.groups.values_mut() {
            waiting.entries.retain(|_, entry| stays(entry));
        }
        self.groups.retain(|_, waiting| !waiting.entries.is_empty());
        self.order.retain(|_, turn| match turn {
            Turn::Alone(entry) => stays(entry),
            Turn::Group(group) => self.groups.contains_key(group),
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

    fn rest(turns: &mut Turns<char, u32>) -> Vec<u32> {
        let taken = std::iter::from_fn(|| turns.take()).collect();
        assert!(turns.is_empty() && turns.groups.is_empty());
        taken
    }

    #[test]
    fn groups_take_turns_and_share_them_in_order() {
        let mut turns = Turns::default();
        for entry in 1..=4 {
            turns.wait(Some('a'), entry);
        }
        for (group, entry) in [(Some('b'), 10), (None, 20), (None, 21), (Some('b'), 11)] {
            turns.wait(group, entry);
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
            turns.wait(group(entry), entry);
        }
        let (mut counts, mut served) = ([0; 3], 0);
        for _ in 0..300 {
            let next = turns.take().expect("many wait");
            turns.wait(group(served), served);
            counts[served.min(2) as usize] += 1;
            served = next;
        }
        assert!(counts.iter().all(|count| (99..=101).contains(count)), "{counts:?}");
    }

    #[test]
    fn entries_that_leave_hold_up_none() {
        let mut turns = Turns::default();
        let waiting = [(Some('a'), 1), (Some('a'), 2), (Some('b'), 3), (None, 4), (None, 5)];
        let places: Vec<_> = waiting.into_iter().map(|(group, entry)| turns.wait(group, entry)).collect();
        for place in [0, 2, 3] {
            turns.leave(&places[place]);
            turns.leave(&places[place]);
        }
        // A group without entries is gone, and may come again.
        turns.wait(Some('b'), 6);
        assert_eq!(rest(&mut turns), [2, 5, 6]);
        turns.leave(&places[1]);
        for (group, entry) in waiting {
            turns.wait(group, entry);
        }
        turns.retain(|entry| ![1, 3, 5].contains(entry));
        assert_eq!(rest(&mut turns), [2, 4]);
        turns.wait(Some('a'), 7);
        turns.clear();
        assert!(rest(&mut turns).is_empty());
    }
}
