//! The runner `more-hidden`: reads from a hidden service, live on loopback and in the simulator, also while peers fall
//! silent or a relay is flooded.
//!
//! Quantities per case:
//! - `live`, `simulated`: bytes of stream per second;
//! - `per_cpu_s`: bytes of stream per CPU second of all peers;
//! - `limit`: the same without sockets, `packets_per_cpu_s` x `payload` / `handlings` (hops and acknowledgements of a packet);
//! - `before`, `after`: bytes per second in the 5 s before and the 10 s after the event;
//! - `longest`: longest time without data after the event, in seconds.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use tidegate_control::paths::ControllerParameters;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_kernel::thread_cpu_s;
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};
use tidegate_more::wire::{PACKET, WIRE_SIZE};
use tidegate_sim::parallel::{Delays, Read, Reading, download};

use crate::more_processes::{Processes, Reader, hidden_service, pause, source};

/// `[parameters]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct HiddenExperiment {
    /// Seconds before the event, and after it.
    warmup: u64,
    after: u64,
    /// The simulator's delay per link.
    delay: Span,
    case: BTreeMap<String, Case>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Case {
    peers: u16,
    limit: Rate,
    controller: String,
    attempt_every: Span,
    uses: usize,
    /// Numbers of relays in sender paths and in receiver paths.
    hops: [usize; 2],
    /// Peers that are frozen at the event.
    #[serde(default)]
    silent: Vec<u16>,
    /// Rate of forged datagrams to a relay after the event.
    #[serde(default)]
    flood: Option<Rate>,
}

/// Measures an experiment.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: HiddenExperiment = experiment.parameters(scale)?;
    let place = experiment.folder.join("experiment.toml").display().to_string();
    let mut measured = Measured::default();
    let total = parameters.case.len() as f64;
    for (index, (name, case)) in parameters.case.iter().enumerate() {
        let wrong = |cause: String| InputError::new(&place, cause, "see docs/parallel-paths.md");
        let controller = ControllerParameters::named(&case.controller, f64::from(PACKET))
            .map_err(|e| wrong(e.to_string()))?;
        monitor.progress("streams", name, index as f64 / total);
        let begin = thread_cpu_s();
        let simulated = download(&plan(&parameters, case), &controller, Seed::root(1))
            .map_err(|e| wrong(e.to_string()))?;
        let cpu = (thread_cpu_s() - begin).max(1e-9);
        let (packets, limit) = ((simulated.progress.acked as f64).max(1.0), total_of(&simulated) / cpu);
        let handled = simulated.nodes.iter();
        let handled: u64 =
            handled.map(|n| n.forwarded + n.acks_forwarded + n.delivered + n.acks_received).sum();
        let (handled, payload) = (handled as f64, total_of(&simulated) / packets);
        let live = live(&parameters, case, monitor)?;
        let mut push = |what: &str, value: f64| measured.push(format!("{name}.{what}"), value);
        push("simulated", mean(&simulated, parameters.warmup));
        push("limit", limit);
        push("packets_per_cpu_s", handled / cpu);
        push("payload", payload);
        push("handlings", handled / packets);
        push("live", live.before);
        push("per_cpu_s", live.per_cpu_s);
        push("before", live.before);
        push("after", live.after);
        push("longest", live.longest);
        push("exact", f64::from(u8::from(simulated.exact) + u8::from(live.exact)));
        measured.notes.push(format!(
            "{name}: {:.0} packets per CPU-second x {payload:.0} B / {:.1} hops and acknowledgements = {limit:.0} B per \
             CPU-second without sockets, {:.0} live; {:.0} then {:.0} B/s live, {:.0} simulated; at most {:.1} s without a byte.",
            handled / cpu,
            handled / packets,
            live.per_cpu_s,
            live.before,
            live.after,
            mean(&simulated, parameters.warmup),
            live.longest
        ));
    }
    Ok(measured)
}

fn plan(parameters: &HiddenExperiment, case: &Case) -> Reading {
    let event = Span::from_secs(parameters.warmup);
    Reading {
        peers: usize::from(case.peers),
        hops: case.hops,
        uses: case.uses,
        limit: case.limit.as_bytes_per_s(),
        delays: Delays::Constant(parameters.delay),
        jitter: 0.1,
        attempt_every: case.attempt_every,
        published: 256,
        duration: Span::from_secs(parameters.warmup + parameters.after),
        silent: case.silent.iter().map(|peer| (*peer, event, Span::from_secs(u32::MAX.into()))).collect(),
        uplink: None,
    }
}

