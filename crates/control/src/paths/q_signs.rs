//! Q-learning for sources with losses filtered to signs ([`super::signs`]).
//!
//! The thesis' rule fits sources of a few packets per second, so two things differ here. A learner weighs losses against the
//! acknowledgements of the same state, and one sign among hundreds of them would not count: here a sign stands for all
//! packets of its state. And an action changes a rate by `STEP` packets per second, not by one.

use super::q_learning::{QLearning, QParameters};
use super::{Controller, Feedback, Memo, Peer};
use crate::random::Seed;
use crate::units::Time;

/// Packets per second from one state to the next.
pub(crate) const STEP: f64 = 8.0;

/// One learner per peer.
pub(crate) struct QSigns {
    inner: QLearning,
    /// Bytes/s from one state to the next.
    step: f64,
}

impl QSigns {
    /// Every peer starts in the fast start with state 1. `parameters.packet` is [`STEP`] packets.
    pub(crate) fn new(peers: usize, parameters: QParameters, seed: Seed) -> QSigns {
        QSigns { inner: QLearning::new(peers, parameters, seed), step: parameters.packet }
    }
}

impl Controller for QSigns {
    fn rate(&self, peer: Peer) -> f64 {
        self.inner.rate(peer)
    }

    fn memo(&self, peer: Peer) -> Memo {
        self.inner.memo(peer)
    }

    fn feedback(&mut self, now: Time, peer: Peer, memo: Memo, feedback: Feedback) -> f64 {
        let before = self.rate(peer);
        let packets = if matches!(feedback, Feedback::Acked { .. }) { 1.0 } else { before / self.step };
        for _ in 0..packets as u32 {
            if self.inner.feedback(now, peer, memo, feedback) != before {
                break;
            }
        }
        self.rate(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::parameters::ControllerParameters;
    use crate::units::Span;

    /// Mean packets/s in these seconds, through a relay that carries 200 packets/s, but stops for the third second.
    fn carried(name: &str, seconds: std::ops::Range<u64>) -> f64 {
        let parameters = ControllerParameters::named(name, 1500.0).expect("known");
        let mut control = parameters.controller(1, Seed::root(1)).expect("no manager");
        let mut sum = 0;
        for second in 0..seconds.end {
            let now = Time::ZERO + Span::from_secs(second);
            let (sent, memo) = ((control.rate(0) / 1500.0) as u32, control.memo(0));
            let most = if second == 3 { 0 } else { sent.min(200) };
            for packet in 0..sent {
                let feedback = match packet < most {
                    true => Feedback::Acked { round_trip: 0.1, stamp: None },
                    false => Feedback::TimedOut,
                };
                control.feedback(now, 0, memo, feedback);
            }
            sum += if seconds.contains(&second) { most } else { 0 };
        }
        f64::from(sum) / seconds.count() as f64
    }

    #[test]
    fn a_second_without_answers_costs_seconds() {
        let (signs, each) = (carried("q-signs", 20..60), carried("q-learning", 20..60));
        println!("{signs:.0} packets/s, {each:.0} if each loss counts");
        assert!(signs > 120.0, "{signs}");
        assert!(each < 60.0, "{each}");
    }
}
