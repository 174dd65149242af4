//! The scoreboard: published numbers beside ours.
//!
//! `experiments/<paper>/<figure>/experiment.toml` names a runner and lists the published numbers, a row
//! each. A runner measures quantities ([`Measured`]); rows are expressions over them ([`expression`]).
//! Runners are registered by name in one list, the tool's `runners`.

pub mod drawing;
pub mod experiment;
pub mod expression;
mod ranking;
pub mod record;
pub mod scenario_runner;
pub mod sweep;
pub mod verdict;

use std::collections::BTreeMap;

use crate::input::InputError;
use crate::monitor::Monitor;
pub use experiment::{Experiment, Kind, Scale};
pub use verdict::{Outcome, Verdict};

/// Measures what an experiment asks for. Must be a pure function of the experiment and the scale, but for
/// quantities that are times of this machine.
pub type Runner = fn(&Experiment, Scale, &dyn Monitor) -> Result<Measured, RunError>;

/// What a runner measured: quantity name -> one value per seed (one value if there is one run).
///
/// Names are dotted paths of letters, digits, `_` and `-`, such as
/// `vanilla.throughput_total_bytes_per_s`; rows refer to them.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The values, never empty.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Curves for the scoreboard's report.
    pub figures: Vec<Figure>,
    /// What a reader of the scoreboard should know about this measurement.
    pub notes: Vec<String>,
}

impl Measured {
    /// Adds one seed's value of a quantity.
    pub fn push(&mut self, quantity: impl Into<String>, value: f64) {
        self.values.entry(quantity.into()).or_default().push(value);
    }
}

/// A figure of curves over one axis.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figure {
    /// Heading.
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// One curve of a figure.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Points, ascending in x.
    pub points: Vec<(f64, f64)>,
}

/// Why an experiment could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The experiment's files are wrong.
    Input(InputError),
    /// Something that this experiment needs is not on this machine: its rows have no data.
    Unavailable(String),
    /// The run itself failed.
    Failed(String),
    /// The user stopped it.
    Stopped,
}

impl From<InputError> for RunError {
    fn from(error: InputError) -> RunError {
        RunError::Input(error)
    }
}
