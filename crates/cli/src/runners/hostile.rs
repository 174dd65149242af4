//! The runner `hostile`: measures a relay under attack with `tidegate overlay crowd`.
//!
//! Quantities are `<case>.<name>`, with the names that the command prints.

use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]`: options of the command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct HostileExperiment {
    connections: usize,
    per_second: u32,
    phase: Span,
}

/// Cases and their options: a mix of attacks, or only idle connections after the handshakes.
const CASES: [(&str, &[&str]); 2] = [("mixed", &[]), ("idle", &["--idle"])];

/// Measures an experiment.
///
/// # Errors
/// If the command fails.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let HostileExperiment { connections, per_second, phase } = experiment.parameters(scale)?;
    let fail = |error: std::io::Error| RunError::Failed(error.to_string());
    let mut measured = Measured::default();
    for (index, (case, options)) in CASES.iter().enumerate() {
        monitor.progress("crowds", case, index as f64 / CASES.len() as f64);
        let output = Command::new(std::env::current_exe().map_err(fail)?)
            .args(["overlay", "crowd", "--json", "--connections", &connections.to_string()])
            .args(["--per-second", &per_second.to_string(), "--phase", &phase.to_string()])
            .args(*options)
            .stdin(Stdio::null())
            .output()
            .map_err(fail)?;
        if monitor.stopped() || output.status.code().is_none() {
            return Err(RunError::Stopped);
        }
        // The exit code is 1 if a goal was missed; the output is valid in both cases.
        let outcome: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| RunError::Failed(String::from_utf8_lossy(&output.stderr).into_owned()))?;
        for (name, value) in outcome.as_object().into_iter().flatten() {
            measured.push(format!("{case}.{name}"), value.as_f64().unwrap_or(f64::NAN));
        }
    }
    Ok(measured)
}
