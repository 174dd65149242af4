//! The source's side of per-packet paths: usable peers, random paths, feedback to the controller.

use super::latency::Latencies;
use super::{Controller, Feedback, MAX_HOPS, Memo, Peer};
use crate::random::Random;
use crate::units::Time;

/// A path: source, relays, destination. Only the first `hops + 2` entries count.
pub type Path = [Peer; MAX_HOPS + 2];
/// The controller's note for each relay of a path.
pub type Memos = [Memo; MAX_HOPS];
/// The rates stamped by the relays of a path, bytes/s; zero without a stamp.
pub type Stamps = [f32; MAX_HOPS];

/// One source.
pub struct Sender {
    me: Peer,
    hops: usize,
    packet: f32,
    controller: Box<dyn Controller>,
    /// Round-trip estimates as this source sees them.
    pub latencies: Latencies,
    budgets: Vec<Budget>,
    /// Peers with rate left for one more packet this second, in arbitrary order.
    alive: Vec<Peer>,
    /// The peers allowed as first relays; if empty, all are.
    guards: Vec<Peer>,
    /// The peer number that stands for a hidden receiver.
    receiver: Option<Peer>,
}

/// The rate and the use of one peer.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// R_l, bytes per second.
    rate: f32,
    /// R_c, bytes in this second; negative by the rest of the previous second.
    sent: f32,
    /// Index of the peer in `alive`.
    place: u32,
    /// Whether the peer is in the overlay.
    member: bool,
}

const NOWHERE: u32 = u32::MAX;

impl Sender {
    /// A source that sends packets of `packet` bytes over `hops` relays among `peers` peers, all members.
    ///
    /// # Panics
    /// If `hops` is zero or above [`MAX_HOPS`].
    pub fn new(
        me: Peer,
        peers: usize,
        hops: usize,
        packet: f64,
        controller: Box<dyn Controller>,
        latencies: Latencies,
    ) -> Sender {
        assert!((1..=MAX_HOPS).contains(&hops), "a path has 1 to {MAX_HOPS} relays");
        let budget = Budget { rate: 0.0, sent: 0.0, place: NOWHERE, member: true };
        let mut sender = Sender {
            me,
            hops,
            packet: packet as f32,
            controller,
            latencies,
            budgets: vec![budget; peers],
            alive: Vec::with_capacity(peers),
            guards: Vec::new(),
            receiver: None,
        };
        for peer in 0..peers as Peer {
            let rate = sender.controller.rate(peer);
            sender.budget(peer, rate);
        }
        sender
    }

    /// Begins a new second: resets the bytes sent.
    pub fn second(&mut self) {
        let keeps = self.controller.keeps_remainder();
        for peer in 0..self.budgets.len() {
            let budget = &mut self.budgets[peer];
            let left = (budget.rate - budget.sent).clamp(0.0, self.packet);
            budget.sent = if keeps { -left } else { 0.0 };
            self.enlist(peer as Peer);
        }
    }

    /// Reads all rates again, after the controller changed them outside of feedback.
    pub fn rates_changed(&mut self) {
        for peer in 0..self.budgets.len() as Peer {
            self.budget(peer, self.controller.rate(peer));
        }
    }

    /// Whether fewer peers than a path needs have rate left.
    pub fn saturated(&self) -> bool {
        match self.receiver {
            None => self.alive.len() < self.hops,
            Some(receiver) => self.alive.len() < self.hops - 2 || !self.has_rate(receiver),
        }
    }

    /// R_i of the controller, bytes/s.
    pub fn rate(&self, peer: Peer) -> f64 {
        self.controller.rate(peer)
    }

    /// Restricts the first relay of paths to `guards`: other peers then never receive packets from this source directly.
    /// An empty list allows every peer.
    pub fn set_guards(&mut self, guards: Vec<Peer>) {
        self.guards = guards;
    }

    /// Makes `peer` stand for a hidden receiver: packets count against its rate as against a relay's, but it never
    /// relays. Paths of [`Sender::draw_path_into`] have it as their last hop.
    pub fn set_receiver(&mut self, peer: Peer) {
        self.receiver = Some(peer);
        self.controller.set_receiver(peer);
        self.enlist(peer);
    }

