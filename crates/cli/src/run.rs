//! `tidegate run`: simulate a scenario.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_lab::report::{contents, files, folder, provenance, summary_table};
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
    /// Folder for the results, instead of a new out/<scenario>/<number>, which out/<scenario>/latest names
    #[arg(long)]
    out: Option<PathBuf>,
    /// Replace other results in that folder: the files that their manifest lists, nothing else
    #[arg(long, requires = "out")]
    force: bool,
    /// Print the whole summary as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// [tor] Consensus, full or microdescriptor flavour, plain or .xz
    #[arg(long, value_name = "FILE")]
    consensus: Option<PathBuf>,
    /// [tor] Round-trip times: between cities (WonderProxy), countries (RIPE), or a GML or GraphML graph
    #[arg(long, value_name = "FILE")]
    latency: Option<PathBuf>,
    /// [tor] Addresses to countries, as tor's geoip file
    #[arg(long, value_name = "FILE")]
    geoip: Option<PathBuf>,
    /// [tor] Measured downloads (torperf, OnionPerf) to print beside ours
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// [tor] Share of the network to simulate
    #[arg(long)]
    fraction: Option<f64>,
    /// Replace a value of the scenario, as TOML: --set 'duration = "30 s"'
    #[arg(long = "set", value_name = "KEY = VALUE")]
    overrides: Vec<String>,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let overrides = [tor_keys(&arguments)?, arguments.overrides].concat();
    let mut scenario = Scenario::load(&arguments.scenario, &overrides)?;
    if let Some(seed) = arguments.seed {
        scenario.file.seed = seed;
    }
    let contents = contents(&scenario, arguments.seeds);
    if let Some(place) = &arguments.out {
        folder::check_place(place, &contents, arguments.force)?;
    }
    let console = Console::new(scenario.systems.len() * arguments.seeds as usize, arguments.jobs);
    let runs = runs::run_all(&scenario, arguments.seeds, &console)?;
    console.finish();
    if runs.finished.is_empty() {
        eprintln!("stopped before any run was finished; nothing was written");
        return Ok(ExitCode::from(130));
    }
    let results = Results::new(&scenario, &runs);
    let more = provenance(&results, &console::command_line());
    let base = PathBuf::from("out").join(&scenario.file.name);
    let place = console::write_results(files(&results), &contents, more, arguments.out, &base)?;
    if arguments.json {
        println!("{:#}", results.document());
    } else {
        println!("{}", summary_table(&results));
    }
    eprintln!("{} holds report.html, tables (.csv, .parquet) and manifest.json", place.display());
    if runs.missing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let missing: Vec<String> = (runs.missing.iter().take(MISSING_NAMED))
        .map(|(system, seed)| format!("{} seed {seed}", scenario.systems[*system].name))
        .collect();
    let more = runs.missing.len() - missing.len();
    eprintln!(
        "stopped: {} of {} runs are missing: {}{}",
        runs.missing.len(),
        runs.missing.len() + runs.finished.len(),
        missing.join(", "),
        if more > 0 { format!(" and {more} more") } else { String::new() }
    );
    Ok(ExitCode::from(130))
}

/// Missing runs that are named one by one.
const MISSING_NAMED: usize = 8;

/// The `[tor]` keys that have an argument of their own. Files named there count from the working directory.
fn tor_keys(arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let mut keys = Vec::new();
    for (key, file) in [
        ("consensus", &arguments.consensus),
        ("latency", &arguments.latency),
        ("geoip", &arguments.geoip),
        ("compare", &arguments.compare),
    ] {
        let Some(file) = file else { continue };
        let absolute = std::path::absolute(file).map_err(|error| Failure::Other(error.to_string()))?;
        let text = serde_json::Value::from(absolute.to_string_lossy().into_owned());
        keys.push(format!("tor.{key} = {text}"));
    }
    if let Some(fraction) = arguments.fraction {
        keys.push(format!("tor.fraction = {fraction:?}"));
    }
    Ok(keys)
}
