//! PredicTor's parameters and three presets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_control::keys;
use tidegate_control::predictor::Formulation;
use tidegate_control::units::Span;

use super::trajectory::Encoding;
use super::wire;
use crate::cell::NEIGHBOUR_BYTES;

/// Out-of-band messages arrive this much early, so that they precede a solve one step later.
pub(super) const EARLY: Span = Span::from_millis(2);

/// PredicTor's parameters, the same at every relay. Defaults are those of the preset `tidegate`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PredictorParameters {
    /// Defaults of the other keys. `prototype` is the authors' code: `queue = 100`, `queue-time = "0 s"`,
    /// `drain = "0 s"`, `tell-source`, `lasting-grants`, `leave-out-idle`, `windows` and `carry` false, `parts = 1`,
    /// `reads = "bytes"`, `encoding = "plain"`, `exchange = "out-of-band"`. `journal` is the same with
    /// `problem = "journal"`.
    pub preset: Preset,
    /// The optimal control problem: of the authors' code, or of the paper (equation 25).
    pub problem: Formulation,
    /// Length of a step, and interval between solves; whole microseconds. Source: Döpmann et al. 2022.
    #[schemars(extend("x-range" = "1 ms..=10 s"))]
    pub step: Span,
    /// Steps looked ahead; a trajectory must fit into a cell, and last until a neighbour can follow it. Source: Döpmann et al. 2022.
    #[schemars(range(min = 1, max = LONGEST))]
    pub horizon: usize,
    /// Share of a relay's bandwidth that its circuits may use. Source: the authors' code.
    #[schemars(range(min = 0.01, max = 1.0))]
    pub capacity_share: f64,
    /// Queue allowed per circuit, in cells (soft).
    #[serde(rename = "queue")]
    #[schemars(range(min = 1.0, max = 1e6))]
    pub s_max: f64,
    /// Queue allowed per circuit, if larger than `queue`: its cells in this time at an equal share of the capacity.
    #[serde(rename = "queue-time")]
    pub s_max_time: Span,
    /// Time in which a circuit's queue drains, at least a step: grants to its predecessor are lowered accordingly. `"0 s"`:
    /// never.
    pub drain: Span,
    /// Whether an exit reports its server's waiting data as queue to the successor. Otherwise only
    /// the relay's own queue counts, which must then be long enough for a step.
    pub tell_source: bool,
    /// Divisor of rates and queues in the objective. Source: the authors' code.
    #[schemars(range(min = 1e-3, max = 1e6))]
    pub scaling: f64,
    /// One-way delay between neighbours that plans assume. Source: Döpmann et al. 2022.
    #[schemars(extend("x-range" = "..=10 s"))]
    pub delay: Span,
    /// Whether each circuit's delays are estimated from the time stamps of its neighbours' messages, with `delay` as
    /// the initial value. Needs shared clocks.
    pub estimate_delay: bool,
    /// Whether servers are on the exits' machines and clients on the guards': their traffic does not use the
    /// relay's capacity. The authors' code counts it all the same.
    pub local_ends: bool,
    /// Whether a successor's grants continue beyond the end of its plan.
    pub lasting_grants: bool,
    /// How neighbours' messages travel.
    pub exchange: Exchange,
    /// Encoding of messages; relays read both.
    pub encoding: Encoding,
    /// With `compact`: allowed error of the neighbour's version of a plan, as a share of the plan's
    /// largest value.
    #[schemars(range(min = 1e-4, max = 1.0))]
    pub resolution: f64,
    /// Whether the fraction of a cell that a step's rate leaves over carries to the next step. Otherwise it is lost, unless
    /// a cell is waiting: its first part goes now and the rest in the next step, like bytes from a bucket.
    pub carry: bool,
    /// Whether idle circuits are left out of the problem; their neighbours are then told once.
    /// Otherwise they are in every problem, with rates of zero, and in every message.
    pub leave_out_idle: bool,
    /// The unit in which exits read from servers.
    pub reads: Reads,
    /// Whether the system's fixed `windows` also bound the cells in flight.
    pub windows: bool,
    /// Number of portions in which a step's cells are released, spread evenly; 1: all at once.
    #[schemars(range(min = 1, max = 1000))]
    pub parts: u32,
    /// First solve, on each relay's clock.
    pub first: Span,
    /// The instant in a step at which a relay solves.
    pub phases: Phases,
    /// Relays' clocks are fast or slow by up to this share, drawn per relay.
    #[schemars(range(min = 0.0, max = 0.1))]
    pub drift: f64,
    /// How a message is dated: `shared`, by its sender's clock; `own`, by its arrival less `delay`.
    pub clocks: Clocks,
    /// Simulated time of a solve, at most a step; its results count from then on.
    pub solve_time: Span,
    /// Additional simulated time of a solve per circuit.
    pub solve_time_per_circuit: Span,
    /// A relay with more circuits to plan leaves them to the windows, and tells its neighbours its whole bandwidth as the
    /// rate of each planned circuit. It does the same for 25 steps after three successive solves longer than half a
    /// step. Needs `windows`. Source: Döpmann et al. 2022, section 4, has the attack: circuits tailored to be slow
    /// to solve.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub most_circuits: u32,
}

