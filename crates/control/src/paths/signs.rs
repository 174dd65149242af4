//! Which losses a controller hears of, where the source has a congestion window too.
//!
//! The window answers for losses that nobody explains: a link that no relay knows of loses for all relays of a path alike. A
//! controller is for what relays say and for relays that say nothing at all. Limits count by the second, and one second over a
//! limit loses many packets of a source that has much to send: they are one sign.

use super::relay::SECOND;
use super::{Controller, Feedback, Memo, Peer};
use crate::units::Time;

/// Packets through one relay whose timeouts strike in a row, without an acknowledgement between them, before it hears of them.
const IN_A_ROW: u32 = 3;

/// A controller that hears of signs, not of each loss.
pub struct Signs {
    inner: Box<dyn Controller>,
    peers: Vec<Heard>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// Timeouts since the last acknowledgement.
    silent: u32,
    /// When the last sign was given.
    sign: Option<Time>,
}

impl Signs {
    /// For a controller of so many peers.
    pub fn new(peers: usize, inner: Box<dyn Controller>) -> Signs {
        Signs { inner, peers: vec![Heard::default(); peers] }
    }
}

impl Controller for Signs {
    fn rate(&self, peer: Peer) -> f64 {
        self.inner.rate(peer)
    }

    fn memo(&self, peer: Peer) -> Memo {
        self.inner.memo(peer)
    }

    fn feedback(&mut self, now: Time, peer: Peer, memo: Memo, feedback: Feedback) -> f64 {
        let heard = &mut self.peers[usize::from(peer)];
        let is_sign = match feedback {
            Feedback::Acked { .. } => {
                heard.silent = 0;
                return self.inner.feedback(now, peer, memo, feedback);
            }
            Feedback::Passed => {
                heard.silent = 0;
                false
            }
            Feedback::Refused { .. } => true,
            Feedback::TimedOut => {
                heard.silent += 1;
                heard.silent >= IN_A_ROW
            }
        };
        if is_sign && heard.sign.is_none_or(|then| now.since(then) >= SECOND) {
            heard.sign = Some(now);
            return self.inner.feedback(now, peer, memo, feedback);
        }
        self.rate(peer)
    }

    fn set_receiver(&mut self, peer: Peer) {
        self.inner.set_receiver(peer);
    }

    fn keeps_remainder(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::aimd::{Aimd, AimdParameters};
    use crate::units::Span;

    #[test]
    fn scattered_losses_and_all_but_the_first_of_a_second_say_nothing_of_a_relay() {
        let aimd = AimdParameters { packet: 1500.0, alpha: 1.5, beta: 1.4, locate: true };
        let mut control = Signs::new(1, Box::new(Aimd::new(1, aimd)));
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let ack = Feedback::Acked { round_trip: 0.1, stamp: None };
        for _ in 0..99 {
            control.feedback(at(0), 0, 0, ack);
        }
        let before = control.rate(0);
        for n in 0..30 {
            let memo = control.memo(0);
            control.feedback(at(n), 0, memo, if n % 3 == 2 { ack } else { Feedback::TimedOut });
        }
        assert!(control.rate(0) >= before, "never three in a row");
        let refused = Feedback::Refused { stamp: None };
        let memo = control.memo(0);
        let halved = control.feedback(at(100), 0, memo, refused);
        assert!(halved < 0.51 * (before + 20.0 * 1500.0), "{halved}");
        let memo = control.memo(0);
        for ms in 200..1100 {
            control.feedback(at(ms), 0, memo, refused);
        }
        assert_eq!(control.rate(0), halved, "one second is one sign");
        for ms in 1100..1110 {
            control.feedback(at(ms), 0, memo, Feedback::TimedOut);
        }
        assert!((control.rate(0) - halved / 1.4).abs() < 1.0, "a silent relay is slowed down");
    }
}
