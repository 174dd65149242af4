//! Adds seeds to an experiment until its rows are decided or its budget is spent.

use std::path::PathBuf;

use tidegate_kernel::process_cpu_s;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::experiment::KeptRuns;
use tidegate_lab::scoreboard::{Dependence, Looks, Measured, RunError, Scale, Verdict, calibrated, verdict};

use super::planned::PlannedExperiment;
use crate::console::{COMMIT, Console};

/// Measures an experiment, with a budget until all rows are decided or it is spent; returns the number of seeds added to
/// those of the scale, too.
///
/// Rows are judged by group-sequential tests, which stay valid although the results decide when to stop. If the user stops
/// a further look, the result is that of the looks before it.
pub fn measure(
    planned: &PlannedExperiment,
    scale: Scale,
    budget: Option<f64>,
    console: &Console,
) -> Result<(Measured, u32), RunError> {
    let PlannedExperiment { dependence, runner, .. } = planned;
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
    // A calibration measures at several points, and joining seeds would lose all but one.
    let apart = *dependence == Dependence::EachSeed && experiment.file.calibrate.is_none();
    let start = process_cpu_s();
    let mut looks = Looks::none();
    let mut earlier: Option<(Measured, u32)> = None;
    loop {
        let before = process_cpu_s();
        let mut measured = match (calibrated::measure(&experiment, scale, *runner, console), earlier) {
            (Err(RunError::Stopped), Some(earlier)) => return Ok(finished_looks(earlier, console)),
            (measured, Some((mut all, _))) if apart => {
                all.append(measured?);
                all
            }
            (measured, _) => measured?,
        };
        measured.deterministic |= *dependence == Dependence::Nothing;
        let Some(budget) = budget.filter(|_| *dependence != Dependence::Nothing) else {
            return Ok((measured, experiment.extra_seeds));
        };
        let seeds = measured.seeds().max(1);
        let now = process_cpu_s();
        // The runner `scenario` keeps runs. Other runners repeat earlier seeds.
        let schedule = if apart || experiment.file.runner.get_ref() == "scenario" {
            Schedule::kept(seeds, (now - start) / seeds as f64, budget)
        } else {
            Schedule::repeated(seeds, (now - before) / seeds as f64, budget - (now - start))
        };
        looks.look(seeds, schedule.last);
        let more = schedule.next - seeds;
        if more == 0 {
            looks.end();
        }
        let measured = Measured { looks: looks.clone(), ..measured };
        if more == 0 || undecided(planned, &measured, scale) == 0 {
            return Ok((measured, experiment.extra_seeds));
        }
        console.notice(&format!("seeds so far: {seeds}; rows are undecided; adding {more}"));
        let count = |seeds: usize| u32::try_from(seeds).expect("seeds are counted by u32");
        earlier = Some((measured, experiment.extra_seeds));
        experiment.extra_seeds += count(more);
        if apart {
            experiment.first_seed = count(seeds);
        }
    }
}

/// The result of the looks before the one that the user stopped.
fn finished_looks(earlier: (Measured, u32), console: &Console) -> (Measured, u32) {
    let n = earlier.0.seeds();
    console.notice(&format!("stopped: the rows are those of the finished looks, n = {n}"));
    earlier
}

/// Numbers of seeds at the next look and at the last one; equal to the present number if the budget is spent.
#[derive(Debug, PartialEq)]
struct Schedule {
    next: usize,
    last: usize,
}

impl Schedule {
    /// Half as many seeds again at each look, up to the budget of all seeds.
    fn kept(seeds: usize, per_seed: f64, budget: f64) -> Schedule {
        Schedule::of(seeds, seeds + (seeds / 2).max(1), budget / per_seed)
    }

    /// Three times the seeds at each look, because a look repeats all of them. `left` is the rest of the budget.
    fn repeated(seeds: usize, per_seed: f64, left: f64) -> Schedule {
        let next = (3 * seeds).max(DECIDING);
        let affordable = left / per_seed;
        // The looks before the last one take half as much as it does.
        let last = affordable * 2.0 / 3.0;
        if last > next as f64 {
            return Schedule::of(seeds, next, last);
        }
        Schedule::of(seeds, next.max(affordable as usize), affordable)
    }

    fn of(seeds: usize, next: usize, last: f64) -> Schedule {
        // Ten thousand seeds decide what any seeds can decide.
        let last = (last.min(1e4) as usize).max(seeds);
        // A last look just after another one would see the same.
        Schedule { next: if next + next / 4 >= last { last } else { next }, last }
    }
}

/// Seeds that usually decide. If all seeds give the same value, deciding takes 8 seeds in a family of 12 rows.
const DECIDING: usize = 8;

fn undecided(planned: &PlannedExperiment, measured: &Measured, scale: Scale) -> usize {
    let outcomes = verdict::judge(&planned.experiment, &planned.rows, &Ok(measured.clone()), scale);
    outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Undecided).count()
}

/// Repeats an experiment that depends on the machine; returns the number of added runs, too.
///
/// Such experiments wait for sockets and clocks in processes of their own, so their budget counts the clock's seconds.
fn measure_again(
    planned: &PlannedExperiment,
    scale: Scale,
    budget: Option<f64>,
    console: &Console,
) -> Result<(Measured, u32), RunError> {
    let start = console.wall_s();
    let run = || (planned.runner)(&planned.experiment, scale, console);
    let added = |runs: usize| u32::try_from(runs - 1).expect("runs are counted by u32");
    let mut measured = run()?;
    let mut runs = 1;
    let Some(budget) = budget else { return Ok((measured, 0)) };
    let mut looks = Looks::none();
    loop {
        let schedule = Schedule::kept(runs, (console.wall_s() - start) / runs as f64, budget);
        looks.look(runs, schedule.last);
        if schedule.next == runs {
            looks.end();
        }
        measured.looks = looks.clone();
        let undecided = undecided(planned, &measured, scale);
        if schedule.next == runs || undecided == 0 {
            return Ok((measured, added(runs)));
        }
        console.notice(&format!(
            "runs so far: {runs}; undecided rows: {undecided}; adding {}",
            schedule.next - runs
        ));
        match (runs..schedule.next).map(|_| run()).collect::<Result<Vec<Measured>, RunError>>() {
            Err(RunError::Stopped) => return Ok(finished_looks((measured, added(runs)), console)),
            more => more?.into_iter().for_each(|more| measured.append(more)),
        }
        runs = schedule.next;
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_grow_up_to_the_budget() {
        assert_eq!(Schedule::kept(4, 10.0, 400.0), Schedule { next: 6, last: 40 });
        assert_eq!(Schedule::kept(28, 10.0, 400.0), Schedule { next: 40, last: 40 }, "42 exceed the budget");
        assert_eq!(Schedule::kept(40, 10.0, 400.0), Schedule { next: 40, last: 40 });
        assert_eq!(Schedule::kept(4, 10.0, 5.0), Schedule { next: 4, last: 4 });
        assert_eq!(Schedule::repeated(4, 10.0, 560.0), Schedule { next: 12, last: 37 });
        assert_eq!(Schedule::repeated(12, 10.0, 440.0), Schedule { next: 44, last: 44 });
        assert_eq!(Schedule::repeated(4, 10.0, 100.0), Schedule { next: 10, last: 10 });
        assert_eq!(Schedule::repeated(1, 10.0, 190.0), Schedule { next: 8, last: 12 });
        assert_eq!(Schedule::repeated(1, 10.0, 110.0), Schedule { next: 11, last: 11 });
        assert_eq!(Schedule::repeated(4, 10.0, 30.0), Schedule { next: 4, last: 4 });
    }
}
