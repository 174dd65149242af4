//! The server on sockets: the machine, its connections, its input.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_control::machine::Machine as _;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_stream::SERVER;
use tidegate_stream::message::{Contact, Message};
use tidegate_stream::server::{self, Server};
use tidegate_stream::tree::NOBODY;
use tokio::sync::mpsc;

use super::carrier::{Carrier, Channel, Event};
use super::path::Path;
use super::{input, quic};
use crate::clock;
use crate::identity::{Identity, random};
use crate::os::process_cpu_s;

/// How a server serves.
pub struct Settings {
    /// Where viewers find it.
    pub listen: SocketAddr,
    /// What its datagrams pass.
    pub path: Path,
    /// Where the stream comes from.
    pub input: input::Input,
    /// The machine's.
    pub machine: server::ServerConfig,
}

/// How a server fares. Ends up in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// TS bits per second of the source, lately.
    pub rate_bits_per_s: u64,
    /// For how long the source gave nothing.
    pub stalled_s: f64,
    /// Bytes of the source that were no TS.
    pub garbage_bytes: u64,
    /// Data slices in use.
    pub slices: usize,
    /// Viewers that are in.
    pub viewers: Vec<Viewer>,
    /// The trees: slice, parent, child.
    pub edges: Vec<(usize, u16, u16)>,
    /// Subtrees without a parent.
    pub orphans: usize,
    /// Viewers let in, refused, that left, that died, sent away.
    pub joined: u64,
    /// See `joined`.
    pub refused: u64,
    /// See `joined`.
    pub left: u64,
    /// See `joined`.
    pub died: u64,
    /// See `joined`.
    pub redirected: u64,
    /// Complaints that moved somebody, and those that were not listened to.
    pub complaints_upheld: u64,
    /// See `complaints_upheld`.
    pub complaints_doubted: u64,
    /// Viewers made leaves for what they did.
    pub relegated: u64,
    /// Pongs that told of packets that are not the stream's.
    pub forged: u64,
    /// Packets repaired, and requests refused.
    pub repaired: u64,
    /// See `repaired`.
    pub unrepaired: u64,
    /// Exploration packets sent, acknowledged, lost.
    pub explored: u64,
    /// See `explored`.
    pub explored_acked: u64,
    /// See `explored`.
    pub explored_lost: u64,
    /// Changes of parents.
    pub moves: u64,
    /// Bytes of video sent with what QUIC, UDP and IP add to a packet, of exploration, and of everything.
    pub sent_video: u64,
    /// See `sent_video`.
    pub sent_exploration: u64,
    /// See `sent_video`.
    pub sent_all: u64,
    /// Processor time of the process.
    pub cpu_s: f64,
}

/// A viewer as the server sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Viewer {
    /// Its number.
    pub peer: u16,
    /// Where it is.
    pub address: String,
    /// What it says it can send, bits per second.
    pub claim: f64,
    /// Children over all slices that it may have, and has.
    pub budget: usize,
    /// See `budget`.
    pub children: usize,
    /// Round trip to the server.
    pub round_trip_ms: f64,
    /// What it reported: median age of packets played, packets played, given up, twice, from parity.
    pub lag_ms: u32,
    /// See `lag_ms`.
    pub delivered: u32,
    /// See `lag_ms`.
    pub gaps: u32,
    /// See `lag_ms`.
    pub duplicates: u32,
    /// See `lag_ms`.
    pub recovered: u32,
}

const STATUS: Span = Span::from_millis(500);
/// Chunks of the source that wait.
const INPUT: usize = 256;
const BATCH: usize = 256;

