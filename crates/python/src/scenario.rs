//! Scenarios from files, texts and dicts, with the error messages of the command line.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use serde_json::Value;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::scenario;

use crate::errors::input_error;

/// A checked scenario, from a TOML file, a dict with the same keys, or another scenario. `set` overrides values.
/// Mistakes raise InputError with position, cause and cure.
#[pyclass(frozen, module = "tidegate")]
pub struct Scenario {
    pub checked: scenario::Scenario,
}

/// Converts a dict to TOML and skips entries that are None.
fn toml_of(table: &Bound<'_, PyAny>) -> PyResult<String> {
    fn without_null(value: Value) -> Value {
        match value {
            Value::Object(map) => Value::Object(
                map.into_iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(key, value)| (key, without_null(value)))
                    .collect(),
            ),
            Value::Array(values) => Value::Array(values.into_iter().map(without_null).collect()),
            other => other,
        }
    }
    let value: Value = pythonize::depythonize(table)?;
    toml::to_string(&without_null(value)).map_err(|error| {
        input_error(InputError::new(
            "the scenario",
            error.to_string(),
            "use only values that TOML can express",
        ))
    })
}

/// Converts overrides (TOML texts or dicts) to TOML texts.
fn overrides(set: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(set) = set else { return Ok(Vec::new()) };
    if let Ok(text) = set.extract::<String>() {
        return Ok(vec![text]);
    }
    if set.is_instance_of::<PyDict>() {
        return Ok(vec![toml_of(set)?]);
    }
    let each = set.try_iter()?.map(|one| {
        let one = one?;
        if one.is_instance_of::<PyString>() { one.extract() } else { toml_of(&one) }
    });
    each.collect()
}

impl Scenario {
    /// Creates a scenario from a path, a dict or a scenario, with overrides.
    pub fn of(what: &Bound<'_, PyAny>, set: Option<&Bound<'_, PyAny>>) -> PyResult<scenario::Scenario> {
        let set = overrides(set)?;
        if let Ok(there) = what.cast::<Scenario>() {
            let old = &there.get().checked;
            if set.is_empty() {
                return Ok(old.clone());
            }
            let all = [&old.overrides[..], &set].concat();
            let mut new = scenario::Scenario::parse(old.source.clone(), old.folder.clone(), &all)
                .map_err(input_error)?;
            // The name of the file, unless the text or an override states one.
            if new.file.name.is_empty() {
                new.file.name.clone_from(&old.file.name);
            }
            return Ok(new);
        }
        if what.is_instance_of::<PyDict>() {
            let source = SourceFile { file: "the scenario".into(), text: toml_of(what)? };
            return scenario::Scenario::parse(source, PathBuf::new(), &set).map_err(input_error);
        }
        let path: PathBuf = what
            .extract()
            .map_err(|_| PyTypeError::new_err("`scenario` must be a path, a dict, or a tidegate.Scenario"))?;
        scenario::Scenario::load(&path, &set).map_err(input_error)
    }
}

#[pymethods]
impl Scenario {
    #[new]
    #[pyo3(signature = (scenario, *, set=None))]
    fn new(scenario: &Bound<'_, PyAny>, set: Option<&Bound<'_, PyAny>>) -> PyResult<Scenario> {
        Ok(Scenario { checked: Scenario::of(scenario, set)? })
    }

    /// Creates a scenario from TOML text. File names are relative to `folder`.
    #[staticmethod]
    #[pyo3(signature = (text, *, folder=PathBuf::new(), set=None))]
    fn parse(text: String, folder: PathBuf, set: Option<&Bound<'_, PyAny>>) -> PyResult<Scenario> {
        let source = SourceFile { file: "the scenario".into(), text };
        let checked = scenario::Scenario::parse(source, folder, &overrides(set)?).map_err(input_error)?;
        Ok(Scenario { checked })
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.checked.file.name
    }

    /// The text that lines and columns of error messages refer to.
    #[getter]
    fn toml(&self) -> &str {
        &self.checked.source.text
    }

    /// Names of its systems.
    #[getter]
    fn systems(&self) -> Vec<&str> {
        self.checked.systems.iter().map(|system| system.name.as_str()).collect()
    }

    /// Every key with its value or default, with units as in the TOML file.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all = serde_json::to_value(&self.checked.file).expect("scenarios can be written");
        Ok(pythonize::pythonize(py, &all)?)
    }

    fn __repr__(&self) -> String {
        let file = &self.checked.file;
        format!("<tidegate.Scenario {}: {}, systems {}>", file.name, file.duration, self.systems().join(", "))
    }
}
