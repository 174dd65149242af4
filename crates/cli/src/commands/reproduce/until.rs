//! Adds seeds to an experiment until its rows are decided or its budget is spent.

use std::path::PathBuf;

use tidegate_kernel::process_cpu_s;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::experiment::KeptRuns;
use tidegate_lab::scoreboard::{Dependence, Measured, RunError, Scale, Verdict, calibrated, verdict};

use super::planned::PlannedExperiment;
use crate::console::{COMMIT, Console};

/// Measures an experiment; returns the values and the number of seeds added to those of the scale.
///
/// Rows are judged by confidence sequences, which stay valid although the results decide when to stop.
pub fn measure(
    planned: &PlannedExperiment,
    scale: Scale,
    budget: Option<f64>,
    console: &Console,
) -> (Result<Measured, RunError>, u32) {
    let PlannedExperiment { rows, dependence, runner, .. } = planned;
    if *dependence == Dependence::Machine {
        return measure_again(planned, scale, budget, console);
    }
    let mut experiment = planned.experiment.clone();
    // Rounds of a calibration share seeds, as steps towards a budget do.
    let repeats = budget.is_some() || experiment.file.calibrate.is_some();
    let scratch = (repeats && experiment.keep.is_none()).then(Scratch::new);
    if let Some(scratch) = &scratch {
        experiment.keep = Some(KeptRuns { place: scratch.0.clone(), commit: COMMIT.into() });
    }
    let start = process_cpu_s();
    loop {
        let before = process_cpu_s();
        let mut measured = calibrated::measure(&experiment, scale, *runner, console);
        if let Ok(values) = &mut measured {
            values.deterministic |= *dependence == Dependence::Nothing;
        }
        let done = |measured| (measured, experiment.extra_seeds);
        let more_seeds = measured.is_ok() && *dependence == Dependence::Seeds;
        let Some(budget) = budget.filter(|_| more_seeds) else { return done(measured) };
        let outcomes = verdict::judge(&experiment, rows, &measured, scale);
        let undecided = outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Undecided);
        let Some(seeds) = undecided.map(|outcome| outcome.n).max() else { return done(measured) };
        let now = process_cpu_s();
        // Only the runner `scenario` keeps runs; the others repeat earlier seeds, so they take fewer, larger steps.
        let (wanted, per_seed, repeated) = if experiment.file.runner.get_ref() == "scenario" {
            ((seeds / 2).max(1), (now - start) / seeds as f64, 0)
        } else {
            ((seeds / 2).max(DECIDING.saturating_sub(seeds)), (now - before) / seeds as f64, seeds)
        };
        let fits = |more: &usize| now - start + per_seed * (repeated + more) as f64 <= budget;
        let Some(more) = (1..=wanted).rev().find(fits) else { return done(measured) };
        console.notice(&format!("seeds so far: {seeds}; rows are undecided; adding {more}"));
        experiment.extra_seeds += u32::try_from(more).expect("seeds are counted by u32");
    }
}

/// Repeats an experiment that depends on the machine; returns one value per run, and the number of added runs.
///
/// Such experiments wait for sockets and clocks in processes of their own, so their budget counts the clock's seconds.
fn measure_again(
    PlannedExperiment { experiment, rows, runner, .. }: &PlannedExperiment,
    scale: Scale,
    budget: Option<f64>,
    console: &Console,
) -> (Result<Measured, RunError>, u32) {
    let start = console.wall_s();
    let mut measured = match runner(experiment, scale, console) {
        Ok(measured) => measured,
        Err(error) => return (Err(error), 0),
    };
    let mut added = 0;
    let Some(budget) = budget else { return (Ok(measured), added) };
    loop {
        let so_far = Ok(measured);
        let outcomes = verdict::judge(experiment, rows, &so_far, scale);
        let undecided = outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Undecided).count();
        let spent = console.wall_s() - start;
        let per_run = spent / f64::from(added + 1);
        if undecided == 0 || spent + per_run > budget {
            return (so_far, added);
        }
        console.notice(&format!("runs so far: {}; undecided rows: {undecided}; adding a run", added + 1));
        match (so_far, runner(experiment, scale, console)) {
            (Ok(mut all), Ok(run)) => {
                all.append(run);
                measured = all;
                added += 1;
            }
            // An interrupted series keeps nothing: a user stops it, or the machine fails in the middle.
            (_, Err(error)) | (Err(error), _) => return (Err(error), added),
        }
    }
}

/// Seeds that usually decide. If all seeds give the same value, deciding takes 8 seeds in a family of 12 rows.
const DECIDING: usize = 8;

/// A folder for runs that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(std::env::temp_dir().join(format!("tidegate-reproduce-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
