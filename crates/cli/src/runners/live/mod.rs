//! The runner `live`: a scenario of named relays and users on sockets, each relay in a network namespace of its own, and
//! the same file simulated.
//!
//! Quantities are `<system>.live.<metric>` and `<system>.simulated.<metric>`: `rate.<user>` and `rate_total` in bytes of
//! payload per second, `latency.<user>` and `latency` in seconds from the exit's circuit queue to the application (what is
//! under way on average, over the rate: Little's law), `jain` of the rates, `backlog` in bytes. `<system>.rate_difference`
//! and `.latency_difference` are live against simulated, in percent of the latter: of the user that differs most, and of
//! the mean over all bytes; `.total_difference` is that of the rates' sum.

pub mod fair;
mod overlay;
mod plan;
mod underlay;

use std::collections::BTreeMap;

use overlay::{Overlay, Sample};
use plan::Plan;
use serde::Deserialize;
use serde_json::Value;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs;
use tidegate_lab::scenario::Scenario;
use tidegate_lab::scoreboard::{Curve, Experiment, Figure, Measured, RunError, Scale};
use underlay::{Shaped, Underlay};

use crate::failure::Failure;

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Parameters {
    /// The scenario's file, from the experiment's folder.
    scenario: String,
    /// Simulated time, and real time of each system's run; the first part is not measured.
    duration: Span,
    warmup: Span,
    /// Runs of each system, live and simulated.
    seeds: u32,
    /// Only these systems.
    systems: Option<Vec<String>>,
}

