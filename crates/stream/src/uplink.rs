//! What limits a peer first: an uplink as a token bucket, with a queue of bounded length.

use std::collections::VecDeque;

use tidegate_control::units::{Rate, Span, Time};

/// Packets on their way out, each a `T`.
#[derive(Clone, Debug)]
pub struct Uplink<T> {
    rate: Rate,
    /// When each has left.
    queue: VecDeque<(Time, T)>,
    /// When it has sent everything at its rate; in the past, as far as the bucket is full.
    free: Time,
    /// Bytes that entered the queue.
    pub taken: u64,
    /// Packets that found it full.
    pub dropped: u64,
}

/// The longest queue, as time: more helps no live stream.
pub const LONGEST: Span = Span::from_millis(250);

/// The bucket: what an uplink that was idle sends at once, as time at its rate.
pub const BURST: Span = Span::from_millis(40);

impl<T> Uplink<T> {
    /// An idle uplink.
    ///
    /// # Panics
    /// If the rate is zero.
    pub fn new(rate: Rate) -> Uplink<T> {
        assert!(rate.0 > 0, "an uplink carries something");
        Uplink { rate, queue: VecDeque::new(), free: Time::ZERO, taken: 0, dropped: 0 }
    }

    /// The rate changes for what comes from now on.
    pub fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
    }

    /// When a packet of `bytes` that comes now has left; none if the queue is full.
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

    /// A packet of `bytes` enters the queue, or is dropped.
    pub fn push(&mut self, now: Time, bytes: usize, packet: T) {
        if let Some(at) = self.depart(now, bytes) {
            self.queue.push_back((at, packet));
        }
    }

    /// When the next packet has left; [`Time::NEVER`] if there is none.
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
        // 10 ms each: the bucket, 250 ms and one more are taken.
        assert_eq!((uplink.taken / 1250, uplink.dropped), (30, 70));
        assert_eq!((0..99).filter_map(|_| uplink.pop(begin)).count(), 4, "the bucket was full");
        assert_eq!(uplink.next_time(), begin + Span::from_millis(10));
        assert_eq!(uplink.pop(begin), None);
        assert_eq!(uplink.pop(begin + Span::from_millis(10)), Some(4));
        assert_eq!((0..99).filter_map(|_| uplink.pop(Time::NEVER)).count(), 25);
    }
}
