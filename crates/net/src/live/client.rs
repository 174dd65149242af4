//! The client role: carries the connections of local applications as streams over circuits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{EndReason, RelayId};
use tidegate_proto::client::Client as Node;
use tidegate_proto::conflux::Wish;
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::crypto::{CGO_VERSION, Encrypted, Router, SharedNames, Target, Wishes, message};
use tidegate_proto::links::Config;
use tidegate_proto::node::{CircuitKey, Node as _, Output, StreamKey};
use tidegate_proto::switching::Form;
use tidegate_proto::transport::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::channel::Links;
use super::choice::{self, Avoided, Known};
use super::directory::{self, Directory};
use super::fetch::fetch;
use super::patience::{self, BuildTimes};
use super::stream::{self, AtEnd, Local, Locals, Waiting};
use crate::admission::{Admission, Used, next_connection};
use crate::gate::Gate;
use crate::identity::random;
use crate::link::within;
use crate::overlay::{Handle, Overlay, Owner, Unlimited};
use crate::proxy::{self, Accepts, Handshake, Outcome, Protocol, Step};
use crate::runtime::Running;
use crate::{clock, os};

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
    /// The relays that it may use.
    pub gate: Gate,
}

/// Timeouts of the application's handshake, and of building a circuit (as long as tor's without measurements).
const HANDSHAKE: Span = Span::from_secs(10);
const BUILDING: Span = Span::from_secs(60);
/// Timeout of the exit's answer to a stream, as tor's from its third attempt on (`compute_retry_timeout`; 10 s before). Then
/// another circuit is tried, once.
const ANSWERING: Span = Span::from_secs(15);
/// Circuits that race a slow one.
const RACES: usize = 2;
/// Circuits tried per stream, and the pause after the first failure. The pause doubles each time, to 2.5 s in all.
const ATTEMPTS: u32 = 8;
const PAUSE: Span = Span::from_millis(20);
/// Interval of events about failed requests; the log of level debug has all of them.
const FAILURES: Span = Span::from_secs(10);
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
    /// The directory lists no usable relays with these names of the configured path. At most one each [`FAILURES`].
    Unlisted(Vec<String>),
    /// A circuit over these relays is built.
    Built(Vec<String>),
    /// A request of an application failed before an exit answered, and why. At most one each [`FAILURES`].
    Failed(String),
    /// A circuit has moved to another connection or to its standby: number of moves so far.
    Moved(u64),
}

/// A circuit of this client.
struct Circuit {
    /// The user that owns its streams. The second circuit of a pair has no user.
    user: Option<String>,
    path: RefCell<Vec<Known>>,
    /// It is linked to a second circuit.
    pair: bool,
    /// The circuit that its streams can switch to.
    standby: Cell<Option<CircuitKey>>,
    stage: Cell<Stage>,
    changed: Notify,
    begun: Time,
    /// The user was told.
    announced: Cell<bool>,
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
    fn nicknames(&self) -> Vec<String> {
        self.path.borrow().iter().map(|relay| relay.nickname.clone()).collect()
    }

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

/// A connection of a local application.
#[derive(Default)]
struct Application {
    used: Used,
    /// Its last stream.
    stream: Cell<Option<StreamKey>>,
}

/// A stream that waits for the exit's answer.
#[derive(Default)]
struct Opening {
    /// The exit's answer; to a RESOLVE request with its addresses or names, in wire format.
    answer: RefCell<Option<Result<Box<[u8]>, EndReason>>>,
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
    build_times: RefCell<BuildTimes>,
    /// A circuit entered another stage.
    changed: Notify,
    /// Circuits that want a standby, where circuits switch to those; and what wakes the builder.
    unprotected: RefCell<Vec<CircuitKey>>,
    switches: Cell<bool>,
    /// The time of the last event about a failed request.
    told: Cell<Option<Time>>,
    wanted: Notify,
    moves: Cell<u64>,
}

impl State {
    /// A circuit with streams is ready, or has used up its standby.
    fn want_standby(&self, key: CircuitKey) {
        if self.switches.get() {
            self.unprotected.borrow_mut().push(key);
            self.wanted.notify_one();
        }
    }

