//! A SOCKS5 front through which local applications reach hidden services.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_control::paths::Peer;
use tidegate_control::random::{Random, Seed};
use tidegate_control::shares::Shares;
use tidegate_control::units::{Span, Time};
use tidegate_more::client::{self, Client};
use tidegate_more::descriptor::Descriptor;
use tidegate_more::machine::{Output, StreamEvent};
use tidegate_more::message::PATH_SIZE;
use tidegate_more::onion::{Epoch, Opened};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::local::{Local, NAP, Pump, StreamKey, Wire, Woken, check_hops, runtime, woken};
use super::peer::{PeerConfig, Summary, number, randomness};
use crate::admission::{Admission, next_connection};
use crate::clock;
use crate::driver::{Driver, Handler};
use crate::proxy::{Accepts, Handshake, Host, Outcome, Protocol, Step, answer};

/// Maximum number of streams. A new one displaces the idlest of the receiver that has the most.
const STREAMS: usize = 128;
/// Maximum number of pending handshakes. A new one displaces the oldest.
const HANDSHAKES: usize = 64;
/// Timeout of a receiver's first answer.
const FIRST_ANSWER: Span = Span::from_secs(10);
/// Interval of checking descriptors.
const SWEEP: Span = Span::from_secs(1);

/// A SOCKS5 front.
pub struct Front<'a> {
    /// The listener for applications.
    pub listener: std::net::TcpListener,
    /// The receivers that applications can reach.
    pub receivers: Vec<Receiver<'a>>,
    /// Timeout of a SOCKS5 handshake.
    pub handshake: Span,
}

/// A receiver that applications can reach.
pub struct Receiver<'a> {
    /// Its published descriptor.
    pub descriptor: Descriptor,
    /// The host names that select it.
    pub names: Vec<String>,
    /// Reads the descriptor again when its paths run out.
    pub reread: Box<dyn FnMut() -> Option<Descriptor> + 'a>,
}

/// Carries local connections over receiver paths until `stop` is set.
///
/// # Errors
/// Errors of the sockets, and [`io::ErrorKind::InvalidInput`] for an invalid configuration.
pub fn socks(settings: &PeerConfig, front: Front, stop: &AtomicBool) -> io::Result<Summary> {
    check_hops(settings, 1)?;
    runtime()?.block_on(LocalSet::new().run_until(socks_all(settings, front, stop)))
}

/// The client of one receiver, and the source of its paths.
struct Reached<'a> {
    driver: Driver<Client>,
    receiver: Receiver<'a>,
    /// The paths of the last descriptor read.
    read: BTreeSet<[u8; PATH_SIZE]>,
}

impl<'a> Reached<'a> {
    fn new(
        settings: &PeerConfig,
        epoch: Epoch,
        receiver: Receiver<'a>,
        random: &mut Random,
    ) -> io::Result<Reached<'a>> {
        // The extra peer number stands for the receiver.
        let (peers, hops) = (epoch.keys.len(), settings.hops + 2);
        let mut sender = settings.sender(peers + 1, hops)?;
        sender.set_receiver(peers as Peer);
        let known = client::ClientConfig {
            me: settings.me,
            epoch,
            hops: settings.hops,
            uses: settings.uses,
            receiver: receiver.descriptor.key,
            attempt_every: settings.attempt_every,
        };
        let client = Client::new(known, sender, randomness(), clock::now());
        let mut reached = Reached { driver: Driver::new(client), receiver, read: BTreeSet::new() };
        reached.supply(random);
        Ok(reached)
    }

    /// Gives the client the paths that it does not have yet, in random order.
    fn supply(&mut self, random: &mut Random) {
        let paths = &self.receiver.descriptor.paths;
        let mut fresh: Vec<_> = paths.iter().filter(|path| !self.read.contains(&path.to_bytes())).collect();
        random.shuffle(&mut fresh);
        self.driver.machine.supply(fresh.into_iter().cloned());
        self.read = paths.iter().map(|path| path.to_bytes()).collect();
    }

    fn sweep(&mut self, random: &mut Random) {
        let (known, client) = (&self.receiver.descriptor, &self.driver.machine);
        if client.store() < known.paths.len() / 4
            && let Some(fresh) = (self.receiver.reread)()
            && (fresh.name, fresh.key) == (known.name, known.key)
        {
            self.receiver.descriptor = fresh;
            self.supply(random);
        }
    }

    /// Handles an opened packet of this client.
    fn opened(&mut self, opened: &Opened) {
        let (now, client) = (clock::now(), &mut self.driver.machine);
        match opened {
            Opened::Message { id, annex, payload } => client.answer(now, *id, *annex, payload),
            Opened::Cell { id, annex, payload } => client.cell_back(now, *id, *annex, payload),
            Opened::Refused { first, label, block } => client.refused(now, *first, *label, block),
            _ => {}
        }
    }
}

