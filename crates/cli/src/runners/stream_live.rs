//! The runner `q-stream-live`: runs `tidegate stream demo`.
//!
//! Quantities are `<case>.<name>`, with the names that the demo prints.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde::Deserialize;
use serde_json::Value;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use crate::owned;

/// `[parameters]`: options of the demo.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StreamExperiment {
    duration: Span,
    clients: usize,
    rate: Rate,
    server_uplink: Rate,
    weakest: Rate,
    strongest: Rate,
    /// One-way delay between any two processes.
    delay: Span,
    case: BTreeMap<String, Case>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Case {
    loss: f64,
    kill: usize,
    leave: usize,
    parity: Option<usize>,
}

/// Measures an experiment.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: StreamExperiment = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    let count = parameters.case.len() as f64;
    for (index, (name, case)) in parameters.case.iter().enumerate() {
        if monitor.stopped() {
            return Err(RunError::Stopped);
        }
        monitor.progress("runs", name, index as f64 / count);
        let values = demo(&parameters, case).map_err(|cause| RunError::Failed(format!("{name}: {cause}")))?;
        for (quantity, value) in values.as_object().into_iter().flatten() {
            if let Some(value) = value.as_f64() {
                measured.push(format!("{name}.{quantity}"), value);
            }
        }
    }
    Ok(measured)
}

fn demo(parameters: &StreamExperiment, case: &Case) -> Result<Value, String> {
    let StreamExperiment { duration, clients, rate, server_uplink, weakest, strongest, delay, .. } =
        parameters;
    let mut options = vec![
        ("--clients", clients.to_string()),
        ("--duration", duration.to_string()),
        ("--rate", rate.to_string()),
        ("--server-uplink", server_uplink.to_string()),
        ("--weakest", weakest.to_string()),
        ("--strongest", strongest.to_string()),
        ("--delay", delay.to_string()),
        ("--loss", case.loss.to_string()),
        ("--kill", case.kill.to_string()),
        ("--leave", case.leave.to_string()),
    ];
    options.extend(case.parity.map(|parity| ("--parity", parity.to_string())));
    let mut command = owned::command().map_err(|cause| cause.to_string())?;
    command
        .args(["stream", "demo", "--json"])
        .args(options.iter().flat_map(|(name, value)| [*name, value.as_str()]))
        .stderr(Stdio::piped());
    let output = owned::output(command).map_err(|cause| cause.to_string())?;
    // The exit code is 1 if a goal was missed; the output is valid in both cases.
    serde_json::from_slice(&output.stdout).map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}
