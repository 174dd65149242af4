//! The runner `live-matrix`: every combination of a fixed list of parts on sockets (`tidegate overlay matrix`).
//!
//! Quantities: `run`, `faulty` and `refused` combinations; `fault`, with one value for each combination that ran, 1 if it
//! is faulty and otherwise 0; and for each of them `<name>.exact`, `<name>.seconds`, `<name>.longest_pause_s` and
//! `<name>.moves`.

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
    // Which combinations run does not depend on the machine.
    measured.fixed.extend(["run", "refused"].map(str::to_owned));
    for row in found["combination"].as_array().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default();
        push_numbers(&mut measured, &format!("{name}."), row);
        let faults = row["faults"].as_array().map_or(&[][..], Vec::as_slice);
        measured.push("fault", if faults.is_empty() { 0.0 } else { 1.0 });
        for fault in faults {
            measured.notes.push(format!("{name}: {}.", fault.as_str().unwrap_or_default()));
        }
    }
    Ok(measured)
}
