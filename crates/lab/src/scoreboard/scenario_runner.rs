//! The runner `scenario`: runs scenario files over several seeds and returns every metric.
//!
//! ```toml
//! runner = "scenario"
//! [parameters]
//! scenarios = { scenario1 = "scenario-1.toml", scenario2 = "../../../scenarios/bottleneck.toml" }
//! overrides = ["duration = \"30 s\""]
//! seeds = 25
//! ```
//!
//! A scenario may have additional overrides and its own number of seeds:
//! `whole = { file = "network.toml", overrides = ["tor.fraction = 0.02"], seeds = 1 }`.
//!
//! Quantities have the name `<scenario>.<system>.<metric>`, with metrics as in `tidegate run --json`:
//! `scenario2.vanilla.throughput_bytes_per_s.circuit1`. With only one scenario, its name is omitted.
//! `<scenario>.duration_s` is the simulated time. A free parameter of `[calibrate]` is a quantity, too.
//!
//! `rank = { least = [metrics], most = [metrics] }` ranks the systems of each scenario: `mean_rank` is the mean of a
//! system's ranks by these metrics, 1 if it is the best by all. [`super::largest`] finds, for each system, the largest
//! value over several scenarios. [`super::pooled`] compares two systems over several scenarios at once.
//!
//! With a [folder for runs](Experiment::keep), each run is stored there when it ends and is not repeated later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use super::experiment::{KeptRuns, ParameterTrial};
use super::largest::Largest;
use super::pooled::Pooled;
use super::ranking::{self, Criteria};
use super::sweep::{ScenarioEntry, Sweep};
use super::{Curve, Experiment, Figure, Measured, RunError, Scale};
use crate::input::InputError;
use crate::load;
use crate::monitor::Monitor;
use crate::report::contents;
use crate::report::folder::check_place;
use crate::results::{CLOCKED, Results, flatten, whole_summary};
use crate::runs::{Run, Runs, run_tasks, tasks};
use crate::scenario::Scenario;
use crate::store::{Store, input_digests};

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ScenarioExperiment {
    /// Scenario files by name; paths are relative to the experiment's folder.
    pub scenarios: BTreeMap<String, ScenarioEntry>,
    /// Overrides of every scenario, as TOML text.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// Number of seeds.
    #[serde(default = "one")]
    pub seeds: u32,
    /// Metrics to rank the systems by.
    pub rank: Option<Criteria>,
    /// Largest values over groups of scenarios.
    pub largest: Option<Largest>,
    /// Ratios of two systems over groups of scenarios.
    pub pooled: Option<Pooled>,
    /// Curves over scenarios ([`super::sweep`]).
    pub sweep: Option<Sweep>,
}

fn one() -> u32 {
    1
}

