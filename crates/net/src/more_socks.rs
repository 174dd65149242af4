//! A SOCKS5 front: local applications reach receivers that hide.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::Peer;
use tidegate_control::paths::sender::Sender;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_more::client::{self, Client};
use tidegate_more::descriptor::Descriptor;
use tidegate_more::machine::{Output, StreamEvent};
use tidegate_more::message::PATH_SIZE;
use tidegate_more::onion::{Epoch, Opened};
use tidegate_more::socks::{Handshake, Host, Reply, Step, reply};
use tidegate_more::wire::PACKET;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::clock;
use crate::more_local::{Local, NAP, Pump, StreamKey, Wire, Woken, check_hops, runtime, woken};
use crate::more_peer::{Settings, Summary, invalid, number, randomness};

/// Streams at once: an application that wants another is refused.
const STREAMS: usize = 128;
/// Handshakes at once; more connections wait to be accepted.
const HANDSHAKES: usize = 64;
/// How long a receiver may take to answer the first time.
const FIRST_ANSWER: Span = Span::from_secs(10);
/// How often descriptors are looked at.
const SWEEP: Span = Span::from_secs(1);

/// A SOCKS5 front.
pub struct Front<'a> {
    /// Where applications connect.
    pub listener: std::net::TcpListener,
    /// Where they can be led.
    pub receivers: Vec<Receiver<'a>>,
    /// How long an application may take until it has said what it wants.
    pub handshake: Span,
}

/// A receiver that applications can reach.
pub struct Receiver<'a> {
    /// What it published.
    pub descriptor: Descriptor,
    /// The host names that mean it.
    pub names: Vec<String>,
    /// Reads the descriptor again when receiver paths run out.
    pub reread: Box<dyn FnMut() -> Option<Descriptor> + 'a>,
}

/// Takes local connections over receiver paths until `stop` is set.
///
/// # Errors
/// [`io::Error`] of the sockets, [`io::ErrorKind::InvalidInput`] for settings that cannot work.
pub fn socks(settings: &Settings, front: Front, stop: &AtomicBool) -> io::Result<Summary> {
    check_hops(settings, 1)?;
    runtime()?.block_on(socks_all(settings, front, stop))
}

/// A client of one receiver, and where its paths come from.
struct Reached<'a> {
    client: Client,
    receiver: Receiver<'a>,
    /// The paths of the descriptor as it was read last.
    read: BTreeSet<[u8; PATH_SIZE]>,
}

impl<'a> Reached<'a> {
    fn new(
        settings: &Settings,
        epoch: Epoch,
        receiver: Receiver<'a>,
        random: &mut Random,
    ) -> io::Result<Reached<'a>> {
        // One number more than there are peers stands for the receiver.
        let (peers, hops) = (epoch.keys.len(), settings.hops + 2);
        let controller =
            settings.parameters.controller(peers + 1, Seed::root(number())).ok_or_else(|| {
                invalid(
                    "the perfect controller needs to know everything: it exists in the simulator only".into(),
                )
            })?;
        let latencies = settings.parameters.latencies(peers + 1);
        let mut sender = Sender::new(settings.me, peers + 1, hops, f64::from(PACKET), controller, latencies);
        sender.set_receiver(peers as Peer);
        sender.set_guards(settings.guards.clone());
        let known = client::ClientConfig {
            me: settings.me,
            epoch,
            hops: settings.hops,
            uses: settings.uses,
            receiver: receiver.descriptor.key,
            attempt_every: settings.attempt_every,
        };
        let client = Client::new(known, sender, randomness(), clock::now());
        let mut reached = Reached { client, receiver, read: BTreeSet::new() };
        reached.supply(random);
        Ok(reached)
    }

    /// Gives the client the paths that it was not given before, in an order of its own.
    fn supply(&mut self, random: &mut Random) {
        let paths = &self.receiver.descriptor.paths;
        let mut fresh: Vec<_> = paths.iter().filter(|path| !self.read.contains(&path.to_bytes())).collect();
        random.shuffle(&mut fresh);
        self.client.supply(fresh.into_iter().cloned());
        self.read = paths.iter().map(|path| path.to_bytes()).collect();
    }

    fn sweep(&mut self, random: &mut Random) {
        let (known, client) = (&self.receiver.descriptor, &self.client);
        if client.store() < known.paths.len() / 4
            && let Some(fresh) = (self.receiver.reread)()
            && (fresh.name, fresh.key) == (known.name, known.key)
        {
            self.receiver.descriptor = fresh;
            self.supply(random);
        }
    }

    /// An opened packet, which may be this client's.
    fn opened(&mut self, opened: &Opened) {
        let (now, client) = (clock::now(), &mut self.client);
        match opened {
            Opened::Message { id, annex, payload } => client.answer(now, *id, *annex, payload),
            Opened::Cell { id, annex, payload } => client.cell_back(now, *id, *annex, payload),
            Opened::Refused { first, label, block } => client.refused(now, *first, *label, block),
            _ => {}
        }
    }
}

