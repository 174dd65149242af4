//! Local TCP connections over MORE: a SOCKS5 front on one side, a hidden service's target on the other.
//!
//! One task owns the UDP socket and the machines of [`tidegate_more`]; every local connection has a task of
//! its own and is read only when its stream has room.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tidegate_control::paths::Peer;
use tidegate_control::paths::sender::Sender;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_more::client::{self, Client};
use tidegate_more::descriptor::{Descriptor, MAX_PATHS};
use tidegate_more::letter::PATH_SIZE;
use tidegate_more::node::Node;
use tidegate_more::onion::{DATA_SIZE, Hop, MAX_RELAYS, Opened, PACKET};
use tidegate_more::service::Service;
use tidegate_more::socks::{Handshake, Host, Reply, Step, reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::clock;
use crate::more::{LivePeer, Settings, Summary, entropy, invalid};

/// What one read takes from a local connection.
const BLOCK: usize = 16 * 1024;
/// Bytes that may wait for a local connection before no more are asked for.
const QUEUED: usize = 256 * 1024;
/// Streams at once: an application that wants another is refused.
const STREAMS: usize = 128;
/// Handshakes at once; more connections wait to be accepted.
const HANDSHAKES: usize = 64;
/// What local connections may bring in one turn, as [`Wire::letters`] bounds what the overlay may.
const TURN: usize = 64;
/// For the receiver's first answer.
const PATIENCE: Span = Span::from_secs(60);
/// How often files are looked at, and streams that are over forgotten.
const SWEEP: Span = Span::from_secs(2);
/// The longest sleep: how soon a stop is noticed, and local connections that took what waited.
const NAP: Span = Span::from_millis(20);

/// Something happened at a local connection.
enum Local {
    /// An application wants a stream. Its handshake counts until that is heard.
    Wants(TcpStream, Vec<u8>, OwnedSemaphorePermit),
    /// Bytes of a stream.
    Bytes(u64, Vec<u8>),
    /// Nothing more will come.
    End(u64),
    /// The target cannot be reached.
    Unreachable(u64),
}

/// The way to a local connection.
struct Pump {
    /// `None` ends it.
    bytes: mpsc::UnboundedSender<Option<Vec<u8>>>,
    queued: Arc<AtomicUsize>,
    /// Allows one read.
    grants: mpsc::Sender<()>,
    granted: bool,
}

impl Pump {
    /// Connects (or has connected) and moves bytes until both directions have ended.
    fn start(
        stream: u64,
        connect: impl Future<Output = io::Result<TcpStream>> + Send + 'static,
        events: mpsc::Sender<Local>,
    ) -> Pump {
        let (bytes, mut from_overlay) = mpsc::unbounded_channel::<Option<Vec<u8>>>();
        let (grants, mut granted) = mpsc::channel::<()>(1);
        let queued = Arc::new(AtomicUsize::new(0));
        let waiting = Arc::clone(&queued);
        tokio::spawn(async move {
            let Ok(tcp) = connect.await else {
                return drop(events.send(Local::Unreachable(stream)).await);
            };
            let (mut read, mut write) = tcp.into_split();
            let writing = async move {
                while let Some(Some(bytes)) = from_overlay.recv().await {
                    // An application that went away takes nothing, but what waits for it must not pile up.
                    let _ = write.write_all(&bytes).await;
                    waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
                }
                let _ = write.shutdown().await;
            };
            let reading = async move {
                let mut block = vec![0; BLOCK];
                while granted.recv().await.is_some() {
                    match read.read(&mut block).await {
                        Ok(length) if length > 0 => {
                            let _ = events.send(Local::Bytes(stream, block[..length].to_vec())).await;
                        }
                        _ => break,
                    }
                }
                let _ = events.send(Local::End(stream)).await;
            };
            tokio::join!(writing, reading);
        });
        Pump { bytes, queued, grants, granted: false }
    }

    fn write(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.queued.fetch_add(bytes.len(), Ordering::Relaxed);
            let _ = self.bytes.send(Some(bytes));
        }
    }

    fn end(&self) {
        let _ = self.bytes.send(None);
    }

    fn takes(&self) -> bool {
        self.queued.load(Ordering::Relaxed) < QUEUED
    }

    /// Allows the next read if there is room for it.
    fn grant(&mut self, room: usize) {
        if !self.granted && room >= BLOCK {
            self.granted = self.grants.try_send(()).is_ok();
        }
    }
}

