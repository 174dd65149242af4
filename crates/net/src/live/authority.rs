//! The directory authority's HTTP server: relays post entries, clients and relays fetch the signed directory.

use std::cell::{Cell, RefCell};

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tokio::net::TcpListener;

use super::directory::Authority;
use crate::clock;
use crate::http::{PageRequest, answers, serve_public};

/// Serves until dropped. `on_joined` gets the number of listed relays. Must run inside a [`tokio::task::LocalSet`].
pub async fn run(authority: Authority, listener: TcpListener, on_joined: impl Fn(usize)) {
    let (authority, signed) = (RefCell::new(authority), Cell::default());
    let (router, answering) =
        answers(|asked| answer(&mut authority.borrow_mut(), &signed, &asked, &on_joined));
    tokio::select! {
        () = serve_public(listener, router) => {}
        () = answering => {}
    }
}

/// A directory, and the second in which it was signed. All clients of that second share its memory and its signature.
type Signed = Cell<(u64, Bytes)>;

fn directory(authority: &mut Authority, signed: &Signed) -> Bytes {
    let now = clock::unix();
    let (mut second, mut text) = signed.take();
    if second != now {
        (second, text) = (now, authority.directory(now).into());
    }
    signed.set((second, text.clone()));
    text
}

fn answer(
    authority: &mut Authority,
    signed: &Signed,
    asked: &PageRequest,
    on_joined: &dyn Fn(usize),
) -> Response {
    match (&asked.method, asked.path.as_str()) {
        (&Method::POST, "/relay") => {
            let before = authority.len();
            let joined = authority.join(clock::unix(), asked.from, &String::from_utf8_lossy(&asked.body));
            if authority.len() != before {
                on_joined(authority.len());
            }
            match joined {
                Ok(answer) => answer.to_owned().into_response(),
                Err(why) => (StatusCode::FORBIDDEN, why + "\n").into_response(),
            }
        }
        (&Method::GET, "/directory") => {
            ([(CONTENT_TYPE, "text/plain; charset=utf-8")], directory(authority, signed)).into_response()
        }
        _ => (StatusCode::NOT_FOUND, "not found: ask GET /directory or POST /relay\n").into_response(),
    }
}
