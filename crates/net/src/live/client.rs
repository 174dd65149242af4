//! The client role: carries the connections of local applications as streams over circuits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_proto::cell::{EndReason, RelayId};
use tidegate_proto::client::Client as Node;
use tidegate_proto::conflux::Wish;
use tidegate_proto::crypto::encrypted::Encrypted;
use tidegate_proto::crypto::message;
use tidegate_proto::crypto::names::{Router, SharedNames, Target};
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::links::Config;
use tidegate_proto::node::{CircuitKey, Node as _, Output, StreamKey};
use tidegate_proto::transport::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::channel::Links;
use super::choice::{self, Avoided, Known};
use super::directory::{self, Directory};
use super::fetch::fetch;

use super::stream::{self, AtEnd, Local, Locals};
use crate::admission::next_connection;
use crate::clock;
use crate::identity::random;
use crate::link::within;
use crate::overlay::{Handle, Overlay, Owner, Unlimited};
use crate::proxy::{self, Accepts, Handshake, Outcome, Protocol, Step};
use crate::runtime::Running;

type OnSockets = Overlay<Node<Encrypted>, Unlimited, Rc<Links>>;

/// Configuration of a client.
pub struct ClientConfig {
    /// The directory's address and its signing key.
    pub directory: (SocketAddr, [u8; 32]),
    /// Configuration of the node.
    pub config: Config,
    /// Relays per circuit.
    pub hops: usize,
    /// The relays of all circuits, by nickname, guard first. Without it the client selects them.
    pub path: Option<Vec<String>>,
}

/// Timeouts of the application's handshake, of building a circuit (as long as tor's without measurements), and of
/// connecting a stream.
const HANDSHAKE: Span = Span::from_secs(10);
const BUILDING: Span = Span::from_secs(60);
const CONNECTING: Span = Span::from_secs(60);
/// Timeout of a second circuit: this multiple of the first one's building time, and at least [`LEAST_PATIENCE`].
const PATIENCE: u64 = 4;
const LEAST_PATIENCE: Span = Span::from_secs(1);
/// Circuits tried per stream, and the pause after the first failure. The pause doubles each time, to 2.5 s in all.
const ATTEMPTS: u32 = 8;
const PAUSE: Span = Span::from_millis(20);
/// Maximum number of application connections.
const CONNECTIONS: usize = 4096;
/// Refresh interval of the directory, and the interval after a failed fetch or circuit: relays may have moved.
const REFRESH: Span = Span::from_secs(30);
const AGAIN: Span = Span::from_millis(500);

/// An event that the user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client has a directory with this number of relays.
    Directory(usize),
    /// Fetching the directory failed, and why.
    NoDirectory(String),
    /// A circuit over these relays is built.
    Built(Vec<String>),
}

/// A circuit of this client.
struct Circuit {
    /// The user that owns its streams. The second circuit of a pair has no user.
    user: Option<String>,
    path: Vec<String>,
    /// It is linked to a second circuit.
    pair: bool,
    stage: Cell<Stage>,
    changed: Notify,
}

/// The state of a circuit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Building,
    /// Built, waiting for its pair.
    Built,
    Ready,
    Gone,
}

impl Circuit {
    fn enter(&self, stage: Stage) {
        self.stage.set(stage);
        self.changed.notify_waiters();
    }

    async fn passes(&self, stage: Stage) {
        while self.stage.get() == stage {
            self.changed.notified().await;
        }
    }
}

/// A stream that waits for the exit's answer.
#[derive(Default)]
struct Opening {
    answer: Cell<Option<Result<(), EndReason>>>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    circuits: RefCell<BTreeMap<CircuitKey, Rc<Circuit>>>,
    openings: RefCell<BTreeMap<StreamKey, Rc<Opening>>>,
    locals: Locals,
    relays: RefCell<Vec<Known>>,
    /// Wakes the directory fetcher after a failed circuit.
    failed: Notify,
    guard: Cell<Option<RelayId>>,
    /// The guard of second circuits.
    second_guard: Cell<Option<RelayId>>,
    avoided: RefCell<Avoided>,
}

/// A running client. Clones are handles to the same client.
#[derive(Clone)]
struct Client {
    overlay: OnSockets,
    names: SharedNames,
    state: Rc<State>,
    hops: usize,
    chosen: Option<Rc<[String]>>,
    /// Link two circuits per user (conflux), with these preferences.
    wish: Option<Wish>,
    on_event: Rc<dyn Fn(Event)>,
}

/// Runs a client until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If TLS cannot be set up.
pub fn run(settings: ClientConfig, listener: TcpListener, on_event: Rc<dyn Fn(Event)>) -> Running<'static> {
    Box::pin(run_on(settings, listener, on_event))
}

