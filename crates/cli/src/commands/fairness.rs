//! `tidegate fairness`: max-min fair rates, and where Theorem 3's quadratic program differs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::json;
use tidegate_control::maxmin::{FairnessError, Sharing};
use tidegate_lab::input::{InputError, Source};

use crate::failure::Failure;

/// Max-min fair rates of circuits that share resources, and each circuit's bottleneck
#[derive(clap::Args)]
pub struct Arguments {
    /// JSON: {"capacities": {"a": 1.0}, "circuits": [["a"]]}
    file: PathBuf,
    /// Also show the paper's quadratic program (Theorem 3) and where it differs
    #[arg(long)]
    theorem3: bool,
    /// Theorem 3's upper rate R; the largest capacity if not given
    #[arg(long, requires = "theorem3", value_name = "R")]
    upper: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    capacities: BTreeMap<String, f64>,
    circuits: Vec<Vec<String>>,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let source = Source::read(&arguments.file).map_err(Failure::Input)?;
    let network: Network = source.parse_json("see examples/fairness and `--help` for the format")?;
    let names: Vec<&str> = network.capacities.keys().map(String::as_str).collect();
    let wrong = |place: String, cause: String, cure: String| {
        Failure::Input(InputError::new(source.file.clone(), format!("{place}: {cause}"), cure))
    };
    let mut circuits = Vec::with_capacity(network.circuits.len());
    for (index, path) in network.circuits.iter().enumerate() {
        let find = |name: &String| {
            names.binary_search(&name.as_str()).map_err(|_| {
                let cure = format!("use one of {}", names.join(", "));
                wrong(format!("circuits[{index}]"), format!("`{name}` has no capacity"), cure)
            })
        };
        circuits.push(path.iter().map(find).collect::<Result<Vec<_>, _>>()?);
    }
    let sharing = Sharing::new(network.capacities.values().copied().collect(), circuits);
    let sharing = sharing.map_err(|error| match error {
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
    let fair = sharing.max_min();
    let bottlenecks: Vec<&str> = fair.bottlenecks.iter().map(|&resource| names[resource]).collect();
    let program = if arguments.theorem3 {
        let largest = network.capacities.values().copied().fold(0.0, f64::max);
        let upper = arguments.upper.unwrap_or(largest);
        Some((
            upper,
            sharing.theorem3(upper).map_err(|error| match error {
                FairnessError::UpperRate(_) => Failure::Input(InputError::new(
                    "--upper",
                    error.to_string(),
                    "give a finite number, at least 0",
                )),
                other => Failure::Other(other.to_string()),
            })?,
        ))
    } else {
        None
    };
    let differs = |circuit: usize, rate: f64| (rate - fair.rates[circuit]).abs() > 1e-6 * (1.0 + rate.abs());
    if arguments.json {
        let mut answer = json!({ "rates": fair.rates, "bottlenecks": bottlenecks });
        if let Some((upper, rates)) = &program {
            let where_differs: Vec<usize> = (0..rates.len()).filter(|&i| differs(i, rates[i])).collect();
            answer["theorem3"] = json!({ "upper": upper, "rates": rates, "differs": where_differs });
        }
        println!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{:>8}  {:>14}  bottleneck", "circuit", "max-min");
    for (circuit, rate) in fair.rates.iter().enumerate() {
        println!("{circuit:>8}  {rate:>14.6}  {}", bottlenecks[circuit]);
    }
    if let Some((upper, rates)) = &program {
        println!("\nTheorem 3 with R = {upper}: minimise the sum of (R - rate)^2");
        println!("{:>8}  {:>14}  {:>14}", "circuit", "theorem 3", "max-min");
        for (circuit, rate) in rates.iter().enumerate() {
            let mark = if differs(circuit, *rate) { "differs" } else { "" };
            println!("{circuit:>8}  {rate:>14.6}  {:>14.6}  {mark}", fair.rates[circuit]);
        }
    }
    Ok(ExitCode::SUCCESS)
}
