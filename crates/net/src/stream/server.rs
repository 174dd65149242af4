//! The stream server on sockets: the machine, its connections and its source.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_stream::message::{Contact, Message};
use tidegate_stream::server::{self, Server};
use tidegate_stream::tree::NOBODY;
use tidegate_stream::{Output, SERVER};
use tokio::sync::mpsc;

use super::carrier::{Carrier, Channel, Event};
use super::hls::contents::Survey;
use super::path::Path;
use super::{input, quic};
use crate::clock;
use crate::driver::{Driver, Handler};
use crate::gate::Gate;
use crate::identity::{Identity, random};

/// Configuration of a server.
pub struct ServerConfig {
    /// The address that viewers connect to.
    pub listen: SocketAddr,
    /// The emulated path of its datagrams.
    pub path: Path,
    /// The source of the stream.
    pub input: input::Input,
    /// Configuration of the machine.
    pub machine: server::ServerConfig,
}

/// A server's state, as shown in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// TS rate of the source, bits per second.
    pub rate_bits_per_s: u64,
    /// Time since the source's last data, seconds.
    pub stalled_s: f64,
    /// Bytes of the source that were not TS.
    pub garbage_bytes: u64,
    /// Each stream of the source's program, subtitles and data included, and how clients pass it on.
    pub contents: Vec<String>,
    /// Data slices in use.
    pub slices: usize,
    /// The viewers in the trees.
    pub(crate) viewers: Vec<Viewer>,
    /// The trees' edges: slice, parent, child.
    pub edges: Vec<(usize, u16, u16)>,
    /// Subtrees without a parent.
    pub orphans: usize,
    /// Viewers that joined, were refused, left, died, and were redirected.
    pub joined: u64,
    /// See `joined`.
    pub refused: u64,
    /// See `joined`.
    pub left: u64,
    /// See `joined`.
    pub died: u64,
    /// See `joined`.
    pub redirected: u64,
    /// Complaints that moved a viewer, and complaints that were ignored.
    pub complaints_upheld: u64,
    /// See `complaints_upheld`.
    pub complaints_doubted: u64,
    /// Viewers relegated to leaves for misbehaviour.
    pub relegated: u64,
    /// Pongs that report packets which the stream does not have.
    pub forged: u64,
    /// Packets repaired, and repair requests refused.
    pub repaired: u64,
    /// See `repaired`.
    pub unrepaired: u64,
    /// Exploration packets sent, acknowledged and lost.
    pub explored: u64,
    /// See `explored`.
    pub explored_acked: u64,
    /// See `explored`.
    pub explored_lost: u64,
    /// Changes of parents.
    pub moves: u64,
    /// Bytes sent: video and exploration with the overhead of QUIC, UDP and IP, and all bytes.
    pub sent_video: u64,
    /// See `sent_video`.
    pub sent_exploration: u64,
    /// See `sent_video`.
    pub sent_all: u64,
    /// Processor time of the process.
    pub cpu_s: f64,
}

/// The server's view of a viewer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Viewer {
    /// Its peer number.
    pub peer: u16,
    /// Its address.
    pub address: String,
    /// The upload rate that it claims, bits per second.
    pub claim: f64,
    /// Its budget of children over all slices, and its children.
    pub budget: usize,
    /// See `budget`.
    pub children: usize,
    /// Round-trip time to the server.
    pub round_trip_ms: f64,
    /// From its report: median age of played packets, and packets played, lost, duplicate and recovered from parity.
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
/// Chunks of the source that wait for the machine.
const INPUT: usize = 256;
const BATCH: usize = 256;
/// How long viewers may repair the end of the stream: they skip a missing packet after 2 s.
const LINGER: Span = Span::from_secs(3);

