//! Input and results of a run of measurements.

use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::flashflow::coordinator::{Failure, Outcome};

use crate::plan::LinkPlan;
use crate::tcp;

/// The relays, the team that measures them, and the network between them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The relays' machine: its link in either direction.
    pub link: LinkPlan,
    /// The relays on it; each has a measurement of its own.
    pub relays: Vec<RelayPlan>,
    /// The team.
    pub measurers: Vec<MeasurerPlan>,
    /// Path between coordinator and everyone: one-way delay.
    pub coordinator_delay: Span,
    /// `t`: whole seconds of each measurement.
    pub seconds: u16,
    /// `r` in percent, the coordinator's and the relays'.
    pub background_percent: u8,
    /// One echoed cell in this many is checked.
    pub check_one_in: u32,
    /// How long background flows before the measurements begin, and after they ended.
    pub around: Span,
    /// TCP of every connection.
    pub tcp: tcp::Config,
}

/// A relay that is measured.
#[derive(Clone, Debug)]
pub struct RelayPlan {
    /// Its rate limit, with a burst of one second.
    pub rate: Rate,
    /// Processor time per cell, of one core.
    pub cell_cost: Span,
    /// The share of the measurement's seconds, evenly spread, in which a cell costs twice as much.
    pub slow: f64,
    /// It holds cells back and claims background that it has not, see [`tidegate_proto::flashflow::hold`].
    pub holds: bool,
    /// Clients' traffic through it.
    pub background: BackgroundPlan,
    /// Per measurer `(a_i, sockets)`; with 0 sockets it does not take part.
    pub shares: Vec<(Rate, u16)>,
}

/// Clients' traffic: what they download over circuits through the relay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackgroundPlan {
    /// What is offered.
    pub rate: Rate,
    /// Circuits, each of which an exit feeds with its part of the rate; without any nothing is offered.
    pub circuits: u16,
}

/// A measurer's machine.
#[derive(Clone, Debug)]
pub struct MeasurerPlan {
    /// Its link in either direction.
    pub link: LinkPlan,
    /// One-way delay to the relays' machine.
    pub delay: Span,
    /// Standard deviation of that delay.
    pub jitter: Span,
    /// Probability that a packet is lost between the two.
    pub loss: f64,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Per relay.
    pub relays: Vec<RelayReport>,
    /// Events handled.
    pub events: u64,
    /// Two runs saw the same if these agree.
    pub digest: u64,
}

/// Result of a relay's measurement.
#[derive(Clone, Debug)]
pub struct RelayReport {
    /// Its outcome.
    pub result: Result<Outcome, Failure>,
    /// Bytes that the relay forwarded in each second since the run began, by its own count:
    /// (measurement, background) in bytes.
    pub forwarded: Vec<(u64, u64)>,
    /// When measurement traffic began to flow and when it ended, if it did.
    pub measured: (Option<Time>, Option<Time>),
}

/// The user stopped the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;
