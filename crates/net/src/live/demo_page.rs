//! The page of a demonstration: what all its relays show, side by side, asked once a second.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tidegate_control::units::Span;
use tokio::net::TcpListener;

use super::fetch::fetch;
use crate::clock;
use crate::http::{answers, serve};

/// How often relays are asked.
const EVERY: Span = Span::from_secs(1);
/// Scripts and numbers come from here alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'";

/// Serves until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If the listener is not on loopback.
pub async fn run(listener: TcpListener, system: &str, relays: &[SocketAddr]) -> io::Result<()> {
    let status = RefCell::new(json!({ "system": system, "relays": [] }));
    let asking = async {
        loop {
            let mut said = Vec::new();
            for relay in relays {
                // One that is gone is missing on the page.
                if let Ok((200, _, body)) = fetch(*relay, "/status.json", None).await {
                    said.extend(serde_json::from_slice::<Value>(&body));
                }
            }
            let seconds = clock::now().as_secs_f64();
            *status.borrow_mut() = json!({ "system": system, "seconds": seconds, "relays": said });
            clock::until(clock::now() + EVERY).await;
        }
    };
    let (router, answering) = answers(|asked| answer(&asked.path, &status.borrow()));
    tokio::select! {
        result = serve(listener, router) => result,
        () = answering => Ok(()),
        () = asking => Ok(()),
    }
}

fn answer(path: &str, status: &Value) -> Response {
    let html = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
    let script = [(CONTENT_TYPE, "text/javascript; charset=utf-8")];
    match path {
        "/" => (html, include_str!("assets/overlay.html")).into_response(),
        "/overlay.js" => (script, include_str!("assets/overlay.js")).into_response(),
        "/status.json" => ([(CONTENT_TYPE, "application/json")], status.to_string()).into_response(),
        _ => (StatusCode::NOT_FOUND, "no such page\n").into_response(),
    }
}