/// The UDP side of a peer.
struct Wire {
    node: Node,
    socket: UdpSocket,
    addresses: Vec<SocketAddr>,
    buffer: Vec<u8>,
    summary: Summary,
}

impl Wire {
    fn open(settings: &Settings) -> io::Result<Wire> {
        let LivePeer { node, socket, addresses, summary, .. } = LivePeer::open(settings)?;
        socket.set_nonblocking(true)?;
        let socket = UdpSocket::from_std(socket)?;
        Ok(Wire { node, socket, addresses, buffer: vec![0; DATA_SIZE + 1], summary })
    }

    fn hand_over(&mut self, to: Peer, datagram: &[u8]) {
        let sent = self.addresses.get(usize::from(to)).map(|to| self.socket.try_send_to(datagram, *to));
        if !matches!(sent, Some(Ok(_))) {
            self.summary.unsent += 1;
        }
    }

    /// All datagrams that wait: relayed ones go on, letters to this peer are given.
    fn letters(&mut self) -> Vec<Opened> {
        let mut letters = Vec::new();
        // Bounded, so that a flood does not keep everything else waiting.
        for _ in 0..256 {
            let Ok((length, _)) = self.socket.try_recv_from(&mut self.buffer) else { break };
            match self.node.handle(clock::now(), &self.buffer[..length]) {
                Some(Opened::Forward { to, datagram }) => self.hand_over(to, &datagram),
                Some(letter @ Opened::Letter { .. }) => letters.push(letter),
                _ => {}
            }
        }
        letters
    }
}

/// What woke a peer, beside the events of local connections.
enum Woken {
    /// Datagrams wait.
    Datagrams(io::Result<()>),
    /// A local connection came.
    Accepted(TcpStream),
    /// Local connections have something, or the time has come.
    Nothing,
}

/// Sleeps until something happens. All get their turns: neither a flood of datagrams keeps local connections
/// waiting nor the other way round.
async fn woken(
    datagrams: impl Future<Output = io::Result<()>>,
    accept: impl Future<Output = TcpStream>,
    local: &mut mpsc::Receiver<Local>,
    heard: &mut Vec<Local>,
    until: Time,
) -> Woken {
    let woken = tokio::select! {
        ready = datagrams => Woken::Datagrams(ready),
        tcp = accept => Woken::Accepted(tcp),
        _ = local.recv_many(heard, TURN) => Woken::Nothing,
        () = clock::until(until) => Woken::Nothing,
    };
    while heard.len() < TURN
        && let Ok(event) = local.try_recv()
    {
        heard.push(event);
    }
    woken
}

fn number() -> u64 {
    u64::from_le_bytes(entropy()[..8].try_into().expect("eight bytes"))
}

/// What a peer knows of the others: itself, everybody's keys.
fn overlay(settings: &Settings) -> (Hop, Vec<[u8; 32]>) {
    let keys: Vec<[u8; 32]> = settings.directory.peers.iter().map(|peer| peer.key.0).collect();
    (Hop { peer: settings.me, key: keys[usize::from(settings.me)] }, keys)
}