/// Measures an experiment that consists of scenario files.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: ScenarioExperiment = experiment.parameters(scale)?;
    let mut measured = Measured { deterministic: true, ..Measured::default() };
    let trial = experiment.trial.as_ref();
    for (parameter, value) in trial.iter().flat_map(|trial| &trial.values) {
        measured.push_fixed(parameter, *value);
    }
    let alone = parameters.scenarios.len() == 1;
    let needed = |name: &String| alone || trial.is_none_or(|trial| trial.needs(name));
    let scenarios: Vec<_> = parameters.scenarios.iter().filter(|(name, _)| needed(name)).collect();
    for (at, (name, entry)) in scenarios.iter().enumerate() {
        let mut scenario = entry.load(experiment, &parameters.overrides)?;
        scenario.inputs.notices.iter().for_each(|notice| monitor.notice(notice));
        load::settle(&mut scenario, monitor)?;
        if let Some(system) = trial.and_then(|trial| trial.system.as_deref()) {
            scenario.systems.retain(|other| other.name == system);
        }
        let own = entry.seeds().map(|seeds| seeds + experiment.extra_seeds);
        let own = trial.and_then(|trial| trial.seeds).or(own);
        let tasks = tasks(&scenario, own.unwrap_or(parameters.seeds));
        let stage = Stage {
            monitor,
            name: if alone { "" } else { name },
            at,
            of: scenarios.len(),
            runs: tasks.len(),
            done: Mutex::default(),
        };
        let runs = match &experiment.keep {
            Some(keep) => {
                let mut folder =
                    PathBuf::from_iter([&experiment.paper, &experiment.figure, &scale.to_string()]);
                folder.extend(trial.map(label));
                kept(&scenario, tasks, keep, &folder.join(name), &stage)?
            }
            None => run_tasks(&scenario, tasks, &stage, &|_| Ok(()))?,
        };
        if !runs.missing.is_empty() {
            return Err(RunError::Stopped);
        }
        // With a single scenario, rows omit its name.
        let prefix = if alone { String::new() } else { format!("{name}.") };
        measured.push_fixed(format!("{prefix}duration_s"), scenario.duration().as_secs_f64());
        push_runs(&mut measured, &scenario, &runs.finished, (&prefix, names(experiment, COMPLETED)));
        let cpu_s =
            runs.finished.iter().map(|run| run.cpu_s).sum::<f64>() / runs.finished.len().max(1) as f64;
        measured.notes.push(format!("{name}: {} runs of {cpu_s:.1} CPU-s.", runs.finished.len()));
        if let Some(criteria) = &parameters.rank {
            let systems: Vec<&str> = scenario.systems.iter().map(|system| system.name.as_str()).collect();
            let ranked = ranking::rank(criteria, &systems, |system, metric| {
                measured.values.get(&format!("{prefix}{system}.{metric}")).map(Vec::as_slice)
            });
            measured.notes.extend(ranking::notes(name, &ranked));
            for place in ranked {
                measured.push(format!("{prefix}{}.mean_rank", place.system), place.mean_rank);
            }
        }
        let results = Results::new(&scenario, &runs);
        measured.deterministic &= results.is_exact();
        push_scores(&mut measured, experiment, &results, &prefix);
        measured.figures.extend(figures(name, &results));
    }
    if let Some(largest) = &parameters.largest {
        largest.find(&mut measured);
    }
    if let Some(pooled) = &parameters.pooled {
        pooled.find(&mut measured);
    }
    if let Some(sweep) = &parameters.sweep {
        measured.figures.splice(0..0, sweep.figures(&measured.values));
    }
    Ok(measured)
}

/// The runs of one scenario of several. It shows them as a share of all scenarios.
struct Stage<'a> {
    monitor: &'a dyn Monitor,
    name: &'a str,
    /// Number of the scenario, from 0.
    at: usize,
    of: usize,
    runs: usize,
    /// Completed share of each run.
    done: Mutex<BTreeMap<String, f64>>,
}

impl Monitor for Stage<'_> {
    fn progress(&self, work: &str, state: &str, done: f64) {
        let mut all = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(work.to_owned(), done);
        let here = all.values().sum::<f64>() / self.runs.max(all.len()) as f64;
        let space = if self.name.is_empty() { "" } else { " " };
        let state = format!("{}{space}{work}: {state}", self.name);
        self.monitor.progress("runs", &state, (self.at as f64 + here) / self.of as f64);
    }
    fn jobs(&self) -> usize {
        self.monitor.jobs()
    }
    fn notice(&self, text: &str) {
        self.monitor.notice(text);
    }
    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }
    fn wall_s(&self) -> f64 {
        self.monitor.wall_s()
    }
    fn unix_s(&self) -> u64 {
        self.monitor.unix_s()
    }
    fn cpu_s(&self) -> f64 {
        self.monitor.cpu_s()
    }
}

/// Quantities of completed downloads. They are left out of values and digest unless a row compares them: they repeat
/// `ttlb_s`, unless downloads fail.
const COMPLETED: &str = "ttlb_completed_s.";

/// Scores of single networks, one value per seed, if a row compares them. Those of all networks pooled have one value, so
/// no interval.
const NETWORK_SCORE: &str = ".network_score.";

/// Whether a row names such quantities.
fn names(experiment: &Experiment, quantities: &str) -> bool {
    let rows = experiment.file.row.iter().map(|row| row.get_ref());
    rows.flat_map(|row| [&row.measure, &row.relation]).flatten().any(|text| text.contains(quantities))
}