    /// Avoids the relays that may have made a circuit slow or broken it: those behind the guard, or the guard alone while it has
    /// no connection or has not answered. Returns whether the guard works.
    fn suspect(&self, names: &SharedNames, path: &[Known], answered: bool) -> bool {
        let connected = path.first().is_some_and(|guard| names.borrow().is_connected(guard.id));
        let works = connected && answered;
        let (guards, behind) = path.split_at(path.len().min(1));
        self.avoided.borrow_mut().add(clock::now(), if works { behind } else { guards });
        works
    }

    /// Sets a circuit's stage, and wakes the tasks that wait for it.
    fn enter(&self, circuit: &Circuit, stage: Stage) {
        circuit.enter(stage);
        self.changed.notify_waiters();
    }
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
    /// The relays that it may use.
    gate: Gate,
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
    let ClientConfig { directory: (at, key), config, hops, path, gate } = settings;
    let names = SharedNames::default();
    let links = Rc::new(Links::client(names.clone(), config.transport == Transport::Quic)?.with_gate(gate));
    let onion = Encrypted::new(None, BTreeMap::new(), random()).with_names(names.clone());
    let state = Rc::<State>::default();
    state.switches.set(config.switching.is_some_and(|rules| rules.form == Form::Circuit));
    let wish = config.conflux.as_ref().map(|split| split.wish());
    // These features are negotiated by ntor-v3 only.
    let modern = config.control.window().is_some() || wish.is_some();
    let node = Node::new(onion, config);
    let told = on_event.clone();
    let known = names.clone();
    let owner = |_: Handle<_, _, _>| owner(state.clone(), known, told);
    let overlay = Overlay::with_dial(node, Unlimited, links, owner);
    let chosen = path.map(Rc::from);
    let client = Client { overlay, names, state, hops, chosen, wish, gate, on_event };
    let learning = async {
        let (mut seen, mut last, mut told) = (0, Vec::new(), None);
        loop {
            let learned = learn(at, &key, seen).await;
            let pause = match learned {
                Ok(directory) => {
                    seen = directory.number;
                    let relays = client.know(&directory, modern);
                    let hidden = directory.relays.len() - relays;
                    (client.on_event)(match relays {
                        0 if hidden > 0 => Event::NoDirectory(format!(
                            "all {hidden} relays have addresses of private networks; pass --allow-private-addresses"
                        )),
                        _ => Event::Directory(relays),
                    });
                    let unlisted = client.unlisted();
                    // Relays may join and leave at every fetch.
                    let is_due = told.is_none_or(|at| clock::now().since(at) >= FAILURES);
                    if unlisted.is_empty() {
                        last = unlisted;
                    } else if unlisted != last && is_due {
                        told = Some(clock::now());
                        (client.on_event)(Event::Unlisted(unlisted.clone()));
                        last = unlisted;
                    }
                    if relays < hops { Span::ZERO } else { REFRESH }
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
        () = client.keep_standbys() => {}
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
fn owner(state: Rc<State>, names: SharedNames, on_event: Rc<dyn Fn(Event)>) -> Owner<Node<Encrypted>> {
    Box::new(move |node, now, output| match output {
        Output::CircuitBuilt(key) => {
            if let Some(circuit) = state.circuits.borrow().get(&key) {
                state.build_times.borrow_mut().add(now.since(circuit.begun));
                state.enter(circuit, if circuit.pair { Stage::Built } else { Stage::Ready });
                if circuit.user.is_some() && !circuit.pair {
                    state.want_standby(key);
                }
            }
        }
        Output::Switched(key, _) => {
            state.moves.set(state.moves.get() + 1);
            on_event(Event::Moved(state.moves.get()));
            if let Some(left) = exchange_standby(&state, key) {
                node.close(now, left);
                state.want_standby(key);
            }
        }
        Output::Linked(key) => {
            if let Some(circuit) = state.circuits.borrow().get(&key) {
                state.enter(circuit, Stage::Ready);
            }
        }
        Output::CircuitClosed(key) => {
            let circuit = state.circuits.borrow_mut().remove(&key);
            // Keys are reused.
            for served in state.circuits.borrow().values().filter(|other| other.standby.get() == Some(key)) {
                served.standby.set(None);
            }
            if let Some(circuit) = circuit {
                // One that lost a race closes without fault.
                if circuit.stage.get() != Stage::Gone {
                    state.suspect(&names, &circuit.path.borrow(), true);
                }
                state.enter(&circuit, Stage::Gone);
                if let Some(standby) = circuit.standby.take() {
                    node.close(now, standby);
                }
            }
            // Its streams end with it.
            let of_it = |stream: &StreamKey| stream.circuit == key;
            let gone: Vec<StreamKey> = state.locals.borrow().keys().copied().filter(of_it).collect();
            gone.into_iter().for_each(|stream| close(&state, stream, EndReason::DESTROY));
        }
        Output::StreamConnected(key) => answer(&state, key, Ok(Box::default())),
        Output::Resolved(key, resolved) => {
            answer(&state, key, Ok(resolved));
            close(&state, key, EndReason::DONE);
        }
        Output::StreamClosed(key, reason) => close(&state, key, reason),
        Output::Deliver(key, _, data, _) => {
            if let Some(local) = state.locals.borrow().get(&key) {
                let Waiting { bytes, memory } = local.deliver(now, data);
                node.backlog(now, key, bytes, memory);
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

/// A circuit's streams have switched to its standby, which has the old path now. Returns it.
fn exchange_standby(state: &State, key: CircuitKey) -> Option<CircuitKey> {
    let circuits = state.circuits.borrow();
    let circuit = circuits.get(&key)?;
    let standby = circuit.standby.take()?;
    if let Some(other) = circuits.get(&standby) {
        circuit.path.swap(&other.path);
    }
    Some(standby)
}

fn answer(state: &State, key: StreamKey, answer: Result<Box<[u8]>, EndReason>) {
    if let Some(opening) = state.openings.borrow_mut().remove(&key) {
        opening.answer.replace(Some(answer));
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
    /// Learns the relays of a directory that the gate passes. Returns their number.
    fn know(&self, directory: &Directory, modern: bool) -> usize {
        let usable = directory.relays.iter().filter(|entry| entry.passes(self.gate).is_ok());
        let known = usable.map(|entry| {
            let router = Router {
                address: entry.address.first(),
                fingerprint: entry.fingerprint,
                ed25519: Some(entry.ed25519),
            };
            let id = self.names.borrow_mut().keep(router);
            self.names.borrow_mut().also(id, entry.address.second());
            let public = RelayPublic { identity: entry.fingerprint, onion: entry.onion };
            let cgo = entry.has_version(CGO_VERSION);
            let wishes = modern.then_some((entry.ed25519, Wishes { congestion_control: true, cgo }));
            self.overlay.with(|node, _| node.onion().learn(id, public, wishes));
            Known {
                id,
                nickname: entry.nickname.clone(),
                bandwidth: directory.weight(entry),
                exit: entry.exit,
            }
        });
        let known: Vec<Known> = known.collect();
        let count = known.len();
        *self.state.relays.borrow_mut() = known;
        count
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
                // Of too few relays, those avoided longest come back first: the newest suspect is drawn last.
                let avoided = self.state.avoided.borrow();
                let mut candidates = avoided.candidates(clock::now(), &relays, guard.get());
                candidates.find_map(|relays| choice::path(&relays, self.hops, guard, &[]))
            }
        }
    }

    /// The names of the configured path that no known relay has.
    fn unlisted(&self) -> Vec<String> {
        let relays = self.state.relays.borrow();
        let chosen = self.chosen.iter().flat_map(|chosen| chosen.iter());
        chosen.filter(|name| relays.iter().all(|relay| relay.nickname != **name)).cloned().collect()
    }

    /// The cause of a missing path.
    fn why_no_path(&self) -> String {
        match self.unlisted().first() {
            _ if self.state.relays.borrow().is_empty() => "no usable relay is known yet".into(),
            Some(name) => format!("the directory lists no relay named `{}`", name.escape_debug()),
            None => format!("the directory lists no path of {} relays with an exit", self.hops),
        }
    }

    /// Tells the user why a request failed. It names neither the destination nor the application.
    fn fail(&self, why: String) {
        tracing::debug!(cause = why, "request failed");
        let now = clock::now();
        if self.state.told.get().is_none_or(|told| now.since(told) >= FAILURES) {
            self.state.told.set(Some(now));
            (self.on_event)(Event::Failed(why));
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
        let (user, stage, begun) = (user.map(str::to_owned), Cell::new(Stage::Building), clock::now());
        let (changed, announced, standby) = Default::default();
        let path = RefCell::new(path);
        let circuit = Rc::new(Circuit { user, path, pair, standby, stage, changed, begun, announced });
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
        let patience = clock::now().since(begun) * patience::TIMES;
        let _ = within(patience.max(patience::LEAST), async {
            second.1.passes(Stage::Building).await;
            Ok(())
        })
        .await;
        let both = [&first, &second].iter().all(|leg| leg.1.stage.get() == Stage::Built);
        if both && self.overlay.with(|node, now| node.link(now, &[first.0, second.0], wish)) {
            first.1.passes(Stage::Built).await;
            if first.1.stage.get() == Stage::Ready {
                (self.on_event)(Event::Built(second.1.nicknames()));
            }
            return;
        }
        if second.1.stage.get() != Stage::Gone {
            self.give_up(second.0, &second.1);
            self.overlay.with(|node, now| node.close(now, second.0));
        }
        if first.1.stage.get() == Stage::Built {
            self.state.enter(&first.1, Stage::Ready);
        }
    }

    /// Builds standby circuits for those that want one, until dropped.
    async fn keep_standbys(&self) {
        loop {
            let wanted = std::mem::take(&mut *self.state.unprotected.borrow_mut());
            for key in wanted {
                tokio::task::spawn_local(self.clone().build_standby(key));
            }
            self.state.wanted.notified().await;
        }
    }

    /// Builds a circuit with the guard and the exit of another and a middle of higher bandwidth, and keeps it as that
    /// one's standby, unless all other middles are slower.
    async fn build_standby(self, key: CircuitKey) {
        let served = self.state.circuits.borrow().get(&key).cloned();
        let Some(served) = served.filter(|_| self.chosen.is_none()) else { return };
        let path = {
            let relays = self.state.relays.borrow();
            let path: Option<Vec<Known>> = (served.path.borrow().iter())
                .map(|used| relays.iter().find(|relay| relay.id == used.id).cloned())
                .collect();
            path.and_then(|path| choice::over_better_middle(&relays, path))
        };
        let Some(path) = path else { return };
        let (standby, circuit) = self.begin(path, None, false);
        circuit.passes(Stage::Building).await;
        let ready = circuit.stage.get() == Stage::Ready;
        let serves = served.stage.get() == Stage::Ready;
        if ready && serves && self.overlay.with(|node, _| node.keep_standby(key, standby)) {
            served.standby.set(Some(standby));
        } else if ready {
            self.overlay.with(|node, now| node.close(now, standby));
        }
    }

    /// A circuit of that user, once one is ready.
    ///
    /// # Errors
    /// The cause, if all circuits fail.
    async fn circuit(&self, user: &str) -> Result<CircuitKey, String> {
        if self.circuits_of(user).is_empty() {
            let begun = self.begin_for(user).ok_or_else(|| self.why_no_path())?;
            tokio::task::spawn_local(self.clone().race(user.to_owned(), begun));
        }
        let ready =
            || self.circuits_of(user).into_iter().find(|(_, circuit)| circuit.stage.get() == Stage::Ready);
        if ready().is_none() {
            self.state.failed.notify_one();
        }
        let waited = within(BUILDING, async {
            while ready().is_none() && !self.circuits_of(user).is_empty() {
                self.state.changed.notified().await;
            }
            Ok(())
        });
        if waited.await.is_err() {
            for (key, circuit) in self.circuits_of(user) {
                tracing::debug!(path = circuit.nicknames().join(","), "no circuit in time");
                self.give_up(key, &circuit);
                self.overlay.with(|node, now| node.close(now, key));
            }
            return Err("no circuit was built in time".into());
        }
        let Some((key, circuit)) = ready() else {
            if self.state.guard.get().is_some_and(|guard| !self.names.borrow().is_connected(guard)) {
                // The guard is unreachable.
                self.state.guard.set(None);
                return Err("the guard cannot be reached".into());
            }
            return Err("a circuit failed while it was built".into());
        };
        if !circuit.announced.replace(true) {
            (self.on_event)(Event::Built(circuit.nicknames()));
        }
        Ok(key)
    }

    /// The circuits of a user that are ready or may become so, the oldest first.
    fn circuits_of(&self, user: &str) -> Vec<(CircuitKey, Rc<Circuit>)> {
        let circuits = self.state.circuits.borrow();
        let of_user = circuits.iter().filter(|(_, circuit)| {
            circuit.user.as_deref() == Some(user) && circuit.stage.get() != Stage::Gone
        });
        of_user.map(|(key, circuit)| (*key, circuit.clone())).collect()
    }

    /// Begins further circuits while the first one takes longer than circuits usually do: a relay of it may be silent.
    /// The first circuit that is ready serves, and the others end.
    async fn race(self, user: String, first: (CircuitKey, Rc<Circuit>)) {
        let mut racing = vec![first];
        let ready = |racing: &[(CircuitKey, Rc<Circuit>)]| {
            racing.iter().position(|(_, circuit)| circuit.stage.get() == Stage::Ready)
        };
        loop {
            let until = match racing.len() <= RACES && self.chosen.is_none() {
                true => clock::now() + self.state.build_times.borrow().patience(),
                false => Time::NEVER,
            };
            let settled = async {
                while ready(&racing).is_none()
                    && racing.iter().any(|(_, circuit)| circuit.stage.get() != Stage::Gone)
                {
                    self.state.changed.notified().await;
                }
            };
            tokio::select! {
                () = settled => break,
                () = clock::until(until) => {}
            }
            let (key, slow) = racing[racing.len() - 1].clone();
            self.give_up(key, &slow);
            tracing::debug!(path = slow.nicknames().join(","), "a circuit is slow: another one races it");
            let Some(another) = self.begin_for(&user) else { break };
            racing.push(another);
        }
        let Some(winner) = ready(&racing) else { return };
        for (number, (key, circuit)) in racing.iter().enumerate() {
            if number != winner && matches!(circuit.stage.get(), Stage::Building | Stage::Built) {
                self.state.enter(circuit, Stage::Gone);
                self.overlay.with(|node, now| node.close(now, *key));
            }
        }
    }

    /// Avoids the relays that may have made a circuit slow, and leaves its guard if that is silent.
    fn give_up(&self, key: CircuitKey, circuit: &Circuit) {
        let path = circuit.path.borrow();
        let answered = self.overlay.with(|node, _| node.answered(key)) > 0;
        let works = self.state.suspect(&self.names, &path, answered);
        let guard = path.first().map(|guard| guard.id);
        // Other circuits may have selected other guards meanwhile, which stay.
        for kept in [&self.state.guard, &self.state.second_guard] {
            if !works && kept.get() == guard {
                kept.set(None);
            }
        }
    }

    async fn accept(&self, listener: TcpListener) {
        // The other half of the descriptors is for guards and the directory.
        let half = usize::try_from(os::descriptors() / 2).unwrap_or(usize::MAX);
        let most = half.min(CONNECTIONS);
        let admission = Rc::new(Admission::new(most));
        loop {
            let (tcp, from) = next_connection(&listener).await;
            let (client, admission) = (self.clone(), admission.clone());
            tokio::task::spawn_local(async move {
                let application = Application::default();
                let serving = client.serve(tcp, &application);
                // Errors are not propagated.
                let served = admission.run_in_use(from.ip(), application.used.clone(), serving).await;
                if let (None, Some(stream)) = (served, application.stream.get()) {
                    client.overlay.with(|node, now| node.stream_ended(now, stream));
                }
            });
        }
    }

    async fn serve(&self, mut tcp: TcpStream, application: &Application) -> io::Result<()> {
        tcp.set_nodelay(true)?;
        let asked = within(HANDSHAKE, handshake(&mut tcp)).await?;
        let Some(Request { target, user, protocol, rest }) = asked else { return Ok(()) };
        let (mut outcome, mut silent) = (Outcome::Failed, false);
        let mut why = "the name in the request does not fit a cell".to_owned();
        if message::fits(&target) {
            for attempt in 0..ATTEMPTS {
                if attempt > 0 {
                    clock::until(clock::now() + PAUSE * (1 << (attempt - 1))).await;
                }
                let circuit = match self.circuit(&user).await {
                    Ok(circuit) => circuit,
                    Err(cause) => {
                        why = cause;
                        continue;
                    }
                };
                match self.open(circuit, &target, application).await {
                    Ok((_, _, answer)) if matches!(target, Target::Resolve(_)) => {
                        return tcp.write_all(&proxy::resolved(protocol, &answer)).await;
                    }
                    Ok((key, local, _)) => {
                        tcp.write_all(&proxy::answer(protocol, Outcome::Connected)).await?;
                        stream::run(&self.overlay, key, &local, tcp, (rest, AtEnd::Listen)).await;
                        return Ok(());
                    }
                    // The circuit broke. Try another.
                    Err(Some(EndReason::DESTROY)) => why = "the circuit broke".into(),
                    Err(None) if !std::mem::replace(&mut silent, true) => {
                        why = "the exit did not answer".into();
                    }
                    Err(None) => {
                        (outcome, why) = (Outcome::TimedOut, "two exits did not answer".into());
                        break;
                    }
                    Err(Some(reason)) => {
                        tracing::debug!(reason = reason.0, "the exit refused a stream");
                        return tcp.write_all(&proxy::answer(protocol, outcome_of(reason))).await;
                    }
                }
            }
        }
        self.fail(why);
        tcp.write_all(&proxy::answer(protocol, outcome)).await
    }

    /// Opens a stream on a circuit, and waits for the exit's answer. The error is the exit's; `None` without an answer.
    async fn open(
        &self,
        circuit: CircuitKey,
        target: &Target,
        application: &Application,
    ) -> Result<(StreamKey, Rc<Local>, Box<[u8]>), Option<EndReason>> {
        let key = self.overlay.with(|node, now| node.open(now, circuit, target.clone()));
        let key = key.ok_or(Some(EndReason::DESTROY))?;
        application.stream.set(Some(key));
        let (opening, local) =
            (Rc::<Opening>::default(), Rc::new(Local::noting(application.used.clone(), Default::default())));
        self.state.openings.borrow_mut().insert(key, opening.clone());
        self.state.locals.borrow_mut().insert(key, local.clone());
        let asked = clock::now();
        let answered = within(ANSWERING, async {
            opening.changed.notified().await;
            Ok(())
        });
        if answered.await.is_err() {
            self.overlay.with(|node, now| node.stream_ended(now, key));
            self.close_if_silent(circuit, asked);
            return Err(None);
        }
        let answer = opening.answer.take().unwrap_or(Err(EndReason::MISC));
        answer.map(|answer| (key, local, answer)).map_err(Some)
    }

    /// Closes a circuit if no stream has moved data on it since a time, and avoids its relays.
    fn close_if_silent(&self, key: CircuitKey, since: Time) {
        let moves =
            |(stream, local): (&StreamKey, &Rc<Local>)| stream.circuit == key && local.used().get() > since;
        if !self.state.locals.borrow().iter().any(moves) {
            let path = self.state.circuits.borrow().get(&key).map(|circuit| circuit.nicknames());
            tracing::debug!(path = path.unwrap_or_default().join(","), "no answer from the exit");
            // Closing it notes its relays as avoided.
            self.overlay.with(|node, now| node.close(now, key));
        }
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

/// The request of an application.
struct Request {
    target: Target,
    user: String,
    protocol: Protocol,
    /// Bytes that the application sent after its request.
    rest: Vec<u8>,
}

/// Reads the application's request; `None` if it was refused or answered.
async fn handshake(tcp: &mut TcpStream) -> io::Result<Option<Request>> {
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
                return Ok(Some(Request { target, user, protocol, rest }));
            }
            Step::Resolve { name, user, protocol } => {
                return Ok(Some(Request { target: Target::Resolve(name), user, protocol, rest: Vec::new() }));
            }
            Step::Refuse(answer) => {
                tcp.write_all(&answer).await?;
                return Ok(None);
            }
            Step::Read | Step::Send(_) => {}
        }
    }
}
