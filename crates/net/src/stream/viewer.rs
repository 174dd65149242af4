//! A stream viewer on sockets: the machine, its connections and the player.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::Fingerprint;
use tidegate_stream::lag::Lags;
use tidegate_stream::message::Refusal;
use tidegate_stream::packet::{self, Share};
use tidegate_stream::viewer::{self, Phase, Viewer};
use tidegate_stream::{Input, Output, SERVER};
use tokio::sync::{broadcast, mpsc};

use super::carrier::{Carrier, Channel, DialError, Event};
use super::hls::{Hls, Part};
use super::moq::Advertised;
use super::path::Path;
use crate::clock;
use crate::driver::{Driver, Handler};
use crate::gate::Gate;
use crate::identity::Identity;

/// Configuration of a viewer.
pub struct ViewerConfig {
    /// The server's address.
    pub server: SocketAddr,
    /// The server's fingerprint; `None` accepts any server.
    pub fingerprint: Option<Fingerprint>,
    /// The address for other viewers.
    pub listen: SocketAddr,
    /// The emulated path of its datagrams.
    pub path: Path,
    /// Configuration of the machine.
    pub machine: viewer::ViewerConfig,
    /// Its conduct, to test defences.
    pub conduct: Conduct,
    /// The viewers that it may forward to.
    pub gate: Gate,
}

/// The treatment of datagrams that a viewer forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduct {
    /// It forwards them.
    Honest,
    /// It forwards exploration packets, but neither video nor manifests.
    FreeRides,
    /// It alters those of this account.
    Forges(Share),
}

/// The viewer's output, shared with its HTTP pages.
pub struct Screen {
    /// The stream as it is played. Slow receivers miss data. No bytes mean that the stream ended.
    pub live: broadcast::Sender<Bytes>,
    /// The stream in HLS segments.
    pub hls: Mutex<Hls>,
    /// The last status.
    pub status: Mutex<Status>,
    /// The edge of Media over QUIC, for the page that reads from it.
    pub(crate) edge: Mutex<Option<Advertised>>,
    /// Takes the segments as they grow.
    pub(crate) follower: Mutex<Option<Follower>>,
}

/// Takes the parts of segments, at the time that they are played.
pub(crate) type Follower = Box<dyn FnMut(Time, Part) + Send>;

/// Payloads that a slow player may lag behind.
const BEHIND: usize = 2048;

impl Default for Screen {
    fn default() -> Screen {
        let (hls, status, edge, follower) = Default::default();
        Screen { live: broadcast::channel(BEHIND).0, hls, status, edge, follower }
    }
}

impl Screen {
    /// Shows whole TS packets. No bytes mean that the stream ended.
    pub fn play(&self, now: Time, bytes: Bytes) {
        let parts = {
            let mut hls = self.hls.lock().expect("the lock is not poisoned");
            if bytes.is_empty() {
                hls.end(now)
            } else {
                hls.push(now, &bytes)
            }
            hls.take_parts()
        };
        if let Some(follower) = &mut *self.follower.lock().expect("the lock is not poisoned") {
            parts.into_iter().for_each(|part| follower(now, part));
        }
        // Fails without a player on the page.
        let _ = self.live.send(bytes);
    }
}

/// A viewer's state, as shown in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// `joining`, `in`, `refused` or `alone`.
    pub phase: String,
    /// Why the server refused it.
    pub refused: Option<String>,
    /// Why the server cannot be reached, or why segments of HLS are missing or hold sound only.
    pub problem: Option<String>,
    /// Each stream of the program, subtitles and data included, and how players get it.
    pub contents: Vec<String>,
    /// Packets played, lost, duplicate, late, and recovered from parity.
    pub delivered: u64,
    /// See `delivered`.
    pub gaps: u64,
    /// See `delivered`.
    pub duplicates: u64,
    /// See `delivered`.
    pub late: u64,
    /// See `delivered`.
    pub recovered: u64,
    /// Packets between the player and the newest packet of the stream.
    pub behind: u64,
    /// Time from the first message to the server to the first byte played.
    pub start_up_s: Option<f64>,
    /// Durations of the last outages of slices.
    pub outages_ms: Vec<u32>,
    /// Median and 95th percentile of the packets' age when played.
    pub lag_p50_s: f64,
    /// See `lag_p50_s`.
    pub lag_p95_s: f64,
    /// Histogram of the packets' age when played, in classes of 10 ms.
    pub lags: Lags,
    /// Bytes sent: video and exploration with the overhead of QUIC, UDP and IP, and all bytes.
    pub sent_video: u64,
    /// See `sent_video`.
    pub sent_exploration: u64,
    /// See `sent_video`.
    pub sent_all: u64,
    /// Children over all slices.
    pub children: usize,
    /// Parents by slice.
    pub parents: Vec<u16>,
    /// Datagrams and messages that were invalid or from the wrong peer.
    pub strange: u64,
    /// Packets and manifests that the server did not sign. They are dropped.
    pub forged: u64,
    /// Processor time of the process.
    pub cpu_s: f64,
}

