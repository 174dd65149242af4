//! HTTP servers of the roles, with timeouts for slow or silent connections.
//!
//! Status pages serve GET and HEAD only, on loopback only, and reject requests with a Host header that is not a loopback name
//! (DNS rebinding).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use axum::http::uri::{Authority, Uri};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate_control::units::Span;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_io_timeout::TimeoutStream;

use crate::admission::{Admission, next_connection};
use crate::clock;

/// Limit of idle connections, and of connections being answered: a new one displaces the oldest.
const CONNECTIONS: usize = 64;
/// Maximum size of a request's head, bytes.
const HEAD: usize = 16 << 10;
/// Maximum time of a connection until its answer begins. A connection carries one request; the answer's body may be
/// endless.
const REQUEST: Span = Span::from_secs(5);
/// Maximum size of a posted body, bytes.
pub(crate) const BODY: usize = 8192;
/// Timeout of a public client that does not read its answer: as long as [`crate::live::fetch`] waits for one.
const UNREAD: Span = Span::from_secs(20);
/// Send buffer of a public client's connection, bytes; Linux doubles it. Unread answers wait here instead of in megabytes
/// of the kernel, and a directory of 6 MB still arrives within 10 s over a round trip of 100 ms.
const SENT: usize = 64 << 10;
/// Requests that wait for their page.
const WAITING: usize = 16;

/// Media type of the metrics that roles make.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Its media type.
    pub kind: &'static str,
    /// Its content.
    pub text: String,
}

/// A metric: name, help text, value. A name that ends with `_total` is that of a counter.
pub(crate) type Number = (&'static str, &'static str, f64);

