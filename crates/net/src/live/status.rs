//! What a relay shows its operator over HTTP on loopback: `/metrics` for Prometheus, `/status.json` for scripts. No
//! addresses of clients and no destinations; circuits one by one only where that was asked for.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use serde_json::{Value, json};
use tidegate_proto::node::Node as _;
use tokio::net::TcpListener;

use super::exit::Exiting;
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
    /// Circuits one by one.
    pub circuits: bool,
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
                let circuits = circuits.then(|| each(&overlay));
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
    let (waits, connections) = (overlay.waits(), overlay.connections());
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
            ("held_bytes", "Held for neighbours and for streams", node.memory() as f64),
            ("shed", "Circuits and connections closed because memory was short", node.shed() as f64),
        ]
    })
}

fn each(overlay: &Exiting) -> Value {
    overlay.with(|node, _| {
        let circuits = node.shown().map(|shown| {
            json!({ "circuit": shown.circuit.0, "guard": shown.guard, "exit": shown.exit,
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
