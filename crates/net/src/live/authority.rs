//! The directory authority's HTTP server: relays post entries, clients and relays fetch the signed directory.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tidegate_control::units::{Span, Time};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::directory::{Authority, Change, Happened, LONGEST_LIST};
use super::weights::Source;
use crate::http::{PageRequest, answers, serve_public};
use crate::{clock, private_file};

/// Interval of reading the measured weights, and of removing silent relays.
const LOOK: Span = Span::from_secs(5);
/// Changes with an event of their own per [`PERIOD`]. A holder of the token can cause hundreds a second.
const CHANGES: u32 = 100;
/// See [`CHANGES`].
const PERIOD: Span = Span::from_secs(60);
/// Longest time until every relay has announced itself: each does so every 30 s.
const ANNOUNCED: Span = Span::from_secs(35);
/// Intervals of storing the relays: at least, and at most after a change.
const STORE: Span = Span::from_secs(30);
const STORE_CHANGES: Span = Span::from_secs(5);

/// An event that the operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A relay joined, left or changed.
    Changed(Change),
    /// Further relays joined, left or changed in a minute with many changes.
    FurtherChanged {
        /// How often a relay joined.
        joined: u64,
        /// How often a relay left.
        left: u64,
        /// How often a relay changed its name or addresses.
        moved: u64,
        /// The number of listed relays.
        relays: usize,
    },
    /// Weights are published.
    Measured {
        /// The number of listed relays that were measured.
        relays: usize,
        /// The number of listed relays.
        listed: usize,
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
    /// The relays of an earlier process are listed: their number.
    Restored(usize),
    /// The relays of an earlier process cannot be read, and why. The directory answers with an error until relays have
    /// announced themselves.
    NotRestored(String),
    /// The relays cannot be stored, and why.
    NotStored(String),
}

/// The file of the listed relays, for a directory that restarts.
pub struct RelayFile {
    /// Its path. Clients trust nothing in it that the authority's key has not signed.
    pub path: PathBuf,
    /// The authority was never run before, so the file need not exist.
    pub is_first_run: bool,
}

/// Serves until dropped, with the weights of `source` if there is one. `file` keeps its relays over a restart. Must run inside
/// a [`tokio::task::LocalSet`].
pub async fn run(
    mut authority: Authority,
    file: Option<RelayFile>,
    source: Option<Source>,
    listener: TcpListener,
    on_event: impl Fn(Event),
) {
    let opens = file.as_ref().map_or(Time::ZERO, |file| restore(&mut authority, file, &on_event));
    let (authority, signed) = (RefCell::new(authority), Cell::default());
    let changed = Notify::new();
    let (begun, counts) = (Cell::default(), Cell::default());
    let changes = ChangeReport { on_event: &on_event, changed: &changed, begun, counts };
    let (router, answering) =
        answers(|asked| answer(&mut authority.borrow_mut(), &signed, &asked, &changes, opens));
    let storing = async {
        match &file {
            Some(file) => store(&file.path, opens, &authority, &changed, &on_event).await,
            None => std::future::pending().await,
        }
    };
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
        () = storing => {}
        () = expire(&authority, &changes) => {}
    }
}

/// Lists the relays of an earlier process. Returns when clients get the list: at once, or once the relays that an earlier
/// process may have listed have announced themselves. Clients keep the list that they have until then.
fn restore(authority: &mut Authority, file: &RelayFile, on_event: &dyn Fn(Event)) -> Time {
    if file.is_first_run && !file.path.exists() {
        return Time::ZERO;
    }
    let restored = read_relays(&file.path).and_then(|text| {
        authority.restore(clock::unix(), &text).map_err(|why| format!("the list is invalid: {why}"))
    });
    match restored {
        Ok(relays) => {
            on_event(Event::Restored(relays));
            Time::ZERO
        }
        Err(why) => {
            on_event(Event::NotRestored(format!("{}: {why}", file.path.display())));
            clock::now() + ANNOUNCED
        }
    }
}

fn read_relays(path: &Path) -> Result<String, String> {
    let known = fs::metadata(path).map_err(|cause| cause.to_string())?;
    // A pipe would wait for a writer.
    if !known.is_file() || known.len() > LONGEST_LIST {
        return Err(format!("not a file of at most {LONGEST_LIST} bytes"));
    }
    fs::read_to_string(path).map_err(|cause| cause.to_string())
}

/// Stores the relays from `begins` on, after changes and periodically: their entries become newer all the time.
async fn store(
    path: &Path,
    begins: Time,
    authority: &RefCell<Authority>,
    changed: &Notify,
    on_event: &dyn Fn(Event),
) {
    let mut last = Ok(());
    // Before, the list lacks relays that the file may have.
    clock::until(begins).await;
    loop {
        let text = authority.borrow_mut().relay_list(clock::unix());
        let path = path.to_owned();
        let writing = tokio::task::spawn_blocking(move || {
            let write = if path.exists() { private_file::replace } else { private_file::write };
            write(&path, &text).map_err(|why| format!("{} {why}", path.display()))
        });
        let written = writing.await.expect("writing a file does not panic");
        if let (Err(why), true) = (&written, written != last) {
            on_event(Event::NotStored(why.clone()));
        }
        last = written;
        let stored = clock::now();
        clock::until(stored + STORE_CHANGES).await;
        tokio::select! {
            () = changed.notified() => {}
            () = clock::until(stored + STORE) => {}
        }
    }
}

