//! The runner `flashflow`: teams measure relays in simulated time, to compare estimates with true capacities.
//!
//! Every combination of relay, sweep value, team and seed runs once. Each quantity has one value per seed, over all
//! teams of that seed. Quantities are `<relay>.<measure>` or
//! `<relay>.<over>-<value>.<measure>`, and `all.<measure>` over everything.
//!
//! Measures are `runs`, `failed`, and of the ratio of estimate and capacity `min`, `p025`, `median`, `p975` and
//! `max`. `within_10_5`, `within_11` and `within_20_5` are shares of runs (-10/+5 %, 11 %, -20/+5 %); `mbit` is
//! the median estimate, and `team.<name>.mbit` that of a team. With `repeats`, a seed has several runs of each
//! combination.
//!
//! With background: `background_before`, `_during` and `_after` are medians of the relay's own count.
//! `sum_error` is the largest relative difference between the coordinator's sum and that count, and `burst` is
//! the first full second over the median.
//!
//! With `medians`, `first-<n>.<measure>` has the ratios of a measurement that ends after n seconds. With
//! `estimators = true`, `<estimator>.<measure>` has those of other estimators.

mod file;
pub(crate) mod median;
mod network;

use std::collections::BTreeMap;

use tidegate_control::balance::weight_error;
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::flashflow::{Percent, aggregate};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_data::formats::{HOURLY_RELAYS, SPEED_TESTS};
use tidegate_data::speed_test::Advertised;
use tidegate_proto::flashflow::coordinator::{Outcome, SecondRecord};
use tidegate_sim::flashflow::{RelayReport, Report, run as simulate};

use crate::jobs::run_all;
use crate::monitor::Monitor;
use crate::scoreboard::{Curve, Experiment, Figure, Measured, RunError, Scale};
use file::{Hosts, Job, MeasurementExperiment};
pub use network::{Deployment, Drawn, Member, Newcomers, Repeated, Several};

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for parameters that cannot be run.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: MeasurementExperiment = experiment.parameters(scale)?;
    let place = experiment.folder.join("experiment.toml").display().to_string();
    let hosts = Hosts::load(&experiment.folder.join(&parameters.hosts))?;
    let jobs = parameters.jobs(&hosts, &place)?;
    // Five seconds cover connecting and opening circuits; the progress bar does not need the exact time.
    let reports = run_all(
        &jobs,
        monitor,
        |job| &job.name,
        |job, goes_on| {
            let end = (job.plan.around * 2).as_secs_f64() + f64::from(job.plan.seconds) + 5.0;
            let goes_on = |now: tidegate_control::units::Time| goes_on(now.as_secs_f64() / end);
            simulate(&job.plan, seed_of(job), &goes_on).map_err(|_| RunError::Stopped)
        },
    )?;
    let mut measured = Measured::default();
    let mut groups = Groups::default();
    let mut by_seed: BTreeMap<u32, Groups> = BTreeMap::new();
    let mut series = Vec::new();
    for (job, report) in jobs.iter().zip(&reports) {
        for relay in &report.relays {
            groups.add(job, relay, &parameters);
            by_seed.entry(job.seed).or_default().add(job, relay, &parameters);
            if job.plan.relays[0].background.circuits > 0 {
                with_background(&mut measured, job, relay);
            }
        }
        if job.plan.around.0 > 0 && series.is_empty() {
            series = time_series(report);
        }
    }
    by_seed.values().for_each(|groups| groups.finish(&mut measured));
    if let Some(sweep) = &parameters.sweep {
        measured.figures.push(Figure {
            title: "Estimates".into(),
            x: sweep.over.clone(),
            y: "median estimate (Mbit/s)".into(),
            curves: groups.sweep_curves(),
        });
    }
    measured.figures.push(Figure {
        title: "Estimates over capacities".into(),
        x: "estimate / capacity".into(),
        y: "share of measurements".into(),
        curves: groups.distribution_curves(),
    });
    if !series.is_empty() {
        let (x, y) = ("time (s)".into(), "forwarded (Mbit/s)".into());
        measured.figures.push(Figure { title: "Before, during and after".into(), x, y, curves: series });
    }
    measured.notes.push(format!("{} measurements in simulated time.", groups.total()));
    Ok(measured)
}

