//! `tidegate reproduce`: the scoreboard of published numbers.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_lab::parallel_paths;
use tidegate_lab::scoreboard::{Runner, Scale, experiment, scenario_runner, verdict};

use crate::Failure;
use crate::console::Console;

/// Everything that can measure an experiment: one line each.
const RUNNERS: &[(&str, Runner)] =
    &[("scenario", scenario_runner::run), ("parallel-paths", parallel_paths::run)];

/// Measure what papers published, and print theirs beside ours
#[derive(clap::Args)]
pub struct Arguments {
    /// PAPER or PAPER/FIGURE, such as predictor/table-1; everything without it
    what: Option<String>,
    /// How much effort to make
    #[arg(long, value_enum, default_value = "smoke")]
    scale: ScaleName,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Threads; 0: one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Folder of the experiments
    #[arg(long, default_value = "experiments")]
    experiments: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ScaleName {
    Smoke,
    Full,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let scale = match arguments.scale {
        ScaleName::Smoke => Scale::Smoke,
        ScaleName::Full => Scale::Full,
    };
    let experiments = experiment::find(&arguments.experiments, arguments.what.as_deref())?;
    let known: Vec<&str> = RUNNERS.iter().map(|(name, _)| *name).collect();
    let mut planned = Vec::new();
    for experiment in experiments {
        let name = experiment.file.runner.get_ref();
        let runner = RUNNERS.iter().find(|(known, _)| known == name).map(|(_, runner)| *runner);
        let runner = runner.ok_or_else(|| experiment.unknown_runner(&known))?;
        planned.push((experiment.rows()?, experiment, runner));
    }
    let console = Console::new(planned.len(), arguments.jobs);
    let mut outcomes = Vec::new();
    for (rows, experiment, runner) in &planned {
        let measured = runner(experiment, scale, &console);
        outcomes.extend(verdict::judge(experiment, rows, &measured, scale == Scale::Smoke));
    }
    console.finish();
    for outcome in &outcomes {
        println!("{outcome:?}");
    }
    Ok(ExitCode::SUCCESS)
}
