//! The scoreboard: published numbers beside ours.
//!
//! `experiments/<paper>/<figure>/experiment.toml` names a runner and lists the published numbers, a row
//! each. A runner measures quantities ([`Measured`]); rows are expressions over them ([`expression`]).
//! Runners are registered by name in one list, the tool's `runners`.

pub mod drawing;
pub mod experiment;
pub mod expression;
pub mod largest;
mod measured;
mod ranking;
pub mod record;
pub mod scenario_runner;
pub mod sweep;
pub mod verdict;

use crate::input::InputError;
use crate::monitor::Monitor;
pub use experiment::{Experiment, RowKind, Scale};
pub use measured::{Curve, Figure, Measured};
pub use verdict::{Outcome, Verdict};

/// Measures what an experiment asks for. Must be a pure function of the experiment and the scale, but for
/// quantities that are times of this machine.
pub type Runner = fn(&Experiment, Scale, &dyn Monitor) -> Result<Measured, RunError>;

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