/// The seed of a run.
fn seed_of(job: &Job) -> Seed {
    let seed = Seed::root(u64::from(job.seed) + 1);
    if job.repeat == 0 { seed } else { seed.fork("repeat").fork_index(job.repeat.into()) }
}

/// `[parameters]` of [`bounds`].
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BoundsExperiment {
    /// Number of schedules drawn at random.
    #[serde(default = "one")]
    seeds: u32,
}

fn one() -> u32 {
    1
}

/// Table 2: the number of slots for the network of the August 2019 speed test.
///
/// # Errors
/// [`RunError::Unavailable`] without that data.
pub(crate) fn bounds(experiment: &Experiment, scale: Scale, _: &dyn Monitor) -> Result<Measured, RunError> {
    /// The excess factor in the paper's text.
    const FACTOR_OF_TEXT: f64 = 2.84;
    let BoundsExperiment { seeds } = experiment.parameters(scale)?;
    let parameters = tidegate_control::flashflow::MeasurementParameters::default();
    let mut measured = Measured::default();
    let unavailable = |error: tidegate_data::document::DataError| RunError::Unavailable(error.to_string());
    let file = experiment.data.join("relays/torbwest-pam2021/speedtest.diffs.json.xz");
    let relays = SPEED_TESTS.open(&file).map_err(unavailable)?;
    let network: Vec<Member> = relays
        .iter()
        .map(|(id, seen)| {
            let capacity = Rate(seen.before.max(seen.after).saturating_mul(8));
            Member { id: id.0, address: None, guess: capacity, capacity }
        })
        .collect();
    let deployment = Deployment {
        team: Rate(3_000_000_000),
        parameters,
        slot: Span::from_secs(30),
        period: Span::from_secs(86_400),
        seed: Seed::root(1),
    };
    let slots = deployment.fastest(&network) as f64;
    measured.push_fixed("flashflow.relays", network.len() as f64);
    let sum: u64 = network.iter().map(|relay| relay.capacity.0).sum();
    measured.push_fixed("flashflow.gbit", sum as f64 / 1e9);
    measured.push_fixed("flashflow.slots", slots);
    measured.push_fixed("flashflow.hours", slots * deployment.slot.as_secs_f64() / 3600.0);
    // Scale the multiplier so that the excess factor is that of the text.
    let text = Deployment {
        parameters: tidegate_control::flashflow::MeasurementParameters {
            multiplier: parameters.multiplier * FACTOR_OF_TEXT / parameters.excess_factor(),
            ..parameters
        },
        ..deployment
    };
    measured.push_fixed("flashflow.slots_of_text", text.fastest(&network) as f64);
    let hours = consensuses(experiment)?;
    for seed in 1..=u64::from(seeds) {
        let deployment = Deployment { seed: Seed::root(seed), ..deployment };
        measured.push("flashflow.unplaced", deployment.drawn(&network).unplaced as f64);
        newcomers(&deployment, &network, &hours, &mut measured);
        let alone = deployment.several(&network, 3);
        measured.push("three.alone.meetings", alone.meetings as f64);
        measured.push("three.alone.unplaced", alone.unplaced.0 as f64);
        measured.push("three.shared.unplaced", alone.unplaced.1 as f64);
    }
    Ok(measured)
}

/// The relays of each hour of a month.
type Hours = BTreeMap<u64, Vec<RelayId>>;

fn consensuses(experiment: &Experiment) -> Result<Hours, RunError> {
    let unavailable = |error: tidegate_data::document::DataError| RunError::Unavailable(error.to_string());
    let file = experiment.data.join("relays/relay-churn-2019-01.json.xz");
    let hours = HOURLY_RELAYS.open(&file).map_err(unavailable)?;
    Ok(hours.into_iter().map(|(hour, ids)| (hour, ids.into_iter().map(|id| id.0).collect())).collect())
}