    /// Draws a path to `to` and charges its relays; `None` if too few have rate left.
    pub fn draw_path(&mut self, to: Peer, random: &mut Random) -> Option<(Path, Memos)> {
        let mut path = self.draw_relays(to, self.hops, random)?;
        path[self.hops + 1] = to;
        Some((path, self.charge(&path)))
    }

    /// Draws a sender path to `entry`, the first relay of a receiver path, and charges all its hops.
    ///
    /// `entry` is the last relay that this source knows. `None` if too few peers have rate left.
    ///
    /// # Panics
    /// Without a receiver, and for paths of fewer than three hops.
    pub fn draw_path_into(&mut self, entry: Peer, random: &mut Random) -> Option<(Path, Memos)> {
        assert!(self.hops >= 3, "a sender path has a relay of its own, an entry and the receiver");
        let receiver = self.receiver.expect("set before");
        // A source that never appears as `entry` would be identifiable, so it may be its own entry.
        if !(entry == self.me || self.has_rate(entry)) || !self.has_rate(receiver) {
            return None;
        }
        let mut path = self.draw_relays(entry, self.hops - 2, random)?;
        (path[self.hops - 1], path[self.hops], path[self.hops + 1]) = (entry, receiver, receiver);
        Some((path, self.charge(&path)))
    }

    /// Charges an earlier path again; `None` if a peer of it lacks rate.
    pub fn draw_again(&mut self, path: &Path) -> Option<Memos> {
        let ready = |peer: &Peer| *peer == self.me || self.has_rate(*peer);
        path[1..=self.hops].iter().all(ready).then(|| self.charge(path))
    }

    /// Whether another packet may be sent through `peer` in this second.
    pub fn has_rate(&self, peer: Peer) -> bool {
        let budget = &self.budgets[usize::from(peer)];
        budget.sent + self.packet <= budget.rate && budget.member
    }

    /// Draws `relays` random relays other than `not`, a guard first if guards are set.
    fn draw_relays(&mut self, not: Peer, relays: usize, random: &mut Random) -> Option<Path> {
        let mut pool = self.alive.len();
        let place = self.budgets[usize::from(not)].place;
        if place != NOWHERE {
            pool -= 1;
            self.swap(place as usize, pool);
        }
        if pool < relays {
            return None;
        }
        let mut path = [0; MAX_HOPS + 2];
        path[0] = self.me;
        let mut drawn = 0;
        if !self.guards.is_empty() {
            let ready = |guard: &&Peer| **guard != not && self.budgets[usize::from(**guard)].place != NOWHERE;
            let count = self.guards.iter().filter(ready).count();
            if count == 0 {
                return None;
            }
            let guard = *self.guards.iter().filter(ready).nth(random.below(count))?;
            self.swap(self.budgets[usize::from(guard)].place as usize, 0);
            path[1] = guard;
            drawn = 1;
        }
        for hop in drawn..relays {
            self.swap(hop, hop + random.below(pool - hop));
            path[hop + 1] = self.alive[hop];
        }
        Some(path)
    }

    /// Counts a packet against all hops of a path.
    fn charge(&mut self, path: &Path) -> Memos {
        let mut memos = [0; MAX_HOPS];
        for hop in 0..self.hops {
            let relay = path[hop + 1];
            memos[hop] = self.controller.memo(relay);
            self.budgets[usize::from(relay)].sent += self.packet;
            self.enlist(relay);
        }
        memos
    }

    /// The timeout for a path of [`Sender::draw_path_into`], seconds: T of the sender path plus the estimate
    /// of the receiver path.
    pub fn timeout_into(&self, path: &Path) -> f64 {
        self.latencies.timeout(&path[..self.hops - 1]) + self.latencies.beyond().1
    }

    /// The acknowledgement timeout for a path, seconds (4.6).
    pub fn timeout(&self, path: &Path) -> f64 {
        self.latencies.timeout(&path[..self.hops + 2])
    }

    /// The acknowledgement came `seconds` after sending. A late one (after its timeout) only measures the
    /// round trip.
    pub fn acked(
        &mut self,
        now: Time,
        path: &Path,
        memos: &Memos,
        stamps: &Stamps,
        seconds: f64,
        late: bool,
    ) {
        self.latencies.measured(&path[..self.hops + 2], seconds);
        if !late {
            self.reward(now, path, memos, stamps);
        }
    }

