//! Runs every system on every seed's network, one run per thread.
//!
//! A run is a pure function of scenario, system and seed. Results therefore do not depend on the number of threads,
//! and the runs that are finished when the user stops remain valid.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tidegate_control::random::Seed;
use tidegate_control::units::Time;
use tidegate_sim::balance;
use tidegate_sim::digest::Digest;
use tidegate_sim::observe::{Observation, Recorder};
use tidegate_sim::plan::System;
use tidegate_sim::world::{self, Threads};

use crate::input::InputError;
use crate::jobs;
use crate::metrics::{Fold, Metrics};
use crate::monitor::Monitor;
use crate::network;
use crate::scenario::Scenario;

/// One finished run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Index into the scenario's systems.
    pub system: usize,
    /// Root of its seed tree.
    pub seed: u64,
    /// Its metrics, shared with its record.
    pub metrics: Arc<Metrics>,
    /// Digest of every observation, in order.
    pub digest: u64,
    /// Wall-clock time.
    pub wall_s: f64,
    /// Processor time of its threads.
    pub cpu_s: f64,
}

/// All finished runs, ordered by seed, then system.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// The finished runs.
    pub finished: Vec<Run>,
    /// (system, seed) of the runs that did not finish.
    pub missing: Vec<(usize, u64)>,
}

impl Runs {
    /// The finished runs of a system.
    pub(crate) fn of(&self, system: usize) -> impl Iterator<Item = &Run> {
        self.finished.iter().filter(move |run| run.system == system)
    }
}

/// Makes one run on one thread. `None` if the user stopped it.
pub fn run_once(
    scenario: &Scenario,
    system: usize,
    seed: u64,
    monitor: &dyn Monitor,
) -> Result<Option<Run>, InputError> {
    run_with(scenario, (system, seed), 1, monitor, &mut Unwatched)
}

/// A recorder that ignores all observations.
pub(crate) struct Unwatched;

impl Recorder for Unwatched {
    fn record(&mut self, _: Time, _: &Observation) {}
}

