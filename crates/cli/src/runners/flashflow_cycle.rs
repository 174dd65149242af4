//! The runner `flashflow-cycle`: a network of live relays, measured for a period (`tidegate flashflow cycle`).

use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]`: the command's arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CycleExperiment {
    relays: u16,
    slowest: String,
    fastest: String,
    period: String,
    duration: String,
}

/// Measures an experiment. Quantities are those that the command prints.
///
/// # Errors
/// If the command fails.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: CycleExperiment = experiment.parameters(scale)?;
    monitor.progress("period", &parameters.period, 0.0);
    let fail = |error: std::io::Error| RunError::Failed(error.to_string());
    let output = Command::new(std::env::current_exe().map_err(fail)?)
        .args(["flashflow", "cycle", "--json", "--relays", &parameters.relays.to_string()])
        .args(["--slowest", &parameters.slowest, "--fastest", &parameters.fastest])
        .args(["--period", &parameters.period, "--duration", &parameters.duration])
        .stderr(Stdio::inherit())
        .output()
        .map_err(fail)?;
    if monitor.stopped() || output.status.code().is_none() {
        return Err(RunError::Stopped);
    }
    let outcome: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| RunError::Failed(format!("the cycle did not end: {error}")))?;
    let mut measured = Measured::default();
    for (name, value) in outcome.as_object().into_iter().flatten() {
        match value {
            Value::Number(number) => measured.push(name, number.as_f64().unwrap_or(f64::NAN)),
            Value::Object(quantiles) => {
                let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
                quantiles.iter().for_each(|(of, value)| measured.push(format!("{name}.{of}"), number(value)));
            }
            _ => {}
        }
    }
    let (relays, period) = (parameters.relays, &parameters.period);
    measured.notes.push(format!("Live: {relays} relays as processes on loopback, a period of {period}."));
    Ok(measured)
}