/// Steps of the longest trajectory that fits into a cell.
const LONGEST: usize = (NEIGHBOUR_BYTES - wire::plain_bytes(0)) / 8;

/// Presets of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The authors' code.
    Prototype,
    /// The paper's problem.
    Journal,
    /// Ours.
    Tidegate,
}

/// How neighbours' messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// As cells on the connection between the two.
    InBand,
    /// Outside the network, as in the authors' simulation: 2 ms before [`PredictorParameters::delay`] is over.
    OutOfBand,
}

/// The unit in which exits read from servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// As many cells as it plans; of the server's data it knows only whether there is more.
    Cells,
    /// As many payload bytes as the planned cells have bytes with headers; it knows every byte that
    /// a server has left. As in the authors' code; simulation only.
    Bytes,
}

/// The instant in a step at which a relay solves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phases {
    /// All relays at the same instant.
    Synchronous,
    /// Each relay at its own instant, drawn uniformly.
    Random,
}

/// The clock for the time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Clocks {
    /// The sender's clock, accepted within a few steps.
    Shared,
    /// Our clock: the arrival, less the delay that plans assume.
    Own,
}

impl Default for PredictorParameters {
    fn default() -> PredictorParameters {
        PredictorParameters {
            preset: Preset::Tidegate,
            problem: Formulation::Prototype,
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
            encoding: Encoding::Compact,
            resolution: 1.0 / 16.0,
            carry: true,
            leave_out_idle: true,
            reads: Reads::Cells,
            windows: true,
            parts: 8,
            first: Span::from_millis(100),
            phases: Phases::Synchronous,
            drift: 0.0,
            clocks: Clocks::Shared,
            solve_time: Span::ZERO,
            solve_time_per_circuit: Span::ZERO,
            most_circuits: 1000,
        }
    }
}

impl From<Preset> for PredictorParameters {
    fn from(preset: Preset) -> PredictorParameters {
        let problem = match preset {
            Preset::Tidegate => return PredictorParameters::default(),
            Preset::Journal => Formulation::Journal,
            Preset::Prototype => Formulation::Prototype,
        };
        PredictorParameters {
            preset,
            problem,
            s_max: 100.0,
            s_max_time: Span::ZERO,
            drain: Span::ZERO,
            tell_source: false,
            lasting_grants: false,
            carry: false,
            leave_out_idle: false,
            reads: Reads::Bytes,
            windows: false,
            parts: 1,
            exchange: Exchange::OutOfBand,
            encoding: Encoding::Plain,
            ..PredictorParameters::default()
        }
    }
}

impl PredictorParameters {
    /// The number of first steps that a grant cannot change (prototype): until the predecessor solves with it, and until the cells
    /// of that plan arrive. In the paper each takes a step. A message in band takes longer than the delay and misses a solve,
    /// which lasting grants tolerate.
    pub(super) fn fixed_steps(&self) -> usize {
        if self.problem == Formulation::Journal {
            return 0;
        }
        let late = self.exchange == Exchange::InBand && !self.lasting_grants;
        let arrival = if late { self.delay.0 + 1 } else { self.delay.0.saturating_sub(EARLY.0).max(1) };
        let solve = arrival.next_multiple_of(self.step.0);
        // A step of which less than a half is fixed counts as free.
        ((solve + self.delay.0 + self.step.0 / 2) / self.step.0) as usize
    }
}

impl keys::Parameters for PredictorParameters {
    fn base(given: &Value) -> PredictorParameters {
        let preset = given.get("preset").and_then(|name| Preset::deserialize(name).ok());
        preset.map_or_else(PredictorParameters::default, PredictorParameters::from)
    }

