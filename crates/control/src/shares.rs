//! Shares of a limited number of places: one admission policy for whatever peers can use up.
//!
//! A newcomer always gets a place. If all are taken, the largest holder of the largest group loses its idlest entry. So a
//! group keeps its entries as long as it has no more than an equal share of the places. A group is a network or the
//! neighbour that streams come through; a holder is an address of the network, or a circuit of that neighbour.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use crate::units::Time;

/// Maximum number of entries that one eviction examines. An entry that was used since its last look moves back.
const LOOKS: usize = 64;

/// A network and the part of it that counts as one host.
///
/// An IPv4 address is both. An IPv6 host can choose any address of its /64, and a customer often has a /48 (RFC 6177).
pub fn network(address: IpAddr) -> (IpAddr, IpAddr) {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix =
                |bits: u32| Ipv6Addr::from_bits(address.to_bits() >> (128 - bits) << (128 - bits)).into();
            (prefix(48), prefix(64))
        }
        v4 => (v4, v4),
    }
}

/// The most that one holder may have of a number of things that cannot make room: as many as are left for all.
///
/// One holder then gets half of them, two get a third each, and a newcomer always finds some.
pub fn most_for_one(all: usize, taken: usize) -> usize {
    all.saturating_sub(taken)
}

/// Entries `K` of holders `H` in groups `G`.
#[derive(Clone, Debug)]
pub struct Shares<G, H, K> {
    places: usize,
    entries: BTreeMap<K, (G, H, Time)>,
    groups: BTreeMap<G, Group<H, K>>,
    ranking: BTreeSet<Rank<G>>,
}

/// Orders by size, then by the age of the entry that would be lost.
type Rank<T> = (usize, Reverse<Time>, T);

#[derive(Clone, Debug)]
struct Group<H, K> {
    size: usize,
    /// Entries by their last known use.
    holders: BTreeMap<H, BTreeSet<(Time, K)>>,
    ranking: BTreeSet<Rank<H>>,
}

fn rank<H: Clone, K: Ord>(entries: &BTreeSet<(Time, K)>, holder: &H) -> Option<Rank<H>> {
    entries.first().map(|(used, _)| (entries.len(), Reverse(*used), holder.clone()))
}

/// The largest of a ranking, where a newcomer counts for the one that it belongs to.
fn largest<T: Ord + Clone>(ranking: &BTreeSet<Rank<T>>, newcomers: Option<Rank<T>>) -> Option<Rank<T>> {
    let newcomers = newcomers.map(|(size, age, of)| (size + 1, age, of));
    ranking.last().cloned().max(newcomers)
}

impl<H: Ord + Clone, K: Ord + Clone> Group<H, K> {
    /// The idlest entry of the largest holder, where a newcomer of one holder counts.
    fn idlest(&self, newcomer: Option<&H>) -> Option<&(Time, K)> {
        let own = newcomer.and_then(|holder| rank(self.holders.get(holder)?, holder));
        let (_, _, holder) = largest(&self.ranking, own)?;
        self.holders[&holder].first()
    }

    fn rank<G: Clone>(&self, group: &G) -> Option<Rank<G>> {
        self.idlest(None).map(|(used, _)| (self.size, Reverse(*used), group.clone()))
    }

    /// Changes the entries of a holder.
    fn change(&mut self, holder: H, act: impl FnOnce(&mut BTreeSet<(Time, K)>)) {
        let entries = self.holders.entry(holder.clone()).or_default();
        if let Some(rank) = rank(entries, &holder) {
            self.ranking.remove(&rank);
        }
        let before = entries.len();
        act(entries);
        self.size = self.size + entries.len() - before;
        if let Some(rank) = rank(entries, &holder) {
            self.ranking.insert(rank);
        } else {
            self.holders.remove(&holder);
        }
    }
}

impl<G: Ord + Clone, H: Ord + Clone, K: Ord + Clone> Shares<G, H, K> {
    /// Shares of this many places.
    ///
    /// # Panics
    /// If `places` is zero.
    pub fn new(places: usize) -> Self {
        assert!(places > 0, "zero places admit no peer");
        Shares { places, entries: BTreeMap::new(), groups: BTreeMap::new(), ranking: BTreeSet::new() }
    }

