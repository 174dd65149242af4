//! `tidegate sweep`: runs a scenario with many combinations of values; stores each run when it finishes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use tidegate_lab::jobs::run_all;
use tidegate_lab::report::folder;
use tidegate_lab::scoreboard::RunError;
use tidegate_lab::store::Store;
use tidegate_lab::sweep::{Sweep, SweepTask, in_a_line, overview};

use crate::console::{COMMIT, Console, command_line, notice};
use crate::failure::Failure;

/// Run a scenario for many values of its keys
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate sweep study.toml --shard 3/20")]
pub struct SweepArgs {
    /// Read the study from this TOML file
    study: PathBuf,
    /// Store runs in this folder and skip runs that it contains [default: out/<study>]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Make only this part of the runs, such as 3/20, to share a folder among machines
    #[arg(long, value_parser = shard)]
    shard: Option<(usize, usize)>,
    /// Use this many threads; 0 means one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Print the points of the study and run nothing
    #[arg(long, conflicts_with_all = ["out", "shard", "jobs"])]
    list: bool,
}

/// Parses a shard: `3/20` is the third of twenty.
fn shard(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parts
        .filter(|(k, n)| *k >= 1 && k <= n)
        .ok_or_else(|| format!("`{text}` is not a shard; write K/N with K from 1 to N, such as 3/20"))
}

/// Runs the subcommand.
pub fn main(arguments: SweepArgs) -> Result<ExitCode, Failure> {
    let sweep = Sweep::load(&arguments.study)?;
    sweep.notices().iter().for_each(|text| notice(text));
    let total = sweep.tasks.len();
    if arguments.list {
        let points = &sweep.study.points;
        for point in points {
            println!("{}  {}", point.name, in_a_line(&point.values));
        }
        println!("{} points, {total} runs", points.len());
        return Ok(ExitCode::SUCCESS);
    }
    let contents = sweep.contents(COMMIT)?;
    let place = arguments.out.unwrap_or_else(|| PathBuf::from("out").join(&sweep.study.name));
    folder::check_place(&place, &contents, false)?;
    let store = Store::open(&place, &contents)?;
    let (k, n) = arguments.shard.unwrap_or((1, 1));
    let mut tasks: Vec<&SweepTask> = sweep.tasks.iter().skip(k - 1).step_by(n).collect();
    let kept: BTreeSet<String> = store.names()?.into_iter().collect();
    let wanted = tasks.len();
    tasks.retain(|task| !kept.contains(&task.name));
    eprintln!("{wanted} runs, {} of them already stored", wanted - tasks.len());
    let console = Console::new(0, arguments.jobs);
    let make = |task: &&SweepTask, _: &dyn Fn(f64) -> bool| -> Result<(), RunError> {
        Ok(store.keep(&task.name, sweep.order(task).make(COMMIT, &console)?)?)
    };
    let made = run_all(&tasks, &console, |task| &task.name, make);
    console.finish();
    let count = if arguments.shard.is_none() {
        let count = sweep.tabulate(&store, &contents, &place, json!({ "command": command_line() }))?;
        if count > 0 {
            println!("{}", overview(&store)?);
        }
        count
    } else {
        store.forget_if_empty();
        store.names().map_or(0, |names| names.len())
    };
    if let Err(RunError::Input(error)) = made {
        return Err(error.into());
    }
    eprintln!(
        "{}: {count} of {total} runs are stored{}",
        place.display(),
        if arguments.shard.is_some() { "; `tidegate runs merge` writes their tables" } else { "" }
    );
    Ok(if made.is_err() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}