/// Serves until `stop`, or until the source ends for good. `ready` gets the address and the fingerprint for viewers.
///
/// # Errors
/// If the socket cannot be bound or the source cannot be read, and [`io::ErrorKind::InvalidData`] if the source ends
/// without a TS packet.
pub async fn run(
    settings: ServerConfig,
    identity: Identity,
    shown: Arc<Mutex<Status>>,
    ready: impl FnOnce(SocketAddr, [u8; 32]),
    say: impl Fn(String) + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) -> io::Result<Status> {
    // A server dials no viewer.
    let (carrier, mut events) = Carrier::open(identity, settings.listen, settings.path, Gate::Public)?;
    let seed = Seed::root(u64::from_le_bytes(random()));
    let driver = Driver::new(Server::new(settings.machine, seed, &random()));
    let mut live = Live { driver, carrier, survey: Survey::default() };
    let (to, mut bytes) = mpsc::channel::<Bytes>(INPUT);
    let (source, say) = (settings.input.clone(), Arc::new(say));
    let warn = say.clone();
    let mut reading = tokio::spawn(async move { input::read(&source, to, &*warn).await });
    ready(live.carrier.address()?, live.carrier.fingerprint());
    tokio::pin!(stop);
    let mut status_at = clock::now();
    let mut ended = Ended::No;
    loop {
        let event = async {
            tokio::select! {
                event = events.recv() => Wake::Connection(event),
                chunk = bytes.recv(), if ended == Ended::No => Wake::Video(chunk),
                result = &mut reading, if ended == Ended::Read => Wake::Ended(result.unwrap_or(Ok(()))),
                () = &mut stop => Wake::Stop,
            }
        };
        match live.driver.wait(status_at, event).await {
            Some(Wake::Connection(Some(event))) => {
                live.event(event);
                live.batch(&mut events);
            }
            Some(Wake::Video(Some(chunk))) => {
                live.survey.push(&chunk);
                live.driver.machine.video(clock::now(), &chunk);
            }
            // The reader's result follows in the next turn.
            Some(Wake::Video(None)) => ended = Ended::Read,
            Some(Wake::Ended(result)) => {
                result?;
                live.survey.end()?;
                ended = Ended::Played;
                live.driver.machine.end(clock::now());
            }
            Some(Wake::Connection(None) | Wake::Stop) => break,
            None => {}
        }
        let now = clock::now();
        live.driver.catch_up(&mut live.carrier, now);
        // Viewers may still ask for packets that they miss.
        let linger = if live.driver.machine.forest().members().is_empty() { Span::ZERO } else { LINGER };
        if live.driver.machine.ended().is_some_and(|ended| now.since(ended) >= linger) {
            break;
        }
        if now >= status_at {
            status_at = now + STATUS;
            *shown.lock().expect("the lock is not poisoned") = live.status(now);
            live.survey.news(now).into_iter().chain(live.survey.warning(now)).for_each(&*say);
        }
    }
    reading.abort();
    live.survey.news(clock::now()).into_iter().for_each(&*say);
    let status = live.status(clock::now());
    *shown.lock().expect("the lock is not poisoned") = status.clone();
    live.carrier.close().await;
    Ok(status)
}

/// Whether the source ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    No,
    /// All of its bytes are read.
    Read,
    /// Its reader ended without an error, and the machine knows.
    Played,
}

/// Why the event loop wakes, besides timers.
enum Wake {
    /// Something happened on a connection; `None` once the endpoint is gone.
    Connection(Option<Event>),
    /// Bytes of the source; `None` at its end.
    Video(Option<Bytes>),
    /// The source's reader has ended.
    Ended(io::Result<()>),
    Stop,
}

struct Live {
    driver: Driver<Server>,
    carrier: Carrier,
    survey: Survey,
}

impl Handler<Server> for Carrier {
    fn handle(&mut self, _: &mut Server, _: Time, output: Output) {
        self.act(output);
    }
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
                    return connection.close(2u32.into(), b"no certificate");
                };
                let contact = Contact { address: connection.remote_address(), fingerprint };
                match self.driver.machine.connect(now, contact) {
                    Ok(peer) => self.carrier.attach(peer, connection, Channel::Accept),
                    Err(refusal) => {
                        // A refused viewer gets an answer, but no peer number.
                        self.carrier.attach(NOBODY, connection, Channel::Accept);
                        self.carrier.message(NOBODY, &Message::Refused(refusal));
                        self.carrier.part(NOBODY);
                    }
                }
            }
            event => {
                if let Some(input) = self.carrier.input(event) {
                    self.driver.machine.handle(now, input);
                }
            }
        }
        self.driver.drain(&mut self.carrier, now);
    }

    fn status(&self, now: Time) -> Status {
        let server = &self.driver.machine;
        let (forest, source) = (server.forest(), server.source());
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
            contents: self.survey.contents(),
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
            cpu_s: tidegate_kernel::process_cpu_s(),
        }
    }
}
