//! Explicit rates with a drop locator: relays offer rates and report the packets that they drop.
//!
//! In the manner of RCP (Dukkipati 2007). The relay's half is [`super::fair_share`]. The source's half is `Explicit`: it
//! sends what the relay offers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fair_share::FairShareParameters;
use super::kind::ControllerKind;
use super::{Controller, Feedback, Memo, Peer};
use crate::keys::Parameters;
use crate::random::Seed;
use crate::units::{Span, Time};

/// Parameters of `explicit`: the relays' and the source's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct ExplicitSymbols {
    /// Gain of one correction of a relay's offer.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub kappa: f64,
    /// How much more a large error counts.
    #[schemars(range(min = 0.0))]
    pub lambda: f64,
    /// The share of its limit that a relay aims at.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub eta: f64,
    /// Offers are rounded down to a power of this ratio; 1 rounds nothing.
    #[schemars(range(min = 1.0))]
    pub grain: f64,
    /// The share of the rate that remains after a timeout without a refusal.
    #[schemars(extend("exclusiveMinimum" = 0.0, "maximum" = 1.0))]
    pub beta: f64,
}

impl Default for ExplicitSymbols {
    fn default() -> ExplicitSymbols {
        ExplicitSymbols { kappa: 0.1, lambda: 4.0, eta: 0.93, grain: 1.0, beta: 0.9 }
    }
}

impl ExplicitSymbols {
    /// The source's parameters.
    pub(crate) fn source(self, packet: f64) -> ExplicitParameters {
        ExplicitParameters { packet, beta: self.beta }
    }

    /// The relays' parameters.
    pub(crate) fn relay(self, packet: f64) -> FairShareParameters {
        let ExplicitSymbols { kappa, lambda, eta, grain, .. } = self;
        FairShareParameters { packet, kappa, lambda, eta, grain }
    }
}

impl Parameters for ExplicitSymbols {}

impl ControllerKind for ExplicitSymbols {
    fn controller(&self, packet: f64, peers: usize, _: Seed) -> Option<Box<dyn Controller>> {
        Some(Box::new(Explicit::new(peers, self.source(packet))))
    }

    fn stamping(&self, packet: f64) -> Option<FairShareParameters> {
        Some(self.relay(packet))
    }

    fn refusing(&self) -> bool {
        true
    }

    fn serves_streams(&self) -> bool {
        true
    }
}

/// The source's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExplicitParameters {
    /// M: packet size in bytes.
    pub packet: f64,
    /// The share of the rate that remains after a timeout without a refusal, until the next stamp: a silent relay
    /// is slowed down as by equation 4.11.
    pub beta: f64,
}

/// One offer per peer.
#[derive(Clone, Debug)]
pub(crate) struct Explicit {
    parameters: ExplicitParameters,
    peers: Vec<Offered>,
    /// The receiver, if it offers a rate: its offers count, losses do not.
    receiver: Option<Peer>,
    /// Smoothed offer of all peers, one sample per acknowledgement; zero before the first.
    usual: f64,
}

#[derive(Clone, Copy, Debug)]
struct Offered {
    rate: f64,
    starting: bool,
    /// When a loss last lowered the rate.
    lowered: Option<Time>,
}

/// Losses within this time count once: limits restart every second, and a full queue loses many packets at once.
const LOSSES: Span = Span::from_secs(1);
/// Without stamps, a lowered rate grows by this share of the usual offer per second.
const STEP: f64 = 0.1;

/// Weight of one offer in `Explicit::usual`.
const WEIGHT: f64 = 0.01;

impl Explicit {
    /// Every peer starts with one packet per second and gains one per acknowledgement up to its offer.
    pub(crate) fn new(peers: usize, parameters: ExplicitParameters) -> Explicit {
        let peer = Offered { rate: parameters.packet, starting: true, lowered: None };
        Explicit { parameters, peers: vec![peer; peers], receiver: None, usual: 0.0 }
    }
}

