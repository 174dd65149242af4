//! The parts that every peer of MORE shares: opening and forwarding datagrams, key epochs, replay memory on disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::{ControllerParameters, Peer, Sender};
use tidegate_control::random::Seed;
use tidegate_control::shares::network;
use tidegate_control::units::{Span, Time};
use tidegate_more::directory::Directory;
use tidegate_more::flights::Progress;
use tidegate_more::keys::PeerKeys;
use tidegate_more::machine::Randomness;
use tidegate_more::node::{self, Node, NodeConfig};
use tidegate_more::onion::{Epoch, Opened};
use tidegate_more::wire::PACKET;
use tidegate_more::{download, service};

use super::status::Status;
use crate::gate::Gate;
use crate::http::Number;
use crate::{clock, os};

/// Configuration of a peer.
pub struct PeerConfig {
    /// The signed directory of all peers.
    pub directory: Directory,
    /// This peer's number in the directory.
    pub me: Peer,
    /// The seed of this peer's secrets.
    pub secret: [u8; 32],
    /// The address to bind, if it is not the directory's address of this peer.
    pub listen: Option<SocketAddr>,
    /// The folder of the replay memory, files `peer-N.opened-EPOCH`. Without it, a restarted process accepts packets
    /// again that it opened earlier in the same epoch.
    pub memory: Option<PathBuf>,
    /// Forwarding limit, bytes of frames per second.
    pub limit: f64,
    /// Relays per packet.
    pub hops: usize,
    /// Packets per path to and from receivers of hidden services.
    pub uses: usize,
    /// The rate controller, and how the peer offers rates.
    pub parameters: ControllerParameters,
    /// Sending interval while rate is left.
    pub attempt_every: Span,
    /// The allowed first hops of its own packets; any peer if empty.
    pub guards: Vec<Peer>,
    /// Where the status page is served, on loopback.
    pub status: Option<TcpListener>,
    /// The peers that it may send to.
    pub gate: Gate,
}

impl PeerConfig {
    /// The sender of its own packets, over this many of `peers`.
    pub(crate) fn sender(&self, peers: usize, hops: usize) -> io::Result<Sender> {
        let controller = self.parameters.controller(peers, Seed::root(number())).ok_or_else(|| {
            invalid("the `perfect` controller only works in the simulator; choose another controller".into())
        })?;
        let latencies = self.parameters.latencies(peers);
        let mut sender = Sender::new(self.me, peers, hops, f64::from(PACKET), controller, latencies);
        sender.set_guards(self.guards.clone());
        Ok(sender)
    }
}

/// Counters of a peer's run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Datagrams by fate.
    pub node: node::Counters,
    /// Chunks by fate.
    pub download: download::Counters,
    /// Packets and chunks of a hidden service by fate.
    pub service: service::Counters,
    /// Counters of what this peer sent.
    pub upload: Progress,
    /// Stream bytes sent or received.
    pub bytes: u64,
    /// Time from the first to the last packet, seconds.
    pub seconds: f64,
    /// Datagrams that the socket did not take.
    pub unsent: u64,
    /// Whether the user stopped a transfer before its end.
    pub stopped: bool,
}

/// Interval of checking the key epoch.
const LOOK: Span = Span::from_secs(1);
/// Receive buffer, bytes: 0.5 s at 8 MB/s. The kernel may grant less.
const RECEIVED: usize = 4 << 20;
/// Send buffer: 16 datagrams (Linux doubles this and counts 2,304 bytes for each), about as much as a TCP flow may
/// queue (TCP small queues). A link's queue serves flows by what they have in it, so further datagrams wait in the
/// peer.
const SENT: usize = 16 * 2304 / 2;

pub(crate) fn invalid(cause: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, cause)
}

/// 32 unpredictable bytes from the operating system.
pub fn entropy() -> [u8; 32] {
    x25519_dalek::StaticSecret::random().to_bytes()
}

