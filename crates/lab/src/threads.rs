//! The runner `threads`: the speed-up of one run that is divided among processes on several threads.
//!
//! Quantities of each round: `whole_s`, `one_s` and `many_s`, the wall-clock time of the undivided run, of the divided
//! run on one thread, and of the divided run on `threads`; `speed_up` (whole over many) and `speed_up.divided` (one
//! over many); `same`, 1 if the digest does not depend on the number of threads, else 0. Times include drawing the
//! network.

use serde::Deserialize;

use crate::monitor::Monitor;
use crate::runs::{Run, Unwatched, run_with};
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ThreadsExperiment {
    /// The scenario; its first system runs.
    scenario: ScenarioEntry,
    #[serde(default)]
    overrides: Vec<String>,
    /// Number of processes of the divided run.
    processes: u32,
    threads: usize,
    rounds: u32,
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for parameters that cannot be run; [`RunError::Unavailable`] if there are fewer cores than threads.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: ThreadsExperiment = experiment.parameters(scale)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < parameters.threads {
        let why = format!("needs {} cores, and this machine has {cores}", parameters.threads);
        return Err(RunError::Unavailable(why));
    }
    let timed = |processes: u32, threads: usize| -> Result<Run, RunError> {
        // Only the number of processes differs between the runs.
        let mut overrides = parameters.overrides.clone();
        overrides.push(format!("processes = {processes}"));
        let scenario = parameters.scenario.load(experiment, &overrides)?;
        let run = run_with(&scenario, (0, scenario.file.seed), threads, monitor, &mut Unwatched)?;
        run.ok_or(RunError::Stopped)
    };
    let mut measured = Measured::default();
    for _ in 0..parameters.rounds.max(1) {
        let whole = timed(1, 1)?;
        let one = timed(parameters.processes, 1)?;
        let many = timed(parameters.processes, parameters.threads)?;
        measured.push("whole_s", whole.wall_s);
        measured.push("one_s", one.wall_s);
        measured.push("many_s", many.wall_s);
        measured.push("speed_up", whole.wall_s / many.wall_s);
        measured.push("speed_up.divided", one.wall_s / many.wall_s);
        measured.push("same", f64::from(u8::from(one.digest == many.digest)));
    }
    Ok(measured)
}
