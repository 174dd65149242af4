//! The runner `more-fair`: a hidden service of MORE and a kernel's TCP flow share one shaped link, alone and together.
//!
//! Quantities have the prefix `network.` or `host.`, the place of the link's queue:
//! - `more.carries`: stream bytes per second that fit the link beside the datagrams that the service's host relays;
//! - `more.alone`, `tcp.alone`, `more.beside`, `tcp.beside`: payload bytes per second;
//! - `share`: MORE's share when both run; `used`: the sum of both over the larger one alone.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde::Deserialize;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};
use tidegate_more::client::CELL_CHUNK;
use tidegate_more::wire::WIRE_SIZE;

use crate::more_processes::{Processes, Reader, pause, source};
use crate::stage::status_of;
use crate::underlay::{QUEUE, Shaped, Underlay};

/// `[parameters]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FairExperiment {
    /// Link rate of the service's host; the other host's link is never the bottleneck.
    link: Rate,
    /// Places of the queue; each is measured.
    shaped: Vec<Shaped>,
    delay: Span,
    /// Congestion control of the kernel's TCP.
    congestion: String,
    controller: String,
    attempt_every: Span,
    peers: u16,
    /// Seconds before the measurement, and seconds of the measurement.
    warmup: u64,
    measured: u64,
}

/// First UDP port of the peers; the front uses the port after the last peer.
const PORTS: u16 = 9700;
/// Status address of the service on its host.
const STATUS: &str = "127.0.0.1:9690";
/// Bytes of the IPv4 and UDP headers.
const UDP: f64 = 28.0;

