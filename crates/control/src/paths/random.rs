//! No control at all (thesis section 6.3.1): any path at any time.

use super::kind::ControllerKind;
use super::{Controller, Feedback, Memo, Peer};
use crate::random::Seed;
use crate::units::Time;

/// Sends through any peer, as fast as the application asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random;

impl ControllerKind for Random {
    fn controller(&self, _: f64, _: usize, _: Seed) -> Option<Box<dyn Controller>> {
        Some(Box::new(Random))
    }
}

impl Controller for Random {
    fn rate(&self, _peer: Peer) -> f64 {
        f64::INFINITY
    }

    fn feedback(&mut self, _now: Time, _peer: Peer, _memo: Memo, _feedback: Feedback) -> f64 {
        f64::INFINITY
    }
}
