//! Runs this tool as a child process, for experiments that measure a subcommand.

use serde_json::Value;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Measured, RunError};

use crate::owned;

/// Runs the tool with these arguments and returns the JSON object that it prints.
///
/// # Errors
/// [`RunError::Stopped`] if the user stopped it, [`RunError::Failed`] if it cannot run or prints something else.
pub(super) fn json_of(arguments: &[&str], monitor: &dyn Monitor) -> Result<Value, RunError> {
    let fail = |error: std::io::Error| RunError::Failed(error.to_string());
    let mut command = owned::command().map_err(fail)?;
    command.args(arguments);
    let output = owned::output(command).map_err(fail)?;
    if monitor.stopped() || owned::was_stopped(output.status) {
        return Err(RunError::Stopped);
    }
    // The exit code is part of the result: some commands report a bad outcome with it.
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let (command, status) = (arguments.join(" "), output.status);
        RunError::Failed(format!(
            "`tidegate {command}` printed no JSON object ({status}); its error is above"
        ))
    })
}

/// Adds the numbers of a JSON object as quantities; those of nested objects as `name.inner`.
pub(super) fn push_numbers(measured: &mut Measured, prefix: &str, object: &Value) {
    for (name, value) in object.as_object().into_iter().flatten() {
        let name = format!("{prefix}{name}");
        match value {
            Value::Array(_) => {}
            Value::Object(_) => push_numbers(measured, &format!("{name}."), value),
            number => measured.push(name, number.as_f64().unwrap_or(f64::NAN)),
        }
    }
}
