//! The runner `flashflow-median`: a relay that is fast in a share of a period's slots alone, several coordinators that measure
//! it in slots drawn from secrets of their own, and the median that authorities make of their files (paper, section 5).
//!
//! Quantities: `n-<coordinators>.q-<percent>.deceived`, the share of periods in which the median is what the relay shows in its
//! fast slots, and `.bound`, what the paper's binomial formula says of that share. `bought.highest`: the highest median, over the
//! capacity, when a minority of coordinators names any weight and the honest ones are off by as much as a liar can have them.

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
    /// How many coordinators measure.
    coordinators: Vec<usize>,
    /// The share of slots in which the relay is fast, in percent.
    fast_percent: Vec<u32>,
    /// Periods of each case.
    periods: u64,
    /// Slots of a period.
    slots: u32,
}

/// What the relay has, and what it shows when it is fast, in kB/s.
const SLOW: u64 = 1_000;
const FAST: u64 = 10_000;
/// A liar's estimate over its capacity: what one honest coordinator can be deceived by (docs/flashflow.md, "Held back").
const LIE: f64 = 1.4;

/// Measures an experiment.
///
/// # Errors
/// If its parameters cannot be read.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: MedianExperiment = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    for &coordinators in &parameters.coordinators {
        for &percent in &parameters.fast_percent {
            let name = format!("n-{coordinators}.q-{percent}");
            monitor.progress("cases", &name, 0.0);
            let seed = Seed::root(1).fork(&name);
            let deceived = (0..parameters.periods)
                .filter(|period| deceived(coordinators, percent, parameters.slots, *period, seed))
                .count();
            measured.push(format!("{name}.deceived"), deceived as f64 / parameters.periods as f64);
            measured.push(
                format!("{name}.bound"),
                1.0 - part_time_failure(coordinators as u32, f64::from(percent) / 100.0),
            );
        }
    }
    measured.push("bought.highest", bought(parameters.periods, &mut Seed::root(2).random()));
    let (periods, slots) = (parameters.periods, parameters.slots);
    measured.notes.push(format!("{periods} periods of {slots} slots each, drawn as coordinators draw them."));
    Ok(measured)
}

/// Whether the median of a period is the relay's fast face.
fn deceived(coordinators: usize, percent: u32, slots: u32, period: u64, seed: Seed) -> bool {
    let mut random = seed.fork_index(period).random();
    // It cannot know the slots, so that any so many are as good as others.
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

/// The highest median over the capacity, with a minority of bought coordinators.
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
