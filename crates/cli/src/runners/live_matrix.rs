//! The runner `live-matrix`: every combination of parts on sockets (`tidegate overlay matrix`).
//!
//! Quantities: `run`, `faulty` and `refused` combinations, and for each combination that ran `<name>.exact`,
//! `<name>.seconds`, `<name>.longest_pause_s` and `<name>.moves`.

use serde::Deserialize;
use tidegate_control::units::Bytes;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use super::tool::{json_of, push_numbers};

/// `[parameters]`: arguments of the command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixExperiment {
    circuits: u16,
    bytes: Bytes,
    /// Number of combinations; all by default.
    sample: Option<usize>,
}

/// Measures an experiment.
///
/// # Errors
/// If the command fails.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let MatrixExperiment { circuits, bytes, sample } = experiment.parameters(scale)?;
    let (circuits, bytes) = (circuits.to_string(), bytes.to_string());
    let sample = sample.map(|sample| sample.to_string());
    let mut arguments = vec!["overlay", "matrix", "--json", "--circuits", &circuits, "--bytes", &bytes];
    arguments.extend(sample.iter().flat_map(|sample| ["--sample", sample]));
    let found = json_of(&arguments, monitor)?;
    let mut measured = Measured::default();
    push_numbers(&mut measured, "", &found);
    for row in found["combination"].as_array().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default();
        push_numbers(&mut measured, &format!("{name}."), row);
        for fault in row["faults"].as_array().into_iter().flatten() {
            measured.notes.push(format!("{name}: {}.", fault.as_str().unwrap_or_default()));
        }
    }
    Ok(measured)
}