fn check_hops(settings: &Settings, beyond: usize) -> io::Result<()> {
    let (hops, peers) = (settings.hops, settings.directory.peers.len());
    match (1..=MAX_RELAYS).contains(&hops) && hops + 1 + beyond <= peers {
        true => Ok(()),
        false => Err(invalid(format!(
            "{hops} hops among {peers} peers: give 1 to {MAX_RELAYS} and fewer than peers"
        ))),
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

/// Who serves, and where it leads.
pub struct Serving<'a> {
    /// Secret of the receiver's name, which signs its descriptors.
    pub name: [u8; 32],
    /// Secret of the key that letters are encrypted to.
    pub key: [u8; 32],
    /// How many receiver paths are kept published.
    pub paths: usize,
    /// Where streams lead.
    pub target: SocketAddr,
    /// Publishes a descriptor.
    pub publish: &'a mut dyn FnMut(&Descriptor) -> io::Result<()>,
}

/// Serves streams that come over receiver paths until `stop` is set.
///
/// # Errors
/// [`io::Error`] of the socket or of publishing, [`io::ErrorKind::InvalidInput`] for settings that cannot work.
pub fn serve(settings: &Settings, serving: Serving, stop: &AtomicBool) -> io::Result<Summary> {
    check_hops(settings, 0)?;
    runtime()?.block_on(serve_all(settings, serving, stop))
}

async fn serve_all(settings: &Settings, serving: Serving<'_>, stop: &AtomicBool) -> io::Result<Summary> {
    let mut wire = Wire::open(settings)?;
    let (me, keys) = overlay(settings);
    let mut service = Service::new(me, keys, settings.hops, settings.guards.clone(), serving.key);
    let mut random: Random = Seed::root(number()).random();
    let (events, mut local) = mpsc::channel(256);
    let mut heard = Vec::new();
    let mut pumps: BTreeMap<u64, Pump> = BTreeMap::new();
    let mut descriptor = Descriptor {
        name: tidegate_more::directory::authority_key(&serving.name),
        epoch: settings.directory.epoch,
        key: service.key(),
        paths: Vec::new(),
    };
    let mut sweep = Time::ZERO;
    let most = serving.paths.clamp(1, MAX_PATHS);
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        if now >= sweep {
            sweep = now + SWEEP;
            let left = service.published().count();
            if left < most - most / 4 {
                service.publish(most - left, &mut random, &mut entropy);
                descriptor.paths = service.published().cloned().collect();
                (serving.publish)(&descriptor)?;
            }
            service.sweep(now).iter().for_each(|stream| drop(pumps.remove(stream)));
        }
        let nobody = std::future::pending();
        let woken = woken(wire.socket.readable(), nobody, &mut local, &mut heard, now + NAP).await;
        if let Woken::Datagrams(ready) = woken {
            ready?;
        }
        for event in heard.drain(..) {
            match event {
                Local::Bytes(stream, bytes) => {
                    service.write(stream, &bytes);
                    pumps.entry(stream).and_modify(|pump| pump.granted = false);
                }
                Local::End(stream) => service.end(stream),
                Local::Unreachable(stream) => {
                    service.refuse(stream);
                    pumps.remove(&stream);
                }
                Local::Wants(..) => {}
            }
        }
        for letter in wire.letters() {
            let Opened::Letter { id, payload, .. } = letter else { continue };
            let answered = service.letter(clock::now(), id, &payload, &mut random, &mut entropy);
            let Some(answered) = answered else { continue };
            wire.hand_over(answered.reply.0, &answered.reply.1);
            if answered.opened {
                let connect = TcpStream::connect(serving.target);
                pumps.insert(answered.stream, Pump::start(answered.stream, connect, events.clone()));
            }
            wire.summary.bytes += answered.bytes.len() as u64;
            if let Some(pump) = pumps.get(&answered.stream) {
                pump.write(answered.bytes);
                if answered.complete {
                    pump.end();
                }
            }
        }
        for (stream, pump) in &mut pumps {
            service.set_takes(*stream, pump.takes());
            pump.grant(service.room(*stream));
        }
    }
    wire.summary.node = wire.node.counters();
    wire.summary.service = service.counters;
    Ok(wire.summary)
}

/// A SOCKS5 front.
pub struct Front<'a> {
    /// Where applications connect.
    pub listener: std::net::TcpListener,
    /// The receiver, and the host names that mean it.
    pub receiver: Descriptor,
    /// Names beside the receiver's key.
    pub names: Vec<String>,
    /// Reads the descriptor again when receiver paths run out.
    pub reread: &'a mut dyn FnMut() -> Option<Descriptor>,
    /// How long an application may take until it has said what it wants.
    pub handshake: Span,
}

/// Takes local connections over receiver paths until `stop` is set.
///
/// # Errors
/// [`io::Error`] of the sockets, [`io::ErrorKind::InvalidInput`] for settings that cannot work.
pub fn socks(settings: &Settings, front: Front, stop: &AtomicBool) -> io::Result<Summary> {
    check_hops(settings, 1)?;
    if front.receiver.epoch != settings.directory.epoch {
        let (theirs, ours) = (front.receiver.epoch, settings.directory.epoch);
        return Err(invalid(format!("the descriptor is of key epoch {theirs}, the directory of {ours}")));
    }
    runtime()?.block_on(socks_all(settings, front, stop))
}

/// A stream as the front sees it.
struct Fronted {
    pump: Pump,
    opened: bool,
    ended: bool,
    since: Time,
}

