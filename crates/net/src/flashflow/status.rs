//! The daemon's read-only status page and metrics over HTTP on loopback.
//!
//! `/` is for browsers, `/status.json` for scripts, `/metrics` for Prometheus, `/v3bw` the last bandwidth file.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tidegate_control::flashflow::bandwidth_file::iso;
use tokio::net::TcpListener;

use super::ledger::RelayResult;
use super::shared::CoordinatorState;
use crate::http::{self, Page};
use tidegate_control::flashflow::bandwidth_file::relay_name;

/// Serves until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If the address is not on loopback, or cannot be bound.
pub async fn serve(address: SocketAddr, shared: Rc<RefCell<CoordinatorState>>) -> io::Result<()> {
    if !address.ip().is_loopback() {
        let why = "the status page shows the secret schedule: it must be served on loopback";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let (pages, answering) = http::pages(|path| {
        let shared = shared.borrow();
        let (kind, text) = match path {
            "/" => ("text/html; charset=utf-8", page(&shared)),
            "/status.json" => ("application/json", document(&shared).to_string()),
            "/v3bw" => ("text/plain; charset=utf-8", shared.ledger.last_file()?.to_owned()),
            "/metrics" => (http::OPENMETRICS, metrics(&shared)),
            _ => return None,
        };
        Some(Page { kind, text })
    });
    let listener = TcpListener::bind(address).await?;
    tokio::select! {
        result = http::serve(listener, pages) => result,
        () = answering => Ok(()),
    }
}

/// The status as one JSON document.
fn document(shared: &CoordinatorState) -> Value {
    let (config, now) = (&shared.config, shared.unix());
    let relays = config.relays.iter().map(|relay| {
        let history = shared.ledger.history(&relay.id);
        let good = shared.ledger.good(&relay.id, now, config.expiry);
        let slots: Vec<u32> =
            shared.schedule.placements().iter().filter(|p| p.relay == relay.id).map(|p| p.slot).collect();
        json!({
            "nickname": relay.nickname,
            "id": relay_name(&relay.id),
            "target": relay.target.name(),
            "estimate_bits_per_s": good.map(|good| good.estimate.0),
            "conclusive": good.map(|good| good.conclusive),
            "measured_unix": good.map(|good| good.unix),
            "attempts": history.map_or(0, |h| h.attempts.len()),
            "failures": history.map_or(0, |h| h.failures.len()),
            "slots": slots,
            "opted_out": config.opt_out.contains(&relay.id),
        })
    });
    // The page is rendered from this document, so both always show the same.
    let current = shared.current.values().map(|current| {
        json!({ "relay": current.relay, "target": current.target, "seconds": current.seconds,
            "measurement_bits_per_s": current.last.0, "background_bits_per_s": current.last.1 })
    });
    let errors = shared
        .errors
        .iter()
        .map(|(unix, relay, reason)| json!({ "unix": unix, "relay": relay, "reason": reason }));
    json!({
        "unix": now,
        "started_unix": shared.started,
        "stopped": shared.stopped,
        "period": shared.position.0,
        "slot": shared.position.1,
        "slots": shared.schedule.slots(),
        "relays": relays.collect::<Vec<_>>(),
        "current": current.collect::<Vec<_>>(),
        "errors": errors.collect::<Vec<_>>(),
    })
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// How a relay is measured, with a remark if the result is weaker.
fn target(value: &Value) -> String {
    let weaker = if value["target"] == "stock" { " (weaker: a lower bound)" } else { "" };
    format!("{}{weaker}", value["target"].as_str().unwrap_or(""))
}

fn mbit(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |bits| format!("{:.1}", bits / 1e6))
}

fn page(shared: &CoordinatorState) -> String {
    let status = document(shared);
    let rows = |key: &str, row: &dyn Fn(&Value) -> Vec<String>| -> String {
        status[key].as_array().into_iter().flatten().fold(String::new(), |mut text, item| {
            text.push_str("<tr>");
            row(item).iter().for_each(|cell| {
                // Writing into a string cannot fail.
                let _ = write!(text, "<td>{}</td>", escape(cell));
            });
            text + "</tr>\n"
        })
    };
    let time = |value: &Value| value.as_u64().map_or("-".into(), iso);
    let relays = rows("relays", &|r| {
        let verdict = match r["conclusive"].as_bool() {
            Some(true) => "conclusive",
            Some(false) => "lower bound",
            None => "not measured",
        };
        let text = |key: &str| r[key].as_str().unwrap_or("").to_owned();
        let verdict = if r["opted_out"] == true { "opted out" } else { verdict };
        vec![
            text("nickname"),
            target(r),
            mbit(&r["estimate_bits_per_s"]),
            verdict.into(),
            time(&r["measured_unix"]),
            r["slots"].to_string(),
            format!("{} ({} failed)", r["attempts"], r["failures"]),
        ]
    });
    let current = rows("current", &|c| {
        vec![
            c["relay"].as_str().unwrap_or("").into(),
            target(c),
            c["seconds"].to_string(),
            mbit(&c["measurement_bits_per_s"]),
            mbit(&c["background_bits_per_s"]),
        ]
    });
    let errors = rows("errors", &|e| {
        let text = |key: &str| e[key].as_str().unwrap_or("").to_owned();
        vec![time(&e["unix"]), text("relay"), text("reason")]
    });
    let state = if shared.stopped { "STOPPED by the kill switch" } else { "running" };
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>\
         <meta name=viewport content=\"width=device-width\">\
         <title>FlashFlow coordinator</title><style>:root{{color-scheme:light dark}}h1{{font-size:1.5em}}h2{{font-size:1.15em}}\
         body{{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}}\
         @media(max-width:40em){{table{{display:block;overflow-x:auto;font-size:13px;white-space:nowrap}}}}table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.2em .8em .2em 0;\
         border-bottom:1px solid #8884}}</style>\n<h1>FlashFlow coordinator</h1>\n\
         <p id=state>{state}; period {}, slot {} of {}; {} UTC</p>\n\
         <h2>Running measurements</h2><table id=current><tr><th>relay<th>target<th>seconds<th>measurement, Mbit/s\
         <th>background, Mbit/s</tr>\n{current}</table>\n<h2>Relays</h2><table id=relays><tr><th>relay<th>target<th>Mbit/s<th>result\
         <th>measured (UTC)<th>slots<th>attempts</tr>\n{relays}</table>\n<h2>Errors</h2><table id=errors><tr><th>when (UTC)<th>relay\
         <th>reason</tr>\n{errors}</table></html>\n",
        shared.position.0,
        shared.position.1,
        shared.schedule.slots(),
        time(&status["unix"]),
    )
}

