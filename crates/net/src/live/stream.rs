//! The local ends of streams: what a socket gives is packaged as windows allow, what comes is written as the socket
//! takes it.

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
use crate::overlay::{Dial, Gate, Overlay};

/// Bytes read from a socket at once.
const READ: usize = 32 * 498;

/// One stream's local end. The overlay's owner puts in what comes; [`run`] moves it.
#[derive(Default)]
pub struct Local {
    incoming: RefCell<VecDeque<Box<[u8]>>>,
    waiting: Cell<u64>,
    arrived: Notify,
    /// Cells that the circuit takes.
    room: Cell<u32>,
    may_package: Notify,
    /// The stream is over: what has come is still written.
    ended: Cell<bool>,
    over: Notify,
    /// Our own port of the connection that the stream leaves by, once there is one.
    port: Cell<Option<u16>>,
}

/// All local ends of a node.
pub type Locals = Rc<RefCell<BTreeMap<StreamKey, Rc<Local>>>>;

impl Local {
    /// Bytes came over the circuit; so many wait for the socket now.
    pub fn deliver(&self, data: Box<[u8]>) -> u64 {
        self.waiting.set(self.waiting.get() + data.len() as u64);
        self.incoming.borrow_mut().push_back(data);
        self.arrived.notify_one();
        self.waiting.get()
    }

    /// The circuit takes so many cells.
    pub fn package(&self, cells: u32) {
        self.room.set(self.room.get().saturating_add(cells));
        self.may_package.notify_one();
    }

    /// The stream leaves by a connection from this port of ours.
    pub fn leaves_by(&self, port: u16) {
        self.port.set(Some(port));
    }

    /// See [`leaves_by`](Self::leaves_by).
    pub fn port(&self) -> Option<u16> {
        self.port.get()
    }

    /// The circuit's side of the stream is over.
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

/// What a socket's end means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// The stream is over (an exit's server is done).
    End,
    /// The application has said all and may still listen. Tor's streams have no half, so the far end is not told;
    /// what still comes is written until it ends the stream, or until nobody has said anything for [`IDLE`].
    Listen,
}

/// How long a stream stays whose application has said all.
const IDLE: Span = Span::from_secs(300);
/// How long a socket may take to accept the last of what came.
const LINGER: Span = Span::from_secs(60);

/// Moves bytes between a socket and a stream until either is over. `first` was read already.
pub async fn run<N, G, D>(
    overlay: &Overlay<N, G, D>,
    key: StreamKey,
    local: &Local,
    socket: impl AsyncRead + AsyncWrite,
    (first, at_end): (Vec<u8>, AtEnd),
) where
    N: Node<Encrypted> + 'static,
    G: Gate + 'static,
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
    G: Gate + 'static,
    D: Dial + 'static,
{
    let mut buffer = vec![0; READ];
    loop {
        let (mut rest, mut room) = (&bytes[..], u32::MAX);
        while !rest.is_empty() && !local.ended.get() {
            let mut source = Read { bytes: rest };
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
    G: Gate + 'static,
    D: Dial + 'static,
{
    loop {
        let next = local.incoming.borrow_mut().pop_front();
        match next {
            Some(data) => {
                let written = writer.write_all(&data).await;
                local.waiting.set(local.waiting.get() - data.len() as u64);
                let waiting = local.waiting.get();
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
