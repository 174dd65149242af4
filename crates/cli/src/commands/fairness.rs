//! `tidegate fairness`: computes max-min fair rates, and compares Theorem 3's quadratic program.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use tidegate_control::maxmin::FairnessError;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::problems;

use crate::failure::Failure;

/// Compute max-min fair rates of circuits that share resources
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate fairness examples/fairness/parking-lot.json --theorem3")]
pub struct FairnessArgs {
    /// Read this JSON file: {"capacities": {"a": 1.0}, "circuits": [["a"]]}
    file: PathBuf,
    /// Also solve the quadratic program of the PredicTor paper (Theorem 3) and mark differences
    #[arg(long)]
    theorem3: bool,
    /// Use this upper rate R in Theorem 3 [default: the largest capacity]
    #[arg(long, requires = "theorem3", value_name = "R")]
    upper: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn main(arguments: FairnessArgs) -> Result<ExitCode, Failure> {
    let source = SourceFile::read(&arguments.file).map_err(Failure::Input)?;
    let (sharing, names) = problems::sharing(&source)?;
    let fair = sharing.max_min();
    let bottlenecks: Vec<&str> = fair.bottlenecks.iter().map(|&resource| names[resource].as_str()).collect();
    let program = if arguments.theorem3 {
        let largest = sharing.capacities().iter().copied().fold(0.0, f64::max);
        let upper = arguments.upper.unwrap_or(largest);
        Some((
            upper,
            sharing.theorem3(upper).map_err(|error| match error {
                FairnessError::UpperRate(_) => Failure::Input(InputError::new(
                    "--upper",
                    error.to_string(),
                    "give a number in that range",
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
