//! PredicTor's optimal control problems from a JSON file.

use serde::Deserialize;
use serde_json::Value;
use tidegate_control::predictor::{Kind, Problem};
use tidegate_lab::input::{InputError, Source};

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Many(Vec<Value>),
    One(Value),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
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
    /// Virtual rates of the predecessor (eq. 21); no limit if not given.
    vvsrc: Option<Vec<Vec<f64>>>,
    first_hop: Vec<bool>,
}

/// The problems of a file, and whether it is a list of them.
pub fn read(source: &Source) -> Result<(Vec<Problem>, bool), InputError> {
    let (values, listed) = match source.parse_json("see examples/predictor and `--help` for the format")? {
        Input::Many(values) => (values, true),
        Input::One(value) => (vec![value], false),
    };
    let problem = |(index, value)| {
        serde_json::from_value(value)
            .map_err(|error| error.to_string())
            .and_then(problem_of)
            .map_err(|cause| wrong(source, listed.then_some(index), cause))
    };
    Ok((values.into_iter().enumerate().map(problem).collect::<Result<_, _>>()?, listed))
}

/// What is wrong with a problem, or with the one of that number.
pub fn wrong(source: &Source, number: Option<usize>, cause: String) -> InputError {
    let place = number.map_or_else(String::new, |number| format!("problem {number}: "));
    let cure = "see examples/predictor for a problem that works";
    InputError::new(&source.file, format!("{place}{cause}"), cure)
}

/// Which optimal control problem a name means.
pub fn kind_named(name: &str) -> Result<Kind, String> {
    match name {
        "2020" | "predictor-2020" => Ok(Kind::Prototype),
        "journal" | "predictor" => Ok(Kind::Journal),
        other => Err(format!("`problem` is \"{other}\"; it is \"2020\" or \"journal\"")),
    }
}

fn problem_of(fields: Fields) -> Result<Problem, String> {
    let kind = kind_named(&fields.problem)?;
    let (n, steps) = (fields.s0.len(), fields.horizon);
    let flat = |name: &str, rows: Vec<Vec<f64>>| {
        if rows.len() != n {
            return Err(format!("`{name}` has {} arrays, `s0` has {n} numbers", rows.len()));
        }
        for (circuit, row) in rows.iter().enumerate() {
            if row.len() != steps {
                return Err(format!("`{name}[{circuit}]` has {} numbers, `horizon` is {steps}", row.len()));
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
            None if n.saturating_mul(steps) > 1 << 24 => return Err("is too large".into()),
            None => vec![f64::INFINITY; n * steps],
        },
        first_hop: fields.first_hop,
        ..Problem::new(kind, fields.capacity)
    })
}