/// Makes one run that `watch` also records. `None` if the user stopped it. Only divided runs use several threads.
pub fn run_with(
    scenario: &Scenario,
    (system, seed): (usize, u64),
    threads: usize,
    monitor: &dyn Monitor,
    watch: &mut impl Recorder,
) -> Result<Option<Run>, InputError> {
    let part: &System = &scenario.systems[system];
    let what = format!("{} seed {seed}", part.name);
    let (wall, cpu) = (monitor.wall_s(), monitor.cpu_s());
    let root = Seed::root(seed);
    // The network has its own branch of the seed, so all systems of a seed share it.
    let mut network = network::build(scenario, root.fork("network"))?;
    let mut surveying = |now: Time| {
        monitor.progress(&what, &format!("surveying, {:.1} s simulated", now.as_secs_f64()), 0.0);
        if monitor.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let balanced = match balance::weigh(&mut network.plan, part, root.fork("balance"), &mut surveying) {
        Ok(balanced) => balanced,
        Err(balance::Failure::Stopped) => return Ok(None),
        Err(failure) => {
            let cause = format!("system `{}`: balance: {failure}", part.name);
            let cure = "choose another `balance`, or a larger network whose relays have limits";
            return Err(scenario.source.error(scenario.file.system[system].span(), cause, cure));
        }
    };
    let mut recorder =
        ((Fold::new(&network, part, root.fork("run"), scenario.warmup()), Digest::default()), watch);
    let duration = scenario.duration().as_secs_f64();
    let mut progress = |now: Time| {
        let speed = now.as_secs_f64() / (monitor.wall_s() - wall).max(1e-9);
        let pace = if speed < 1.0 {
            format!("{:.1} s per simulated second", 1.0 / speed)
        } else {
            format!("{speed:.1} x real time")
        };
        let label = format!("{:.1} of {duration:.1} s simulated, {pace}", now.as_secs_f64());
        monitor.progress(&what, &label, now.as_secs_f64() / duration);
        if monitor.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    // `cpu_s` covers only the calling thread; the threads of a divided run add theirs here.
    let others_cpu = Mutex::new(0.0);
    let measured = |work: &mut dyn FnMut()| {
        let before = monitor.cpu_s();
        work();
        *others_cpu.lock().expect("no thread panics with the lock held") += monitor.cpu_s() - before;
    };
    let threads = Threads { count: threads, around: &measured };
    let end = world::run_on(&threads, &network.plan, part, root.fork("run"), &mut recorder, &mut progress);
    if end.stopped {
        return Ok(None);
    }
    let ((fold, digest), _) = recorder;
    let mut metrics = fold.finish();
    if let Some(balanced) = balanced {
        metrics.summary["balance"] = json!({
            "weight_error": balanced.weight_error,
            "capacity_error": balanced.capacity_error,
            "advantage": balanced.advantage,
            "attackers_share_of_weight": balanced.attackers_shares.map(|[weight, _]| weight),
            "attackers_share_of_capacity": balanced.attackers_shares.map(|[_, capacity]| capacity),
            "circuits_seen_at_both_ends": balanced.circuits_seen.map(|seen| seen[0]),
            "circuits_seen_anywhere": balanced.circuits_seen.map(|seen| seen[1]),
            "unweighed_relays": balanced.unweighed,
            "failed_measurements": balanced.failed,
            "rounds": balanced.rounds,
            "surveyed_s": balanced.surveyed.as_secs_f64(),
        });
    }
    monitor.progress(&what, "done", 1.0);
    let others_cpu = others_cpu.into_inner().expect("no thread panics with the lock held");
    let (wall_s, cpu_s) = (monitor.wall_s() - wall, monitor.cpu_s() - cpu + others_cpu);
    let metrics = Arc::new(metrics);
    Ok(Some(Run { system, seed, metrics, digest: digest.value(), wall_s, cpu_s }))
}

/// Called with each run when it ends; an error stops the remaining runs.
pub(crate) type KeepRun<'a> = &'a (dyn Fn(&Run) -> Result<(), InputError> + Sync);

/// (system index, seed) of every system on `seeds` networks, starting at the scenario's seed.
pub fn tasks(scenario: &Scenario, seeds: u32) -> Vec<(usize, u64)> {
    let first = scenario.file.seed;
    let seeds = (0..u64::from(seeds)).map(|k| first.wrapping_add(k));
    seeds.flat_map(|seed| (0..scenario.systems.len()).map(move |system| (system, seed))).collect()
}

/// Runs every system on `seeds` networks, on the monitor's number of threads.
///
/// # Errors
/// The first error of a run.
pub fn run_all(scenario: &Scenario, seeds: u32, monitor: &dyn Monitor) -> Result<Runs, InputError> {
    run_tasks(scenario, tasks(scenario, seeds), monitor, &|_| Ok(()))
}

/// Runs these tasks on the monitor's number of threads.
///
/// # Errors
/// The first error of a run, or of keeping it.
pub fn run_tasks(
    scenario: &Scenario,
    tasks: Vec<(usize, u64)>,
    monitor: &dyn Monitor,
    keep: KeepRun<'_>,
) -> Result<Runs, InputError> {
    if let Some((_, seed)) = tasks.iter().find(|(_, seed)| i64::try_from(*seed).is_err()) {
        let cause = format!("`seed` leads to the seed {seed}, and tables hold seeds up to {}", i64::MAX);
        let cure = "begin with a smaller `seed`, or run fewer seeds";
        return Err(InputError::new(scenario.source.file.clone(), cause, cure));
    }
    let failed = AtomicBool::new(false);
    // Spare threads serve divided runs, if there are fewer tasks than threads.
    let threads = monitor.jobs() / tasks.len().clamp(1, monitor.jobs().max(1));
    let done = jobs::each(&tasks, monitor, |_, task| {
        if failed.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let result = run_with(scenario, *task, threads, monitor, &mut Unwatched).and_then(|run| {
            run.as_ref().map_or(Ok(()), keep)?;
            Ok(run)
        });
        failed.fetch_or(result.is_err(), Ordering::SeqCst);
        result
    });
    let mut runs = Runs::default();
    for result in done.into_iter().flatten() {
        runs.finished.extend(result?);
    }
    let is_finished = |task: &(usize, u64)| runs.finished.iter().any(|run| (run.system, run.seed) == *task);
    runs.missing = tasks.into_iter().filter(|task| !is_finished(task)).collect();
    Ok(runs)
}
