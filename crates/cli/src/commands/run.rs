//! `tidegate run`: simulates a scenario.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_lab::input::InputError;
use tidegate_lab::load;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::folder::{self, Contents};
use tidegate_lab::report::{COLUMNS, contents, files, full_table, provenance, summary_table};
use tidegate_lab::results::Results;
use tidegate_lab::runs::{self, Run, Runs};
use tidegate_lab::scenario::{Scenario, override_place};
use tidegate_lab::store::{self, Store};

use crate::console::{self, COMMIT, Console};
use crate::failure::Failure;

/// Simulate a scenario and compare its systems on the same networks
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate run scenarios/bottleneck.toml --seeds 5")]
pub struct RunArgs {
    /// Read the scenario from this TOML file
    scenario: PathBuf,
    /// Run each system with this many seeds; all systems share the network of a seed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    seeds: u32,
    /// Start with this seed instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Use this many threads; 0 means one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Write results to this folder [default: out/<scenario>/<number>, linked from out/<scenario>/latest]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Replace results in the folder; only files that its manifest lists are removed
    #[arg(long, requires = "out")]
    force: bool,
    /// Continue the study in --out or out/<scenario>/latest and skip finished runs
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// Print the summary as one JSON document
    #[arg(long)]
    json: bool,
    /// Print all systems and every row of the table
    #[arg(long)]
    all: bool,
    /// [tor] Take relays from this consensus (full or microdescriptor flavour, plain, .xz or .gz)
    #[arg(long, value_name = "FILE")]
    consensus: Option<PathBuf>,
    /// [tor] Take relay families from these microdescriptors (tor's cached-microdescs)
    #[arg(long, value_name = "FILE")]
    microdescriptors: Option<PathBuf>,
    /// [tor] Take round-trip times from this file: WonderProxy, RIPE country pairs, GML or GraphML
    #[arg(long, value_name = "FILE")]
    latency: Option<PathBuf>,
    /// [tor] Map addresses to countries with this file (tor's geoip format)
    #[arg(long, value_name = "FILE")]
    geoip: Option<PathBuf>,
    /// [tor] Print these measured downloads (torperf or OnionPerf) beside the simulated ones
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// [tor] Simulate this share of the network, between 0 and 1
    #[arg(long)]
    fraction: Option<f64>,
    /// Replace a value of the scenario, written as TOML: --set 'duration = "30 s"'
    #[arg(long = "set", value_name = "KEY = VALUE")]
    overrides: Vec<String>,
}

/// Runs the subcommand.
pub fn main(arguments: RunArgs) -> Result<ExitCode, Failure> {
    let mut scenario = read(&arguments)?;
    let folder = Folder::open(&scenario, &arguments)?;
    let before = Console::new(1, arguments.jobs);
    load::settle(&mut scenario, &before)?;
    before.finish();
    let runs = run_all(&scenario, &arguments, &folder).inspect_err(|_| folder.study.forget_if_empty())?;
    if runs.finished.is_empty() {
        folder.study.forget_if_empty();
        eprintln!("stopped before the first run finished; no results were written");
        return Ok(ExitCode::from(130));
    }
    let results = Results::new(&scenario, &runs);
    folder.write(&results)?;
    if arguments.json {
        println!("{:#}", results.document());
    } else {
        let columns = console::terminal_width().map_or(COLUMNS, usize::from);
        println!("{}", if arguments.all { full_table(&results) } else { summary_table(&results, columns) });
    }
    eprintln!("results: {}/report.html, tables (.csv, .parquet), manifest.json", folder.place.display());
    Ok(report_missing(&scenario, &runs))
}

/// Loads the scenario and applies the overrides of the command line.
fn read(arguments: &RunArgs) -> Result<Scenario, Failure> {
    let options = tor_keys(arguments)?;
    let keys = options.iter().map(|option| option.statement.clone());
    let overrides: Vec<String> = keys.chain(arguments.overrides.iter().cloned()).collect();
    let mut scenario = Scenario::load(&arguments.scenario, &overrides)
        .map_err(|error| blame_option(error, &options, &arguments.scenario, &arguments.overrides))?;
    scenario.inputs.notices.iter().chain(&scenario.idle_tables()).for_each(|text| console::notice(text));
    if let Some(seed) = arguments.seed {
        scenario.file.seed = seed;
    }
    Ok(scenario)
}

/// An option for a `[tor]` key.
pub(super) struct TorOption {
    /// The option as the user gave it.
    given: String,
    /// The override that it stands for.
    pub(super) statement: String,
}

impl TorOption {
    /// `--option FILE`, which sets `key`. The path is relative to the working directory.
    pub(super) fn file(key: &str, option: &str, file: &Path) -> Result<TorOption, Failure> {
        let absolute = std::path::absolute(file).map_err(|error| Failure::Other(error.to_string()))?;
        let text = serde_json::Value::from(absolute.to_string_lossy().into_owned());
        let given = format!("--{option} {}", file.display());
        Ok(TorOption { given, statement: format!("tor.{key} = {text}") })
    }
}

