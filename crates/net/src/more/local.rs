//! Local TCP connections of a peer. One task owns the UDP socket and the machines of [`tidegate_more`]. Each local
//! connection has its own task, and is read only if its stream has room.

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
use tokio::sync::mpsc;

use super::peer::{Handled, LivePeer, PeerConfig, invalid};
use crate::clock;

/// Bytes per read of a local connection.
const BLOCK: usize = 16 * 1024;
/// Bytes that may wait for a local connection. Beyond it the stream is not read.
const QUEUED: usize = 256 * 1024;
/// Local events per turn. [`Wire::receive`] bounds the datagrams per turn.
const TURN: usize = 64;
/// Maximum sleep: how soon the loop notices a stop, and local connections that took their bytes.
pub(crate) const NAP: Span = Span::from_millis(20);

/// A stream: the index of its machine, and its id.
pub(crate) type StreamKey = (usize, u64);

/// An event of a local connection.
pub(crate) enum Local {
    /// An application wants a stream of a machine.
    Wants(usize, TcpStream, Vec<u8>),
    /// Bytes of a stream.
    Bytes(StreamKey, Vec<u8>),
    /// The end of a stream's input.
    End(StreamKey),
    /// The target is unreachable.
    Unreachable(StreamKey),
}

/// A handle to the task of a local connection.
pub(crate) struct Pump {
    /// Bytes to write; `None` ends the output.
    bytes: mpsc::UnboundedSender<Option<Vec<u8>>>,
    queued: Arc<AtomicUsize>,
    /// Each message allows one read.
    grants: mpsc::Sender<()>,
    pub granted: bool,
}

impl Pump {
    /// Moves bytes until both directions have ended, after `connect` completes.
    pub(crate) fn start(
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
                    // After a write error, drain the channel so that it does not grow.
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

    pub(crate) fn write(&self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.queued.fetch_add(bytes.len(), Ordering::Relaxed);
            let _ = self.bytes.send(Some(bytes));
        }
    }

    pub(crate) fn end(&self) {
        let _ = self.bytes.send(None);
    }

    pub(crate) fn takes(&self) -> bool {
        self.queued.load(Ordering::Relaxed) < QUEUED
    }

    /// Allows the next read if the stream has room for it.
    pub(crate) fn grant(&mut self, room: usize) {
        if !self.granted && room >= BLOCK {
            self.granted = self.grants.try_send(()).is_ok();
        }
    }
}

/// Datagrams that wait for the socket. Further ones are dropped, which slows their sources down.
const WAITING: usize = 300;

/// A peer and its UDP socket.
pub(crate) struct Wire {
    pub peer: LivePeer,
    socket: UdpSocket,
    buffer: Vec<u8>,
    /// Datagrams that wait for the socket, in sending order.
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Wire {
    pub(crate) fn open(settings: &PeerConfig) -> io::Result<Wire> {
        let (peer, socket) = LivePeer::open(settings)?;
        socket.set_nonblocking(true)?;
        let (socket, buffer) = (UdpSocket::from_std(socket)?, vec![0; WIRE_SIZE + 1]);
        Ok(Wire { peer, socket, buffer, waiting: VecDeque::new() })
    }

    pub(crate) fn send_to(&mut self, to: Peer, datagram: &[u8]) {
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

    /// Sends waiting datagrams until the socket is full.
    fn flush(&mut self) {
        while let Some((to, datagram)) = self.waiting.front() {
            match self.socket.try_send_to(datagram, *to) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                sent => self.peer.summary.unsent += u64::from(sent.is_err()),
            }
            self.waiting.pop_front();
        }
    }

    /// Waits until datagrams can be received, or waiting ones can be sent.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let sends = if self.waiting.is_empty() {
            Interest::READABLE
        } else {
            Interest::READABLE | Interest::WRITABLE
        };
        self.socket.ready(sends).await.map(drop)
    }

    /// Receives the available datagrams. Forwards relayed ones, and returns those for this peer.
    pub(crate) fn receive(&mut self) -> io::Result<Vec<Opened>> {
        self.flush();
        let mut here = Vec::new();
        // Bounded, so that a flood does not starve local connections.
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

/// Why a peer's loop woke, besides events of local connections.
pub(crate) enum Woken {
    /// Datagrams can be received or sent.
    Datagrams(io::Result<()>),
    /// An application connected, from this address.
    Accepted((TcpStream, SocketAddr)),
    /// Local connections have events, or the time is over.
    Nothing,
}

/// Waits for an event. The select is fair: neither datagrams nor local connections starve the other.
pub(crate) async fn woken(
    datagrams: impl Future<Output = io::Result<()>>,
    accept: impl Future<Output = (TcpStream, SocketAddr)>,
    local: &mut mpsc::Receiver<Local>,
    heard: &mut Vec<Local>,
    until: Time,
) -> Woken {
    let woken = tokio::select! {
        ready = datagrams => Woken::Datagrams(ready),
        accepted = accept => Woken::Accepted(accepted),
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

/// Checks the number of hops. `beyond`: relays that the other side adds to the path.
pub(crate) fn check_hops(settings: &PeerConfig, beyond: usize) -> io::Result<()> {
    let (hops, peers) = (settings.hops, settings.directory.peers.len());
    match (1..=MAX_RELAYS).contains(&hops) && hops + 1 + beyond <= peers {
        true => Ok(()),
        false => Err(invalid(format!(
            "{hops} hops among {peers} peers: set hops to 1 to {MAX_RELAYS}, and below the number of peers"
        ))),
    }
}

pub(crate) fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A flood of datagrams, as a biased select would see it.
    #[test]
    fn a_flood_of_datagrams_does_not_starve_local_connections() {
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
            let accept = async { listener.accept().await.expect("connected") };
            tokio::pin!(accept);
            let (mut accepted, mut ended, mut flooded) = (0, 0, 0);
            // The select is random: in 1000 turns each branch is taken.
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
