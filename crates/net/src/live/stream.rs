//! Local ends of streams: packages socket data as the windows allow, and writes received data as the socket accepts
//! it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tidegate_control::units::{Span, Time};
use tidegate_proto::crypto::Encrypted;
use tidegate_proto::node::{Node, Source, StreamKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;

use crate::admission::Used;
use crate::link::within;
use crate::overlay::{Dial, Overlay, RateLimit};
use crate::{clock, os};

/// Bytes per socket read.
const READ: usize = 32 * 498;
/// A message of a stream counts as at least this many bytes, for the memory of its buffer and its place.
const LEAST: u64 = 128;

/// Bytes of a relay's streams that its node does not count: in the kernel's socket buffers, and of closed streams.
pub(crate) type Outside = Rc<Cell<u64>>;

/// The kinds of bytes that a stream adds to [`Outside`].
#[derive(Clone, Copy)]
enum Held {
    /// The server's data that the stream's windows do not let in.
    Unread,
    /// Data for the server that the server's kernel does not take.
    Unsent,
    /// Received data that is still written after the circuit closed the stream.
    Last,
}

/// A stream's local end. The overlay's owner fills it; [`run`] moves the data.
#[derive(Default)]
pub(crate) struct Local {
    incoming: RefCell<VecDeque<Bytes>>,
    /// Bytes of `incoming` and of the message that is being written, and the memory that they take.
    waiting: Cell<Waiting>,
    arrived: Notify,
    /// Cells that the circuit accepts.
    room: Cell<u32>,
    may_package: Notify,
    /// The stream is closed. Received data is still written.
    ended: Cell<bool>,
    over: Notify,
    /// It lost its place: received data is dropped.
    abort: Notify,
    /// The local port of an exit stream's connection.
    port: Cell<Option<u16>>,
    /// When it last moved data.
    used: Used,
    /// Its parts of `outside`, by [`Held`].
    held: [Cell<u64>; 3],
    outside: Outside,
}

impl Drop for Local {
    fn drop(&mut self) {
        self.forget_outside();
    }
}

/// All local ends of a node.
pub(crate) type Locals = Rc<RefCell<BTreeMap<StreamKey, Rc<Local>>>>;

impl Local {
    /// A local end that notes when it was last used, and what it holds outside of the node.
    pub(crate) fn noting(used: Used, outside: Outside) -> Local {
        let mut local = Local::default();
        (local.used, local.outside) = (used, outside);
        local
    }

    fn holds(&self, what: Held, bytes: u64) {
        let before = self.held[what as usize].replace(bytes);
        self.outside.set(self.outside.get() + bytes - before);
    }

    /// Counts nothing of it any more: it is about to close.
    pub(crate) fn forget_outside(&self) {
        [Held::Unread, Held::Unsent, Held::Last].into_iter().for_each(|what| self.holds(what, 0));
    }

    /// Whether it holds bytes that its node does not count.
    pub(crate) fn holds_outside(&self) -> bool {
        self.held.iter().any(|bytes| bytes.get() > 0)
    }

    /// Adds received data. Returns what waits for the socket.
    pub(crate) fn deliver(&self, now: Time, data: Bytes) -> Waiting {
        // Empty messages are legal. A stranger could send any number of them.
        if !data.is_empty() {
            self.used.set(now);
            self.waiting.set(self.waiting.get().with(&data));
            self.incoming.borrow_mut().push_back(data);
            self.arrived.notify_one();
        }
        self.waiting.get()
    }

    /// Allows this many more cells.
    pub(crate) fn package(&self, cells: u32) {
        self.room.set(self.room.get().saturating_add(cells));
        self.may_package.notify_one();
    }

    /// When it last moved data.
    pub(crate) fn used(&self) -> &Used {
        &self.used
    }

    /// Sets the local port of the stream's connection.
    pub(crate) fn leaves_by(&self, port: u16) {
        self.port.set(Some(port));
    }

    /// See [`leaves_by`](Self::leaves_by).
    pub(crate) fn port(&self) -> Option<u16> {
        self.port.get()
    }

    /// Copies the waiting messages but the first `known`. Returns their number.
    fn copy_from(&self, known: usize, into: &mut Vec<u8>) -> usize {
        let incoming = self.incoming.borrow();
        incoming.iter().skip(known).map(|data| into.extend_from_slice(data)).count()
    }

    /// Returns what `judge` makes of the data received so far, once it is decided. `None` if the stream is closed before.
    /// The data is kept.
    pub(crate) async fn heard<T>(&self, mut judge: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let (mut heard, mut messages) = (Vec::new(), 0);
        loop {
            messages += self.copy_from(messages, &mut heard);
            if let Some(decided) = judge(&heard) {
                return Some(decided);
            }
            if self.ended.get() {
                return None;
            }
            self.arrived.notified().await;
        }
    }

    /// Returns once the circuit closed the stream.
    pub(crate) async fn over(&self) {
        if !self.ended.get() {
            self.over.notified().await;
        }
    }

    /// Returns when the circuit has closed the stream, or when nothing arrives within `limit`.
    async fn over_or_idle(&self, limit: Span) {
        self.used.set(clock::now());
        while !self.ended.get() && clock::now().since(self.used.get()) < limit {
            tokio::select! {
                () = self.over.notified() => {}
                () = clock::until(self.used.get() + limit) => {}
            }
        }
    }

    /// Ends the stream without writing what it received.
    pub(crate) fn abort(&self) {
        self.end();
        self.abort.notify_one();
    }

    /// Returns once the stream was aborted.
    pub(crate) async fn aborted(&self) {
        self.abort.notified().await;
    }

    /// The circuit closed the stream.
    pub(crate) fn end(&self) {
        self.ended.set(true);
        self.holds(Held::Last, self.waiting.get().memory);
        self.arrived.notify_one();
        self.may_package.notify_one();
        self.over.notify_one();
    }
}

/// Received data that waits for the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Waiting {
    /// Bytes of the stream.
    pub bytes: u64,
    /// The memory that they take.
    pub memory: u64,
}

