//! `tidegate sweep`: one scenario at many points, each run kept the moment it ends.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use tidegate_lab::jobs::run_all;
use tidegate_lab::report::folder;
use tidegate_lab::scoreboard::RunError;
use tidegate_lab::store::Store;
use tidegate_lab::sweep::{Sweep, SweepTask};

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

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let sweep = Sweep::load(&arguments.study)?;
    sweep.notices().iter().for_each(|text| notice(text));
    let total = sweep.tasks.len();
    if arguments.list {
        let points = &sweep.study.points;
        for point in points {
            let values: Vec<String> =
                point.values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            println!("{}  {}", point.name, values.join(", "));
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
    eprintln!("{wanted} runs, {} of them kept already", wanted - tasks.len());
    let console = Console::new(0, arguments.jobs);
    let make = |task: &&SweepTask, _: &dyn Fn(f64) -> bool| -> Result<(), RunError> {
        Ok(store.keep(&task.name, &sweep.order(task).make(COMMIT, &console)?)?)
    };
    let made = run_all(&tasks, &console, |task| &task.name, make);
    console.finish();
    let count = if arguments.shard.is_none() {
        sweep.tabulate(&store, &contents, &place, json!({ "command": command_line() }))?
    } else {
        store.forget_if_empty();
        store.names().map_or(0, |names| names.len())
    };
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
