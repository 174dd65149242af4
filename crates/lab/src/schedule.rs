//! The runner `schedule`: possible speed-up of one run on several cores with the same result.
//!
//! It counts the run's events and starts no threads.
//!
//! The rule is conservative parallel simulation: an event at one host affects another one only after the delay
//! between them. Hosts with a smaller delay than the *window* form one process, and so do the hosts of a machine. All processes handle the events of
//! a window in parallel, then exchange what they sent. Processes are assigned to workers in decreasing order of their
//! events in the previous window, each to the worker with the least load. A window takes as long as its busiest
//! worker, plus `barrier-events`.
//!
//! Quantities, with `<window>` from `windows-ms` and `_` for the decimal point: `w<window>.processes`, `.heaviest` (the
//! largest share of a process in all events), `.events_per_window`, and for each number of `workers`
//! `.speed_up.<workers>` and `.bound.<workers>`, which assumes known work per window and no barrier. All events count
//! equally.

use std::ops::ControlFlow;

use serde::Deserialize;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_sim::division::units;
use tidegate_sim::observe::{Host, Observation, Recorder};
use tidegate_sim::plan::Plan;
use tidegate_sim::world;

use crate::monitor::Monitor;
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};
use crate::{load, network};

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ScheduleExperiment {
    /// The scenario; its first system runs.
    scenario: ScenarioEntry,
    #[serde(default)]
    overrides: Vec<String>,
    seeds: u64,
    /// Windows in milliseconds.
    windows_ms: Vec<f64>,
    workers: Vec<usize>,
    /// Cost of the exchange after a window, in events.
    barrier_events: u64,
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for parameters that cannot be run.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: ScheduleExperiment = experiment.parameters(scale)?;
    let mut scenario = parameters.scenario.load(experiment, &parameters.overrides)?;
    load::settle(&mut scenario, monitor)?;
    let (system, duration) = (&scenario.systems[0], scenario.duration().as_secs_f64());
    let mut measured = Measured::default();
    for seed in 1..=parameters.seeds {
        // The same branches as `runs::run_with`, so that events equal those of real runs.
        let root = Seed::root(seed);
        let plan = network::build(&scenario, root.fork("network"))?.plan;
        let window = |ms: &f64| Schedule::new(&plan, Span((ms * 1e6) as u64), &parameters);
        let mut schedules = Schedules(parameters.windows_ms.iter().map(window).collect());
        let mut progress = |now: Time| {
            let done = now.as_secs_f64() / duration;
            monitor.progress(&format!("seed {seed}"), "counting", done);
            if monitor.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let end = world::run(&plan, system, root.fork("run"), &mut schedules, &mut progress);
        if end.stopped {
            return Err(RunError::Stopped);
        }
        for (ms, schedule) in parameters.windows_ms.iter().zip(schedules.0) {
            let prefix = format!("w{ms}").replace('.', "_");
            for (name, value) in schedule.figures() {
                measured.push(format!("{prefix}.{name}"), value);
            }
        }
    }
    Ok(measured)
}

/// The schedules of one run, one per window size.
struct Schedules(Vec<Schedule>);

impl Recorder for Schedules {
    const WATCHES_EVENTS: bool = true;

    fn event(&mut self, now: Time, at: Host) {
        self.0.iter_mut().for_each(|schedule| schedule.event(now, at));
    }

    fn record(&mut self, _: Time, _: &Observation) {}
}

/// The schedule with one window size.
struct Schedule {
    window: Span,
    barrier_events: u64,
    /// Process of each host.
    process: Vec<usize>,
    /// Events by process: in this window, in the previous one with events, and in total.
    present: Vec<u64>,
    last: Vec<u64>,
    all: Vec<u64>,
    /// Number of the current window, and number of windows with events.
    number: u64,
    windows: u64,
    workers: Vec<Workers>,
}

/// A number of workers, and the time they take, in events.
struct Workers {
    count: usize,
    takes: u64,
    least: u64,
}

impl Schedule {
    fn new(plan: &Plan, window: Span, parameters: &ScheduleExperiment) -> Schedule {
        let none = vec![0; plan.hosts.len()];
        let workers = parameters.workers.iter().map(|count| Workers { count: *count, takes: 0, least: 0 });
        Schedule {
            window,
            barrier_events: parameters.barrier_events,
            process: units(plan, window).into_iter().map(|unit| unit as usize).collect(),
            present: none.clone(),
            last: none.clone(),
            all: none,
            number: 0,
            windows: 0,
            workers: workers.collect(),
        }
    }

    fn event(&mut self, now: Time, at: Host) {
        let number = now.0 / self.window.0.max(1);
        if number != self.number {
            self.close();
            self.number = number;
        }
        self.present[self.process[at.0 as usize]] += 1;
    }

    /// Ends the current window.
    fn close(&mut self) {
        if self.present.iter().all(|events| *events == 0) {
            return;
        }
        self.windows += 1;
        for workers in &mut self.workers {
            workers.takes += dealt(&self.last, &self.present, workers.count) + self.barrier_events;
            workers.least += dealt(&self.present, &self.present, workers.count);
        }
        for (all, present) in self.all.iter_mut().zip(&self.present) {
            *all += present;
        }
        std::mem::swap(&mut self.last, &mut self.present);
        self.present.fill(0);
    }

    fn figures(mut self) -> Vec<(String, f64)> {
        self.close();
        let events: u64 = self.all.iter().sum();
        let share = |part: u64| events as f64 / part.max(1) as f64;
        let most = self.all.iter().max().copied().unwrap_or(0);
        let mut figures = vec![
            ("processes".into(), self.all.iter().filter(|events| **events > 0).count() as f64),
            ("heaviest".into(), 1.0 / share(most)),
            ("events_per_window".into(), share(self.windows)),
        ];
        for Workers { count, takes, least } in self.workers {
            figures.push((format!("speed_up.{count}"), share(takes)));
            figures.push((format!("bound.{count}"), share(least)));
        }
        figures
    }
}

/// Load of the busiest worker if processes are assigned in decreasing order of their expected load, each to the worker
/// with the least expected load.
fn dealt(expected: &[u64], present: &[u64], workers: usize) -> u64 {
    let mut order: Vec<usize> = (0..expected.len()).filter(|i| expected[*i] + present[*i] > 0).collect();
    order.sort_by_key(|i| std::cmp::Reverse((expected[*i], *i)));
    let mut loads = vec![(0, 0); workers.max(1)];
    for process in order {
        let least = loads.iter_mut().min_by_key(|(expected, _)| *expected).expect("there are workers");
        least.0 += expected[process].max(1);
        least.1 += present[process];
    }
    loads.into_iter().map(|(_, present)| present).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_scheduled_by_their_expected_load() {
        assert_eq!(dealt(&[5, 4, 3, 2], &[5, 4, 3, 2], 2), 7);
        assert_eq!(dealt(&[5, 4, 3, 2], &[5, 4, 3, 2], 1), 14);
        assert_eq!(dealt(&[9, 1, 1], &[0, 8, 8], 2), 16, "dealt by the window before");
        assert_eq!(dealt(&[3], &[3], 8), 3);
    }
}
