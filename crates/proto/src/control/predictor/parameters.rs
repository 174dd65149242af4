//! PredicTor's parameters.

use tidegate_control::predictor::Kind;
use tidegate_control::units::Span;

use super::trajectory::Encoding;

/// PredicTor's parameters; the same at every relay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Which optimal control problem.
    pub problem: Kind,
    /// Length of a step, and interval between solves (40 ms).
    pub step: Span,
    /// Steps looked ahead (10).
    pub horizon: usize,
    /// Share of a relay's bandwidth that its circuits may use (0.85).
    pub capacity_share: f64,
    /// Queue allowed per circuit, in cells (prototype: 100; soft),
    pub s_max: f64,
    /// or, if that is more, what a circuit sends in this time if all get the same (prototype: zero).
    pub s_max_time: Span,
    /// A circuit's queue is to drain in this time: its predecessor is granted so much less (prototype: zero,
    /// never).
    pub drain: Span,
    /// Where data enters the overlay, what the server has waiting counts as queue towards the successor.
    /// In the prototype only the relay's own queue does, which must then be long enough for a step.
    pub tell_source: bool,
    /// What rates and queues are divided by in the objective (50).
    pub scaling: f64,
    /// One-way delay between neighbours that plans are made for (40 ms).
    pub delay: Span,
    /// Whether `delay` is only the first belief, and each circuit's delays are estimated from the time stamps of
    /// its neighbours' messages; with shared clocks only.
    pub estimate_delay: bool,
    /// Whether servers are on the exits' machines and clients on the guards': what passes between them takes
    /// nothing of a relay's capacity. The prototype counts it all the same.
    pub local_ends: bool,
    /// Whether a successor's grants are taken to last ([`last`]); in the prototype they end with its plan.
    pub lasting_grants: bool,
    /// How neighbours' messages travel.
    pub exchange: Exchange,
    /// How they are written; any relay reads both.
    pub encoding: Encoding,
    /// The part of a cell that a step's rate leaves over may be sent in the next step; the prototype
    /// forgets it.
    pub carry: bool,
    /// Parts in which a step's cells are let go, spread evenly over it; the prototype lets all go at once.
    pub parts: u32,
    /// First solve, on each relay's clock (100 ms).
    pub first: Span,
    /// When in a step a relay solves.
    pub phases: Phases,
    /// Relays' clocks are fast or slow by up to this share, drawn per relay.
    pub drift: f64,
    /// Whose clock says when a message was made.
    pub clocks: Clocks,
    /// Time that a solve takes at a relay, and for each circuit in it; its results count from then on.
    pub solve_time: (Span, Span),
}

/// How neighbours' messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// As cells on the connection between the two.
    InBand,
    /// Past the network, in exactly [`Parameters::delay`], as in the authors' simulation.
    OutOfBand,
}

/// When in a step a relay solves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phases {
    /// All at the same instant.
    Synchronous,
    /// Each at its own, drawn uniformly.
    Random,
}

/// Whose clock says when a message was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// The sender's, believed within a few steps.
    Shared,
    /// Ours: when it arrived, less the delay that plans are made for.
    Own,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            problem: Kind::Prototype,
            step: Span::from_millis(40),
            horizon: 10,
            capacity_share: 0.85,
            s_max: 2.0,
            s_max_time: Span::from_millis(400),
            drain: Span::from_millis(120),
            tell_source: true,
            scaling: 50.0,
            delay: Span::from_millis(40),
            estimate_delay: false,
            local_ends: false,
            lasting_grants: true,
            exchange: Exchange::InBand,
            encoding: Encoding::Compact { resolution: 1.0 / 16.0 },
            carry: true,
            parts: 8,
            first: Span::from_millis(100),
            phases: Phases::Synchronous,
            drift: 0.0,
            clocks: Clocks::Shared,
            solve_time: (Span::ZERO, Span::ZERO),
        }
    }
}
