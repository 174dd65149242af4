//! The daemon's status page and metrics, over HTTP on loopback: `/` for people, `/status.json` for scripts,
//! `/metrics` for Prometheus. It answers GET and nothing else, and changes nothing.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use serde_json::{Value, json};
use tidegate_control::flashflow::bandwidth_file::iso;
use tidegate_control::units::Span;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::daemon::Shared;
use super::ledger::relay_name;
use super::link;
use crate::clock;

/// Requests served at one time; more wait to be accepted.
const AT_ONCE: usize = 16;
/// A request may have so many bytes and take so long.
const REQUEST: usize = 4096;
const PATIENCE: Span = Span::from_secs(5);

/// Serves until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If the address is not on loopback, or cannot be listened on.
pub async fn serve(address: SocketAddr, shared: Rc<RefCell<Shared>>) -> io::Result<()> {
    if !address.ip().is_loopback() {
        let why = "the status page shows the secret schedule: it is served on loopback only";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let listener = TcpListener::bind(address).await?;
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    loop {
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let Ok((tcp, _)) = listener.accept().await else { continue };
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            // A broken request is its sender's problem.
            let _ = link::within(PATIENCE, answer(tcp, &shared)).await;
            drop(place);
        });
    }
}

async fn answer(mut tcp: TcpStream, shared: &RefCell<Shared>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST || tcp.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, kind, body) = match line {
        b"GET / HTTP/1.1" => ("200 OK", "text/html; charset=utf-8", page(&shared.borrow())),
        b"GET /status.json HTTP/1.1" => {
            ("200 OK", "application/json", document(&shared.borrow()).to_string())
        }
        b"GET /metrics HTTP/1.1" => ("200 OK", "text/plain; version=0.0.4", metrics(&shared.borrow())),
        _ if line.starts_with(b"GET ") => ("404 Not Found", "text/plain", "no such page\n".into()),
        _ => ("405 Method Not Allowed", "text/plain", "GET only\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n\r\n",
        body.len()
    );
    tcp.write_all(head.as_bytes()).await?;
    tcp.write_all(body.as_bytes()).await?;
    tcp.shutdown().await
}

/// What is shown, as one document.
fn document(shared: &Shared) -> Value {
    let (config, now) = (&shared.config, clock::unix());
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

/// How something is measured, and what that is worth.
fn target(value: &Value) -> String {
    let weaker = if value["target"] == "stock" { " (weaker: a lower bound)" } else { "" };
    format!("{}{weaker}", value["target"].as_str().unwrap_or(""))
}

fn mbit(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |bits| format!("{:.1}", bits / 1e6))
}

fn page(shared: &Shared) -> String {
    let status = document(shared);
    let rows = |key: &str, row: &dyn Fn(&Value) -> Vec<String>| -> String {
        status[key].as_array().into_iter().flatten().fold(String::new(), |mut text, item| {
            text.push_str("<tr>");
            row(item).iter().for_each(|cell| {
                // Writing into a string does not fail.
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
         <title>FlashFlow coordinator</title><style>body{{font:15px/1.5 system-ui;margin:2em auto;max-width:60em;\
         padding:0 1em}}table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.2em .8em .2em 0;\
         border-bottom:1px solid #8884}}</style>\n<h1>FlashFlow coordinator</h1>\n\
         <p id=state>{state}; period {}, slot {} of {}; {}</p>\n\
         <h2>Under way</h2><table id=current><tr><th>relay<th>target<th>seconds<th>measurement, Mbit/s\
         <th>background, Mbit/s</tr>\n{current}</table>\n<h2>Relays</h2><table id=relays><tr><th>relay<th>target<th>Mbit/s<th>result\
         <th>measured (UTC)<th>slots<th>attempts</tr>\n{relays}</table>\n<h2>Errors</h2><table id=errors><tr><th>when (UTC)<th>relay\
         <th>reason</tr>\n{errors}</table></html>\n",
        shared.position.0,
        shared.position.1,
        shared.schedule.slots(),
        time(&status["unix"]),
    )
}

/// Prometheus' text format.
fn metrics(shared: &Shared) -> String {
    let (config, now) = (&shared.config, clock::unix());
    let histories: Vec<_> = config.relays.iter().filter_map(|r| shared.ledger.history(&r.id)).collect();
    let measured: Vec<u64> = config
        .relays
        .iter()
        .filter_map(|r| shared.ledger.good(&r.id, now, config.expiry))
        .map(|good| good.unix)
        .collect();
    // How long ago the younger half of the network was measured.
    let half = config.relays.len().div_ceil(2);
    let mut youngest = measured.clone();
    youngest.sort_unstable_by(|a, b| b.cmp(a));
    let half_age = half.checked_sub(1).and_then(|at| youngest.get(at)).map(|unix| now.saturating_sub(*unix));
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: Option<u64>| {
        let Some(value) = value else { return };
        // Writing into a string does not fail.
        let _ = write!(
            text,
            "# HELP tidegate_flashflow_{name} {help}\n# TYPE tidegate_flashflow_{name} {kind}\n\
             tidegate_flashflow_{name} {value}\n"
        );
    };
    let count = |n: usize| Some(n as u64);
    metric("relays", "gauge", "Relays of the network.", count(config.relays.len()));
    metric("measured_relays", "gauge", "Relays with a result that counts.", count(measured.len()));
    metric(
        "attempts_total",
        "counter",
        "Measurements begun.",
        count(histories.iter().map(|h| h.attempts.len()).sum()),
    );
    metric(
        "failures_total",
        "counter",
        "Measurements failed.",
        count(histories.iter().map(|h| h.failures.len()).sum()),
    );
    metric("current_measurements", "gauge", "Measurements under way.", count(shared.current.len()));
    metric(
        "measurement_bits_per_second",
        "gauge",
        "Measurement traffic in the last second.",
        Some(shared.current.values().map(|c| c.last.0).sum()),
    );
    metric("half_network_age_seconds", "gauge", "Age of the median relay's result.", half_age);
    metric("stopped", "gauge", "1 while the kill switch is on.", Some(u64::from(shared.stopped)));
    metric("start_time_seconds", "gauge", "When the coordinator started.", Some(shared.started));
    text
}
