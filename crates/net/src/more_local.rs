//! Local TCP connections beside the UDP socket of a peer: one task owns the socket and the machines of
//! [`tidegate_more`]; every local connection has a task of its own and is read only when its stream has room.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_control::paths::Peer;
use tidegate_control::units::{Span, Time};
use tidegate_more::onion::{MAX_RELAYS, Opened};
use tidegate_more::wire::WIRE_SIZE;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::clock;
use crate::more_peer::{Handled, LivePeer, Settings, invalid};

/// What one read takes from a local connection.
const BLOCK: usize = 16 * 1024;
/// Bytes that may wait for a local connection before no more are asked for.
const QUEUED: usize = 256 * 1024;
/// What local connections may bring in one turn, as [`Wire::receive`] bounds what the overlay may.
const TURN: usize = 64;
/// The longest sleep: how soon a stop is noticed, and local connections that took what waited.
pub const NAP: Span = Span::from_millis(20);

/// A stream of one of the machines of this process.
pub type StreamKey = (usize, u64);

/// Something happened at a local connection.
pub enum Local {
    /// An application wants a stream of a machine. Its handshake counts until that is heard.
    Wants(usize, TcpStream, Vec<u8>, OwnedSemaphorePermit),
    /// Bytes of a stream.
    Bytes(StreamKey, Vec<u8>),
    /// Nothing more will come.
    End(StreamKey),
    /// The target cannot be reached.
    Unreachable(StreamKey),
}

/// The way to a local connection.
pub struct Pump {
    /// `None` ends it.
    bytes: mpsc::UnboundedSender<Option<Vec<u8>>>,
    queued: Arc<AtomicUsize>,
    /// Allows one read.
    grants: mpsc::Sender<()>,
    pub granted: bool,
}

impl Pump {
    /// Connects (or has connected) and moves bytes until both directions have ended.
    pub fn start(
        stream: StreamKey,
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

    pub fn write(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.queued.fetch_add(bytes.len(), Ordering::Relaxed);
            let _ = self.bytes.send(Some(bytes));
        }
    }

    pub fn end(&self) {
        let _ = self.bytes.send(None);
    }

    pub fn takes(&self) -> bool {
        self.queued.load(Ordering::Relaxed) < QUEUED
    }

    /// Allows the next read if there is room for it.
    pub fn grant(&mut self, room: usize) {
        if !self.granted && room >= BLOCK {
            self.granted = self.grants.try_send(()).is_ok();
        }
    }
}

/// Datagrams that may wait until the socket takes them; more are dropped, which slows their sources down.
const WAITING: usize = 300;

/// The UDP side of a peer.
pub struct Wire {
    pub peer: LivePeer,
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// What the socket does not take yet, first to be sent first.
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Wire {
    pub fn open(settings: &Settings) -> io::Result<Wire> {
        let (peer, socket) = LivePeer::open(settings)?;
        socket.set_nonblocking(true)?;
        let (socket, buffer) = (UdpSocket::from_std(socket)?, vec![0; WIRE_SIZE + 1]);
        Ok(Wire { peer, socket, buffer, waiting: VecDeque::new() })
    }

    pub fn send_to(&mut self, to: Peer, datagram: &[u8]) {
        let (to, datagram) = self.peer.seal(to, datagram);
        self.hand_over(to, datagram);
    }

    fn hand_over(&mut self, to: Option<SocketAddr>, datagram: Vec<u8>) {
        match to {
            Some(to) if self.waiting.len() < WAITING => self.waiting.push_back((to, datagram)),
            _ => self.peer.summary.unsent += 1,
        }
        self.flush();
    }

    /// Gives the socket what it takes.
    fn flush(&mut self) {
        while let Some((to, datagram)) = self.waiting.front() {
            match self.socket.try_send_to(datagram, *to) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                sent => self.peer.summary.unsent += u64::from(sent.is_err()),
            }
            self.waiting.pop_front();
        }
    }

    /// Until datagrams wait, or the socket takes more of those that are to be sent.
    pub async fn ready(&self) -> io::Result<()> {
        let sends = if self.waiting.is_empty() {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        self.socket.ready(sends).await.map(drop)
    }

    /// All datagrams that wait: relayed ones go on, those for this peer are given.
    pub fn receive(&mut self) -> io::Result<Vec<Opened>> {
        self.flush();
        let mut here = Vec::new();
        // Bounded, so that a flood does not keep everything else waiting.
        for _ in 0..256 {
            let Ok((length, _)) = self.socket.try_recv_from(&mut self.buffer) else { break };
            match self.peer.handle(clock::now(), &self.buffer[..length])? {
                Handled::Forward(to, datagram) => self.hand_over(to, datagram),
                Handled::Here(opened) => here.push(opened),
                Handled::Nothing => {}
            }
        }
        Ok(here)
    }
}

/// What woke a peer, beside the events of local connections.
pub enum Woken {
    /// Datagrams wait.
    Datagrams(io::Result<()>),
    /// A local connection came.
    Accepted(TcpStream),
    /// Local connections have something, or the time has come.
    Nothing,
}

/// Sleeps until something happens. All get their turns: neither a flood of datagrams keeps local connections
/// waiting nor the other way round.
pub async fn woken(
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

/// Whether paths of this peer can be; `beyond`: relays of others on them.
pub fn check_hops(settings: &Settings, beyond: usize) -> io::Result<()> {
    let (hops, peers) = (settings.hops, settings.directory.peers.len());
    match (1..=MAX_RELAYS).contains(&hops) && hops + 1 + beyond <= peers {
        true => Ok(()),
        false => Err(invalid(format!(
            "{hops} hops among {peers} peers: give 1 to {MAX_RELAYS} and fewer than peers"
        ))),
    }
}

pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Datagrams that never cease, as `select!` in a fixed order would see them.
    #[test]
    fn a_socket_that_is_always_ready_leaves_turns_for_local_connections() {
        let runtime = runtime().expect("threads have memory");
        runtime.block_on(async {
            let (events, mut local) = mpsc::channel(256);
            let mut heard = Vec::new();
            for n in 0..200 {
                events.send(Local::End((0, n))).await.expect("there is room");
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
                let until = clock::now() + Span::from_secs(60);
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
