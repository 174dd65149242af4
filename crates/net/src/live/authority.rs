//! The directory authority's HTTP server: relays post entries, clients and relays fetch the signed directory.

use std::cell::RefCell;

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tokio::net::TcpListener;

use super::directory::Authority;
use crate::clock;
use crate::http::{PageRequest, answers, serve_public};

/// Serves until dropped. `on_joined` gets the number of listed relays. Must run inside a [`tokio::task::LocalSet`].
pub async fn run(authority: Authority, listener: TcpListener, on_joined: impl Fn(usize)) {
    let authority = RefCell::new(authority);
    let (router, answering) = answers(|asked| answer(&mut authority.borrow_mut(), &asked, &on_joined));
    tokio::select! {
        () = serve_public(listener, router) => {}
        () = answering => {}
    }
}

fn answer(authority: &mut Authority, asked: &PageRequest, on_joined: &dyn Fn(usize)) -> Response {
    match (&asked.method, asked.path.as_str()) {
        (&Method::POST, "/relay") => {
            let before = authority.len();
            let joined = authority.join(clock::unix(), &String::from_utf8_lossy(&asked.body));
            if authority.len() != before {
                on_joined(authority.len());
            }
            match joined {
                Ok(answer) => answer.to_owned().into_response(),
                Err(why) => (StatusCode::FORBIDDEN, why + "\n").into_response(),
            }
        }
        (&Method::GET, "/directory") => authority.directory(clock::unix()).into_response(),
        _ => (StatusCode::NOT_FOUND, "not found: ask GET /directory or POST /relay\n").into_response(),
    }
}
