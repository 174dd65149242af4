//! The `predictor` table of a system: the parameters of `control = "predictor"`, the prototype's by default.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::predictor::Kind;
use tidegate_control::units::Span;
use tidegate_proto::cell::NEIGHBOUR_BYTES;
use tidegate_sim::plan::predictor::trajectory::Encoding;
use tidegate_sim::plan::predictor::wire;
use tidegate_sim::plan::predictor::{Clocks, Exchange, Parameters, Phases};

use super::quantity::Quantity;

/// PredicTor's parameters, the same at every relay.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PredictorFile {
    /// `"2020"`: the problem of the public prototype, or `"journal"`: that of the paper.
    pub problem: ProblemName,
    /// Interval between solves, and length of a step.
    pub step: Quantity<Span>,
    /// Steps looked ahead.
    pub horizon: u32,
    /// Share of a relay's bandwidth that its circuits may use.
    pub capacity_share: f64,
    /// Queue allowed per circuit, in cells (the prototype: 100),
    pub queue: f64,
    /// or, if that is more, what a circuit sends in this time if all get the same (the prototype: `"0 s"`).
    pub queue_time: Quantity<Span>,
    /// A circuit's queue is to drain in this time: the relay before is granted so much less. `"0 s"` (the
    /// prototype): never.
    pub drain: Quantity<Span>,
    /// What a server has waiting counts as queue of its exit; the prototype has `false`.
    pub tell_source: bool,
    /// What rates and queues are divided by in the objective.
    pub scaling: f64,
    /// One-way delay between relays that plans are made for.
    pub delay: Quantity<Span>,
    /// `delay` is only where estimates from messages' time stamps begin.
    pub estimate_delay: bool,
    /// Servers are on the exits' machines and clients on the guards': what passes between them takes nothing of
    /// a relay's capacity.
    pub local_ends: bool,
    /// What a successor grants is taken to last beyond the end of its plan.
    pub lasting_grants: bool,
    /// `"in-band"`: messages are cells on the relays' connections; `"out-of-band"`: they go past the network
    /// and take exactly `delay`.
    pub exchange: ExchangeName,
    /// `"plain"`: trajectories are told in every step as doubles, or `"compact"`: quantised, and only when the
    /// neighbour cannot tell by itself.
    pub encoding: EncodingName,
    /// Compact: how far from the plan the neighbour's idea of its next steps may be, as a share of the plan's
    /// largest value.
    pub resolution: f64,
    /// What is left of a cell may be sent in the next step.
    pub carry: bool,
    /// Parts in which a step's cells are let go, spread evenly over it; 1: all at once, as in the prototype.
    pub parts: u32,
    /// First solve.
    pub first: Quantity<Span>,
    /// `"synchronous"`: all relays solve at the same instant, or `"random"`: each at its own.
    pub phases: PhasesName,
    /// Relays' clocks are fast or slow by up to this share.
    pub drift: f64,
    /// `"shared"`: messages count from the time that their sender says, or `"own"`: from when they arrive,
    /// less `delay`.
    pub clocks: ClocksName,
    /// Time that a solve takes,
    pub solve_time: Quantity<Span>,
    /// and so much more for each circuit that takes part.
    pub solve_time_per_circuit: Quantity<Span>,
}

/// Which optimal control problem.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub enum ProblemName {
    /// The prototype's.
    #[serde(rename = "2020")]
    Prototype,
    /// The journal's.
    #[serde(rename = "journal")]
    Journal,
}

/// How messages travel.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExchangeName {
    /// As cells.
    InBand,
    /// Past the network.
    OutOfBand,
}

/// How trajectories are written.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EncodingName {
    /// As doubles.
    Plain,
    /// As few bytes.
    Compact,
}

/// When relays solve.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PhasesName {
    /// Together.
    Synchronous,
    /// Each when it likes.
    Random,
}

/// Whose clock counts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClocksName {
    /// The sender's.
    Shared,
    /// The receiver's.
    Own,
}

impl Default for PredictorFile {
    fn default() -> PredictorFile {
        let prototype = Parameters::default();
        PredictorFile {
            problem: ProblemName::Prototype,
            step: Quantity(prototype.step),
            horizon: prototype.horizon as u32,
            capacity_share: prototype.capacity_share,
            queue: prototype.s_max,
            queue_time: Quantity(prototype.s_max_time),
            drain: Quantity(prototype.drain),
            tell_source: prototype.tell_source,
            scaling: prototype.scaling,
            delay: Quantity(prototype.delay),
            estimate_delay: prototype.estimate_delay,
            local_ends: prototype.local_ends,
            lasting_grants: prototype.lasting_grants,
            exchange: ExchangeName::InBand,
            encoding: EncodingName::Compact,
            resolution: 1.0 / 16.0,
            carry: prototype.carry,
            parts: prototype.parts,
            first: Quantity(prototype.first),
            phases: PhasesName::Synchronous,
            drift: prototype.drift,
            clocks: ClocksName::Shared,
            solve_time: Quantity(prototype.solve_time.0),
            solve_time_per_circuit: Quantity(prototype.solve_time.1),
        }
    }
}

