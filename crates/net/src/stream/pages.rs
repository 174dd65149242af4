//! HTTP pages of a viewer and a server: the stream, a player, the trees, status and metrics.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use super::moq::{BROADCAST, TRACK};
use super::server;
use super::viewer::{self, Screen};
use crate::http::{self, Number, Page};
use crate::identity::hex;

/// CSP: scripts and media come from this origin only; hls.js feeds the video from memory.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; media-src 'self' blob:";

/// The files of the page that reads Media over QUIC.
const LIVE: [(&str, &[u8]); 8] = [
    ("/live/page.js", include_bytes!("assets/live/page.js")),
    ("/live/player.js", include_bytes!("assets/live/player.js")),
    ("/live/subscriber.js", include_bytes!("assets/live/subscriber.js")),
    ("/live/demuxer.js", include_bytes!("assets/live/demuxer.js")),
    ("/live/formats.js", include_bytes!("assets/live/formats.js")),
    ("/live/clock.js", include_bytes!("assets/live/clock.js")),
    ("/live/picture.js", include_bytes!("assets/live/picture.js")),
    ("/live/sound.js", include_bytes!("assets/live/sound.js")),
];

fn fixed(kind: &'static str, content: &'static [u8]) -> axum::routing::MethodRouter<()> {
    get(move || async move { ([(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, POLICY)], content) })
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";

/// A viewer's pages.
pub fn of_viewer(screen: Arc<Screen>) -> Router {
    let mut live = Router::new()
        .route("/stream.ts", get(live))
        .route("/hls/live.m3u8", get(playlist))
        .route("/hls/{segment}", get(segment))
        .route_layer(middleware::from_fn(http::share_on_loopback))
        .route("/status.json", get(|State(screen): State<Arc<Screen>>| async move { json(&screen.status) }))
        .route("/moq.json", get(moq_edge))
        .route("/live.html", get(live_page))
        .route(
            "/metrics",
            get(|State(screen): State<Arc<Screen>>| async move { viewer_metrics(&lock(&screen.status)) }),
        )
        .with_state(screen);
    for (path, script) in LIVE {
        live = live.route(path, fixed(SCRIPT, script));
    }
    live.route("/", fixed(HTML, include_bytes!("assets/player.html")))
        .route("/player.js", fixed(SCRIPT, include_bytes!("assets/player.js")))
        .route("/rows.js", fixed(SCRIPT, include_bytes!("assets/rows.js")))
        .route("/hls.js", fixed(SCRIPT, include_bytes!("assets/hls.light.min.js")))
}

/// A server's pages.
pub fn of_server(status: Arc<Mutex<server::Status>>) -> Router {
    type Shown = State<Arc<Mutex<server::Status>>>;
    let live = Router::new()
        .route("/status.json", get(|State(status): Shown| async move { json(&status) }))
        .route("/metrics", get(|State(status): Shown| async move { server_metrics(&lock(&status)) }))
        .with_state(status);
    live.route("/", fixed(HTML, include_bytes!("assets/dashboard.html")))
        .route("/dashboard.js", fixed(SCRIPT, include_bytes!("assets/dashboard.js")))
}

fn lock<T: Clone>(shared: &Mutex<T>) -> T {
    shared.lock().expect("the lock is not poisoned").clone()
}

fn json<T: Clone + serde::Serialize>(shared: &Mutex<T>) -> Response {
    let text = serde_json::to_string(&lock(shared)).unwrap_or_default();
    ([(CONTENT_TYPE, JSON)], text).into_response()
}

/// The stream as it is played, until the player disconnects.
async fn live(State(screen): State<Arc<Screen>>) -> Response {
    let payloads = stream::unfold(screen.live.subscribe(), |mut payloads| async move {
        loop {
            match payloads.recv().await {
                Ok(payload) if payload.is_empty() => return None,
                Ok(payload) => return Some((Ok::<_, Infallible>(payload), payloads)),
                // A player that is too slow continues with new data.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    ([(CONTENT_TYPE, "video/mp2t")], Body::from_stream(payloads)).into_response()
}

/// Tells pages how to subscribe by Media over QUIC; null without an edge.
async fn moq_edge(State(screen): State<Arc<Screen>>) -> Response {
    let edge = lock(&screen.edge).map(|(address, certificates)| {
        let certificates: Vec<String> = certificates.iter().map(|hash| hex(hash)).collect();
        json!({ "address": address, "broadcast": BROADCAST, "track": TRACK, "certificates": certificates })
    });
    ([(CONTENT_TYPE, JSON)], json!(edge).to_string()).into_response()
}

/// The page that reads Media over QUIC. It may connect to the viewer's edge, too.
async fn live_page(State(screen): State<Arc<Screen>>) -> Response {
    let policy = lock(&screen.edge).map_or_else(|| POLICY.to_owned(), |(address, _)| policy_for(address));
    let headers = [(CONTENT_TYPE, HTML), (CONTENT_SECURITY_POLICY, policy.as_str())];
    (headers, include_str!("assets/live.html")).into_response()
}

/// The CSP of a page that may also connect to an edge.
fn policy_for(edge: SocketAddr) -> String {
    // Content security policies cannot name IPv6 addresses.
    let origin = if edge.is_ipv4() { format!("https://{edge}") } else { "https:".to_owned() };
    POLICY.replace("connect-src 'self'", &format!("connect-src 'self' {origin}"))
}

async fn playlist(State(screen): State<Arc<Screen>>) -> Response {
    let hls = screen.hls.lock().expect("the lock is not poisoned");
    if let Some(text) = hls.playlist() {
        return ([(CONTENT_TYPE, "application/vnd.apple.mpegurl")], text).into_response();
    }
    let why = hls.problem().map(|problem| format!(": {problem}")).unwrap_or_default();
    (StatusCode::NOT_FOUND, format!("no segment is complete yet{why}\n")).into_response()
}

async fn segment(State(screen): State<Arc<Screen>>, Path(name): Path<String>) -> Response {
    let number = name.strip_suffix(".ts").and_then(|number| number.parse().ok());
    let found =
        number.and_then(|number| screen.hls.lock().expect("the lock is not poisoned").segment(number));
    match found {
        Some(bytes) => ([(CONTENT_TYPE, "video/mp2t")], bytes).into_response(),
        None => (StatusCode::NOT_FOUND, "this segment does not exist\n").into_response(),
    }
}

fn metrics(numbers: &[Number]) -> Response {
    let Page { kind, text } = http::metrics("tidegate_stream", numbers);
    ([(CONTENT_TYPE, kind)], text).into_response()
}

fn viewer_metrics(status: &viewer::Status) -> Response {
    metrics(&[
        ("delivered_packets_total", "Packets played", status.delivered as f64),
        ("gap_packets_total", "Packets lost", status.gaps as f64),
        ("duplicate_packets_total", "Duplicate packets", status.duplicates as f64),
        ("recovered_packets_total", "Packets recovered from parity", status.recovered as f64),
        (
            "forged_total",
            "Packets and manifests dropped without the server's signature",
            status.forged as f64,
        ),
        ("lag_p95_seconds", "Age below which 95 % of packets were played", status.lag_p95_s),
        ("children", "Children over all slices", status.children as f64),
        ("sent_bytes_total", "Bytes sent, all headers included", status.sent_all as f64),
        ("cpu_seconds_total", "Processor time", status.cpu_s),
    ])
}

fn server_metrics(status: &server::Status) -> Response {
    metrics(&[
        ("viewers", "Viewers in the trees", status.viewers.len().saturating_sub(1) as f64),
        ("rate_bits_per_second", "Rate of the source's TS", status.rate_bits_per_s as f64),
        ("source_silence_seconds", "Time without data from the source", status.stalled_s),
        ("orphans", "Subtrees without a parent", status.orphans as f64),
        ("refused_total", "Viewers refused", status.refused as f64),
        ("died_total", "Viewers found dead", status.died as f64),
        ("relegated_total", "Viewers relegated to leaves for misbehaviour", status.relegated as f64),
        ("sent_bytes_total", "Bytes sent, all headers included", status.sent_all as f64),
        ("cpu_seconds_total", "Processor time", status.cpu_s),
    ])
}
