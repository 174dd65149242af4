//! Local ends of streams: packages socket data as the windows allow, and writes received data as the socket accepts
//! it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_proto::crypto::encrypted::{self, Encrypted};
use tidegate_proto::node::{Node, Source, StreamKey};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::link::within;
use crate::overlay::{Dial, Overlay, RateLimit};

/// Bytes per socket read.
const READ: usize = 32 * 498;

/// A stream's local end. The overlay's owner fills it; [`run`] moves the data.
#[derive(Default)]
pub struct Local {
    incoming: RefCell<VecDeque<Box<[u8]>>>,
    waiting: Cell<u64>,
    arrived: Notify,
    /// Cells that the circuit accepts.
    room: Cell<u32>,
    may_package: Notify,
    /// The stream is closed. Received data is still written.
    ended: Cell<bool>,
    over: Notify,
    /// The local port of an exit stream's connection.
    port: Cell<Option<u16>>,
}

/// All local ends of a node.
pub type Locals = Rc<RefCell<BTreeMap<StreamKey, Rc<Local>>>>;

impl Local {
    /// Adds received data. Returns how many bytes wait for the socket.
    pub fn deliver(&self, data: Box<[u8]>) -> u64 {
        self.waiting.set(self.waiting.get() + data.len() as u64);
        self.incoming.borrow_mut().push_back(data);
        self.arrived.notify_one();
        self.waiting.get()
    }

    /// Allows this many more cells.
    pub fn package(&self, cells: u32) {
        self.room.set(self.room.get().saturating_add(cells));
        self.may_package.notify_one();
    }

    /// Sets the local port of the stream's connection.
    pub fn leaves_by(&self, port: u16) {
        self.port.set(Some(port));
    }

    /// See [`leaves_by`](Self::leaves_by).
    pub fn port(&self) -> Option<u16> {
        self.port.get()
    }

    /// The circuit closed the stream.
    pub fn end(&self) {
        self.ended.set(true);
        self.arrived.notify_one();
        self.may_package.notify_one();
        self.over.notify_one();
    }
}

/// Bytes that were read and not packaged yet.
struct Read<'a> {
    bytes: &'a [u8],
}

impl Source<Encrypted> for Read<'_> {
    fn take(&mut self, max: u16) -> Option<(u16, Box<[u8]>)> {
        if self.bytes.is_empty() {
            return None;
        }
        let (now, later) = self.bytes.split_at(self.bytes.len().min(usize::from(max)));
        self.bytes = later;
        Some(encrypted::data(now))
    }
}

/// The effect of a socket's end of input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// The stream is closed (a server behind an exit).
    End,
    /// The application may still receive. Tor's streams cannot be half-closed, so the far end is not told. Received
    /// data is written until the far end closes the stream, or the stream is idle for [`IDLE`].
    Listen,
}

/// Idle timeout of a stream after the application's end of input.
const IDLE: Span = Span::from_secs(300);
/// Timeout of writing the last received data to the socket.
const LINGER: Span = Span::from_secs(60);

/// Moves data between a socket and a stream until one of them ends. `first` was read already.
pub async fn run<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    socket: impl AsyncRead + AsyncWrite,
    (first, at_end): (Vec<u8>, AtEnd),
) where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    let (mut reader, mut writer) = tokio::io::split(socket);
    let end = || {
        if !local.ended.get() {
            overlay.with(|node, now| node.stream_ended(now, key));
        }
    };
    let sending = async {
        let sent = send(overlay, key, local, &mut reader, first).await;
        // Tor's streams cannot be half-closed: keep the stream for the answer.
        if at_end == AtEnd::Listen && sent.is_ok() && !local.ended.get() {
            let over = async {
                local.over.notified().await;
                Ok(())
            };
            let _ = within(IDLE, over).await;
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

async fn send<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    reader: &mut (impl AsyncRead + Unpin),
    mut bytes: Vec<u8>,
) -> io::Result<()>
where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    let mut buffer = vec![0; READ];
    loop {
        let (mut rest, mut room) = (&bytes[..], u32::MAX);
        while !rest.is_empty() && !local.ended.get() {
            let mut source = Read { bytes: rest };
            // The node packages as many cells as the windows allow, and asks for more later.
            overlay.with(|node, now| node.package(now, key, room, &mut source));
            rest = source.bytes;
            if !rest.is_empty() {
                local.may_package.notified().await;
                room = local.room.take();
            }
        }
        if local.ended.get() {
            return Ok(());
        }
        let count = tokio::select! {
            count = reader.read(&mut buffer) => count?,
            () = local.over.notified() => return Ok(()),
        };
        if count == 0 {
            return Ok(());
        }
        bytes.clear();
        bytes.extend_from_slice(&buffer[..count]);
    }
}

async fn receive<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()>
where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    loop {
        let next = local.incoming.borrow_mut().pop_front();
        match next {
            Some(data) => {
                let written = writer.write_all(&data).await;
                local.waiting.set(local.waiting.get() - data.len() as u64);
                let waiting = local.waiting.get();
                // Lets the node resume a stream that it paused (XOFF).
                overlay.with(|node, now| node.backlog(now, key, waiting));
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