impl PredictorFile {
    /// What relays are given.
    pub fn parameters(&self) -> Parameters {
        Parameters {
            problem: match self.problem {
                ProblemName::Prototype => Kind::Prototype,
                ProblemName::Journal => Kind::Journal,
            },
            step: self.step.0,
            horizon: self.horizon as usize,
            capacity_share: self.capacity_share,
            s_max: self.queue,
            s_max_time: self.queue_time.0,
            drain: self.drain.0,
            tell_source: self.tell_source,
            scaling: self.scaling,
            delay: self.delay.0,
            estimate_delay: self.estimate_delay,
            local_ends: self.local_ends,
            lasting_grants: self.lasting_grants,
            exchange: match self.exchange {
                ExchangeName::InBand => Exchange::InBand,
                ExchangeName::OutOfBand => Exchange::OutOfBand,
            },
            encoding: match self.encoding {
                EncodingName::Plain => Encoding::Plain,
                EncodingName::Compact => Encoding::Compact { resolution: self.resolution },
            },
            carry: self.carry,
            parts: self.parts,
            first: self.first.0,
            phases: match self.phases {
                PhasesName::Synchronous => Phases::Synchronous,
                PhasesName::Random => Phases::Random,
            },
            drift: self.drift,
            clocks: match self.clocks {
                ClocksName::Shared => Clocks::Shared,
                ClocksName::Own => Clocks::Own,
            },
            solve_time: (self.solve_time.0, self.solve_time_per_circuit.0),
        }
    }

    /// A value that no run could work with, and what to write instead.
    pub fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let longest = (NEIGHBOUR_BYTES - wire::plain_bytes(0)) / 8;
        let finite = |value: f64, least: f64, most: f64| value >= least && value <= most;
        let step = self.step.0;
        let mistakes = [
            (
                step < Span::from_millis(1) || step > Span::from_secs(10) || !step.0.is_multiple_of(1_000),
                "predictor: `step` is not in 1 ms ..= 10 s, or not of whole microseconds",
                "the paper: \"40 ms\"",
            ),
            (
                !(1..=longest).contains(&(self.horizon as usize)),
                "predictor: `horizon` is not in 1..=61, so that a trajectory fits into a cell",
                "the paper: 10",
            ),
            (
                !finite(self.capacity_share, 0.01, 1.0),
                "predictor: `capacity-share` is not in 0.01..=1",
                "the prototype: 0.85",
            ),
            (
                !finite(self.queue, 1.0, 1e6),
                "predictor: `queue` is not in 1..=1e6 cells",
                "the prototype: 100",
            ),
            (
                !finite(self.scaling, 1e-3, 1e6),
                "predictor: `scaling` is not in 1e-3..=1e6",
                "the prototype: 50",
            ),
            (
                self.delay.0 > Span::from_secs(10),
                "predictor: `delay` is above 10 s",
                "the delay from relay to relay: \"40 ms\"",
            ),
            (
                !finite(self.resolution, 1e-4, 1.0),
                "predictor: `resolution` is not in 1e-4..=1",
                "what loses nothing visible: 0.06",
            ),
            (
                self.drain.0 > Span::ZERO && self.drain.0 < step,
                "predictor: `drain` is shorter than a step",
                "three steps: \"120 ms\", or \"0 s\" for never",
            ),
            (
                self.estimate_delay && matches!(self.clocks, ClocksName::Own),
                "predictor: `estimate-delay` goes by the senders' clocks, and `clocks` is \"own\"",
                "`clocks = \"shared\"`, or no estimate",
            ),
            (
                self.local_ends && matches!(self.problem, ProblemName::Journal),
                "predictor: `local-ends` is for the prototype's problem",
                "`problem = \"2020\"`",
            ),
            (!(1..=1000).contains(&self.parts), "predictor: `parts` is not in 1..=1000", "all at once: 1"),
            (!finite(self.drift, 0.0, 0.1), "predictor: `drift` is not in 0..=0.1", "a quartz: 1e-4"),
            (
                self.solve_time.0 > step || self.solve_time_per_circuit.0 > step,
                "predictor: a solve takes longer than a step",
                "\"1 ms\", and \"10 us\" per circuit",
            ),
        ];
        mistakes.into_iter().find(|(wrong, ..)| *wrong).map(|(_, cause, cure)| (cause, cure))
    }
}
