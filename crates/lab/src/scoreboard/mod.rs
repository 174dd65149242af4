//! The scoreboard: comparison of published numbers with ours.
//!
//! `experiments/<paper>/<figure>/experiment.toml` names a runner and has one row per published number. The runner
//! measures quantities ([`Measured`]), and rows are expressions over them (`expression`). The lists
//! `runners` of this crate and of the tool register all runners by name.

pub mod calibrated;
mod calibration;
pub(crate) mod drawing;
pub mod experiment;
mod expression;
mod largest;
mod looks;
mod measured;
mod pooled;
mod ranking;
pub mod record;
pub(crate) mod scenario_runner;
pub(crate) mod sequence;
pub(crate) mod sweep;
pub mod verdict;

use crate::input::InputError;
use crate::monitor::Monitor;
pub use calibration::{CalibrateFile, Calibration, FreeParameter};
pub use drawing::{Banded, Drawing, FigureFile};
pub use experiment::{Experiment, Scale};
pub use looks::Looks;
pub use measured::{Curve, Figure, Measured};
pub use verdict::{Outcome, Verdict};

/// Measures an experiment. Except for times on this machine, the result must depend only on experiment and scale.
pub type Runner = fn(&Experiment, Scale, &dyn Monitor) -> Result<Measured, RunError>;

/// Inputs of a runner besides the experiment and its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependence {
    /// The parameter `seeds`: each quantity has one value per seed.
    Seeds,
    /// The same, and the runner can measure the later seeds alone.
    EachSeed,
    /// Nothing else, such as arithmetic and archives: one measurement decides.
    Nothing,
    /// Clocks, sockets and the load of the machine: values cannot be repeated bit by bit.
    Machine,
}

/// Why an experiment could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// A mistake in the experiment's files.
    Input(InputError),
    /// The machine lacks something that the experiment needs; its rows lack data.
    Unavailable(String),
    /// The run failed.
    Failed(String),
    /// The user stopped it.
    Stopped,
}

impl From<InputError> for RunError {
    fn from(error: InputError) -> RunError {
        RunError::Input(error)
    }
}
