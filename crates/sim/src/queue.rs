//! The event queue: total order by (time, sequence of insertion).
//!
//! A timing wheel (Varghese, Lauck 1987) that chooses the width of its slots (a calendar queue: Brown 1988). A slot
//! holds a few events in the order in which they came, and is sorted by time when it is next. So most events are
//! stored once and never compared with events of other slots. What is due after the next turn waits in one list per
//! turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::Time;

/// With fewer pending events, their data stays in the processor's cache.
const MANY: usize = 8_192;
/// Events to prefetch at once.
const SHOWN: usize = 32;
/// log2 of the nanoseconds of a turn, 134 ms. The wheel holds what is due in this turn and the next one.
const TURN: u32 = 27;
/// log2 of the nanoseconds of a slot: the fewest and the most.
const WIDTHS: [u32; 2] = [7, 19];
/// Events between two measurements of their density.
const MEASURED: u64 = 4_096;
/// The first measurement comes after this many events, the next ones after twice as many each.
const FIRST_MEASURED: u64 = 256;
/// No event.
const NONE: u32 = u32::MAX;

/// Pending events, the earliest first; among equal times the one pushed first.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    now: Time,
    /// Events that were filed at `now` for the same time, in order.
    current: VecDeque<E>,
    /// Sorted events of the slots before `next_slot`, except those in `current`: the last first, and at equal times the
    /// one pushed last.
    near: Vec<(Time, E)>,
    /// The first slot that has not had its turn. Slots are numbered from time zero.
    next_slot: u64,
    /// log2 of a slot's nanoseconds.
    width: u32,
    wheel: Wheel<E>,
    /// The first slot after the turns that the wheel holds.
    ends: u64,
    /// Events of later turns, by turn, in the order in which they came.
    later: BTreeMap<u64, Vec<(Time, E)>>,
    /// When the density of events was last measured, and how many had been taken by then.
    measured: (Time, u64),
    /// Slots before this one were shown for prefetching.
    shown: u64,
    len: usize,
    peak: usize,
    popped: u64,
    filed: u64,
    /// Prefetch from this number of pending events on.
    many: usize,
}

/// The slots of two turns.
#[derive(Clone, Debug)]
struct Wheel<E> {
    /// The last event of each slot. An event knows the one before it.
    slots: Vec<u32>,
    /// Bit `i`: slot `i` is not empty.
    filled: Vec<u64>,
    places: Vec<Place<E>>,
    /// The first unused place.
    free: u32,
    len: usize,
}

/// Memory of an event, used or not.
#[derive(Clone, Debug)]
struct Place<E> {
    at: Time,
    event: Option<E>,
    next: u32,
}

impl<E> Wheel<E> {
    fn new(width: u32) -> Wheel<E> {
        let slots = 2 << (TURN - width);
        let (slots, filled) = (vec![NONE; slots], vec![0; slots.div_ceil(64)]);
        Wheel { slots, filled, places: Vec::new(), free: NONE, len: 0 }
    }

    fn index(&self, slot: u64) -> usize {
        slot as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn push(&mut self, slot: u64, at: Time, event: E) {
        let index = self.index(slot);
        let place = Place { at, event: Some(event), next: self.slots[index] };
        self.slots[index] = self.free;
        match self.places.get_mut(self.free as usize) {
            Some(free) => {
                self.free = free.next;
                *free = place;
            }
            None => {
                // Grows by a quarter instead of doubling, which saves memory in large runs.
                if self.places.len() == self.places.capacity() {
                    self.places.reserve_exact(self.places.len() / 4 + 64);
                }
                self.slots[index] = self.places.len() as u32;
                self.places.push(place);
            }
        }
        self.filled[index / 64] |= 1 << (index % 64);
        self.len += 1;
    }

    /// The first slot from `from` on that is not empty; all slots before it are.
    fn first(&self, from: u64) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let (start, words) = (self.index(from), self.filled.len());
        let mut word = start / 64;
        let mut bits = self.filled[word] & (!0 << (start % 64));
        while bits == 0 {
            word = (word + 1) & (words - 1);
            bits = self.filled[word];
        }
        let found = word * 64 + bits.trailing_zeros() as usize;
        Some(from + self.index((found as u64).wrapping_sub(start as u64)) as u64)
    }

