//! The role of a client: takes applications' connections, and carries them as streams over circuits of three relays.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_proto::cell::{EndReason, RelayId};
use tidegate_proto::client::Client as Node;
use tidegate_proto::crypto::encrypted::Encrypted;
use tidegate_proto::crypto::message;
use tidegate_proto::crypto::names::{Router, SharedNames, Target};
use tidegate_proto::crypto::ntor::RelayPublic;
use tidegate_proto::links::Config;
use tidegate_proto::node::{CircuitKey, Node as _, Output, StreamKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::channel::Links;
use super::directory::{self, Directory};
use super::fetch::fetch;
use super::front::{self, Handshake, Outcome, Speech, Step};
use super::stream::{self, AtEnd, Local, Locals};
use crate::admission::next_connection;
use crate::clock;
use crate::identity::random;
use crate::link::within;
use crate::overlay::{Handle, Open, Overlay, Owner};

type OnSockets = Overlay<Node<Encrypted>, Open, Rc<Links>>;

/// What a client is told.
pub struct Settings {
    /// The directory's address, and the key that it signs with.
    pub directory: (SocketAddr, [u8; 32]),
    /// How it moves cells.
    pub config: Config,
    /// Relays of a circuit.
    pub hops: usize,
    /// Or these relays for all circuits, by nickname, the guard first.
    pub path: Option<Vec<String>>,
}

/// How long an application may take to say what it wants, a circuit to be built (as long as with a tor that has not measured
/// any), and a stream to be connected.
const HANDSHAKE: Span = Span::from_secs(10);
const BUILDING: Span = Span::from_secs(60);
const CONNECTING: Span = Span::from_secs(60);
/// Circuits that are tried for one stream.
const ATTEMPTS: usize = 8;
/// Applications' connections at one time.
const CONNECTIONS: usize = 4096;
/// How often the directory is asked again, and after a failure.
const REFRESH: Span = Span::from_secs(30);
const AGAIN: Span = Span::from_millis(500);

/// What has happened to a client that its user should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It knows so many relays.
    Directory(usize),
    /// It could not learn of them, and why.
    NoDirectory(String),
    /// A circuit stands over these relays.
    Built(Vec<String>),
}

/// A relay as the client knows it.
#[derive(Clone)]
struct Known {
    id: RelayId,
    nickname: String,
    bandwidth: u64,
    exit: bool,
}

/// A circuit of ours.
struct Circuit {
    user: String,
    path: Vec<String>,
    /// `None` while it is being built, then whether it stands.
    built: Cell<Option<bool>>,
    changed: Notify,
}

/// A stream whose exit has not answered yet.
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
    guard: Cell<Option<RelayId>>,
}

/// A running client. Clones are handles to the same client.
#[derive(Clone)]
struct Client {
    overlay: OnSockets,
    names: SharedNames,
    state: Rc<State>,
    hops: usize,
    chosen: Option<Rc<[String]>>,
    on_event: Rc<dyn Fn(Event)>,
}

