//! The runner `lab-real`: what `tidegate lab real --predict` predicts, without the run of real tor.
//!
//! Quantities `<change>.<side>.<metric>` for the sides `baseline` and `change`: `connect_s`, `ttlb_50kib_s` and
//! `bulk_kb_per_s`, as `tidegate lab real --json` names them; one value per seed.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use crate::commands::lab::{METRICS, Model, Topology, simulate};

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LabExperiment {
    guards: u16,
    middles: u16,
    exits: u16,
    clients: u16,
    rate: Rate,
    middle_rate: Rate,
    delay: Span,
    queue: u32,
    congestion: String,
    warmup: Span,
    duration: Span,
    seeds: u64,
    changes: BTreeMap<String, Sides>,
}

/// The options of both sides, as lines of a torrc.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sides {
    baseline: String,
    change: String,
}

/// Measures an experiment.
///
/// # Errors
/// If an option is not modelled, or the user stops it.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: LabExperiment = experiment.parameters(scale)?;
    let topology = Topology {
        guards: parameters.guards,
        middles: parameters.middles,
        exits: parameters.exits,
        clients: parameters.clients,
        relay_rate: parameters.rate,
        middle_rate: parameters.middle_rate,
        delay: parameters.delay,
        queue: parameters.queue,
        congestion: parameters.congestion.clone(),
    };
    let mut measured = Measured::default();
    let total = parameters.changes.len() as f64 * parameters.seeds as f64;
    let mut done = 0.0;
    for (change, sides) in &parameters.changes {
        let models = [("baseline", &sides.baseline), ("change", &sides.change)].map(|(side, options)| {
            let place = format!("{}/{change}.{side}", experiment.folder.display());
            Ok::<_, RunError>((side, Model::of_text(&place, options)?))
        });
        let [before, after] = models;
        let models = [before?, after?];
        for seed in 1..=parameters.seeds {
            monitor.progress("simulations", change, done / total);
            done += 1.0;
            let paths = topology.paths(seed);
            for (side, model) in &models {
                let spans = [parameters.warmup, parameters.duration];
                let found =
                    simulate(&topology, &paths, model, spans, seed, monitor)?.ok_or(RunError::Stopped)?;
                for (metric, value) in METRICS.iter().zip(found) {
                    measured.push(format!("{change}.{side}.{metric}"), value);
                }
            }
        }
    }
    Ok(measured)
}
