//! The event queue: total order by (time, sequence of insertion).
//!
//! A radix heap (Ahuja, Mehlhorn, Orlin, Tarjan 1990): simulated time never goes back, so an event is
//! filed by the highest digit in which its time differs from the time of the last event taken. All events
//! of one time are always in one bucket, and buckets are appended to and emptied in order: equal times
//! leave in the order they came, without a sequence number to store or compare. A bucket with few events is sorted when
//! its turn comes, instead of being filed again digit by digit.

use std::cmp::Reverse;
use std::collections::VecDeque;

use tidegate_control::units::Time;

use crate::event_loop::EventQueue;

/// With fewer pending events, their data stays in the processor's cache.
const MANY: usize = 8_192;
/// Minimum of events to prefetch before a bucket is sorted. With fewer, the first is needed before it is loaded. A bucket
/// that will be divided into such small ones is prefetched when it is divided.
const SHOWN: usize = 8;
/// Bits of a digit. With fewer bits events are filed more often; with more bits most buckets hold one event.
const DIGIT: u32 = 5;
/// Digits of a time.
const DIGITS: usize = u64::BITS.div_ceil(DIGIT) as usize;
/// Capacity of a piece of a bucket, in events.
const PIECE: usize = 128;
/// Most events to sort at once. If as many more are inserted meanwhile, the events are filed again.
const SORTED: usize = 48;

/// Pending events, the earliest first; among equal times the one pushed first.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    now: Time,
    /// Events that were filed at `now` for the same time, in order.
    current: VecDeque<E>,
    /// Sorted events up to `sorted_until`, except those in `current`: the last first, and at equal times the one pushed
    /// last.
    sorted: Piece<E>,
    sorted_until: Time,
    /// For each digit and value: events with a time that has this value there, where `now` has a lower one, and the
    /// digits of `now` above it.
    buckets: Vec<Bucket<E>>,
    /// Emptied pieces.
    spare: Vec<Piece<E>>,
    /// For each digit, by value: which buckets are not empty. And the digits that have such buckets.
    values: [u64; DIGITS],
    digits: u64,
    len: usize,
    peak: usize,
    popped: u64,
    filed: u64,
    /// Prefetch from this number of pending events on.
    many: usize,
}

type Piece<E> = Vec<(Time, E)>;

/// Events in the order in which they were filed, in pieces. At some time a bucket holds nearly all events, so
/// buckets exchange pieces instead of keeping their memory.
#[derive(Clone, Debug)]
struct Bucket<E> {
    /// The full pieces.
    full: Vec<Piece<E>>,
    /// Empty only if the bucket is.
    last: Piece<E>,
    /// The earliest time, if any.
    earliest: Time,
}

impl<E> Bucket<E> {
    const EMPTY: Bucket<E> = Bucket { full: Vec::new(), last: Vec::new(), earliest: Time::NEVER };

    fn push(&mut self, at: Time, event: E, spare: &mut Vec<Piece<E>>) {
        self.earliest = self.earliest.min(at);
        if self.last.len() == self.last.capacity() {
            let next = spare.pop().unwrap_or_else(|| Vec::with_capacity(PIECE));
            let full = std::mem::replace(&mut self.last, next);
            if !full.is_empty() {
                self.full.push(full);
            }
        }
        self.last.push((at, event));
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Queue<E> {
        Queue::new()
    }
}

impl<E> EventQueue<E> for Queue<E> {
    #[inline]
    fn push(&mut self, at: Time, event: E) {
        Queue::push(self, at, event);
    }

    #[inline]
    fn pop_until(&mut self, last: Time, soon: impl FnMut(&E)) -> Option<(Time, E)> {
        Queue::pop_until(self, last, soon)
    }
}

impl<E> Queue<E> {
    /// An empty queue at time zero.
    pub fn new() -> Queue<E> {
        Queue::share_of(1)
    }

    /// An empty queue, one of `queues` that share the processor's cache.
    pub(crate) fn share_of(queues: u32) -> Queue<E> {
        Queue {
            now: Time::ZERO,
            current: VecDeque::new(),
            sorted: Vec::with_capacity(PIECE),
            sorted_until: Time::ZERO,
            buckets: (0..DIGITS << DIGIT).map(|_| Bucket::EMPTY).collect(),
            spare: Vec::new(),
            values: [0; DIGITS],
            digits: 0,
            len: 0,
            peak: 0,
            popped: 0,
            filed: 0,
            many: MANY / queues as usize,
        }
    }

