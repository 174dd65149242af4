//! What every peer of MORE does, whatever it is there for: opens, forwards, turns its epochs, remembers what it opened.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::Peer;
use tidegate_control::paths::parameters::ControllerParameters;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_more::directory::Directory;
use tidegate_more::download;
use tidegate_more::flights::Progress;
use tidegate_more::keys::PeerKeys;
use tidegate_more::machine::Randomness;
use tidegate_more::node::{self, Node, NodeConfig};
use tidegate_more::onion::{Epoch, Opened};
use tidegate_more::service;

use crate::http::Number;
use crate::more_status::Status;
use crate::{clock, os};

/// What one peer needs to take part.
pub struct Settings {
    /// Who takes part.
    pub directory: Directory,
    /// This peer's number in it.
    pub me: Peer,
    /// The seed of this peer's secrets.
    pub secret: [u8; 32],
    /// Where it receives datagrams, if that is not where the directory sends them to.
    pub listen: Option<SocketAddr>,
    /// Where it keeps what it opened in this epoch, in files `peer-N.opened-EPOCH`; without, a process that starts
    /// again within an epoch opens packets again that the one before had opened.
    pub memory: Option<PathBuf>,
    /// Bytes of frames per second that it forwards.
    pub limit: f64,
    /// Relays per packet.
    pub hops: usize,
    /// Packets per path to and from receivers that hide.
    pub uses: usize,
    /// How it controls what it sends, and how it offers rates.
    pub parameters: ControllerParameters,
    /// How often it sends while it has rate left.
    pub attempt_every: Span,
    /// The only peers that it sends its own packets to first; any if empty.
    pub guards: Vec<Peer>,
    /// Where it shows its state and metrics over HTTP, on loopback; nowhere if absent.
    pub status: Option<SocketAddr>,
}

/// What happened at one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Datagrams by fate.
    pub node: node::Counters,
    /// Chunks by fate.
    pub download: download::Counters,
    /// Packets and chunks by fate, of a peer that serves.
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

/// How often the calendar is looked at.
const LOOK: Span = Span::from_secs(1);
/// Bytes that may wait in the socket: half a second at 8 MB/s. The system may allow less.
const RECEIVED: usize = 4 << 20;
/// And for the link: sixteen datagrams (Linux doubles this and counts 2,304 for each), about as much as it lets a flow of TCP have
/// there (TCP's small queues). A queue gives each flow what it has in it, so what does not fit waits in the peer.
const SENT: usize = 16 * 2304 / 2;

pub(crate) fn invalid(cause: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, cause)
}

/// 32 unpredictable bytes from the operating system.
pub fn entropy() -> [u8; 32] {
    x25519_dalek::StaticSecret::random().to_bytes()
}

/// What a machine draws: nobody can foretell any of it.
pub(crate) fn randomness() -> Randomness {
    Randomness { choices: Seed::root(number()).random(), secrets: Box::new(entropy) }
}

/// An unpredictable number.
pub(crate) fn number() -> u64 {
    u64::from_le_bytes(entropy()[..8].try_into().expect("eight bytes"))
}

/// A peer without its socket.
pub(crate) struct LivePeer {
    pub node: Node,
    addresses: Vec<Option<SocketAddr>>,
    directory: Directory,
    epoch: u32,
    look: Time,
    memory: Memory,
    status: Option<Status>,
    opened: Time,
    pub summary: Summary,
}

impl LivePeer {
    pub fn open(settings: &Settings) -> io::Result<(LivePeer, UdpSocket)> {
        let (directory, me) = (&settings.directory, settings.me);
        let peers = directory.peers.len();
        let Some(entry) = directory.peers.get(usize::from(me)) else {
            return Err(invalid(format!("there is no peer {me} in the directory of {peers}")));
        };
        let keys = PeerKeys::new(settings.secret);
        let epoch =
            directory.epoch_at(clock::unix()).map_err(|error| invalid(format!("the directory {error}")))?;
        if keys.link_key() != entry.key.0 || keys.onion_key(epoch) != entry.epochs[epoch as usize].0 {
            return Err(invalid(format!("the secret is not that of peer {me} in the directory")));
        }
        if let Some(guard) =
            settings.guards.iter().find(|guard| usize::from(**guard) >= peers || **guard == me)
        {
            return Err(invalid(format!("guard {guard} is not another peer of the directory of {peers}")));
        }
        let listen = match settings.listen {
            Some(listen) => listen,
            None => resolve(&entry.address, None)
                .ok_or_else(|| invalid(format!("{}: this machine knows no such address", entry.address)))?,
        };
        let socket = UdpSocket::bind(listen)?;
        os::ask_for_buffers(&socket, [RECEIVED, SENT]);
        let addresses = directory.peers.iter().map(|peer| resolve(&peer.address, Some(&listen))).collect();
        let phase = Span(number() % 1_000_000_000);
        let mut node = Node::new(NodeConfig {
            me,
            keys,
            links: &directory.links(),
            epoch,
            limit: settings.limit,
            phase,
            stamping: settings.parameters.stamping(),
        });
        let mut memory = Memory { folder: settings.memory.clone(), me, files: Vec::new() };
        memory.open(&mut node)?;
        let directory = directory.clone();
        let peer = LivePeer {
            node,
            addresses,
            directory,
            epoch,
            look: Time::ZERO,
            memory,
            status: settings.status.map(|at| Status::serve(at, me)).transpose()?,
            opened: clock::now(),
            summary: Summary::default(),
        };
        Ok((peer, socket))
    }

    /// Everybody's keys.
    pub fn keys(&self) -> Epoch {
        self.directory.epoch(self.epoch)
    }

