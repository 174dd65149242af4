//! Directory streams of a relay (BEGIN_DIR). The relay itself stores and serves the descriptors of onion services
//! (rend-spec-v3, "Where to publish a hidden service descriptor"). It keeps other documents that the network's directory
//! serves to everybody. The directory answers the rest.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_control::shares::Shares;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::EndReason;
use tidegate_proto::crypto::Encrypted;
use tidegate_proto::node::{CircuitKey, Node as _, StreamKey};
use tidegate_proto::relay::Relay;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::bandwidth::Limit;
use super::channel::Links;
use super::document_cache::{self, Answer, DocumentCache, Wanted, for_everybody};
use super::microdescriptors::List;
use super::onion_descriptors::{Descriptors, LONGEST, blinded_key};
use super::stream::{self, AtEnd, Local};
use crate::clock;
use crate::gate::Gate;
use crate::link::within;
use crate::overlay::Overlay;

/// Maximum size of a request's head, bytes: of one about onion services, and of another one. Tor's clients ask for up to 500
/// microdescriptors at once, which takes 22 kB.
const HEAD: usize = 4096;
const LIST_HEAD: usize = 32 << 10;
/// Maximum number of header fields. Tor sends four.
const FIELDS: usize = 32;
/// Timeout of a whole request.
const PATIENCE: Span = Span::from_secs(60);
/// Maximum number of connections of a shard to the directory. It is below the directory's own limit
/// ([`crate::http`]), because all of a relay's connections have one address there.
const CONNECTIONS: usize = 48;
const GET: &[u8] = b"GET /tor/hs/3/";
const POST: &[u8] = b"POST /tor/hs/";
const PUBLISH: &str = "/tor/hs/3/publish";

/// Descriptors that a relay's directory streams share.
pub(crate) type SharedDescriptors = Mutex<Descriptors>;

/// Documents that they share.
pub(crate) type SharedDocuments = Mutex<DocumentCache>;

/// A relay on sockets.
type OnSockets = Overlay<Relay<Encrypted>, Limit, Rc<Links>>;

/// A stream, and a number: the stream's key may be used again before its connection has ended.
type Connected = (StreamKey, u64);

/// The connections of streams to the directory, by the neighbour and the circuit of the stream.
pub(crate) struct Connections {
    places: Shares<Option<IpAddr>, CircuitKey, Connected>,
    last: u64,
}

/// Connections that the streams of a shard share.
pub(crate) type SharedConnections = Rc<RefCell<Connections>>;

impl Default for Connections {
    fn default() -> Connections {
        Connections { places: Shares::new(CONNECTIONS), last: 0 }
    }
}

/// A connection's place among those to the directory.
struct Place {
    of: SharedConnections,
    key: Connected,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.borrow_mut().places.release(&self.key);
    }
}

impl Place {
    /// A place for the stream's connection. If all are taken, the oldest stream of the circuit with the most ends.
    fn take(overlay: &OnSockets, stream: &DirectoryStream<'_>) -> Place {
        let (all, key) = (stream.connections, stream.key);
        let of = (stream.from, key.circuit);
        loop {
            let displaced = all.borrow_mut().places.displaced(&of, |_| Time::ZERO);
            let Some((displaced, _)) = displaced else { break };
            overlay.with(|node, now| node.end_stream(now, displaced, EndReason::RESOURCE_LIMIT));
        }
        let mut connections = all.borrow_mut();
        connections.last += 1;
        let key = (key, connections.last);
        connections.places.admit(clock::now(), of, key);
        Place { of: all.clone(), key }
    }
}

/// A directory stream.
pub(crate) struct DirectoryStream<'a> {
    /// Its key.
    pub key: StreamKey,
    /// The neighbour that it came by.
    pub from: Option<IpAddr>,
    /// Its local end.
    pub local: &'a Local,
    /// The relay's descriptors of onion services.
    pub descriptors: &'a SharedDescriptors,
    /// The relay's directory documents.
    pub documents: &'a SharedDocuments,
    /// The connections to the directory.
    pub connections: &'a SharedConnections,
}

