//! Explicit rates for honest relays, a fallback controller for relays that lie.
//!
//! The source checks a relay's offers against its own observations. A relay that loses much more than the
//! others claims too much; one that offers much less than the others may claim too little. A
//! fallback controller, which learns from acknowledgements and losses alone, then controls this relay for a
//! term. Afterwards the relay is trusted again; each further term is twice as long.

use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::explicit::{Explicit, ExplicitParameters, ExplicitSymbols};
use super::fair_share::FairShareParameters;
use super::kind::ControllerKind;
use super::{Controller, Feedback, Memo, Peer};
use crate::keys::Parameters;
use crate::random::Seed;
use crate::units::{Span, Time};

/// Parameters of `explicit-or-...`: `F` with its defaults controls relays that lie.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct ExplicitOr<F> {
    #[serde(flatten)]
    explicit: ExplicitSymbols,
    /// A relay that loses a larger share of packets than this, and than twice the median relay's, is distrusted.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    loss: f64,
    /// A relay that offers less than this share of the median offer is put to the test.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    low: f64,
    #[serde(skip)]
    fallback: PhantomData<F>,
}

impl<F> Default for ExplicitOr<F> {
    fn default() -> ExplicitOr<F> {
        ExplicitOr { explicit: ExplicitSymbols::default(), loss: 0.1, low: 0.33, fallback: PhantomData }
    }
}

impl<F: JsonSchema> Parameters for ExplicitOr<F> {}

impl<F: ControllerKind + Default + fmt::Debug> ControllerKind for ExplicitOr<F> {
    fn controller(&self, packet: f64, peers: usize, seed: Seed) -> Option<Box<dyn Controller>> {
        let guard = GuardParameters { loss: self.loss, low: self.low };
        let mut distrusted = 0;
        let fallback = move || {
            distrusted += 1;
            let one_peer = F::default().controller(packet, 1, seed.fork_index(distrusted));
            one_peer.expect("a fallback is not the central manager")
        };
        Some(Box::new(Guarded::new(peers, self.explicit.source(packet), guard, Box::new(fallback))))
    }

    fn stamping(&self, packet: f64) -> Option<FairShareParameters> {
        Some(self.explicit.relay(packet))
    }

    fn refusing(&self) -> bool {
        true
    }
}

/// When a relay is distrusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GuardParameters {
    /// A relay is distrusted if it loses more than this share of packets (averaged over about 200) and twice
    /// the median relay's share.
    pub loss: f64,
    /// A relay that offers less than this share of the median offer is put to the test.
    pub low: f64,
}

/// Makes a controller for one peer, called peer 0.
pub(crate) type Fallback = Box<dyn FnMut() -> Box<dyn Controller> + Send>;

/// An [`Explicit`] source with one guard per peer.
pub(crate) struct Guarded {
    explicit: Explicit,
    parameters: GuardParameters,
    fallback: Fallback,
    guards: Vec<Guard>,
}

struct Guard {
    /// The last stamp, bytes/s; zero before the first.
    offer: f64,
    /// Smoothed share of packets lost here.
    loss: f64,
    /// Smoothed round trip for the fallback, seconds.
    round_trip: f64,
    /// The fallback controller, while the relay is distrusted.
    instead: Option<Box<dyn Controller>>,
    /// The end of the current state: a distrusted relay's term, a trusted one's grace.
    until: Time,
    term: Span,
}

/// Weight of one packet in `Guard::loss`.
const WEIGHT: f64 = 0.005;
/// Time to settle for a new overlay, and for a relay that is trusted again.
const GRACE: Span = Span::from_secs(20);
const FIRST_TERM: Span = Span::from_secs(60);
const LAST_TERM: Span = Span::from_secs(7200);
/// The memo of packets sent while the relay was trusted.
const TRUSTED: Memo = Memo::MAX;

impl Guarded {
    /// Trusts every peer at first.
    pub(crate) fn new(
        peers: usize,
        explicit: ExplicitParameters,
        parameters: GuardParameters,
        fallback: Fallback,
    ) -> Guarded {
        let guard = || Guard {
            offer: 0.0,
            loss: 0.0,
            round_trip: 1.0,
            instead: None,
            until: Time::ZERO + GRACE,
            term: FIRST_TERM,
        };
        let guards = (0..peers).map(|_| guard()).collect();
        Guarded { explicit: Explicit::new(peers, explicit), parameters, fallback, guards }
    }