fn total_of(read: &Read) -> f64 {
    read.seconds.iter().sum::<u64>() as f64
}

/// Mean bytes per second in the 5 s before the event.
fn mean(read: &Read, event: u64) -> f64 {
    let before = event.saturating_sub(5) as usize..event as usize;
    read.seconds
        .get(before)
        .map_or(0.0, |seconds| seconds.iter().sum::<u64>() as f64 / seconds.len().max(1) as f64)
}

struct Live {
    before: f64,
    after: f64,
    per_cpu_s: f64,
    longest: f64,
    exact: bool,
}

fn failed(error: impl std::fmt::Display) -> RunError {
    RunError::Failed(format!("the live overlay: {error}"))
}

/// Runs a case live on loopback.
fn live(parameters: &HiddenExperiment, case: &Case, monitor: &dyn Monitor) -> Result<Live, RunError> {
    let pair = |key: &str, value: String| [format!("--{key}"), value];
    let common = [
        pair("controller", case.controller.clone()),
        pair("limit", case.limit.to_string()),
        pair("attempt-every", case.attempt_every.to_string()),
        pair("uses", case.uses.to_string()),
    ];
    let mut overlay = Processes::new(case.peers, common.concat()).map_err(failed)?;
    let target = source().map_err(failed)?;
    let hops = case.hops.map(|hops| hops.to_string());
    let front =
        hidden_service(&mut overlay, target, &["--hops", &hops[1]], &["--hops", &hops[0]]).map_err(failed)?;
    let mut reader = Reader::connect(front, "hidden.more").map_err(failed)?;
    let begin = monitor.wall_s();
    let read_until = |reader: &mut Reader, until: u64, longest: &mut f64| {
        let (mut heard, mut bytes) = (monitor.wall_s(), reader.bytes);
        while monitor.wall_s() - begin < until as f64 {
            if monitor.stopped() {
                return Err(RunError::Stopped);
            }
            reader.read().map_err(failed)?;
            if reader.bytes > bytes {
                (heard, bytes) = (monitor.wall_s(), reader.bytes);
            }
            *longest = longest.max(monitor.wall_s() - heard);
        }
        Ok(())
    };
    let (mut longest, event) = (0.0, parameters.warmup);
    read_until(&mut reader, event.saturating_sub(5), &mut longest)?;
    let (early, cpu) = (reader.bytes, overlay.cpu_s());
    read_until(&mut reader, event, &mut longest)?;
    let (at_event, used) = (reader.bytes, overlay.cpu_s() - cpu);
    longest = 0.0;
    for peer in &case.silent {
        overlay.silence(*peer).map_err(failed)?;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(rate) = case.flood {
            let (stop, to) = (&stop, overlay.addresses[1]);
            scope.spawn(move || flood(to, rate, stop));
        }
        let done = read_until(&mut reader, event + parameters.after, &mut longest);
        stop.store(true, Ordering::Relaxed);
        done
    })?;
    let seconds = |span: u64| span.max(1) as f64;
    Ok(Live {
        before: (at_event - early) as f64 / seconds(event.min(5)),
        after: (reader.bytes - at_event) as f64 / seconds(parameters.after),
        per_cpu_s: (at_event - early) as f64 / used.max(1e-9),
        longest,
        exact: reader.exact && reader.bytes > 0,
    })
}

/// Sends forged datagrams of the right size until `stop` is set.
fn flood(to: std::net::SocketAddr, rate: Rate, stop: &AtomicBool) {
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return };
    let mut datagram = vec![1; WIRE_SIZE];
    let mut sent: u64 = 0;
    // Bursts of 10 ms keep the number of wake-ups low.
    let burst = (rate.as_bytes_per_s() / 100.0 / WIRE_SIZE as f64).max(1.0) as u64;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..burst {
            sent += 1;
            datagram[2..10].copy_from_slice(&sent.to_le_bytes());
            let _ = socket.send_to(&datagram, to);
        }
        pause(10);
    }
}
