//! The runner `flashflow-cycle`: runs `tidegate flashflow cycle`.

use serde::Deserialize;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use super::tool::{json_of, push_numbers};

/// `[parameters]`: arguments of the command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CycleExperiment {
    relays: u16,
    slowest: String,
    fastest: String,
    period: String,
    duration: String,
}

/// Measures an experiment. The quantities are the numbers that the command prints.
///
/// # Errors
/// If the command fails.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: CycleExperiment = experiment.parameters(scale)?;
    monitor.progress("period", &parameters.period, 0.0);
    let CycleExperiment { relays, slowest, fastest, period, duration } = &parameters;
    let relays_text = relays.to_string();
    let arguments = [
        &["flashflow", "cycle", "--json", "--relays", &relays_text, "--slowest", slowest][..],
        &["--fastest", fastest, "--period", period, "--duration", duration],
    ]
    .concat();
    let mut measured = Measured::default();
    push_numbers(&mut measured, "", &json_of(&arguments, monitor)?);
    measured.notes.push(format!("Live: {relays} relays as processes on loopback, a period of {period}."));
    Ok(measured)
}
