//! OnionPerf's analysis (version 4.0): the streams of a class of users, as if each user were a measurement client.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tidegate_control::units::Span;

use crate::input::InputError;
use crate::metrics::transfers::Record as Transfer;
use crate::store::Record;

use super::{EPOCH_UNIX_S, clients};

/// The analysis of a run's users of `class`.
///
/// # Errors
/// If the class is unknown.
pub fn analysis(record: &Record, class: &str) -> Result<Value, InputError> {
    let mut streams: BTreeMap<u32, Map<String, Value>> = BTreeMap::new();
    for (number, transfer) in clients(record, class)?.into_iter().enumerate() {
        // Transfers under way at the end of the run lack an end.
        if transfer.last.is_some() || transfer.timed_out {
            let id = format!("{number}:{}:{}", transfer.circuit, transfer.bytes);
            streams.entry(transfer.user).or_default().insert(id, stream(number, transfer));
        }
    }
    let hosts = streams.into_iter().map(|(user, streams)| {
        let host = json!({
            "measurement_ip": "0.0.0.0",
            "tgen": { "streams": streams },
            "tor": { "circuits": {}, "streams": {} },
        });
        (record.metrics.users[user as usize].name.clone(), host)
    });
    let hosts: Map<String, Value> = hosts.collect();
    Ok(json!({ "type": "onionperf", "version": "4.0", "data": hosts }))
}

/// Microseconds in text, -1 if it never came.
fn microseconds(span: Option<Span>) -> String {
    span.map_or("-1".into(), |span| (span.0 / 1000).to_string())
}

fn stream(number: usize, transfer: &Transfer) -> Value {
    let begun = EPOCH_UNIX_S as f64 + transfer.begun.as_secs_f64();
    let size = transfer.bytes.to_string();
    let mut received = Map::new();
    let mut progress = Map::new();
    if let Some(last) = transfer.last {
        received.insert(size.clone(), json!(last.as_secs_f64()));
        progress.insert("1.0".into(), json!(last.as_secs_f64()));
    }
    json!({
        "stream_id": number.to_string(),
        "is_complete": true,
        "is_success": !transfer.timed_out,
        "is_error": transfer.timed_out,
        "unix_ts_start": begun,
        "unix_ts_end": transfer.last.map(|last| begun + last.as_secs_f64()),
        "stream_info": {
            "id": number.to_string(),
            "recvsize": size,
            "error": if transfer.timed_out { "TIMEOUT" } else { "NONE" },
        },
        "transport_info": { "local": "localhost", "remote": "server:0.0.0.0:0" },
        "time_info": {
            "usecs-to-proxy-response": microseconds(transfer.connected),
            "usecs-to-first-byte-recv": microseconds(transfer.first),
            "usecs-to-last-byte-recv": microseconds(transfer.last),
        },
        "elapsed_seconds": { "payload_bytes_recv": received, "payload_progress_recv": progress },
    })
}
