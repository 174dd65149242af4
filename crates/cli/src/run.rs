//! `tidegate run`: simulate a scenario.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_lab::report::{folder, summary_table};
use tidegate_lab::results::Results;
use tidegate_lab::runs;
use tidegate_lab::scenario::Scenario;

use crate::Failure;
use crate::console::{self, Console};

/// Simulate a scenario: compare its systems on the same networks
#[derive(clap::Args)]
pub struct Arguments {
    /// The scenario file
    scenario: PathBuf,
    /// Number of seeds; each is a network of its own, the same for all systems
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    /// First seed, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Threads; 0: one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Folder for the results, instead of out/<scenario>
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the whole summary as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Replace a value of the scenario, as TOML: --set 'duration = "30 s"'
    #[arg(long = "set", value_name = "KEY = VALUE")]
    overrides: Vec<String>,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut scenario = Scenario::load(&arguments.scenario, &arguments.overrides)?;
    if let Some(seed) = arguments.seed {
        scenario.file.seed = seed;
    }
    let place = arguments.out.unwrap_or_else(|| PathBuf::from("out").join(&scenario.file.name));
    folder::check_place(&place)?;
    let console = Console::new(scenario.systems.len() * arguments.seeds as usize, arguments.jobs);
    let runs = runs::run_all(&scenario, arguments.seeds, &console)?;
    console.finish();
    if runs.finished.is_empty() {
        eprintln!("stopped before any run was finished; nothing was written");
        return Ok(ExitCode::from(130));
    }
    let results = Results::new(&scenario, &runs);
    folder::write(&results, &console::command_line(), &place)?;
    if arguments.json {
        println!("{:#}", results.document());
    } else {
        println!("{}", summary_table(&results));
    }
    eprintln!("{} holds report.html, tables (.csv, .parquet) and manifest.json", place.display());
    if runs.missing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let missing: Vec<String> = (runs.missing.iter())
        .map(|(system, seed)| format!("{} seed {seed}", scenario.systems[*system].name))
        .collect();
    eprintln!(
        "stopped: {} of {} runs are missing: {}",
        missing.len(),
        missing.len() + runs.finished.len(),
        missing.join(", ")
    );
    Ok(ExitCode::from(130))
}
