//! What neighbours tell each other: trajectories.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};

/// How trajectories are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Encoding {
    /// Each in each step, as doubles.
    #[default]
    Plain,
    /// Quantised, and only when the neighbour cannot tell by itself.
    Compact,
}

/// What a trajectory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// To the predecessor: the rates at which we will take cells.
    Intake,
    /// To the successor: the rates at which we will send cells,
    Output,
    /// how long our queue will be after each step,
    Queue,
    /// and the rates at which we could send if it were not for the successor (the journal's problem only).
    Virtual,
}

impl About {
    /// All there are, in the order of their numbers.
    pub const ALL: [About; 4] = [About::Intake, About::Output, About::Queue, About::Virtual];
}

/// A trajectory as it is written and read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trajectory<'a> {
    /// Circuit id on the channel.
    pub circ: u32,
    /// What it is about.
    pub about: About,
    /// When the sender solved, on its clock.
    pub solved: Time,
    /// Length of a step.
    pub step: Span,
    /// A value per step; nothing is known of them but their number.
    pub values: &'a [f64],
}

/// What came is not trajectories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;
