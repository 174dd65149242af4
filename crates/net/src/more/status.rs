//! A peer's status page on loopback: `/` for people, `/status.json` for scripts, `/metrics` for Prometheus. It shows
//! counts of datagrams by fate; neither streams, nor names, nor addresses.

use std::fmt::Write as _;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tidegate_control::paths::Peer;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::http::{self, Number, Page};

/// A status page, served until dropped.
pub(crate) struct Status {
    numbers: Arc<Mutex<Vec<Number>>>,
    _ends: oneshot::Sender<()>,
}

impl Status {
    /// Serves on its own thread: a relaying peer runs without tokio, and a slow reader must not delay it.
    ///
    /// # Errors
    /// If the listener is not on loopback.
    pub(crate) fn serve(listener: &TcpListener, peer: Peer) -> io::Result<Status> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            let cause = format!("status page at {address}: it is served on loopback only");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        }
        let listener = listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ends, ended) = oneshot::channel();
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&numbers);
        let serving = move || async move {
            // Registration needs this thread's runtime.
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            let (router, answering) = http::pages(|path| {
                let numbers = shown.lock().unwrap_or_else(PoisonError::into_inner);
                page(path, peer, &numbers)
            });
            tokio::select! {
                _ = http::serve(listener, router) => {}
                () = answering => {}
                _ = ended => {}
            }
        };
        std::thread::Builder::new()
            .name("status".into())
            .spawn(move || runtime.block_on(LocalSet::new().run_until(serving())))?;
        Ok(Status { numbers, _ends: ends })
    }

    /// Replaces the metrics.
    pub(crate) fn show(&self, numbers: Vec<Number>) {
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }
}

fn page(path: &str, peer: Peer, numbers: &[Number]) -> Option<Page> {
    match path {
        "/" => Some(Page { kind: "text/html; charset=utf-8", text: table(peer, numbers) }),
        "/metrics" => Some(http::metrics("tidegate_more", numbers)),
        "/status.json" => {
            let mut document: Map<String, Value> =
                numbers.iter().map(|(name, _, value)| (http::plain(name).to_owned(), json!(value))).collect();
            document.insert("peer".into(), peer.into());
            Some(Page { kind: "application/json", text: Value::from(document).to_string() })
        }
        _ => None,
    }
}

fn table(peer: Peer, numbers: &[Number]) -> String {
    let mut rows = String::new();
    for (name, help, value) in numbers {
        // Writing into a string cannot fail.
        let _ = writeln!(rows, "<tr><td>{help}<td><code>{}</code><td>{value:.0}", http::plain(name));
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>\
         <meta name=viewport content=\"width=device-width\"><title>MORE peer {peer}</title>\
         <style>body{{font:15px/1.5 system-ui;margin:1em auto;max-width:45em;padding:0 1em}}\
         table{{border-collapse:collapse;width:100%}}td{{padding:.2em .6em .2em 0;border-bottom:1px solid #8884;\
         overflow-wrap:anywhere}}td:last-child{{text-align:right;font-variant-numeric:tabular-nums}}</style>\n\
         <h1>MORE peer {peer}</h1>\n<table id=numbers>\n{rows}</table></html>\n"
    )
}
