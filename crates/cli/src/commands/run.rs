//! `tidegate run`: simulate a scenario.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_lab::input::InputError;
use tidegate_lab::load;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::folder::{self, Contents};
use tidegate_lab::report::{COLUMNS, contents, files, full_table, provenance, summary_table};
use tidegate_lab::results::Results;
use tidegate_lab::runs::{self, Run, Runs};
use tidegate_lab::scenario::Scenario;
use tidegate_lab::store::{self, Store};

use crate::console::{self, COMMIT, Console};
use crate::failure::Failure;

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
    /// Go on with the study in that folder, or in out/<scenario>/latest: runs that are kept are not made again
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// Print the whole summary as one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Print every row of the table
    #[arg(long)]
    all: bool,
    /// [tor] Consensus, full or microdescriptor flavour, plain or .xz
    #[arg(long, value_name = "FILE")]
    consensus: Option<PathBuf>,
    /// [tor] Microdescriptors of the consensus (tor's cached-microdescs): families whose relays share no path
    #[arg(long, value_name = "FILE")]
    microdescriptors: Option<PathBuf>,
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
    let mut scenario = read(&arguments)?;
    let folder = Folder::open(&scenario, &arguments)?;
    let before = Console::new(1, arguments.jobs);
    load::settle(&mut scenario, &before)?;
    before.finish();
    let runs = run_all(&scenario, &arguments, &folder).inspect_err(|_| folder.study.forget_if_empty())?;
    if runs.finished.is_empty() {
        folder.study.forget_if_empty();
        eprintln!("stopped before any run was finished; nothing was written");
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
    eprintln!("{} holds report.html, tables (.csv, .parquet) and manifest.json", folder.place.display());
    Ok(say_what_is_missing(&scenario, &runs))
}

/// The scenario, with what the arguments replace in it.
fn read(arguments: &Arguments) -> Result<Scenario, Failure> {
    let overrides = [tor_keys(arguments)?, arguments.overrides.clone()].concat();
    let mut scenario = Scenario::load(&arguments.scenario, &overrides)?;
    scenario.inputs.notices.iter().for_each(|text| console::notice(text));
    if let Some(seed) = arguments.seed {
        scenario.file.seed = seed;
    }
    Ok(scenario)
}

/// Where the results go: each finished run at once, the report of all at the end.
struct Folder {
    place: PathBuf,
    contents: Contents,
    study: Store,
    /// Whether it is a new one, which `latest` names once it holds something.
    numbered: bool,
}

impl Folder {
    /// Finds the place, refusing one that holds something else.
    fn open(scenario: &Scenario, arguments: &Arguments) -> Result<Folder, Failure> {
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
            let cure = "leave --resume out";
            return Err(
                InputError::new(place.display().to_string(), "holds no study to go on with", cure).into()
            );
        }
        let study = Store::open(&place, &contents)?;
        Ok(Folder { place, contents, study, numbered })
    }

    /// Keeps a finished run.
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

/// Makes the runs that are wanted and not kept yet. Gives all runs of the study.
fn run_all(scenario: &Scenario, arguments: &Arguments, folder: &Folder) -> Result<Runs, Failure> {
    let mut tasks = runs::tasks(scenario, arguments.seeds);
    if arguments.resume {
        tasks = folder.study.lacking(scenario, tasks)?;
    }
    let console = Console::new(tasks.len(), arguments.jobs);
    let keep = |run: &Run| folder.keep(scenario, run, console.unix_s());
    let made = runs::run_tasks(scenario, tasks, &console, &keep)?;
    console.finish();
    Ok(Runs { finished: folder.study.finished(scenario)?, missing: made.missing })
}

/// Names the runs that were not made. Gives how the process ends.
fn say_what_is_missing(scenario: &Scenario, runs: &Runs) -> ExitCode {
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

/// Missing runs that are named one by one.
const MISSING_NAMED: usize = 8;

/// The `[tor]` keys that have an argument of their own. Files named there count from the working directory.
fn tor_keys(arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let mut keys = Vec::new();
    for (key, file) in [
        ("consensus", &arguments.consensus),
        ("microdescriptors", &arguments.microdescriptors),
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