/// Names the option in an error about the override that it stands for. `overrides` are the user's own.
pub(super) fn blame_option(
    error: InputError,
    options: &[TorOption],
    scenario: &Path,
    overrides: &[String],
) -> InputError {
    let is_its = |option: &&TorOption| override_place(&option.statement) == error.file;
    let Some(option) = options.iter().find(is_its) else { return error };
    let file = option.given.clone();
    // Without the options, the scenario is complete.
    let alone = Scenario::load(scenario, overrides);
    if alone.is_ok_and(|scenario| scenario.file.tor.is_none()) {
        let cause =
            format!("is for networks of a [tor] table, and {} has relays of its own", scenario.display());
        return InputError::new(
            file,
            cause,
            "leave out the option, or use a scenario with [tor], such as scenarios/tor.toml",
        );
    }
    InputError { file, ..error }
}

/// The result folder: each run is stored when it finishes, the report at the end.
struct Folder {
    place: PathBuf,
    contents: Contents,
    study: Store,
    /// Whether the folder is new and numbered; `latest` links to it after the first stored run.
    numbered: bool,
}

impl Folder {
    /// Opens the folder; fails if it holds other results.
    fn open(scenario: &Scenario, arguments: &RunArgs) -> Result<Folder, Failure> {
        let contents = contents(scenario, store::input_digests(scenario)?, COMMIT);
        let base = PathBuf::from("out").join(&scenario.file.name);
        let numbered = arguments.out.is_none() && !arguments.resume;
        let place = match &arguments.out {
            Some(place) => place.clone(),
            None if numbered => folder::numbered(&base)?,
            None => base.join("latest"),
        };
        folder::check_place(&place, &contents, arguments.force)?;
        if arguments.resume && folder::contents_of(&place).is_none() {
            let cure = "run it without --resume first";
            return Err(InputError::new(
                place.display().to_string(),
                "does not contain a study to continue",
                cure,
            )
            .into());
        }
        let study = Store::open(&place, &contents)?;
        Ok(Folder { place, contents, study, numbered })
    }

    /// Stores a finished run.
    fn keep(&self, scenario: &Scenario, run: &Run, unix_s: u64) -> Result<(), InputError> {
        self.study.keep_run(scenario, run, COMMIT, unix_s)?;
        if self.numbered {
            folder::point_latest(&self.place);
        }
        Ok(())
    }

    /// Writes the report, its tables and the manifest.
    fn write(&self, results: &Results<'_>) -> Result<(), InputError> {
        let provenance = provenance(results, &console::command_line());
        folder::write(files(results), &self.contents, provenance, &self.place)
    }
}

/// Simulates the requested runs that are not stored yet; returns all runs of the study.
fn run_all(scenario: &Scenario, arguments: &RunArgs, folder: &Folder) -> Result<Runs, Failure> {
    let mut tasks = runs::tasks(scenario, arguments.seeds);
    if arguments.resume {
        tasks = folder.study.lacking(scenario, tasks)?;
    }
    let console = Console::new(tasks.len(), arguments.jobs);
    let keep = |run: &Run| folder.keep(scenario, run, console.unix_s());
    let asked = tasks.clone();
    let made = runs::run_tasks(scenario, tasks, &console, &keep)?;
    console.finish();
    if arguments.force {
        // Stored seeds that this command does not name would count in its means.
        folder.study.drop_others(scenario, &asked)?;
    }
    Ok(Runs { finished: folder.study.finished(scenario)?, missing: made.missing })
}

/// Lists runs that were not simulated, and returns the exit code.
fn report_missing(scenario: &Scenario, runs: &Runs) -> ExitCode {
    if runs.missing.is_empty() {
        return ExitCode::SUCCESS;
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
    ExitCode::from(130)
}

/// At most this many missing runs are listed.
const MISSING_NAMED: usize = 8;

/// Turns the options for `[tor]` keys into overrides.
fn tor_keys(arguments: &RunArgs) -> Result<Vec<TorOption>, Failure> {
    let mut keys = Vec::new();
    for (key, file) in [
        ("consensus", &arguments.consensus),
        ("microdescriptors", &arguments.microdescriptors),
        ("latency", &arguments.latency),
        ("geoip", &arguments.geoip),
        ("compare", &arguments.compare),
    ] {
        let Some(file) = file else { continue };
        keys.push(TorOption::file(key, key, file)?);
    }
    if let Some(fraction) = arguments.fraction {
        let given = format!("--fraction {fraction}");
        keys.push(TorOption { given, statement: format!("tor.fraction = {fraction:?}") });
    }
    Ok(keys)
}
