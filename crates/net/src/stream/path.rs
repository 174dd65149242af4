//! The socket below QUIC. It can emulate an uplink rate, delay and losses where the kernel cannot. All QUIC
//! packets pass it, handshakes and acknowledgements included.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime as _, TokioRuntime, UdpPoller};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span, Time};
use tidegate_stream::uplink::Uplink;
use tokio::sync::Notify;

use crate::clock;

/// An emulated path for outgoing datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Uplink rate, UDP and IP headers included.
    pub uplink: Rate,
    /// One-way delay.
    pub delay: Span,
    /// Standard deviation of the jitter. Half of the datagrams are not delayed.
    pub jitter: Span,
    /// Loss probability.
    pub loss: f64,
    /// Seed of jitter and losses.
    pub seed: u64,
    /// Changes the uplink rate after this time.
    pub later: Option<(Span, Rate)>,
    /// Drops incoming datagrams from addresses and ports that nothing was sent to.
    ///
    /// So does address translation that keeps one port for all destinations, and filters by address and port (RFC 4787).
    pub translated: bool,
}

impl Path {
    fn is_open(&self) -> bool {
        self.uplink == Rate::UNLIMITED
            && self.delay.max(self.jitter) == Span::ZERO
            && self.loss == 0.0
            && self.later.is_none()
    }
}

/// Bytes of UDP and IPv4 headers.
const HEADERS: usize = 28;

/// A UDP socket with an emulated path. It counts sent bytes.
pub(crate) struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    line: Option<Mutex<Line>>,
    wake: Notify,
    /// Sent bytes, UDP and IP headers included.
    pub sent: AtomicU64,
    /// The addresses that something was sent to, if others are filtered.
    known: Option<Mutex<BTreeSet<SocketAddr>>>,
}

struct Line {
    path: Path,
    /// When the uplink rate changes.
    change: Option<(Time, Rate)>,
    uplink: Uplink,
    random: Random,
    under_way: VecDeque<(Time, SocketAddr, Vec<u8>)>,
    last: Time,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

impl Socket {
    /// Binds the socket. Must run inside a runtime.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(crate) fn bind(listen: SocketAddr, path: Path) -> io::Result<Arc<Socket>> {
        let inner = TokioRuntime.wrap_udp_socket(UdpSocket::bind(listen)?)?;
        let random = Seed::root(path.seed).fork("path").random();
        let uplink = Uplink::new(path.uplink);
        let change = path.later.map(|(after, rate)| (clock::now() + after, rate));
        let line = Line { path, change, uplink, random, under_way: VecDeque::new(), last: Time::ZERO };
        let line = (!path.is_open()).then(|| Mutex::new(line));
        let known = path.translated.then(Mutex::default);
        let socket = Arc::new(Socket { inner, line, wake: Notify::new(), sent: AtomicU64::new(0), known });
        if socket.line.is_some() {
            tokio::spawn(socket.clone().carry());
        }
        Ok(socket)
    }

    fn count(&self, bytes: usize, datagrams: usize) {
        self.sent.fetch_add((bytes + datagrams * HEADERS) as u64, Ordering::Relaxed);
    }

    /// Sends datagrams when they are due, until the socket is dropped.
    async fn carry(self: Arc<Socket>) {
        let Some(line) = &self.line else { return };
        let lock = || line.lock().expect("the lock is not poisoned");
        while Arc::strong_count(&self) > 1 {
            let next = lock().under_way.front().map_or(Time::NEVER, |(due, ..)| *due);
            let timeout = clock::now() + Span::from_secs(1);
            tokio::select! {
                () = clock::until(next.min(timeout)) => {}
                () = self.wake.notified(), if next == Time::NEVER => {}
            }
            loop {
                let now = clock::now();
                let mut line = lock();
                if line.under_way.front().is_none_or(|(due, ..)| *due > now) {
                    break;
                }
                let Some((_, destination, contents)) = line.under_way.pop_front() else { break };
                drop(line);
                self.send(destination, &contents);
            }
        }
    }

    /// Sends one byte, so that address translation lets this address's datagrams in. QUIC ignores it.
    pub(crate) fn punch(&self, destination: SocketAddr) {
        let transmit = Transmit { destination, ecn: None, contents: &[0], segment_size: None, src_ip: None };
        // It may be lost as any datagram.
        let _ = self.try_send(&transmit);
    }

    /// A full kernel buffer counts as a loss.
    fn send(&self, destination: SocketAddr, contents: &[u8]) {
        let transmit = Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None };
        let _ = self.inner.try_send(&transmit);
    }
}

impl Line {
    /// When a datagram that leaves the uplink at that time arrives; `None` if it is lost.
    fn arrival(&mut self, at: Time) -> Option<Time> {
        if self.path.loss > 0.0 && self.random.chance(self.path.loss) {
            return None;
        }
        let jitter = match self.path.jitter {
            Span::ZERO => 0.0,
            jitter => self.random.normal(0.0, jitter.0 as f64).max(0.0),
        };
        self.last = self.last.max(at + self.path.delay + Span(jitter as u64));
        Some(self.last)
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if let Some(known) = &self.known {
            known.lock().expect("the lock is not poisoned").insert(transmit.destination);
        }
        let Some(line) = &self.line else {
            self.inner.try_send(transmit)?;
            let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
            self.count(transmit.contents.len(), transmit.contents.len().div_ceil(size));
            return Ok(());
        };
        let mut line = line.lock().expect("the lock is not poisoned");
        let now = clock::now();
        if let Some((_, rate)) = line.change.take_if(|(at, _)| now >= *at) {
            line.uplink.set_rate(rate);
        }
        let size = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        for datagram in transmit.contents.chunks(size) {
            let Some(at) = line.uplink.depart(now, datagram.len() + HEADERS) else { continue };
            self.count(datagram.len(), 1);
            let Some(due) = line.arrival(at) else { continue };
            let idle = line.under_way.is_empty();
            if idle && due <= now {
                self.send(transmit.destination, datagram);
                continue;
            }
            // Keep the order: a datagram waits behind earlier ones.
            line.under_way.push_back((due, transmit.destination, datagram.to_vec()));
            if idle {
                self.wake.notify_one();
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.inner.poll_recv(cx, bufs, meta);
        if let (Some(known), Poll::Ready(Ok(count))) = (&self.known, &received) {
            let known = known.lock().expect("the lock is not poisoned");
            // QUIC ignores an empty datagram.
            meta[..*count]
                .iter_mut()
                .filter(|from| !known.contains(&from.addr))
                .for_each(|from| from.len = 0);
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        if self.line.is_some() { 1 } else { self.inner.max_transmit_segments() }
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