async fn run_on(
    settings: ClientConfig,
    listener: TcpListener,
    on_event: Rc<dyn Fn(Event)>,
) -> io::Result<()> {
    let ClientConfig { directory: (at, key), config, hops, path } = settings;
    let names = SharedNames::default();
    let links = Rc::new(Links::client(names.clone(), config.transport == Transport::Quic)?);
    let onion = Encrypted::new(None, BTreeMap::new(), random()).with_names(names.clone());
    let state = Rc::<State>::default();
    let wish = config.conflux.as_ref().map(|split| split.wish());
    // These features are negotiated by ntor-v3 only.
    let modern = config.control.window().is_some() || wish.is_some();
    let node = Node::new(onion, config);
    let owner = |_: Handle<_, _, _>| owner(state.clone());
    let overlay = Overlay::with_dial(node, Unlimited, links, owner);
    let chosen = path.map(Rc::from);
    let client = Client { overlay, names, state, hops, chosen, wish, on_event };
    let learning = async {
        let mut seen = 0;
        loop {
            let learned = learn(at, &key, seen).await;
            let pause = match learned {
                Ok(directory) => {
                    seen = directory.number;
                    client.know(&directory, modern);
                    (client.on_event)(Event::Directory(directory.relays.len()));
                    if directory.relays.len() < hops { Span::ZERO } else { REFRESH }
                }
                Err(why) => {
                    (client.on_event)(Event::NoDirectory(why));
                    Span::ZERO
                }
            };
            // Circuits may fail in a burst: fetch at most once per interval.
            clock::until(clock::now() + AGAIN).await;
            tokio::select! {
                () = clock::until(clock::now() + pause) => {}
                () = client.state.failed.notified() => {}
            }
        }
    };
    tokio::select! {
        () = client.accept(listener) => {}
        () = learning => {}
    }
    Ok(())
}

async fn learn(at: SocketAddr, key: &[u8; 32], seen: u64) -> Result<Directory, String> {
    let (code, words, body) = fetch(at, "/directory", None).await.map_err(|cause| cause.to_string())?;
    if code != 200 {
        return Err(format!("the directory answered {code} {words}"));
    }
    let text = String::from_utf8(body).map_err(|_| "the directory is not UTF-8".to_owned())?;
    directory::check(&text, key, clock::unix(), seen)
        .map_err(|why| format!("the directory is invalid: {why}"))
}

/// Handles the outputs that the overlay's driver passes on.
fn owner(state: Rc<State>) -> Owner<Node<Encrypted>> {
    Box::new(move |node, now, output| match output {
        Output::CircuitBuilt(key) => {
            if let Some(circuit) = state.circuits.borrow().get(&key) {
                circuit.enter(if circuit.pair { Stage::Built } else { Stage::Ready });
            }
        }
        Output::Linked(key) => {
            if let Some(circuit) = state.circuits.borrow().get(&key) {
                circuit.enter(Stage::Ready);
            }
        }
        Output::CircuitClosed(key) => {
            if let Some(circuit) = state.circuits.borrow_mut().remove(&key) {
                let behind = circuit.path.get(1..).unwrap_or_default();
                state.avoided.borrow_mut().add(clock::now(), behind);
                circuit.enter(Stage::Gone);
            }
            // Its streams end with it.
            let of_it = |stream: &StreamKey| stream.circuit == key;
            let gone: Vec<StreamKey> = state.locals.borrow().keys().copied().filter(of_it).collect();
            gone.into_iter().for_each(|stream| close(&state, stream, EndReason::DESTROY));
        }
        Output::StreamConnected(key) => answer(&state, key, Ok(())),
        Output::StreamClosed(key, reason) => close(&state, key, reason),
        Output::Deliver(key, _, data) => {
            if let Some(local) = state.locals.borrow().get(&key) {
                node.backlog(now, key, local.deliver(data));
            }
        }
        Output::Package(key, cells) => {
            if let Some(local) = state.locals.borrow().get(&key) {
                local.package(cells);
            }
        }
        _ => {}
    })
}

fn answer(state: &State, key: StreamKey, answer: Result<(), EndReason>) {
    if let Some(opening) = state.openings.borrow_mut().remove(&key) {
        opening.answer.set(Some(answer));
        opening.changed.notify_one();
    }
}

fn close(state: &State, key: StreamKey, reason: EndReason) {
    answer(state, key, Err(reason));
    if let Some(local) = state.locals.borrow_mut().remove(&key) {
        local.end();
    }
}