/// Whether a request is about descriptors of onion services; `None` if that is not clear yet.
fn is_about_services(request: &[u8]) -> Option<bool> {
    let begins = |prefix: &[u8]| request.starts_with(prefix);
    let may_begin = |prefix: &[u8]| prefix.starts_with(request);
    match () {
        () if begins(GET) || begins(POST) => Some(true),
        () if may_begin(GET) || may_begin(POST) => None,
        () => Some(false),
    }
}

/// A whole request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// The descriptor with the blinded key of this name.
    Find(String),
    /// Store this descriptor.
    Publish(String),
    /// Anything else.
    Bad,
}

/// Parses a request; `None` if it is incomplete.
fn parse(request: &[u8]) -> Option<Asked> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let length = match parsed.parse(request) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return (request.len() > HEAD).then_some(Asked::Bad),
        Err(_) => return Some(Asked::Bad),
    };
    let path = parsed.path.unwrap_or_default();
    if parsed.method == Some("GET") {
        let name = path.strip_prefix("/tor/hs/3/").unwrap_or_default();
        return Some(Asked::Find(name.to_owned()));
    }
    let stated = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let stated = stated.and_then(|field| std::str::from_utf8(field.value).ok()?.trim().parse::<usize>().ok());
    match stated.filter(|stated| *stated <= LONGEST && path == PUBLISH) {
        None => Some(Asked::Bad),
        Some(stated) => {
            let body = request[length..].get(..stated)?;
            Some(std::str::from_utf8(body).map_or(Asked::Bad, |body| Asked::Publish(body.to_owned())))
        }
    }
}

/// A request that is not about onion services.
#[derive(Debug, PartialEq, Eq)]
enum Documents {
    /// A document that many clients ask for.
    One(Wanted),
    /// Microdescriptors.
    Some(List),
    /// Anything else.
    Others,
}

/// Parses a request; `None` if it is incomplete.
fn documents(request: &[u8]) -> Option<Documents> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(request) {
        Ok(httparse::Status::Complete(length)) if length <= LIST_HEAD => {}
        Ok(httparse::Status::Partial) if request.len() <= LIST_HEAD => return None,
        Ok(_) | Err(_) => return Some(Documents::Others),
    }
    let field = |name: &str| {
        let field = parsed.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        // A field that is not text means nothing to the directory, too.
        let value = field.and_then(|field| std::str::from_utf8(field.value).ok());
        value.unwrap_or_default().to_owned()
    };
    let Some(path) = parsed.path.filter(|_| parsed.method == Some("GET")) else {
        return Some(Documents::Others);
    };
    let encodings = field("Accept-Encoding");
    Some(match List::parse(path, &encodings) {
        Some(list) => Documents::Some(list),
        None => Wanted::new(path, &encodings, &field("X-Or-Diff-From-Consensus"))
            .map_or(Documents::Others, Documents::One),
    })
}

