//! The judge of complaints (negative acknowledgements, thesis section 3.2.3): finds the cause when a slice is
//! missing.
//!
//! When a viewer dies, all viewers below it complain at about the same time. Only the topmost complaint counts: a
//! parent that complains itself, or has an ancestor that does, is excused. A parent is relegated if several children
//! complain repeatedly and more than is usual. A child that complains alone about many parents is ignored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_control::units::{Span, Time};

use crate::forest::Forest;
use crate::message::Fault;
use crate::tree::NOBODY;
use crate::{Peer, SERVER};

/// A complaint that `child` does not get `slice` from `parent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Complaint {
    /// The slice.
    pub slice: usize,
    /// The viewer that complains.
    pub child: Peer,
    /// The accused parent.
    pub parent: Peer,
    /// The kind of fault.
    pub fault: Fault,
}

/// The result of a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Blames the parent.
    Upheld(Complaint),
    /// Blames the parent, which had faults before and should stop forwarding for a while.
    Relegate(Complaint),
    /// The complaining viewer is not credible; ignore the complaint.
    Doubted(Complaint),
}

/// Pending complaints and the history of blame.
#[derive(Debug)]
pub(crate) struct Judge {
    /// How long a complaint waits for complaints from above.
    settle: Span,
    waiting: VecDeque<(Time, Complaint)>,
    /// The waiting complaints as a set.
    known: BTreeSet<Complaint>,
    /// Last complaint by slice and viewer. It excuses the viewers below.
    complained: BTreeMap<(usize, Peer), Time>,
    /// Recent complaints that blamed a parent.
    blamed: VecDeque<(Time, Complaint)>,
    /// Number of ignored complaints.
    pub doubted: u64,
}

/// The incidents of one parent.
#[derive(Clone, Copy, Default)]
struct Incidents {
    /// When the last one began.
    begun: Time,
    count: usize,
}

impl Incidents {
    /// Adds a complaint. Complaints are added in the order of their times.
    fn add(&mut self, at: Time) {
        if self.count == 0 || at.since(self.begun) > INCIDENT {
            *self = Incidents { begun: at, count: self.count + 1 };
        }
    }
}

/// Shortest and longest wait for complaints from above.
pub(crate) const SETTLE: Span = Span::from_millis(80);
const LONGEST_SETTLE: Span = Span::from_millis(400);
/// How long a complaint excuses the viewers below. A viewer without the slice complains again sooner.
const EXCUSE: Span = Span::from_millis(1000);
/// Limits of the history, in time and in number.
const MEMORY: Span = Span::from_secs(30);
const MOST: usize = 20_000;
/// Complaints within this time belong to one incident, such as a busy machine.
const INCIDENT: Span = Span::from_secs(2);
/// Incidents for a relegation, on top of twice the usual number.
const STRIKES: usize = 3;
/// Forgeries by different children or in different slices for a relegation.
const FORGERIES: usize = 2;
/// A child that complains about this many parents is not credible, if it is alone, or with less than half of the children
/// of a parent that it accuses of forgery.
const ALONE: usize = 4;

impl Default for Judge {
    fn default() -> Judge {
        Judge {
            settle: SETTLE,
            waiting: VecDeque::new(),
            known: BTreeSet::new(),
            complained: BTreeMap::new(),
            blamed: VecDeque::new(),
            doubted: 0,
        }
    }
}

impl Judge {
    /// Sets how far apart two viewers' messages about the same event may arrive.
    pub(crate) fn set_spread(&mut self, spread: Span) {
        self.settle = spread.clamp(SETTLE, LONGEST_SETTLE);
    }

    /// Takes a complaint. Ignores it if `parent` is not the child's parent.
    pub(crate) fn complain(&mut self, now: Time, complaint: Complaint, forest: &Forest) {
        let Complaint { slice, child, parent, .. } = complaint;
        let sound = slice < forest.slices() && parent != NOBODY && forest.tree(slice).parent(child) == parent;
        if sound && self.waiting.len() < MOST && self.known.insert(complaint) {
            self.waiting.push_back((now, complaint));
            self.complained.insert((slice, child), now);
        }
    }

    /// When the next verdict is due.
    pub(crate) fn next_time(&self) -> Time {
        self.waiting.front().map_or(Time::NEVER, |(at, _)| *at + self.settle)
    }

