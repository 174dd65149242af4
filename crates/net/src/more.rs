//! MORE over UDP: one thread, one socket, the machines of [`tidegate_more`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_control::paths::parameters::Parameters;
use tidegate_control::paths::sender::Sender;
use tidegate_control::paths::{MAX_HOPS, Peer};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_more::directory::Directory;
use tidegate_more::download::{self, Download};
use tidegate_more::flights::Progress;
use tidegate_more::node::{self, Node};
use tidegate_more::onion::{DATA_SIZE, Hop, MAX_RELAYS, Opened, PACKET};
use tidegate_more::service;
use tidegate_more::upload::{CHUNK, Overlay, Upload};

use crate::clock;

/// What one peer needs to take part.
pub struct Settings {
    /// Who takes part.
    pub directory: Directory,
    /// This peer's number in it.
    pub me: Peer,
    /// This peer's X25519 secret.
    pub secret: [u8; 32],
    /// Bytes of frames per second that it forwards.
    pub limit: f64,
    /// Relays per packet.
    pub hops: usize,
    /// How it controls what it sends, and how it offers rates.
    pub parameters: Parameters,
    /// How often it sends while it has rate left.
    pub attempt_every: Span,
    /// The only peers that it sends its own packets to first; any if empty.
    pub guards: Vec<Peer>,
}

/// What a peer does besides forwarding.
pub enum Role<'a> {
    /// Nothing.
    Relay,
    /// Sends all of this to a peer.
    Send {
        /// The peer.
        to: Peer,
        /// What is sent, to its end.
        content: &'a mut dyn Read,
    },
    /// Writes the first stream that arrives.
    Receive {
        /// Where to.
        content: &'a mut dyn Write,
    },
}

/// What happened at one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Datagrams by fate.
    pub node: node::Counters,
    /// Chunks by fate.
    pub download: download::Counters,
    /// Letters and chunks by fate, of a peer that serves.
    pub service: service::Counters,
    /// What this peer sent.
    pub upload: Progress,
    /// Bytes of stream sent or received.
    pub bytes: u64,
    /// From the first to the last packet sent or received, seconds.
    pub seconds: f64,
    /// Datagrams that could not be handed to the network.
    pub unsent: u64,
}

/// A peer that completed its stream stays until it has heard nothing of it for so long: acknowledgements that
/// were lost must be repeated, and the first timeouts of a path nobody measured are long.
const LINGER: Span = Span::from_secs(8);
/// A sender that hears no acknowledgement for so long gives up.
const PATIENCE: Span = Span::from_secs(60);
/// Longest sleep: how soon a stop is noticed.
const NAP: Span = Span::from_millis(50);

/// Takes part until the role is fulfilled or `stop` is set.
///
/// # Errors
/// [`io::Error`] of the socket or the content, [`ErrorKind::TimedOut`] if nobody acknowledges, and [`ErrorKind::InvalidInput`] for settings that cannot work.
pub fn run(settings: &Settings, role: Role, stop: &AtomicBool) -> io::Result<Summary> {
    let mut peer = LivePeer::open(settings)?;
    match role {
        Role::Relay => peer.relay(stop)?,
        Role::Send { to, content } => peer.send(settings, to, content, stop)?,
        Role::Receive { content } => peer.receive(content, stop)?,
    }
    peer.summary.node = peer.node.counters();
    Ok(peer.summary)
}

pub(crate) struct LivePeer {
    pub(crate) node: Node,
    pub(crate) socket: UdpSocket,
    pub(crate) addresses: Vec<SocketAddr>,
    buffer: Vec<u8>,
    pub(crate) summary: Summary,
}

pub(crate) fn invalid(cause: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, cause)
}

/// 32 unpredictable bytes from the operating system.
pub fn entropy() -> [u8; 32] {
    x25519_dalek::StaticSecret::random().to_bytes()
}

impl LivePeer {
    pub(crate) fn open(settings: &Settings) -> io::Result<LivePeer> {
        let peers = settings.directory.peers.len();
        let Some(entry) = settings.directory.peers.get(usize::from(settings.me)) else {
            return Err(invalid(format!("there is no peer {} in the directory of {peers}", settings.me)));
        };
        let phase = Span(u64::from_le_bytes(entropy()[..8].try_into().expect("eight bytes")) % 1_000_000_000);
        let node = Node::new(settings.secret, settings.limit, phase, peers, settings.parameters.stamping());
        if node.key() != entry.key.0 {
            return Err(invalid(format!("the secret is not that of peer {} in the directory", settings.me)));
        }
        if let Some(guard) =
            settings.guards.iter().find(|guard| usize::from(**guard) >= peers || **guard == settings.me)
        {
            return Err(invalid(format!("guard {guard} is not another peer of the directory of {peers}")));
        }
        let socket = UdpSocket::bind(entry.address)?;
        let addresses = settings.directory.peers.iter().map(|peer| peer.address).collect();
        // One byte more than any datagram has, so that longer ones are seen to be longer.
        let buffer = vec![0; DATA_SIZE + 1];
        Ok(LivePeer { node, socket, addresses, buffer, summary: Summary::default() })
    }

