//! One direction of an emulated path: bytes leave in order, each after the path's delay and its own jitter.
//!
//! For kernels without netem.

use std::collections::VecDeque;

use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

/// One direction of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Delay of every byte.
    pub delay: Span,
    /// Standard deviation of the jitter, the positive half of a normal distribution; half of the draws are
    /// zero.
    pub jitter: Span,
}

/// Limit of delay and jitter.
pub const LONGEST: Span = Span::from_secs(10);

/// Bytes in transit in one direction of one connection.
#[derive(Clone, Debug)]
pub struct DelayLine {
    path: Path,
    random: Random,
    under_way: VecDeque<(Time, Vec<u8>)>,
    held: usize,
    last: Time,
}

impl DelayLine {
    /// An empty line. The same `random` and input give the same output.
    pub fn new(path: Path, random: Random) -> DelayLine {
        DelayLine { path, random, under_way: VecDeque::new(), held: 0, last: Time::ZERO }
    }

    /// Number of bytes in transit.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether the line takes more bytes while all lines together hold `together` of at most `most`.
    ///
    /// An empty line always does, so that no line waits for another.
    pub fn takes(&self, together: usize, most: usize) -> bool {
        self.held == 0 || together < most
    }

    /// Adds bytes. Jitter never reorders them.
    pub fn push(&mut self, now: Time, bytes: Vec<u8>) {
        let extra = self.random.normal(0.0, self.path.jitter.0 as f64).max(0.0);
        self.last = self.last.max(now + self.path.delay + Span(extra as u64));
        self.held += bytes.len();
        self.under_way.push_back((self.last, bytes));
    }

    /// Time at which the next bytes leave; [`Time::NEVER`] if the line is empty.
    pub fn next_time(&self) -> Time {
        self.under_way.front().map_or(Time::NEVER, |(due, _)| *due)
    }

    /// Takes the next bytes, if they are due.
    pub fn pop(&mut self, now: Time) -> Option<Vec<u8>> {
        if self.next_time() > now {
            return None;
        }
        let (_, bytes) = self.under_way.pop_front()?;
        self.held -= bytes.len();
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    const DELAY: Span = Span::from_millis(40);

    fn line(jitter: Span, seed: u64) -> DelayLine {
        DelayLine::new(Path { delay: DELAY, jitter }, Seed::root(seed).random())
    }

    /// Pushes a byte every 300 us and pops when due; returns each byte's time in transit.
    fn passages(line: &mut DelayLine, count: u64) -> Vec<Span> {
        let mut waits = Vec::new();
        let sent = |n: u64| Time::ZERO + Span(300_000) * n;
        let mut n = 0;
        while waits.len() < count as usize {
            let (due, next) = (line.next_time(), if n < count { sent(n) } else { Time::NEVER });
            if next < due {
                line.push(next, n.to_be_bytes().to_vec());
                n += 1;
                continue;
            }
            assert_eq!(line.pop(Time(due.0 - 1)), None, "nothing is early");
            let bytes = line.pop(due).expect("due");
            assert_eq!(bytes, (waits.len() as u64).to_be_bytes(), "in order");
            waits.push(due.since(sent(waits.len() as u64)));
        }
        waits
    }

    #[test]
    fn without_jitter_every_byte_waits_the_delay() {
        assert!(passages(&mut line(Span::ZERO, 1), 100).iter().all(|wait| *wait == DELAY));
    }

    #[test]
    fn jitter_only_adds_keeps_the_order_and_comes_from_the_seed() {
        let jitter = Span::from_millis(2);
        let waits = passages(&mut line(jitter, 1), 5000);
        assert!(waits.iter().all(|wait| *wait >= DELAY && *wait < DELAY + jitter * 6));
        // A byte waits for those before it, so the mean is above the 0.8 ms of one draw.
        let mean = waits.iter().map(|wait| (*wait - DELAY).0).sum::<u64>() / 5000;
        assert!((800_000..4_000_000).contains(&mean), "{mean}");
        assert_eq!(passages(&mut line(jitter, 1), 5000), waits);
        assert_ne!(passages(&mut line(jitter, 2), 5000), waits);
    }

    #[test]
    fn lines_share_a_limit_plus_one_chunk_each() {
        const MOST: usize = 100;
        let mut lines: Vec<DelayLine> = (0..5).map(|seed| line(Span::ZERO, seed)).collect();
        let together = |lines: &[DelayLine]| lines.iter().map(DelayLine::held).sum::<usize>();
        for turn in 0..50 {
            let at = turn % lines.len();
            if lines[at].takes(together(&lines), MOST) {
                lines[at].push(Time::ZERO, vec![0; 30]);
            }
        }
        // Four lines reach the limit; the fifth still holds one chunk.
        assert_eq!(together(&lines), 150);
        assert!(lines.iter().all(|line| line.held() >= 30));
        let mut line = lines.remove(0);
        while line.pop(Time::NEVER).is_some() {}
        assert_eq!((line.held(), line.next_time()), (0, Time::NEVER));
        assert!(line.takes(usize::MAX, MOST));
    }
}
