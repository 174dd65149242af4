//! EWMA: the circuit with the least exponentially weighted cell count sends next.
//!
//! Quiet circuits go first (Tang and Goldberg, "An Improved Algorithm for Tor Circuit Scheduling", CCS 2010).
//!
//! All counts decay alike, so their order changes only when one of them grows. Instead of shrinking every
//! count, a new cell counts for more the later it is sent: `2^((now - epoch) / half_life)`. When that
//! number gets large the epoch moves and the counts are scaled once. Tor rescales at ticks of 10 s
//! instead; between ticks the two orders are the same.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::keys::Parameters;
use tidegate_control::units::{Span, Time};

use super::{Circuits, Discipline, Scheduler};
use tidegate_control::registry::Origin;

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "EWMA",
    source: "Tang and Goldberg, CCS 2010; circuitmux_ewma.c of tor",
    oracles: &["crates/proto/src/scheduler/ewma.rs: counts_decay_by_half_per_half_life_across_rescaling"],
    deviation: "tor rescales at ticks of 10 s; the order is the same",
};

/// Half-lives after which counts are rescaled: long before an f64 loses single cells.
const RESCALE_HALF_LIVES: f64 = 64.0;

/// Least decayed cell count first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Ewma {
    /// Time in which a count halves. Source: tor's `CircuitPriorityHalflifeMsec`.
    #[schemars(extend("x-range" = "1 ns.."))]
    pub half_life: Span,
}

impl Default for Ewma {
    fn default() -> Ewma {
        Ewma { half_life: Span::from_secs(30) }
    }
}

impl Parameters for Ewma {}

impl Discipline for Ewma {
    fn build(&self) -> Box<dyn Scheduler + Send> {
        Box::new(Order::new(self.half_life))
    }
}

#[derive(Debug)]
struct Order {
    half_life: Span,
    epoch: Time,
    powers: Powers,
    /// Decayed count of each key, in cells at the epoch.
    counts: Vec<f64>,
    /// Active keys, least count first; entries whose ticket is stale are skipped.
    heap: BinaryHeap<Entry>,
    /// The ticket of each key's live heap entry; zero if it is not active.
    tickets: Vec<u64>,
    next_ticket: u64,
}

/// Weight of a cell at a time, and decay since the epoch; cached, because several cells are sent at one time.
#[derive(Clone, Copy, Debug)]
struct Powers {
    at: Time,
    half_lives: f64,
    grown: f64,
    decayed: f64,
}

impl Powers {
    /// At the epoch.
    fn none(epoch: Time) -> Powers {
        Powers { at: epoch, half_lives: 0.0, grown: 1.0, decayed: 1.0 }
    }
}

#[derive(Debug, PartialEq)]
struct Entry {
    count: f64,
    ticket: u64,
    key: u32,
}

impl Eq for Entry {}

impl Ord for Entry {
    /// `BinaryHeap` pops the greatest: least count, then earliest ticket.
    fn cmp(&self, other: &Entry) -> Ordering {
        other.count.total_cmp(&self.count).then(other.ticket.cmp(&self.ticket))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Order {
    fn new(half_life: Span) -> Order {
        assert!(half_life > Span::ZERO, "a half-life of zero remembers nothing");
        let (counts, tickets, heap) = (Vec::new(), Vec::new(), BinaryHeap::new());
        let powers = Powers::none(Time::ZERO);
        Order { half_life, epoch: Time::ZERO, powers, counts, heap, tickets, next_ticket: 1 }
    }

    fn powers(&mut self, now: Time) -> Powers {
        if self.powers.at != now {
            let half_lives = now.since(self.epoch).as_secs_f64() / self.half_life.as_secs_f64();
            let (grown, decayed) = (libm::exp2(half_lives), libm::exp2(-half_lives));
            self.powers = Powers { at: now, half_lives, grown, decayed };
        }
        self.powers
    }

    fn enqueue(&mut self, key: u32) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets[key as usize] = ticket;
        self.heap.push(Entry { count: self.counts[key as usize], ticket, key });
    }

    fn rescale(&mut self, now: Time, factor: f64) {
        self.epoch = now;
        self.powers = Powers::none(now);
        for count in &mut self.counts {
            *count *= factor;
        }
        let live: Vec<Entry> = std::mem::take(&mut self.heap)
            .into_iter()
            .filter(|entry| self.tickets[entry.key as usize] == entry.ticket)
            .map(|entry| Entry { count: self.counts[entry.key as usize], ..entry })
            .collect();
        self.heap = live.into();
    }
}

impl Scheduler for Order {
    fn activate(&mut self, _: Time, key: u32, _: &dyn Circuits) {
        let needed = key as usize + 1;
        if self.counts.len() < needed {
            self.counts.resize(needed, 0.0);
            self.tickets.resize(needed, 0);
        }
        self.enqueue(key);
    }