    /// The acknowledgement of a packet into a receiver path came `seconds` after sending.
    ///
    /// The last relay of the sender path claims that `beyond` of them passed on the receiver path; larger claims
    /// are cut to `seconds`.
    #[allow(clippy::too_many_arguments)]
    pub fn acked_into(
        &mut self,
        now: Time,
        path: &Path,
        memos: &Memos,
        stamps: &Stamps,
        seconds: f64,
        beyond: f64,
        late: bool,
    ) {
        let beyond = beyond.clamp(0.0, seconds);
        self.latencies.measured(&path[..self.hops - 1], seconds - beyond);
        self.latencies.measured_beyond(beyond);
        if !late {
            self.reward(now, path, memos, stamps);
        }
    }

    /// Rewards all hops for a timely acknowledgement, without measuring links.
    pub fn reward(&mut self, now: Time, path: &Path, memos: &Memos, stamps: &Stamps) {
        for hop in 0..self.hops {
            let round_trip = match Some(path[hop + 1]) == self.receiver {
                true => self.latencies.beyond().0,
                false => self.latencies.round_trip(self.me, path[hop + 1]),
            };
            let feedback = Feedback::Acked { round_trip, stamp: stamp(stamps[hop]) };
            self.tell(now, path[hop + 1], memos[hop], feedback);
        }
    }

    /// Reports a timeout to all hops.
    pub fn timed_out(&mut self, now: Time, path: &Path, memos: &Memos) {
        for hop in 0..self.hops {
            self.tell(now, path[hop + 1], memos[hop], Feedback::TimedOut);
        }
    }

    /// Hop `refuser` of the path (1 is the first relay, `hops + 1` the destination) reported that it dropped
    /// the packet.
    pub fn refused(&mut self, now: Time, path: &Path, memos: &Memos, stamps: &Stamps, refuser: usize) {
        for hop in 0..self.hops.min(refuser) {
            let feedback = match hop + 1 == refuser {
                true => Feedback::Refused { stamp: stamp(stamps[hop]) },
                false => Feedback::Passed,
            };
            self.tell(now, path[hop + 1], memos[hop], feedback);
        }
    }

    /// Notes that a peer joined the overlay or left it.
    pub fn set_member(&mut self, peer: Peer, member: bool) {
        self.budgets[usize::from(peer)].member = member;
        self.enlist(peer);
    }

    fn tell(&mut self, now: Time, peer: Peer, memo: Memo, feedback: Feedback) {
        let rate = self.controller.feedback(now, peer, memo, feedback);
        self.budget(peer, rate);
    }

    fn budget(&mut self, peer: Peer, rate: f64) {
        let rate = rate as f32;
        if self.budgets[usize::from(peer)].rate != rate {
            self.budgets[usize::from(peer)].rate = rate;
            self.enlist(peer);
        }
    }

