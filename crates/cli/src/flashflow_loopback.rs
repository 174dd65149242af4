//! The runner `flashflow-loopback`: the demo over and over, each measurement with processes and sockets of its
//! own. How well it measures depends on what else the machine does.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::flashflow::push_ratios;
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Curve, Experiment, Figure, Measured, RunError, Scale};

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Parameters {
    /// Of a measurement.
    duration: String,
    /// Measurements of each relay.
    repetitions: u32,
    /// Sockets over all measurers.
    #[serde(default = "default_sockets")]
    sockets: Vec<u16>,
    /// Clients' traffic besides.
    #[serde(default = "none")]
    background: String,
    /// One way between the measurers and the relay.
    delay: Option<String>,
    /// Relays' limits by the name that quantities begin with.
    relay: BTreeMap<String, String>,
}

fn default_sockets() -> Vec<u16> {
    vec![160]
}

fn none() -> String {
    "0 Mbit/s".into()
}

#[derive(Default)]
struct Series {
    ratios: Vec<f64>,
    mbit: Vec<f64>,
    gbit_per_cpu_s: Vec<f64>,
    failed: usize,
}

/// Measures an experiment. Quantities are those of the runner `flashflow`, and `gbit_per_cpu_s`: what the relay
/// forwarded per second of its processor time, the median measurement.
///
/// # Errors
/// [`RunError::Input`] for parameters that mean nothing.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: Parameters = experiment.parameters(scale)?;
    check(&parameters, experiment)?;
    let mut series: BTreeMap<String, Series> = BTreeMap::new();
    let total = parameters.relay.len() * parameters.sockets.len() * parameters.repetitions as usize;
    let mut done = 0;
    for _ in 0..parameters.repetitions {
        for (name, rate) in &parameters.relay {
            for sockets in &parameters.sockets {
                monitor.progress("measurements", name, done as f64 / total as f64);
                if monitor.stopped() {
                    return Err(RunError::Stopped);
                }
                done += 1;
                let verdict = demo(&parameters, rate, *sockets)?;
                let name = match parameters.sockets.len() {
                    1 => name.clone(),
                    _ => format!("{name}.sockets-{sockets}"),
                };
                for name in [name, "all".to_owned()] {
                    series.entry(name).or_default().add(verdict.as_ref());
                }
            }
        }
    }
    let mut measured = Measured::default();
    let mut curves = Vec::new();
    for (name, mut series) in series {
        push_ratios(&mut measured, &name, &series.ratios, series.failed);
        let mut median = |measure: &str, values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            if let Some(value) = values.get(values.len() / 2) {
                measured.push(format!("{name}.{measure}"), *value);
            }
        };
        median("mbit", &mut series.mbit);
        median("gbit_per_cpu_s", &mut series.gbit_per_cpu_s);
        series.ratios.sort_by(f64::total_cmp);
        let count = series.ratios.len() as f64;
        let points = series.ratios.iter().enumerate().map(|(i, ratio)| (*ratio, (i + 1) as f64 / count));
        curves.push(Curve { name, points: points.collect() });
    }
    let (x, y) = ("estimate / capacity".into(), "share of measurements".into());
    measured.figures.push(Figure { title: "Estimates over capacities".into(), x, y, curves });
    let duration = &parameters.duration;
    measured.notes.push(format!("Live: {total} measurements of {duration} over sockets on loopback."));
    Ok(measured)
}

impl Series {
    fn add(&mut self, verdict: Option<&Value>) {
        let Some(verdict) = verdict else {
            self.failed += 1;
            return;
        };
        let number = |key: &str| verdict[key].as_f64().unwrap_or(f64::NAN);
        self.ratios.push(number("estimate_bits_per_s") / number("truth_bits_per_s"));
        self.mbit.push(number("estimate_bits_per_s") / 1e6);
        self.gbit_per_cpu_s.push(number("relay_bits_per_cpu_s") / 1e9);
    }
}

fn check(parameters: &Parameters, experiment: &Experiment) -> Result<(), InputError> {
    let fail = |cause: String| {
        let file = experiment.folder.join("experiment.toml").display().to_string();
        Err(InputError::new(file, cause, "see docs/flashflow.md"))
    };
    for rate in parameters.relay.values().chain([&parameters.background]) {
        if let Err(error) = rate.parse::<Rate>() {
            return fail(error.to_string());
        }
    }
    for span in parameters.delay.iter().chain([&parameters.duration]) {
        if let Err(error) = span.parse::<Span>() {
            return fail(error.to_string());
        }
    }
    if parameters.repetitions == 0 || parameters.relay.is_empty() || parameters.sockets.is_empty() {
        return fail("measures nothing: repetitions, relay or sockets is empty".into());
    }
    Ok(())
}

/// One measurement; `None` if it failed.
fn demo(parameters: &Parameters, rate: &str, sockets: u16) -> Result<Option<Value>, RunError> {
    let fail = |error: std::io::Error| RunError::Failed(error.to_string());
    let mut command = Command::new(std::env::current_exe().map_err(fail)?);
    command
        .args(["flashflow", "demo", "--json", "--rate", rate, "--duration", &parameters.duration])
        .args(["--sockets", &sockets.to_string(), "--background", &parameters.background])
        .stderr(Stdio::null());
    if let Some(delay) = &parameters.delay {
        command.args(["--delay", delay]);
    }
    let output = command.output().map_err(fail)?;
    Ok(serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success()))
}
