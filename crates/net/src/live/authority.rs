//! The directory authority's HTTP server: relays post entries, clients and relays fetch the signed directory.

use std::cell::{Cell, RefCell};

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tidegate_control::units::{Span, Time};
use tokio::net::TcpListener;

use super::directory::{Authority, Change, Happened};
use super::weights::Source;
use crate::clock;
use crate::http::{PageRequest, answers, serve_public};

/// Interval of reading the measured weights, and of removing silent relays.
const LOOK: Span = Span::from_secs(5);
/// Changes with an event of their own per [`PERIOD`]. A holder of the token can cause hundreds a second.
const CHANGES: u32 = 100;
/// See [`CHANGES`].
const PERIOD: Span = Span::from_secs(60);

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
}

/// Serves until dropped, with the weights of `source` if there is one. Must run inside a [`tokio::task::LocalSet`].
pub async fn run(
    authority: Authority,
    source: Option<Source>,
    listener: TcpListener,
    on_event: impl Fn(Event),
) {
    let (authority, signed) = (RefCell::new(authority), Cell::default());
    let changes = ChangeReport { on_event: &on_event, begun: Cell::default(), counts: Cell::default() };
    let (router, answering) = answers(|asked| answer(&mut authority.borrow_mut(), &signed, &asked, &changes));
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
        () = expire(&authority, &changes) => {}
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
        let changes = ChangeReport { on_event: &hear, begun: Cell::default(), counts: Cell::default() };
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
}