impl Waiting {
    fn with(self, data: &Bytes) -> Waiting {
        let length = data.len() as u64;
        Waiting { bytes: self.bytes + length, memory: self.memory + length.max(LEAST) }
    }

    fn without(self, data: &Bytes) -> Waiting {
        let length = data.len() as u64;
        Waiting { bytes: self.bytes - length, memory: self.memory - length.max(LEAST) }
    }
}

/// Bytes that were read and not packaged yet.
struct Read(Bytes);

impl Source<Encrypted> for Read {
    fn take(&mut self, max: u16) -> Option<(u16, Bytes)> {
        let count = max.min(u16::try_from(self.0.len()).unwrap_or(max));
        (count > 0).then(|| (count, self.0.split_to(count.into())))
    }
}

/// The effect of a socket's end of input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AtEnd {
    /// The stream is closed (a server behind an exit).
    End,
    /// The application may still receive. Tor's streams cannot be half-closed, so the far end is not told. Received
    /// data is written until the far end closes the stream, or the stream is idle for `IDLE`.
    Listen,
}

/// Idle timeout of a stream after the application's end of input.
const IDLE: Span = Span::from_secs(300);
/// A read or write that blocks longer than this counts with its kernel buffer. Windows open within a round trip, so an
/// honest stream is seldom counted.
const BLOCKED: Span = Span::from_secs(1);
/// Receive buffer of an exit's connection, bytes: a stream window of 500 cells (tor-spec, "Stream-level flow control").
/// Linux doubles it for its bookkeeping, and may grant less (`net.core.rmem_max`).
pub(crate) const RECEIVED: u32 = 249 << 10;
/// Maximum unsent bytes of a connection in the kernel (TCP_NOTSENT_LOWAT). Data in flight comes on top, so a long fast path
/// stays full. 128 KiB feeds 1 Gbit/s for 1 ms, in which this process writes again.
pub(crate) const UNSENT: u32 = 128 << 10;
/// Timeout of writing the last received data to the socket.
const LINGER: Span = Span::from_secs(60);

