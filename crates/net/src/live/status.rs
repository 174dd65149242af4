//! What a relay shows its operator over HTTP on loopback: `/metrics` for Prometheus, `/status.json` for scripts. No
//! addresses of clients and no destinations; circuits one by one only where that was asked for.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use serde_json::{Value, json};
use tidegate_proto::node::{CircuitKey, Node as _};
use tokio::net::TcpListener;

use super::exit::Exiting;
use super::stream::Locals;
use crate::clock;
use crate::http::{self, Number, Page};

/// What is shown.
pub struct Shown {
    /// The relay on its sockets.
    pub overlay: Exiting,
    /// Circuits that it has moved.
    pub switched: Rc<Cell<u64>>,
    /// Its name.
    pub nickname: String,
    /// Circuits one by one, with the ports of its own that their streams leave by: whoever runs the servers of a
    /// demonstration or an experiment tells by them whose circuit it is.
    pub circuits: Option<Locals>,
}

/// Serves until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If the listener is not on loopback.
pub async fn serve(listener: TcpListener, shown: Shown) -> io::Result<()> {
    let Shown { overlay, nickname, circuits, switched } = shown;
    let (pages, answering) = http::pages(|path| {
        let mut numbers = numbers(&overlay);
        numbers.push(("switched", "Circuits that it has moved", switched.get() as f64));
        match path {
            "/metrics" => Some(http::metrics("tidegate_relay", &numbers)),
            "/status.json" => {
                let circuits = circuits.as_ref().map(|streams| each(&overlay, streams));
                let text = document(&nickname, &numbers, circuits).to_string();
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

fn numbers(overlay: &Exiting) -> Vec<Number> {
    let (waits, connections, steps) = (overlay.waits(), overlay.connections(), overlay.steps());
    let (written, read) = overlay.gate().totals();
    overlay.with(|node, _| {
        let (queued, buffered) = node.waiting();
        vec![
            ("uptime_seconds", "Since the process began", clock::now().as_secs_f64()),
            ("connections", "Connections that are open or being opened", connections as f64),
            ("circuits", "Circuits that pass or end here", node.circuits() as f64),
            ("received_cells", "Cells received", node.cells_processed() as f64),
            ("sent_cells", "Cells sent", waits.cells as f64),
            ("read_bytes", "Bytes of cells read", read as f64),
            ("written_bytes", "Bytes of cells written", written as f64),
            ("circuit_queue_cells", "Cells that wait in circuit queues", queued as f64),
            ("output_buffer_bytes", "Bytes that wait in output buffers", buffered as f64),
            ("circuit_queue_wait_seconds", "Sum over the cells sent", waits.circuit_queues.as_secs_f64()),
            ("output_buffer_wait_seconds", "Sum over the cells sent", waits.output_buffers.as_secs_f64()),
            ("kernel_inspections", "Times that the kernel told of a connection", waits.inspections as f64),
            ("kernel_unsent_bytes", "Sum over the inspections", waits.unsent_bytes as f64),
            ("solves", "Problems that the controller has solved", steps.solves as f64),
            ("solve_p99_seconds", "Of 100 solves 99 took no longer", steps.p99().as_secs_f64()),
            ("controller_seconds", "Spent on timers of controller and schedulers", steps.spent.as_secs_f64()),
            ("held_bytes", "Held for neighbours and for streams", node.memory() as f64),
            ("shed", "Circuits and connections closed because memory was short", node.shed() as f64),
        ]
    })
}

fn each(overlay: &Exiting, streams: &Locals) -> Value {
    let mut ports: BTreeMap<CircuitKey, Vec<u16>> = BTreeMap::new();
    for (key, local) in streams.borrow().iter() {
        ports.entry(key.circuit).or_default().extend(local.port());
    }
    overlay.with(|node, _| {
        let circuits = node.shown().map(|shown| {
            let ports = ports.get(&shown.circuit).map_or(&[][..], Vec::as_slice);
            json!({ "circuit": shown.circuit.0, "ports": ports, "guard": shown.guard, "exit": shown.exit,
                "congestion_control": shown.congestion_control, "linked": shown.linked.map(|first| first.0),
                "queued_cells": shown.queued, "sent_cells": shown.sent, "allowed_cells": shown.allowed,
                "sent_on_cells": shown.sent_on })
        });
        circuits.collect()
    })
}

fn document(nickname: &str, numbers: &[Number], circuits: Option<Value>) -> Value {
    let mut document: serde_json::Map<String, Value> =
        numbers.iter().map(|(name, _, value)| ((*name).to_owned(), json!(value))).collect();
    document.insert("nickname".into(), nickname.into());
    document.extend(circuits.map(|circuits| ("circuit".to_owned(), circuits)));
    document.into()
}
