//! An uplink: a token bucket with a bounded queue.

use std::collections::VecDeque;

use tidegate_control::units::{Rate, Span, Time};

/// A queue of packets of type `T` before an uplink.
#[derive(Clone, Debug)]
pub struct Uplink<T> {
    rate: Rate,
    /// Packets with the time when each has left.
    queue: VecDeque<(Time, T)>,
    /// When the queue is empty at its rate; lies in the past while the bucket has tokens.
    free: Time,
    /// Bytes that entered the queue.
    pub taken: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
}

/// Longest queue, as time. Later packets are useless to a live stream.
pub const LONGEST: Span = Span::from_millis(250);

/// Size of the bucket, as time at the uplink's rate.
pub const BURST: Span = Span::from_millis(40);

impl<T> Uplink<T> {
    /// An idle uplink.
    ///
    /// # Panics
    /// If the rate is zero.
    pub fn new(rate: Rate) -> Uplink<T> {
        assert!(rate.0 > 0, "the rate of an uplink is above zero");
        Uplink { rate, queue: VecDeque::new(), free: Time::ZERO, taken: 0, dropped: 0 }
    }

    /// Changes the rate for later packets.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
    }

    /// When a packet that arrives now has left; `None` if the queue is full.
    pub fn depart(&mut self, now: Time, bytes: usize) -> Option<Time> {
        if self.free.since(now) > LONGEST {
            self.dropped += 1;
            return None;
        }
        let full = Time(now.0.saturating_sub(BURST.0));
        self.free = self.free.max(full) + self.rate.span_for(bytes as u64);
        self.taken += bytes as u64;
        Some(self.free.max(now))
    }

    /// Queues a packet of `bytes`, or drops it.
    pub fn push(&mut self, now: Time, bytes: usize, packet: T) {
        if let Some(at) = self.depart(now, bytes) {
            self.queue.push_back((at, packet));
        }
    }

    /// When the next packet has left; [`Time::NEVER`] without packets.
    pub fn next_time(&self) -> Time {
        self.queue.front().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// The next packet, if it has left.
    pub fn pop(&mut self, now: Time) -> Option<T> {
        if self.next_time() > now {
            return None;
        }
        self.queue.pop_front().map(|(_, packet)| packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_at_the_rate_and_the_queue_ends() {
        let mut uplink = Uplink::new(Rate(1_000_000));
        let begin = Time::ZERO + Span::from_secs(1);
        (0..100).for_each(|n| uplink.push(begin, 1250, n));
        // Packets take 10 ms each. The bucket, the queue of 250 ms and one more are taken.
        assert_eq!((uplink.taken / 1250, uplink.dropped), (30, 70));
        assert_eq!((0..99).filter_map(|_| uplink.pop(begin)).count(), 4, "the bucket was full");
        assert_eq!(uplink.next_time(), begin + Span::from_millis(10));
        assert_eq!(uplink.pop(begin), None);
        assert_eq!(uplink.pop(begin + Span::from_millis(10)), Some(4));
        assert_eq!((0..99).filter_map(|_| uplink.pop(Time::NEVER)).count(), 25);
    }
}
