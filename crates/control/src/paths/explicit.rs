//! Explicit rates with a drop locator: relays say what they can carry, and which relay dropped a packet.
//!
//! In the manner of RCP (Dukkipati 2007). The relay's half is [`FairShare`]: once per second it moves one
//! rate f, the same for all sources, towards the rate at which its load is eta of its limit C, and stamps
//! it on acknowledgements and refusals. The source's half is [`Explicit`]: it sends what the relay offers.

use super::{Controller, Feedback, Memo, Peer};
use crate::units::{Span, Time};

/// How a relay moves its offer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FairShareParameters {
    /// M: packet size in bytes, the least offer.
    pub packet: f64,
    /// kappa: the gain of one correction.
    pub kappa: f64,
    /// lambda: how much more a large error counts, so that the gain is small in equilibrium and large after
    /// a change.
    pub lambda: f64,
    /// eta: the share of the limit aimed at.
    pub eta: f64,
    /// Offers are rounded down to a power of this ratio, so that an offer identifies a relay less and
    /// changes seldom; 1 rounds nothing.
    pub grain: f64,
}

/// A relay's offer.
#[derive(Clone, Copy, Debug)]
pub struct FairShare {
    parameters: FairShareParameters,
    offer: f64,
}

impl FairShare {
    /// The first offer is the limit shared by all `peers`.
    pub fn new(limit: f64, peers: usize, parameters: FairShareParameters) -> FairShare {
        FairShare { parameters, offer: (limit / peers.max(1) as f64).max(parameters.packet) }
    }

    /// A second is over, in which `offered` bytes arrived (dropped ones included) under `limit`:
    /// f <- clamp(f (1 + kappa (1 + lambda |e|) e), M, C) with the error e = (eta C - y) / C.
    pub fn second(&mut self, limit: f64, offered: f64) {
        let FairShareParameters { packet, kappa, lambda, eta, .. } = self.parameters;
        if limit > 0.0 {
            // A load of many times the limit must not turn the rate negative.
            let error = (eta * limit - offered) / limit;
            self.offer *= (1.0 + kappa * (1.0 + lambda * error.abs()) * error).max(0.25);
        }
        self.offer = self.offer.clamp(packet, limit.max(packet));
    }

    /// What is stamped on acknowledgements, bytes/s.
    pub fn stamp(&self) -> f64 {
        let grain = self.parameters.grain;
        if grain <= 1.0 {
            return self.offer;
        }
        let step = libm::floor(libm::log(self.offer / self.parameters.packet) / libm::log(grain));
        self.parameters.packet * libm::pow(grain, step)
    }
}

/// The source's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExplicitParameters {
    /// M: packet size in bytes.
    pub packet: f64,
    /// What a timeout without a refusal leaves of the rate until the next stamp: a relay that says nothing
    /// is slowed down as by equation 4.11.
    pub beta: f64,
}

/// One offer per peer.
#[derive(Clone, Debug)]
pub struct Explicit {
    parameters: ExplicitParameters,
    peers: Vec<Offered>,
    /// Where packets end, if it offers a rate: its offer counts, losses do not.
    receiver: Option<Peer>,
    /// Mean of the last offers of all, weighted by their acknowledgements; zero before the first.
    usual: f64,
}

#[derive(Clone, Copy, Debug)]
struct Offered {
    rate: f64,
    starting: bool,
    /// When a loss last lowered the rate.
    lowered: Option<Time>,
}

/// Limits count by the second, and a full queue loses many packets at once: losses of one second are one sign.
const LOSSES: Span = Span::from_secs(1);
/// Without a stamp a rate that was lowered grows by this share of the usual offer per second.
const STEP: f64 = 0.1;

/// Weight of one offer in `Explicit::usual`.
const WEIGHT: f64 = 0.01;

impl Explicit {
    /// Every peer starts with one packet per second and gains one per acknowledgement up to its offer.
    pub fn new(peers: usize, parameters: ExplicitParameters) -> Explicit {
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
            // A receiver path's first relay cannot write to this source: it is taken to offer what others do,
            // with slow start and additive increase on the way there.
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

    const RELAY: FairShareParameters =
        FairShareParameters { packet: 1500.0, kappa: 0.1, lambda: 0.0, eta: 0.93, grain: 1.0 };

    #[test]
    fn the_offer_settles_where_the_load_is_eta_of_the_limit() {
        let mut relay = FairShare::new(400_000.0, 20, RELAY);
        for _ in 0..400 {
            let offered = 57.0 * relay.stamp();
            relay.second(400_000.0, offered);
        }
        assert!((57.0 * relay.stamp() / 400_000.0 - 0.93).abs() < 1e-3);
        for _ in 0..400 {
            relay.second(400_000.0, 1e12);
        }
        assert_eq!(relay.stamp(), 1500.0);
    }

    #[test]
    fn stamps_are_rounded_down_to_few_values() {
        let relay = FairShare::new(400_000.0, 20, FairShareParameters { grain: 1.1, ..RELAY });
        let stamp = relay.stamp();
        assert!(stamp <= 20_000.0 && stamp > 20_000.0 / 1.1);
        let steps = libm::log(stamp / 1500.0) / libm::log(1.1);
        assert!((steps - libm::round(steps)).abs() < 1e-9);
    }

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
    fn losses_say_nothing_about_where_all_packets_end() {
        let mut source = Explicit::new(2, ExplicitParameters { packet: 1500.0, beta: 0.5 });
        source.set_receiver(1);
        for peer in [0, 1] {
            source.feedback(Time::ZERO, peer, 0, Feedback::Acked { round_trip: 0.1, stamp: Some(3000.0) });
            source.feedback(Time::ZERO, peer, 0, Feedback::TimedOut);
        }
        assert_eq!((source.rate(0), source.rate(1)), (1500.0, 3000.0));
    }

    #[test]
    fn who_cannot_offer_is_taken_to_offer_what_others_do() {
        let mut source = Explicit::new(2, ExplicitParameters { packet: 1500.0, beta: 0.5 });
        let ack = |stamp| Feedback::Acked { round_trip: 0.1, stamp };
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 1500.0, "nobody offered anything yet");
        source.feedback(Time::ZERO, 0, 0, ack(Some(4000.0)));
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 3000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 4000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 4000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, Feedback::TimedOut), 2000.0);
        assert_eq!(source.feedback(Time::ZERO, 1, 0, ack(None)), 3125.0, "by M per round of the rate");
    }
}