/// Adds the summaries of runs.
fn push_runs(
    measured: &mut Measured,
    scenario: &Scenario,
    runs: &[Run],
    (prefix, with_completed): (&str, bool),
) {
    for (index, system) in scenario.systems.iter().enumerate() {
        let of_system = runs.iter().filter(|run| run.system == index);
        let mut summaries: Vec<BTreeMap<String, f64>> =
            of_system.map(|run| flatten(&whole_summary(run))).collect();
        for summary in summaries.iter_mut().filter(|_| !with_completed) {
            summary.retain(|metric, _| !metric.starts_with(COMPLETED));
        }
        push_each(measured, &format!("{prefix}{}", system.name), summaries);
    }
}

/// Adds the scores against measured downloads: of all networks pooled, and of single ones if a row compares them.
fn push_scores(measured: &mut Measured, experiment: &Experiment, results: &Results<'_>, prefix: &str) {
    for system in &results.systems {
        let place = format!("{prefix}{}", system.name);
        for (part, score) in results.scores(system) {
            for (metric, value) in flatten(&score.document()) {
                measured.push(format!("{place}.score.{part}.{metric}"), value);
            }
        }
        if names(experiment, NETWORK_SCORE) {
            for (part, scores) in results.scores_of_networks(system) {
                let scores = scores.iter().map(|score| flatten(&score.document())).collect();
                push_each(measured, &format!("{place}{NETWORK_SCORE}{part}"), scores);
            }
        }
    }
}

/// Adds the metrics of each seed. If a seed lacks a metric, its value is NaN, so that values stay with their seeds.
fn push_each(measured: &mut Measured, place: &str, seeds: Vec<BTreeMap<String, f64>>) {
    let metrics: BTreeSet<&String> = seeds.iter().flat_map(BTreeMap::keys).collect();
    for metric in metrics {
        let quantity = format!("{place}.{metric}");
        for seed in &seeds {
            let value = seed.get(metric).copied().unwrap_or(f64::NAN);
            if CLOCKED.contains(&metric.as_str()) {
                measured.push_clocked(quantity.as_str(), value);
            } else {
                measured.push(quantity.as_str(), value);
            }
        }
    }
}

/// Name of the folder for the runs of a trial.
fn label(trial: &ParameterTrial) -> String {
    let values: Vec<String> = trial.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{} {}", trial.system.as_deref().unwrap_or("all"), values.join(" "))
}

/// Returns the runs of all tasks; makes and stores those that the folder lacks.
fn kept(
    scenario: &Scenario,
    tasks: Vec<(usize, u64)>,
    keep: &KeptRuns,
    folder: &Path,
    monitor: &dyn Monitor,
) -> Result<Runs, InputError> {
    let contents = contents(scenario, input_digests(scenario)?, &keep.commit);
    let place = keep.place.join(folder);
    check_place(&place, &contents, false)
        .map_err(|error| InputError { cure: "choose another folder with --keep".into(), ..error })?;
    let store = Store::open(&place, &contents)?;
    let lacking = store.lacking(scenario, tasks.clone())?;
    let made = run_tasks(scenario, lacking, monitor, &|run| {
        store.keep_run(scenario, run, &keep.commit, monitor.unix_s())
    });
    store.forget_if_empty();
    let mut finished = store.finished(scenario)?;
    finished.retain(|run| tasks.contains(&(run.system, run.seed)));
    Ok(Runs { finished, missing: made?.missing })
}

