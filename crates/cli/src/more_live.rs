//! The runner `more-live`: one file over MORE, by processes on loopback and by the simulator's machines.
//!
//! Quantities are `<case>.live` and `<case>.simulated` in bytes of the file per second, their difference in
//! percent of the latter, and `<case>.exact`: of the two, how many arrived byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use tidegate_control::paths::parameters::Parameters as Controller;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scenario::quantity::Quantity;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};
use tidegate_more::onion::PACKET;
use tidegate_sim::parallel::onions::{Transfer, transfer};
use tidegate_sim::parallel::plan::Delays;

use crate::more::create;

/// `[parameters]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Parameters {
    peers: u16,
    hops: usize,
    limit: Quantity<Rate>,
    /// Length of the file.
    bytes: u64,
    /// The simulator's delay per link.
    delay: Quantity<Span>,
    /// The least time between two attempts of a sender: without congestion it sets the pace. As `tidegate more`
    /// has it, unless given.
    #[serde(default = "attempt_every")]
    attempt_every: Quantity<Span>,
    case: BTreeMap<String, Case>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Case {
    controller: String,
    #[serde(default)]
    set: BTreeMap<String, f64>,
}

fn attempt_every() -> Quantity<Span> {
    Quantity(Span::from_millis(5))
}

/// A transfer that is slower than this many bytes per second has failed.
const SLOWEST: u64 = 4000;

/// Measures an experiment.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: Parameters = experiment.parameters(scale)?;
    let place = experiment.folder.join("experiment.toml").display().to_string();
    let wrong = |cause: String| InputError::new(&place, cause, "see docs/parallel-paths.md");
    let mut measured = Measured::default();
    let seconds = 60 + parameters.bytes / SLOWEST;
    let total = 2.0 * parameters.case.len() as f64;
    for (index, (name, case)) in parameters.case.iter().enumerate() {
        let mut controller =
            Controller::named(&case.controller, f64::from(PACKET)).map_err(|e| wrong(e.to_string()))?;
        for (symbol, value) in &case.set {
            controller.set(symbol, *value).map_err(|error| wrong(error.to_string()))?;
        }
        let plan = Transfer {
            peers: usize::from(parameters.peers),
            hops: parameters.hops,
            limit: parameters.limit.0.as_bytes_per_s(),
            delays: Delays::Constant(parameters.delay.0),
            jitter: 0.1,
            attempt_every: parameters.attempt_every.0,
            bytes: parameters.bytes,
            deadline: Span::from_secs(seconds),
        };
        monitor.progress("transfers", &format!("{name}, simulated"), 2.0 * index as f64 / total);
        let simulated = transfer(&plan, &controller, Seed::root(1)).map_err(|e| wrong(e.to_string()))?;
        monitor.progress("transfers", &format!("{name}, live"), (2.0 * index as f64 + 1.0) / total);
        let overlay = Processes::start(&parameters, case).map_err(failed)?;
        let live = overlay.send(&parameters, case, seconds, monitor)?;
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

/// An overlay of processes on loopback; they end with it.
struct Processes {
    folder: PathBuf,
    children: Vec<Child>,
    tool: PathBuf,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Processes {
    /// All peers but the source, the last of them as the receiver.
    fn start(parameters: &Parameters, case: &Case) -> Result<Processes, String> {
        let text = |error: std::io::Error| error.to_string();
        let folder = std::env::temp_dir().join(format!("tidegate-more-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let sockets: Result<Vec<UdpSocket>, _> =
            (0..parameters.peers).map(|_| UdpSocket::bind("127.0.0.1:0")).collect();
        let addresses: Result<Vec<SocketAddr>, _> =
            sockets.map_err(text)?.iter().map(UdpSocket::local_addr).collect();
        let addresses = addresses.map_err(text)?;
        create(&folder, &addresses).map_err(|error| error.to_string())?;
        let content: Vec<u8> = (0..parameters.bytes).map(|at| ((at * at) >> 7) as u8).collect();
        fs::write(folder.join("sent"), content).map_err(text)?;
        let tool = std::env::current_exe().map_err(text)?;
        let mut overlay = Processes { folder, children: Vec::new(), tool };
        for peer in 1..parameters.peers {
            let last = peer + 1 == parameters.peers;
            let out = overlay.folder.join("received");
            let extra = if last { vec![Path::new("--out"), &out] } else { vec![] };
            let role = if last { "receive" } else { "node" };
            let mut command = overlay.command(parameters, case, role, peer);
            let child = command.args(extra).stdout(Stdio::null()).spawn().map_err(text)?;
            overlay.children.push(child);
        }
        // A port that cannot be bound has its peer.
        for address in &addresses[1..] {
            while UdpSocket::bind(address).is_ok() {
                if overlay.children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None))) {
                    return Err("a peer ended before it began".into());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(overlay)
    }

    fn command(&self, parameters: &Parameters, case: &Case, role: &str, peer: u16) -> Command {
        let mut command = Command::new(&self.tool);
        command.args(["more", role, "--controller", &case.controller]);
        command.args(["--number", &peer.to_string(), "--hops", &parameters.hops.to_string()]);
        command.args(["--limit", &parameters.limit.0.to_string()]).arg("--overlay").arg(&self.folder);
        command.args(["--attempt-every", &parameters.attempt_every.0.to_string()]);
        for (symbol, value) in &case.set {
            command.args(["--set", &format!("{symbol}={value}")]);
        }
        command
    }

    /// Sends the file; how many seconds it took, if it arrived as it was.
    fn send(
        &self,
        parameters: &Parameters,
        case: &Case,
        seconds: u64,
        monitor: &dyn Monitor,
    ) -> Result<Option<f64>, RunError> {
        let mut command = self.command(parameters, case, "send", 0);
        command.args(["--to", &(parameters.peers - 1).to_string(), "--file"]).arg(self.folder.join("sent"));
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
            std::thread::sleep(Duration::from_millis(50));
        };
        let mut said = String::new();
        source.stdout.take().map(|mut out| out.read_to_string(&mut said)).transpose().map_err(failed)?;
        // "peer 0: N bytes in S s, R B/s"
        let took = said
            .lines()
            .next()
            .and_then(|line| line.split(" bytes in ").nth(1)?.split(' ').next()?.parse().ok());
        let exact = || {
            let read = |name: &str| fs::read(self.folder.join(name)).ok();
            read("sent").is_some_and(|sent| read("received") == Some(sent))
        };
        Ok(took.filter(|_| status.success() && exact()))
    }
}