const STATUS: Span = Span::from_millis(500);
/// Pause between attempts to connect to the server.
const AGAIN: Span = Span::from_secs(1);
/// Pause between two messages about the same failure to connect.
const SAY_AGAIN: Span = Span::from_secs(60);
/// Events per turn.
const BATCH: usize = 128;

struct Live<'a> {
    driver: Driver<Viewer>,
    player: Player<'a>,
    server: SocketAddr,
    fingerprint: Option<Fingerprint>,
    began: Time,
    /// When the server is dialled next.
    dial_at: Time,
    trouble: Trouble,
}

/// Why the server cannot be reached.
#[derive(Default)]
struct Trouble {
    /// The last failure since the last connection.
    cause: Option<DialError>,
    /// When it was said.
    said_at: Time,
}

impl Trouble {
    /// Notes a failed dial. Returns whether it is to be said: a failure that lasts is said once a minute.
    fn note(&mut self, now: Time, cause: DialError) -> bool {
        let is_new = self.cause.as_ref() != Some(&cause) || now.since(self.said_at) >= SAY_AGAIN;
        if is_new {
            (self.cause, self.said_at) = (Some(cause), now);
        }
        is_new
    }

    /// Describes the failure to reach this server; `None` without one.
    fn describe(&self, server: SocketAddr) -> Option<String> {
        self.cause.as_ref().map(|cause| match cause {
            DialError::Fingerprint => format!(
                "the server at {server} has another fingerprint than --fingerprint: copy the one that it prints at its \
                 start (it is another one after each start without --identity)"
            ),
            DialError::Other(cause) => format!(
                "cannot reach the server at {server}: {cause}; check --server, whether the server runs, and whether a \
                 firewall blocks UDP"
            ),
        })
    }
}

/// Carries out the viewer's outputs: sends datagrams and plays the stream.
struct Player<'a> {
    carrier: Carrier,
    screen: &'a Screen,
    out: Option<std::sync::mpsc::SyncSender<Bytes>>,
    conduct: Conduct,
    /// When the first byte was played.
    first: Option<Time>,
}

impl Handler<Viewer> for Player<'_> {
    fn handle(&mut self, _: &mut Viewer, now: Time, mut output: Output) {
        if let Output::Datagram { bytes, .. } = &mut output {
            let share = packet::share(bytes);
            match self.conduct {
                Conduct::FreeRides if [Share::Video, Share::Signatures].contains(&share) => return,
                Conduct::Forges(what) if share == what => *bytes = packet::altered(bytes),
                _ => {}
            }
        }
        if let Some(bytes) = self.carrier.act(output) {
            self.play(now, bytes);
        }
    }
}

impl Player<'_> {
    fn play(&mut self, now: Time, bytes: Bytes) {
        self.first.get_or_insert(now);
        if let Some(out) = &self.out {
            // A reader that falls behind by the whole channel misses packets, as a player would.
            let _ = out.try_send(bytes.clone());
        }
        self.screen.play(now, bytes);
    }
}

/// Watches until `stop`, or until the server refuses. `out` also gets all data that is played, `say` gets warnings.
///
/// # Errors
/// If the socket cannot be bound or the server has another fingerprint, and [`io::ErrorKind::ConnectionRefused`] with
/// the server's reason.
pub async fn run(
    settings: ViewerConfig,
    identity: Identity,
    screen: Arc<Screen>,
    out: Option<std::sync::mpsc::SyncSender<Bytes>>,
    say: impl Fn(String),
    stop: impl Future<Output = ()>,
) -> io::Result<Status> {
    let (carrier, mut events) = Carrier::open(identity, settings.listen, settings.path, settings.gate)?;
    let ViewerConfig { server, fingerprint, machine, conduct, .. } = settings;
    let has_token = machine.token != [0; 16];
    let now = clock::now();
    let mut live = Live {
        driver: Driver::new(Viewer::new(machine)),
        player: Player { carrier, screen: &screen, out, conduct, first: None },
        server,
        fingerprint,
        began: now,
        dial_at: now,
        trouble: Trouble::default(),
    };
    tokio::pin!(stop);
    let mut status_at = now;
    loop {
        let event = async {
            tokio::select! {
                event = events.recv() => event,
                () = &mut stop => None,
            }
        };
        match live.driver.wait(status_at.min(live.dial_at), event).await {
            Some(Some(event)) => {
                live.event(event, &say);
                live.batch(&mut events, &say);
            }
            Some(None) => break,
            None => {}
        }
        let now = clock::now();
        if now >= live.dial_at {
            live.dial_at = Time::NEVER;
            live.player.carrier.dial(SERVER, live.server, live.fingerprint, true);
        }
        live.driver.catch_up(&mut live.player, now);
        if now >= status_at {
            status_at = now + STATUS;
            screen.hls.lock().expect("the lock is not poisoned").idle(now);
            live.show();
        }
        if live.trouble.cause == Some(DialError::Fingerprint) {
            live.show();
            let why = live.trouble.describe(live.server).expect("it has a cause");
            live.player.carrier.close().await;
            return Err(io::Error::other(why));
        }
        // A refusal ends the viewer; a redirect makes it try the other server.
        if let Phase::Refused(refusal) = live.driver.machine.phase() {
            live.show();
            if let Refusal::Redirect(to) = *refusal
                && settings.gate.check(to).is_ok()
            {
                live.redirect(to);
                continue;
            }
            let why = match refusal {
                Refusal::Token if !has_token => {
                    "the server asks for a token; give a copy of the server's token file as --token-file"
                        .into()
                }
                refusal => refusal.to_string(),
            };
            live.player.carrier.close().await;
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, why));
        }
    }
    live.driver.input(&mut live.player, |viewer, _| viewer.leave());
    let status = live.show();
    live.player.carrier.close().await;
    Ok(status)
}