    /// The time of the last event taken.
    pub fn now(&self) -> Time {
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
    pub fn popped(&self) -> u64 {
        self.popped
    }

    /// Times that an event was put into a bucket: at least once per event, and again when a bucket is divided.
    pub(crate) fn filed(&self) -> u64 {
        self.filed
    }

    /// Schedules an event.
    ///
    /// # Panics
    /// If `at` lies before [`Queue::now`].
    pub fn push(&mut self, at: Time, event: E) {
        assert!(at >= self.now, "an event in the past: {at} is before {}", self.now);
        self.len += 1;
        self.peak = self.peak.max(self.len);
        self.file(at, event);
    }

    fn file(&mut self, at: Time, event: E) {
        self.filed += 1;
        match (at.0 ^ self.now.0).checked_ilog2() {
            None => self.current.push_back(event),
            Some(_) if at <= self.sorted_until && !self.sorted.is_empty() => self.sort_in(at, event),
            Some(bit) => {
                let digit = bit / DIGIT;
                let value = (at.0 >> (digit * DIGIT)) & ((1 << DIGIT) - 1);
                self.digits |= 1 << digit;
                self.values[digit as usize] |= 1 << value;
                let bucket = (digit << DIGIT) as usize | value as usize;
                self.buckets[bucket].push(at, event, &mut self.spare);
            }
        }
    }

    /// Files an event among those that are sorted.
    fn sort_in(&mut self, at: Time, event: E) {
        let sooner = self.sorted.iter().rev().take_while(|(other, _)| *other <= at).count();
        self.sorted.insert(self.sorted.len() - sooner, (at, event));
        if self.sorted.len() > 2 * SORTED {
            let mut sorted = std::mem::take(&mut self.sorted);
            let later = std::mem::take(&mut self.current);
            sorted.drain(..).rev().for_each(|(at, event)| self.file(at, event));
            self.current.extend(later);
            self.sorted = sorted;
        }
    }

    /// Takes the next event and moves [`Queue::now`] to its time.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.pop_until(Time::NEVER, |_| ())
    }

    /// As [`pop`](Queue::pop), if the event is due by `last`. If many events are pending, it also passes the next few
    /// dozen to `soon`, so that the caller can prefetch their data: loading many at once is faster than one by one.
    pub(crate) fn pop_until(&mut self, last: Time, soon: impl FnMut(&E)) -> Option<(Time, E)> {
        let event = match self.sorted.last() {
            Some((at, _)) if *at == self.now || self.current.is_empty() => {
                let due = *at <= last;
                let (at, event) = self.sorted.pop_if(|_| due)?;
                self.now = at;
                event
            }
            _ if self.now <= last && !self.current.is_empty() => self.current.pop_front()?,
            Some(_) => return None,
            None => self.advance(last, soon)?,
        };
        self.len -= 1;
        self.popped += 1;
        Some((self.now, event))
    }

    /// Moves `now` to the earliest pending time, if that is not after `last`, and takes its first event.
    fn advance(&mut self, last: Time, mut soon: impl FnMut(&E)) -> Option<E> {
        let (digit, value) = self.lowest()?;
        let bucket = &mut self.buckets[digit << DIGIT | value];
        let first = std::mem::replace(&mut bucket.earliest, Time::NEVER);
        if first > last {
            bucket.earliest = first;
            return None;
        }
        self.values[digit] &= self.values[digit] - 1;
        self.digits &= !(u64::from(self.values[digit] == 0) << digit);
        self.now = first;
        let (many, few) = (self.len >= self.many, bucket.full.is_empty());
        let mut piece = std::mem::take(&mut bucket.last);
        // Half of all buckets hold one event when their turn comes.
        if few && piece.len() == 1 {
            let event = piece.pop().map(|(_, event)| event);
            self.spare.push(piece);
            return event;
        }
        if few && piece.len() <= SORTED {
            if many && piece.len() >= SHOWN {
                piece.iter().for_each(|(_, event)| soon(event));
            }
            self.spare.push(std::mem::replace(&mut self.sorted, piece));
            self.sorted.reverse();
            self.sorted.sort_by_key(|(at, _)| Reverse(*at));
            // The last time that belongs into the bucket: those below it are empty.
            self.sorted_until = Time(first.0 | ((1 << (digit as u32 * DIGIT)) - 1));
            return self.sorted.pop().map(|(_, event)| event);
        }
        // All events go to lower buckets; unused memory returns to the pool.
        let mut full = std::mem::take(&mut bucket.full);
        if many && full.len() * PIECE + piece.len() <= SHOWN << DIGIT {
            full.iter().chain([&piece]).flatten().for_each(|(_, event)| soon(event));
        }
        for mut piece in full.drain(..).chain([piece]) {
            piece.drain(..).for_each(|(at, event)| self.file(at, event));
            self.spare.push(piece);
        }
        self.buckets[digit << DIGIT | value].full = full;
        self.current.pop_front()
    }

    /// The bucket with the earliest events, by digit and value.
    fn lowest(&self) -> Option<(usize, usize)> {
        let digit = (self.digits != 0).then(|| self.digits.trailing_zeros() as usize)?;
        Some((digit, self.values[digit].trailing_zeros() as usize))
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