fn failed(error: impl std::fmt::Display) -> RunError {
    RunError::Failed(format!("MORE beside TCP: {error}"))
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Unavailable`] if namespaces or TUN devices are missing.
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: FairExperiment = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    for shaped in &parameters.shaped {
        measure(&parameters, *shaped, monitor, &mut measured)?;
    }
    Ok(measured)
}

/// Measures the link with its queue at one place.
fn measure(
    parameters: &FairExperiment,
    shaped: Shaped,
    monitor: &dyn Monitor,
    measured: &mut Measured,
) -> Result<(), RunError> {
    let place = match shaped {
        Shaped::Host => "host",
        Shaped::Network => "network",
    };
    let rates = [parameters.link, Rate(1_000_000_000)];
    let underlay = Underlay::new(&rates, shaped, QUEUE, parameters.delay, &parameters.congestion)
        .map_err(|why| RunError::Unavailable(why.to_string()))?;
    let flow = Flow::begin(&underlay, 0).map_err(failed)?;
    monitor.progress(place, "TCP alone", 0.0);
    let [tcp_alone] = rates_of(&[&flow.bytes], parameters, monitor)?;
    drop(flow);
    let more = More::begin(&underlay, parameters).map_err(failed)?;
    monitor.progress(place, "MORE alone", 0.3);
    let [more_alone] = rates_of(&[&more.bytes], parameters, monitor)?;
    let carries = more.carries(&underlay, parameters.link).map_err(failed)?;
    let flow = Flow::begin(&underlay, 1).map_err(failed)?;
    monitor.progress(place, "both", 0.6);
    let [more_beside, tcp_beside] = rates_of(&[&more.bytes, &flow.bytes], parameters, monitor)?;
    drop((flow, more));
    underlay.end().map_err(failed)?;
    for (name, value) in [
        ("tcp.alone", tcp_alone),
        ("more.alone", more_alone),
        ("more.carries", carries),
        ("tcp.beside", tcp_beside),
        ("more.beside", more_beside),
        ("share", more_beside / (more_beside + tcp_beside).max(1.0)),
        ("used", (more_beside + tcp_beside) / more_alone.max(tcp_alone).max(1.0)),
    ] {
        measured.push(format!("{place}.{name}"), value);
    }
    measured.notes.push(format!(
        "{place}: the link carries {carries:.0} B/s of stream beside what the service's host relays; MORE alone \
         {more_alone:.0}, TCP alone {tcp_alone:.0}; together {more_beside:.0} and {tcp_beside:.0} B/s"
    ));
    Ok(())
}

/// Measures the growth of counters in bytes per second after the warm-up.
fn rates_of<const N: usize>(
    counters: &[&Arc<AtomicU64>; N],
    parameters: &FairExperiment,
    monitor: &dyn Monitor,
) -> Result<[f64; N], RunError> {
    let wait = |seconds: u64| {
        for _ in 0..seconds * 10 {
            if monitor.stopped() {
                return Err(RunError::Stopped);
            }
            pause(100);
        }
        Ok(())
    };
    wait(parameters.warmup)?;
    let before = counters.map(|counter| counter.load(Ordering::Relaxed));
    let begun = monitor.wall_s();
    wait(parameters.measured)?;
    let seconds = monitor.wall_s() - begun;
    let after = counters.map(|counter| counter.load(Ordering::Relaxed));
    Ok(std::array::from_fn(|n| (after[n] - before[n]) as f64 / seconds))
}

/// An endless TCP flow from the first host to the second; dropping it stops the flow.
struct Flow {
    bytes: Arc<AtomicU64>,
    end: TcpStream,
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Both threads get an error and end.
        let _ = self.end.shutdown(std::net::Shutdown::Both);
    }
}

impl Flow {
    fn begin(underlay: &Underlay, number: u16) -> io::Result<Flow> {
        let [from, to] = [&underlay.hosts[0], &underlay.hosts[1]];
        let at = SocketAddr::from((to.address, PORTS - 1 - number));
        let listener = to.run(move || TcpListener::bind(at))?;
        from.run(move || {
            let mut tcp = TcpStream::connect(at)?;
            thread::spawn(move || {
                let block = vec![0; 65_536];
                while tcp.write_all(&block).is_ok() {}
            });
            Ok::<_, io::Error>(())
        })?;
        let (mut tcp, _) = listener.accept()?;
        let (end, bytes) = (tcp.try_clone()?, Arc::new(AtomicU64::new(0)));
        let counted = bytes.clone();
        thread::spawn(move || {
            let mut block = vec![0; 65_536];
            while let Ok(count @ 1..) = tcp.read(&mut block) {
                counted.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        Ok(Flow { bytes, end })
    }
}

/// A download from a hidden service; dropping it stops the overlay.
struct More {
    bytes: Arc<AtomicU64>,
    _overlay: Processes,
}

impl More {
    fn begin(underlay: &Underlay, parameters: &FairExperiment) -> Result<More, String> {
        let text = |error: io::Error| error.to_string();
        let [service, others] = [&underlay.hosts[0], &underlay.hosts[1]];
        let last = parameters.peers - 1;
        let address = |peer: u16| {
            let host = if peer == last { service } else { others };
            SocketAddr::from((host.address, PORTS + peer))
        };
        let pair = |key: &str, value: String| [format!("--{key}"), value];
        let common = [
            pair("controller", parameters.controller.clone()),
            pair("attempt-every", parameters.attempt_every.to_string()),
            pair("limit", "40 MB/s".into()),
            pair("hops", "1".into()),
        ];
        let addresses = (0..parameters.peers).map(address).collect();
        let mut overlay = Processes::at(addresses, common.concat())?;
        for peer in 1..last {
            overlay.spawn_by("node", peer, &[], |mut command| others.run(move || command.spawn()))?;
        }
        let target = service.run(source).map_err(text)?.to_string();
        let published = overlay.folder.join("hidden.toml").display().to_string();
        let serve = ["--target", &target, "--publish", &published, "--status", STATUS];
        overlay.spawn_by("serve", last, &serve, |mut command| service.run(move || command.spawn()))?;
        overlay.wait_for("hidden.toml")?;
        let front = SocketAddr::from(([127, 0, 0, 1], PORTS + parameters.peers));
        let at = front.to_string();
        let socks = ["--receiver", &published, "--listen", &at];
        overlay.spawn_by("socks", 0, &socks, |mut command| others.run(move || command.spawn()))?;
        while others.run(move || TcpStream::connect(front)).is_err() {
            overlay.wait_for("hidden.toml")?;
            pause(20);
        }
        let mut reader = others.run(move || Reader::connect(front, "hidden.more")).map_err(text)?;
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        thread::spawn(move || {
            while reader.read().is_ok() {
                counted.store(reader.bytes, Ordering::Relaxed);
            }
        });
        Ok(More { bytes, _overlay: overlay })
    }

    /// Stream bytes per second that the link can carry if the host relays the same share of datagrams as so far.
    fn carries(&self, underlay: &Underlay, link: Rate) -> io::Result<f64> {
        let status = underlay.hosts[0].run(|| status_of(STATUS.parse().map_err(io::Error::other)?))?;
        let count = |name: &str| status[name].as_f64().unwrap_or(0.0);
        let (answers, relayed) = (count("delivered"), count("forwarded") + count("acks_forwarded"));
        let chunk = CELL_CHUNK as f64 / (WIRE_SIZE as f64 + UDP);
        Ok(link.as_bytes_per_s() * chunk * answers / (answers + relayed).max(1.0))
    }
}
