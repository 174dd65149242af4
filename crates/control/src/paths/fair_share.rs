//! The relay's half of explicit rates: one rate, the same for all sources, that moves with the load.
//!
//! In the manner of RCP (Dukkipati 2007). Once per second the relay moves its offer f towards the rate at which its load
//! is eta of its limit C. It stamps f on acknowledgements and refusals.

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
    /// changes less often; 1 means no rounding.
    pub grain: f64,
}

/// A relay's offer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FairShare {
    parameters: FairShareParameters,
    offer: f64,
}

impl FairShare {
    /// The first offer is the limit shared by all `peers`.
    pub(crate) fn new(limit: f64, peers: usize, parameters: FairShareParameters) -> FairShare {
        FairShare { parameters, offer: (limit / peers.max(1) as f64).max(parameters.packet) }
    }

    /// Ends a second in which `offered` bytes arrived (dropped ones included) under `limit`:
    /// f <- clamp(f (1 + kappa (1 + lambda |e|) e), M, C) with the error e = (eta C - y) / C.
    pub(crate) fn second(&mut self, limit: f64, offered: f64) {
        let FairShareParameters { packet, kappa, lambda, eta, .. } = self.parameters;
        if limit > 0.0 {
            // A load of many times the limit must not turn the rate negative.
            let error = (eta * limit - offered) / limit;
            self.offer *= (1.0 + kappa * (1.0 + lambda * error.abs()) * error).max(0.25);
        }
        self.offer = self.offer.clamp(packet, limit.max(packet));
    }

    /// The rate stamped on acknowledgements, bytes/s.
    pub(crate) fn stamp(&self) -> f64 {
        let grain = self.parameters.grain;
        if grain <= 1.0 {
            return self.offer;
        }
        let step = libm::floor(libm::log(self.offer / self.parameters.packet) / libm::log(grain));
        self.parameters.packet * libm::pow(grain, step)
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
}