    /// Changes the number of places. The next newcomer displaces what is too much.
    ///
    /// # Panics
    /// If `places` is zero.
    pub fn set_places(&mut self, places: usize) {
        assert!(places > 0, "zero places admit no peer");
        self.places = places;
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it is without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of entries of a group.
    pub fn of_group(&self, group: &G) -> usize {
        self.groups.get(group).map_or(0, |group| group.size)
    }

    /// The holder of an entry; `None` without a place.
    pub fn holder(&self, key: &K) -> Option<&H> {
        self.entries.get(key).map(|(_, holder, _)| holder)
    }

    /// The entry that must make room before a newcomer is admitted, if all places are taken. It loses its place.
    /// `used` says when an entry was last used. Call it until it returns `None`.
    pub fn displaced(&mut self, (group, holder): &(G, H), used: impl Fn(&K) -> Time) -> Option<K> {
        if self.entries.len() < self.places {
            return None;
        }
        let idlest = self.idlest(group, holder, used)?;
        self.release(&idlest);
        Some(idlest)
    }

    /// Admits a newcomer after [`displaced`](Self::displaced) made room.
    ///
    /// # Panics
    /// If the key has a place already.
    pub fn admit(&mut self, now: Time, (group, holder): (G, H), key: K) {
        let before = self.entries.insert(key.clone(), (group, holder, now));
        assert!(before.is_none(), "a key has one place");
        self.file(&key, now);
    }

    /// Removes an entry, if it has a place.
    pub fn release(&mut self, key: &K) {
        if let Some((group, holder, used)) = self.entries.remove(key) {
            self.change(group, holder, |entries| {
                entries.remove(&(used, key.clone()));
            });
        }
    }

    /// The entry that a newcomer displaces: one that was not used since its last look, among [`LOOKS`].
    fn idlest(&mut self, group: &G, holder: &H, used: impl Fn(&K) -> Time) -> Option<K> {
        for look in 0.. {
            let own = self.groups.get(group).and_then(|members| members.rank(group));
            let (_, _, most) = largest(&self.ranking, own)?;
            let newcomer = (most == *group).then_some(holder);
            let (filed, key) = self.groups[&most].idlest(newcomer)?.clone();
            let last = used(&key);
            if last <= filed || look == LOOKS {
                return Some(key);
            }
            self.move_to(&key, last);
        }
        unreachable!("the loop ends after some looks")
    }

    /// Files an entry under another time of use.
    fn move_to(&mut self, key: &K, used: Time) {
        let Some((group, holder, filed)) = self.entries.get(key).cloned() else { return };
        self.change(group, holder, |entries| {
            entries.remove(&(filed, key.clone()));
        });
        self.file(key, used);
    }

    fn file(&mut self, key: &K, used: Time) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.2 = used;
        let (group, holder) = (entry.0.clone(), entry.1.clone());
        self.change(group, holder, |entries| {
            entries.insert((used, key.clone()));
        });
    }