/// Runs a client until dropped. Must run inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// If TLS cannot be set up.
pub async fn run(
    settings: Settings,
    listener: TcpListener,
    on_event: impl Fn(Event) + 'static,
) -> io::Result<()> {
    let Settings { directory: (at, key), config, hops, path } = settings;
    let names = SharedNames::default();
    let links = Rc::new(Links::client(names.clone())?);
    let onion = Encrypted::new(None, BTreeMap::new(), random()).with_names(names.clone(), None);
    let state = Rc::<State>::default();
    let modern = config.control.window().is_some();
    let node = Node::new(onion, config);
    let owner = |_: Handle<_, _, _>| owner(state.clone());
    let overlay = Overlay::with_dial(node, Open, links, owner);
    let client =
        Client { overlay, names, state, hops, chosen: path.map(Rc::from), on_event: Rc::new(on_event) };
    let learning = async {
        let mut seen = 0;
        loop {
            let learned = learn(at, &key, seen).await;
            let pause = match learned {
                Ok(directory) => {
                    seen = directory.number;
                    client.know(&directory, modern);
                    (client.on_event)(Event::Directory(directory.relays.len()));
                    if directory.relays.len() < hops { AGAIN } else { REFRESH }
                }
                Err(why) => {
                    (client.on_event)(Event::NoDirectory(why));
                    AGAIN
                }
            };
            clock::until(clock::now() + pause).await;
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
        return Err(format!("the directory says {code} {words}"));
    }
    let text = String::from_utf8(body).map_err(|_| "the directory is not text".to_owned())?;
    directory::check(&text, key, clock::unix(), seen)
        .map_err(|why| format!("the directory is refused: {why}"))
}

/// What the driver does not do itself.
fn owner(state: Rc<State>) -> Owner<Node<Encrypted>> {
    Box::new(move |node, now, output| match output {
        Output::CircuitBuilt(key) => {
            if let Some(circuit) = state.circuits.borrow().get(&key) {
                circuit.built.set(Some(true));
                circuit.changed.notify_waiters();
            }
        }
        Output::CircuitClosed(key) => {
            if let Some(circuit) = state.circuits.borrow_mut().remove(&key) {
                circuit.built.set(Some(false));
                circuit.changed.notify_waiters();
            }
            // Its streams are gone with it.
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

/// Draws an index by weight.
fn draw(weights: &[u64]) -> Option<usize> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let mut point = u128::from_le_bytes(random()).checked_rem(total)?;
    weights.iter().position(|weight| match point.checked_sub(u128::from(*weight)) {
        Some(rest) => {
            point = rest;
            false
        }
        None => true,
    })
}

impl Client {
    fn know(&self, directory: &Directory, modern: bool) {
        let known = directory.relays.iter().map(|entry| {
            let router = Router {
                address: entry.address,
                fingerprint: entry.fingerprint,
                ed25519: Some(entry.ed25519),
            };
            let id = self.names.borrow_mut().keep(router);
            let public = RelayPublic { identity: entry.fingerprint, onion: entry.onion };
            self.overlay.with(|node, _| node.onion().learn(id, public, modern.then_some(entry.ed25519)));
            Known { id, nickname: entry.nickname.clone(), bandwidth: entry.bandwidth, exit: entry.exit }
        });
        *self.state.relays.borrow_mut() = known.collect();
    }

    /// The chosen path, or one by bandwidth, all relays different: an exit last, the same guard first as long as it is
    /// listed.
    fn path(&self) -> Option<Vec<Known>> {
        let relays = self.state.relays.borrow();
        if let Some(chosen) = &self.chosen {
            let named = |name: &String| relays.iter().find(|relay| relay.nickname == *name).cloned();
            return chosen.iter().map(named).collect();
        }
        let pick = |fits: &dyn Fn(&Known) -> bool| {
            let weights: Vec<u64> =
                relays.iter().map(|relay| if fits(relay) { relay.bandwidth.max(1) } else { 0 }).collect();
            draw(&weights).map(|index| relays[index].clone())
        };
        let guard = self.state.guard.get();
        let exit = pick(&|relay| relay.exit && Some(relay.id) != guard)?;
        let mut path = vec![exit];
        while path.len() < self.hops {
            let guards = path.len() + 1 == self.hops;
            let known = relays.iter().find(|relay| guards && Some(relay.id) == guard).cloned();
            let fresh = |relay: &Known| {
                path.iter().all(|other| other.id != relay.id) && (guards || Some(relay.id) != guard)
            };
            path.push(known.or_else(|| pick(&fresh))?);
        }
        path.reverse();
        self.state.guard.set(Some(path[0].id));
        Some(path)
    }

    /// A circuit of that user's that stands.
    async fn circuit(&self, user: &str) -> Option<CircuitKey> {
        let known = self.state.circuits.borrow().iter().find_map(|(key, circuit)| {
            (circuit.user == user && circuit.built.get() != Some(false)).then(|| (*key, circuit.clone()))
        });
        let (key, circuit) = match known {
            Some(known) => known,
            None => {
                let path = self.path()?;
                let ids = path.iter().map(|relay| relay.id).collect();
                let key = self.overlay.with(|node, now| node.build(now, ids));
                let path = path.into_iter().map(|relay| relay.nickname).collect();
                let (built, changed) = (Cell::new(None), Notify::new());
                let circuit = Rc::new(Circuit { user: user.to_owned(), path, built, changed });
                self.state.circuits.borrow_mut().insert(key, circuit.clone());
                (key, circuit)
            }
        };
        if circuit.built.get().is_none() {
            let waited = within(BUILDING, async {
                circuit.changed.notified().await;
                Ok(())
            });
            if waited.await.is_err() {
                tracing::debug!(path = circuit.path.join(","), "no circuit in time");
                // Another guard may do better.
                self.state.guard.set(None);
                self.overlay.with(|node, now| node.close(now, key));
                return None;
            }
            if circuit.built.get() == Some(true) {
                (self.on_event)(Event::Built(circuit.path.clone()));
            } else if self.state.guard.get().is_some_and(|guard| !self.names.borrow().is_connected(guard)) {
                // Nobody is there.
                self.state.guard.set(None);
            }
        }
        (circuit.built.get() == Some(true)).then_some(key)
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
                // How an application's connection ends concerns nobody else.
                let _ = client.serve(tcp).await;
                connections.set(connections.get() - 1);
            });
        }
    }

    async fn serve(&self, mut tcp: TcpStream) -> io::Result<()> {
        tcp.set_nodelay(true)?;
        let asked = within(HANDSHAKE, handshake(&mut tcp)).await?;
        let Some((target, user, rest, speech)) = asked else { return Ok(()) };
        let mut outcome = Outcome::Failed;
        if message::fits(&target) {
            for _ in 0..ATTEMPTS {
                let Some(circuit) = self.circuit(&user).await else { continue };
                match self.open(circuit, &target).await {
                    Ok((key, local)) => {
                        tcp.write_all(&front::answer(speech, Outcome::Connected)).await?;
                        stream::run(&self.overlay, key, &local, tcp, (rest, AtEnd::Listen)).await;
                        return Ok(());
                    }
                    // The circuit broke: another may do.
                    Err(EndReason::DESTROY) => {}
                    Err(reason) => {
                        outcome = said(reason);
                        break;
                    }
                }
            }
        }
        tcp.write_all(&front::answer(speech, outcome)).await
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

fn said(reason: EndReason) -> Outcome {
    match reason {
        EndReason::EXIT_POLICY => Outcome::Forbidden,
        EndReason::RESOLVE_FAILED | EndReason::NO_ROUTE => Outcome::Unreachable,
        EndReason::CONNECT_REFUSED => Outcome::Refused,
        EndReason::TIMEOUT => Outcome::TimedOut,
        _ => Outcome::Failed,
    }
}

/// Hears what the application wants; `None` if it was refused.
async fn handshake(tcp: &mut TcpStream) -> io::Result<Option<(Target, String, Vec<u8>, Speech)>> {
    let (mut handshake, mut buffer) = (Handshake::default(), [0; 1024]);
    loop {
        let count = tcp.read(&mut buffer).await?;
        if count == 0 {
            return Ok(None);
        }
        let mut step = handshake.read(&buffer[..count]);
        while let Step::Say(answer) = step {
            tcp.write_all(answer).await?;
            step = handshake.read(&[]);
        }
        match step {
            Step::Connect { target, user, rest, speech } => return Ok(Some((target, user, rest, speech))),
            Step::Refuse(answer) => {
                tcp.write_all(answer).await?;
                return Ok(None);
            }
            Step::Read | Step::Say(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_drawn_by_weight() {
        assert_eq!(draw(&[]), None);
        assert_eq!(draw(&[0, 0]), None);
        assert!((0..100).all(|_| draw(&[0, 7, 0]) == Some(1)));
        let drawn: Vec<usize> = (0..1000).map(|_| draw(&[9, 1]).unwrap()).collect();
        let rare = drawn.iter().filter(|index| **index == 1).count();
        assert!((20..300).contains(&rare), "{rare} of 1000 at one in ten");
    }
}
