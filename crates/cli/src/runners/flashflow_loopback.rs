//! The runner `flashflow-loopback`: repeats `tidegate flashflow demo`, each time with new processes and
//! sockets.
//!
//! Accuracy depends on the load of the machine.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_control::units::{Rate, Span};
use tidegate_lab::flashflow::push_ratios;
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Curve, Experiment, Figure, Measured, RunError, Scale};

use crate::owned;

/// The rate of relays without a limit.
const UNLIMITED: &str = "unlimited";

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LoopbackExperiment {
    /// Length of a measurement.
    duration: String,
    /// Number of measurements of each relay.
    repetitions: u32,
    /// Other numbers of measurements, by relay.
    #[serde(default)]
    repetitions_of: BTreeMap<String, u32>,
    /// File that keeps every measurement as soon as it ends: a series that was stopped continues from it.
    kept: Option<PathBuf>,
    /// Numbers of sockets, over all measurers.
    #[serde(default = "default_sockets")]
    sockets: Vec<u16>,
    /// Clients' traffic through the relay.
    #[serde(default = "none")]
    background: String,
    /// Emulated path between measurers and relay: one-way delay, jitter, and the seed of the jitter.
    #[serde(default = "no_time")]
    delay: String,
    #[serde(default = "no_time")]
    jitter: String,
    #[serde(default = "one")]
    seed: u64,
    /// Relays' rate limits, by the name that starts their quantities.
    relay: BTreeMap<String, String>,
}

fn default_sockets() -> Vec<u16> {
    vec![160]
}

fn none() -> String {
    "0 Mbit/s".into()
}

fn no_time() -> String {
    "0 s".into()
}

fn one() -> u64 {
    1
}

#[derive(Default)]
struct Series {
    ratios: Vec<f64>,
    mbit: Vec<f64>,
    gbit_per_cpu_s: Vec<f64>,
    failed: usize,
}

/// One measurement to make.
struct Task<'a> {
    relay: &'a str,
    rate: &'a str,
    sockets: u16,
}

/// Measures an experiment.
///
/// The quantities are those of the runner `flashflow`, also for `all` relays and for the `limited` ones
/// together. `gbit_per_cpu_s` is the median of what the relay forwarded per second of its processor time.
///
/// # Errors
/// [`RunError::Input`] for invalid parameters.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: LoopbackExperiment = experiment.parameters(scale)?;
    check(&parameters, experiment)?;
    let tasks = parameters.tasks();
    let mut kept = parameters.kept.as_deref().map(Kept::open).transpose().map_err(cannot_keep)?;
    let mut series: BTreeMap<String, Series> = BTreeMap::new();
    let mut from_before = 0;
    for (done, task) in tasks.iter().enumerate() {
        monitor.progress("measurements", task.relay, done as f64 / tasks.len() as f64);
        let settings = parameters.settings(task);
        let verdict = match kept.as_mut().and_then(|kept| kept.take(&settings)) {
            Some(verdict) => {
                from_before += 1;
                verdict
            }
            None if monitor.stopped() => return Err(RunError::Stopped),
            None => {
                let verdict = demo(&settings)?;
                if let Some(kept) = &mut kept {
                    kept.add(&settings, &verdict).map_err(cannot_keep)?;
                }
                verdict
            }
        };
        // With one number of sockets, quantities have the names of the runner `flashflow`.
        let name = match parameters.sockets.len() {
            1 => task.relay.to_owned(),
            _ => format!("{}.sockets-{}", task.relay, task.sockets),
        };
        let limited = (task.rate != UNLIMITED).then(|| "limited".to_owned());
        for name in [name, "all".to_owned()].into_iter().chain(limited) {
            series.entry(name).or_default().add(&verdict);
        }
    }
    let (total, duration) = (tasks.len(), &parameters.duration);
    let mut measured = finish(series);
    measured.notes.push(format!("Live: {total} measurements of {duration} over sockets on loopback."));
    if from_before > 0 {
        measured.notes.push(format!("{from_before} of them were made before this run was started."));
    }
    if let Some(kept) = kept {
        kept.complete().map_err(cannot_keep)?;
    }
    Ok(measured)
}

fn cannot_keep(error: io::Error) -> RunError {
    RunError::Failed(format!("the file `kept` cannot be used: {error}"))
}