async fn socks_all(settings: &Settings, mut front: Front<'_>, stop: &AtomicBool) -> io::Result<Summary> {
    let mut wire = Wire::open(settings)?;
    let (me, keys) = overlay(settings);
    let peers = keys.len();
    let seed = || Seed::root(number());
    let controller = settings.parameters.controller(peers, seed()).ok_or_else(|| {
        invalid("the perfect controller needs to know everything: it exists in the simulator only".into())
    })?;
    let latencies = settings.parameters.latencies(peers);
    let mut sender = Sender::new(me.peer, peers, settings.hops + 1, f64::from(PACKET), controller, latencies);
    sender.set_guards(settings.guards.clone());
    let known = client::Settings {
        me,
        keys,
        hops: settings.hops,
        receiver: front.receiver.key,
        attempt_every: settings.attempt_every,
    };
    let mut client = Client::new(known, sender, clock::now());
    let mut random: Random = seed().random();
    let mut read: BTreeSet<[u8; PATH_SIZE]> = BTreeSet::new();
    supply(&mut client, &front.receiver, &mut read, &mut random);
    front.listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(front.listener)?;
    let (events, mut local) = mpsc::channel(256);
    let names = Arc::new(std::mem::take(&mut front.names));
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    let mut heard = Vec::new();
    let mut streams: BTreeMap<u64, Fronted> = BTreeMap::new();
    let mut sweep = clock::now() + SWEEP;
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        if now >= sweep {
            sweep = now + SWEEP;
            if client.store() < front.receiver.paths.len() / 4
                && let Some(fresh) = (front.reread)()
                && (fresh.name, fresh.key) == (front.receiver.name, front.receiver.key)
            {
                supply(&mut client, &fresh, &mut read, &mut random);
            }
        }
        let until = client.next_time().min(now + NAP);
        let accept = async {
            if places.available_permits() > 0
                && let Ok((tcp, _)) = listener.accept().await
            {
                return tcp;
            }
            // Until another turn: there are enough, or not enough descriptors.
            std::future::pending().await
        };
        match woken(wire.socket.readable(), accept, &mut local, &mut heard, until).await {
            Woken::Datagrams(ready) => ready?,
            Woken::Accepted(tcp) => {
                let place = Arc::clone(&places).try_acquire_owned().expect("only this task takes them");
                let (names, events) = (Arc::clone(&names), events.clone());
                tokio::spawn(shake_hands(tcp, names, front.handshake, place, events));
            }
            Woken::Nothing => {}
        }
        for event in heard.drain(..) {
            match event {
                Local::Wants(tcp, rest, place) => {
                    drop(place);
                    let stream = number();
                    let pump = Pump::start(stream, std::future::ready(Ok(tcp)), events.clone());
                    let mut fronted = Fronted { pump, opened: false, ended: false, since: now };
                    if streams.len() < STREAMS {
                        client.open(stream, now);
                        client.write(stream, &rest);
                        streams.insert(stream, fronted);
                    } else {
                        fronted.refuse(Reply::Failure);
                    }
                }
                Local::Bytes(stream, bytes) => {
                    wire.summary.bytes += bytes.len() as u64;
                    client.write(stream, &bytes);
                    streams.entry(stream).and_modify(|fronted| fronted.pump.granted = false);
                }
                Local::End(stream) => client.end(stream),
                Local::Unreachable(_) => {}
            }
        }
        for letter in wire.letters() {
            let Opened::Letter { id, annex, payload } = letter else { continue };
            let Some(came) = client.answer(clock::now(), id, annex, &payload) else { continue };
            let Some(fronted) = streams.get_mut(&came.stream) else { continue };
            if came.opened && !came.refused {
                fronted.pump.write(reply(Reply::Succeeded));
                fronted.opened = true;
            }
            fronted.pump.write(came.bytes);
            if came.refused {
                fronted.refuse(Reply::Refused);
            } else if came.complete {
                fronted.pump.end();
            }
        }
        while let Some((to, datagram)) = client.poll(clock::now(), &mut random, &mut entropy) {
            wire.hand_over(to, &datagram);
        }
        let now = clock::now();
        for (stream, fronted) in &mut streams {
            if !fronted.opened && !fronted.ended && now.since(fronted.since) > PATIENCE {
                fronted.refuse(Reply::TimedOut);
            }
            client.set_takes(*stream, fronted.pump.takes());
            if fronted.opened {
                fronted.pump.grant(client.room(*stream));
            }
            fronted.ended |= client.done(*stream);
            if fronted.ended {
                client.close(*stream);
            }
        }
        streams.retain(|_, fronted| !fronted.ended);
    }
    wire.summary.node = wire.node.counters();
    wire.summary.upload = client.progress();
    Ok(wire.summary)
}

