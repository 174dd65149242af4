//! A viewer on sockets: the machine, its connections, what plays it.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::message::Fingerprint;
use tidegate_stream::lag::Lags;
use tidegate_stream::message::Refusal;
use tidegate_stream::packet::{self, Share};
use tidegate_stream::viewer::{self, Phase, Viewer};
use tidegate_stream::{Input, Output, SERVER};
use tokio::sync::{broadcast, mpsc};

use super::carrier::{Carrier, Channel, Event};
use super::hls::Hls;
use super::path::Path;
use crate::clock;
use crate::identity::Identity;
use crate::os::process_cpu_s;

/// How a viewer takes part.
pub struct Settings {
    /// Where the server is.
    pub server: SocketAddr,
    /// How it is recognised; whoever answers is believed if there is none.
    pub fingerprint: Option<Fingerprint>,
    /// Where other viewers find this one.
    pub listen: SocketAddr,
    /// What its datagrams pass.
    pub path: Path,
    /// The machine's.
    pub machine: viewer::ViewerConfig,
    /// Passes no video on: what others are to be safe from.
    pub free_ride: bool,
}

/// What a viewer shows: shared with the pages.
pub struct Screen {
    /// The stream as it is played; who is too slow misses some.
    pub live: broadcast::Sender<Bytes>,
    /// The same in segments.
    pub hls: Mutex<Hls>,
    /// The last status.
    pub status: Mutex<Status>,
}

/// Payloads that a slow player may be behind.
const BEHIND: usize = 2048;

impl Default for Screen {
    fn default() -> Screen {
        Screen { live: broadcast::channel(BEHIND).0, hls: Mutex::default(), status: Mutex::default() }
    }
}

/// How a viewer fares. Ends up in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// joining, in, refused, alone.
    pub phase: String,
    /// Why it is refused.
    pub refused: Option<String>,
    /// Packets played, given up, that came twice, came too late, were made from parity.
    pub delivered: u64,
    /// See `delivered`.
    pub gaps: u64,
    /// See `delivered`.
    pub duplicates: u64,
    /// See `delivered`.
    pub late: u64,
    /// See `delivered`.
    pub recovered: u64,
    /// Packets that the stream is ahead of the player.
    pub behind: u64,
    /// From the first word to the server to the first byte played.
    pub start_up_s: Option<f64>,
    /// How long slices that fell silent were silent, the last ones.
    pub outages_ms: Vec<u32>,
    /// Half and all but a twentieth of the packets were younger when played.
    pub lag_p50_s: f64,
    /// See `lag_p50_s`.
    pub lag_p95_s: f64,
    /// Packets by age when played, in steps of 10 ms.
    pub lags: Lags,
    /// Bytes of video sent with what QUIC, UDP and IP add to a packet, of exploration, and of everything.
    pub sent_video: u64,
    /// See `sent_video`.
    pub sent_exploration: u64,
    /// See `sent_video`.
    pub sent_all: u64,
    /// Children over all slices.
    pub children: usize,
    /// Parents by slice.
    pub parents: Vec<u16>,
    /// Datagrams and messages that were not what or from whom they should be.
    pub strange: u64,
    /// Processor time of the process.
    pub cpu_s: f64,
}

const STATUS: Span = Span::from_millis(500);
/// Between attempts to reach the server.
const AGAIN: Span = Span::from_secs(1);
/// Events handled before outputs are drained.
const BATCH: usize = 128;

struct Live<'a> {
    settings: Settings,
    viewer: Viewer,
    carrier: Carrier,
    screen: &'a Screen,
    out: Option<std::sync::mpsc::SyncSender<Bytes>>,
    began: Time,
    first: Option<Time>,
    dial_at: Time,
}

