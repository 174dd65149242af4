//! The overlay's event queue: total order by (time, sequence of insertion), as [`crate::queue`], and faster
//! where nearly all events are due within a second or two at a known density.
//!
//! A timing wheel (Varghese, Lauck 1987; a calendar queue of fixed width): slots of about one event each,
//! a sorted list per slot, a bitmap to find the next one. What is due beyond the wheel's turn waits in a tree.

use std::collections::BTreeMap;

use tidegate_control::units::Time;

use crate::event_loop::EventQueue;

/// Pending events.
#[derive(Clone, Debug)]
pub(crate) struct Wheel<E> {
    now: Time,
    /// log2 of a slot's nanoseconds.
    shift: u32,
    /// First event of each slot.
    slots: Vec<u32>,
    /// Bit `i`: slot `i` is not empty.
    filled: Vec<u64>,
    pending: Vec<Pending<E>>,
    free: u32,
    in_slots: usize,
    /// Beyond the wheel's turn, with numbers to keep their order.
    later: BTreeMap<(Time, u64), E>,
    numbered: u64,
    popped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending<E> {
    at: Time,
    event: E,
    next: u32,
}

const NONE: u32 = u32::MAX;
/// A turn of the wheel has at least this many nanoseconds: 2^30, about a second.
const TURN: u32 = 30;
/// Slots: log2 of the fewest and the most.
const SLOTS: [u32; 2] = [8, 18];

impl<E: Copy> EventQueue<E> for Wheel<E> {
    #[inline]
    fn push(&mut self, at: Time, event: E) {
        self.file(at, event);
    }

    #[inline]
    fn pop_until(&mut self, last: Time, _: impl FnMut(&E)) -> Option<(Time, E)> {
        self.take(last)
    }
}

impl<E: Copy> Wheel<E> {
    /// An empty queue for about `per_s` events per simulated second.
    pub(crate) fn new(per_s: f64) -> Wheel<E> {
        let slots = (2.0 * per_s.max(1.0)) as u64;
        let slots = slots.ilog2().clamp(SLOTS[0], SLOTS[1]);
        Wheel {
            now: Time::ZERO,
            shift: TURN - slots,
            slots: vec![NONE; 1 << slots],
            filled: vec![0; 1 << (slots - 6)],
            pending: Vec::new(),
            free: NONE,
            in_slots: 0,
            later: BTreeMap::new(),
            numbered: 0,
            popped: 0,
        }
    }

    /// Events taken since the start.
    pub(crate) fn popped(&self) -> u64 {
        self.popped
    }

    fn file(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event in the past: {at} is before {}", self.now);
        if (at.0 >> self.shift) - (self.now.0 >> self.shift) >= self.slots.len() as u64 {
            self.later.insert((at, self.numbered), event);
            self.numbered += 1;
            return;
        }
        let slot = (at.0 >> self.shift) as usize & (self.slots.len() - 1);
        let new = self.allocate(Pending { at, event, next: NONE });
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.in_slots += 1;
        // After all that are due at the same time or before.
        let first = self.slots[slot];
        if first == NONE || self.pending[first as usize].at > at {
            self.pending[new as usize].next = first;
            self.slots[slot] = new;
            return;
        }
        let mut before = first as usize;
        loop {
            let next = self.pending[before].next;
            if next == NONE || self.pending[next as usize].at > at {
                self.pending[new as usize].next = next;
                self.pending[before].next = new;
                return;
            }
            before = next as usize;
        }
    }

    fn allocate(&mut self, pending: Pending<E>) -> u32 {
        if self.free == NONE {
            self.pending.push(pending);
            return self.pending.len() as u32 - 1;
        }
        let place = self.free;
        self.free = self.pending[place as usize].next;
        self.pending[place as usize] = pending;
        place
    }

    /// Takes the next event if it is due by `last`.
    fn take(&mut self, last: Time) -> Option<(Time, E)> {
        let slot = (self.in_slots > 0).then(|| self.next_slot());
        let first = slot.map(|slot| self.slots[slot]);
        let due = first.map_or(Time::NEVER, |first| self.pending[first as usize].at);
        // Events beyond the turn were pushed before events in a slot with the same time, so they come first.
        if let Some(entry) = self.later.first_entry()
            && entry.key().0 <= due
        {
            if entry.key().0 > last {
                return None;
            }
            let ((at, _), event) = entry.remove_entry();
            (self.now, self.popped) = (at, self.popped + 1);
            return Some((at, event));
        }
        let (slot, first) = (slot?, first?);
        if due > last {
            return None;
        }
        let Pending { at, event, next } = self.pending[first as usize];
        self.slots[slot] = next;
        if next == NONE {
            self.filled[slot / 64] &= !(1 << (slot % 64));
        }
        self.pending[first as usize].next = self.free;
        self.free = first;
        self.in_slots -= 1;
        (self.now, self.popped) = (at, self.popped + 1);
        Some((at, event))
    }

    /// The first slot from `now` on that is not empty. There must be one.
    fn next_slot(&self) -> usize {
        let from = (self.now.0 >> self.shift) as usize & (self.slots.len() - 1);
        let words = self.filled.len();
        let mut word = from / 64;
        let mut bits = self.filled[word] & (!0 << (from % 64));
        while bits == 0 {
            word = (word + 1) & (words - 1);
            bits = self.filled[word];
        }
        word * 64 + bits.trailing_zeros() as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_control::units::Span;

    use super::*;
    use crate::queue::Queue;

    proptest! {
        #[test]
        fn the_order_is_that_of_the_other_queue(
            per_s in 1.0..1e6f64,
            steps in prop::collection::vec((0u64..3, 0u64..4_000_000_000, 0usize..4), 0..300),
        ) {
            let (mut wheel, mut queue) = (Wheel::new(per_s), Queue::new());
            for (number, (scale, ahead, pops)) in steps.into_iter().enumerate() {
                // Now, soon, or beyond the turn; often at the same time as another.
                let ahead = Span(ahead / [1_000_000_000, 1000, 1][scale as usize]);
                let at = queue.now() + ahead;
                wheel.push(at, number);
                queue.push(at, number);
                for _ in 0..pops {
                    let last = queue.now() + Span(1 << (number % 40));
                    prop_assert_eq!(wheel.take(last), queue.pop_until(last, |_| ()));
                }
            }
            while let Some(event) = queue.pop() {
                prop_assert_eq!(wheel.take(event.0), Some(event));
            }
            prop_assert_eq!(wheel.take(Time::NEVER), None);
            prop_assert_eq!(wheel.popped(), queue.popped());
        }
    }
}
