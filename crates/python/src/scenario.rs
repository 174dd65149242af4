//! Scenarios from files, texts and dicts, with the error messages of the command line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyMapping, PyString, PyTuple};
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
    let wrong = |cause: String| {
        let cure = "use only dicts, lists and values that TOML can express: text, whole numbers of 64 bits, floats, booleans";
        input_error(InputError::new("the scenario", cause, cure))
    };
    // Not by way of JSON, which knows neither NaN nor infinity: they would vanish instead of being refused.
    let value: toml::Value =
        pythonize::depythonize(&plain(table, 0)?).map_err(|error| wrong(error.to_string()))?;
    toml::to_string(&value).map_err(|error| wrong(error.to_string()))
}

/// Levels of dicts and lists. A dict that contains itself has more.
const DEEPEST: u32 = 32;

/// Copies dicts and lists, drops entries of dicts with the value None, and turns NumPy's numbers and arrays into Python's.
pub fn plain<'py>(value: &Bound<'py, PyAny>, depth: u32) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    if depth > DEEPEST {
        let wrong = format!("there are more than {DEEPEST} levels; does a dict or list contain itself?");
        return Err(PyValueError::new_err(wrong));
    }
    if let Ok(table) = value.cast::<PyMapping>() {
        let copy = PyDict::new(py);
        for pair in table.items()? {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
            if !value.is_none() {
                copy.set_item(key, plain(&value, depth + 1)?)?;
            }
        }
        return Ok(copy.into_any());
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let copy = value.try_iter()?.map(|one| plain(&one?, depth + 1)).collect::<PyResult<Vec<_>>>()?;
        return Ok(PyList::new(py, copy)?.into_any());
    }
    match value.getattr_opt("tolist")? {
        Some(list) => list.call0(),
        None => Ok(value.clone()),
    }
}

/// The key of a dict at a line of the TOML text that was made from it, such as `user[1].path`.
fn key_at(text: &str, line: usize) -> String {
    // Elements of arrays of tables so far, by the array's dotted name.
    let mut elements = BTreeMap::<String, usize>::new();
    let mut table = String::new();
    let mut key = None;
    for line in text.lines().take(line) {
        let element = line.strip_prefix("[[").and_then(|line| line.strip_suffix("]]"));
        if let Some(name) = element {
            // Arrays in the last element are not those of this one.
            let inside = format!("{name}.");
            elements.retain(|other, _| !other.starts_with(&inside));
            *elements.entry(name.to_owned()).or_default() += 1;
        }
        let header = line.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
        if let Some(name) = element.or(header) {
            name.clone_into(&mut table);
        }
        key = line.split_once(" = ").map(|(key, _)| key);
    }
    let (mut name, mut place) = (String::new(), String::new());
    for part in table.split('.').filter(|part| !part.is_empty()).chain(key) {
        let dot = if name.is_empty() { "" } else { "." };
        name += &format!("{dot}{part}");
        place += &format!("{dot}{part}");
        if let Some(count) = elements.get(&name) {
            place += &format!("[{}]", count - 1);
        }
    }
    place
}

/// Converts a dict of overrides to TOML texts. A key such as `underlay.delay` names a key of a table, as in a study.
fn override_texts(table: &Bound<'_, PyMapping>) -> PyResult<Vec<String>> {
    let py = table.py();
    let (whole, mut dotted) = (PyDict::new(py), Vec::new());
    for pair in table.items()? {
        let (key, mut value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        match key.extract::<String>() {
            // Without a value, not even its table is meant.
            Ok(_) if value.is_none() => {}
            Ok(name) if name.contains('.') => {
                for part in name.rsplit('.') {
                    let outer = PyDict::new(py);
                    outer.set_item(part, value)?;
                    value = outer.into_any();
                }
                dotted.push(toml_of(&value)?);
            }
            _ => whole.set_item(key, value)?,
        }
    }
    let whole = if whole.is_empty() { None } else { Some(toml_of(&whole)?) };
    Ok(whole.into_iter().chain(dotted).collect())
}

/// Converts overrides (TOML texts or dicts) to TOML texts.
fn overrides(set: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<String>> {
    let Some(set) = set else { return Ok(Vec::new()) };
    let one = |set: &Bound<'_, PyAny>| {
        if set.is_instance_of::<PyString>() {
            return Some(set.extract().map(|text| vec![text]));
        }
        set.cast::<PyMapping>().ok().map(override_texts)
    };
    if let Some(texts) = one(set) {
        return texts;
    }
    let wrong = || PyTypeError::new_err("`set` must be TOML text, a dict, or a list of these");
    let each = set.try_iter().map_err(|_| wrong())?.map(|item| one(&item?).unwrap_or_else(|| Err(wrong())));
    Ok(each.collect::<PyResult<Vec<_>>>()?.concat())
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
        if what.cast::<PyMapping>().is_ok() {
            let text = toml_of(what)?;
            let source = SourceFile { file: "the scenario".into(), text: text.clone() };
            return scenario::Scenario::parse(source, PathBuf::new(), &set).map_err(|error| {
                input_error(match error.at {
                    Some((line, _)) => InputError {
                        file: format!("the scenario: {}", key_at(&text, line)),
                        at: None,
                        ..error
                    },
                    None => error,
                })
            });
        }
        let path: PathBuf = what
            .extract()
            .map_err(|_| PyTypeError::new_err("`scenario` must be a path, a dict, or a tidegate.Scenario"))?;
        if path.to_string_lossy().contains('\n') {
            let cure = "give the path of a file, or `tidegate.Scenario.parse(text)`";
            return Err(input_error(InputError::new(
                "the scenario",
                "is text of several lines, not a path",
                cure,
            )));
        }
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