    /// Waits for a datagram, at most until `until`, and opens it; forwarding is done here.
    fn next(&mut self, until: Time) -> io::Result<Option<Opened>> {
        let wait = until.since(clock::now()).min(NAP).max(Span::from_micros(50));
        self.socket.set_read_timeout(Some(Duration::from_nanos(wait.0)))?;
        let length = match self.socket.recv_from(&mut self.buffer) {
            Ok((length, _)) => length,
            // A refused datagram sent earlier is reported here: the peer is not there (yet).
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock
                | ErrorKind::TimedOut
                | ErrorKind::Interrupted
                | ErrorKind::ConnectionRefused => return Ok(None),
                _ => return Err(error),
            },
        };
        match self.node.handle(clock::now(), &self.buffer[..length]) {
            Some(Opened::Forward { to, datagram }) => {
                self.hand_over(to, &datagram);
                Ok(None)
            }
            other => Ok(other),
        }
    }

    fn hand_over(&mut self, to: Peer, datagram: &[u8]) {
        let sent = self.addresses.get(usize::from(to)).map(|address| self.socket.send_to(datagram, address));
        if !matches!(sent, Some(Ok(_))) {
            self.summary.unsent += 1;
        }
    }

    fn relay(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.next(Time::NEVER)?;
        }
        Ok(())
    }

    fn send(
        &mut self,
        settings: &Settings,
        to: Peer,
        content: &mut dyn Read,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let keys: Vec<[u8; 32]> = settings.directory.peers.iter().map(|peer| peer.key.0).collect();
        let (peers, me) = (keys.len(), settings.me);
        if usize::from(to) >= peers || to == me {
            return Err(invalid(format!("peer {to} is not another peer of the directory")));
        }
        if !(1..=MAX_RELAYS.min(MAX_HOPS)).contains(&settings.hops) || settings.hops + 2 > peers {
            return Err(invalid(format!(
                "{} hops among {peers} peers: give 1 to {MAX_RELAYS} hops and at least two peers more",
                settings.hops
            )));
        }
        let seed = || Seed::root(u64::from_le_bytes(entropy()[..8].try_into().expect("eight bytes")));
        let controller = settings.parameters.controller(peers, seed()).ok_or_else(|| {
            invalid("the perfect controller needs to know everything: it exists in the simulator only".into())
        })?;
        let latencies = settings.parameters.latencies(peers);
        let mut sender = Sender::new(me, peers, settings.hops, f64::from(PACKET), controller, latencies);
        sender.set_guards(settings.guards.clone());
        let hop = |peer: Peer| Hop { peer, key: keys[usize::from(peer)] };
        let overlay = Overlay {
            me: hop(me),
            to: hop(to),
            hops: settings.hops,
            attempt_every: settings.attempt_every,
            keys: keys.clone(),
        };
        let start = clock::now();
        let stream = u64::from_le_bytes(entropy()[..8].try_into().expect("eight bytes"));
        let mut upload = Upload::new(stream, overlay, sender, start);
        let mut random: Random = seed().random();
        let mut block = vec![0; 64 * CHUNK];
        let mut ended = false;
        let mut heard = start;
        while !upload.done() && !stop.load(Ordering::Relaxed) {
            while !ended && upload.room() >= block.len() {
                let read = read_full(content, &mut block)?;
                self.summary.bytes += read as u64;
                upload.write(&block[..read]);
                if read < block.len() {
                    upload.end();
                    ended = true;
                }
            }
            while let Some((first, datagram)) = upload.poll(clock::now(), &mut random, &mut entropy) {
                self.hand_over(first, &datagram);
            }
            if let Some(Opened::Ack { id, annex, .. }) = self.next(upload.next_time())? {
                heard = clock::now();
                upload.acked(heard, id, annex);
            }
            if clock::now().since(heard) > PATIENCE {
                let cause = format!("peer {to} has acknowledged nothing for {PATIENCE}: is it there?");
                return Err(io::Error::new(ErrorKind::TimedOut, cause));
            }
        }
        self.summary.seconds = clock::now().since(start).as_secs_f64();
        self.summary.upload = upload.progress();
        Ok(())
    }

    fn receive(&mut self, content: &mut dyn Write, stop: &AtomicBool) -> io::Result<()> {
        let mut download = Download::default();
        let mut wanted = None;
        let mut first = None;
        let mut leave = Time::NEVER;
        while !stop.load(Ordering::Relaxed) && clock::now() < leave {
            let Some(Opened::Data { body, reply }) = self.next(leave)? else { continue };
            let now = clock::now();
            let Some(arrived) = download.body(&body) else { continue };
            if *wanted.get_or_insert(arrived.stream) == arrived.stream {
                content.write_all(&arrived.bytes)?;
                self.summary.bytes += arrived.bytes.len() as u64;
                let begin = *first.get_or_insert(now);
                if leave == Time::NEVER {
                    self.summary.seconds = now.since(begin).as_secs_f64();
                }
                if arrived.complete {
                    content.flush()?;
                }
                if arrived.complete || leave != Time::NEVER {
                    leave = now + LINGER;
                }
            }
            if let Some((to, ack)) = reply.acknowledge(&[], &mut entropy) {
                self.hand_over(to, &ack);
            }
        }
        self.summary.download = download.counters;
        Ok(())
    }
}

/// Reads until the block is full or the content ends.
fn read_full(content: &mut dyn Read, block: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < block.len() {
        match content.read(&mut block[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
