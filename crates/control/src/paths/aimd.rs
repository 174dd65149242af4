//! Additive increase, multiplicative decrease per peer (thesis sections 4.2.3 and 4.2.4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::ControllerKind;
use super::{Controller, Feedback, Memo, Peer};
use crate::keys::Parameters;
use crate::random::Seed;
use crate::units::Time;

/// Parameters of `aimd`, and of its variants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct AimdSymbols {
    /// Growth per round trip, equation 4.7. Source: Raiber 2010, section 7.1.5.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub alpha: f64,
    /// A loss divides the rate by this, equation 4.11. Source: Raiber 2010, section 7.1.5.
    #[schemars(range(min = 1.0))]
    pub beta: f64,
}

impl Default for AimdSymbols {
    fn default() -> AimdSymbols {
        AimdSymbols { alpha: 1.5, beta: 1.4 }
    }
}

impl AimdSymbols {
    /// The controller's parameters with the drop locator on or off.
    pub(crate) fn parameters(self, packet: f64, locate: bool) -> AimdParameters {
        AimdParameters { packet, alpha: self.alpha, beta: self.beta, locate }
    }
}

impl Parameters for AimdSymbols {}

impl ControllerKind for AimdSymbols {
    fn controller(&self, packet: f64, peers: usize, _: Seed) -> Option<Box<dyn Controller>> {
        Some(Box::new(Aimd::new(peers, self.parameters(packet, false))))
    }

    fn serves_streams(&self) -> bool {
        true
    }
}

/// `aimd-locating`: AIMD with the drop locator ([`AimdParameters::locate`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct AimdLocating(AimdSymbols);

impl Parameters for AimdLocating {}

impl ControllerKind for AimdLocating {
    fn controller(&self, packet: f64, peers: usize, _: Seed) -> Option<Box<dyn Controller>> {
        Some(Box::new(Aimd::new(peers, self.0.parameters(packet, true))))
    }

    fn refusing(&self) -> bool {
        true
    }
}

/// The thesis' symbols.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AimdParameters {
    /// M: packet size in bytes.
    pub packet: f64,
    /// alpha of equation 4.7.
    pub alpha: f64,
    /// beta of equation 4.11, as the divisor that section 7.1.5 makes of it: R = R / beta.
    pub beta: f64,
    /// Drop locator (not in the thesis): a refusal counts against the refusing relay alone. A timeout without a
    /// refusal counts as in 4.11.
    pub locate: bool,
}

/// One rate per peer.
#[derive(Clone, Debug)]
pub(crate) struct Aimd {
    parameters: AimdParameters,
    peers: Vec<Rate>,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    /// R_i in bytes/s.
    rate: f32,
    slow_start: bool,
}

impl Aimd {
    /// Every peer starts in slow start with one packet per second.
    pub(crate) fn new(peers: usize, parameters: AimdParameters) -> Aimd {
        Aimd { parameters, peers: vec![Rate { rate: parameters.packet as f32, slow_start: true }; peers] }
    }

    fn decrease(&mut self, peer: Peer, memo: Memo) {
        let floor = self.parameters.packet as f32;
        let state = &mut self.peers[usize::from(peer)];
        // The memo is the rate at sending; its sign bit says that the packet left during slow start.
        let sent_in_slow_start = memo >> 31 == 1;
        if sent_in_slow_start {
            // Only the first loss of a slow-start packet counts, and it halves the rate of that time.
            if state.slow_start {
                *state = Rate { rate: f32::from_bits(memo & !(1 << 31)) / 2.0, slow_start: false };
            }
        } else {
            state.rate /= self.parameters.beta as f32;
        }
        state.rate = state.rate.max(floor);
    }
}

impl Controller for Aimd {
    fn rate(&self, peer: Peer) -> f64 {
        f64::from(self.peers[usize::from(peer)].rate)
    }

    fn memo(&self, peer: Peer) -> Memo {
        let state = self.peers[usize::from(peer)];
        state.rate.to_bits() | u32::from(state.slow_start) << 31
    }

    fn feedback(&mut self, _now: Time, peer: Peer, memo: Memo, feedback: Feedback) -> f64 {
        match feedback {
            Feedback::Acked { round_trip, .. } => {
                let state = &mut self.peers[usize::from(peer)];
                if state.slow_start {
                    state.rate += self.parameters.packet as f32;
                } else {
                    // Equation 4.7 as printed: bytes/s grow by packets per byte.
                    state.rate +=
                        (self.parameters.alpha * self.parameters.packet / round_trip) as f32 / state.rate;
                }
            }
            Feedback::Refused { .. } | Feedback::TimedOut => self.decrease(peer, memo),
            Feedback::Passed if !self.parameters.locate => self.decrease(peer, memo),
            Feedback::Passed => {}
        }
        self.rate(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: Feedback = Feedback::Acked { round_trip: 0.1, stamp: None };

    fn aimd() -> Aimd {
        Aimd::new(1, AimdParameters { packet: 1500.0, alpha: 1.5, beta: 1.4, locate: false })
    }

    #[test]
    fn slow_start_ends_once_with_half_of_the_rate_at_sending() {
        let mut control = aimd();
        for _ in 0..9 {
            let memo = control.memo(0);
            control.feedback(Time::ZERO, 0, memo, ACK);
        }
        assert_eq!(control.rate(0), 15_000.0);
        let (early, late) = (control.memo(0), 0);
        control.feedback(Time::ZERO, 0, late, ACK);
        assert_eq!(control.feedback(Time::ZERO, 0, early, Feedback::TimedOut), 7_500.0);
        assert_eq!(control.feedback(Time::ZERO, 0, early, Feedback::TimedOut), 7_500.0);
        let after = control.memo(0);
        let reduced = control.feedback(Time::ZERO, 0, after, Feedback::TimedOut);
        assert!((reduced - 7_500.0 / 1.4).abs() < 1e-2);
        // 1.5 x 1500 / (0.1 x R), equation 4.7 with its mixed dimensions.
        let grown = control.feedback(Time::ZERO, 0, after, ACK);
        assert!((grown - reduced - 22_500.0 / reduced).abs() < 1e-2);
    }

    #[test]
    fn the_rate_never_falls_below_one_packet() {
        let mut control = aimd();
        for _ in 0..20 {
            let memo = control.memo(0);
            control.feedback(Time::ZERO, 0, memo, Feedback::TimedOut);
        }
        assert_eq!(control.rate(0), 1500.0);
    }
}