/// Removes silent relays in time, also without requests.
async fn expire(authority: &RefCell<Authority>, changes: &ChangeReport<'_>) {
    loop {
        clock::until(clock::now() + LOOK).await;
        let mut authority = authority.borrow_mut();
        authority.expire(clock::unix());
        changes.report(&mut authority, clock::now());
    }
}

/// Reports the relays that joined or left, and only their number where there are many.
struct ChangeReport<'a> {
    on_event: &'a dyn Fn(Event),
    /// Wakes the task that stores relays.
    changed: &'a Notify,
    /// The start of the period.
    begun: Cell<Time>,
    counts: Cell<Counts>,
}

/// Changes of a period.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Those with an event of their own.
    reported: u32,
    /// The others.
    joined: u64,
    left: u64,
    moved: u64,
}

impl ChangeReport<'_> {
    /// Reports the changes since the last call. Returns whether there are any.
    fn report(&self, authority: &mut Authority, now: Time) -> bool {
        let changes = authority.take_changes();
        let (is_changed, relays) = (!changes.is_empty(), authority.len());
        let mut counts = self.counts.get();
        if now.since(self.begun.get()) >= PERIOD {
            let Counts { joined, left, moved, .. } = counts;
            if joined + left + moved > 0 {
                (self.on_event)(Event::FurtherChanged { joined, left, moved, relays });
            }
            self.begun.set(now);
            counts = Counts::default();
        }
        for change in changes {
            match change.what {
                _ if counts.reported < CHANGES => {
                    counts.reported += 1;
                    (self.on_event)(Event::Changed(change));
                }
                Happened::Joined => counts.joined += 1,
                Happened::Left(_) => counts.left += 1,
                Happened::Moved { .. } | Happened::Twins { .. } => counts.moved += 1,
            }
        }
        self.counts.set(counts);
        if is_changed {
            self.changed.notify_one();
        }
        is_changed
    }
}

/// Reads the weights again and again.
async fn read_weights(source: &Source, authority: &RefCell<Authority>, on_event: &dyn Fn(Event)) {
    let (mut last, mut report) = (None, MeasuredReport::default());
    loop {
        let read = source.weights(clock::unix()).await;
        let is_new = last.as_ref() != Some(&read);
        match &read {
            Ok(weights) => {
                if is_new {
                    authority.borrow_mut().set_weights(weights.clone());
                }
                let event = matching(&authority.borrow(), weights.relays.len());
                report.due(clock::now(), event, is_new).into_iter().for_each(on_event);
            }
            Err(why) if is_new => on_event(Event::Unread(why.clone())),
            Err(_) => {}
        }
        last = Some(read);
        clock::until(clock::now() + LOOK).await;
    }
}

/// The last event about measured weights.
#[derive(Default)]
struct MeasuredReport {
    last: Option<(Event, Time)>,
}

impl MeasuredReport {
    /// The event, if it is to be reported: for a new file, if its kind changes, and at most once a minute if only its
    /// numbers change. Relays join and leave while the file stays.
    fn due(&mut self, now: Time, event: Event, is_new: bool) -> Option<Event> {
        if !is_new && let Some((last, at)) = &self.last {
            let is_other_kind = std::mem::discriminant(last) != std::mem::discriminant(&event);
            if !is_other_kind && (*last == event || now.since(*at) < PERIOD) {
                return None;
            }
        }
        self.last = Some((event.clone(), now));
        Some(event)
    }
}

