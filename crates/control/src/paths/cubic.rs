//! CUBIC's curve applied to one rate per peer, not to a window as in `sim::tcp`.
//!
//! The curve is RFC 9438's `W(t) = C (t - K)^3 + W_max`, with packets per second in the place of the window. Rates have
//! neither TCP's Reno-friendly region nor fast convergence or ssthresh, so only this formula is common.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::ControllerKind;
use super::{Controller, Feedback, Memo, Peer};
use crate::keys::Parameters;
use crate::random::Seed;
use crate::registry::Origin;
use crate::units::{Span, Time};

/// Source and oracles.
pub(crate) const ORIGIN: Origin = Origin {
    system: "CUBIC",
    source: "RFC 9438",
    oracles: &["crates/control/src/paths/cubic.rs: the_rate_returns_to_the_peak_after_k_seconds"],
    deviation: "a rate per peer instead of a window; no Reno-friendly region",
};

/// Parameters of `cubic`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct CubicSymbols {
    /// Steepness of the curve, packets/s per s^3.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub c: f64,
    /// The share of the rate that remains after a loss. Source: RFC 9438.
    #[schemars(extend("exclusiveMinimum" = 0.0, "maximum" = 1.0))]
    pub beta: f64,
}

impl Default for CubicSymbols {
    fn default() -> CubicSymbols {
        CubicSymbols { c: 1e-4, beta: 0.7 }
    }
}

impl Parameters for CubicSymbols {}

impl ControllerKind for CubicSymbols {
    fn controller(&self, packet: f64, peers: usize, _: Seed) -> Option<Box<dyn Controller>> {
        Some(Box::new(Cubic::new(peers, CubicParameters { packet, c: self.c, beta: self.beta })))
    }

    fn serves_streams(&self) -> bool {
        true
    }
}

/// RFC 9438's symbols.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CubicParameters {
    /// M: packet size in bytes.
    pub packet: f64,
    /// C in packets/s per s^3.
    pub c: f64,
    /// beta_cubic: the share of the rate that remains after a loss.
    pub beta: f64,
}

/// One curve per peer.
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    parameters: CubicParameters,
    peers: Vec<Curve>,
}

#[derive(Clone, Copy, Debug)]
struct Curve {
    /// Packets per second.
    rate: f64,
    /// W_max in packets per second; zero during start-up, which adds a packet per acknowledgement.
    peak: f64,
    /// When the rate last fell.
    since: Time,
    /// K, seconds.
    knee: f64,
}

impl Cubic {
    /// Every peer starts with one packet per second.
    pub(crate) fn new(peers: usize, parameters: CubicParameters) -> Cubic {
        Cubic { parameters, peers: vec![Curve { rate: 1.0, peak: 0.0, since: Time::ZERO, knee: 0.0 }; peers] }
    }
}

/// Losses within one second belong to one congestion event: relays count by the second.
const EVENT: Span = Span::from_secs(1);

impl Controller for Cubic {
    fn rate(&self, peer: Peer) -> f64 {
        self.peers[usize::from(peer)].rate * self.parameters.packet
    }

    fn feedback(&mut self, now: Time, peer: Peer, _memo: Memo, feedback: Feedback) -> f64 {
        let CubicParameters { c, beta, .. } = self.parameters;
        let curve = &mut self.peers[usize::from(peer)];
        match feedback {
            Feedback::Acked { .. } if curve.peak == 0.0 => curve.rate += 1.0,
            Feedback::Acked { .. } => {
                let x = now.since(curve.since).as_secs_f64() - curve.knee;
                curve.rate = curve.rate.max(c * x * x * x + curve.peak);
            }
            Feedback::TimedOut | Feedback::Refused { .. } | Feedback::Passed => {
                if curve.peak == 0.0 || now.since(curve.since) >= EVENT {
                    curve.peak = curve.rate;
                    // Leaving start-up, the rate overshot by up to a factor of two.
                    let keep = if curve.since == Time::ZERO { 0.5 } else { beta };
                    curve.rate = (curve.rate * keep).max(1.0);
                    curve.peak = curve.peak.max(1.0);
                    curve.knee = libm::cbrt((curve.peak - curve.rate) / c);
                    curve.since = now;
                }
            }
        }
        curve.rate * self.parameters.packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_returns_to_the_peak_after_k_seconds() {
        let parameters = CubicParameters { packet: 1500.0, c: 0.01, beta: 0.7 };
        let mut control = Cubic::new(1, parameters);
        let ack = Feedback::Acked { round_trip: 0.1, stamp: None };
        for _ in 0..19 {
            control.feedback(Time::ZERO, 0, 0, ack);
        }
        let at = |seconds: f64| Time::ZERO + Span::from_secs_f64(seconds);
        assert_eq!(control.feedback(at(1.0), 0, 0, Feedback::TimedOut), 10.0 * 1500.0);
        assert_eq!(control.feedback(at(1.5), 0, 0, Feedback::TimedOut), 10.0 * 1500.0, "same event");
        let knee = 10.0; // cbrt((20 - 10) / 0.01)
        let half_way = control.feedback(at(1.0 + knee / 2.0), 0, 0, ack) / 1500.0;
        assert!((half_way - (20.0 - 0.01 * 125.0)).abs() < 1e-6);
        assert!((control.feedback(at(1.0 + knee), 0, 0, ack) / 1500.0 - 20.0).abs() < 1e-6);
    }
}