    /// Changes the entries of a holder, and ranks its group again.
    fn change(&mut self, group: G, holder: H, act: impl FnOnce(&mut BTreeSet<(Time, K)>)) {
        let empty = || Group { size: 0, holders: BTreeMap::new(), ranking: BTreeSet::new() };
        let members = self.groups.entry(group.clone()).or_insert_with(empty);
        if let Some(rank) = members.rank(&group) {
            self.ranking.remove(&rank);
        }
        members.change(holder, act);
        if let Some(rank) = members.rank(&group) {
            self.ranking.insert(rank);
        } else {
            self.groups.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Keys = Shares<u64, u64, u64>;

    /// Admits a newcomer. Returns the entries that it displaced.
    fn admit(shares: &mut Keys, now: u64, of: (u64, u64), key: u64, used: impl Fn(&u64) -> Time) -> Vec<u64> {
        let displaced: Vec<u64> = std::iter::from_fn(|| shares.displaced(&of, &used)).collect();
        shares.admit(Time(now), of, key);
        displaced
    }

    #[test]
    fn an_ipv6_host_counts_once() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2::9"));
        assert_eq!(of("2001:db8:1:2::").0, of("2001:db8:1:3::").0);
        assert_ne!(of("2001:db8:1::").0, of("2001:db8:2::").0);
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn a_crowd_of_one_holder_displaces_itself() {
        let mut shares = Shares::new(4);
        assert!(admit(&mut shares, 0, (1, 1), 10_000, |_| Time::ZERO).is_empty());
        let lost: Vec<u64> =
            (0..1000).flat_map(|key| admit(&mut shares, 1 + key, (2, 2), key, |_| Time::ZERO)).collect();
        assert_eq!(lost, (0..997).collect::<Vec<u64>>());
        assert_eq!((shares.of_group(&1), shares.of_group(&2)), (1, 3));
        assert_eq!(
            (shares.holder(&10_000), shares.holder(&999), shares.holder(&5)),
            (Some(&1), Some(&2), None)
        );
    }

    #[test]
    fn the_idlest_entry_goes_and_the_newcomer_never() {
        let mut shares = Shares::new(3);
        for key in 0..3 {
            admit(&mut shares, key, (1, 1), key, |_| Time::ZERO);
        }
        // The oldest entry was used last.
        let used = |key: &u64| if *key == 0 { Time(9) } else { Time::ZERO };
        assert_eq!(admit(&mut shares, 10, (1, 1), 3, used), [1]);
        // All others are in use: still one of them makes room.
        assert_eq!(admit(&mut shares, 11, (1, 1), 4, |_| Time(11)).len(), 1);
        assert_eq!(shares.len(), 3);
        assert!(shares.entries.contains_key(&4));
    }

    #[test]
    fn six_holders_do_not_lock_out_a_seventh() {
        let mut shares = Shares::new(600);
        for key in 0..6000 {
            admit(&mut shares, key, (key % 6, 0), key, |_| Time(key));
        }
        // One group spreads over many holders, as an IPv6 /48 does.
        for key in 6000..6500 {
            admit(&mut shares, key, (7, key), key, |_| Time(key));
        }
        for newcomer in 10_000..10_050 {
            admit(&mut shares, newcomer, (newcomer, 0), newcomer, |_| Time(newcomer));
        }
        let stay = (10_000..10_050).filter(|newcomer| shares.of_group(newcomer) == 1).count();
        assert_eq!(stay, 50, "the smallest groups stay");
        assert!((0..8).all(|group| shares.of_group(&group) < 100));
    }

    /// A newcomer of a group and a holder, the end of an entry, or use of one.
    fn steps() -> impl Strategy<Value = Vec<(u64, u64, u8)>> {
        prop::collection::vec((0u64..6, 0u64..3, 0u8..8), 1..400)
    }

    proptest! {
        #[test]
        fn any_mix_of_peers_is_shared_fairly(places in 1usize..30, steps in steps()) {
            let mut shares = Keys::new(places);
            let mut used = BTreeMap::new();
            for (at, (group, holder, kind)) in steps.into_iter().enumerate() {
                let (at, now) = (at as u64, Time(at as u64 + 1));
                match kind {
                    0 => {
                        let first = used.keys().next().copied();
                        first.inspect(|key| { used.remove(key); shares.release(key); });
                    }
                    1 => used.values_mut().take(3).for_each(|last| *last = now),
                    _ => {
                        let before = shares.clone();
                        let lost = admit(&mut shares, now.0, (group, holder), at, |key| used[key]);
                        prop_assert!(shares.entries.contains_key(&at), "a newcomer fits");
                        prop_assert_eq!(lost.len(), usize::from(before.len() == places));
                        for key in lost {
                            let (of, by, _) = before.entries[&key];
                            let size = |other: u64| before.of_group(&other) + usize::from(other == group);
                            prop_assert!((0..6).all(|other| size(other) <= size(of)), "the largest group");
                            let held = |other: u64| {
                                let own = usize::from((of, other) == (group, holder));
                                before.groups[&of].holders.get(&other).map_or(0, BTreeSet::len) + own
                            };
                            prop_assert!((0..3).all(|other| held(other) <= held(by)), "its largest holder");
                            let idler = before.groups[&of].holders[&by].iter().filter(|(_, k)| used[k] < used[&key]);
                            prop_assert_eq!(idler.count(), 0, "its idlest entry");
                            used.remove(&key);
                        }
                        used.insert(at, now);
                    }
                }
                prop_assert!(shares.len() <= places && shares.len() == used.len());
                prop_assert_eq!(shares.ranking.len(), shares.groups.len());
            }
        }
    }
}
