//! The runner `more-live`: sends a file over MORE, live on loopback and in the simulator.
//!
//! Quantities are `<case>.live` and `<case>.simulated` in bytes of the file per second, `<case>.difference_percent` relative
//! to the simulation, and `<case>.exact`, the number of transfers (0 to 2) that arrived unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::Stdio;

use serde::Deserialize;
use tidegate_control::paths::ControllerParameters;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};
use tidegate_more::wire::PACKET;
use tidegate_sim::parallel::Delays;
use tidegate_sim::parallel::onions::{Transfer, transfer};

use crate::more_processes::{Processes, pause};

/// `[parameters]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LiveExperiment {
    peers: u16,
    hops: usize,
    limit: Rate,
    /// Length of the file in bytes.
    bytes: u64,
    /// The simulator's delay per link.
    delay: Span,
    /// Shortest time between two packets of a sender; 5 ms by default, as in the thesis.
    #[serde(default = "attempt_every")]
    attempt_every: Span,
    case: BTreeMap<String, Case>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Case {
    controller: String,
    #[serde(default)]
    set: BTreeMap<String, f64>,
}

fn attempt_every() -> Span {
    Span::from_millis(5)
}

/// A transfer below this rate in bytes per second counts as failed.
const SLOWEST: u64 = 4000;

/// Measures an experiment.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: LiveExperiment = experiment.parameters(scale)?;
    let place = experiment.folder.join("experiment.toml").display().to_string();
    let wrong = |cause: String| InputError::new(&place, cause, "see docs/parallel-paths.md");
    let mut measured = Measured::default();
    let seconds = 60 + parameters.bytes / SLOWEST;
    let total = 2.0 * parameters.case.len() as f64;
    for (index, (name, case)) in parameters.case.iter().enumerate() {
        let mut controller = ControllerParameters::named(&case.controller, f64::from(PACKET))
            .map_err(|e| wrong(e.to_string()))?;
        for (symbol, value) in &case.set {
            controller.set(symbol, *value).map_err(|error| wrong(error.to_string()))?;
        }
        let plan = Transfer {
            peers: usize::from(parameters.peers),
            hops: parameters.hops,
            limit: parameters.limit.as_bytes_per_s(),
            delays: Delays::Constant(parameters.delay),
            jitter: 0.1,
            attempt_every: parameters.attempt_every,
            bytes: parameters.bytes,
            deadline: Span::from_secs(seconds),
        };
        monitor.progress("transfers", &format!("{name}, simulated"), 2.0 * index as f64 / total);
        let simulated = transfer(&plan, &controller, Seed::root(1)).map_err(|e| wrong(e.to_string()))?;
        monitor.progress("transfers", &format!("{name}, live"), (2.0 * index as f64 + 1.0) / total);
        let overlay = start(&parameters, case).map_err(failed)?;
        let live = send(&overlay, &parameters, seconds, monitor)?;
        drop(overlay);
        let rate = |seconds: f64| parameters.bytes as f64 / seconds.max(1e-9);
        let expected = simulated.took.map_or(0.0, |took| rate(took.as_secs_f64()));
        let found = live.map_or(0.0, rate);
        measured.push(format!("{name}.simulated"), expected);
        measured.push(format!("{name}.live"), found);
        measured
            .push(format!("{name}.difference_percent"), 100.0 * (found - expected).abs() / expected.max(1.0));
        measured
            .push(format!("{name}.exact"), f64::from(u8::from(simulated.exact) + u8::from(live.is_some())));
        measured.notes.push(format!("{name}: {found:.0} B/s live, {expected:.0} B/s simulated."));
    }
    Ok(measured)
}

fn failed(error: impl std::fmt::Display) -> RunError {
    RunError::Failed(format!("the live overlay: {error}"))
}

/// Starts all peers except the source; the last peer is the receiver.
fn start(parameters: &LiveExperiment, case: &Case) -> Result<Processes, String> {
    let pair = |key: &str, value: String| [format!("--{key}"), value];
    let mut common = [
        pair("controller", case.controller.clone()),
        pair("hops", parameters.hops.to_string()),
        pair("limit", parameters.limit.to_string()),
        pair("attempt-every", parameters.attempt_every.to_string()),
    ]
    .concat();
    common.extend(case.set.iter().flat_map(|(symbol, value)| pair("set", format!("{symbol}={value}"))));
    let mut overlay = Processes::new(parameters.peers, common)?;
    let content: Vec<u8> = (0..parameters.bytes).map(|at| ((at * at) >> 7) as u8).collect();
    fs::write(overlay.folder.join("sent"), content).map_err(|error| error.to_string())?;
    for peer in 1..parameters.peers - 1 {
        overlay.spawn("node", peer, &[])?;
    }
    let out = overlay.folder.join("received").display().to_string();
    overlay.spawn("receive", parameters.peers - 1, &["--out", &out])?;
    overlay.wait()?;
    Ok(overlay)
}

/// Sends the file; returns the time in seconds if it arrived unchanged.
fn send(
    overlay: &Processes,
    parameters: &LiveExperiment,
    seconds: u64,
    monitor: &dyn Monitor,
) -> Result<Option<f64>, RunError> {
    let mut command = overlay.command("send", 0).map_err(failed)?;
    command.args(["--to", &(parameters.peers - 1).to_string(), "--file"]).arg(overlay.folder.join("sent"));
    let mut source = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let begin = monitor.wall_s();
    let status = loop {
        if let Some(status) = source.try_wait().map_err(failed)? {
            break status;
        }
        if monitor.stopped() || monitor.wall_s() - begin > seconds as f64 {
            let _ = source.kill();
            let _ = source.wait();
            return if monitor.stopped() { Err(RunError::Stopped) } else { Ok(None) };
        }
        pause(50);
    };
    let mut said = String::new();
    source.stdout.take().map(|mut out| out.read_to_string(&mut said)).transpose().map_err(failed)?;
    // The sender prints "peer 0: N bytes in S s, R B/s".
    let took =
        said.lines().next().and_then(|line| line.split(" bytes in ").nth(1)?.split(' ').next()?.parse().ok());
    let exact = || {
        let read = |name: &str| fs::read(overlay.folder.join(name)).ok();
        read("sent").is_some_and(|sent| read("received") == Some(sent))
    };
    Ok(took.filter(|_| status.success() && exact()))
}