    /// Adds `peer` to `alive` or removes it, as its budget requires.
    fn enlist(&mut self, peer: Peer) {
        let budget = &mut self.budgets[usize::from(peer)];
        let relays = budget.member && peer != self.me && Some(peer) != self.receiver;
        let alive = budget.sent + self.packet <= budget.rate && relays;
        if alive == (budget.place != NOWHERE) {
            return;
        }
        if alive {
            budget.place = self.alive.len() as u32;
            self.alive.push(peer);
        } else {
            let place = std::mem::replace(&mut budget.place, NOWHERE) as usize;
            self.alive.swap_remove(place);
            if let Some(moved) = self.alive.get(place) {
                self.budgets[usize::from(*moved)].place = place as u32;
            }
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.alive.swap(a, b);
        self.budgets[usize::from(self.alive[a])].place = a as u32;
        self.budgets[usize::from(self.alive[b])].place = b as u32;
    }
}

fn stamp(bytes_per_s: f32) -> Option<f64> {
    (bytes_per_s > 0.0).then_some(f64::from(bytes_per_s))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::paths::aimd::{Aimd, AimdParameters};
    use crate::random::Seed;

    fn sender(hops: usize) -> Sender {
        let parameters = AimdParameters { packet: 1500.0, alpha: 1.5, beta: 1.4, locate: false };
        let aimd = Box::new(Aimd::new(8, parameters));
        Sender::new(0, 8, hops, 1500.0, aimd, Latencies::new(8, 0.1, 4.0))
    }

    #[test]
    fn paths_are_distinct_relays_and_spend_each_budget_once() {
        let mut draws = Seed::root(1).random();
        let mut source = sender(3);
        let mut used = BTreeSet::new();
        let (path, _) = source.draw_path(7, &mut draws).expect("seven peers have a packet each");
        used.extend(&path[1..4]);
        assert_eq!((path[0], path[4]), (0, 7));
        // One packet per peer and second: three relays and the destination are left, enough for one path.
        let (second, memos) = source.draw_path(7, &mut draws).expect("three relays are left");
        used.extend(&second[1..4]);
        assert_eq!(used, (1..7).collect());
        assert!(source.draw_path(7, &mut draws).is_none() && source.saturated());
        source.acked(Time::ZERO, &second, &memos, &[0.0; MAX_HOPS], 0.2, false);
        assert_eq!(source.rate(second[1]), 3000.0);
        assert!(source.draw_path(7, &mut draws).is_some(), "slow start added a packet to each");
        source.second();
        assert!(!source.saturated());
    }

    #[test]
    fn a_path_into_a_receiver_path_is_charged_to_its_entry_and_measured_in_two_parts() {
        let mut draws = Seed::root(3).random();
        let mut source = sender(4);
        source.set_receiver(7);
        let (path, memos) = source.draw_path_into(5, &mut draws).expect("all have rate");
        assert!(path[3] == 5 && path[1] != path[2] && !path[1..3].contains(&5) && path[4] == 7);
        assert!(path[1..3].iter().all(|relay| *relay != 7), "a receiver does not relay");
        assert!(source.draw_path_into(5, &mut draws).is_none(), "its one packet per second is used");
        assert!(source.draw_again(&path).is_none() && source.saturated());
        assert!((source.timeout_into(&path) - 5.0).abs() < 1e-6, "two links and what is beyond are unknown");
        source.acked_into(Time::ZERO, &path, &memos, &[0.0; MAX_HOPS], 0.5, 0.3, false);
        assert!((source.latencies.round_trip(0, path[1]) - 0.1).abs() < 1e-6);
        assert!((source.latencies.beyond().0 - 0.3).abs() < 1e-6);
        let rates = [5, path[2], 7].map(|peer| source.rate(peer));
        assert_eq!(rates, [3000.0; 3], "a signal for each known relay and the receiver");
        assert!(source.draw_again(&path).is_some() && source.draw_again(&path).is_none());
        source.acked_into(Time::ZERO, &path, &memos, &[0.0; MAX_HOPS], 0.5, 1e9, true);
        assert!(source.latencies.beyond().0 <= 0.5, "a relay cannot claim more than the round trip");
    }

    #[test]
    fn guards_alone_are_first() {
        let mut draws = Seed::root(4).random();
        let mut source = sender(3);
        source.set_guards(vec![2, 7]);
        for _ in 0..50 {
            let (path, _) = source.draw_path(7, &mut draws).expect("guard 2 has rate");
            assert_eq!(path[1], 2, "the destination cannot guard");
            let mut relays = path[1..4].to_vec();
            relays.sort_unstable();
            relays.dedup();
            assert_eq!(relays.len(), 3);
            assert!(source.draw_path(6, &mut draws).is_some_and(|(path, _)| path[1] == 7));
            assert!(source.draw_path(6, &mut draws).is_none(), "no guard has rate left");
            source.second();
        }
    }

    #[test]
    fn peers_that_left_are_not_used() {
        let mut draws = Seed::root(2).random();
        let mut source = sender(3);
        for gone in [1, 2, 3, 4] {
            source.set_member(gone, false);
        }
        assert!(source.draw_path(7, &mut draws).is_none());
        source.set_member(4, true);
        let (path, _) = source.draw_path(7, &mut draws).expect("4, 5 and 6 are there");
        assert_eq!(BTreeSet::from_iter(&path[1..4]), BTreeSet::from([&4, &5, &6]));
    }
}
