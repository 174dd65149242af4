//! Conversion of errors to Python exceptions.

use pyo3::prelude::*;
use tidegate_lab::input::InputError;

/// Converts a mistake in the user's input to `tidegate.InputError`.
pub fn input_error(error: InputError) -> PyErr {
    Python::attach(|py| {
        let made = py.import("tidegate.errors").and_then(|module| {
            let (line, column) = error.at.unzip();
            module.getattr("InputError")?.call1((
                error.to_string(),
                error.file,
                line,
                column,
                error.cause,
                error.cure,
            ))
        });
        made.map_or_else(|failed| failed, PyErr::from_value)
    })
}