/// Serves until `stop` or until the source ends for good. `ready` hears where and how viewers find it.
///
/// # Errors
/// If the socket cannot be bound or the source cannot be read.
pub async fn run(
    settings: Settings,
    identity: Identity,
    shown: Arc<Mutex<Status>>,
    ready: impl FnOnce(SocketAddr, [u8; 32]),
    say: impl Fn(String) + Send + 'static,
    stop: impl Future<Output = ()>,
) -> io::Result<Status> {
    let (carrier, mut events) = Carrier::open(identity, settings.listen, settings.path)?;
    let seed = Seed::root(u64::from_le_bytes(random()));
    let mut live = Live { server: Server::new(settings.machine, seed), carrier };
    let (to, mut bytes) = mpsc::channel::<Bytes>(INPUT);
    let source = settings.input.clone();
    let mut reading = tokio::spawn(async move { input::read(&source, to, say).await });
    ready(live.carrier.address()?, live.carrier.fingerprint());
    tokio::pin!(stop);
    let mut status_at = clock::now();
    let mut ended = false;
    loop {
        let next = live.server.next_timeout().unwrap_or(Time::NEVER).min(status_at);
        tokio::select! {
            event = events.recv() => {
                let Some(event) = event else { break };
                live.event(event);
                live.batch(&mut events);
            }
            chunk = bytes.recv(), if !ended => match chunk {
                Some(chunk) => live.server.video(clock::now(), &chunk),
                None => ended = true,
            },
            result = &mut reading, if ended => {
                result.unwrap_or(Ok(()))?;
                break;
            }
            () = clock::until(next) => {}
            () = &mut stop => break,
        }
        let now = clock::now();
        if live.server.next_timeout().is_some_and(|due| due <= now) {
            live.server.timeout(now);
        }
        live.drain();
        if now >= status_at {
            status_at = now + STATUS;
            *shown.lock().expect("nobody panics with the lock held") = live.status(now);
        }
    }
    reading.abort();
    let status = live.status(clock::now());
    *shown.lock().expect("nobody panics with the lock held") = status.clone();
    live.carrier.close().await;
    Ok(status)
}

struct Live {
    server: Server,
    carrier: Carrier,
}

impl Live {
    fn batch(&mut self, events: &mut mpsc::Receiver<Event>) {
        for _ in 0..BATCH {
            let Ok(event) = events.try_recv() else { return };
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Accepted(connection) => {
                let Some(fingerprint) = quic::peer(&connection) else {
                    return connection.close(2u32.into(), b"who are you");
                };
                let contact = Contact { address: connection.remote_address(), fingerprint };
                match self.server.connect(now, contact) {
                    Ok(peer) => self.carrier.attach(peer, connection, Channel::Accept),
                    Err(refusal) => {
                        // Without a number it gets an answer and nothing else.
                        self.carrier.attach(NOBODY, connection, Channel::Accept);
                        self.carrier.message(NOBODY, &Message::Refused(refusal));
                        self.carrier.part(NOBODY);
                    }
                }
            }
            event => {
                if let Some(input) = self.carrier.input(event) {
                    self.server.handle(now, input);
                }
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.server.poll() {
            self.carrier.act(output);
        }
    }

    fn status(&self, now: Time) -> Status {
        let (server, forest, source) = (&self.server, self.server.forest(), self.server.source());
        let accounts = self.carrier.accounts();
        let counters = server.counters;
        let explored = server.exploration();
        let mut members = forest.members().to_vec();
        members.sort_unstable();
        let viewers = members.iter().filter_map(|peer| {
            let member = server.member(*peer)?;
            let (budget, children) = forest.load(*peer);
            let report = &member.report;
            Some(Viewer {
                peer: *peer,
                address: member.contact.address.to_string(),
                claim: member.claim,
                budget,
                children,
                round_trip_ms: member.round_trip / 1e3,
                lag_ms: report.lag,
                delivered: report.delivered,
                gaps: report.gaps,
                duplicates: report.duplicates,
                recovered: report.recovered,
            })
        });
        let edges = (0..forest.slices()).flat_map(|slice| {
            let parent = move |peer: &u16| (slice, forest.tree(slice).parent(*peer), *peer);
            members.iter().map(parent).filter(|(_, parent, _)| *parent != NOBODY)
        });
        let (budget, children) = forest.load(SERVER);
        let own = Viewer { peer: SERVER, address: "server".into(), budget, children, ..Viewer::default() };
        Status {
            rate_bits_per_s: source.rate().0,
            stalled_s: source.stalled(now).as_secs_f64(),
            garbage_bytes: source.garbage(),
            slices: source.active(),
            viewers: std::iter::once(own).chain(viewers).collect(),
            edges: edges.collect(),
            orphans: forest.orphans(),
            joined: counters.joined,
            refused: counters.refused,
            left: counters.left,
            died: counters.died,
            redirected: counters.redirected,
            complaints_upheld: counters.upheld,
            complaints_doubted: server.doubted(),
            relegated: counters.relegated,
            forged: counters.forged,
            repaired: counters.repaired,
            unrepaired: counters.unrepaired,
            explored: explored.sent,
            explored_acked: explored.acked,
            explored_lost: explored.lost,
            moves: counters.moves,
            sent_video: accounts.video,
            sent_exploration: accounts.exploration,
            sent_all: accounts.all,
            cpu_s: process_cpu_s(),
        }
    }
}
