//! `tidegate score`: compares a simulated Tor with measured downloads.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tidegate_lab::input::InputError;
use tidegate_lab::results::Results;
use tidegate_lab::scenario::Scenario;
use tidegate_lab::score::{QUANTILES, Score};
use tidegate_lab::statistics::Estimate;
use tidegate_lab::{load, runs};

use super::run::{TorOption, blame_option};
use crate::console::{Console, notice};
use crate::failure::Failure;

/// Simulate a Tor and compare its download times with measured ones
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tidegate score scenarios/tor.toml --measured onionperf.analysis.json --seeds 3"
)]
pub struct ScoreArgs {
    /// Read the scenario from this file; it needs a [tor] table and users named `benchmark`
    scenario: PathBuf,
    /// Compare with these downloads (torperf or OnionPerf) instead of the scenario's `compare`
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Run this many seeds and pool their downloads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    seeds: u32,
    /// Use this many threads; 0 means one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Print the scores as one JSON document
    #[arg(long)]
    json: bool,
    /// Replace a value of the scenario, written as TOML: --set 'duration = "30 s"'
    #[arg(long = "set", value_name = "KEY = VALUE")]
    overrides: Vec<String>,
}

/// Runs the subcommand.
pub fn main(arguments: ScoreArgs) -> Result<ExitCode, Failure> {
    let measured = arguments.measured.iter().map(|file| TorOption::file("compare", "measured", file));
    let measured = measured.collect::<Result<Vec<_>, Failure>>()?;
    let mut overrides = arguments.overrides.clone();
    overrides.extend(measured.iter().map(|option| option.statement.clone()));
    let mut scenario = Scenario::load(&arguments.scenario, &overrides)
        .map_err(|error| blame_option(error, &measured, &arguments.scenario, &arguments.overrides))?;
    scenario.inputs.notices.iter().for_each(|text| notice(text));
    if scenario.inputs.compare.is_none() {
        let cause = "has no measured downloads to compare with";
        let cure = "name a file with --measured or the [tor] key `compare`";
        return Err(InputError::new(&scenario.source.file, cause, cure).into());
    }
    let console = Console::new(scenario.systems.len() * arguments.seeds as usize, arguments.jobs);
    load::settle(&mut scenario, &console)?;
    let runs = runs::run_all(&scenario, arguments.seeds, &console)?;
    console.finish();
    if runs.finished.is_empty() {
        eprintln!("stopped before the first run finished");
        return Ok(ExitCode::from(130));
    }
    let results = Results::new(&scenario, &runs);
    if arguments.json {
        println!("{:#}", document(&results));
    } else {
        print(&results);
    }
    Ok(if runs.missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(130) })
}

fn document(results: &Results<'_>) -> Value {
    let systems = results.systems.iter().map(|system| {
        let single = results.scores_of_networks(system);
        let parts = results.scores(system).into_iter().zip(single);
        let parts: Map<String, Value> = parts
            .map(|((part, score), [all, downloads])| {
                let mut document = score.document();
                document["networks"] = json!({ "error": all, "error_downloads": downloads });
                (part.to_owned(), document)
            })
            .collect();
        (system.name.to_owned(), Value::Object(parts))
    });
    let systems: Map<String, Value> = systems.collect();
    json!({ "conditions": results.conditions(), "seeds": results.seeds(), "systems": systems })
}

fn print(results: &Results<'_>) {
    println!("{}", results.conditions());
    for system in &results.systems {
        let single = results.scores_of_networks(system);
        for ((part, score), single) in results.scores(system).into_iter().zip(single) {
            println!("\n{}, against {part}: {}", system.name, headline(&score));
            if results.seeds().len() > 1 {
                println!("  {}", of_networks(&single));
            }
            println!("  {:<14} {}", "seconds", QUANTILES.map(|(label, _)| format!("{label:>16}")).concat());
            for row in &score.compared {
                let pairs = row.ours.iter().zip(&row.measured);
                let cells: String =
                    pairs.map(|(ours, measured)| format!("{ours:>8.2} /{measured:>6.2}")).collect();
                println!("  {:<14} {cells}", row.name);
            }
        }
    }
    println!("\nours / measured; the score is the mean of |ln(ours / measured)|, and 0 is a perfect match");
}

/// The mean error of single networks, with its interval between networks.
fn of_networks([all, downloads]: &[Estimate; 2]) -> String {
    let show = |of: &Estimate| match of.ci95 {
        Some(half) => format!("{:.3} ± {half:.3}", of.mean),
        None => "-".to_owned(),
    };
    let n = all.n;
    format!("single networks: {}, downloads only {} (95 % interval, n = {n})", show(all), show(downloads))
}

fn headline(score: &Score) -> String {
    let show = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    format!("score {}, downloads only {}", show(score.error()), show(score.downloads()))
}
