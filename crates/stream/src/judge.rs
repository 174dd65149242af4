//! Complaints (negative acknowledgements, thesis section 3.2.3): who is to blame when a slice does not come.
//!
//! All viewers below a dead one complain at about the same time. A complaint about a parent that complains
//! itself, or whose ancestors do, is put aside: only the topmost counts. Somebody about whom several others
//! complain, time after time and more than is usual, is relegated; somebody who complains about many parents that
//! nobody else complains about is not listened to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_control::units::{Span, Time};

use crate::forest::Forest;
use crate::tree::NOBODY;
use crate::{Peer, SERVER};

/// `child` does not get `slice` from `parent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    /// The slice.
    pub slice: usize,
    /// Who complains.
    pub child: Peer,
    /// About whom.
    pub parent: Peer,
    /// What is wrong.
    pub fault: Fault,
}

/// What a parent does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It sends too little: it is given less to carry.
    Loses,
    /// It sends nothing.
    Silent,
    /// It sends something else.
    Forges,
}

/// What is to be done about a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The parent is to blame.
    Upheld(Complaint),
    /// The parent is to blame, and was before: it should not forward for a while.
    Relegate(Complaint),
    /// Whoever complains does so about everybody: nothing.
    Doubted(Complaint),
}

/// Complaints that wait, and those of the last while.
#[derive(Debug)]
pub struct Judge {
    /// How long complaints wait for those from above.
    settle: Span,
    waiting: VecDeque<(Time, Complaint)>,
    /// The same, to look up.
    known: BTreeSet<Complaint>,
    /// When each viewer last complained, by slice and viewer: it excuses those below it.
    complained: BTreeMap<(usize, Peer), Time>,
    /// The last ones that blamed somebody.
    blamed: VecDeque<(Time, Complaint)>,
    /// Complaints that were not listened to.
    pub doubted: u64,
}

/// Complaints wait at least and at most so long for those from above.
pub const SETTLE: Span = Span::from_millis(80);
const LONGEST_SETTLE: Span = Span::from_millis(400);
/// A complaint excuses those below for so long: who still has nothing complains again before.
const EXCUSE: Span = Span::from_millis(1000);
/// What is remembered.
const MEMORY: Span = Span::from_secs(30);
const MOST: usize = 20_000;
/// Complaints within this time are about one incident: a machine that was busy for a moment.
const INCIDENT: Span = Span::from_secs(2);
/// So many incidents, and twice as many as others usually have, relegate.
const STRIKES: usize = 3;
/// So many forgeries by different children or in different slices relegate.
const FORGERIES: usize = 2;
/// So many different parents, of whom nobody else complained, discredit a child.
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
    /// How much messages of two viewers about the same thing may come apart.
    pub fn set_spread(&mut self, spread: Span) {
        self.settle = spread.clamp(SETTLE, LONGEST_SETTLE);
    }

    /// A viewer complains. Complaints about somebody who is not its parent are nothing.
    pub fn complain(&mut self, now: Time, complaint: Complaint, forest: &Forest) {
        let Complaint { slice, child, parent, .. } = complaint;
        let sound = slice < forest.slices() && parent != NOBODY && forest.tree(slice).parent(child) == parent;
        if sound && self.waiting.len() < MOST && self.known.insert(complaint) {
            self.waiting.push_back((now, complaint));
            self.complained.insert((slice, child), now);
        }
    }

    /// When a verdict is due.
    pub fn next_time(&self) -> Time {
        self.waiting.front().map_or(Time::NEVER, |(at, _)| *at + self.settle)
    }

    /// The verdicts that are due.
    pub fn verdicts(&mut self, now: Time, forest: &Forest) -> Vec<Verdict> {
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

    /// Whether the parent or somebody above it complains about the same slice.
    fn is_excused(&self, now: Time, complaint: Complaint, forest: &Forest) -> bool {
        let slice = complaint.slice;
        let complains =
            |peer: Peer| self.complained.get(&(slice, peer)).is_some_and(|at| now.since(*at) <= EXCUSE);
        let mut top = complaint.parent;
        let excused = forest.tree(slice).upwards(complaint.parent).any(|above| {
            top = above;
            complains(above)
        });
        // Below an orphan nothing can come.
        excused || top != SERVER
    }

    fn judge(&mut self, at: Time, complaint: Complaint, forest: &Forest) -> Verdict {
        let Complaint { slice, child, parent, fault } = complaint;
        let blamed = || self.blamed.iter().map(|(_, known)| known);
        let others = |about: Peer| blamed().any(|known| known.parent == about && known.child != child);
        let mut alone: Vec<Peer> =
            blamed().filter(|known| known.child == child).map(|known| known.parent).collect();
        alone.sort_unstable();
        alone.dedup();
        alone.retain(|about| *about != parent && !others(*about));
        if alone.len() >= ALONE && !others(parent) {
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
            // Who carries too much is given less, not nothing.
            Fault::Loses => false,
            Fault::Silent => several && self.is_unusual(at, parent, forest),
            Fault::Forges => several && against.len() >= FORGERIES,
        };
        if guilty { Verdict::Relegate(complaint) } else { Verdict::Upheld(complaint) }
    }

    /// Whether a parent that is silent now has been so again and again, and more than parents usually are: when the
    /// machines or the network of many are busy, nobody is to blame.
    fn is_unusual(&self, now: Time, parent: Peer, forest: &Forest) -> bool {
        let mut incidents: BTreeMap<Peer, (Time, usize)> = BTreeMap::new();
        let past = self.blamed.iter().filter(|(_, known)| known.fault == Fault::Silent);
        for (at, about) in past.map(|(at, known)| (*at, known.parent)).chain([(now, parent)]) {
            let (begun, count) = incidents.entry(about).or_insert((at, 1));
            if at.since(*begun) > INCIDENT {
                (*begun, *count) = (at, *count + 1);
            }
        }
        let count = |peer: &Peer| incidents.get(peer).map_or(0, |(_, count)| *count);
        let parents = forest.members().iter().filter(|peer| **peer != parent && forest.load(**peer).1 > 0);
        let mut others: Vec<usize> = parents.map(count).collect();
        others.sort_unstable();
        let usual = others.get(others.len() / 2).copied().unwrap_or(0);
        count(&parent) >= STRIKES + 2 * usual
    }

    /// A viewer is gone, or starts anew: what was said about it is forgotten.
    pub fn forget(&mut self, peer: Peer) {
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

    /// Server, 1, then 2 below it, 3 below that, in both slices.
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
