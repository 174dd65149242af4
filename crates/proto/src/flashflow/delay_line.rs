//! One direction of a path of a given delay, for machines whose kernel can make none: bytes go in, and come
//! out in the same order, each after the path's delay and a jitter of its own.

use std::collections::VecDeque;

use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

/// One way of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// What every byte waits at least.
    pub delay: Span,
    /// What is added to it: the positive half of a normal distribution of this standard deviation, nothing
    /// half of the time.
    pub jitter: Span,
}

/// Longer paths are a mistake.
pub const LONGEST: Span = Span::from_secs(10);

/// Bytes under way in one direction of one connection.
#[derive(Clone, Debug)]
pub struct DelayLine {
    path: Path,
    random: Random,
    under_way: VecDeque<(Time, Vec<u8>)>,
    held: usize,
    last: Time,
}

impl DelayLine {
    /// An empty line. The same `random` and the same input give the same output.
    pub fn new(path: Path, random: Random) -> DelayLine {
        DelayLine { path, random, under_way: VecDeque::new(), held: 0, last: Time::ZERO }
    }

    /// Bytes under way.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether more may go in, if all lines together hold `together` bytes and should not hold `most`. One
    /// that is empty always takes something: no line waits for another.
    pub fn takes(&self, together: usize, most: usize) -> bool {
        self.held == 0 || together < most
    }

    /// Bytes enter the path. Jitter never lets them overtake what went in before.
    pub fn push(&mut self, now: Time, bytes: Vec<u8>) {
        let extra = self.random.normal(0.0, self.path.jitter.0 as f64).max(0.0);
        self.last = self.last.max(now + self.path.delay + Span(extra as u64));
        self.held += bytes.len();
        self.under_way.push_back((self.last, bytes));
    }

    /// When the next bytes come out; [`Time::NEVER`] if none are under way.
    pub fn next_time(&self) -> Time {
        self.under_way.front().map_or(Time::NEVER, |(due, _)| *due)
    }

    /// The next bytes, if they are due.
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

    /// Pushes a byte every 300 us, pops at the times the line names; when each byte came out.
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
        // Bytes wait for those before them: on average more than the 0.8 ms of one draw.
        let mean = waits.iter().map(|wait| (*wait - DELAY).0).sum::<u64>() / 5000;
        assert!((800_000..4_000_000).contains(&mean), "{mean}");
        assert_eq!(passages(&mut line(jitter, 1), 5000), waits);
        assert_ne!(passages(&mut line(jitter, 2), 5000), waits);
    }

    #[test]
    fn lines_together_hold_what_they_may_and_a_chunk_each() {
        const MOST: usize = 100;
        let mut lines: Vec<DelayLine> = (0..5).map(|seed| line(Span::ZERO, seed)).collect();
        let together = |lines: &[DelayLine]| lines.iter().map(DelayLine::held).sum::<usize>();
        for turn in 0..50 {
            let at = turn % lines.len();
            if lines[at].takes(together(&lines), MOST) {
                lines[at].push(Time::ZERO, vec![0; 30]);
            }
        }
        // Four fill it; the fifth has its one chunk all the same.
        assert_eq!(together(&lines), 150);
        assert!(lines.iter().all(|line| line.held() >= 30));
        let mut line = lines.remove(0);
        while line.pop(Time::NEVER).is_some() {}
        assert_eq!((line.held(), line.next_time()), (0, Time::NEVER));
        assert!(line.takes(usize::MAX, MOST));
    }
}