/// What one run of a system gave, by user.
#[derive(Default)]
struct Run {
    rates: BTreeMap<String, f64>,
    latencies: BTreeMap<String, f64>,
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Unavailable`] where there are no namespaces or TUN devices.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: Parameters = experiment.parameters(scale)?;
    let file = experiment.folder.join(&parameters.scenario);
    let source = SourceFile::read(&file)?;
    let plan: Plan = source.parse_toml()?;
    let overrides = [("duration", parameters.duration), ("warmup", parameters.warmup)]
        .map(|(key, span)| format!("{key} = \"{span}\""));
    let mut scenario = Scenario::load(&file, &overrides)?;
    if !plan.every_system.tcp.small_queues {
        let cause = "`small-queues` of [every-system.tcp] is false";
        return Err(InputError::new(&source.file, cause, "the kernel's are small: make it true").into());
    }
    if let Some(user) = plan.user.iter().find(|user| user.path.is_empty()) {
        return Err(InputError::new(
            &source.file,
            format!("user `{}` has no path", user.name),
            "name relays",
        )
        .into());
    }
    let wanted =
        |name: &str| parameters.systems.as_ref().is_none_or(|wanted| wanted.iter().any(|it| it == name));
    scenario.systems.retain(|system| wanted(&system.name));
    // Whether it can be done at all is known before anything is simulated.
    let rates: Vec<Rate> = plan.relay.iter().map(|relay| relay.link).chain([Rate(1_000_000_000)]).collect();
    let underlay =
        || Underlay::new(&rates, Shaped::Host, plan.underlay.delay, &plan.every_system.tcp.congestion);
    underlay().and_then(Underlay::end).map_err(|why| RunError::Unavailable(why.to_string()))?;

    let mut measured = Measured::default();
    let finished = runs::run_all(&scenario, parameters.seeds, monitor)?;
    if !finished.missing.is_empty() {
        return Err(RunError::Stopped);
    }
    let mut simulated: BTreeMap<String, Vec<Run>> = BTreeMap::new();
    for run in &finished.finished {
        let of = |metric: &str| numbers(&run.metrics.summary[metric]);
        let (rates, latencies) =
            (of("throughput_bytes_per_s"), of("latency_from_departure_mean_by_circuit_s"));
        simulated
            .entry(scenario.systems[run.system].name.clone())
            .or_default()
            .push(Run { rates, latencies });
    }
    let total = plan.system.len() as f64 * f64::from(parameters.seeds);
    let mut done = 0.0;
    for table in &plan.system {
        let name = table.get("name").and_then(toml::Value::as_str).unwrap_or_default();
        if !wanted(name) {
            continue;
        }
        let text = toml::to_string(&BTreeMap::from([("system", table)]))
            .map_err(|cause| RunError::Failed(cause.to_string()))?;
        let mut runs = Vec::new();
        for seed in 1..=u64::from(parameters.seeds) {
            monitor.progress("live runs", name, done / total);
            done += 1.0;
            let failed = |cause: Failure| match monitor.stopped() {
                true => RunError::Stopped,
                false => RunError::Failed(format!("{name}, live: {cause}")),
            };
            let underlay = underlay().map_err(|cause| failed(Failure::other(cause)))?;
            let overlay = Overlay::start(&underlay, &plan.relay, &plan.user, &text).map_err(failed)?;
            let samples = overlay.load(parameters.duration, &|| monitor.stopped()).map_err(failed)?;
            drop(overlay);
            let late = underlay.end().map_err(|cause| failed(Failure::other(cause)))?;
            measured.push("late_p99", late.as_secs_f64());
            runs.push(counted(&plan, &samples, [parameters.warmup, parameters.duration]));
            if seed == 1 {
                measured.figures.push(figure(name, &plan, &samples));
            }
        }
        push(&mut measured, name, &runs, simulated.get(name).map_or(&[], Vec::as_slice));
    }
    let late = measured.values.get("late_p99").into_iter().flatten().copied().fold(0.0, f64::max);
    measured
        .notes
        .push(format!("The live paths were longer by up to {:.2} ms (99th percentile).", late * 1e3));
    Ok(measured)
}

/// The numbers of a JSON object.
fn numbers(object: &Value) -> BTreeMap<String, f64> {
    let pairs = object.as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
}

/// Rates between two moments, and what was under way then on average.
fn counted(plan: &Plan, samples: &[Vec<Sample>], [from, until]: [Span; 2]) -> Run {
    let mut run = Run::default();
    for (user, samples) in plan.user.iter().zip(samples) {
        // The last sample says how many bytes a cell held on average, those that held none counted too.
        let last = samples.last().copied().unwrap_or_default();
        let per_cell = last.delivered as f64 / last.departed.max(1) as f64;
        let within: Vec<&Sample> = samples.iter().filter(|it| it.at >= from && it.at <= until).collect();
        let [Some(first), Some(end)] = [within.first(), within.last()] else { continue };
        let rate = (end.delivered - first.delivered) as f64 / (end.at - first.at).as_secs_f64();
        let under_way =
            within.iter().map(|it| it.departed as f64 * per_cell - it.delivered as f64).sum::<f64>();
        run.rates.insert(user.name.clone(), rate);
        run.latencies.insert(user.name.clone(), under_way / within.len() as f64 / rate);
    }
    run
}

impl Run {
    /// Mean latency over all bytes.
    fn latency(&self) -> f64 {
        self.backlog() / self.rates.values().sum::<f64>()
    }

    /// Bytes under way.
    fn backlog(&self) -> f64 {
        self.rates
            .iter()
            .map(|(user, rate)| rate * self.latencies.get(user).copied().unwrap_or(f64::NAN))
            .sum()
    }
}

/// Adds all quantities of a system.
fn push(measured: &mut Measured, system: &str, live: &[Run], simulated: &[Run]) {
    for (kind, runs) in [("live", live), ("simulated", simulated)] {
        for run in runs {
            let mut put =
                |metric: &str, value: f64| measured.push(format!("{system}.{kind}.{metric}"), value);
            let total: f64 = run.rates.values().sum();
            let squares: f64 = run.rates.values().map(|rate| rate * rate).sum();
            put("rate_total", total);
            put("jain", total * total / (run.rates.len() as f64 * squares));
            put("latency", run.latency());
            put("backlog", run.backlog());
            run.rates.iter().for_each(|(user, rate)| put(&format!("rate.{user}"), *rate));
            run.latencies.iter().for_each(|(user, latency)| put(&format!("latency.{user}"), *latency));
        }
    }
    let mean = |runs: &[Run], of: &dyn Fn(&Run) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    for (kind, runs) in [("live", live), ("simulated", simulated)] {
        let rates = runs.first().into_iter().flat_map(|run| run.rates.values());
        let rates: Vec<String> = rates.map(|rate| format!("{:.0}", rate / 1e3)).collect();
        let latency = 1e3 * mean(runs, &Run::latency);
        measured.notes.push(format!("{system}, {kind}: {} kB/s, {latency:.0} ms.", rates.join(", ")));
    }
    let differs = |of: &dyn Fn(&Run) -> f64| {
        let [live, simulated] = [live, simulated].map(|runs| mean(runs, of));
        100.0 * (live - simulated).abs() / simulated
    };
    let users = live.first().into_iter().flat_map(|run| run.rates.keys());
    let of_users = users.map(|user| differs(&|run| run.rates.get(user).copied().unwrap_or(f64::NAN)));
    let worst = of_users.fold(0.0, |worst: f64, next| if next.is_nan() { next } else { worst.max(next) });
    measured.push(format!("{system}.rate_difference"), worst);
    measured.push(format!("{system}.latency_difference"), differs(&Run::latency));
    measured.push(format!("{system}.total_difference"), differs(&|run| run.rates.values().sum()));
}

/// The users' rates over time, live.
fn figure(system: &str, plan: &Plan, samples: &[Vec<Sample>]) -> Figure {
    let curves = plan.user.iter().zip(samples).map(|(user, samples)| {
        // Of half a second each.
        let pairs = samples.iter().step_by(25).zip(samples.iter().skip(25).step_by(25));
        let points = pairs.map(|(a, b)| {
            let rate = (b.delivered - a.delivered) as f64 / (b.at - a.at).as_secs_f64();
            (b.at.as_secs_f64(), rate / 1e3)
        });
        Curve { name: user.name.clone(), points: points.collect() }
    });
    Figure {
        title: format!("{system}, live: rates"),
        x: "time, s".into(),
        y: "rate, kB/s".into(),
        curves: curves.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_what_is_under_way_over_the_rate() {
        let plan: Plan = toml::from_str(
            "title = \"\"\nevery-system = { tcp = { congestion = \"reno\", small-queues = true } }\nsystem = []\nrelay = []\nunderlay = { delay = \"1 ms\" }\n\
             user = [{ name = \"a\", path = [\"b\"], start = \"0 s\", traffic = \"bulk\" }]",
        )
        .unwrap();
        // A hundred full cells a second, each half a second under way; at the end all have arrived.
        let at = |tick: u64| {
            let departed = tick.min(1000);
            Sample {
                at: Span::from_millis(10 * tick),
                departed,
                delivered: 498 * departed.min(tick.saturating_sub(50)),
            }
        };
        let samples: Vec<Sample> = (0..=1050).map(at).collect();
        let run = counted(&plan, &[samples], [Span::from_secs(2), Span::from_secs(9)]);
        assert!((run.rates["a"] - 49_800.0).abs() < 1.0, "{}", run.rates["a"]);
        assert!((run.latencies["a"] - 0.5).abs() < 1e-6, "{}", run.latencies["a"]);
        assert!((run.backlog() - 24_900.0).abs() < 1.0, "{}", run.backlog());
    }
}
