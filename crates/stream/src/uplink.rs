//! An uplink: a token bucket with a bounded queue.

use tidegate_control::units::{Rate, Span, Time};

/// When the packets of an uplink leave.
#[derive(Clone, Debug)]
pub struct Uplink {
    rate: Rate,
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
pub(crate) const BURST: Span = Span::from_millis(40);

impl Uplink {
    /// An idle uplink.
    ///
    /// # Panics
    /// If the rate is zero.
    pub fn new(rate: Rate) -> Uplink {
        assert!(rate.0 > 0, "the rate of an uplink is above zero");
        Uplink { rate, free: Time::ZERO, taken: 0, dropped: 0 }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_at_the_rate_and_the_queue_ends() {
        let mut uplink = Uplink::new(Rate(1_000_000));
        let begin = Time::ZERO + Span::from_secs(1);
        let left: Vec<Time> = (0..100).filter_map(|_| uplink.depart(begin, 1250)).collect();
        // Packets take 10 ms each. The bucket, the queue of 250 ms and one more are taken.
        assert_eq!((uplink.taken / 1250, uplink.dropped), (30, 70));
        assert_eq!(left.iter().filter(|at| **at == begin).count(), 4, "the bucket was full");
        assert_eq!((left[4], left[29]), (begin + Span::from_millis(10), begin + Span::from_millis(260)));
    }
}