/// Moves data between a socket and a stream until one of them ends. `first` was read already.
pub(super) async fn run<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    mut socket: TcpStream,
    (first, at_end): (Vec<u8>, AtEnd),
) where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    let (mut reader, mut writer) = socket.split();
    let end = || {
        if !local.ended.get() {
            overlay.with(|node, now| node.stream_ended(now, key));
        }
    };
    let sending = async {
        let sent = send(overlay, key, local, &mut reader, first).await;
        // Tor's streams cannot be half-closed: keep the stream for the answer.
        if at_end == AtEnd::Listen && sent.is_ok() {
            local.over_or_idle(IDLE).await;
        }
        end();
    };
    let receiving = receive(overlay, key, local, &mut writer);
    tokio::pin!(sending, receiving);
    tokio::select! {
        () = &mut sending => { let _ = within(LINGER, receiving).await; }
        _ = &mut receiving => end(),
    }
}

/// Waits for `event`, and calls `count` whenever it is blocked for another second. It may have been blocked `since` before.
async fn counting<T>(since: Time, event: impl Future<Output = T>, count: impl Fn()) -> T {
    let mut event = std::pin::pin!(event);
    let mut next = since + BLOCKED;
    loop {
        tokio::select! {
            biased;
            happened = &mut event => return happened,
            () = clock::until(next) => count(),
        }
        next = clock::now() + BLOCKED;
    }
}

async fn send<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    reader: &mut ReadHalf<'_>,
    first: Vec<u8>,
) -> io::Result<()>
where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    let (mut source, mut buffer) = (Read(first.into()), BytesMut::new());
    loop {
        // A peer that lets through a cell now and then (XON) blocks the stream, too.
        let (mut room, since) = (u32::MAX, clock::now());
        while !source.0.is_empty() && !local.ended.get() {
            // The node packages as many cells as the windows allow, and asks for more later.
            overlay.with(|node, now| node.package(now, key, room, &mut source));
            if !source.0.is_empty() {
                // Linux counts about twice the bytes that it stores.
                let unread = || local.holds(Held::Unread, 2 * os::unread(reader.as_ref()));
                counting(since, local.may_package.notified(), unread).await;
                room = local.room.take();
            }
        }
        local.holds(Held::Unread, 0);
        if local.ended.get() {
            return Ok(());
        }
        // All its bytes are packaged, so this seldom allocates.
        buffer.reserve(READ);
        let count = tokio::select! {
            count = reader.read_buf(&mut buffer) => count?,
            () = local.over.notified() => return Ok(()),
        };
        if count == 0 {
            return Ok(());
        }
        local.used.set(clock::now());
        overlay.limit().outside(0, count as u64);
        source.0 = buffer.split().freeze();
    }
}

/// Sends bytes that no socket provides, and ends the stream behind them. `shared` bytes are not this stream's alone, so they do
/// not count as held by it.
pub(crate) async fn answer<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    bytes: Bytes,
    shared: bool,
) where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    let (mut source, mut room) = (Read(bytes), u32::MAX);
    while !local.ended.get() {
        overlay.with(|node, now| node.package(now, key, room, &mut source));
        local.holds(Held::Unread, if shared { 0 } else { source.0.len() as u64 });
        if source.0.is_empty() {
            return overlay.with(|node, now| node.stream_ended(now, key));
        }
        local.may_package.notified().await;
        room = local.room.take();
    }
}