/// Section 7: new relays, from a replay of the consensuses of a month.
fn newcomers(deployment: &Deployment, network: &[Member], hours: &Hours, measured: &mut Measured) {
    /// The paper's guess for a relay without results.
    const GUESS: Rate = Rate(51_000_000);
    /// A larger guess: it reserves more of a slot, so fewer new relays fit into it.
    const LARGER_GUESS: Rate = Rate(200_000_000);
    let new = deployment.newcomers(network, hours, GUESS);
    measured.push("new.median", new.new.0 as f64);
    measured.push("new.most", new.new.1 as f64);
    measured.push("new.median_wait_s", new.wait.0.as_secs_f64());
    measured.push("new.longest_wait_min", new.wait.1.as_secs_f64() / 60.0);
    measured.push("new.unplaced", new.unplaced as f64);
    let wait = deployment.newcomers(network, hours, LARGER_GUESS).wait.1;
    measured.push("new.longest_wait_min_larger_guess", wait.as_secs_f64() / 60.0);
}

/// Relays that the paper's speed test measured (section 3.4); its data set does not say which.
const SPEED_TESTED: usize = 4867;

/// Figure 5: advertised bandwidths and weight errors before and after a day of loading every relay.
///
/// # Errors
/// [`RunError::Unavailable`] without that data.
pub(crate) fn speed_test(experiment: &Experiment, _: Scale, _: &dyn Monitor) -> Result<Measured, RunError> {
    let unavailable = |error: tidegate_data::document::DataError| RunError::Unavailable(error.to_string());
    let file = experiment.data.join("relays/torbwest-pam2021/speedtest.diffs.json.xz");
    let relays = SPEED_TESTS.open(&file).map_err(unavailable)?;
    let column = |of: fn(&Advertised) -> f64| relays.values().map(of).collect::<Vec<f64>>();
    let (before, after) = (column(|relay| relay.before as f64), column(|relay| relay.after as f64));
    let [old, new] = [column(|relay| relay.weights[0]), column(|relay| relay.weights[1])];
    let mut measured = Measured::default();
    let gbit = |bytes: &[f64]| bytes.iter().sum::<f64>() * 8e-9;
    measured.push("before.gbit", gbit(&before));
    measured.push("after.gbit", gbit(&after));
    measured.push("before.weight_error", weight_error(&old, &before));
    measured.push("after.weight_error_of_old_weights", weight_error(&old, &after));
    measured.push("after.weight_error", weight_error(&new, &after));
    let growth = |relay: &&Advertised| relay.after as f64 - relay.before as f64;
    let changed = sorted(relays.values().map(|relay| growth(&relay).abs() * 8e-6));
    measured.push("changed.p90_mbit", quantile(&changed, 0.9));
    // Our assumption: the relays that were not measured changed least.
    if let Some(least) = changed.iter().rev().nth(SPEED_TESTED / 10 - 1) {
        measured.push("changed.tenth_of_measured_mbit", *least);
    }
    Ok(measured)
}

/// One estimate.
struct Point {
    ratio: f64,
    mbit: f64,
}

#[derive(Default)]
struct Group {
    points: Vec<Point>,
    failed: usize,
}

/// Estimates, by the prefix of their quantities.
#[derive(Default)]
struct Groups {
    named: BTreeMap<String, Group>,
    /// Pairs of sweep value and estimate, by relay and team.
    swept: BTreeMap<String, Vec<(f64, f64)>>,
    distributions: BTreeMap<String, Vec<f64>>,
}

impl Groups {
    fn add(&mut self, job: &Job, relay: &RelayReport, parameters: &MeasurementExperiment) {
        // A result counts for its relay and sweep value, for its team, and for the totals.
        let mut names = vec![job.name.clone(), "all".into(), format!("{}.team.{}", job.name, job.team)];
        if let Some((_, at)) = job.name.split_once('.') {
            names.push(format!("all.{at}"));
        }
        let point = |rate: u64| Point { ratio: rate as f64 / job.truth, mbit: rate as f64 / 1e6 };
        for name in &names {
            let group = self.named.entry(name.clone()).or_default();
            match &relay.result {
                Ok(outcome) => group.points.push(point(outcome.estimate.0)),
                Err(_) => group.failed += 1,
            }
        }
        let Ok(outcome) = &relay.result else { return };
        let seconds = counted(outcome, job.plan.background_percent);
        let mut others: Vec<(String, Option<Rate>)> = Vec::new();
        for first in &parameters.medians {
            let seconds = &seconds[..seconds.len().min(usize::from(*first))];
            others.push((format!("first-{first}"), aggregate::estimate(seconds)));
        }
        if parameters.estimators {
            let rated = ESTIMATORS.map(|(name, estimate)| (name.to_owned(), estimate(&seconds)));
            others.extend(rated);
        }
        for (other, rate) in others {
            let Some(rate) = rate else { continue };
            for name in &names {
                self.named.entry(format!("{name}.{other}")).or_default().points.push(point(rate.0));
            }
        }
        let point = point(outcome.estimate.0);
        if let Some(at) = job.at {
            self.swept.entry(format!("{} by {}", job.relay, job.team)).or_default().push((at, point.mbit));
        }
        self.distributions.entry(job.relay.clone()).or_default().push(point.ratio);
    }

