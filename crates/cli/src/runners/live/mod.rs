//! The runner `live`: runs a scenario of named relays on sockets, each relay in its own network namespace, and simulates the
//! same file.
//!
//! Quantities `<system>.live.<metric>` and `<system>.simulated.<metric>`:
//! - `rate.<user>`, `rate_total`: payload bytes per second;
//! - `latency.<user>`, `latency`: seconds from the exit's circuit queue to the application, by Little's law: mean bytes in
//!   flight divided by the rate;
//! - `jain`: Jain's index of the rates; `backlog`: bytes in flight.
//!
//! Differences of live and simulated, in percent of simulated: `<system>.rate_difference` (the user that differs most),
//! `.latency_difference` (mean over all bytes) and `.total_difference` (sum of rates).

pub mod fair;
mod overlay;
mod plan;

use std::collections::BTreeMap;

use overlay::{Overlay, Sample};
use plan::LiveScenario;
use serde::Deserialize;
use serde_json::Value;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::runs;
use tidegate_lab::scenario::Scenario;
use tidegate_lab::scoreboard::{Curve, Experiment, Figure, Measured, RunError, Scale};

use crate::failure::Failure;
use crate::underlay::{QUEUE, Shaped, Underlay};

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LiveExperiment {
    /// The scenario file, relative to the experiment's folder.
    scenario: String,
    /// Length of each run, simulated and live; the warm-up is not measured.
    duration: Span,
    warmup: Span,
    /// Number of runs per system, live and simulated.
    seeds: u32,
    /// Run only these systems; all by default.
    systems: Option<Vec<String>>,
}

/// Rates and latencies of one run, by user.
#[derive(Default)]
struct Run {
    rates: BTreeMap<String, f64>,
    latencies: BTreeMap<String, f64>,
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Unavailable`] if namespaces or TUN devices are missing.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: LiveExperiment = experiment.parameters(scale)?;
    let file = experiment.folder.join(&parameters.scenario);
    let source = SourceFile::read(&file)?;
    let plan: LiveScenario = source.parse_toml("docs/scenario.md shows a complete scenario")?;
    let overrides = [("duration", parameters.duration), ("warmup", parameters.warmup)]
        .map(|(key, span)| format!("{key} = \"{span}\""));
    let mut scenario = Scenario::load(&file, &overrides)?;
    check(&plan, &source)?;
    let wanted =
        |name: &str| parameters.systems.as_ref().is_none_or(|wanted| wanted.iter().any(|it| it == name));
    scenario.systems.retain(|system| wanted(&system.name));
    // Check that namespaces are available before the long simulations.
    let rates: Vec<Rate> = plan.relay.iter().map(|relay| relay.link).chain([Rate(1_000_000_000)]).collect();
    let underlay =
        || Underlay::new(&rates, Shaped::Host, QUEUE, plan.underlay.delay, &plan.every_system.tcp.congestion);
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
            runs.push(summarise(&plan, &samples, [parameters.warmup, parameters.duration]));
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

/// Refuses scenarios that real sockets cannot run.
fn check(plan: &LiveScenario, source: &SourceFile) -> Result<(), InputError> {
    if !plan.every_system.tcp.small_queues {
        let cause = "`small-queues` of [every-system.tcp] is false";
        return Err(InputError::new(
            &source.file,
            cause,
            "set it to true, because the kernel always has small queues",
        ));
    }
    if plan.every_system.tcp.nagle {
        let cause = "`nagle` of [every-system.tcp] is true";
        return Err(InputError::new(
            &source.file,
            cause,
            "set it to false, because the sockets set TCP_NODELAY",
        ));
    }
    if let Some(user) = plan.user.iter().find(|user| user.path.is_empty()) {
        return Err(InputError::new(
            &source.file,
            format!("user `{}` does not have a path", user.name),
            "list its relays in `path`",
        ));
    }
    Ok(())
}

/// Returns the numeric fields of a JSON object.
fn numbers(object: &Value) -> BTreeMap<String, f64> {
    let pairs = object.as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
}

/// Computes rates and latencies between two moments.
fn summarise(plan: &LiveScenario, samples: &[Vec<Sample>], [from, until]: [Span; 2]) -> Run {
    let mut run = Run::default();
    for (user, samples) in plan.user.iter().zip(samples) {
        // The last sample gives the mean payload per cell, including cells without payload.
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

    /// Bytes in flight.
    fn backlog(&self) -> f64 {
        self.rates
            .iter()
            .map(|(user, rate)| rate * self.latencies.get(user).copied().unwrap_or(f64::NAN))
            .sum()
    }
}

/// Pushes all quantities of a system.
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

/// Draws the users' live rates over time.
fn figure(system: &str, plan: &LiveScenario, samples: &[Vec<Sample>]) -> Figure {
    let curves = plan.user.iter().zip(samples).map(|(user, samples)| {
        // 25 samples of 20 ms: half a second.
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
    fn latency_is_bytes_in_flight_over_the_rate() {
        let plan: LiveScenario = toml::from_str(
            "title = \"\"\nevery-system = { tcp = { congestion = \"reno\", small-queues = true, nagle = false } }\nsystem = []\nrelay = []\nunderlay = { delay = \"1 ms\" }\n\
             user = [{ name = \"a\", path = [\"b\"], start = \"0 s\", traffic = \"bulk\" }]",
        )
        .unwrap();
        // A hundred full cells per second, each in flight for 0.5 s; at the end all have arrived.
        let at = |tick: u64| {
            let departed = tick.min(1000);
            Sample {
                at: Span::from_millis(10 * tick),
                departed,
                delivered: 498 * departed.min(tick.saturating_sub(50)),
            }
        };
        let samples: Vec<Sample> = (0..=1050).map(at).collect();
        let run = summarise(&plan, &[samples], [Span::from_secs(2), Span::from_secs(9)]);
        assert!((run.rates["a"] - 49_800.0).abs() < 1.0, "{}", run.rates["a"]);
        assert!((run.latencies["a"] - 0.5).abs() < 1e-6, "{}", run.latencies["a"]);
        assert!((run.backlog() - 24_900.0).abs() < 1.0, "{}", run.backlog());
    }
}