    /// Empties a slot, the last event first.
    #[inline]
    fn take(&mut self, slot: u64, mut each: impl FnMut(Time, E)) {
        let index = self.index(slot);
        let mut next = std::mem::replace(&mut self.slots[index], NONE);
        self.filled[index / 64] &= !(1 << (index % 64));
        while let Some(place) = self.places.get_mut(next as usize) {
            let event = place.event.take().expect("a slot lists places in use");
            each(place.at, event);
            let this = std::mem::replace(&mut next, place.next);
            place.next = self.free;
            self.free = this;
            self.len -= 1;
        }
    }

    /// The events of a slot, the last first.
    fn look(&self, slot: u64) -> impl Iterator<Item = &E> {
        let place = |place: u32| self.places.get(place as usize);
        let slot = place(self.slots[self.index(slot)]);
        std::iter::successors(slot, move |before| place(before.next)).filter_map(|place| place.event.as_ref())
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue::new()
    }
}

impl<E> Queue<E> {
    /// An empty queue at time zero.
    pub fn new() -> Queue<E> {
        Queue::share_of(1)
    }

    /// An empty queue, one of `queues` that share the processor's cache.
    pub(crate) fn share_of(queues: u32) -> Queue<E> {
        let width = WIDTHS[1];
        Queue {
            now: Time::ZERO,
            current: VecDeque::new(),
            near: Vec::new(),
            next_slot: 0,
            width,
            wheel: Wheel::new(width),
            ends: 2 << (TURN - width),
            later: BTreeMap::new(),
            measured: (Time::ZERO, 0),
            shown: 0,
            len: 0,
            peak: 0,
            popped: 0,
            filed: 0,
            many: MANY / queues as usize,
        }
    }

    /// The time of the last event taken.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Pending events.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Peak of pending events.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    /// Events taken since the start.
    pub(crate) fn popped(&self) -> u64 {
        self.popped
    }

    /// Times that an event was stored: once per event, and again if it comes from a later turn or the width of the slots
    /// changes.
    pub(crate) fn filed(&self) -> u64 {
        self.filed
    }

    /// Schedules an event.
    ///
    /// # Panics
    /// If `at` lies before `Queue::now`.
    #[inline]
    pub fn push(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event in the past: {at} is before {}", self.now);
        self.len += 1;
        self.peak = self.peak.max(self.len);
        if at == self.now {
            self.filed += 1;
            self.current.push_back(event);
        } else {
            self.file(at, event);
        }
    }

    fn file(&mut self, at: Time, event: E) {
        self.filed += 1;
        let slot = at.0 >> self.width;
        if slot < self.next_slot {
            let place = self.near.partition_point(|(other, _)| *other > at);
            self.near.insert(place, (at, event));
        } else if slot < self.ends {
            self.wheel.push(slot, at, event);
        } else {
            self.later.entry(at.0 >> TURN).or_default().push((at, event));
        }
    }

    /// Makes a slot the first that is still to come. Events of a later turn move to the wheel with the beginning of the
    /// turn before it: earlier than any event is pushed there directly.
    fn turn_to(&mut self, slot: u64) {
        self.next_slot = slot;
        let turn = slot >> (TURN - self.width);
        let ends = (turn + 2) << (TURN - self.width);
        if ends == self.ends {
            return;
        }
        self.ends = ends;
        while let Some(entry) = self.later.first_entry()
            && *entry.key() < turn + 2
        {
            entry.remove().into_iter().for_each(|(at, event)| self.file(at, event));
        }
    }