impl Live<'_> {
    fn batch(&mut self, events: &mut mpsc::Receiver<Event>, say: &dyn Fn(String)) {
        for _ in 0..BATCH {
            let Ok(event) = events.try_recv() else { return };
            self.event(event, say);
        }
    }

    fn event(&mut self, event: Event, say: &dyn Fn(String)) {
        let now = clock::now();
        match event {
            Event::Accepted(connection) => self.player.carrier.accepted(connection),
            Event::Dialed(SERVER, Ok(connection)) => {
                if self.trouble.cause.take().is_some() {
                    say(format!("connected to the server at {}", self.server));
                }
                self.player.carrier.attach(SERVER, connection, Channel::Open);
                self.driver.machine.begin(now);
            }
            Event::Dialed(SERVER, Err(cause)) => {
                self.dial_at = now + AGAIN;
                let is_final = cause == DialError::Fingerprint;
                if self.trouble.note(now, cause) && !is_final {
                    self.trouble.describe(self.server).into_iter().for_each(say);
                }
            }
            Event::Dialed(peer, connection) => self.player.carrier.dialed(peer, connection),
            event => {
                let Some(input) = self.player.carrier.input(event) else { return };
                if matches!(input, Input::Lost(SERVER)) {
                    self.dial_at = now + AGAIN;
                }
                self.driver.machine.handle(now, input);
            }
        }
    }

    fn redirect(&mut self, to: SocketAddr) {
        self.server = to;
        self.player.carrier.part(SERVER);
        self.driver.machine.turn_elsewhere();
        self.dial_at = clock::now();
        // This server does not vouch for the other one.
        self.fingerprint = None;
    }

    fn show(&self) -> Status {
        let packets = self.driver.machine.packets();
        let accounts = self.player.carrier.accounts();
        let lags = self.driver.machine.lags();
        let (phase, refused) = match self.driver.machine.phase() {
            Phase::Joining => ("joining", None),
            Phase::In(_) => ("in", None),
            Phase::Alone => ("alone", None),
            Phase::Refused(refusal) => ("refused", Some(refusal.to_string())),
        };
        let hls = self.player.screen.hls.lock().expect("the lock is not poisoned");
        let problem = match self.driver.machine.phase() {
            _ if self.trouble.cause.is_some() => self.trouble.describe(self.server),
            // The server has not sent the stream yet.
            Phase::Joining => Some(format!("waiting for an answer of the server at {}", self.server)),
            _ => hls.problem().map(|problem| problem.to_string()),
        };
        let contents = hls.contents();
        drop(hls);
        let status = Status {
            phase: phase.into(),
            refused,
            problem,
            contents,
            delivered: packets.delivered,
            gaps: packets.gaps,
            duplicates: packets.duplicates,
            late: packets.late,
            recovered: packets.recovered,
            behind: self.driver.machine.behind(),
            start_up_s: self.player.first.map(|first| first.since(self.began).as_secs_f64()),
            outages_ms: self.driver.machine.counts().outages.iter().copied().collect(),
            lag_p50_s: lags.quantile(0.5) as f64 / 1e3,
            lag_p95_s: lags.quantile(0.95) as f64 / 1e3,
            lags: lags.clone(),
            sent_video: accounts.video,
            sent_exploration: accounts.exploration,
            sent_all: accounts.all,
            children: self.driver.machine.places().map(|(_, children)| children.len()).sum(),
            parents: self.driver.machine.places().map(|(parent, _)| parent).collect(),
            strange: self.driver.machine.counts().strange,
            forged: self.driver.machine.counts().forged,
            cpu_s: tidegate_kernel::process_cpu_s(),
        };
        *self.player.screen.status.lock().expect("the lock is not poisoned") = status.clone();
        status
    }
}