/// Watches until `stop`, or until the server refuses. Everything played also goes to `out`.
///
/// # Errors
/// If the socket cannot be bound, and [`io::ErrorKind::ConnectionRefused`] with the server's reason.
pub async fn run(
    settings: Settings,
    identity: Identity,
    screen: Arc<Screen>,
    out: Option<std::sync::mpsc::SyncSender<Bytes>>,
    stop: impl Future<Output = ()>,
) -> io::Result<Status> {
    let (carrier, mut events) = Carrier::open(identity, settings.listen, settings.path)?;
    let viewer = Viewer::new(settings.machine.clone());
    let now = clock::now();
    let mut live =
        Live { settings, viewer, carrier, screen: &screen, out, began: now, first: None, dial_at: now };
    tokio::pin!(stop);
    let mut status_at = now;
    loop {
        let next = live.viewer.next_timeout().unwrap_or(Time::NEVER).min(status_at).min(live.dial_at);
        tokio::select! {
            event = events.recv() => {
                let Some(event) = event else { break };
                live.event(event);
                live.batch(&mut events);
            }
            () = clock::until(next) => {}
            () = &mut stop => break,
        }
        let now = clock::now();
        if live.viewer.next_timeout().is_some_and(|due| due <= now) {
            live.viewer.timeout(now);
        }
        if now >= live.dial_at {
            live.dial_at = Time::NEVER;
            live.carrier.dial(SERVER, live.settings.server, live.settings.fingerprint, true);
        }
        live.drain(now);
        if now >= status_at {
            status_at = now + STATUS;
            live.show();
        }
        if let Phase::Refused(refusal) = live.viewer.phase() {
            live.show();
            if let Refusal::Redirect(to) = *refusal {
                live.redirect(to);
                continue;
            }
            let why = refusal.to_string();
            live.carrier.close().await;
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, why));
        }
    }
    live.viewer.leave();
    live.drain(clock::now());
    let status = live.show();
    live.carrier.close().await;
    Ok(status)
}

impl Live<'_> {
    fn batch(&mut self, events: &mut mpsc::Receiver<Event>) {
        for _ in 0..BATCH {
            let Ok(event) = events.try_recv() else { return };
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Accepted(connection) => self.carrier.accepted(connection),
            Event::Dialed(SERVER, Some(connection)) => {
                self.carrier.attach(SERVER, connection, Channel::Open);
                self.viewer.begin(now);
            }
            Event::Dialed(SERVER, None) => self.dial_at = now + AGAIN,
            Event::Dialed(peer, connection) => self.carrier.dialed(peer, connection),
            event => {
                let Some(input) = self.carrier.input(event) else { return };
                if matches!(input, Input::Lost(SERVER)) {
                    self.dial_at = now + AGAIN;
                }
                self.viewer.handle(now, input);
            }
        }
    }

    fn redirect(&mut self, to: SocketAddr) {
        self.settings.server = to;
        self.carrier.part(SERVER);
        self.viewer.turn_elsewhere();
        self.dial_at = clock::now();
        // The other server proves itself by nothing that this one said.
        self.settings.fingerprint = None;
    }

    fn drain(&mut self, now: Time) {
        while let Some(output) = self.viewer.poll() {
            if let Output::Datagram { bytes, .. } = &output
                && self.settings.free_ride
                && packet::share(bytes) == Share::Video
            {
                continue;
            }
            if let Some(bytes) = self.carrier.act(output) {
                self.play(now, bytes);
            }
        }
    }

    fn play(&mut self, now: Time, bytes: Bytes) {
        self.first.get_or_insert(now);
        self.screen.hls.lock().expect("nobody panics with the lock held").push(now, &bytes);
        if let Some(out) = &self.out {
            // A reader that is behind by the whole channel misses some, as a player would.
            let _ = out.try_send(bytes.clone());
        }
        // Nobody may be watching.
        let _ = self.screen.live.send(bytes);
    }

    fn show(&self) -> Status {
        let packets = self.viewer.packets();
        let accounts = self.carrier.accounts();
        let lags = self.viewer.lags();
        let (phase, refused) = match self.viewer.phase() {
            Phase::Joining => ("joining", None),
            Phase::In(_) => ("in", None),
            Phase::Alone => ("alone", None),
            Phase::Refused(refusal) => ("refused", Some(refusal.to_string())),
        };
        let status = Status {
            phase: phase.into(),
            refused,
            delivered: packets.delivered,
            gaps: packets.gaps,
            duplicates: packets.duplicates,
            late: packets.late,
            recovered: packets.recovered,
            behind: self.viewer.behind(),
            start_up_s: self.first.map(|first| first.since(self.began).as_secs_f64()),
            outages_ms: self.viewer.counts().outages.iter().copied().collect(),
            lag_p50_s: lags.quantile(0.5) as f64 / 1e3,
            lag_p95_s: lags.quantile(0.95) as f64 / 1e3,
            lags: lags.clone(),
            sent_video: accounts.video,
            sent_exploration: accounts.exploration,
            sent_all: accounts.all,
            children: self.viewer.places().map(|(_, children)| children.len()).sum(),
            parents: self.viewer.places().map(|(parent, _)| parent).collect(),
            strange: self.viewer.counts().strange,
            cpu_s: process_cpu_s(),
        };
        *self.screen.status.lock().expect("nobody panics with the lock held") = status.clone();
        status
    }
}