    /// Takes the next event and moves `Queue::now` to its time.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.pop_until(Time::NEVER, |_| ())
    }

    /// As [`pop`](Queue::pop), if the event is due by `last`. If many events are pending, it also passes the next few
    /// dozen to `soon`, so that the caller can prefetch their data: loading many at once is faster than one by one.
    #[inline]
    pub(crate) fn pop_until(&mut self, last: Time, soon: impl FnMut(&E)) -> Option<(Time, E)> {
        if self.near.is_empty() && self.current.is_empty() {
            self.advance(last, soon)?;
        }
        let event = match self.near.last() {
            Some((at, _)) if *at == self.now || self.current.is_empty() => {
                let due = *at <= last;
                let (at, event) = self.near.pop_if(|_| due)?;
                self.now = at;
                event
            }
            _ if self.now <= last => self.current.pop_front()?,
            _ => return None,
        };
        self.len -= 1;
        self.popped += 1;
        if self.popped.is_multiple_of(FIRST_MEASURED) {
            self.measure();
        }
        Some((self.now, event))
    }

    /// Sorts the events of the next slot that has some; `None` if it begins after `last`. Not inlined: most events are in a
    /// slot with others.
    #[inline(never)]
    fn advance(&mut self, last: Time, soon: impl FnMut(&E)) -> Option<()> {
        if self.wheel.len == 0 {
            let turn = *self.later.first_key_value()?.0;
            if turn << TURN > last.0 {
                return None;
            }
            self.turn_to(turn << (TURN - self.width));
        }
        let slot = self.wheel.first(self.next_slot)?;
        if slot << self.width > last.0 {
            return None;
        }
        if self.len >= self.many && slot >= self.shown {
            self.show(slot, soon);
        }
        let near = &mut self.near;
        self.wheel.take(slot, |at, event| near.push((at, event)));
        if near.len() > 1 {
            near.sort_by_key(|(at, _)| Reverse(*at));
        }
        self.turn_to(slot + 1);
        Some(())
    }

    /// Shows some events from a slot on, the first that is not empty.
    fn show(&mut self, slot: u64, mut soon: impl FnMut(&E)) {
        let (mut from, mut shown) = (slot, 0);
        while shown < SHOWN
            && let Some(next) = self.wheel.first(from).filter(|next| *next < self.ends)
        {
            for event in self.wheel.look(next) {
                soon(event);
                shown += 1;
            }
            from = next + 1;
        }
        self.shown = from;
    }

    /// Measures how dense events are, if it is time, and changes the width of the slots if they would hold far fewer or
    /// more than two to four.
    #[cold]
    fn measure(&mut self) {
        if !self.popped.is_power_of_two() && !self.popped.is_multiple_of(MEASURED) {
            return;
        }
        let (since, taken) = std::mem::replace(&mut self.measured, (self.now, self.popped));
        let gap = self.now.since(since).0 / (self.popped - taken);
        let width = (gap.max(1).ilog2() + 2).clamp(WIDTHS[0], WIDTHS[1]);
        // At the end of time the next slot begins after the last nanosecond.
        if width.abs_diff(self.width) > 1 && self.next_slot.leading_zeros() >= self.width {
            self.widen(width);
        }
    }

    /// Changes the width of the slots and stores all events again.
    fn widen(&mut self, width: u32) {
        let reached = self.next_slot << self.width;
        let mut wheel = std::mem::replace(&mut self.wheel, Wheel::new(width));
        let mut slot = self.next_slot;
        (self.width, self.ends) = (width, 0);
        self.turn_to(reached.div_ceil(1 << width));
        self.shown = self.next_slot;
        let mut events = Vec::new();
        while let Some(next) = wheel.first(slot) {
            wheel.take(next, |at, event| events.push((at, event)));
            events.drain(..).rev().for_each(|(at, event)| self.file(at, event));
            slot = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, BinaryHeap};

    use proptest::prelude::*;

    use super::*;

    /// A step of a test: schedule after a delay, or take.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u64),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let delay = prop_oneof![
            4 => 0..4u64,
            4 => (0..63u32).prop_map(|bit| 1 << bit),
            4 => any::<u64>().prop_flat_map(|all| (0..64u32).prop_map(move |shift| all >> shift)),
        ];
        prop::collection::vec(prop_oneof![3 => delay.prop_map(Step::Push), 2 => Just(Step::Pop)], 0..400)
    }

    proptest! {
        #[test]
        fn leaves_in_the_order_of_time_then_insertion(steps in steps()) {
            let mut queue = Queue::new();
            let mut oracle = BinaryHeap::new();
            let (mut sequence, mut peak, mut popped) = (0u64, 0, 0);
            for step in steps.into_iter().chain(std::iter::repeat_n(Step::Pop, 401)) {
                match step {
                    Step::Push(delay) => {
                        let at = Time(queue.now().0.saturating_add(delay));
                        queue.push(at, sequence);
                        oracle.push(Reverse((at, sequence)));
                        sequence += 1;
                        peak = peak.max(oracle.len());
                    }
                    Step::Pop => {
                        let expected = oracle.pop().map(|Reverse(entry)| entry);
                        if let Some(earlier) = expected.and_then(|(at, _)| at.0.checked_sub(1)) {
                            prop_assert_eq!(queue.pop_until(Time(earlier), |_| ()), None);
                        }
                        let due = expected.map_or(Time::NEVER, |(at, _)| at);
                        prop_assert_eq!(queue.pop_until(due, |_| ()), expected);
                        popped += u64::from(expected.is_some());
                        prop_assert_eq!(queue.now(), expected.map_or(queue.now(), |(at, _)| at));
                    }
                }
                prop_assert_eq!(queue.len(), oracle.len());
            }
            prop_assert_eq!((queue.peak(), queue.popped()), (peak, popped));
        }
    }

    #[test]
    fn many_that_come_between_few_are_in_order() {
        let mut queue = Queue::new();
        let mut expected = Vec::new();
        let mut push = |queue: &mut Queue<u64>, at: u64| {
            let event = expected.len() as u64;
            queue.push(Time(at), event);
            expected.push((Time(at), event));
        };
        (1..=10).for_each(|step| push(&mut queue, 1 << 20 | step << 16));
        let first = queue.pop();
        for step in 0..5_000 {
            let now = queue.now().0;
            push(&mut queue, now + (step * 7919) % 500_000 / 8 * 8);
            push(&mut queue, now);
        }
        expected.sort();
        let left: Vec<_> = first.into_iter().chain(std::iter::from_fn(|| queue.pop())).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn the_width_follows_the_density_and_the_order_stays() {
        let (mut queue, mut oracle, mut widths) = (Queue::new(), BinaryHeap::new(), BTreeSet::new());
        for event in 0..60_000u64 {
            // Delays up to 4 us, 4 ms and 4 s in turn, some of them equal.
            let most = 4_000 << (10 * (event / 10_000 % 3));
            let at = Time(queue.now().0 + event * 7919 % most / 8 * 8);
            queue.push(at, event);
            oracle.push(Reverse((at, event)));
            if event >= 100 {
                assert_eq!(queue.pop(), oracle.pop().map(|Reverse(entry)| entry));
            }
            widths.insert(queue.width);
        }
        assert!(widths.len() > 3, "{widths:?}");
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left.len(), 100);
        assert!(left.into_iter().all(|entry| oracle.pop() == Some(Reverse(entry))));
    }

    #[test]
    fn items_that_are_not_due_leave_room_before_them() {
        let mut queue = Queue::new();
        queue.push(Time(1000), 'b');
        assert_eq!(queue.pop_until(Time(999), |_| ()), None);
        queue.push(Time(10), 'a');
        assert_eq!(queue.pop(), Some((Time(10), 'a')));
        assert_eq!(queue.pop(), Some((Time(1000), 'b')));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn most_events_are_shown_before_they_are_taken() {
        for apart in [1, 10, 30, 60, 100, 300, 1_000, 10_000] {
            let mut queue = Queue::new();
            (0..2 * MANY as u64).for_each(|event| queue.push(Time(apart * event), event));
            let (mut shown, mut unseen) = (BTreeSet::new(), 0);
            for expected in 0..MANY as u64 {
                let taken = queue.pop_until(Time::NEVER, |event| {
                    shown.insert(*event);
                });
                assert_eq!(taken, Some((Time(apart * expected), expected)));
                unseen += usize::from(!shown.contains(&expected));
            }
            assert!(unseen < MANY / 4, "{unseen} of {MANY}, {apart} ns apart");
        }
    }

    #[test]
    fn the_last_nanosecond_can_be_used() {
        let mut queue = Queue::new();
        queue.push(Time::NEVER, 1);
        queue.push(Time(u64::MAX - 1), 0);
        queue.push(Time::NEVER, 2);
        assert_eq!(std::iter::from_fn(|| queue.pop()).map(|(_, e)| e).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "an event in the past")]
    fn the_past_is_refused() {
        let mut queue = Queue::new();
        queue.push(Time(5), ());
        queue.pop();
        queue.push(Time(4), ());
    }
}
