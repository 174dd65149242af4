//! Per-packet paths through a peer-to-peer overlay: how fast a source sends through each peer.
//!
//! After M. Raiber, *Congestion Control over Multiple Parallel Paths* (TUM 2010), chapters 4-6: every
//! packet takes its own random path of `h` relays, each relay forwards a limited number of bytes per
//! second and drops the rest, and the destination returns an acknowledgement over the same relays. A
//! source keeps one rate `R_i` per peer `i` and sends through peers with some of their rate left in the
//! current second.
//!
//! * [`Sender`] is the source: budgets, random paths, round-trip estimates, one [`Controller`].
//! * [`relay::PolicingRelay`] forwards up to its limit, drops the rest and may offer a rate.
//! * A [`Controller`] turns feedback about packets into rates: [`random`], `aimd`, `q_learning`, [`q_signs`],
//!   `cubic`, `explicit`, [`guarded`], `signs`.
//! * [`perfect::Manager`] replaces all controllers by one manager with complete knowledge.
//! * `parameters` is the registry: one line per controller.

mod aimd;
mod cubic;
mod explicit;
mod fair_share;
pub(crate) mod guarded;
mod kind;
mod latency;
mod parameters;
pub mod perfect;
mod q_learning;
pub(crate) mod q_signs;
pub(crate) mod random;
pub mod relay;
mod sender;
mod signs;

use crate::units::Time;
pub use fair_share::FairShareParameters;
pub use kind::ControllerKind;
pub use latency::Latencies;
pub use parameters::{CONTROLLERS, ControllerParameters};
pub use q_learning::{Exploration, QLearning, QParameters};
pub use sender::{Memos, Path, Sender, Stamps};

/// A peer of the overlay by number.
pub type Peer = u16;

/// The most relays on one path.
pub const MAX_HOPS: usize = 8;

/// A controller's note about a relay at the time of sending; it comes back with the packet's feedback.
pub type Memo = u32;

/// The fate of one packet, from the view of one of its relays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Feedback {
    /// The acknowledgement came back in time. `round_trip` is L of equation 4.3 to this relay in seconds;
    /// `stamp` is the rate in bytes/s that the relay offers, if relays stamp rates.
    Acked {
        /// Smoothed round trip to the relay, seconds.
        round_trip: f64,
        /// The rate the relay offers, bytes/s.
        stamp: Option<f64>,
    },
    /// The acknowledgement did not come within T of equation 4.6; any relay of the path may be the cause.
    TimedOut,
    /// This relay reported that it dropped the packet (drop locator).
    Refused {
        /// The rate the relay offers, bytes/s.
        stamp: Option<f64>,
    },
    /// This relay forwarded the packet; a later hop reported that it dropped it.
    Passed,
}

/// Turns feedback into one sending rate per peer.
pub trait Controller: Send {
    /// R_i: bytes per second that may be sent through `peer` now.
    fn rate(&self, peer: Peer) -> f64;

    /// Notes the relay's state when a packet is sent; the value comes back with the feedback.
    fn memo(&self, _peer: Peer) -> Memo {
        0
    }

    /// Learns from one packet's fate at one relay; returns the new R_i.
    fn feedback(&mut self, now: Time, peer: Peer, memo: Memo, feedback: Feedback) -> f64;

    /// Declares `peer` the receiver. All packets end there, so a loss without a refusal says little about it.
    fn set_receiver(&mut self, _peer: Peer) {}

    /// Whether the rest of a second's rate (less than a packet) carries over to the next second. The
    /// thesis' controllers drop it, so their rates act in steps of one packet per second.
    fn keeps_remainder(&self) -> bool {
        false
    }
}