impl Client {
    fn know(&self, directory: &Directory, modern: bool) {
        let known = directory.relays.iter().map(|entry| {
            let router = Router {
                address: entry.address.first(),
                fingerprint: entry.fingerprint,
                ed25519: Some(entry.ed25519),
            };
            let id = self.names.borrow_mut().keep(router);
            self.names.borrow_mut().also(id, entry.address.second());
            let public = RelayPublic { identity: entry.fingerprint, onion: entry.onion };
            self.overlay.with(|node, _| node.onion().learn(id, public, modern.then_some(entry.ed25519)));
            Known { id, nickname: entry.nickname.clone(), bandwidth: entry.bandwidth, exit: entry.exit }
        });
        *self.state.relays.borrow_mut() = known.collect();
    }

    /// The configured path, or a random one.
    fn path(&self) -> Option<Vec<Known>> {
        let relays = self.state.relays.borrow();
        match &self.chosen {
            Some(chosen) => {
                let named = |name: &String| relays.iter().find(|relay| relay.nickname == *name).cloned();
                chosen.iter().map(named).collect()
            }
            None => {
                let guard = &self.state.guard;
                let others = self.state.avoided.borrow().others(clock::now(), &relays, guard.get());
                let path = choice::path(&others, self.hops, guard, &[]);
                path.or_else(|| choice::path(&relays, self.hops, guard, &[]))
            }
        }
    }

    /// A second path to the same exit, if streams use two circuits.
    fn second_path(&self, path: &[Known]) -> Option<Vec<Known>> {
        let relays = self.state.relays.borrow();
        let two = self.wish.is_some() && self.chosen.is_none() && self.hops > 1;
        two.then(|| choice::path(&relays, self.hops, &self.state.second_guard, path)).flatten()
    }

    /// Starts a circuit over these relays. `user` owns its streams; the second circuit of a pair has none. `pair`
    /// says that it will be linked.
    fn begin(&self, path: Vec<Known>, user: Option<&str>, pair: bool) -> (CircuitKey, Rc<Circuit>) {
        let ids = path.iter().map(|relay| relay.id).collect();
        let key = self.overlay.with(|node, now| node.build(now, ids));
        let path = path.into_iter().map(|relay| relay.nickname).collect();
        let (stage, changed) = (Cell::new(Stage::Building), Notify::new());
        let circuit = Rc::new(Circuit { user: user.map(str::to_owned), path, pair, stage, changed });
        self.state.circuits.borrow_mut().insert(key, circuit.clone());
        (key, circuit)
    }

    /// Starts a circuit for a user's streams, or a pair to be linked.
    fn begin_for(&self, user: &str) -> Option<(CircuitKey, Rc<Circuit>)> {
        let path = self.path()?;
        let second = self.second_path(&path);
        let first = self.begin(path, Some(user), second.is_some());
        if let (Some(path), Some(wish)) = (second, self.wish) {
            let second = self.begin(path, None, true);
            tokio::task::spawn_local(self.clone().link(first.clone(), second, wish));
        }
        Some(first)
    }

    /// Links two circuits once both are built. If the second one fails or takes much longer, the first is used alone.
    async fn link(self, first: (CircuitKey, Rc<Circuit>), second: (CircuitKey, Rc<Circuit>), wish: Wish) {
        let begun = clock::now();
        first.1.passes(Stage::Building).await;
        let patience = clock::now().since(begun) * PATIENCE;
        let _ = within(patience.max(LEAST_PATIENCE), async {
            second.1.passes(Stage::Building).await;
            Ok(())
        })
        .await;
        let both = [&first, &second].iter().all(|leg| leg.1.stage.get() == Stage::Built);
        if both && self.overlay.with(|node, now| node.link(now, &[first.0, second.0], wish)) {
            first.1.passes(Stage::Built).await;
            if first.1.stage.get() == Stage::Ready {
                (self.on_event)(Event::Built(second.1.path.clone()));
            }
            return;
        }
        if second.1.stage.get() != Stage::Gone {
            self.overlay.with(|node, now| node.close(now, second.0));
        }
        if first.1.stage.get() == Stage::Built {
            first.1.enter(Stage::Ready);
        }
    }

    /// A circuit of that user, once it is ready.
    async fn circuit(&self, user: &str) -> Option<CircuitKey> {
        let known = self.state.circuits.borrow().iter().find_map(|(key, circuit)| {
            let fits = circuit.user.as_deref() == Some(user) && circuit.stage.get() != Stage::Gone;
            fits.then(|| (*key, circuit.clone()))
        });
        let (key, circuit) = match known {
            Some(known) => known,
            None => self.begin_for(user)?,
        };
        if circuit.stage.get() != Stage::Ready {
            let waited = within(BUILDING, async {
                circuit.passes(Stage::Building).await;
                circuit.passes(Stage::Built).await;
                Ok(())
            });
            if circuit.stage.get() != Stage::Ready {
                self.state.failed.notify_one();
            }
            if waited.await.is_err() {
                tracing::debug!(path = circuit.path.join(","), "no circuit in time");
                // Select another guard next time.
                self.state.guard.set(None);
                self.overlay.with(|node, now| node.close(now, key));
                return None;
            }
            if circuit.stage.get() == Stage::Ready {
                (self.on_event)(Event::Built(circuit.path.clone()));
            } else if self.state.guard.get().is_some_and(|guard| !self.names.borrow().is_connected(guard)) {
                // The guard is unreachable.
                self.state.guard.set(None);
            }
        }
        (circuit.stage.get() == Stage::Ready).then_some(key)
    }