async fn receive<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    writer: &mut WriteHalf<'_>,
) -> io::Result<()>
where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    // The node measures how fast the socket takes data, so it hears of bytes once no more can be written at once.
    let report = || {
        let Waiting { bytes, memory } = local.waiting.get();
        overlay.with(|node, now| node.backlog(now, key, bytes, memory));
    };
    loop {
        let next = local.incoming.borrow_mut().pop_front();
        match next {
            Some(data) => {
                let mut writing = std::pin::pin!(writer.write_all(&data));
                let written = tokio::select! {
                    biased;
                    written = &mut writing => written,
                    () = std::future::ready(()) => {
                        report();
                        let unsent = || local.holds(Held::Unsent, 2 * u64::from(UNSENT));
                        let written = counting(clock::now(), writing, unsent).await;
                        local.holds(Held::Unsent, 0);
                        written
                    }
                };
                overlay.limit().outside(data.len() as u64, 0);
                local.waiting.set(local.waiting.get().without(&data));
                if local.ended.get() {
                    local.holds(Held::Last, local.waiting.get().memory);
                }
                if written.is_err() || local.incoming.borrow().is_empty() {
                    // Lets the node resume a stream that it paused (XOFF).
                    report();
                }
                written?;
            }
            None if local.ended.get() => return writer.shutdown().await,
            None => {
                writer.flush().await?;
                local.arrived.notified().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_count_with_the_memory_they_take() {
        let local = Local::default();
        let deliver = |data: &'static [u8]| local.deliver(Time::ZERO, Bytes::from_static(data));
        let waiting = |bytes, memory| Waiting { bytes, memory };
        assert_eq!((deliver(b""), deliver(b"x")), (waiting(0, 0), waiting(1, LEAST)));
        assert_eq!((deliver(b""), deliver(b"yz")), (waiting(1, LEAST), waiting(3, 2 * LEAST)));
        assert_eq!(deliver(&[0; 498]), waiting(501, 2 * LEAST + 498));
        assert_eq!(local.incoming.borrow().len(), 3);
        assert_eq!(waiting(3, 2 * LEAST).without(&Bytes::from_static(b"yz")), waiting(1, LEAST));
    }

    #[tokio::test]
    async fn a_request_is_judged_with_all_that_came() {
        let local = Local::default();
        let mut seen = Vec::new();
        let judged = local.heard(|heard| {
            seen.push(heard.to_vec());
            heard.ends_with(b"d").then_some(heard.len())
        });
        let delivered = async {
            for data in [&b"a"[..], b"bc", b"d"] {
                local.deliver(Time::ZERO, Bytes::copy_from_slice(data));
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(tokio::join!(judged, delivered).0, Some(4));
        assert_eq!(seen.last().unwrap(), b"abcd");
        assert_eq!(local.incoming.borrow().len(), 3, "the data is kept");
    }

    #[tokio::test]
    async fn a_long_answer_outlives_the_idle_timeout() {
        let limit = Span::from_millis(300);
        let end = clock::now() + Span::from_secs(60);
        let local = loop {
            let local = Local::default();
            let begun = clock::now();
            let answer = async {
                let (mut last, mut longest) = (begun, Span::ZERO);
                for _ in 0..10 {
                    clock::until(clock::now() + Span::from_millis(60)).await;
                    let now = clock::now();
                    local.deliver(now, Bytes::from_static(b"more"));
                    longest = longest.max(now.since(last));
                    last = now;
                }
                (last, longest)
            };
            let idle = async {
                local.over_or_idle(limit).await;
                clock::now()
            };
            let ((last, longest), over) = tokio::join!(answer, idle);
            // If the machine pauses between two deliveries for as long as the limit, the stream is idle: try again.
            if longest < limit {
                assert!(over >= last + limit, "{} after the last delivery", over.since(last));
                assert!(over.since(begun) >= Span::from_millis(900));
                break local;
            }
            assert!(clock::now() < end, "{longest} between two deliveries");
        };
        let ended = async { local.end() };
        tokio::join!(local.over_or_idle(Span::from_secs(60)), ended);
    }
}
