//! CoDel, controlled delay (RFC 8289, section 5): drops at the head of a queue whose packets have waited
//! longer than `target` for a whole `interval`, ever faster until they no longer do.

use std::collections::VecDeque;

use tidegate_control::units::{Span, Time};

/// A backlog of one packet of this size is never a standing queue (`MTU` in the RFC).
const MTU: u64 = 1500;

/// A packet in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Whose packet it is, for the owner of the queue.
    pub id: u32,
    /// Its size.
    pub bytes: u32,
    /// When it arrived.
    pub since: Time,
}

/// A queue under CoDel's control. The names are those of the RFC.
#[derive(Clone, Debug)]
pub struct CoDel {
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
    pub fn new(target: Span, interval: Span) -> CoDel {
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
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes waiting.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a packet at the tail.
    pub fn push(&mut self, packet: Waiting) {
        self.bytes += u64::from(packet.bytes);
        self.waiting.push_back(packet);
    }

    /// Takes the packet at the head, with no regard to delay.
    pub fn pop(&mut self) -> Option<Waiting> {
        let head = self.waiting.pop_front()?;
        self.bytes -= u64::from(head.bytes);
        Some(head)
    }

    /// Takes the next packet to send (`deque` in the RFC); those dropped on the way go to `dropped`.
    pub fn next(&mut self, now: Time, mut dropped: impl FnMut(Waiting)) -> Option<Waiting> {
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
