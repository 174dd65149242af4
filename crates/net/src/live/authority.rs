//! The directory authority's HTTP server: relays post entries, clients and relays fetch the signed directory.

use std::cell::{Cell, RefCell};

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tidegate_control::units::Span;
use tokio::net::TcpListener;

use super::directory::{Authority, Change};
use super::weights::Source;
use crate::clock;
use crate::http::{PageRequest, answers, serve_public};

/// Interval of reading the measured weights, and of removing silent relays.
const LOOK: Span = Span::from_secs(5);

/// An event that the operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A relay joined or left.
    Changed(Change),
    /// Weights are published.
    Measured {
        /// The number of listed relays that were measured.
        relays: usize,
        /// The number of relays in the bandwidth file.
        of: usize,
    },
    /// The bandwidth file names none of the listed relays, so all of them count as not measured.
    Unmatched {
        /// The number of listed relays.
        relays: usize,
        /// The number of relays in the bandwidth file.
        of: usize,
    },
    /// The weights cannot be read, and why. Earlier ones count until they are too old.
    Unread(String),
}

/// Serves until dropped, with the weights of `source` if there is one. Must run inside a [`tokio::task::LocalSet`].
pub async fn run(
    authority: Authority,
    source: Option<Source>,
    listener: TcpListener,
    on_event: impl Fn(Event),
) {
    let (authority, signed) = (RefCell::new(authority), Cell::default());
    let (router, answering) =
        answers(|asked| answer(&mut authority.borrow_mut(), &signed, &asked, &on_event));
    let reading = async {
        match &source {
            Some(source) => read_weights(source, &authority, &on_event).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = serve_public(listener, router) => {}
        () = answering => {}
        () = reading => {}
        () = expire(&authority, &on_event) => {}
    }
}

/// Removes silent relays in time, also without requests.
async fn expire(authority: &RefCell<Authority>, on_event: &dyn Fn(Event)) {
    loop {
        clock::until(clock::now() + LOOK).await;
        let mut authority = authority.borrow_mut();
        authority.expire(clock::unix());
        report(&mut authority, on_event);
    }
}

/// Reports the relays that joined or left. Returns whether there are any.
fn report(authority: &mut Authority, on_event: &dyn Fn(Event)) -> bool {
    let changes = authority.take_changes();
    let is_changed = !changes.is_empty();
    changes.into_iter().for_each(|change| on_event(Event::Changed(change)));
    is_changed
}

/// Reads the weights again and again.
async fn read_weights(source: &Source, authority: &RefCell<Authority>, on_event: &dyn Fn(Event)) {
    let (mut last, mut matched) = (None, None);
    loop {
        let read = source.weights(clock::unix()).await;
        let is_new = last.as_ref() != Some(&read);
        match &read {
            Ok(weights) => {
                if is_new {
                    authority.borrow_mut().set_weights(weights.clone());
                }
                let event = matching(&authority.borrow(), weights.relays.len());
                // Relays join and leave while the file stays.
                let matches = matches!(event, Event::Measured { .. });
                if is_new || matched != Some(matches) {
                    on_event(event);
                }
                matched = Some(matches);
            }
            Err(why) if is_new => on_event(Event::Unread(why.clone())),
            Err(_) => {}
        }
        last = Some(read);
        clock::until(clock::now() + LOOK).await;
    }
}

/// Whether a bandwidth file with `of` relays names listed ones. An empty directory gives no warning: relays join later.
fn matching(authority: &Authority, of: usize) -> Event {
    let relays = authority.measured(clock::unix()).unwrap_or(0);
    match authority.len() {
        listed if relays == 0 && listed > 0 && of > 0 => Event::Unmatched { relays: listed, of },
        _ => Event::Measured { relays, of },
    }
}

/// A directory, and the second in which it was signed. All clients of that second share its memory and its signature, until a
/// relay joins or leaves.
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
    on_event: &dyn Fn(Event),
) -> Response {
    let text = || String::from_utf8_lossy(&asked.body);
    let posted = |said: Result<&'static str, String>| match said {
        Ok(answer) => answer.into_response(),
        Err(why) => (StatusCode::FORBIDDEN, why + "\n").into_response(),
    };
    let now = clock::unix();
    let response = match (&asked.method, asked.path.as_str()) {
        (&Method::POST, "/relay") => posted(authority.join(now, asked.from, &text())),
        (&Method::POST, "/withdrawal") => posted(authority.withdraw(now, &text())),
        (&Method::GET, "/directory") => {
            ([(CONTENT_TYPE, "text/plain; charset=utf-8")], directory(authority, signed)).into_response()
        }
        _ => {
            let pages = "not found: ask GET /directory, POST /relay or POST /withdrawal\n";
            (StatusCode::NOT_FOUND, pages).into_response()
        }
    };
    if report(authority, on_event) {
        signed.take();
    }
    response
}
