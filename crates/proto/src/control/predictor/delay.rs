//! Estimates the delay between neighbours from the ages of their messages.

use tidegate_control::units::{Span, Time};

/// The delay of one direction of a link: the least recent age of a message on arrival.
///
/// Longer ages include waiting in queues. A neighbour can write any time on its messages, so the estimate is at most the
/// horizon, counts for the message's circuit alone, and expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delay {
    /// The least age in the current and in the previous period; `None` without a message.
    least: [Option<Span>; 2],
    /// When the current period began.
    began: Time,
}

impl Delay {
    /// Adds the age of a message. A least age expires after one to two periods with newer messages.
    pub(crate) fn observe(&mut self, now: Time, age: Span, period: Span) {
        if self.least[0].is_some() && now.since(self.began) >= period {
            self.least = [None, self.least[0]];
        }
        match &mut self.least[0] {
            Some(least) => *least = age.min(*least),
            none => (*none, self.began) = (Some(age), now),
        }
    }

    /// The estimate, or `otherwise` before the first message; at most `most`.
    pub(crate) fn get(&self, otherwise: Span, most: Span) -> Span {
        self.least.iter().flatten().min().copied().unwrap_or(otherwise).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Span = Span::from_secs(1);
    const MOST: Span = Span::from_millis(400);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn waiting_does_not_count_and_a_longer_way_is_learnt() {
        let mut delay = Delay::default();
        assert_eq!(delay.get(Span::from_millis(40), MOST), Span::from_millis(40), "the belief");
        for step in 0..50 {
            delay.observe(at(40 * step), Span::from_millis(25 + step % 7), PERIOD);
        }
        assert_eq!(delay.get(Span::ZERO, MOST), Span::from_millis(25));
        for step in 50..102 {
            delay.observe(at(40 * step), Span::from_millis(60), PERIOD);
        }
        assert_eq!(delay.get(Span::ZERO, MOST), Span::from_millis(60), "after two periods");
    }

    #[test]
    fn lies_are_cut_and_silence_keeps_the_estimate() {
        let mut delay = Delay::default();
        delay.observe(at(0), Span(u64::MAX), PERIOD);
        assert_eq!(delay.get(Span::ZERO, MOST), MOST);
        delay.observe(at(10), Span::from_millis(30), PERIOD);
        assert_eq!(delay.get(Span::ZERO, MOST), Span::from_millis(30));
        delay.observe(at(60_000), Span::from_millis(50), PERIOD);
        assert_eq!(delay.get(Span::ZERO, MOST), Span::from_millis(30), "not forgotten by silence alone");
    }
}