    /// The key epoch that it is.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A new epoch's keys, if one has begun.
    ///
    /// # Errors
    /// If the directory is over, or memory cannot be written.
    pub fn turn(&mut self, now: Time) -> io::Result<Option<Epoch>> {
        if now < self.look {
            return Ok(None);
        }
        self.look = now + LOOK;
        if let Some(status) = &self.status {
            status.show(self.numbers(now));
        }
        let epoch = self
            .directory
            .epoch_at(clock::unix())
            .map_err(|error| invalid(format!("the directory {error}")))?;
        if epoch == self.epoch {
            return Ok(None);
        }
        self.epoch = epoch;
        self.node.set_epoch(epoch);
        self.memory.open(&mut self.node)?;
        Ok(Some(self.keys()))
    }

    /// A datagram came. What it asks for, unless that is to be forwarded: then where to, and what.
    pub fn handle(&mut self, now: Time, wire: &[u8]) -> io::Result<Handled> {
        self.node.handle(now, wire);
        // Written down before anything is passed on: what is passed on twice can be followed.
        self.memory.write(&mut self.node)?;
        Ok(match self.node.poll() {
            Some(Opened::Forward { to, datagram }) => Handled::Forward(self.address(to), datagram),
            Some(opened) => Handled::Here(opened),
            None => Handled::Nothing,
        })
    }

    /// A datagram of this peer as it goes to `to`, and where that is.
    pub fn seal(&mut self, to: Peer, datagram: &[u8]) -> (Option<SocketAddr>, Vec<u8>) {
        (self.address(to), self.node.seal(to, datagram).unwrap_or_default())
    }

    /// What its operator sees.
    fn numbers(&self, now: Time) -> Vec<Number> {
        let node = self.node.counters();
        let count = |number: u64| number as f64;
        vec![
            ("uptime_seconds", "Seconds since it began", now.since(self.opened).as_secs_f64()),
            ("peers", "Peers of the directory", self.addresses.len() as f64),
            ("epoch", "The key epoch that it is", f64::from(self.epoch)),
            (
                "offer_bytes_per_second",
                "The rate that it offers to each source",
                f64::from(self.node.stamp()),
            ),
            ("forwarded", "Data passed on", count(node.forwarded)),
            ("delivered", "Data for this peer", count(node.delivered)),
            ("acks_forwarded", "Acknowledgements passed on", count(node.acks_forwarded)),
            ("acks_received", "Acknowledgements for this peer", count(node.acks_received)),
            ("refusals", "Refusals sent and passed back", count(node.refusals)),
            ("over_limit", "Dropped: over the limit", count(node.over_limit)),
            ("unauthenticated", "Dropped: no peer of the directory sent it", count(node.unauthenticated)),
            ("misshapen", "Dropped: neither size nor kind fit", count(node.misshapen)),
            ("stale", "Dropped: of a key epoch that is over or has not begun", count(node.stale)),
            ("forged", "Dropped: the integrity check failed, or no such route", count(node.forged)),
            ("replayed", "Dropped: opened before", count(node.replayed)),
            ("senseless", "Dropped: senseless inside", count(node.senseless)),
            ("flooding", "Dropped: acknowledgements that no data paid for", count(node.flooding)),
            ("memory_full", "Dropped: no more replay tags can be remembered", count(node.memory_full)),
            ("unsent", "Datagrams that could not be handed to the network", count(self.summary.unsent)),
        ]
    }

    fn address(&self, to: Peer) -> Option<SocketAddr> {
        self.addresses.get(usize::from(to)).copied().flatten()
    }

    pub fn summary(mut self) -> Summary {
        self.summary.node = self.node.counters();
        self.summary
    }
}

/// What became of a datagram.
pub(crate) enum Handled {
    Forward(Option<SocketAddr>, Vec<u8>),
    Here(Opened),
    Nothing,
}

/// The address that a name leads to, of the same family as `like`.
fn resolve(name: &str, like: Option<&SocketAddr>) -> Option<SocketAddr> {
    let mut found = name.to_socket_addrs().ok()?;
    found.find(|address| like.is_none_or(|like| like.is_ipv4() == address.is_ipv4()))
}

/// Files with the tags of opened packets, 8 bytes each, one file per epoch.
struct Memory {
    folder: Option<PathBuf>,
    me: Peer,
    files: Vec<(u32, File)>,
}

impl Memory {
    /// Reads and opens the files of the epochs whose keys are valid, and removes those of the others.
    fn open(&mut self, node: &mut Node) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let epochs = node.epochs();
        let path = |epoch: u32| folder.join(format!("peer-{}.opened-{epoch}", self.me));
        self.files.retain(|(epoch, _)| {
            let keep = epochs.contains(epoch);
            if !keep {
                let _ = std::fs::remove_file(path(*epoch));
            }
            keep
        });
        for epoch in epochs {
            if self.files.iter().all(|(open, _)| *open != epoch) {
                let mut options = os::private_file()?;
                let mut file = options.read(true).append(true).create(true).open(path(epoch))?;
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                let (tags, torn) = bytes.as_chunks::<8>();
                // A process that died while it wrote left a part of a tag.
                file.set_len((bytes.len() - torn.len()) as u64)?;
                if let Some(memory) = node.tags(epoch) {
                    memory.restore(tags.iter().map(|tag| u64::from_be_bytes(*tag)));
                }
                self.files.push((epoch, file));
            }
        }
        Ok(())
    }

    fn write(&mut self, node: &mut Node) -> io::Result<()> {
        for (epoch, file) in &mut self.files {
            let fresh = node.tags(*epoch).map(|tags| tags.take_fresh()).unwrap_or_default();
            if !fresh.is_empty() {
                let bytes: Vec<u8> = fresh.iter().flat_map(|tag| tag.to_be_bytes()).collect();
                file.write_all(&bytes)?;
            }
        }
        Ok(())
    }
}
