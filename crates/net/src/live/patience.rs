//! How long a client waits for a circuit before another one races it.

use std::collections::VecDeque;

use tidegate_control::units::Span;

/// Timeout of the second circuit of a pair, and of a circuit before another one races it: this multiple of the time that
/// the first circuit, or the slowest of the last [`REMEMBERED`], took to build, and at least [`LEAST`].
pub(crate) const TIMES: u64 = 4;
/// See [`TIMES`].
pub(crate) const LEAST: Span = Span::from_secs(1);
/// See [`TIMES`].
const REMEMBERED: usize = 16;
/// Timeout before any circuit was built: a retransmitted SYN takes 1 s (RFC 6298), and three hops may each lose one.
const FIRST: Span = Span::from_secs(3);

/// How long the last circuits took.
#[derive(Default)]
pub(crate) struct BuildTimes(VecDeque<Span>);

impl BuildTimes {
    /// Notes that a circuit was built.
    pub(crate) fn add(&mut self, took: Span) {
        self.0.push_back(took);
        if self.0.len() > REMEMBERED {
            self.0.pop_front();
        }
    }

    /// How long to wait for a circuit before another one races it.
    pub(crate) fn patience(&self) -> Span {
        self.0.iter().max().map_or(FIRST, |slowest| (*slowest * TIMES).max(LEAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_the_slowest_recent_circuit() {
        let mut times = BuildTimes::default();
        assert_eq!(times.patience(), FIRST);
        times.add(Span::from_millis(2));
        assert_eq!(times.patience(), LEAST);
        times.add(Span::from_secs(2));
        (0..15).for_each(|_| times.add(Span::from_millis(400)));
        assert_eq!(times.patience(), Span::from_secs(8));
        times.add(Span::from_millis(400));
        assert_eq!(times.patience(), Span::from_millis(1600), "the slow one is forgotten");
    }
}
