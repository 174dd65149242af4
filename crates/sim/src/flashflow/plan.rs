//! Input and results of a run of measurements.

use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::flashflow::coordinator::{Failure, Outcome};

use crate::plan::LinkPlan;
use crate::tcp;

/// The relays, the team that measures them, and the network between them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Link of the relays' machine, in either direction.
    pub link: LinkPlan,
    /// Its relays; each has its own measurement.
    pub relays: Vec<RelayPlan>,
    /// The team.
    pub measurers: Vec<MeasurerPlan>,
    /// One-way delay between the coordinator and all other machines.
    pub coordinator_delay: Span,
    /// `t`: length of each measurement in seconds.
    pub seconds: u16,
    /// `r` in percent, for the coordinator and the relays.
    pub background_percent: u8,
    /// One echoed cell in this many is checked.
    pub check_one_in: u32,
    /// Duration of background before and after the measurements.
    pub around: Span,
    /// TCP of every connection.
    pub tcp: tcp::Config,
}

/// A measured relay.
#[derive(Clone, Debug)]
pub struct RelayPlan {
    /// Its rate limit, with a burst of one second.
    pub rate: Rate,
    /// Processor time per cell on one core.
    pub cell_cost: Span,
    /// The share of the measurement's seconds, evenly spread, in which a cell costs twice as much.
    pub slow: f64,
    /// Whether it holds cells back and claims background that does not exist, see
    /// [`tidegate_proto::flashflow::Hold`].
    pub holds: bool,
    /// Clients' traffic through it.
    pub background: BackgroundPlan,
    /// Per measurer `(a_i, sockets)`; with 0 sockets it does not take part.
    pub shares: Vec<(Rate, u16)>,
}

/// Clients' downloads over circuits through the relay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackgroundPlan {
    /// Offered rate.
    pub rate: Rate,
    /// Number of circuits, which share the rate; zero turns background off.
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
    /// Other guests of the machine, if it is a virtual one.
    pub guests: Option<GuestsPlan>,
}

/// Busy guests of a machine: with `n` of them, each gets `1 / (1 + n)` of the link.
///
/// They come at random times and stay for times with an exponential distribution (an M/M/∞ queue).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuestsPlan {
    /// Their number in the mean.
    pub mean: f64,
    /// How long one stays in the mean.
    pub stay: Span,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Results per relay.
    pub relays: Vec<RelayReport>,
    /// Number of events handled.
    pub events: u64,
    /// Digest of the run: equal for equal runs.
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
    /// Times at which measurement traffic began and ended, if it did.
    pub measured: (Option<Time>, Option<Time>),
}

/// The user stopped the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;
