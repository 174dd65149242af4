//! The runner `exposure`: what adversaries see of clients over months.
//!
//! A case has a stated share of the weight, or takes it from a scenario with an attack: for every system, the attacker's
//! share of the weight in the surveyed network becomes its share here.
//!
//! Quantities of a case are `<case>.<quantity>`, of a case with a scenario `<case>.<system>.<quantity>`. `streams` is the
//! share of compromised streams; `streams.guard` and `streams.exit` are the shares over one end, and `streams.middle`, with
//! `middles = true`, that over the adversary's middles. `by_day.<day>` is the share of clients with a compromised stream
//! by that day; `by_day.<day>.guard` is the share of clients that used the adversary's guard. `guards.<day>` is the mean
//! number of guards that a client has used. `median_days` is the median time to the first compromise; it is missing if
//! fewer than half of the clients are affected. Cases with a scenario
//! have `capacity_share` and `weight_share`.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_data::formats::CONSENSUSES;

use super::adversary::Adversary;
use super::report::Exposure;
use super::settings::{ExposureSettings, StreamPaths, builtin_consensus};
use super::simulation;
use super::user::UserModel;
use crate::input::InputError;
use crate::monitor::Monitor;
use crate::runs;
use crate::scenario::Scenario;
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ExposureExperiment {
    seeds: u32,
    days: u32,
    /// Number of clients of each seed.
    clients: u32,
    /// Days for which shares of clients are measured.
    milestones: Vec<u32>,
    /// Whether the share of streams over the adversary's middles is measured, too.
    #[serde(default)]
    middles: bool,
    cases: BTreeMap<String, Case>,
    /// Overrides of all scenarios.
    #[serde(default)]
    overrides: Vec<String>,
}

/// An adversary, and the clients' network and rules.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Case {
    /// The adversary's share of all weight; either this or `scenario`.
    share: Option<f64>,
    /// The scenario with balance systems and an attack.
    scenario: Option<ScenarioEntry>,
    /// Consensuses in the data folder; none for the built-in model of 2024.
    consensuses: Vec<String>,
    /// Guards in use; default: the consensus's.
    guards: Option<usize>,
    conflux: bool,
    /// Moves of a circuit to another middle.
    moves: u8,
    /// Paths that the packets of a stream take; none for circuits.
    packet_paths: u8,
}

impl Case {
    fn paths(&self) -> Result<StreamPaths, InputError> {
        match (self.conflux, self.moves, self.packet_paths) {
            (false, 0, 0) => Ok(StreamPaths::Circuit),
            (true, 0, 0) => Ok(StreamPaths::Conflux),
            (false, moves, 0) => Ok(StreamPaths::Moving(moves)),
            (false, 0, paths) if self.guards.is_none() => Ok(StreamPaths::PerPacket(paths)),
            _ => {
                let cause = "a case has two of `conflux`, `moves` and `packet-paths`, or `packet-paths` with `guards`";
                Err(InputError::new("[parameters.cases]", cause, "give one of them"))
            }
        }
    }

