//! `tidegate score`: compares a simulated Tor with measured downloads.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tidegate_lab::input::InputError;
use tidegate_lab::results::Results;
use tidegate_lab::scenario::Scenario;
use tidegate_lab::score::{LEAST, QUANTILES, Score};
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
            .map(|((part, score), (_, networks))| {
                let [all, downloads] = Score::errors(&networks);
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
        for ((part, score), (_, single)) in results.scores(system).into_iter().zip(single) {
            let networks = single.len();
            println!("\n{}, against {part}: {}", system.name, headline(&score, networks));
            if networks > 1 && !score.compared.is_empty() {
                println!("  {}", of_networks(&Score::errors(&single), networks));
            }
            print!("{}", table(&score));
        }
    }
    println!("\nours / measured; the score is the mean of |ln(ours / measured)|, and 0 is a perfect match");
}

/// The compared quantiles with the numbers of values, and the quantities that have too few.
fn table(score: &Score) -> String {
    let mut text = String::new();
    if !score.compared.is_empty() {
        let titles = QUANTILES.map(|(label, _)| format!("{label:>16}")).concat();
        text += &format!("  {:<14} {titles}{:>16}\n", "seconds", "n");
    }
    for row in &score.compared {
        let pairs = row.ours.iter().zip(&row.measured);
        let cells: String = pairs.map(|(ours, measured)| format!("{ours:>8.2} /{measured:>6.2}")).collect();
        text += &format!("  {:<14} {cells}{:>8} /{:>6}\n", row.name, row.n[0], row.n[1]);
    }
    for (name, [ours, measured]) in &score.left_out {
        text +=
            &format!("  {name:<14} left out: n = {ours} / {measured}, and each side needs {LEAST} values\n");
    }
    text
}

/// The mean error of single networks, with its interval between networks.
fn of_networks([all, downloads]: &[Estimate; 2], networks: usize) -> String {
    let show = |of: &Estimate| match (of.n, of.ci95) {
        (0, _) => "none has enough values".to_owned(),
        (n, Some(half)) => format!("{:.3} ± {half:.3} (n = {n} of {networks})", of.mean),
        (n, None) => format!("{:.3} (n = {n} of {networks})", of.mean),
    };
    format!("single networks, with 95 % interval: {}, downloads only {}", show(all), show(downloads))
}

fn headline(score: &Score, networks: usize) -> String {
    let of = if networks == 1 { "1 network".to_owned() } else { format!("{networks} networks pooled") };
    let Some(error) = score.error() else {
        return format!(
            "no score ({of}), because every quantity has fewer than {LEAST} values; try more --seeds"
        );
    };
    let downloads = score
        .downloads()
        .map_or("-, because none have enough values".to_owned(), |value| format!("{value:.3}"));
    format!("score {error:.3}, downloads only {downloads} ({of})")
}

#[cfg(test)]
mod tests {
    use tidegate_lab::score::Compared;

    use super::*;

    #[test]
    fn a_score_names_its_numbers_and_why_there_is_none() {
        let none = Score { compared: Vec::new(), left_out: vec![("50KiB", [12, 400])] };
        let said = headline(&none, 1);
        assert_eq!(
            said,
            "no score (1 network), because every quantity has fewer than 20 values; try more --seeds"
        );
        assert_eq!(table(&none), "  50KiB          left out: n = 12 / 400, and each side needs 20 values\n");
        let row = Compared { name: "1MiB", ours: [2.0; 4], measured: [1.0; 4], n: [21, 300] };
        let some = Score { compared: vec![row], left_out: Vec::new() };
        assert_eq!(headline(&some, 3), "score 0.693, downloads only 0.693 (3 networks pooled)");
        assert!(table(&some).lines().last().unwrap().ends_with("      21 /   300"), "{}", table(&some));
        let missing = Estimate { n: 0, mean: f64::NAN, ci95: None };
        let two = Estimate { n: 2, mean: 0.5, ci95: Some(0.1) };
        let said = of_networks(&[two, missing], 3);
        assert!(said.contains("0.500 ± 0.100 (n = 2 of 3), downloads only none has enough values"), "{said}");
    }
}