    async fn accept(&self, listener: TcpListener) {
        let connections = Rc::new(Cell::new(0));
        loop {
            let (tcp, _) = next_connection(&listener).await;
            if connections.get() >= CONNECTIONS {
                continue;
            }
            connections.set(connections.get() + 1);
            let (client, connections) = (self.clone(), connections.clone());
            tokio::task::spawn_local(async move {
                // Errors are not propagated.
                let _ = client.serve(tcp).await;
                connections.set(connections.get() - 1);
            });
        }
    }

    async fn serve(&self, mut tcp: TcpStream) -> io::Result<()> {
        tcp.set_nodelay(true)?;
        let asked = within(HANDSHAKE, handshake(&mut tcp)).await?;
        let Some((target, user, rest, protocol)) = asked else { return Ok(()) };
        let mut outcome = Outcome::Failed;
        if message::fits(&target) {
            for attempt in 0..ATTEMPTS {
                if attempt > 0 {
                    clock::until(clock::now() + PAUSE * (1 << (attempt - 1))).await;
                }
                let Some(circuit) = self.circuit(&user).await else { continue };
                match self.open(circuit, &target).await {
                    Ok((key, local)) => {
                        tcp.write_all(&proxy::answer(protocol, Outcome::Connected)).await?;
                        stream::run(&self.overlay, key, &local, tcp, (rest, AtEnd::Listen)).await;
                        return Ok(());
                    }
                    // The circuit broke. Try another.
                    Err(EndReason::DESTROY) => {}
                    Err(reason) => {
                        outcome = outcome_of(reason);
                        break;
                    }
                }
            }
        }
        tcp.write_all(&proxy::answer(protocol, outcome)).await
    }

    /// Opens a stream on a circuit, and waits for the exit's answer.
    async fn open(&self, circuit: CircuitKey, target: &Target) -> Result<(StreamKey, Rc<Local>), EndReason> {
        let key = self.overlay.with(|node, now| node.open(now, circuit, target.clone()));
        let key = key.ok_or(EndReason::DESTROY)?;
        let (opening, local) = (Rc::<Opening>::default(), Rc::<Local>::default());
        self.state.openings.borrow_mut().insert(key, opening.clone());
        self.state.locals.borrow_mut().insert(key, local.clone());
        let answered = within(CONNECTING, async {
            opening.changed.notified().await;
            Ok(())
        });
        if answered.await.is_err() {
            self.overlay.with(|node, now| node.stream_ended(now, key));
            return Err(EndReason::TIMEOUT);
        }
        opening.answer.get().unwrap_or(Err(EndReason::MISC)).map(|()| (key, local))
    }
}

fn outcome_of(reason: EndReason) -> Outcome {
    match reason {
        EndReason::EXIT_POLICY => Outcome::Forbidden,
        EndReason::RESOLVE_FAILED | EndReason::NO_ROUTE => Outcome::Unreachable,
        EndReason::CONNECT_REFUSED => Outcome::Refused,
        EndReason::TIMEOUT => Outcome::TimedOut,
        _ => Outcome::Failed,
    }
}

/// Reads the application's request; `None` if it was refused.
async fn handshake(tcp: &mut TcpStream) -> io::Result<Option<(Target, String, Vec<u8>, Protocol)>> {
    let (mut handshake, mut buffer) = (Handshake::new(Accepts::All), [0; 1024]);
    loop {
        let count = tcp.read(&mut buffer).await?;
        if count == 0 {
            return Ok(None);
        }
        let mut step = handshake.read(&buffer[..count]);
        while let Step::Send(answer) = step {
            tcp.write_all(answer).await?;
            step = handshake.read(&[]);
        }
        match step {
            Step::Connect { host, port, user, rest, protocol } => {
                let target = Target::Host { host: host.to_string(), port, flags: Target::IPV6_OKAY };
                return Ok(Some((target, user, rest, protocol)));
            }
            Step::Refuse(answer) => {
                tcp.write_all(&answer).await?;
                return Ok(None);
            }
            Step::Read | Step::Send(_) => {}
        }
    }
}
