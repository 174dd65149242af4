//! Filters losses for the controllers of sources that also have a congestion window.
//!
//! The window reacts to losses without a refusal: a lossy link affects all relays of a path alike. The controller reacts to
//! refusals and to silent relays. Limits restart every second, and one second over a limit loses many packets of a
//! busy source. All of them count as one sign.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::aimd::{Aimd, AimdParameters, AimdSymbols};
use super::cubic::{Cubic, CubicParameters};
use super::kind::ControllerKind;
use super::q_learning::QSymbols;
use super::q_signs::{self, QSigns};
use super::relay::SECOND;
use super::{Controller, Feedback, Memo, Peer};
use crate::keys::Parameters;
use crate::random::Seed;
use crate::units::Time;

/// Timeouts in a row through one relay, without an acknowledgement between them, that make a sign.
const IN_A_ROW: u32 = 3;

/// `aimd-signs`: alpha counts in packets/s per round trip, where equation 4.7 as printed has bytes/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct AimdSigns(AimdSymbols);

impl Parameters for AimdSigns {}

impl ControllerKind for AimdSigns {
    fn controller(&self, packet: f64, peers: usize, _: Seed) -> Option<Box<dyn Controller>> {
        let as_printed = self.0.parameters(packet, true);
        let aimd = AimdParameters { alpha: as_printed.alpha * packet, ..as_printed };
        Some(Box::new(Signs::new(peers, Box::new(Aimd::new(peers, aimd)))))
    }

    fn refusing(&self) -> bool {
        true
    }
}

/// `cubic-signs`: CUBIC with RFC 9438's own C.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct CubicSigns {
    /// Steepness of the curve, packets/s per s^3. Source: RFC 9438.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub c: f64,
    /// The share of the rate that remains after a loss. Source: RFC 9438.
    #[schemars(extend("exclusiveMinimum" = 0.0, "maximum" = 1.0))]
    pub beta: f64,
}

impl Default for CubicSigns {
    fn default() -> CubicSigns {
        CubicSigns { c: 0.4, beta: 0.7 }
    }
}

impl Parameters for CubicSigns {}

impl ControllerKind for CubicSigns {
    fn controller(&self, packet: f64, peers: usize, _: Seed) -> Option<Box<dyn Controller>> {
        let cubic = Cubic::new(peers, CubicParameters { packet, c: self.c, beta: self.beta });
        Some(Box::new(Signs::new(peers, Box::new(cubic))))
    }

    fn refusing(&self) -> bool {
        true
    }
}

/// `q-signs`: Q-learning with states [`q_signs::STEP`] packets/s apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct QLearningSigns(QSymbols);

impl Parameters for QLearningSigns {
    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        self.0.mistake()
    }
}

impl ControllerKind for QLearningSigns {
    fn controller(&self, packet: f64, peers: usize, seed: Seed) -> Option<Box<dyn Controller>> {
        let learner = QSigns::new(peers, self.0.parameters(q_signs::STEP * packet), seed);
        Some(Box::new(Signs::new(peers, Box::new(learner))))
    }

    fn refusing(&self) -> bool {
        true
    }
}

/// Passes acknowledgements and signs to a controller, but not each loss.
pub(crate) struct Signs {
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
    /// Wraps a controller of `peers` peers.
    pub(crate) fn new(peers: usize, inner: Box<dyn Controller>) -> Signs {
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
    use crate::units::Span;

    #[test]
    fn scattered_losses_do_not_blame_a_relay() {
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