impl Controller for Explicit {
    fn rate(&self, peer: Peer) -> f64 {
        self.peers[usize::from(peer)].rate
    }

    fn feedback(&mut self, now: Time, peer: Peer, _memo: Memo, feedback: Feedback) -> f64 {
        let ExplicitParameters { packet, beta } = self.parameters;
        if let Feedback::Acked { stamp: Some(offer), .. } = feedback {
            self.usual += if self.usual > 0.0 { WEIGHT * (offer - self.usual) } else { offer };
        }
        let state = &mut self.peers[usize::from(peer)];
        match feedback {
            Feedback::Acked { stamp: Some(offer), .. } if state.starting => {
                state.starting = state.rate + packet < offer;
                state.rate = (state.rate + packet).min(offer);
            }
            Feedback::Acked { stamp: Some(offer), .. } => state.rate = offer,
            Feedback::Refused { stamp } => {
                state.starting = false;
                state.rate = stamp.unwrap_or(state.rate * beta).min(state.rate);
            }
            Feedback::TimedOut if Some(peer) == self.receiver => {}
            Feedback::TimedOut if state.lowered.is_some_and(|then| now.since(then) < LOSSES) => {}
            Feedback::TimedOut => (state.rate, state.lowered) = (state.rate * beta, Some(now)),
            // The first relay of a receiver path cannot stamp for this source. Assume that it offers the usual rate,
            // and approach that rate by slow start and additive increase.
            Feedback::Acked { stamp: None, .. } => {
                let slow = packet.max(STEP * self.usual) * packet / state.rate;
                let step = if state.lowered.is_some() { slow.min(packet) } else { packet };
                state.rate = state.rate.max((state.rate + step).min(self.usual));
            }
            Feedback::Passed => {}
        }
        state.rate = state.rate.max(packet);
        state.rate
    }

    fn set_receiver(&mut self, peer: Peer) {
        self.receiver = Some(peer);
    }

    fn keeps_remainder(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_climbs_to_the_offer_and_then_follows_it() {
        let mut source = Explicit::new(1, ExplicitParameters { packet: 1500.0, beta: 0.5 });
        let ack = |offer| Feedback::Acked { round_trip: 0.1, stamp: Some(offer) };
        assert_eq!(source.feedback(Time::ZERO, 0, 0, ack(4000.0)), 3000.0);
        assert_eq!(source.feedback(Time::ZERO, 0, 0, ack(4000.0)), 4000.0);
        assert_eq!(source.feedback(Time::ZERO, 0, 0, ack(9000.0)), 9000.0);
        assert_eq!(source.feedback(Time::ZERO, 0, 0, Feedback::Passed), 9000.0);
        assert_eq!(source.feedback(Time::ZERO, 0, 0, Feedback::Refused { stamp: Some(7000.0) }), 7000.0);
        assert_eq!(source.feedback(Time::ZERO, 0, 0, Feedback::TimedOut), 3500.0);
    }

    #[test]
    fn losses_do_not_locate_a_drop_if_all_packets_end_there() {
        let mut source = Explicit::new(2, ExplicitParameters { packet: 1500.0, beta: 0.5 });
        source.set_receiver(1);
        for peer in [0, 1] {
            source.feedback(Time::ZERO, peer, 0, Feedback::Acked { round_trip: 0.1, stamp: Some(3000.0) });
            source.feedback(Time::ZERO, peer, 0, Feedback::TimedOut);
        }
        assert_eq!((source.rate(0), source.rate(1)), (1500.0, 3000.0));
    }

    #[test]
    fn a_peer_without_stamps_is_assumed_to_offer_the_usual_rate() {
        let mut source = Explicit::new(2, ExplicitParameters { packet: 1500.0, beta: 0.5 });
        let ack = |stamp| Feedback::Acked { round_trip: 0.1, stamp };
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 1500.0, "no offer is known yet");
        source.feedback(Time::ZERO, 0, 0, ack(Some(4000.0)));
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 3000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 4000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 4000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, Feedback::TimedOut), 2000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 3125.0, "by M per round of the rate");
    }
}
