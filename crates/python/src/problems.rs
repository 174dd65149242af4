//! The mathematics alone: PredicTor's optimal control problem, and max-min fairness.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList, PyMapping, PyTuple};
use serde_json::{Value, json};
use tidegate_control::predictor::{Solution, Solver};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::problems;

use crate::errors::input_error;
use crate::scenario::plain;

/// The first number that is NaN or infinite, with the keys that lead to it.
fn not_finite(value: &Bound<'_, PyAny>) -> Option<String> {
    let inner = |place: String, value: &Bound<'_, PyAny>| not_finite(value).map(|rest| place + &rest);
    if let Ok(table) = value.cast::<PyDict>() {
        table.iter().find_map(|(key, value)| inner(format!(".{key}"), &value))
    } else if let Ok(list) = value.cast::<PyList>() {
        list.iter().enumerate().find_map(|(n, value)| inner(format!("[{n}]"), &value))
    } else {
        let number = value.cast::<PyFloat>().ok()?.value();
        (!number.is_finite()).then(|| format!(" is {number}"))
    }
}

/// Reads a JSON file, or the same structure of dicts and lists.
fn source(what: &Bound<'_, PyAny>) -> PyResult<SourceFile> {
    let name = "the problem";
    if what.cast::<PyMapping>().is_ok() || what.is_instance_of::<PyList>() || what.is_instance_of::<PyTuple>()
    {
        let structure = plain(what, 0)?;
        // JSON would turn them into null.
        if let Some(place) = not_finite(&structure) {
            let cause = place.trim_start_matches('.');
            return Err(input_error(InputError::new(name, cause, "give finite numbers")));
        }
        let value: Value = pythonize::depythonize(&structure)?;
        return Ok(SourceFile { file: name.into(), text: value.to_string() });
    }
    let path: PathBuf = what.extract().map_err(|_| PyTypeError::new_err("give a path, a dict or a list"))?;
    SourceFile::read(&path).map_err(input_error)
}

/// Solves PredicTor's optimal control problem, open loop. Takes a dict (or a JSON file) with `problem` ("prototype" or
/// "journal"), `capacity` and rates in cells/s, queues in cells, `dt` in s, as in examples/predictor/figure-3.json. For a
/// list of problems it returns a list of solutions.
#[pyfunction]
pub fn solve<'py>(py: Python<'py>, problem: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let source = source(problem)?;
    let answers = py.detach(|| {
        let (problems, listed) = problems::control_problems(&source)?;
        let mut solver = Solver::new();
        let mut answers = Vec::new();
        for (index, problem) in problems.iter().enumerate() {
            let mut solution = Solution::default();
            solver
                .solve(problem, &mut solution)
                .map_err(|refusal| problems::wrong(&source, listed.then_some(index), refusal.to_string()))?;
            answers.push(problems::solution(problem, &solution));
        }
        Ok(if listed { Value::Array(answers) } else { answers.remove(0) })
    });
    Ok(pythonize::pythonize(py, &answers.map_err(input_error)?)?)
}

/// Computes max-min fair rates of circuits that share resources. Takes {"capacities": {"a": 1.0}, "circuits": [["a"]]} (or
/// a JSON file); returns `rates`, in the unit of the capacities, and the bottleneck of each circuit.
#[pyfunction]
pub fn fairness<'py>(py: Python<'py>, network: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let source = source(network)?;
    let (sharing, names) = problems::sharing(&source).map_err(input_error)?;
    let fair = sharing.max_min();
    let bottlenecks: Vec<&String> = fair.bottlenecks.iter().map(|&resource| &names[resource]).collect();
    Ok(pythonize::pythonize(py, &json!({ "rates": fair.rates, "bottlenecks": bottlenecks }))?)
}