/// A stream and its local connection.
struct Fronted {
    pump: Pump,
    opened: bool,
    ended: bool,
    since: Time,
    /// When it last moved bytes.
    used: Time,
}

/// All clients and streams of a front.
struct Streams<'a> {
    reached: Vec<Reached<'a>>,
    streams: BTreeMap<StreamKey, Fronted>,
    /// The places of streams, by receiver.
    places: Shares<usize, usize, StreamKey>,
    events: mpsc::Sender<Local>,
    /// Bytes that applications sent.
    bytes: u64,
}

async fn socks_all(settings: &PeerConfig, mut front: Front<'_>, stop: &AtomicBool) -> io::Result<Summary> {
    let mut wire = Wire::open(settings)?;
    let mut random: Random = Seed::root(number()).random();
    let names = front.receivers.iter_mut().enumerate();
    let names = names
        .flat_map(|(number, it)| std::mem::take(&mut it.names).into_iter().map(move |name| (name, number)));
    let names: Rc<Vec<(String, usize)>> = Rc::new(names.collect());
    let reached = front.receivers.into_iter();
    let reached = reached
        .map(|it| Reached::new(settings, wire.peer.keys(), it, &mut random))
        .collect::<Result<_, _>>()?;
    front.listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(front.listener)?;
    let (events, mut local) = mpsc::channel(256);
    let places = Shares::new(STREAMS);
    let mut streams = Streams { reached, streams: BTreeMap::new(), places, events, bytes: 0 };
    let handshakes = Rc::new(Admission::new(HANDSHAKES));
    let mut heard = Vec::new();
    let mut sweep = clock::now() + SWEEP;
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        if let Some(keys) = wire.peer.turn(now)? {
            streams.reached.iter_mut().for_each(|reached| reached.driver.machine.set_epoch(keys.clone()));
        }
        if now >= sweep {
            sweep = now + SWEEP;
            streams.reached.iter_mut().for_each(|reached| reached.sweep(&mut random));
        }
        let next = streams.reached.iter().map(|reached| reached.driver.due()).min();
        let until = next.unwrap_or(Time::NEVER).min(now + NAP);
        let accept = next_connection(&listener);
        match woken(wire.ready(), accept, &mut local, &mut heard, until).await {
            Woken::Datagrams(ready) => ready?,
            Woken::Accepted((tcp, from)) => {
                let (names, events, handshakes) = (names.clone(), streams.events.clone(), handshakes.clone());
                let shaking = shake_hands(tcp, names, front.handshake, events);
                tokio::task::spawn_local(async move { handshakes.run(from.ip(), shaking).await });
            }
            Woken::Nothing => {}
        }
        heard.drain(..).for_each(|event| streams.local(now, event));
        for opened in wire.receive()? {
            streams.opened(&opened);
        }
        streams.turn(clock::now(), &mut wire);
    }
    let mut summary = wire.peer.summary();
    summary.bytes = streams.bytes;
    summary.upload =
        streams.reached.iter().fold(Default::default(), |sum, it| sum + it.driver.machine.progress());
    Ok(summary)
}

/// Carries out the outputs of one client.
struct Outputs<'a> {
    number: usize,
    wire: &'a mut Wire,
    streams: &'a mut BTreeMap<StreamKey, Fronted>,
}

impl Handler<Client> for Outputs<'_> {
    fn handle(&mut self, _: &mut Client, now: Time, output: Output) {
        match output {
            Output::Send(to, datagram) => self.wire.send_to(to, &datagram),
            Output::Stream(came) => self.came(now, came),
            Output::Publish | Output::Closed(_) => unreachable!("only services do"),
        }
    }
}

impl Outputs<'_> {
    /// Passes stream data, or the receiver's refusal, to the application.
    fn came(&mut self, now: Time, came: StreamEvent) {
        // An event for a stream that this side has ended.
        let Some(fronted) = self.streams.get_mut(&(self.number, came.stream)) else { return };
        if came.opened && !came.refused {
            fronted.pump.write(answer(Protocol::Socks, Outcome::Connected));
            fronted.opened = true;
        }
        fronted.used = now;
        fronted.pump.write(came.bytes);
        if came.refused {
            fronted.refuse(Outcome::Refused);
        } else if came.complete {
            fronted.pump.end();
        }
    }
}