/// Randomness for a machine, from the operating system.
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
    pub(crate) fn open(settings: &PeerConfig) -> io::Result<(LivePeer, UdpSocket)> {
        let (directory, me) = (&settings.directory, settings.me);
        let peers = directory.peers.len();
        let Some(entry) = directory.peers.get(usize::from(me)) else {
            return Err(invalid(format!("peer {me} is not in the directory, which has {peers} peers")));
        };
        let keys = PeerKeys::new(settings.secret);
        let epoch =
            directory.epoch_at(clock::unix()).map_err(|error| invalid(format!("the directory {error}")))?;
        if keys.link_key() != entry.key.0 || keys.onion_key(epoch) != entry.epochs[epoch as usize].0 {
            return Err(invalid(format!("the secret does not match the keys of peer {me} in the directory")));
        }
        if let Some(guard) =
            settings.guards.iter().find(|guard| usize::from(**guard) >= peers || **guard == me)
        {
            return Err(invalid(format!(
                "guard {guard} is not another peer of the directory, which has {peers} peers"
            )));
        }
        let listen = match settings.listen {
            Some(listen) => listen,
            None => resolve(&entry.address, None).ok_or_else(|| {
                invalid(format!(
                    "cannot resolve the directory's address {} of this peer; set a listening address",
                    entry.address
                ))
            })?,
        };
        let socket = UdpSocket::bind(listen).map_err(|error| {
            let cure = "end the other process, or receive at another address with --listen-udp";
            invalid(format!("cannot receive datagrams at {listen}: {error}; {cure}"))
        })?;
        os::ask_for_buffers(&socket, [RECEIVED, SENT]);
        let addresses: Vec<Option<SocketAddr>> = directory
            .peers
            .iter()
            .map(|peer| resolve(&peer.address, Some(&listen)).filter(|at| settings.gate.check(*at).is_ok()))
            .collect();
        if addresses.iter().zip(0..).all(|(address, peer)| address.is_none() || peer == me) && peers > 1 {
            return Err(invalid(
                "the gate refuses the address of every other peer; in a private network, pass \
                 --allow-private-addresses"
                    .into(),
            ));
        }
        // A random phase, so that relays do not refill their limits in step.
        let phase = Span(number() % 1_000_000_000);
        let mut node = Node::new(NodeConfig {
            me,
            keys,
            links: &directory.links(),
            networks: networks(&addresses),
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
            status: settings.status.as_ref().map(|at| Status::serve(at, me)).transpose()?,
            opened: clock::now(),
            summary: Summary::default(),
        };
        Ok((peer, socket))
    }

    /// The onion keys of all peers.
    pub(crate) fn keys(&self) -> Epoch {
        self.directory.epoch(self.epoch)
    }

    /// The current key epoch.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the new keys if a new epoch has begun.
    ///
    /// # Errors
    /// If the directory has expired, or the replay memory cannot be written.
    pub(crate) fn turn(&mut self, now: Time) -> io::Result<Option<Epoch>> {
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

    /// Opens a datagram.
    pub(crate) fn handle(&mut self, now: Time, wire: &[u8]) -> io::Result<Handled> {
        self.node.handle(now, wire);
        // Write the replay tags before forwarding: a packet that is forwarded twice can be traced.
        self.memory.write(&mut self.node)?;
        Ok(match self.node.poll() {
            Some(Opened::Forward { to, datagram }) => Handled::Forward(self.address(to), datagram),
            Some(opened) => Handled::Here(opened),
            None => Handled::Nothing,
        })
    }

    /// Seals a datagram for its next hop. Returns the hop's address and the datagram.
    pub(crate) fn seal(&mut self, to: Peer, datagram: &[u8]) -> (Option<SocketAddr>, Vec<u8>) {
        (self.address(to), self.node.seal(to, datagram).unwrap_or_default())
    }

    /// The metrics of the status page.
    fn numbers(&self, now: Time) -> Vec<Number> {
        let node = self.node.counters();
        let count = |number: u64| number as f64;
        vec![
            ("uptime_seconds", "Seconds since the peer started", now.since(self.opened).as_secs_f64()),
            ("peers", "Peers in the directory", self.addresses.len() as f64),
            ("epoch", "The current key epoch", f64::from(self.epoch)),
            ("offer_bytes_per_second", "Rate offered to each source", f64::from(self.node.stamp())),
            ("forwarded_total", "Data packets forwarded", count(node.forwarded)),
            ("delivered_total", "Data packets for this peer", count(node.delivered)),
            ("acks_forwarded_total", "Acknowledgements forwarded", count(node.acks_forwarded)),
            ("acks_received_total", "Acknowledgements for this peer", count(node.acks_received)),
            ("refusals_total", "Refusals sent and forwarded", count(node.refusals)),
            ("over_limit_total", "Dropped: over the limit", count(node.over_limit)),
            (
                "unauthenticated_total",
                "Dropped: not from a peer of the directory",
                count(node.unauthenticated),
            ),
            ("misshapen_total", "Dropped: invalid size or kind", count(node.misshapen)),
            ("stale_total", "Dropped: of a past or future key epoch", count(node.stale)),
            ("forged_total", "Dropped: integrity check failed, or unknown route", count(node.forged)),
            ("replayed_total", "Dropped: replayed", count(node.replayed)),
            ("senseless_total", "Dropped: invalid contents", count(node.senseless)),
            ("flooding_total", "Dropped: more acknowledgements than data", count(node.flooding)),
            ("memory_full_total", "Dropped: replay memory full", count(node.memory_full)),
            ("unsent_total", "Datagrams that the socket did not take", count(self.summary.unsent)),
        ]
    }

    fn address(&self, to: Peer) -> Option<SocketAddr> {
        self.addresses.get(usize::from(to)).copied().flatten()
    }

    pub(crate) fn summary(mut self) -> Summary {
        self.summary.node = self.node.counters();
        self.summary
    }
}

/// The result of opening a datagram.
pub(crate) enum Handled {
    Forward(Option<SocketAddr>, Vec<u8>),
    Here(Opened),
    Nothing,
}

/// The first peer of each peer's network. A peer without an address is alone in its network.
fn networks(addresses: &[Option<SocketAddr>]) -> Vec<Peer> {
    let mut first = BTreeMap::new();
    let of = |(address, peer): (&Option<SocketAddr>, Peer)| match address {
        Some(address) => *first.entry(network(address.ip()).0).or_insert(peer),
        None => peer,
    };
    addresses.iter().zip(0..).map(of).collect()
}

/// Resolves a name to an address of the same family as `like`.
fn resolve(name: &str, like: Option<&SocketAddr>) -> Option<SocketAddr> {
    let mut found = name.to_socket_addrs().ok()?;
    found.find(|address| like.is_none_or(|like| like.is_ipv4() == address.is_ipv4()))
}

/// Replay memory: one file per epoch with the 8-byte tags of opened packets.
struct Memory {
    folder: Option<PathBuf>,
    me: Peer,
    files: Vec<(u32, File)>,
}

impl Memory {
    /// Opens the files of epochs with valid keys, and removes the others.
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
                // A process that died while writing left a partial tag.
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