    fn total(&self) -> usize {
        self.named.get("all").map_or(0, |group| group.points.len() + group.failed)
    }

    fn finish(&self, measured: &mut Measured) {
        for (name, group) in &self.named {
            let ratios: Vec<f64> = group.points.iter().map(|p| p.ratio).collect();
            push_ratios(measured, name, &ratios, group.failed);
            let mbit = sorted(group.points.iter().map(|p| p.mbit));
            measured.push(format!("{name}.mbit"), quantile(&mbit, 0.5));
        }
    }

    fn sweep_curves(&self) -> Vec<Curve> {
        let curve = |(name, points): (&String, &Vec<(f64, f64)>)| {
            let mut at: Vec<f64> = points.iter().map(|p| p.0).collect();
            at.sort_by(f64::total_cmp);
            at.dedup();
            let median = |x: f64| quantile(&sorted(points.iter().filter(|p| p.0 == x).map(|p| p.1)), 0.5);
            Curve { name: name.clone(), points: at.iter().map(|x| (*x, median(*x))).collect() }
        };
        self.swept.iter().map(curve).collect()
    }

    fn distribution_curves(&self) -> Vec<Curve> {
        let curve = |(name, ratios): (&String, &Vec<f64>)| {
            let ratios = sorted(ratios.iter().copied());
            let count = ratios.len() as f64;
            let points = ratios.iter().enumerate().map(|(i, x)| (*x, (i + 1) as f64 / count));
            Curve { name: name.clone(), points: points.collect() }
        };
        self.distributions.iter().map(curve).collect()
    }
}

