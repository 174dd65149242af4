//! A kind of controller with its parameters, as the registry ([`super::parameters`]) makes it.

use std::fmt;

use super::Controller;
use super::fair_share::FairShareParameters;
use crate::random::Seed;

/// Makes the controllers of sources and says what relays do for them.
pub trait ControllerKind: fmt::Debug + Send + Sync {
    /// The controller of one source of `packet`-byte packets; `None` if a central manager replaces the sources.
    fn controller(&self, packet: f64, peers: usize, seed: Seed) -> Option<Box<dyn Controller>>;

    /// The parameters with which relays stamp rates; `None` if they do not.
    fn stamping(&self, _packet: f64) -> Option<FairShareParameters> {
        None
    }

    /// Whether relays report the packets that they drop.
    fn refusing(&self) -> bool {
        false
    }

    /// Whether a video server can use it: it learns about one viewer at a time.
    fn serves_streams(&self) -> bool {
        false
    }
}
