//! The module `tidegate._native`; `python/tidegate` is what users import.

use pyo3::prelude::*;

mod control;
mod environment;
mod errors;
mod paths;
mod problems;
mod readers;
mod results;
mod run;
mod scenario;
mod sweep;
mod table;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", tidegate_lab::results::VERSION)?;
    module.add_class::<scenario::Scenario>()?;
    module.add_class::<results::Results>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<control::Circuit>()?;
    module.add_class::<environment::Bottlenecks>()?;
    module.add_class::<paths::Overlay>()?;
    module.add_class::<sweep::Sweep>()?;
    module.add_function(wrap_pyfunction!(run::run, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::make, module)?)?;
    module.add_function(wrap_pyfunction!(problems::solve, module)?)?;
    module.add_function(wrap_pyfunction!(problems::fairness, module)?)?;
    module.add_function(wrap_pyfunction!(readers::read_consensus, module)?)?;
    module.add_function(wrap_pyfunction!(readers::read_torperf, module)?)
}
