//! The runner `hostile`: loads a relay with thousands of hostile connections (`tidegate overlay crowd`).
//!
//! Quantities are `<case>.<name>`, with the names that the command prints.

use serde::Deserialize;
use tidegate_control::units::Span;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use super::tool::{json_of, push_numbers};

/// `[parameters]`: arguments of the command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct HostileExperiment {
    connections: usize,
    per_second: u32,
    phase: Span,
}

/// Behaviour of the connections. Mixed: a third each is silent, sends garbage, or only finishes the handshake.
const CASES: [(&str, &[&str]); 2] = [("mixed", &[]), ("idle", &["--idle"])];

/// Measures an experiment.
///
/// # Errors
/// If the command fails.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let HostileExperiment { connections, per_second, phase } = experiment.parameters(scale)?;
    let (connections, per_second) = (connections.to_string(), per_second.to_string());
    let phase = phase.to_string();
    let mut measured = Measured::default();
    for (index, (case, options)) in CASES.iter().enumerate() {
        monitor.progress("crowds", case, index as f64 / CASES.len() as f64);
        let arguments = [
            &["overlay", "crowd", "--json", "--connections", &connections][..],
            &["--per-second", &per_second, "--phase", &phase],
            options,
        ]
        .concat();
        push_numbers(&mut measured, &format!("{case}."), &json_of(&arguments, monitor)?);
    }
    Ok(measured)
}
