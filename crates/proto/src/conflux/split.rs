//! The contract of parts that divide a sender's messages among the legs of a set.

use std::fmt::Debug;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

use super::link::Wish;
use crate::ids::CircuitKey;

/// A way to divide messages among legs, with its parameters.
pub trait Split: Debug + Send + Sync {
    /// The wish of a client that wants its peer to divide this way. A peer without its own split follows tor's meaning of
    /// the wish.
    fn wish(&self) -> Wish {
        Wish::Throughput
    }
    /// The divider of one set.
    fn build(&self, seed: Seed) -> Box<dyn Splitter>;
}

/// How much one end of a circuit can send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Capacity {
    /// Cells that it accepts now.
    pub room: u32,
    /// Cells that its window alone would allow.
    pub window: u32,
    /// Cells per second in the plan of the relay's controller, if there is one.
    pub planned: Option<f64>,
    /// Delivered cells that a SENDME acknowledges.
    pub increment: u32,
}

/// A leg that may carry the next cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// The leg.
    pub circuit: CircuitKey,
    /// How much it can send.
    pub(crate) capacity: Capacity,
    /// Data cells without a SENDME yet.
    pub in_flight: u32,
    /// Its round-trip time.
    pub round_trip: Span,
}

impl Offer {
    /// Cells per second: the plan, or a window per round trip without one.
    pub(crate) fn rate(&self) -> f64 {
        let window = f64::from(self.in_flight) + f64::from(self.capacity.window);
        let by_window = || window / self.round_trip.as_secs_f64().max(1e-6);
        self.capacity.planned.unwrap_or_else(by_window).max(1.0)
    }
}

/// Divides one sender's messages among the legs of one set.
///
/// Of the legs with room the one with the lowest rank goes first; ties go to the least round-trip time.
pub trait Splitter: Debug + Send {
    /// Cells that may go over a leg now. `fastest` finds the usable leg with the least round-trip time; it may be `leg`
    /// itself.
    fn room(&self, leg: &Offer, _fastest: &dyn Fn() -> Offer) -> u32 {
        leg.capacity.room
    }
    /// Cells to send on this leg before legs are compared again.
    fn batch(&self, _leg: &Offer) -> u32 {
        u32::MAX
    }
    /// The leg's rank; lower ranks go first.
    fn rank(&self, _leg: &Offer) -> f64 {
        0.0
    }
    /// A data cell was sent on this leg.
    fn sent(&mut self, _now: Time, _leg: &Offer) {}
    /// A SENDME acknowledges the oldest cells of a leg.
    fn acknowledged(&mut self, _now: Time, _circuit: CircuitKey) {}
    /// A leg was removed.
    fn removed(&mut self, _circuit: CircuitKey) {}
    /// A leg's circuit has a new key.
    fn renamed(&mut self, _circuit: CircuitKey, _to: CircuitKey) {}
}