/// Whether a bandwidth file with `of` relays names listed ones. An empty directory gives no warning: relays join later.
fn matching(authority: &Authority, of: usize) -> Event {
    let relays = authority.measured(clock::unix()).unwrap_or(0);
    match authority.len() {
        listed if relays == 0 && listed > 0 && of > 0 => Event::Unmatched { relays: listed, of },
        listed => Event::Measured { relays, listed, of },
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
    changes: &ChangeReport<'_>,
    opens: Time,
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
        // A client would take a list without most relays for the newest one.
        (&Method::GET, "/directory") if clock::now() < opens => {
            let wait = opens.since(clock::now()).as_secs_f64().ceil();
            let why = "the directory has restarted and waits for its relays\n";
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, wait.to_string())], why).into_response()
        }
        (&Method::GET, "/directory") => {
            ([(CONTENT_TYPE, "text/plain; charset=utf-8")], directory(authority, signed)).into_response()
        }
        _ => {
            let pages = "not found: ask GET /directory, POST /relay or POST /withdrawal\n";
            (StatusCode::NOT_FOUND, pages).into_response()
        }
    };
    if changes.report(authority, clock::now()) {
        signed.take();
    }
    response
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ed25519_dalek::SigningKey;
    use tidegate_proto::crypto::cert::RouterKeys;

    use super::super::directory::{Admission, Entry, proof, withdrawal};
    use super::*;
    use crate::gate::Gate;
    use crate::identity::fill;

    /// After a restart, the directory reads the file before the first relay joins again.
    #[test]
    fn the_number_of_measured_relays_follows_the_list() {
        let measured = |relays, listed| Event::Measured { relays, listed, of: 3 };
        let at = |seconds| Time::ZERO + Span::from_secs(seconds);
        let mut report = MeasuredReport::default();
        assert_eq!(report.due(at(0), measured(0, 0), true), Some(measured(0, 0)));
        for (second, event, is_due) in [
            (5, measured(0, 0), false),
            // Relays join, and the minute of the last event is not over.
            (10, measured(2, 2), false),
            (60, measured(3, 3), true),
            (65, measured(3, 3), false),
            (70, Event::Unmatched { relays: 1, of: 3 }, true),
            (75, measured(1, 2), true),
        ] {
            let is_reported = report.due(at(second), event.clone(), false).is_some();
            assert_eq!(is_reported, is_due, "{event:?} at {second} s");
        }
        assert!(report.due(at(76), measured(1, 2), true).is_some(), "a new file");
    }

    /// A holder of the token joins and withdraws all the time.
    #[test]
    fn relays_that_come_and_go_do_not_fill_the_log() {
        const NOW: u64 = 1_800_000_000;
        let token = Some("secret".to_owned());
        let rules = Admission { allowed: Vec::new(), token, per_address: 8, gate: Gate::Private };
        let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), rules, 3600);
        let keys = RouterKeys::generate(&mut fill);
        let events = RefCell::new(Vec::new());
        let hear = |event: Event| events.borrow_mut().push(event);
        let (begun, counts) = (Cell::default(), Cell::default());
        let changes = ChangeReport { on_event: &hear, changed: &Notify::new(), begun, counts };
        let later = Time::ZERO + PERIOD;
        for second in 0..200 {
            let now = NOW + 2 * second;
            let entry = Entry::new("flood", "127.0.0.1:9".parse().unwrap(), &keys, (1000, true, now));
            let post = format!("token secret\n{}\n{}", proof(&keys), entry.line());
            authority.join(now, Ipv4Addr::LOCALHOST.into(), &post).unwrap();
            assert!(changes.report(&mut authority, later));
            authority.withdraw(now + 1, &withdrawal(&keys, now + 1)).unwrap();
            assert!(changes.report(&mut authority, later));
        }
        assert_eq!(events.borrow().len(), CHANGES as usize);
        assert!(!changes.report(&mut authority, later + PERIOD));
        assert_eq!(
            events.borrow().last(),
            Some(&Event::FurtherChanged { joined: 150, left: 150, moved: 0, relays: 0 })
        );
        // The next minute names changes again.
        let entry = Entry::new("late", "127.0.0.1:9".parse().unwrap(), &keys, (1000, true, NOW + 500));
        let post = format!("token secret\n{}\n{}", proof(&keys), entry.line());
        authority.join(NOW + 500, Ipv4Addr::LOCALHOST.into(), &post).unwrap();
        assert!(changes.report(&mut authority, later + PERIOD));
        assert!(matches!(events.borrow().last(), Some(Event::Changed(change)) if change.nickname == "late"));
    }

    /// After a start without the list of an earlier process.
    #[test]
    fn clients_get_a_list_when_relays_have_announced_themselves() {
        let token = Some("secret".to_owned());
        let rules = Admission { allowed: Vec::new(), token, per_address: 8, gate: Gate::Private };
        let mut authority = Authority::new(SigningKey::from_bytes(&[7; 32]), rules, 3600);
        let (begun, counts) = (Cell::default(), Cell::default());
        let changes = ChangeReport { on_event: &|_| {}, changed: &Notify::new(), begun, counts };
        let mut ask = |method, path: &str, body: String, opens| {
            let (from, path, body) = (Ipv4Addr::LOCALHOST.into(), path.to_owned(), body.into());
            answer(
                &mut authority,
                &Cell::default(),
                &PageRequest { from, method, path, body },
                &changes,
                opens,
            )
        };
        let later = clock::now() + ANNOUNCED;
        let early = ask(Method::GET, "/directory", String::new(), later);
        assert_eq!(early.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(early.headers()[RETRY_AFTER], "35");
        let keys = RouterKeys::generate(&mut fill);
        let entry = Entry::new("early", "127.0.0.1:9".parse().unwrap(), &keys, (1000, true, clock::unix()));
        let post = format!("token secret\n{}\n{}", proof(&keys), entry.line());
        assert_eq!(ask(Method::POST, "/relay", post, later).status(), StatusCode::OK);
        assert_eq!(ask(Method::GET, "/directory", String::new(), clock::now()).status(), StatusCode::OK);
    }
}
