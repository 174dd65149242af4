//! `tidegate sweep`: one scenario at many points, each run kept the moment it ends.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use tidegate_lab::input::InputError;
use tidegate_lab::jobs::run_all;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::folder::{self, Contents};
use tidegate_lab::results::VERSION;
use tidegate_lab::runs::run_once;
use tidegate_lab::scenario::Scenario;
use tidegate_lab::scoreboard::RunError;
use tidegate_lab::store::{self, Record, Store, run_name};
use tidegate_lab::study::{Point, Study};

use crate::console::{COMMIT, Console, command_line, notice};
use crate::failure::Failure;

/// Run a scenario at many points: any key over values or ranges
#[derive(clap::Args)]
pub struct Arguments {
    /// The study file
    study: PathBuf,
    /// Folder of the study, instead of out/<study>; it only grows, and goes on where it was stopped
    #[arg(long)]
    out: Option<PathBuf>,
    /// Only this part of the runs, such as 3/20, for many machines with one folder
    #[arg(long, value_parser = shard)]
    shard: Option<(usize, usize)>,
    /// Threads; 0: one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Print the points and what is kept of them, and run nothing
    #[arg(long)]
    list: bool,
}

/// `3/20`: the third of twenty.
fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parts
        .filter(|(k, n)| *k >= 1 && k <= n)
        .ok_or_else(|| format!("`{text}` is no shard; write it like 3/20, from 1/20 to 20/20"))
}

/// One run to be made.
struct Task<'a> {
    name: String,
    point: &'a Point,
    system: String,
    seed: u64,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let study = Study::load(&arguments.study)?;
    let first = at(&study, &study.points[0])?;
    first.notices.iter().for_each(|text| notice(text));
    if first.input_files().is_empty() {
        // Quickly read: a mistake shows before the first run. Others show when their point is run.
        study.points.iter().try_for_each(|point| at(&study, point).map(|_| ()))?;
    }
    let mut tasks = tasks(&study)?;
    let total = tasks.len();
    if arguments.list {
        for point in &study.points {
            let values: Vec<String> =
                point.values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            println!("{}  {}", point.name, values.join(", "));
        }
        println!("{} points, {total} runs", study.points.len());
        return Ok(ExitCode::SUCCESS);
    }
    let contents = contents(&study, &first)?;
    let place = arguments.out.unwrap_or_else(|| PathBuf::from("out").join(&study.name));
    folder::check_place(&place, &contents, false)?;
    let store = Store::open(&place, &contents)?;
    if let Some((k, n)) = arguments.shard {
        tasks = tasks.into_iter().skip(k - 1).step_by(n).collect();
    }
    let kept: BTreeSet<String> = store.names()?.into_iter().collect();
    let wanted = tasks.len();
    tasks.retain(|task| !kept.contains(&task.name));
    eprintln!("{wanted} runs, {} of them kept already", wanted - tasks.len());
    let console = Console::new(0, arguments.jobs);
    let made = run_all(&tasks, &console, |task| &task.name, |task, _| make(task, &study, &store, &console));
    console.finish();
    let count = store.names()?.len();
    if count == 0 {
        store.forget_if_empty();
    } else if arguments.shard.is_none() {
        let records = store.load()?;
        let more =
            json!({ "command": command_line(), "runs": count, "wanted": total, "complete": count >= total });
        folder::write(store::merged(&records), &contents, more, &place)?;
    }
    if let Err(RunError::Input(error)) = made {
        return Err(error.into());
    }
    eprintln!(
        "{}: {count} of {total} runs are kept{}",
        place.display(),
        if arguments.shard.is_some() { "; `tidegate runs merge` makes their tables" } else { "" }
    );
    Ok(if made.is_err() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// The scenario at a point; a mistake names the point.
fn at(study: &Study, point: &Point) -> Result<Scenario, InputError> {
    study.scenario(point).map_err(|error| {
        let values: Vec<String> =
            point.values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        InputError { cause: format!("{} (at the point {})", error.cause, values.join(", ")), ..error }
    })
}

/// Makes one run and keeps it. The scenario is read for each: a thousand of them would not fit into memory.
fn make(task: &Task<'_>, study: &Study, store: &Store, console: &Console) -> Result<(), RunError> {
    let scenario = at(study, task.point)?;
    let system = scenario.systems.iter().position(|system| system.name == task.system);
    let system = system.expect("points differ in no system's name");
    let run = run_once(&scenario, system, task.seed, console)?.ok_or(RunError::Stopped)?;
    let record = Record::of(&scenario, &run, &task.point.values, COMMIT, console.unix_s());
    Ok(store.keep(&task.name, &record, &scenario)?)
}

/// Every run of the study: point by point, seed by seed.
fn tasks(study: &Study) -> Result<Vec<Task<'_>>, InputError> {
    let mut all = Vec::new();
    // Points differ in systems, if at all, by `systems`: the first point with each tells the rest.
    let mut known: BTreeMap<Option<&str>, (u64, Vec<String>)> = BTreeMap::new();
    for point in &study.points {
        let (seed, systems) = match known.entry(point.system()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let scenario = at(study, point)?;
                let names = scenario.systems.iter().map(|system| system.name.clone()).collect();
                entry.insert((scenario.file.seed, names))
            }
        };
        let first = point.seed().unwrap_or(*seed);
        for seed in (0..u64::from(study.seeds)).map(|k| first.wrapping_add(k)) {
            all.extend(systems.iter().map(|system| Task {
                name: run_name(&point.name, system, seed),
                point,
                system: system.clone(),
                seed,
            }));
        }
    }
    Ok(all)
}

/// What the study is of: every point's values, and the scenario at the first.
fn contents(study: &Study, first: &Scenario) -> Result<Contents, InputError> {
    let points: serde_json::Map<String, serde_json::Value> =
        study.points.iter().map(|point| (point.name.clone(), json!(point.values))).collect();
    let parameters = json!({
        "points": points,
        "scenario": first.file,
        "inputs": store::input_digests(first)?,
        "version": VERSION,
        "commit": COMMIT,
    });
    Ok(Contents { name: study.name.clone(), parameters })
}
