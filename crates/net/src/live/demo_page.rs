//! The page of a demonstration: polls the status of all relays once a second and shows them side by side.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use tidegate_control::units::Span;
use tokio::net::TcpListener;

use super::fetch::fetch;
use crate::clock;
use crate::http::{answers, serve};
use crate::link::within;

/// Polling interval.
const EVERY: Span = Span::from_secs(1);
/// CSP: scripts and data come from this origin only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'";

/// Timeout per relay: a suspended process accepts connections and never answers.
const ANSWER: Span = Span::from_millis(300);

/// Code that the scripts of all pages share.
const SHARED: &str = include_str!("assets/demo.js");

/// A page and its script.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    html: &'static str,
    script: (&'static str, &'static str),
}

/// The page of `tidegate overlay demo`.
pub const OVERLAY: Look = Look {
    html: include_str!("assets/overlay.html"),
    script: ("/overlay.js", include_str!("assets/overlay.js")),
};
/// The page of `tidegate more demo`.
pub const MORE: Look =
    Look { html: include_str!("assets/more.html"), script: ("/more.js", include_str!("assets/more.js")) };

/// Serves until dropped. `about`, an object, describes the demonstration. Must run inside a
/// [`tokio::task::LocalSet`].
///
/// # Errors
/// If the listener is not on loopback.
pub async fn run(
    listener: TcpListener,
    look: Look,
    about: impl Fn() -> Value,
    relays: &[SocketAddr],
) -> io::Result<()> {
    let with = |answers: Vec<Value>| {
        let mut status = about();
        status["seconds"] = clock::now().as_secs_f64().into();
        status["relays"] = answers.into();
        status
    };
    let status = RefCell::new(with(Vec::new()));
    let asking = async {
        loop {
            let mut answers = Vec::new();
            for relay in relays {
                // A relay that does not answer is missing on the page.
                if let Ok((200, _, body)) = within(ANSWER, fetch(*relay, "/status.json", None)).await {
                    answers.extend(serde_json::from_slice::<Value>(&body));
                }
            }
            *status.borrow_mut() = with(answers);
            clock::until(clock::now() + EVERY).await;
        }
    };
    let (router, answering) = answers(|asked| answer(look, &asked.path, &status.borrow()));
    tokio::select! {
        result = serve(listener, router) => result,
        () = answering => Ok(()),
        () = asking => Ok(()),
    }
}

fn answer(look: Look, path: &str, status: &Value) -> Response {
    let html = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
    let script = [(CONTENT_TYPE, "text/javascript; charset=utf-8")];
    match path {
        "/" => (html, look.html).into_response(),
        "/demo.js" => (script, SHARED).into_response(),
        path if path == look.script.0 => (script, look.script.1).into_response(),
        "/status.json" => ([(CONTENT_TYPE, "application/json")], status.to_string()).into_response(),
        _ => (StatusCode::NOT_FOUND, "no such page\n").into_response(),
    }
}