/// The metrics in the text format of OpenMetrics.
fn metrics(shared: &CoordinatorState) -> String {
    let (config, now) = (&shared.config, shared.unix());
    let mut registry = Registry::with_prefix("tidegate_flashflow");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge: Gauge<u64, AtomicU64> = Gauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let good: Vec<_> = config
        .relays
        .iter()
        .filter_map(|r| Some((r, shared.ledger.good(&r.id, now, config.expiry)?)))
        .collect();
    // Age of the median relay's result: half of the relays have a newer one.
    let mut youngest: Vec<u64> = good.iter().map(|(_, good)| good.unix).collect();
    youngest.sort_unstable_by(|a, b| b.cmp(a));
    let half = config.relays.len().div_ceil(2);
    let half = half.checked_sub(1).and_then(|at| youngest.get(at));
    gauge("relays", "Relays of the network", config.relays.len() as u64);
    gauge("measured_relays", "Relays with a current result", good.len() as u64);
    gauge("current_measurements", "Running measurements", shared.current.len() as u64);
    let rate = shared.current.values().map(|current| current.last.0).sum();
    gauge("measurement_bits_per_second", "Measurement traffic in the last second", rate);
    if let Some(unix) = half {
        let age = now.saturating_sub(*unix);
        gauge("half_network_age_seconds", "Age of the median relay's result", age);
    }
    gauge("stopped", "1 while the kill switch is on", u64::from(shared.stopped));
    gauge("start_time_seconds", "When the coordinator started", shared.started);
    let histories = || config.relays.iter().filter_map(|r| shared.ledger.history(&r.id));
    for (name, help, count) in [
        ("attempts", "Measurements started", histories().map(|h| h.attempts.len()).sum::<usize>()),
        ("failures", "Measurements failed", histories().map(|h| h.failures.len()).sum()),
    ] {
        let counter: Counter = Counter::default();
        counter.inc_by(count as u64);
        registry.register(name, help, counter);
    }
    let per_relay = |value: &dyn Fn(&RelayResult) -> u64| {
        let family: Family<Vec<(String, String)>, Gauge<u64, AtomicU64>> = Family::default();
        for (relay, good) in &good {
            let labels = vec![
                ("relay".to_owned(), relay_name(&relay.id)),
                ("nickname".to_owned(), relay.nickname.clone()),
            ];
            family.get_or_create(&labels).set(value(good));
        }
        family
    };
    let estimates = per_relay(&|good| good.estimate.0);
    registry.register("estimate_bits_per_second", "Last result of a relay", estimates);
    let times = per_relay(&|good| good.unix);
    registry.register("measured_time_seconds", "When that result was complete", times);
    let conclusive = per_relay(&|good| u64::from(good.conclusive));
    registry.register("conclusive", "0 where the result is a lower bound", conclusive);
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}