    fn mistake(&self) -> Option<(&'static str, &'static str)> {
        let usual = PredictorParameters::default();
        let mistakes = [
            (
                !self.step.0.is_multiple_of(1_000),
                "`step` is not of whole microseconds",
                "the paper: \"40 ms\"",
            ),
            (
                self.fixed_steps() >= self.horizon,
                "`horizon` ends before a neighbour can follow a plan",
                "more steps: they must last longer than twice the `delay`",
            ),
            (
                self.drain > Span::ZERO && self.drain < self.step,
                "`drain` is shorter than a step",
                "three steps: \"120 ms\", or \"0 s\" for never",
            ),
            (
                self.estimate_delay && self.clocks == Clocks::Own,
                "`estimate-delay` goes by the senders' clocks, and `clocks` is \"own\"",
                "`clocks = \"shared\"`, or no estimate",
            ),
            (
                self.local_ends && self.problem == Formulation::Journal,
                "`local-ends` is for the prototype's problem",
                "`problem = \"prototype\"`",
            ),
            (
                self.resolution != usual.resolution && self.encoding == Encoding::Plain,
                "`resolution` has no effect with `encoding = \"plain\"`",
                "`encoding = \"compact\"`, or no resolution",
            ),
            (
                self.most_circuits != usual.most_circuits && !self.windows,
                "`most-circuits` has no effect without `windows`",
                "`windows = true`, or no limit",
            ),
            (
                self.solve_time > self.step || self.solve_time_per_circuit > self.step,
                "a solve takes longer than a step",
                "\"1 ms\", and \"10 us\" per circuit",
            ),
        ];
        mistakes.into_iter().find(|(wrong, ..)| *wrong).map(|(_, cause, cure)| (cause, cure))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate_control::keys::read;

    use super::*;

    #[test]
    fn a_preset_supplies_the_omitted_keys() {
        let ours: PredictorParameters = read(&json!({})).unwrap();
        assert_eq!(ours, PredictorParameters::default());
        let theirs: PredictorParameters = read(&json!({ "preset": "prototype", "parts": 2 })).unwrap();
        assert_eq!((theirs.s_max, theirs.parts, theirs.carry), (100.0, 2, false));
        assert_eq!(theirs.exchange, Exchange::OutOfBand);
        let papers: PredictorParameters = read(&json!({ "preset": "journal" })).unwrap();
        assert_eq!((papers.problem, papers.s_max_time), (Formulation::Journal, Span::ZERO));
        assert_eq!(
            papers,
            PredictorParameters {
                problem: Formulation::Journal,
                preset: Preset::Journal,
                ..Preset::Prototype.into()
            }
        );
        let spelled = serde_json::to_value(theirs).unwrap();
        assert_eq!(read::<PredictorParameters>(&spelled), Ok(theirs), "spelled out, it is the same");
    }

    #[test]
    fn steps_are_fixed_until_the_predecessor_can_follow() {
        let fixed = |table| read::<PredictorParameters>(&table).unwrap().fixed_steps();
        assert_eq!(fixed(json!({})), 2);
        assert_eq!(fixed(json!({ "preset": "journal" })), 0);
        for (step, steps) in [("40 ms", 2), ("39 ms", 2), ("30 ms", 3), ("20 ms", 4), ("80 ms", 2)] {
            assert_eq!(fixed(json!({ "preset": "prototype", "step": step })), steps, "{step}");
        }
        assert_eq!(fixed(json!({ "preset": "prototype", "exchange": "in-band" })), 3);
        assert_eq!(fixed(json!({ "preset": "prototype", "delay": "5 ms" })), 1);
    }

    #[test]
    fn keys_that_do_not_fit_together_are_refused() {
        for (table, cause) in [
            (
                json!({ "estimate-delay": true, "clocks": "own" }),
                "`estimate-delay` goes by the senders' clocks",
            ),
            (
                json!({ "local-ends": true, "preset": "journal" }),
                "`local-ends` is for the prototype's problem",
            ),
            (json!({ "resolution": 0.5, "encoding": "plain" }), "`resolution` has no effect"),
            (json!({ "most-circuits": 5, "preset": "prototype" }), "`most-circuits` has no effect"),
            (json!({ "drain": "1 ms" }), "`drain` is shorter"),
            (json!({ "horizon": 2 }), "`horizon` ends before"),
            (json!({ "step": "8 ms" }), "`horizon` ends before"),
            (json!({ "horizon": 62 }), "`horizon` is not in 1..=61"),
            (json!({ "resolution": 0 }), "`resolution` is not in 0.0001..=1"),
        ] {
            let wrong = read::<PredictorParameters>(&table).unwrap_err();
            assert!(wrong.cause.starts_with(cause), "{wrong:?}");
        }
    }
}