    fn settings(
        &self,
        experiment: &Experiment,
        parameters: &ExposureExperiment,
    ) -> Result<ExposureSettings, InputError> {
        let open = |name: &String| Ok(CONSENSUSES.open(&experiment.data.join(name))?);
        let mut consensuses = self.consensuses.iter().map(open).collect::<Result<Vec<_>, InputError>>()?;
        if consensuses.is_empty() {
            consensuses.push(builtin_consensus());
        }
        let mut settings = ExposureSettings::new(consensuses)?;
        settings.use_guards(self.guards);
        settings.user = UserModel::Typical;
        settings.paths = self.paths()?;
        (settings.days, settings.samples) = (parameters.days, parameters.clients);
        Ok(settings)
    }
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for a file or parameter that cannot be used.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: ExposureExperiment = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    for (name, case) in &parameters.cases {
        let settings = case.settings(experiment, &parameters)?;
        measured.notes.push(format!("{name}: {}", conditions(&settings)));
        let expose = |measured: &mut Measured, name: &str, share, seed| -> Result<(), RunError> {
            let adversary = Adversary { share, ..settings.adversary };
            let settings = ExposureSettings { adversary, seed, ..settings.clone() };
            let exposure = simulation::run(&settings, monitor)?.ok_or(RunError::Stopped)?;
            push(measured, name, &exposure, &parameters.milestones);
            if parameters.middles {
                measured.push(format!("{name}.streams.middle"), exposure.streams_over_middles().mean);
            }
            Ok(())
        };
        let seeds = 1..=u64::from(parameters.seeds);
        match (case.share, &case.scenario) {
            (Some(share), None) => {
                seeds.into_iter().try_for_each(|seed| expose(&mut measured, name, share, seed))?;
            }
            (None, Some(scenario)) => {
                let scenario = scenario.load(experiment, &parameters.overrides)?;
                for (index, system) in scenario.systems.iter().enumerate() {
                    let name = format!("{name}.{}", system.name);
                    for seed in seeds.clone() {
                        let [weight, capacity] = attackers_shares(&scenario, index, seed, monitor)?;
                        measured.push(format!("{name}.capacity_share"), capacity);
                        measured.push(format!("{name}.weight_share"), weight);
                        expose(&mut measured, &name, weight, seed)?;
                    }
                }
            }
            _ => {
                let cause = format!("case `{name}` has both or none of `share` and `scenario`");
                return Err(InputError::new("[parameters.cases]", cause, "give one of them").into());
            }
        }
    }
    Ok(measured)
}

/// The attackers' shares of weight and capacity after the survey of a system.
fn attackers_shares(
    scenario: &Scenario,
    system: usize,
    seed: u64,
    monitor: &dyn Monitor,
) -> Result<[f64; 2], RunError> {
    let run = runs::run_once(scenario, system, seed, monitor)?.ok_or(RunError::Stopped)?;
    let share = |of: &str| run.metrics.summary["balance"][format!("attackers_share_of_{of}")].as_f64();
    match (share("weight"), share("capacity")) {
        (Some(weight), Some(capacity)) => Ok([weight, capacity]),
        _ => {
            let name = &scenario.systems[system].name;
            let cause = format!("system `{name}` has no attackers that a survey weighs");
            let cure = "set `attack` and a `balance` other than `given`";
            Err(InputError::new(&scenario.source.file, cause, cure).into())
        }
    }
}

/// The network and the clients of a case, in a sentence for readers of the scoreboard.
fn conditions(settings: &ExposureSettings) -> String {
    let networks = settings.consensuses.iter().map(|one| format!("{} relays", one.relays.len()));
    format!(
        "{} clients a seed for {} days; {} guards in use; networks of {}",
        settings.samples,
        settings.days,
        settings.guards.used,
        networks.collect::<Vec<_>>().join(" and ")
    )
}

/// Adds one seed's quantities.
fn push(measured: &mut Measured, name: &str, exposure: &Exposure, milestones: &[u32]) {
    let [both, guard, exit] = exposure.stream_shares().map(|share| share.mean);
    for (quantity, value) in [("streams", both), ("streams.guard", guard), ("streams.exit", exit)] {
        measured.push(format!("{name}.{quantity}"), value);
    }
    let (compromised, at_guard) = (exposure.first_compromise(), exposure.first_bad_guard());
    for day in milestones {
        let time = f64::from(*day);
        measured.push(format!("{name}.by_day.{day}"), compromised.by(time)[0]);
        measured.push(format!("{name}.by_day.{day}.guard"), at_guard.by(time)[0]);
        measured.push(format!("{name}.guards.{day}"), exposure.guards_by(time).mean);
    }
    if let [Some(median), ..] = compromised.quantile(0.5) {
        measured.push(format!("{name}.median_days"), median);
    }
}