    fn median(&self, value: fn(&Guard) -> f64) -> f64 {
        let mut known: Vec<f64> = self.guards.iter().filter(|g| g.offer > 0.0).map(value).collect();
        if known.is_empty() {
            return 0.0;
        }
        let middle = known.len() / 2;
        *known.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    /// Whether an offer is below its share of the median offer. It does not sort, because it runs for each peer
    /// every second.
    fn offers_little(&self, offer: f64) -> bool {
        let (mut known, mut above) = (0, 0);
        for guard in self.guards.iter().filter(|guard| guard.offer > 0.0) {
            known += 1;
            above += usize::from(offer < self.parameters.low * guard.offer);
        }
        above >= known - known / 2
    }

    /// Decides on a relay's next state when a term or grace period ends.
    fn review(&mut self, now: Time, peer: Peer) {
        let guard = &self.guards[usize::from(peer)];
        if let Some(fallback) = &guard.instead {
            // If the relay carried far more than it offers, it still claims too little.
            let lies_low = fallback.rate(0) > 1.5 * guard.offer && guard.loss < self.parameters.loss;
            let guard = &mut self.guards[usize::from(peer)];
            guard.term = (guard.term * 2).min(LAST_TERM);
            if lies_low {
                guard.until = now + guard.term;
            } else {
                (guard.instead, guard.loss, guard.until) = (None, 0.0, now + GRACE);
            }
            return;
        }
        let too_much =
            guard.loss > self.parameters.loss && guard.loss > 2.0 * self.median(|guard| guard.loss);
        let too_little = guard.offer > 0.0 && self.offers_little(guard.offer);
        let fallback = (too_much || too_little).then(|| (self.fallback)());
        let guard = &mut self.guards[usize::from(peer)];
        guard.until = now + if fallback.is_some() { guard.term } else { Span::from_secs(1) };
        if fallback.is_some() {
            (guard.instead, guard.loss) = (fallback, 0.0);
        }
    }
}

impl Controller for Guarded {
    fn rate(&self, peer: Peer) -> f64 {
        match &self.guards[usize::from(peer)].instead {
            Some(fallback) => fallback.rate(0),
            None => self.explicit.rate(peer),
        }
    }

    fn memo(&self, peer: Peer) -> Memo {
        self.guards[usize::from(peer)].instead.as_ref().map_or(TRUSTED, |fallback| fallback.memo(0))
    }

    fn feedback(&mut self, now: Time, peer: Peer, memo: Memo, feedback: Feedback) -> f64 {
        self.explicit.feedback(now, peer, memo, feedback);
        let guard = &mut self.guards[usize::from(peer)];
        let lost = matches!(feedback, Feedback::Refused { .. } | Feedback::TimedOut);
        guard.loss += WEIGHT * (f64::from(u8::from(lost)) - guard.loss);
        match feedback {
            Feedback::Acked { stamp: Some(offer), .. } | Feedback::Refused { stamp: Some(offer) } => {
                guard.offer = offer;
            }
            _ => {}
        }
        if let Feedback::Acked { round_trip, .. } = feedback {
            guard.round_trip = round_trip;
        }
        if let (Some(fallback), true) = (&mut guard.instead, memo != TRUSTED) {
            // This relay forwarded the packet. A fallback without drop locator hears an acknowledgement.
            let heard = match feedback {
                Feedback::Passed => Feedback::Acked { round_trip: guard.round_trip, stamp: None },
                other => other,
            };
            fallback.feedback(now, 0, memo, heard);
        }
        if now >= guard.until {
            self.review(now, peer);
        }
        self.rate(peer)
    }

    fn set_receiver(&mut self, peer: Peer) {
        self.explicit.set_receiver(peer);
        // The receiver is part of every loss, and a lying receiver harms only itself, so it is never reviewed.
        self.guards[usize::from(peer)].until = Time::NEVER;
    }

    fn keeps_remainder(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::aimd::{Aimd, AimdParameters};

    const PACKET: f64 = 1500.0;

    fn guarded() -> Guarded {
        let aimd = AimdParameters { packet: PACKET, alpha: 1.5, beta: 1.4, locate: true };
        Guarded::new(
            5,
            ExplicitParameters { packet: PACKET, beta: 0.9 },
            GuardParameters { loss: 0.03, low: 0.33 },
            Box::new(move || Box::new(Aimd::new(1, aimd))),
        )
    }

    /// Drives every peer at its rate; peer 0 carries `limit` and offers `claim`, the others 20 packets/s.
    fn drive(control: &mut Guarded, seconds: std::ops::Range<u64>, limit: u32, claim: f64) {
        for second in seconds {
            let now = Time::ZERO + Span::from_secs(second);
            for peer in 0..5 {
                let (sent, memo) = ((control.rate(peer) / PACKET) as u32, control.memo(peer));
                for packet in 0..sent {
                    let (most, offer) = if peer == 0 { (limit, claim) } else { (20, 20.0 * PACKET) };
                    let feedback = match packet < most {
                        true => Feedback::Acked { round_trip: 0.1, stamp: Some(offer) },
                        false => Feedback::Refused { stamp: Some(offer) },
                    };
                    control.feedback(now, peer, memo, feedback);
                }
            }
        }
    }

    #[test]
    fn honest_relays_stay_trusted() {
        let mut control = guarded();
        drive(&mut control, 0..300, 20, 20.0 * PACKET);
        assert!(control.guards.iter().all(|guard| guard.instead.is_none()));
        assert_eq!(control.rate(0), 20.0 * PACKET);
    }

    #[test]
    fn an_overstated_rate_is_corrected_downwards() {
        let mut control = guarded();
        drive(&mut control, 0..600, 20, 200.0 * PACKET);
        assert!(control.guards[0].instead.is_some());
        let rate = control.rate(0) / PACKET;
        assert!((10.0..22.0).contains(&rate), "{rate} packets/s");
    }

    #[test]
    fn an_understated_rate_is_corrected_upwards() {
        let mut control = guarded();
        drive(&mut control, 0..600, 20, PACKET);
        let rate = control.rate(0) / PACKET;
        assert!((10.0..22.0).contains(&rate), "{rate} packets/s");
        // An honest relay that carries little is tested, found honest and trusted again.
        let mut control = guarded();
        drive(&mut control, 0..85, 2, 2.0 * PACKET);
        assert!(control.guards[0].term > FIRST_TERM && control.guards[0].instead.is_none());
    }
}