impl LoopbackExperiment {
    /// All measurements, one round over all relays after the other.
    ///
    /// A series that is cut short then has fewer repetitions of every relay.
    fn tasks(&self) -> Vec<Task<'_>> {
        let repetitions = |relay: &String| *self.repetitions_of.get(relay).unwrap_or(&self.repetitions);
        let most = self.relay.keys().map(repetitions).max().unwrap_or(0);
        let mut tasks = Vec::new();
        for repetition in 0..most {
            for (relay, rate) in self.relay.iter().filter(|(relay, _)| repetition < repetitions(relay)) {
                tasks.extend(self.sockets.iter().map(|sockets| Task { relay, rate, sockets: *sockets }));
            }
        }
        tasks
    }

    /// Arguments of the demo. Measurements with equal arguments are repetitions of each other.
    fn settings(&self, task: &Task) -> Vec<String> {
        [
            ("--rate", task.rate),
            ("--duration", &self.duration),
            ("--sockets", &task.sockets.to_string()),
            ("--background", &self.background),
            ("--delay", &self.delay),
            ("--jitter", &self.jitter),
            ("--seed", &self.seed.to_string()),
        ]
        .iter()
        .flat_map(|(name, value)| [name.to_string(), value.to_string()])
        .collect()
    }
}

/// File of an incomplete series, one JSON object per measurement: `{"settings": [..], "verdict": {..}}`.
///
/// The verdict is `null` for a failed measurement.
struct Kept {
    path: PathBuf,
    file: File,
    /// Measurements that were not taken yet, in order.
    left: Vec<(Vec<String>, Value)>,
}

impl Kept {
    fn open(path: &Path) -> io::Result<Kept> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = File::options().read(true).append(true).create(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        if !text.is_empty() && !text.ends_with('\n') {
            // The tool was killed while it wrote the last line.
            file.write_all(b"\n")?;
        }
        let parse = |line: &str| -> Option<(Vec<String>, Value)> {
            let mut line: Value = serde_json::from_str(line).ok()?;
            Some((serde_json::from_value(line["settings"].take()).ok()?, line["verdict"].take()))
        };
        let left = text.lines().filter_map(parse).collect();
        Ok(Kept { path: path.to_owned(), file, left })
    }

    /// Takes a measurement with these settings, if there is one left.
    fn take(&mut self, settings: &[String]) -> Option<Value> {
        let at = self.left.iter().position(|(kept, _)| kept == settings)?;
        Some(self.left.remove(at).1)
    }

    fn add(&mut self, settings: &[String], verdict: &Value) -> io::Result<()> {
        writeln!(self.file, "{}", json!({ "settings": settings, "verdict": verdict }))?;
        self.file.sync_data()
    }

    /// Renames the file of a complete series, so that the next series begins empty.
    fn complete(self) -> io::Result<()> {
        fs::rename(&self.path, self.path.with_extension("complete.jsonl"))
    }
}

fn finish(series: BTreeMap<String, Series>) -> Measured {
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
    measured
}

impl Series {
    fn add(&mut self, verdict: &Value) {
        if verdict.is_null() {
            self.failed += 1;
            return;
        }
        let number = |key: &str| verdict[key].as_f64().unwrap_or(f64::NAN);
        self.ratios.push(number("estimate_bits_per_s") / number("truth_bits_per_s"));
        self.mbit.push(number("estimate_bits_per_s") / 1e6);
        self.gbit_per_cpu_s.push(number("relay_bits_per_cpu_s") / 1e9);
    }
}

fn check(parameters: &LoopbackExperiment, experiment: &Experiment) -> Result<(), InputError> {
    let fail = |cause: String| {
        let file = experiment.folder.join("experiment.toml").display().to_string();
        Err(InputError::new(file, cause, "see docs/flashflow.md"))
    };
    for rate in parameters.relay.values().chain([&parameters.background]) {
        if let Err(error) = rate.parse::<Rate>() {
            return fail(error.to_string());
        }
    }
    for span in [&parameters.delay, &parameters.jitter, &parameters.duration] {
        if let Err(error) = span.parse::<Span>() {
            return fail(error.to_string());
        }
    }
    if let Some(name) = parameters.repetitions_of.keys().find(|name| !parameters.relay.contains_key(*name)) {
        return fail(format!("repetitions-of names `{name}`, which is no relay"));
    }
    if parameters.repetitions == 0 || parameters.relay.is_empty() || parameters.sockets.is_empty() {
        return fail("measures nothing: repetitions, relay or sockets is empty".into());
    }
    Ok(())
}

/// Runs one measurement; null if it failed. An interrupted measurement does not count as failed.
fn demo(settings: &[String]) -> Result<Value, RunError> {
    let fail = |error: io::Error| RunError::Failed(error.to_string());
    let mut command = owned::command().map_err(fail)?;
    command.args(["flashflow", "demo", "--json"]).args(settings).stderr(Stdio::null());
    let output = owned::output(command).map_err(fail)?;
    if owned::was_stopped(output.status) {
        // The signal that ended the child may not have reached us yet.
        return Err(RunError::Stopped);
    }
    Ok(serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success()).unwrap_or_default())
}