/// The name of a metric in JSON documents: without the suffix of counters.
pub(crate) fn plain(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

/// Formats metrics in the text format of OpenMetrics, with `prefix` before each name.
pub(crate) fn metrics(prefix: &str, numbers: &[Number]) -> Page {
    let mut registry = Registry::with_prefix(prefix);
    for (name, help, value) in numbers {
        match name.strip_suffix("_total") {
            // The encoder adds the suffix of counters.
            Some(name) => {
                let counter = Counter::<f64, AtomicU64>::default();
                counter.inc_by(*value);
                registry.register(name, *help, counter);
            }
            None => {
                let gauge = Gauge::<f64, AtomicU64>::default();
                gauge.set(*value);
                registry.register(*name, *help, gauge);
            }
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    Page { kind: OPENMETRICS, text }
}

/// Rewrites metrics in the text format of OpenMetrics in the older one of Prometheus. That one declares a counter by the name of its
/// sample, and ends without a mark.
fn older_format(text: &str) -> String {
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut older = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(&name) => {
                older.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => older.push_str(line),
        }
        older.push('\n');
    }
    older
}

/// Answers with metrics in the older format unless the client accepts OpenMetrics. Prometheus names it; `curl` and older
/// collectors do not.
async fn choose_format(request: Request, next: Next) -> Response {
    let knows = request.headers().get_all(ACCEPT).iter().any(|accepted| {
        accepted.to_str().is_ok_and(|accepted| accepted.contains("application/openmetrics-text"))
    });
    let mut response = next.run(request).await;
    if response.headers().get(CONTENT_TYPE).is_none_or(|kind| kind != OPENMETRICS) {
        return response;
    }
    response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
    if knows {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = axum::body::to_bytes(body, usize::MAX).await.expect("metrics are complete in memory");
    let text = older_format(str::from_utf8(&text).expect("metrics are text"));
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Response::from_parts(parts, text.into())
}

/// A request to a role.
#[derive(Debug)]
pub(crate) struct PageRequest {
    /// The client's address.
    pub from: IpAddr,
    /// The method.
    pub method: Method,
    /// The path.
    pub path: String,
    /// The posted body, at most [`BODY`] bytes.
    pub body: Bytes,
}

/// A router that calls `answer` on the thread that runs the returned future, where the role's state lives.
pub(crate) fn answers(answer: impl Fn(PageRequest) -> Response) -> (Router, impl Future<Output = ()>) {
    answers_later(async move |asked| answer(asked))
}

/// As [`answers`], for answers that wait for others.
fn answers_later(answer: impl AsyncFn(PageRequest) -> Response) -> (Router, impl Future<Output = ()>) {
    let (ask, mut asked) = mpsc::channel::<(PageRequest, oneshot::Sender<Response>)>(WAITING);
    let pass_on = move |Extension(Client(from)): Extension<Client>, method: Method, uri: Uri, body: Bytes| async move {
        let (reply, replied) = oneshot::channel();
        let request = PageRequest { from: from.ip(), method, path: uri.path().to_owned(), body };
        // A dropped sender means that the role has ended.
        let _ = ask.send((request, reply)).await;
        replied.await.unwrap_or_else(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
    };
    let answering = async move {
        while let Some((asked, reply)) = asked.recv().await {
            let _ = reply.send(answer(asked).await);
        }
    };
    (Router::new().fallback(pass_on).layer(DefaultBodyLimit::max(BODY)), answering)
}

/// A router for pages that `make` builds by path; see [`answers`].
pub(crate) fn pages(make: impl Fn(&str) -> Option<Page>) -> (Router, impl Future<Output = ()>) {
    pages_later(async move |path| make(&path))
}

/// As [`pages`], for pages that wait for other threads.
pub(crate) fn pages_later(make: impl AsyncFn(String) -> Option<Page>) -> (Router, impl Future<Output = ()>) {
    answers_later(async move |asked| match make(asked.path).await {
        Some(page) => ([(CONTENT_TYPE, page.kind)], page.text).into_response(),
        None => (StatusCode::NOT_FOUND, "no such page\n").into_response(),
    })
}

/// Serves pages on loopback until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If the listener is not on loopback: pages are for the operator of this machine.
pub async fn serve(listener: TcpListener, pages: Router) -> io::Result<()> {
    if !listener.local_addr()?.ip().is_loopback() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "pages are served on loopback only"));
    }
    // A player of a stream may pause, so an answer may stay unread.
    let pages = pages.layer(middleware::from_fn(choose_format)).layer(middleware::from_fn(guard));
    serve_all(listener, pages, None).await;
    Ok(())
}

/// Serves all clients until dropped, and disconnects those that do not read. Must run inside a
/// [`tokio::task::LocalSet`].
pub(crate) async fn serve_public(listener: TcpListener, pages: Router) {
    serve_all(listener, pages, Some(UNREAD)).await;
}

/// The address of a request's client.
#[derive(Clone, Copy)]
struct Client(SocketAddr);

async fn serve_all(listener: TcpListener, pages: Router, unread: Option<Span>) {
    let [admission, answering] = [(); 2].map(|()| Rc::new(Admission::new(CONNECTIONS)));
    loop {
        let (tcp, from) = next_connection(&listener).await;
        if unread.is_some() {
            // The kernel may grant less; the connection works with any size.
            let _ = socket2::SockRef::from(&tcp).set_send_buffer_size(SENT);
        }
        let mut tcp = TimeoutStream::new(tcp);
        tcp.set_write_timeout(unread.map(|unread| Duration::from_nanos(unread.0)));
        let (pages, admission, answering) = (pages.clone(), admission.clone(), answering.clone());
        tokio::task::spawn_local(async move {
            let began = Rc::new(Notify::new());
            let service = {
                let began = began.clone();
                let answer = TowerToHyperService::new(pages);
                service_fn(move |mut request: Request<_>| {
                    request.extensions_mut().insert(Client(from));
                    let (began, response) = (began.clone(), answer.call(request));
                    async move {
                        let response = response.await;
                        began.notify_one();
                        response
                    }
                })
            };
            let mut server = http1::Builder::new();
            // Clients such as `nc -N` close their direction when they have asked.
            server.keep_alive(false).half_close(true).max_buf_size(HEAD).header_read_timeout(None);
            // An invalid request only affects its sender.
            let mut connection = pin!(server.serve_connection(TokioIo::new(Box::pin(tcp)), service));
            let asked = async {
                tokio::select! {
                    biased;
                    _ = &mut connection => false,
                    () = began.notified() => true,
                    () = clock::until(clock::now() + REQUEST) => false,
                }
            };
            if admission.run(from.ip(), asked).await == Some(true) {
                answering.run(from.ip(), connection).await;
            }
        });
    }
}

/// Rejects foreign Host headers: a page of another origin can ask under a name that resolves to loopback (DNS
/// rebinding).
fn is_ours(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    host.is_some_and(|authority| is_loopback(authority.host()))
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Lets pages of other ports of this machine read an answer (CORS); pages of other machines must not.
pub(crate) async fn share_on_loopback(request: Request, next: Next) -> Response {
    let origin = request.headers().get(ORIGIN).cloned().filter(|origin| {
        let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        uri.is_some_and(|uri| uri.host().is_some_and(is_loopback))
    });
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    response
}

async fn guard(request: Request, next: Next) -> Response {
    let mut response = if !is_ours(request.headers()) {
        let why = "this page is served to this machine by its own name only: localhost or 127.0.0.1\n";
        (StatusCode::MISDIRECTED_REQUEST, why).into_response()
    } else if ![Method::GET, Method::HEAD].contains(request.method()) {
        (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")], "GET and HEAD only\n").into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(policy);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn metrics_that_only_grow_are_counters() {
        let Page { text, .. } = metrics("x", &[("sent_bytes_total", "Sent", 3.0), ("peers", "Peers", 2.0)]);
        for line in
            ["# TYPE x_sent_bytes counter", "x_sent_bytes_total 3.0", "# TYPE x_peers gauge", "x_peers 2.0"]
        {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        assert_eq!((plain("sent_bytes_total"), plain("peers")), ("sent_bytes", "peers"));
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut tcp = TcpStream::connect(address).await.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // A reset may follow the answer.
        let _ = tcp.read_to_string(&mut answer).await;
        answer
    }

    /// Runs `client` against a server with one page.
    fn against_a_server<F: Future>(client: impl FnOnce(SocketAddr) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let make = |path: &str| match path {
                "/a" => Some(Page { kind: "text/plain", text: "this is a".into() }),
                "/metrics" => Some(metrics("x", &[("sent_total", "Sent", 3.0), ("peers", "Peers", 2.0)])),
                _ => None,
            };
            let (router, answering) = pages(make);
            tokio::task::spawn_local(answering);
            tokio::task::spawn_local(serve(listener, router));
            client(address).await;
        }));
    }

    #[test]
    fn a_client_may_close_its_direction_before_the_answer() {
        against_a_server(|address| async move {
            let mut tcp = TcpStream::connect(address).await.unwrap();
            tcp.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            tcp.shutdown().await.unwrap();
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("this is a"), "{answer}");
        });
    }

    #[test]
    fn only_gets_with_a_loopback_host_are_answered() {
        against_a_server(|address| async move {
            for host in ["localhost", "LOCALHOST:99", "127.0.0.1:80", "127.9.9.9", "[::1]", "[::1]:8"] {
                let answer = ask(address, &format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
                assert!(
                    answer.starts_with("HTTP/1.1 200") && answer.ends_with("this is a"),
                    "{host}: {answer}"
                );
                assert!(answer.contains("no-store") && answer.contains("default-src 'none'"), "{answer}");
            }
            for host in
                ["Host: attacker.example\r\n", "Host: 10.0.0.1\r\n", "Host: localhost.evil.example\r\n", ""]
            {
                let answer = ask(address, &format!("GET /a HTTP/1.1\r\n{host}\r\n")).await;
                assert!(
                    answer.starts_with("HTTP/1.1 4") && !answer.contains("this is a"),
                    "{host}: {answer}"
                );
            }
            let missing = ask(address, "GET /b HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
            let post = ask(address, "POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").await;
            assert!(post.starts_with("HTTP/1.1 405") && post.contains("allow: GET, HEAD\r\n"), "{post}");
            let head = ask(address, "HEAD /a HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: 9\r\n"), "{head}");
            assert!(head.ends_with("\r\n\r\n"), "{head}");
            let long = format!("GET /a HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(HEAD));
            assert!(!ask(address, &long).await.contains("this is a"));
        });
    }

    #[test]
    fn metrics_are_in_the_format_that_the_client_accepts() {
        against_a_server(|address| async move {
            let asked = |accept: &str| format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n");
            // Prometheus 2 asks like this.
            let accept =
                "Accept: application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5\r\n";
            let answer = ask(address, &asked(accept)).await;
            assert!(answer.contains(&format!("content-type: {OPENMETRICS}\r\n")), "{answer}");
            assert!(answer.contains("# TYPE x_sent counter\nx_sent_total 3.0\n"), "{answer}");
            assert!(answer.ends_with("# EOF\n"), "{answer}");
            for accept in ["", "Accept: */*\r\n", "Accept: text/plain\r\n"] {
                let answer = ask(address, &asked(accept)).await;
                assert!(
                    answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                    "{answer}"
                );
                let text = "# HELP x_sent_total Sent.\n# TYPE x_sent_total counter\nx_sent_total 3.0\n\
                            # HELP x_peers Peers.\n# TYPE x_peers gauge\nx_peers 2.0\n";
                assert_eq!(answer.split_once("\r\n\r\n").map(|(_, body)| body), Some(text), "{answer}");
                assert!(answer.contains(&format!("content-length: {}\r\n", text.len())), "{answer}");
            }
        });
    }

    #[test]
    fn pages_of_this_machine_read_what_is_shared() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let page = axum::routing::get(|| async { "a" });
            let router = Router::new().route("/a", page).layer(middleware::from_fn(share_on_loopback));
            tokio::task::spawn_local(serve(listener, router));
            for (origin, shared) in [
                ("http://localhost:8000", true),
                ("https://127.0.0.1", true),
                ("http://[::1]:80", true),
                ("http://localhost.evil.example", false),
                ("https://evil.example", false),
                ("null", false),
            ] {
                let request = format!("GET /a HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n");
                let answer = ask(address, &request).await;
                let header = format!("access-control-allow-origin: {origin}\r\n");
                assert_eq!(answer.contains(&header), shared, "{answer}");
                assert_eq!(answer.contains("access-control"), shared, "{answer}");
            }
        }));
    }

    /// 300 clients ask for 1 MB and read nothing.
    #[test]
    fn unread_answers_are_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let text = Bytes::from(vec![b'a'; 1 << 20]);
            let (router, answering) = answers(move |_| text.clone().into_response());
            tokio::task::spawn_local(answering);
            tokio::task::spawn_local(serve_all(listener, router, Some(Span::from_millis(300))));
            let mut silent = Vec::new();
            for _ in 0..300 {
                let mut tcp = TcpStream::connect(address).await.unwrap();
                tcp.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                silent.push(tcp);
            }
            let answer = ask(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.len() > 1 << 20, "{} bytes", answer.len());
            clock::until(clock::now() + Span::from_millis(500)).await;
            for tcp in &mut silent {
                let mut rest = Vec::new();
                let _ = tcp.read_to_end(&mut rest).await;
                assert!(rest.len() < 1 << 20, "{} bytes in the kernel", rest.len());
            }
        }));
    }

    #[test]
    fn silent_connections_do_not_delay_others() {
        against_a_server(|address| async move {
            let mut silent = Vec::new();
            for _ in 0..2 * CONNECTIONS {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let before = clock::now();
            let answer = ask(address, "GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            assert!(answer.ends_with("this is a"), "{answer}");
            assert!(clock::now().since(before) < REQUEST, "it did not wait for the others' time to be over");
            // The server closed the oldest connections.
            assert_eq!(silent[0].read(&mut [0; 8]).await.unwrap_or(0), 0);
        });
    }
}
