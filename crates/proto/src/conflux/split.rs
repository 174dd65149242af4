//! What a sender sends is divided among the legs of a set: the contract of those who do that.

use std::fmt::Debug;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

use super::link::Wish;
use crate::ids::CircuitKey;

/// A way to divide what is sent.
pub trait Split: Debug + Send + Sync {
    /// What a client says that is to be sent to in this way. A sender without a split of its own does what that means to
    /// tor.
    fn wish(&self) -> Wish {
        Wish::Throughput
    }
    /// What divides for one set.
    fn build(&self, seed: Seed) -> Box<dyn Splitter>;
}

/// What the end of a circuit can send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Cells that it takes now.
    pub room: u32,
    /// Cells that its window alone leaves.
    pub window: u32,
    /// Cells per second that the plan of a relay's controller gives it, if there is one.
    pub planned: Option<f64>,
    /// Delivered cells that a SENDME acknowledges.
    pub increment: u32,
}

/// A leg that may be sent on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// The leg.
    pub circuit: CircuitKey,
    /// What it can send.
    pub capacity: Capacity,
    /// Data cells sent that no SENDME has acknowledged.
    pub in_flight: u32,
    /// Its round-trip time.
    pub round_trip: Span,
}

impl Offer {
    /// Cells per second: planned, or else a window in each round trip.
    pub fn rate(&self) -> f64 {
        let window = f64::from(self.in_flight) + f64::from(self.capacity.window);
        let by_window = || window / self.round_trip.as_secs_f64().max(1e-6);
        self.capacity.planned.unwrap_or_else(by_window).max(1.0)
    }
}

/// Divides what one sender sends among the legs of one set. Of the legs with room the one of the lowest rank goes
/// first, and of those alike the one with the least round-trip time.
pub trait Splitter: Debug + Send {
    /// Cells that may go over a leg now.
    fn room(&self, leg: &Offer) -> u32 {
        leg.capacity.room
    }
    /// Cells that go over it before legs are compared again.
    fn batch(&self, _leg: &Offer) -> u32 {
        u32::MAX
    }
    /// How much later than others it goes.
    fn rank(&self, _leg: &Offer) -> f64 {
        0.0
    }
    /// A data cell goes over this leg now.
    fn sent(&mut self, _now: Time, _leg: &Offer) {}
    /// A SENDME acknowledges the oldest cells of a leg.
    fn acknowledged(&mut self, _now: Time, _circuit: CircuitKey) {}
    /// A leg is gone.
    fn removed(&mut self, _circuit: CircuitKey) {}
    /// A leg's circuit is known by another key from now on.
    fn renamed(&mut self, _circuit: CircuitKey, _to: CircuitKey) {}
}