    fn next(&mut self, _: Time, _: &dyn Circuits) -> Option<u32> {
        while let Some(entry) = self.heap.peek() {
            if self.tickets[entry.key as usize] == entry.ticket {
                return Some(entry.key);
            }
            self.heap.pop();
        }
        None
    }

    fn load(&mut self, now: Time, circuits: &dyn Circuits) -> Option<f64> {
        let key = self.next(now, circuits)?;
        Some(self.counts[key as usize] * self.powers(now).decayed)
    }

    fn sent(&mut self, now: Time, key: u32, more: bool, _: &dyn Circuits) {
        let Powers { half_lives, decayed, .. } = self.powers(now);
        if half_lives > RESCALE_HALF_LIVES {
            self.rescale(now, decayed);
        }
        let first = self.heap.pop();
        debug_assert_eq!(first.map(|entry| entry.key), Some(key));
        self.counts[key as usize] += self.powers(now).grown;
        self.tickets[key as usize] = 0;
        if more {
            self.enqueue(key);
        }
    }

    fn remove(&mut self, key: u32) {
        if let Some(ticket) = self.tickets.get_mut(key as usize) {
            *ticket = 0;
        }
    }

    fn forget(&mut self, key: u32) {
        self.remove(key);
        if let Some(count) = self.counts.get_mut(key as usize) {
            *count = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::Unseen;

    fn send(order: &mut Order, now: Time) -> u32 {
        let key = order.next(now, &Unseen).unwrap();
        order.sent(now, key, true, &Unseen);
        key
    }

    #[test]
    fn the_quiet_circuit_goes_first() {
        let mut order = Order::new(Span::from_secs(30));
        order.activate(Time::ZERO, 0, &Unseen);
        for _ in 0..50 {
            assert_eq!(send(&mut order, Time::ZERO), 0);
        }
        order.activate(Time::ZERO, 1, &Unseen);
        for _ in 0..50 {
            assert_eq!(send(&mut order, Time::ZERO), 1);
        }
        let later: Vec<u32> = (0..4).map(|_| send(&mut order, Time::ZERO)).collect();
        assert_eq!(later, [0, 1, 0, 1], "equal counts share");
    }

    #[test]
    fn counts_decay_by_half_per_half_life_across_rescaling() {
        let half_life = Span::from_secs(1);
        for wait in [1, 3, 200] {
            let mut order = Order::new(half_life);
            order.activate(Time::ZERO, 0, &Unseen);
            for _ in 0..1024 {
                send(&mut order, Time::ZERO);
            }
            let later = Time::ZERO + half_life * wait;
            order.activate(later, 1, &Unseen);
            let mut turns = 0;
            while send(&mut order, later) == 1 {
                turns += 1;
            }
            let expected = 1024.0 * libm::exp2(-(wait as f64));
            assert!((f64::from(turns) - expected).abs() <= 1.0, "{turns} turns, {expected} expected");
        }
    }

    #[test]
    fn a_removed_circuit_keeps_its_count_until_forgotten() {
        let mut order = Order::new(Span::from_secs(30));
        order.activate(Time::ZERO, 0, &Unseen);
        for _ in 0..10 {
            send(&mut order, Time::ZERO);
        }
        order.remove(0);
        assert_eq!(order.next(Time::ZERO, &Unseen), None);
        order.activate(Time::ZERO, 1, &Unseen);
        order.activate(Time::ZERO, 0, &Unseen);
        assert_eq!(order.next(Time::ZERO, &Unseen), Some(1));
        order.forget(0);
        order.remove(1);
        assert_eq!(order.next(Time::ZERO, &Unseen), None);
    }
}
