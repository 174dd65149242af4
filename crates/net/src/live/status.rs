//! A relay's status page on loopback: `/metrics` for Prometheus, `/status.json` for scripts. It shows neither client
//! addresses nor destinations, and circuits one by one only on request.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};
use tidegate_proto::defence::Refusals;
use tidegate_proto::node::{CircuitKey, Node as _};
use tokio::net::TcpListener;

use super::exit::Exiting;
use super::stream::Locals;
use crate::clock;
use crate::http::{self, Number, Page};

/// The counts of one shard of a relay.
pub(crate) struct Counts {
    numbers: Vec<Number>,
    /// Circuits one by one, if they are wanted.
    circuits: Vec<Value>,
}

impl Counts {
    /// A number by its name.
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.numbers.iter().find(|(known, ..)| *known == name).map_or(0.0, |(.., value)| *value)
    }
}

/// Serves until dropped, with the counts of all shards that `gather` returns, the first shard's first. Must run inside a
/// [`tokio::task::LocalSet`].
///
/// # Errors
/// If the listener is not on loopback.
pub(super) async fn serve(
    listener: TcpListener,
    nickname: &str,
    shows_circuits: bool,
    gather: impl AsyncFn() -> Vec<Counts>,
) -> io::Result<()> {
    let (pages, answering) = http::pages_later(async |path: String| {
        let counts = gather().await;
        let numbers = sum(&counts);
        match path.as_str() {
            "/metrics" => Some(http::metrics("tidegate_relay", &numbers)),
            "/status.json" => {
                let text = Value::from(document(nickname, &numbers, shows_circuits, counts)).to_string();
                Some(Page { kind: "application/json", text })
            }
            _ => None,
        }
    });
    tokio::select! {
        result = http::serve(listener, pages) => result,
        () = answering => Ok(()),
    }
}

/// Counts of a shard. `circuits`: also its circuits one by one, with the local ports of these exit streams. The servers of
/// a demonstration or experiment identify circuits by these ports.
pub(crate) fn count(overlay: &Exiting, circuits: Option<&Locals>) -> Counts {
    let circuits = circuits.map_or(Vec::new(), |streams| each(overlay, streams));
    Counts { numbers: numbers(overlay), circuits }
}

/// Numbers that every shard counts for the whole relay.
const COMMON: [&str; 3] = ["uptime_seconds", "read_bytes_total", "written_bytes_total"];
/// Numbers that have a maximum instead of a sum.
const HIGHEST: [&str; 1] = ["solve_p99_seconds"];

/// A counter of refusals: its name, what it counts, and how to read it.
type Refusal = (&'static str, &'static str, fn(&Refusals) -> u64);

/// Refusals of the network's defences against denial of service, which shards count together.
const REFUSALS: [Refusal; 6] = [
    (
        "dos_concurrent_connections_refused_total",
        "Connections refused because their address had too many",
        |refused| refused.concurrent,
    ),
    (
        "dos_fast_connections_refused_total",
        "Connections refused because their address connects too fast",
        |refused| refused.connects,
    ),
    ("dos_circuits_refused_total", "Circuits refused because their address creates too many", |refused| {
        refused.circuits
    }),
    ("dos_streams_refused_total", "Streams refused because their circuit opens too many", |refused| {
        refused.streams
    }),
    ("dos_introductions_refused_total", "Introductions beyond a service's limit", |refused| {
        refused.introductions
    }),
    ("dos_rendezvous_refused_total", "Rendezvous points refused to this guard's clients", |refused| {
        refused.rendezvous
    }),
];

/// The numbers of the relay.
fn sum(counts: &[Counts]) -> Vec<Number> {
    let Some((first, others)) = counts.split_first() else { return Vec::new() };
    let mut numbers = first.numbers.clone();
    for (name, _, value) in &mut numbers {
        let of_others = others.iter().map(|shard| shard.number(name));
        *value = match name {
            _ if COMMON.contains(name) || REFUSALS.iter().any(|(refusal, ..)| refusal == name) => *value,
            _ if HIGHEST.contains(name) => of_others.fold(*value, f64::max),
            _ => of_others.fold(*value, |sum, more| sum + more),
        };
    }
    numbers
}