impl Fronted {
    /// Says why there is no stream, if that can still be said, and ends it.
    fn refuse(&mut self, why: Reply) {
        if !self.opened {
            self.pump.write(reply(why));
        }
        self.pump.end();
        self.ended = true;
    }
}

/// Gives a client the paths that it was not given before, in an order of its own.
fn supply(
    client: &mut Client,
    descriptor: &Descriptor,
    read: &mut BTreeSet<[u8; PATH_SIZE]>,
    random: &mut Random,
) {
    let mut fresh: Vec<_> = descriptor.paths.iter().filter(|path| !read.contains(&path.to_bytes())).collect();
    random.shuffle(&mut fresh);
    client.supply(fresh.into_iter().cloned());
    *read = descriptor.paths.iter().map(|path| path.to_bytes()).collect();
}

/// Speaks SOCKS5 with an application and asks for a stream if it names the receiver.
async fn shake_hands(
    tcp: TcpStream,
    names: Arc<Vec<String>>,
    patience: Span,
    place: OwnedSemaphorePermit,
    events: mpsc::Sender<Local>,
) {
    let asked = tokio::select! {
        asked = asked(tcp, &names) => asked,
        () = clock::until(clock::now() + patience) => None,
    };
    if let Some((tcp, rest)) = asked {
        let _ = events.send(Local::Wants(tcp, rest, place)).await;
    }
}

async fn asked(mut tcp: TcpStream, names: &[String]) -> Option<(TcpStream, Vec<u8>)> {
    let mut handshake = Handshake::default();
    let mut block = [0; 512];
    let mut step = Step::Read;
    loop {
        step = match step {
            Step::Read => match tcp.read(&mut block).await.ok()? {
                0 => return None,
                length => handshake.read(&block[..length]),
            },
            Step::Say(answer) => {
                tcp.write_all(&answer).await.ok()?;
                handshake.read(&[])
            }
            Step::Connect { host: Host::Name(name), rest, .. } => {
                let meant = |known: &String| known.eq_ignore_ascii_case(&name);
                if names.iter().any(meant) {
                    return Some((tcp, rest));
                }
                Step::Refuse(reply(Reply::HostUnreachable))
            }
            // An address says where somebody is: nobody here has one.
            Step::Connect { host: Host::Address(_), .. } => Step::Refuse(reply(Reply::AddressType)),
            Step::Refuse(answer) => {
                let _ = tcp.write_all(&answer).await;
                let _ = tcp.shutdown().await;
                return None;
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams that never cease, as `select!` in a fixed order would see them.
    #[test]
    fn a_socket_that_is_always_ready_leaves_turns_for_local_connections() {
        let runtime = runtime().expect("threads have memory");
        runtime.block_on(async {
            let (events, mut local) = mpsc::channel(256);
            let mut heard = Vec::new();
            for n in 0..200 {
                events.send(Local::End(n)).await.expect("there is room");
            }
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
            let address = listener.local_addr().expect("bound");
            let _application = TcpStream::connect(address).await.expect("listens");
            let accept = async { listener.accept().await.expect("connected").0 };
            tokio::pin!(accept);
            let (mut accepted, mut ended, mut flooded) = (0, 0, 0);
            // Each way is drawn with the same chance: a thousand turns without one of them do not happen.
            for _ in 0..1000 {
                let ready = std::future::ready(Ok(()));
                let until = clock::now() + PATIENCE;
                let woken = match accepted {
                    0 => woken(ready, &mut accept, &mut local, &mut heard, until).await,
                    _ => woken(ready, std::future::pending(), &mut local, &mut heard, until).await,
                };
                match woken {
                    Woken::Datagrams(ready) => flooded += u32::from(ready.is_ok()),
                    Woken::Accepted(_) => accepted += 1,
                    Woken::Nothing => {}
                }
                assert!(heard.len() <= TURN, "a turn is bounded");
                ended += heard.drain(..).len();
                tokio::task::yield_now().await;
            }
            assert_eq!((accepted, ended), (1, 200));
            assert!(flooded > 500, "{flooded}");
        });
    }
}