/// The request for a document. The fields of one client, such as the time of its last consensus, are not among it.
fn request(wanted: &Wanted, at: SocketAddr) -> String {
    let Wanted { path, encodings, known } = wanted;
    let mut text = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n");
    for (name, value) in [("Accept-Encoding", encodings), ("X-Or-Diff-From-Consensus", known)] {
        if !value.is_empty() {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text + "\r\n"
}

/// The whole answer of a directory.
async fn answer_of(mut directory: TcpStream, request: &str) -> io::Result<Vec<u8>> {
    within(PATIENCE, async {
        directory.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        directory.take(document_cache::LONGEST as u64 + 1).read_to_end(&mut answer).await?;
        if answer.len() > document_cache::LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(answer)
    })
    .await
}

/// An answer with this status and body.
fn answer(status: &str, body: &str) -> Vec<u8> {
    encoded(status, ("identity", body.as_bytes()))
}

/// An answer with this status, and a body in this encoding.
fn encoded(status: &str, (encoding, body): (&str, &[u8])) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain\r\nContent-Encoding: {encoding}\r\nContent-Length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Whether a directory's answer says that the directory failed.
fn is_failure(answer: &[u8]) -> bool {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut parsed = httparse::Response::new(&mut fields);
    parsed.parse(answer).is_err() || parsed.code.is_none_or(|code| code >= 500)
}

/// Carries out a request that came through the neighbour of a circuit.
fn act(overlay: &OnSockets, stream: &DirectoryStream<'_>, asked: Option<Asked>) -> Vec<u8> {
    // A client that asks without a circuit of several relays would reveal which services it uses.
    if overlay.with(|node, _| node.is_from_client(stream.key.circuit)) {
        return answer("503 Use a circuit of several relays", "");
    }
    let now = clock::now();
    let mut descriptors = stream.descriptors.lock().expect("no shard panics while it stores");
    match asked {
        Some(Asked::Find(name)) => match blinded_key(&name).map(|key| descriptors.find(now, &key)) {
            None => answer("400 Bad request", ""),
            Some(None) => answer("404 Not found", ""),
            Some(Some(text)) => answer("200 OK", &text),
        },
        Some(Asked::Publish(text)) => {
            let stored = descriptors.store((now, clock::unix()), stream.from, &text);
            tracing::debug!(?stored, descriptors = descriptors.len(), "descriptor of an onion service");
            match stored {
                Ok(()) => answer("200 HS descriptor stored successfully.", ""),
                Err(_) => answer("400 Invalid HS descriptor. Rejected.", ""),
            }
        }
        Some(Asked::Bad) | None => answer("400 Bad request", ""),
    }
}

/// Serves a directory stream from its request to its end. The first of the directories that can be reached answers what
/// the relay does not keep; `connect` connects to it.
pub(crate) async fn serve<C: Future<Output = Result<TcpStream, EndReason>>>(
    overlay: &OnSockets,
    directories: &[SocketAddr],
    served: DirectoryStream<'_>,
    connect: impl Fn(SocketAddr) -> C,
) {
    let (key, local) = (served.key, served.local);
    // The operator chose them, so they may be in a private network.
    let directories: Vec<SocketAddr> =
        directories.iter().copied().filter(|address| Gate::Private.check(*address).is_ok()).collect();
    if directories.is_empty() {
        return overlay.with(|node, now| node.end_stream(now, key, EndReason::NOT_DIRECTORY));
    }
    overlay.with(|node, now| node.stream_connected(now, key));
    let begun = within(PATIENCE, async { Ok(local.heard(is_about_services).await) }).await;
    match begun.ok().flatten() {
        Some(true) => {
            let asked = within(PATIENCE, async { Ok(local.heard(parse).await) }).await;
            let answer = act(overlay, &served, asked.ok().flatten());
            stream::answer(overlay, key, local, answer.into(), false).await;
        }
        Some(false) => {
            let asked = within(PATIENCE, async { Ok(local.heard(documents).await) }).await;
            let source = Source { overlay, served: &served, directories: &directories, connect };
            match asked.ok().flatten() {
                Some(Documents::One(wanted)) => source.answer_document(wanted).await,
                Some(Documents::Some(list)) => source.answer_list(list).await,
                Some(Documents::Others) | None => source.forward().await,
            }
        }
        None => overlay.with(|node, now| node.end_stream(now, key, EndReason::TIMEOUT)),
    }
}

/// Answers a stream's request for documents.
struct Source<'a, F> {
    overlay: &'a OnSockets,
    served: &'a DirectoryStream<'a>,
    directories: &'a [SocketAddr],
    connect: F,
}

impl<F, C> Source<'_, F>
where
    F: Fn(SocketAddr) -> C,
    C: Future<Output = Result<TcpStream, EndReason>>,
{
    fn cache(&self) -> MutexGuard<'_, DocumentCache> {
        self.served.documents.lock().expect("no shard panics")
    }

    fn end(&self, reason: EndReason) {
        self.overlay.with(|node, now| node.end_stream(now, self.served.key, reason));
    }

    /// Sends an answer of this stream alone, or one that others share.
    async fn send(&self, answer: Arc<Answer>, shared: bool) {
        let (key, local) = (self.served.key, self.served.local);
        stream::answer(self.overlay, key, local, answer.bytes.clone(), shared).await;
    }

    /// The directories and their numbers, the one that answered last first.
    fn directories(&self) -> impl Iterator<Item = (usize, SocketAddr)> {
        let (count, first) = (self.directories.len(), self.cache().preferred);
        (0..count)
            .map(move |number| (first + number) % count)
            .map(|number| (number, self.directories[number]))
    }

    /// The answer of the first directory that has one; without any, the answer of one that failed.
    async fn fetch(&self, wanted: &Wanted) -> Result<Vec<u8>, EndReason> {
        let _place = Place::take(self.overlay, self.served);
        let mut failed = Err(EndReason::NOT_DIRECTORY);
        for (number, address) in self.directories() {
            let fetched = match (self.connect)(address).await {
                Ok(socket) => answer_of(socket, &request(wanted, address)).await.map_err(|_| EndReason::MISC),
                Err(reason) => Err(reason),
            };
            let length = fetched.as_ref().map_or(0, Vec::len);
            self.cache().fetched(clock::now(), self.served.from, length);
            match fetched {
                Ok(answer) if !is_failure(&answer) => {
                    self.cache().preferred = number;
                    return Ok(answer);
                }
                fetched => failed = failed.or(fetched),
            }
        }
        failed
    }

    /// Lets a directory answer.
    async fn forward(&self) {
        let _place = Place::take(self.overlay, self.served);
        let mut failed = EndReason::NOT_DIRECTORY;
        for (_, address) in self.directories() {
            match (self.connect)(address).await {
                Ok(socket) => {
                    let (key, local) = (self.served.key, self.served.local);
                    return stream::run(self.overlay, key, local, socket, (Vec::new(), AtEnd::End)).await;
                }
                Err(reason) => failed = reason,
            }
        }
        self.end(failed);
    }

    async fn answer_document(&self, wanted: Wanted) {
        let from = self.served.from;
        let kept = self.cache().find(clock::unix(), from, &wanted);
        if let Some(kept) = kept {
            return self.send(kept, true).await;
        }
        let permission = self.cache().fetch(clock::now(), from);
        let Some(permission) = permission else { return self.forward().await };
        let fetched = tokio::select! {
            biased;
            () = self.served.local.over() => return,
            fetched = self.fetch(&wanted) => fetched,
        };
        drop(permission);
        let now = clock::unix();
        if let Some(bytes) = fetched.as_ref().ok().and_then(|fetched| for_everybody(fetched)) {
            let answer = self.cache().keep(now, from, wanted, bytes);
            return self.send(answer, true).await;
        }
        // When no directory answers, the last answer is better than none.
        let old = match &fetched {
            Ok(fetched) if !is_failure(fetched) => None,
            _ => self.cache().find_old(now, &wanted),
        };
        match (old, fetched) {
            (Some(old), _) => self.send(old, true).await,
            (None, Ok(fetched)) => {
                let answer = self.cache().answer(fetched);
                self.send(answer, false).await;
            }
            (None, Err(reason)) => self.end(reason),
        }
    }

    async fn answer_list(&self, list: List) {
        if !self.cache().has_room() {
            return self.forward().await;
        }
        let (mut texts, missing) = self.cache().microdescriptors.find(&list);
        if !missing.is_empty() {
            let permission = self.cache().fetch(clock::now(), self.served.from);
            let Some(permission) = permission else { return self.forward().await };
            let wanted = Wanted { path: missing.path(), encodings: String::new(), known: String::new() };
            let fetched = tokio::select! {
                biased;
                () = self.served.local.over() => return,
                fetched = self.fetch(&wanted) => fetched,
            };
            drop(permission);
            let proved = fetched.as_ref().map(|fetched| missing.proved(fetched)).unwrap_or_default();
            self.cache().microdescriptors.keep(&proved);
            texts.extend(proved);
            // A part of the list is better than none.
            if texts.is_empty() {
                return match fetched {
                    Ok(fetched) => {
                        let answer = self.cache().answer(fetched);
                        self.send(answer, false).await;
                    }
                    Err(reason) => self.end(reason),
                };
            }
        }
        let (encoding, body) = list.body(&texts);
        let answer = self.cache().answer(encoded("200 OK", (encoding, &body)));
        self.send(answer, false).await;
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn the_first_bytes_tell_what_a_request_is_about() {
        for (request, about) in [
            ("", None),
            ("G", None),
            ("GET /tor/h", None),
            ("GET /tor/hs/3/", Some(true)),
            ("POST /tor/hs/3/publish HTTP/1.0", Some(true)),
            ("GET /tor/status-vote/current/consensus", Some(false)),
            ("POST /tor/", None),
            ("POST /tor/ ", Some(false)),
            ("x", Some(false)),
        ] {
            assert_eq!(is_about_services(request.as_bytes()), about, "{request}");
        }
    }

    #[test]
    fn requests_are_read_however_they_are_cut() {
        let post = "POST /tor/hs/3/publish HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nhello";
        for cut in 0..post.len() {
            assert_eq!(parse(&post.as_bytes()[..cut]), None, "{cut} bytes");
        }
        assert_eq!(parse(post.as_bytes()), Some(Asked::Publish("hello".into())));
        let get = "GET /tor/hs/3/abc HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
        assert_eq!(parse(get.as_bytes()), Some(Asked::Find("abc".into())));
    }

    #[test]
    fn requests_for_documents_keep_what_selects_the_answer() {
        let text = "GET /tor/keys/fp/a+b HTTP/1.0\r\nHost: x\r\naccept-encoding: deflate\r\nIf-Modified-Since: y\r\n\r\n";
        for cut in 0..text.len() {
            assert_eq!(documents(&text.as_bytes()[..cut]), None, "{cut} bytes");
        }
        let Some(Documents::One(asked)) = documents(text.as_bytes()) else { panic!("a document") };
        let at = "192.0.2.1:80".parse().unwrap();
        let wanted_text =
            "GET /tor/keys/fp/a+b HTTP/1.0\r\nHost: 192.0.2.1:80\r\nAccept-Encoding: deflate\r\n\r\n";
        assert_eq!(request(&asked, at), wanted_text);
        let long = format!("GET /tor/keys/{} HTTP/1.0\r\n\r\n", "a".repeat(LIST_HEAD));
        for other in [
            "POST /tor/ HTTP/1.0\r\n\r\n",
            "GET /tor/status-vote/next/x HTTP/1.0\r\n\r\n",
            "x\r\n\r\n",
            &long,
        ] {
            assert_eq!(documents(other.as_bytes()), Some(Documents::Others), "{other}");
        }
        assert_eq!(documents(&long.as_bytes()[..=LIST_HEAD]), Some(Documents::Others), "before it ends");
    }

    /// Tor asks for up to 500 at once.
    #[test]
    fn a_long_list_of_microdescriptors_is_read() {
        let digests: Vec<String> =
            (0..500u64).map(|number| STANDARD_NO_PAD.encode(Sha256::digest(number.to_le_bytes()))).collect();
        let path = format!("/tor/micro/d/{}.z", digests.join("-"));
        let text = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
        for cut in (0..text.len()).step_by(498) {
            assert_eq!(documents(&text.as_bytes()[..cut]), None, "{cut} bytes");
        }
        assert_eq!(documents(text.as_bytes()), List::parse(&path, "").map(Documents::Some));
    }

    #[test]
    fn a_failed_directory_is_known_by_its_status() {
        for (answer, failed) in [
            ("HTTP/1.0 200 OK\r\n\r\n", false),
            ("HTTP/1.0 404 Not found\r\n\r\n", false),
            ("HTTP/1.0 503 Directory busy\r\n\r\n", true),
            ("nonsense", true),
            ("", true),
        ] {
            assert_eq!(is_failure(answer.as_bytes()), failed, "{answer}");
        }
    }

    #[test]
    fn bad_requests_are_answered_at_once() {
        for bad in [
            "POST /tor/hs/3/publish HTTP/1.0\r\n\r\n".to_owned(),
            "POST /tor/hs/3/publish HTTP/1.0\r\nContent-Length: 50001\r\n\r\n".to_owned(),
            "POST /tor/hs/3/publish HTTP/1.0\r\nContent-Length: x\r\n\r\n".to_owned(),
            "POST /tor/hs/2/publish HTTP/1.0\r\nContent-Length: 1\r\n\r\nx".to_owned(),
            format!("GET /tor/hs/3/{}", "a".repeat(HEAD)),
            format!("GET /tor/hs/3/a HTTP/1.0\r\n{}\r\n", "a: b\r\n".repeat(FIELDS + 1)),
            "GET /tor/hs/3/a HTTP/1.0\r\n\0\r\n\r\n".to_owned(),
        ] {
            assert_eq!(parse(bad.as_bytes()), Some(Asked::Bad), "{bad}");
        }
    }
}