fn numbers(overlay: &Exiting) -> Vec<Number> {
    let (waits, connections, times) = (overlay.waits(), overlay.connections(), overlay.controller_time());
    let (written, read) = overlay.limit().totals();
    let measured = overlay.limit().measured();
    overlay.with(|node, _| {
        let (queued, buffered) = node.waiting();
        let mut numbers = vec![
            ("uptime_seconds", "Time since the process started", clock::now().as_secs_f64()),
            ("connections", "Connections that are open or being opened", connections as f64),
            ("circuits", "Circuits through or to this relay", node.circuits() as f64),
            ("received_cells_total", "Cells received", node.cells_processed() as f64),
            ("sent_cells_total", "Cells sent", waits.cells as f64),
            ("read_bytes_total", "Bytes of cells read", read as f64),
            ("written_bytes_total", "Bytes of cells written", written as f64),
            ("circuit_queue_cells", "Cells that wait in circuit queues", queued as f64),
            ("output_buffer_bytes", "Bytes that wait in output buffers", buffered as f64),
            (
                "circuit_queue_wait_seconds_total",
                "Waiting time in circuit queues, summed over cells sent",
                waits.circuit_queues.as_secs_f64(),
            ),
            (
                "output_buffer_wait_seconds_total",
                "Waiting time in output buffers, summed over cells sent",
                waits.output_buffers.as_secs_f64(),
            ),
            ("kernel_inspections_total", "TCP_INFO queries answered", waits.inspections as f64),
            (
                "kernel_unsent_bytes_total",
                "Unsent bytes, summed over TCP_INFO queries",
                waits.unsent_bytes as f64,
            ),
            ("kist_runs_total", "Runs of KIST", node.kist_runs() as f64),
            ("solves_total", "Optimisation problems solved by the controller", times.solves as f64),
            ("solve_p99_seconds", "99th percentile of solve durations", times.p99().as_secs_f64()),
            (
                "controller_seconds_total",
                "Time spent in timeouts of controller and schedulers",
                times.spent.as_secs_f64(),
            ),
            ("held_bytes", "Memory for neighbours and streams", node.memory() as f64),
            ("shed_total", "Circuits and connections closed because memory was short", node.shed() as f64),
            ("switched_total", "Moves of circuits to another connection or path", node.moves() as f64),
            (
                "repeated_turns_total",
                "Cells sent right after one of the same circuit while another waited",
                node.repeated_turns() as f64,
            ),
            (
                "overtaking_turns_total",
                "Turns that KIST gave a connection before one that had waited longer",
                node.overtaking_turns() as f64,
            ),
        ];
        numbers.extend(measured.into_iter().flat_map(|measured| {
            let echoed = measured.forwarded().measurement as f64;
            [
                ("measuring", "1 while FlashFlow measures this relay", f64::from(measured.is_busy())),
                ("measurement_bytes_total", "Bytes of cells echoed to FlashFlow's measurers", echoed),
            ]
        }));
        let refused = node.refusals();
        numbers.extend(REFUSALS.map(|(name, about, of)| (name, about, of(&refused) as f64)));
        let closed = node.endings();
        numbers
            .extend(closed.iter().map(|(ending, number)| (ending.metric(), ending.about(), number as f64)));
        numbers
    })
}

fn each(overlay: &Exiting, streams: &Locals) -> Vec<Value> {
    let mut ports: BTreeMap<CircuitKey, Vec<u16>> = BTreeMap::new();
    for (key, local) in streams.borrow().iter() {
        ports.entry(key.circuit).or_default().extend(local.port());
    }
    overlay.with(|node, _| {
        let circuits = node.shown().map(|shown| {
            let ports = ports.get(&shown.circuit).map_or(&[][..], Vec::as_slice);
            json!({ "circuit": shown.circuit.0, "ports": ports, "guard": shown.guard, "exit": shown.exit,
                "congestion_control": shown.congestion_control, "cgo": shown.cgo, "linked": shown.linked.map(|first| first.0),
                "queued_cells": shown.queued, "sent_cells": shown.sent, "allowed_cells": shown.allowed,
                "sent_on_cells": shown.sent_on })
        });
        circuits.collect()
    })
}

fn document(
    nickname: &str,
    numbers: &[Number],
    shows_circuits: bool,
    counts: Vec<Counts>,
) -> serde_json::Map<String, Value> {
    let mut document: serde_json::Map<String, Value> =
        numbers.iter().map(|(name, _, value)| (http::plain(name).to_owned(), json!(value))).collect();
    document.insert("nickname".into(), nickname.into());
    document.insert("threads".into(), counts.len().into());
    if shows_circuits {
        let circuits = counts.into_iter().zip(0..).flat_map(|(shard, number)| {
            shard.circuits.into_iter().map(move |mut circuit| {
                circuit["shard"] = json!(number);
                circuit
            })
        });
        document.insert("circuit".into(), circuits.collect());
    }
    document
}
