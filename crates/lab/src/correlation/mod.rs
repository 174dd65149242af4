//! The runner `correlation`: end-to-end correlation from the packets of a simulation, as a published attack.
//!
//! The observer counts the bytes of packets that arrive at each client and that leave each server, in bins. For each
//! flow at a client it ranks all flows at servers by Spearman's rank correlation coefficient, as RAPTOR does (Sun and
//! others, USENIX Security 2015). Nothing is trained. Bin, window and the rate of false positives are parameters of the
//! experiment, chosen before the first run.
//!
//! Quantities are `<scenario>.<system>.<quantity>`. `top_match` is the share of entry flows that correlate best
//! with the exit flow of their own user; `chance` is this share for an observer that guesses. `true_positives` is the share of true
//! pairs above the threshold at the stated rate of false positives. `coefficient` is the mean coefficient of true
//! pairs, `flows` the number of entry flows, `pairs` the number of false pairs. An entry flow comes from one guard: with
//! Conflux a client has two. The prefix `client.` stands for an observer of the client's own link, who sees both.

mod attack;
mod ends;

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::random::Seed;
use tidegate_control::units::Span;

pub(crate) use self::attack::Matched;
pub(crate) use self::ends::Ends;
use crate::input::InputError;
use crate::jobs;
use crate::load;
use crate::monitor::Monitor;
use crate::network;
use crate::runs::{self, Run};
use crate::scenario::Scenario;
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CorrelationExperiment {
    /// Scenario files by name; paths are relative to the experiment's folder.
    scenarios: BTreeMap<String, ScenarioEntry>,
    #[serde(default)]
    overrides: Vec<String>,
    seeds: u32,
    /// Interval over which bytes are counted.
    bin: Span,
    /// Observation time; a run has as many consecutive windows as fit.
    window: Span,
    /// Share of the pairs of different users that may be called a match.
    false_positives: f64,
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for a scenario that cannot be read, or in which users share clients or servers.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: CorrelationExperiment = experiment.parameters(scale)?;
    let window = (parameters.window.0 / parameters.bin.0.max(1)) as usize;
    let mut measured = Measured::default();
    for (name, entry) in &parameters.scenarios {
        let mut scenario = entry.load(experiment, &parameters.overrides)?;
        load::settle(&mut scenario, monitor)?;
        for (run, ends) in observed(&scenario, parameters.seeds, parameters.bin, monitor)? {
            if window == 0 || ends.bins() < window {
                let cause = format!("`window` does not fit into the measured time of scenario `{name}`");
                let cure =
                    "set `window` to at least one `bin`, and `duration` to at least `warmup` and `window`";
                return Err(InputError::new("[parameters]", cause, cure).into());
            }
            let system = &scenario.systems[run.system].name;
            let views = [
                ("", ends.by_guard(window, parameters.false_positives)),
                ("client.", ends.by_client(window, parameters.false_positives)),
            ];
            for (prefix, matched) in views {
                for (quantity, value) in quantities(matched) {
                    measured.push(format!("{name}.{system}.{prefix}{quantity}"), value);
                }
            }
        }
    }
    Ok(measured)
}

/// Runs every system with `seeds` seeds and observes both ends. Runs are ordered by seed, then system.
///
/// # Errors
/// The first error of a run; [`RunError::Stopped`] if the user stopped.
pub(crate) fn observed(
    scenario: &Scenario,
    seeds: u32,
    bin: Span,
    monitor: &dyn Monitor,
) -> Result<Vec<(Run, Ends)>, RunError> {
    let tasks = runs::tasks(scenario, seeds);
    let results = jobs::each(&tasks, monitor, |_, (system, seed)| {
        let plan = network::build(scenario, Seed::root(*seed).fork("network"))?.plan;
        let mut ends = Ends::of(&plan, bin, scenario.warmup())?;
        let run = runs::run_with(scenario, (*system, *seed), 1, monitor, &mut ends)?;
        Ok(run.map(|run| (run, ends)))
    });
    let finished = results.into_iter().map(|result: Option<Result<_, InputError>>| match result {
        Some(Err(error)) => Err(error.into()),
        Some(Ok(Some(run))) => Ok(run),
        Some(Ok(None)) | None => Err(RunError::Stopped),
    });
    finished.collect()
}

/// The quantities of one run; NaN without a flow, so that values stay with their seeds.
fn quantities(matched: Option<Matched>) -> [(&'static str, f64); 6] {
    let value = |pick: fn(&Matched) -> f64| matched.as_ref().map_or(f64::NAN, pick);
    [
        ("flows", value(|matched| matched.flows as f64)),
        ("pairs", value(|matched| matched.pairs as f64)),
        ("top_match", value(|matched| matched.top)),
        ("chance", value(|matched| matched.chance)),
        ("true_positives", value(|matched| matched.true_positives)),
        ("coefficient", value(|matched| matched.coefficient)),
    ]
}

#[cfg(test)]
mod tests;
