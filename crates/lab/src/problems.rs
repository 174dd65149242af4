//! JSON input of the mathematics alone: PredicTor's optimal control problem, and max-min fairness.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_control::maxmin::{FairnessError, Sharing};
use tidegate_control::predictor::{Formulation, Problem, Solution};

use crate::input::{InputError, SourceFile};

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    Many(Vec<Value>),
    One(Value),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProblemFile {
    problem: String,
    capacity: f64,
    s_max: f64,
    scaling: f64,
    horizon: usize,
    dt: f64,
    s0: Vec<f64>,
    vmax: Vec<Vec<f64>>,
    ssrc: Vec<Vec<f64>>,
    vsrc: Vec<Vec<f64>>,
    /// Virtual rates of the predecessor (eq. 21); default: no limit.
    vvsrc: Option<Vec<Vec<f64>>>,
    first_hop: Vec<bool>,
}

/// Reads PredicTor's problems from a file, and whether the file holds a list.
///
/// # Errors
/// Which problem is wrong, and how.
pub fn control_problems(source: &SourceFile) -> Result<(Vec<Problem>, bool), InputError> {
    let (values, listed) = match source.parse_json("see examples/predictor/figure-3.json for the format")? {
        OneOrMany::Many(values) => (values, true),
        OneOrMany::One(value) => (vec![value], false),
    };
    let problem = |(index, value)| {
        serde_json::from_value(value)
            .map_err(|error| error.to_string())
            .and_then(problem_of)
            .map_err(|cause| wrong(source, listed.then_some(index), cause))
    };
    Ok((values.into_iter().enumerate().map(problem).collect::<Result<_, _>>()?, listed))
}

/// The error of a problem, with its number if the file holds a list.
pub fn wrong(source: &SourceFile, number: Option<usize>, cause: String) -> InputError {
    let place = number.map_or_else(String::new, |number| format!("problem {number}: "));
    let cure = "see examples/predictor for a problem that works";
    InputError::new(source.file.clone(), format!("{place}{cause}"), cure)
}

/// The formulation of the optimal control problem with this name.
///
/// # Errors
/// For an unknown name; the message lists the known ones.
pub fn kind_named(name: &str) -> Result<Formulation, String> {
    match name {
        "prototype" => Ok(Formulation::Prototype),
        "journal" => Ok(Formulation::Journal),
        other => Err(format!("`problem` is \"{other}\"; use \"prototype\" or \"journal\"")),
    }
}

/// Largest capacity of a problem, cells/s: about 4 Tbit/s. Far above the rates of the circuits, they are lost in rounding.
const MOST_CAPACITY: f64 = 1e9;

fn problem_of(fields: ProblemFile) -> Result<Problem, String> {
    let kind = kind_named(&fields.problem)?;
    if fields.capacity > MOST_CAPACITY {
        return Err(format!("`capacity` is {:e} cells/s, above {MOST_CAPACITY:e}", fields.capacity));
    }
    for (key, value) in [("scaling", fields.scaling), ("dt", fields.dt)] {
        if !(1e-9..=1e9).contains(&value) {
            return Err(format!("`{key}` is {value:e}; give a number from 1e-9 to 1e9"));
        }
    }
    let (n, steps) = (fields.s0.len(), fields.horizon);
    let flat = |name: &str, rows: Vec<Vec<f64>>| {
        if rows.len() != n {
            return Err(format!("`{name}` has {} arrays but `s0` has {n} numbers", rows.len()));
        }
        for (circuit, row) in rows.iter().enumerate() {
            if row.len() != steps {
                return Err(format!(
                    "`{name}[{circuit}]` has {} numbers but `horizon` is {steps}",
                    row.len()
                ));
            }
        }
        Ok(rows.concat())
    };
    Ok(Problem {
        s_max: fields.s_max,
        scaling: fields.scaling,
        horizon: steps,
        dt: fields.dt,
        s0: fields.s0,
        vmax: flat("vmax", fields.vmax)?,
        ssrc: flat("ssrc", fields.ssrc)?,
        vsrc: flat("vsrc", fields.vsrc)?,
        vvsrc: match fields.vvsrc {
            Some(rows) => flat("vvsrc", rows)?,
            // Guards the allocation against huge input.
            None if n.saturating_mul(steps) > 1 << 24 => {
                return Err("the problem has more than 2^24 circuits times steps".into());
            }
            None => vec![f64::INFINITY; n * steps],
        },
        first_hop: fields.first_hop,
        ..Problem::new(kind, fields.capacity)
    })
}

/// Converts a solution to JSON, with one list per circuit.
pub fn solution(problem: &Problem, solution: &Solution) -> Value {
    let rates = |values: &[f64]| values.chunks(problem.horizon).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let states = |values: &[f64]| values.chunks(problem.horizon + 1).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let mut answer = json!({
        "objective": solution.objective,
        "v_in": rates(&solution.v_in),
        "v_out": rates(&solution.v_out),
        "s": states(&solution.s),
        "d": states(&solution.d),
        "eps": states(&solution.eps),
        "iterations": solution.iterations,
        "residuals": {
            "dual": solution.residuals.dual,
            "complementarity": solution.residuals.complementarity,
        },
        "fallback": solution.fallback,
    });
    if problem.kind == Formulation::Journal {
        answer["vv_out"] = json!(rates(&solution.vv_out));
    }
    answer
}

/// Circuits and the resources that they share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedResources {
    capacities: BTreeMap<String, f64>,
    circuits: Vec<Vec<String>>,
}

/// Reads circuits and shared resources from a file; also returns the resources' names.
///
/// # Errors
/// Which resource or circuit is wrong, and how.
pub fn sharing(source: &SourceFile) -> Result<(Sharing, Vec<String>), InputError> {
    let network: SharedResources = source.parse_json("see examples/fairness and `--help` for the format")?;
    let capacities: Vec<f64> = network.capacities.values().copied().collect();
    let names: Vec<String> = network.capacities.into_keys().collect();
    let wrong = |place: String, cause: String, cure: String| {
        InputError::new(source.file.clone(), format!("{place}: {cause}"), cure)
    };
    let mut circuits = Vec::with_capacity(network.circuits.len());
    for (index, path) in network.circuits.iter().enumerate() {
        // Keys of a BTreeMap are sorted, so a binary search works.
        let find = |name: &String| {
            names.binary_search(name).map_err(|_| {
                let cure = format!("use one of {}", names.join(", "));
                wrong(format!("circuits[{index}]"), format!("`{name}` has no capacity"), cure)
            })
        };
        circuits.push(path.iter().map(find).collect::<Result<Vec<_>, _>>()?);
    }
    let sharing = Sharing::new(capacities, circuits).map_err(|error| match error {
        FairnessError::Capacity { resource, value } => wrong(
            format!("capacities.{}", names[resource]),
            format!("is {value}"),
            "give a finite number, at least 0".into(),
        ),
        FairnessError::Unlimited { circuit } => wrong(
            format!("circuits[{circuit}]"),
            "crosses no resource".into(),
            "name at least one resource".into(),
        ),
        other => wrong("file".into(), other.to_string(), String::new()),
    })?;
    Ok((sharing, names))
}