/// A stream as the front sees it.
struct Fronted {
    pump: Pump,
    opened: bool,
    ended: bool,
    since: Time,
}

/// All streams of a front.
struct Streams<'a> {
    reached: Vec<Reached<'a>>,
    streams: BTreeMap<StreamKey, Fronted>,
    events: mpsc::Sender<Local>,
    /// Bytes that applications sent.
    bytes: u64,
}

async fn socks_all(settings: &Settings, mut front: Front<'_>, stop: &AtomicBool) -> io::Result<Summary> {
    let mut wire = Wire::open(settings)?;
    let mut random: Random = Seed::root(number()).random();
    let names = front.receivers.iter_mut().enumerate();
    let names = names
        .flat_map(|(number, it)| std::mem::take(&mut it.names).into_iter().map(move |name| (name, number)));
    let names: Arc<Vec<(String, usize)>> = Arc::new(names.collect());
    let reached = front.receivers.into_iter();
    let reached = reached
        .map(|it| Reached::new(settings, wire.peer.keys(), it, &mut random))
        .collect::<Result<_, _>>()?;
    front.listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(front.listener)?;
    let (events, mut local) = mpsc::channel(256);
    let mut streams = Streams { reached, streams: BTreeMap::new(), events, bytes: 0 };
    let places = Arc::new(Semaphore::new(HANDSHAKES));
    let mut heard = Vec::new();
    let mut sweep = clock::now() + SWEEP;
    while !stop.load(Ordering::Relaxed) {
        let now = clock::now();
        if let Some(keys) = wire.peer.turn(now)? {
            streams.reached.iter_mut().for_each(|reached| reached.client.set_epoch(keys.clone()));
        }
        if now >= sweep {
            sweep = now + SWEEP;
            streams.reached.iter_mut().for_each(|reached| reached.sweep(&mut random));
        }
        let next = streams.reached.iter().filter_map(|reached| reached.client.next_timeout()).min();
        let until = next.unwrap_or(Time::NEVER).min(now + NAP);
        let accept = async {
            if places.available_permits() > 0
                && let Ok((tcp, _)) = listener.accept().await
            {
                return tcp;
            }
            // Until another turn: there are enough, or not enough descriptors.
            std::future::pending().await
        };
        match woken(wire.ready(), accept, &mut local, &mut heard, until).await {
            Woken::Datagrams(ready) => ready?,
            Woken::Accepted(tcp) => {
                let place = Arc::clone(&places).try_acquire_owned().expect("only this task takes them");
                let (names, events) = (Arc::clone(&names), streams.events.clone());
                tokio::spawn(shake_hands(tcp, names, front.handshake, place, events));
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
    summary.upload = streams.reached.iter().fold(Default::default(), |sum, it| sum + it.client.progress());
    Ok(summary)
}

impl Streams<'_> {
    fn local(&mut self, now: Time, event: Local) {
        match event {
            Local::Wants(receiver, tcp, rest, place) => {
                drop(place);
                let key = (receiver, number());
                let pump = Pump::start(key, std::future::ready(Ok(tcp)), self.events.clone());
                let mut fronted = Fronted { pump, opened: false, ended: false, since: now };
                if self.streams.len() < STREAMS {
                    let client = &mut self.reached[receiver].client;
                    client.open(key.1, now);
                    client.write(key.1, &rest);
                    self.streams.insert(key, fronted);
                } else {
                    fronted.refuse(Reply::Failure);
                }
            }
            Local::Bytes(key, bytes) => {
                self.bytes += bytes.len() as u64;
                self.reached[key.0].client.write(key.1, &bytes);
                self.streams.entry(key).and_modify(|fronted| fronted.pump.granted = false);
            }
            Local::End(key) => self.reached[key.0].client.end(key.1),
            Local::Unreachable(_) => {}
        }
    }

    /// A packet came for one of the clients.
    fn opened(&mut self, opened: &Opened) {
        let of = |reached: &Reached| match opened {
            Opened::Message { id, .. } | Opened::Cell { id, .. } => reached.client.knows(id),
            Opened::Refused { first, label, .. } => reached.client.begins(*first, *label),
            _ => false,
        };
        // What belongs to none is counted by the first.
        let number = self.reached.iter().position(of).unwrap_or(0);
        if let Some(reached) = self.reached.get_mut(number) {
            reached.opened(opened);
        }
    }

    /// Does what the clients ask, and lets them do what is due.
    fn drain(&mut self, now: Time, wire: &mut Wire) {
        for number in 0..self.reached.len() {
            self.reached[number].client.catch_up(now);
            while let Some(output) = self.reached[number].client.poll() {
                match output {
                    Output::Send(to, datagram) => wire.send_to(to, &datagram),
                    Output::Stream(came) => self.came(number, came),
                    Output::Publish | Output::Closed(_) => unreachable!("only receivers do"),
                }
            }
        }
    }

    /// Something came on a stream.
    fn came(&mut self, number: usize, came: StreamEvent) {
        let Some(fronted) = self.streams.get_mut(&(number, came.stream)) else { return };
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

    /// Looks after every stream.
    fn turn(&mut self, now: Time, wire: &mut Wire) {
        self.drain(now, wire);
        for ((receiver, stream), fronted) in &mut self.streams {
            let client = &mut self.reached[*receiver].client;
            if !fronted.opened && !fronted.ended && now.since(fronted.since) > FIRST_ANSWER {
                let known = client.store() > 0 || client.routes(now) > 0;
                fronted.refuse(if known { Reply::TimedOut } else { Reply::HostUnreachable });
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
        self.streams.retain(|_, fronted| !fronted.ended);
    }
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

/// Speaks SOCKS5 with an application and asks for a stream if it names the receiver.
async fn shake_hands(
    tcp: TcpStream,
    names: Arc<Vec<(String, usize)>>,
    most: Span,
    place: OwnedSemaphorePermit,
    events: mpsc::Sender<Local>,
) {
    let asked = tokio::select! {
        asked = asked(tcp, &names) => asked,
        () = clock::until(clock::now() + most) => None,
    };
    if let Some((receiver, tcp, rest)) = asked {
        let _ = events.send(Local::Wants(receiver, tcp, rest, place)).await;
    }
}

async fn asked(mut tcp: TcpStream, names: &[(String, usize)]) -> Option<(usize, TcpStream, Vec<u8>)> {
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
                let meant = |(known, _): &&(String, usize)| known.eq_ignore_ascii_case(&name);
                if let Some((_, receiver)) = names.iter().find(meant) {
                    return Some((*receiver, tcp, rest));
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