/// Figures of each system's rates over time and of the latency distribution.
fn figures(name: &str, results: &Results<'_>) -> Vec<Figure> {
    let mut all = Vec::new();
    // A picture with more than 20 curves is unreadable.
    let few = |names: &[String]| names.len() <= 20;
    let drawn = results.systems.iter().filter(|system| few(&system.runs[0].metrics.delivered.names));
    for system in drawn {
        let series = &system.runs[0].metrics.delivered;
        let curves = series.names.iter().zip(&series.curves).map(|(name, curve)| Curve {
            name: name.clone(),
            points: series.rates(curve).map(|(until, rate)| (until, rate / 1e3)).collect(),
        });
        all.push(Figure {
            title: format!("{name}, {}: rates", system.name),
            x: "time, s".into(),
            y: "rate, kB/s".into(),
            curves: curves.collect(),
        });
    }
    let curves = results.systems.iter().map(|system| Curve {
        name: system.name.to_owned(),
        points: (system.merged(|run| &run.metrics.latency_from_departure).distribution(300).into_iter())
            .map(|(seconds, share)| (seconds * 1e3, share))
            .collect(),
    });
    all.push(Figure {
        title: format!("{name}: latency from the exit's queue on"),
        x: "latency, ms".into(),
        y: "share of bytes".into(),
        curves: curves.collect(),
    });
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toml::Spanned;

    use super::super::experiment::find;
    use super::*;

    #[test]
    fn progress_is_a_share_of_all_scenarios() {
        #[derive(Default)]
        struct Shown(Mutex<Vec<(String, f64)>>);
        impl Monitor for Shown {
            fn progress(&self, work: &str, state: &str, done: f64) {
                self.0.lock().unwrap().push((format!("{work}: {state}"), done));
            }
        }
        let shown = Shown::default();
        let second = Stage { monitor: &shown, name: "after", at: 1, of: 2, runs: 2, done: Mutex::default() };
        second.progress("tor seed 1", "half", 0.5);
        second.progress("tor seed 2", "done", 1.0);
        let wanted = [
            ("runs: after tor seed 1: half".to_owned(), 0.625),
            ("runs: after tor seed 2: done".to_owned(), 0.875),
        ];
        assert_eq!(*shown.0.lock().unwrap(), wanted);
    }

    #[test]
    fn every_experiment_made_of_scenarios_can_be_read_at_every_scale() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let ours = |experiment: &Experiment| experiment.file.runner.get_ref() == "scenario";
        let experiments: Vec<_> =
            find(&root, Path::new("no-data"), None).unwrap().into_iter().filter(ours).collect();
        assert!(experiments.len() > 10, "{} found", experiments.len());
        for experiment in experiments {
            for scale in Scale::ALL {
                let parameters: ScenarioExperiment = experiment.parameters(scale).unwrap();
                assert!(parameters.seeds > 0, "{} {scale}", experiment.folder.display());
                for entry in parameters.scenarios.values().filter(|_| experiment.lacks().is_none()) {
                    entry.load(&experiment, &parameters.overrides).unwrap();
                }
            }
        }
    }

    /// The kinds of traffic in a row's paths: `web-1MiB` in `tor.ttlb_s.web-1MiB.p50`.
    fn kinds_of_traffic(row: &str) -> Vec<&str> {
        let by_kind = ["ttfb_s", "ttlb_s", "ttlb_completed_s", "connect_s", "round_trip_s", "transfers"];
        let paths = row.split(|c: char| c.is_whitespace() || "()".contains(c));
        let after = |path| str::split(path, '.').skip_while(|part| !by_kind.contains(part)).nth(1);
        paths.filter_map(after).collect()
    }

    #[test]
    fn rows_name_traffic_that_their_scenarios_have() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let mut named = 0;
        for experiment in find(&root, Path::new("no-data"), None).unwrap() {
            if experiment.file.runner.get_ref() != "scenario" {
                continue;
            }
            let parameters: ScenarioExperiment = experiment.parameters(Scale::Smoke).unwrap();
            let texts = parameters.scenarios.values().map(|entry| {
                let (file, overrides) = match entry {
                    ScenarioEntry::File(file) => (file, String::new()),
                    ScenarioEntry::Varied { file, overrides, .. } => {
                        (file, overrides.join("\n").replace('\'', "\""))
                    }
                };
                std::fs::read_to_string(experiment.folder.join(file)).unwrap() + &overrides
            });
            let texts: String = texts.collect();
            for row in experiment.file.row.iter().map(Spanned::get_ref) {
                let text = row.measure.iter().chain(&row.relation);
                for kind in text.flat_map(|text| kinds_of_traffic(text)) {
                    let traffic = kind.split('-').next().unwrap();
                    let place = experiment.folder.display();
                    assert!(
                        texts.contains(&format!("traffic = \"{traffic}\"")),
                        "{place}: no user's traffic is {kind}"
                    );
                    named += 1;
                }
            }
        }
        assert!(named > 100, "{named} found");
    }
}
