//! The runner `command`: runs subcommands of this tool, each of which prints one JSON object.
//!
//! Quantities are `<name>.<key>`: the name of the command in the experiment, and a number that it prints.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use super::tool::{json_of, push_numbers};

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandExperiment {
    /// Arguments of the tool, by the name that starts their quantities.
    command: BTreeMap<String, Vec<String>>,
}

/// Measures an experiment.
///
/// # Errors
/// If a command fails or does not print an object.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let CommandExperiment { command } = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    for (index, (name, arguments)) in command.iter().enumerate() {
        monitor.progress("commands", name, index as f64 / command.len() as f64);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        push_numbers(&mut measured, &format!("{name}."), &json_of(&arguments, monitor)?);
    }
    Ok(measured)
}