impl Streams<'_> {
    fn local(&mut self, now: Time, event: Local) {
        match event {
            Local::Wants(receiver, tcp, rest) => {
                let key = (receiver, number());
                let last = |key: &StreamKey| self.streams.get(key).map_or(Time::ZERO, |fronted| fronted.used);
                if let Some(displaced) = self.places.displaced(&(receiver, receiver), last)
                    && let Some(fronted) = self.streams.get_mut(&displaced)
                {
                    // The next turn closes it.
                    fronted.refuse(Outcome::Failed);
                }
                self.places.admit(now, (receiver, receiver), key);
                let pump = Pump::start(key, std::future::ready(Ok(tcp)), self.events.clone());
                let fronted = Fronted { pump, opened: false, ended: false, since: now, used: now };
                let client = &mut self.reached[receiver].driver.machine;
                client.open(key.1, now);
                client.write(key.1, &rest);
                self.streams.insert(key, fronted);
            }
            Local::Bytes(key, bytes) => {
                self.bytes += bytes.len() as u64;
                self.reached[key.0].driver.machine.write(key.1, &bytes);
                self.streams.entry(key).and_modify(|fronted| {
                    fronted.pump.granted = false;
                    fronted.used = now;
                });
            }
            Local::End(key) => self.reached[key.0].driver.machine.end(key.1),
            Local::Unreachable(_) => {}
        }
    }

    /// Passes an opened packet to its client.
    fn opened(&mut self, opened: &Opened) {
        let of = |reached: &Reached| match opened {
            Opened::Message { id, .. } | Opened::Cell { id, .. } => reached.driver.machine.knows(id),
            Opened::Refused { first, label, .. } => reached.driver.machine.begins(*first, *label),
            _ => false,
        };
        // The first client counts packets that belong to none.
        let number = self.reached.iter().position(of).unwrap_or(0);
        if let Some(reached) = self.reached.get_mut(number) {
            reached.opened(opened);
        }
    }

    /// Runs the clients' timeouts, and carries out their outputs.
    fn catch_up(&mut self, now: Time, wire: &mut Wire) {
        for (number, reached) in self.reached.iter_mut().enumerate() {
            let outputs = &mut Outputs { number, wire: &mut *wire, streams: &mut self.streams };
            reached.driver.catch_up(outputs, now);
        }
    }

    /// Updates every stream: timeouts, backpressure, and the end.
    fn turn(&mut self, now: Time, wire: &mut Wire) {
        self.catch_up(now, wire);
        for ((receiver, stream), fronted) in &mut self.streams {
            let client = &mut self.reached[*receiver].driver.machine;
            if !fronted.opened && !fronted.ended && now.since(fronted.since) > FIRST_ANSWER {
                let known = client.store() > 0 || client.routes(now) > 0;
                fronted.refuse(if known { Outcome::TimedOut } else { Outcome::Unreachable });
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
        self.streams.retain(|key, fronted| {
            if fronted.ended {
                self.places.release(key);
            }
            !fronted.ended
        });
    }
}

impl Fronted {
    /// Answers with `why` if the application still waits for an answer, and ends the stream.
    fn refuse(&mut self, why: Outcome) {
        if !self.opened {
            self.pump.write(answer(Protocol::Socks, why));
        }
        self.pump.end();
        self.ended = true;
    }
}

/// Runs a SOCKS5 handshake, and requests a stream if it names a receiver.
async fn shake_hands(
    tcp: TcpStream,
    names: Rc<Vec<(String, usize)>>,
    most: Span,
    events: mpsc::Sender<Local>,
) {
    let asked = tokio::select! {
        asked = asked(tcp, &names) => asked,
        () = clock::until(clock::now() + most) => None,
    };
    if let Some((receiver, tcp, rest)) = asked {
        let _ = events.send(Local::Wants(receiver, tcp, rest)).await;
    }
}

async fn asked(mut tcp: TcpStream, names: &[(String, usize)]) -> Option<(usize, TcpStream, Vec<u8>)> {
    let mut handshake = Handshake::new(Accepts::PlainSocks);
    let mut block = [0; 512];
    let mut step = Step::Read;
    loop {
        step = match step {
            Step::Read => match tcp.read(&mut block).await.ok()? {
                0 => return None,
                length => handshake.read(&block[..length]),
            },
            Step::Send(answer) => {
                tcp.write_all(answer).await.ok()?;
                handshake.read(&[])
            }
            Step::Connect { host: Host::Name(name), rest, .. } => {
                let meant = |(known, _): &&(String, usize)| known.eq_ignore_ascii_case(&name);
                if let Some((_, receiver)) = names.iter().find(meant) {
                    return Some((*receiver, tcp, rest));
                }
                Step::Refuse(answer(Protocol::Socks, Outcome::Unreachable))
            }
            // Receivers have names, not addresses.
            Step::Connect { host: Host::Address(_), .. } => {
                Step::Refuse(answer(Protocol::Socks, Outcome::UnsupportedAddress))
            }
            Step::Resolve { protocol, .. } => Step::Refuse(answer(protocol, Outcome::UnsupportedCommand)),
            Step::Refuse(answer) => {
                let _ = tcp.write_all(&answer).await;
                let _ = tcp.shutdown().await;
                return None;
            }
        };
    }
}
