//! CoDel, controlled delay (RFC 8289, section 5): drops at the head of a queue once its packets have waited
//! longer than `target` for a whole `interval`, ever faster until they wait less.

use std::collections::VecDeque;

use tidegate_control::units::{Span, Time};

/// A backlog of one packet of this size is never a standing queue (`MTU` in the RFC).
const MTU: u64 = 1500;

/// A packet in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// The packet's flow, for the owner of the queue.
    pub id: u32,
    /// Its size.
    pub bytes: u32,
    /// When it arrived.
    pub since: Time,
}

/// A queue under CoDel's control. The names are those of the RFC.
#[derive(Clone, Debug)]
pub(crate) struct CoDel {
    target: Span,
    interval: Span,
    waiting: VecDeque<Waiting>,
    bytes: u64,
    /// When the delay will have been above target for an interval; `None`: it is not above.
    first_above_time: Option<Time>,
    drop_next: Time,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl CoDel {
    /// An empty queue.
    pub(crate) fn new(target: Span, interval: Span) -> CoDel {
        CoDel {
            target,
            interval,
            waiting: VecDeque::new(),
            bytes: 0,
            first_above_time: None,
            drop_next: Time::ZERO,
            count: 0,
            last_count: 0,
            dropping: false,
        }
    }

    /// Packets waiting.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no packet waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes waiting.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a packet at the tail.
    pub(crate) fn push(&mut self, packet: Waiting) {
        self.bytes += u64::from(packet.bytes);
        self.waiting.push_back(packet);
    }

    /// Takes the packet at the head, whatever its delay.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let head = self.waiting.pop_front()?;
        self.bytes -= u64::from(head.bytes);
        Some(head)
    }

    /// Takes the next packet to send (`deque` in the RFC); those dropped on the way go to `dropped`.
    pub(crate) fn next(&mut self, now: Time, mut dropped: impl FnMut(Waiting)) -> Option<Waiting> {
        let (mut head, mut ok_to_drop) = self.examine(now);
        if self.dropping {
            self.dropping = ok_to_drop;
            while self.dropping && now >= self.drop_next {
                head.into_iter().for_each(&mut dropped);
                self.count += 1;
                (head, ok_to_drop) = self.examine(now);
                if ok_to_drop {
                    self.drop_next = self.control_law(self.drop_next);
                } else {
                    self.dropping = false;
                }
            }
        } else if ok_to_drop {
            head.into_iter().for_each(&mut dropped);
            (head, _) = self.examine(now);
            self.dropping = true;
            // Above again soon after the last time: go on at about the rate that helped then.
            let delta = self.count - self.last_count;
            let recently = now.since(self.drop_next) < self.interval * 16;
            self.count = if delta > 1 && recently { delta } else { 1 };
            self.drop_next = self.control_law(now);
            self.last_count = self.count;
        }
        head
    }

    /// Takes the head and tells whether it may be dropped (`dodequeue` in the RFC).
    fn examine(&mut self, now: Time) -> (Option<Waiting>, bool) {
        let head = self.pop();
        let above = head.is_some_and(|packet| now.since(packet.since) >= self.target && self.bytes > MTU);
        match self.first_above_time {
            _ if !above => self.first_above_time = None,
            None => self.first_above_time = Some(now + self.interval),
            Some(time) => return (head, now >= time),
        }
        (head, false)
    }

    /// The next drop follows the one at `t` after `interval / sqrt(count)`.
    fn control_law(&self, t: Time) -> Time {
        // IEEE 754 rounds a square root correctly: the same value on any machine.
        t + Span((self.interval.0 as f64 / f64::from(self.count).sqrt()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Span = Span::from_millis(5);
    const INTERVAL: Span = Span::from_millis(100);

    fn ms(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn fill(queue: &mut CoDel, since: Time, packets: u32) {
        for id in 0..packets {
            queue.push(Waiting { id, bytes: 1000, since });
        }
    }

    /// Takes a packet every millisecond of the range; gives the milliseconds in which packets were dropped.
    fn drops(queue: &mut CoDel, range: std::ops::Range<u64>) -> Vec<u64> {
        let mut at = Vec::new();
        for t in range {
            queue.next(ms(t), |_| at.push(t)).expect("the backlog is long enough");
        }
        at
    }

    #[test]
    fn drops_are_spaced_by_the_interval_over_the_root_of_their_count() {
        let mut queue = CoDel::new(TARGET, INTERVAL);
        fill(&mut queue, ms(0), 2000);
        // Above target at 5 ms, for an interval at 105 ms; then RFC 8289, section 3.1 and 5.4.
        let mut expected = vec![105];
        let mut due = 105.0;
        for count in 1..40 {
            due += 100.0 / f64::from(count).sqrt();
            expected.push(due.ceil() as u64);
        }
        let last = *expected.last().unwrap();
        assert_eq!(drops(&mut queue, 0..last + 1), expected);
        // 40 drops, one packet sent in each millisecond.
        assert_eq!(queue.len() as u64, 2000 - 40 - (last + 1));
    }

    #[test]
    fn a_delay_below_target_or_shorter_than_the_interval_costs_nothing() {
        let mut queue = CoDel::new(TARGET, INTERVAL);
        for t in 0..1000 {
            fill(&mut queue, ms(t), 1);
            if t >= 4 {
                queue.next(ms(t), |_| panic!("dropped below target"));
            }
        }
        let mut queue = CoDel::new(TARGET, INTERVAL);
        for burst in 0..20 {
            let begin = 200 * burst;
            fill(&mut queue, ms(begin), 99);
            assert_eq!(drops(&mut queue, begin..begin + 99), [0u64; 0]);
            assert_eq!(queue.next(ms(begin + 150), |_| ()), None);
        }
    }

    #[test]
    fn one_full_packet_is_no_standing_queue() {
        let mut queue = CoDel::new(TARGET, INTERVAL);
        for i in 0..50 {
            fill(&mut queue, ms(400 * i), 2);
            // The slow link takes 200 ms for each: far above target, and nothing to gain from a drop.
            assert!(queue.next(ms(400 * i + 200), |_| panic!("dropped")).is_some());
            assert!(queue.next(ms(400 * i + 400), |_| panic!("dropped")).is_some());
        }
    }

    #[test]
    fn a_relapse_goes_on_at_the_rate_that_helped() {
        let relapse = |pause: u64| {
            let mut queue = CoDel::new(TARGET, INTERVAL);
            fill(&mut queue, ms(0), 2000);
            let first = drops(&mut queue, 0..600);
            while queue.pop().is_some() {}
            assert_eq!(queue.next(ms(600), |_| ()), None, "empty: dropping ends");
            let again = 600 + pause;
            fill(&mut queue, ms(again), 2000);
            let second = drops(&mut queue, again..again + 300);
            (first.len(), second.iter().map(|t| t - again).collect::<Vec<u64>>())
        };
        let spaced = |count: f64| {
            let mut due = 105.0;
            let mut all = vec![105];
            for i in 0.. {
                due += 100.0 / (count + f64::from(i)).sqrt();
                if due > 299.0 {
                    return all;
                }
                all.push(due.ceil() as u64);
            }
            all
        };
        // Within 16 intervals: on from the count reached, less the one it began with. Later: from one.
        let (dropped, soon) = relapse(10);
        assert_eq!(soon, spaced(dropped as f64 - 1.0));
        assert_eq!(relapse(2000).1, spaced(1.0));
    }
}
