//! Trajectories: the content of messages between neighbours.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};

/// How trajectories are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Encoding {
    /// Every trajectory in every step, as doubles.
    #[default]
    Plain,
    /// Quantised, and only when the neighbour's version is too far off.
    Compact,
}

/// The quantity of a trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// To the predecessor: the rates at which we will take cells.
    Intake,
    /// To the successor: the rates at which we will send cells.
    Output,
    /// To the successor: our queue after each step.
    Queue,
    /// To the successor: the rates at which we could send without its limit (the journal's problem only).
    Virtual,
}

impl About {
    /// All quantities, in the order of their numbers on the wire.
    pub(crate) const ALL: [About; 4] = [About::Intake, About::Output, About::Queue, About::Virtual];
}

/// A trajectory as it is written and read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trajectory<'a> {
    /// Circuit id on the channel.
    pub circ: u32,
    /// Its quantity.
    pub about: About,
    /// When the sender solved, on its clock.
    pub solved: Time,
    /// Length of a step.
    pub step: Span,
    /// A value per step, not yet validated.
    pub values: &'a [f64],
}

/// The bytes are not a sequence of trajectories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;
