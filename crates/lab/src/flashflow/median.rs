//! The runner `flashflow-median`: the median of several coordinators and a relay that is fast in some slots.
//!
//! Each coordinator measures the relay in a slot drawn from its own secret (paper, section 5).
//!
//! Quantities: `n-<coordinators>.q-<percent>.deceived` is the share of periods in which the median is the fast
//! rate, and `.bound` is the share by the paper's binomial formula. `bought.highest` is the highest median over
//! the capacity when a minority of coordinators names any weight, and the honest ones are off by as much as a
//! liar can cause.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Deserialize;
use tidegate_control::flashflow::MeasurementParameters;
use tidegate_control::flashflow::bandwidth_file::median;
use tidegate_control::flashflow::bounds::part_time_failure;
use tidegate_control::flashflow::schedule::{Schedule, ScheduledRelay, Secret};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::Rate;

use crate::monitor::Monitor;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MedianExperiment {
    /// Numbers of coordinators.
    coordinators: Vec<usize>,
    /// Shares of slots in which the relay is fast, in percent.
    fast_percent: Vec<u32>,
    /// Number of periods of each case.
    periods: u64,
    /// Number of slots in a period.
    slots: u32,
    /// Number of repetitions of the whole.
    #[serde(default = "one")]
    seeds: u32,
}

fn one() -> u32 {
    1
}

/// The relay's capacity, and the rate that it shows in its fast slots, in kB/s.
const SLOW: u64 = 1_000;
const FAST: u64 = 10_000;
/// Largest error of one honest coordinator's estimate (docs/flashflow.md, "Cells held back: what a lying relay can gain").
const LIE: f64 = 1.4;

/// Measures an experiment.
///
/// # Errors
/// If its parameters cannot be read.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: MedianExperiment = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    for &coordinators in &parameters.coordinators {
        for &percent in &parameters.fast_percent {
            let name = format!("n-{coordinators}.q-{percent}");
            monitor.progress("cases", &name, 0.0);
            for seed in 1..=u64::from(parameters.seeds) {
                let seed = Seed::root(seed).fork(&name);
                let deceived = (0..parameters.periods)
                    .filter(|period| deceived(coordinators, percent, parameters.slots, *period, seed))
                    .count();
                measured.push(format!("{name}.deceived"), deceived as f64 / parameters.periods as f64);
            }
            measured.push_fixed(
                format!("{name}.bound"),
                1.0 - part_time_failure(coordinators as u32, f64::from(percent) / 100.0),
            );
        }
    }
    for seed in 1..=u64::from(parameters.seeds) {
        let mut random = Seed::root(seed).fork("bought").random();
        measured.push("bought.highest", bought(parameters.periods, &mut random));
    }
    let (periods, slots) = (parameters.periods, parameters.slots);
    measured.notes.push(format!("{periods} periods of {slots} slots each, drawn as coordinators draw them."));
    Ok(measured)
}

/// Whether the median of a period is the fast rate.
fn deceived(coordinators: usize, percent: u32, slots: u32, period: u64, seed: Seed) -> bool {
    let mut random = seed.fork_index(period).random();
    // The relay does not know the slots, so any choice of fast slots is as good as another.
    let mut order: Vec<u32> = (0..slots).collect();
    random.shuffle(&mut order);
    let fast: BTreeSet<u32> = order.into_iter().take((slots * percent / 100) as usize).collect();
    let relay = ScheduledRelay {
        id: [1; 20],
        guess: Rate(SLOW * 8000),
        address: IpAddr::from([192, 0, 2, 1]),
        family: None,
    };
    let files: Vec<BTreeMap<_, u64>> = (0..coordinators)
        .map(|_| {
            let mut schedule = Schedule::new(slots, Rate::UNLIMITED, MeasurementParameters::default());
            schedule
                .place_old(std::slice::from_ref(&relay), &Secret::derive(b"shared", &random.bytes(), period));
            let slot = schedule.placements()[0].slot;
            BTreeMap::from([(relay.id, if fast.contains(&slot) { FAST } else { SLOW })])
        })
        .collect();
    median(&files)[&relay.id] > SLOW
}

/// The highest median over the capacity if a minority of coordinators is bought.
fn bought(periods: u64, random: &mut Random) -> f64 {
    let mut highest = 0;
    for _ in 0..periods {
        let coordinators = 1 + random.below(9);
        let bad = random.below(coordinators.div_ceil(2));
        let files: Vec<BTreeMap<_, u64>> = (0..coordinators)
            .map(|n| {
                let weight =
                    if n < bad { random.bits() } else { (SLOW as f64 * random.uniform(0.9, LIE)) as u64 };
                BTreeMap::from([([1; 20], weight)])
            })
            .collect();
        highest = highest.max(median(&files)[&[1; 20]]);
    }
    highest as f64 / SLOW as f64
}
