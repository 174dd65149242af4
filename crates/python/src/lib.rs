//! The module `tidegate._native`; `python/tidegate` is what users import.

use pyo3::prelude::*;
use tidegate_lab::input;

mod control;
mod problems;
mod readers;
mod results;
mod run;
mod scenario;
mod table;

/// The mistakes of a user's input, as the class that Python defines for them.
fn input_error(error: input::InputError) -> PyErr {
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

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", tidegate_lab::results::VERSION)?;
    module.add_class::<scenario::Scenario>()?;
    module.add_class::<results::Results>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<control::Circuit>()?;
    module.add_function(wrap_pyfunction!(run::run, module)?)?;
    module.add_function(wrap_pyfunction!(problems::solve, module)?)?;
    module.add_function(wrap_pyfunction!(problems::fairness, module)?)?;
    module.add_function(wrap_pyfunction!(readers::read_consensus, module)?)?;
    module.add_function(wrap_pyfunction!(readers::read_torperf, module)?)
}