    /// Returns the due verdicts.
    pub(crate) fn verdicts(&mut self, now: Time, forest: &Forest) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        while self.next_time() <= now {
            let Some((at, complaint)) = self.waiting.pop_front() else { break };
            self.known.remove(&complaint);
            if !self.is_excused(now, complaint, forest) {
                verdicts.push(self.judge(at, complaint, forest));
                self.blamed.push_back((at, complaint));
            }
        }
        let old = |at: Time| now.since(at) > MEMORY;
        while self.blamed.len() > MOST || self.blamed.front().is_some_and(|(at, _)| old(*at)) {
            self.blamed.pop_front();
        }
        if self.complained.len() > MOST {
            self.complained.retain(|_, at| now.since(*at) <= EXCUSE);
        }
        verdicts
    }

    /// Whether the parent or one of its ancestors complains about the same slice.
    fn is_excused(&self, now: Time, complaint: Complaint, forest: &Forest) -> bool {
        let slice = complaint.slice;
        let complains =
            |peer: Peer| self.complained.get(&(slice, peer)).is_some_and(|at| now.since(*at) <= EXCUSE);
        let mut top = complaint.parent;
        // Viewers drop forged packets, so an ancestor cannot be the cause.
        let excusable = complaint.fault != Fault::Forges;
        let excused = forest.tree(slice).upwards(complaint.parent).any(|above| {
            top = above;
            excusable && complains(above)
        });
        // Nothing can arrive below an orphan.
        excused || top != SERVER
    }

    fn judge(&mut self, at: Time, complaint: Complaint, forest: &Forest) -> Verdict {
        let Complaint { slice, child, parent, fault } = complaint;
        let blamed = || self.blamed.iter().map(|(_, known)| known);
        let supported = |about: Peer| match fault {
            Fault::Forges => self.is_accused_by_half(about, complaint, forest),
            _ => blamed().any(|known| known.parent == about && known.child != child),
        };
        let mut alone: Vec<Peer> =
            blamed().filter(|known| known.child == child).map(|known| known.parent).collect();
        alone.sort_unstable();
        alone.dedup();
        let alone = alone.into_iter().filter(|about| *about != parent && !supported(*about));
        if alone.take(ALONE).count() == ALONE && !supported(parent) {
            self.doubted += 1;
            return Verdict::Doubted(complaint);
        }
        let mut against: Vec<(usize, Peer)> = blamed()
            .filter(|known| known.parent == parent && known.fault == fault)
            .map(|known| (known.slice, known.child))
            .collect();
        against.push((slice, child));
        against.sort_unstable();
        against.dedup();
        let several = against.iter().any(|(_, other)| *other != child);
        let guilty = match fault {
            // An overloaded parent gets less to carry; it stays in the trees.
            Fault::Loses => false,
            Fault::Silent => several && self.is_unusual(at, parent, forest),
            Fault::Forges => supported(parent) && against.len() >= FORGERIES,
        };
        if guilty { Verdict::Relegate(complaint) } else { Verdict::Upheld(complaint) }
    }

    /// Whether several viewers accuse a parent of forgery, and half of its present and former children or more. Two liars
    /// could get any parent relegated that they come to in turn, if two accusations were enough.
    fn is_accused_by_half(&self, about: Peer, newest: Complaint, forest: &Forest) -> bool {
        let known = self.blamed.iter().map(|(_, known)| known).chain([&newest]);
        let accuses = |known: &&Complaint| known.parent == about && known.fault == Fault::Forges;
        let accusers: BTreeSet<Peer> = known.filter(accuses).map(|known| known.child).collect();
        let slices = 0..forest.slices();
        let mut children: BTreeSet<Peer> =
            slices.flat_map(|slice| forest.tree(slice).children(about).iter().copied()).collect();
        children.extend(&accusers);
        accusers.len() >= 2 && 2 * accusers.len() >= children.len()
    }

    /// Whether a parent is silent repeatedly and more often than parents usually are.
    ///
    /// When many machines or the network are busy, silence is not the fault of one parent.
    fn is_unusual(&self, now: Time, parent: Peer, forest: &Forest) -> bool {
        let past = self.blamed.iter().filter(|(_, known)| known.fault == Fault::Silent);
        let mut own = Incidents::default();
        past.clone().filter(|(_, known)| known.parent == parent).for_each(|(at, _)| own.add(*at));
        own.add(now);
        // Nearly all parents stop here, which saves counting the incidents of all others.
        if own.count < STRIKES {
            return false;
        }
        let mut of_all: BTreeMap<Peer, Incidents> = BTreeMap::new();
        past.for_each(|(at, known)| of_all.entry(known.parent).or_default().add(*at));
        let count = |peer: &Peer| of_all.get(peer).map_or(0, |incidents| incidents.count);
        let parents = forest.members().iter().filter(|peer| **peer != parent && forest.load(**peer).1 > 0);
        let mut others: Vec<usize> = parents.map(count).collect();
        others.sort_unstable();
        let usual = others.get(others.len() / 2).copied().unwrap_or(0);
        own.count >= STRIKES + 2 * usual
    }

    /// Forgets all complaints by and about a viewer.
    pub(crate) fn forget(&mut self, peer: Peer) {
        let concerns = |complaint: &Complaint| complaint.parent == peer || complaint.child == peer;
        self.waiting.retain(|(_, complaint)| !concerns(complaint));
        self.known.retain(|complaint| !concerns(complaint));
        self.complained.retain(|(_, child), _| *child != peer);
        self.blamed.retain(|(_, complaint)| !concerns(complaint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forest::Rule;
    use crate::latency::Latencies;

    /// A chain of the server and `peers - 1` viewers in both slices.
    fn chain(peers: usize) -> Forest {
        let latencies = Latencies::new(peers);
        let mut forest = Forest::new(peers, 2, Rule::Any);
        forest.set_budget(SERVER, 2, &latencies);
        (1..peers as Peer).for_each(|peer| forest.join(peer, 2, &latencies));
        forest
    }

    #[test]
    fn only_the_topmost_complaint_counts() {
        let forest = chain(4);
        let mut judge = Judge::default();
        let complaint = |child: Peer| Complaint {
            slice: 0,
            child,
            parent: forest.tree(0).parent(child),
            fault: Fault::Silent,
        };
        judge.complain(Time::ZERO, complaint(3), &forest);
        judge.complain(Time::ZERO + Span::from_millis(40), complaint(2), &forest);
        let later = Time::ZERO + Span::from_millis(200);
        assert_eq!(judge.verdicts(later, &forest), [Verdict::Upheld(complaint(2))]);
        let wrong = Complaint { slice: 0, child: 3, parent: SERVER, fault: Fault::Silent };
        judge.complain(later, wrong, &forest);
        assert_eq!(judge.next_time(), Time::NEVER);
    }
}