/// Adds the measures of estimates over capacities, see the [module](self).
pub fn push_ratios(measured: &mut Measured, name: &str, ratios: &[f64], failed: usize) {
    let mut push = |measure: &str, value: f64| measured.push(format!("{name}.{measure}"), value);
    let runs = (ratios.len() + failed) as f64;
    push("runs", runs);
    push("failed", failed as f64);
    let ratios = sorted(ratios.iter().copied());
    for (measure, share) in [("min", 0.0), ("p025", 0.025), ("median", 0.5), ("p975", 0.975), ("max", 1.0)] {
        push(measure, quantile(&ratios, share));
    }
    for (measure, low, high) in
        [("within_10_5", 0.90, 1.05), ("within_11", 0.89, 1.11), ("within_20_5", 0.80, 1.05)]
    {
        let inside = ratios.iter().filter(|ratio| (low..=high).contains(*ratio)).count();
        push(measure, inside as f64 / runs);
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Quantile by linear interpolation of sorted values; NaN without values.
fn quantile(values: &[f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let at = share * (values.len() - 1) as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

fn counted(outcome: &Outcome, percent: u8) -> Vec<aggregate::Second> {
    let ratio = Percent::new(percent).expect("the parameters were checked");
    outcome.seconds.iter().map(|second| second.second(ratio)).collect()
}

type Estimator = fn(&[aggregate::Second]) -> Option<Rate>;

/// Other estimators than [`aggregate::estimate`].
const ESTIMATORS: [(&str, Estimator); 6] = [
    ("paper", aggregate::median),
    ("mean", mean),
    ("trimmed", trimmed),
    ("pairs", median_of_pairs),
    ("lead", after_lead),
    ("dynamic", dynamic),
];

/// The median without the first five seconds (appendix E.4).
fn after_lead(seconds: &[aggregate::Second]) -> Option<Rate> {
    aggregate::median(&seconds[seconds.len().min(5)..])
}

/// The median of the first window of five seconds that changes by less than a twentieth.
///
/// Without such a window, that of the last one. Appendix E.4 does not say how long its windows are.
fn dynamic(seconds: &[aggregate::Second]) -> Option<Rate> {
    let mut medians = seconds.chunks(5).filter_map(aggregate::median);
    let mut last = medians.next()?;
    for next in medians {
        let settled = next.0.abs_diff(last.0) * 20 < last.0;
        last = next;
        if settled {
            break;
        }
    }
    Some(last)
}

fn mean(seconds: &[aggregate::Second]) -> Option<Rate> {
    let bytes: u64 = seconds.iter().map(aggregate::Second::total).sum();
    bytes.checked_div(seconds.len() as u64).map(Rate::from_bytes_per_s)
}

/// The mean without the highest and lowest tenth of the seconds.
fn trimmed(seconds: &[aggregate::Second]) -> Option<Rate> {
    let mut ordered = seconds.to_vec();
    ordered.sort_by_key(aggregate::Second::total);
    let cut = ordered.len() / 10;
    mean(&ordered[cut..ordered.len() - cut])
}

/// The median over pairs of neighbouring seconds: a relay must hold back for longer to gain as much.
fn median_of_pairs(seconds: &[aggregate::Second]) -> Option<Rate> {
    let total = |two: &[aggregate::Second]| two.iter().map(aggregate::Second::total).sum::<u64>();
    let pairs: Vec<aggregate::Second> = seconds
        .windows(2)
        .map(|two| aggregate::Second { measurement: total(two) / 2, ..aggregate::Second::default() })
        .collect();
    aggregate::median(&pairs)
}

/// Figure 7 in numbers. The seconds of the run and of the measurement differ by less than one.
fn with_background(measured: &mut Measured, job: &Job, relay: &RelayReport) {
    let (Ok(outcome), (Some(from), Some(until))) = (&relay.result, relay.measured) else { return };
    let Some(ratio) = Percent::new(job.plan.background_percent) else { return };
    let (from, until) = (from.as_secs_f64(), until.as_secs_f64());
    let mbit = |bytes: u64| bytes as f64 * 8.0 / 1e6;
    let select = |low: f64, high: f64, what: &dyn Fn(&(u64, u64)) -> u64| {
        let seconds = relay.forwarded.iter().enumerate();
        let inside = seconds.filter(|(i, _)| *i as f64 >= low && (*i + 1) as f64 <= high);
        let values = sorted(inside.map(|(_, second)| mbit(what(second))));
        quantile(&values, 0.5)
    };
    let mut push = |measure: &str, value: f64| measured.push(format!("{}.{measure}", job.name), value);
    // The first second fills the circuits. Cells that waited in their windows leave in the first two seconds
    // after.
    push("background_before", select(1.0, from, &|second| second.1));
    push("background_during", select(from + 1.0, until, &|second| second.1));
    push("background_after", select(until + 2.0, f64::MAX, &|second| second.1));
    let own = select(from + 1.0, until, &|second| second.0 + second.1);
    let sum = |second: &SecondRecord| mbit(second.second(ratio).total());
    let reported = outcome.seconds.iter().skip(1).map(sum);
    let reported = quantile(&sorted(reported), 0.5);
    push("sum_error", (reported / own - 1.0).abs());
    push("burst", mbit(relay.forwarded.iter().map(|second| second.0 + second.1).max().unwrap_or(0)) / own);
}

fn time_series(report: &Report) -> Vec<Curve> {
    let Some(relay) = report.relays.first() else { return Vec::new() };
    let curve = |name: &str, what: &dyn Fn(&(u64, u64)) -> u64| Curve {
        name: name.into(),
        points: relay
            .forwarded
            .iter()
            .enumerate()
            .map(|(i, second)| ((i + 1) as f64, what(second) as f64 * 8.0 / 1e6))
            .collect(),
    };
    vec![
        curve("measurement", &|second| second.0),
        curve("background", &|second| second.1),
        curve("sum", &|second| second.0 + second.1),
    ]
}
