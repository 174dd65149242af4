//! Drives a node of the overlay, relay or client, over TLS connections: cells become bytes, channels become
//! connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{Cell, CircId, RelayId};
use tidegate_proto::crypto::encrypted::{self, Body, Encrypted};
use tidegate_proto::flashflow::cell::{CELL, CellBuffer, HEADER};
use tidegate_proto::links::{ChannelId, Departure};
use tidegate_proto::machine::Machine;
use tidegate_proto::node::{Budget, Node, Output, Sink};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use crate::flashflow::coordinator::Contact;
use crate::flashflow::link;
use crate::identity::Identity;
use crate::{clock, tls};

/// Cells written at once.
const BATCH: usize = 32;
/// How long a connection to a relay may take.
const CONNECTING: Span = Span::from_secs(10);

/// What a node's owner does with what the driver does not do itself: streams and circuits.
pub type Owner<N> = Box<dyn FnMut(&mut N, Time, Output<Encrypted>)>;

/// Leave to write, and word of what was read and written.
pub trait Gate {
    /// Waits until `bytes` may be written on a channel.
    fn leave(&self, channel: ChannelId, bytes: u64) -> impl Future<Output = ()>;
    /// Cells arrived.
    fn received(&self, bytes: u64);
}

/// No limit.
pub struct Open;

impl Gate for Open {
    async fn leave(&self, _: ChannelId, _: u64) {}
    fn received(&self, _: u64) {}
}

/// A node on sockets. Clones are handles to the same node.
pub struct Overlay<N, G> {
    shared: Rc<Shared<N, G>>,
}

impl<N, G> Clone for Overlay<N, G> {
    fn clone(&self) -> Self {
        Overlay { shared: self.shared.clone() }
    }
}

struct Shared<N, G> {
    state: RefCell<State<N>>,
    gate: G,
    timeouts: std::cell::Cell<Timeouts>,
    identity: Option<Arc<Identity>>,
    directory: BTreeMap<RelayId, Contact>,
}

struct State<N> {
    node: N,
    /// A timeout of the node's is waited for until then.
    timer: Time,
    owner: Owner<N>,
    channels: BTreeMap<ChannelId, Rc<Channel>>,
}

/// Cells to be written at once.
struct Batch<'a>(&'a mut Vec<u8>);

impl Sink<Encrypted> for Batch<'_> {
    fn budget(&mut self) -> Budget {
        match (BATCH - self.0.len() / CELL) as u32 {
            0 => Budget::Blocked,
            cells => Budget::Cells(cells),
        }
    }

    fn begin(&mut self, _: u32, _: u64) -> bool {
        true
    }

    fn write(&mut self, departure: Departure<Encrypted>) {
        encrypted::write_cell(&departure.cell, self.0);
    }
}

/// How long a connection may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Neither read nor write anything: then it is closed.
    pub idle: Span,
    /// Not take what is written to it: then it is closed.
    pub unread: Span,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { idle: Span::from_secs(180), unread: Span::from_secs(60) }
    }
}

/// A peer that has taken nothing for this long is read from slowly: a batch in every [`SLOW`].
const STALLED: Span = Span::from_secs(2);
/// See [`STALLED`].
const SLOW: Span = Span::from_millis(100);

#[derive(Default)]
struct Channel {
    /// There is something to write, or it is over.
    wake: Notify,
    /// Since when a write waits for the peer, and when something was read or written.
    writing: std::cell::Cell<Option<Time>>,
    active: std::cell::Cell<Time>,
    /// The node closed it: it ends once all is written.
    closed: std::cell::Cell<bool>,
}

impl<N: Node<Encrypted> + 'static, G: Gate + 'static> Overlay<N, G> {
    /// A node that finds relays in a directory, and proves its own identity to them if it has one.
    pub fn new(
        node: N,
        gate: G,
        identity: Option<Arc<Identity>>,
        directory: BTreeMap<RelayId, Contact>,
        owner: Owner<N>,
    ) -> Overlay<N, G> {
        let state = RefCell::new(State { node, timer: Time::NEVER, owner, channels: BTreeMap::new() });
        let timeouts = std::cell::Cell::default();
        Overlay { shared: Rc::new(Shared { state, gate, timeouts, identity, directory }) }
    }

    /// Sets how long connections may do nothing.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.shared.timeouts.set(timeouts);
    }

    /// Does something to the node, and then what it asks for.
    pub fn with<T>(&self, act: impl FnOnce(&mut N, Time) -> T) -> T {
        let now = clock::now();
        let result = act(&mut self.shared.state.borrow_mut().node, now);
        self.pump(now);
        result
    }

    fn pump(&self, now: Time) {
        let mut state = self.shared.state.borrow_mut();
        while let Some(output) = state.node.poll() {
            match output {
                Output::OpenChannel(channel, relay) => {
                    let this = self.clone();
                    state.channels.insert(channel, Rc::default());
                    tokio::task::spawn_local(async move { this.open(channel, relay).await });
                }
                Output::Flush(channel) => {
                    if let Some(channel) = state.channels.get(&channel) {
                        channel.wake.notify_one();
                    }
                }
                Output::CloseChannel(channel) => {
                    if let Some(channel) = state.channels.remove(&channel) {
                        channel.closed.set(true);
                        channel.wake.notify_one();
                    }
                }
                // KIST then counts output buffers alone.
                Output::Inspect(channel) => state.node.socket(now, channel, None),
                other => {
                    let State { node, owner, .. } = &mut *state;
                    owner(node, now, other);
                }
            }
        }
        if let Some(due) = state.node.next_timeout()
            && due < state.timer
        {
            state.timer = due;
            tokio::task::spawn_local(Self::wait(Rc::downgrade(&self.shared), due));
        }
    }

    /// Tells the node that its timeout has come, unless it was set earlier since, or nobody holds the node any more.
    async fn wait(shared: Weak<Shared<N, G>>, due: Time) {
        clock::until(due).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.state.borrow().timer == due {
            shared.state.borrow_mut().timer = Time::NEVER;
            Overlay { shared }.with(Machine::timeout);
        }
    }

    async fn open(self, id: ChannelId, relay: RelayId) {
        let connected = async {
            let contact = self.shared.directory.get(&relay).ok_or(io::ErrorKind::NotFound)?;
            let config = tls::client(self.shared.identity.as_deref(), contact.fingerprint);
            link::connect(contact.address, config.map_err(io::Error::other)?, CONNECTING).await
        };
        match connected.await {
            Ok(stream) => {
                self.with(|node, now| node.channel_opened(now, id));
                self.run(stream, id, None).await;
            }
            Err(_) => self.gone(id),
        }
    }

    /// Serves a connection that a neighbour opened, whose first cell was read already.
    pub async fn accepted(&self, stream: impl AsyncRead + AsyncWrite, first: [u8; CELL]) {
        let id = self.with(|node, _| node.channel_accepted(None));
        self.shared.state.borrow_mut().channels.insert(id, Rc::default());
        self.run(stream, id, Some(first)).await;
    }

    async fn run(&self, stream: impl AsyncRead + AsyncWrite, id: ChannelId, first: Option<[u8; CELL]>) {
        let channel = self.shared.state.borrow().channels.get(&id).cloned();
        let Some(channel) = channel else { return };
        let (mut reader, mut writer) = tokio::io::split(stream);
        // However it ends, the channel is gone.
        let _ = tokio::select! {
            result = self.read(&mut reader, id, &channel, first) => result,
            result = self.write(&mut writer, id, &channel) => result,
        };
        if !channel.closed.get() {
            self.gone(id);
        }
    }

    fn gone(&self, id: ChannelId) {
        self.shared.state.borrow_mut().channels.remove(&id);
        self.with(|node, now| node.channel_closed(now, id));
    }

    async fn read(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        id: ChannelId,
        channel: &Channel,
        first: Option<[u8; CELL]>,
    ) -> io::Result<()> {
        if let Some(first) = first {
            self.take(id, &first)?;
        }
        channel.active.set(clock::now());
        let mut buffer = CellBuffer::new(BATCH);
        loop {
            if channel.closed.get() {
                // What is left to write is written, or its time passes.
                return std::future::pending().await;
            }
            if channel.writing.get().is_some_and(|since| clock::now().since(since) > STALLED) {
                clock::until(clock::now() + SLOW).await;
            }
            let count = loop {
                let idle = self.shared.timeouts.get().idle;
                match link::within(idle, link::read_some(reader, buffer.space())).await {
                    Ok(0) => return Ok(()),
                    Ok(count) => break count,
                    // A peer that only takes is not idle.
                    Err(cause) if cause.kind() == io::ErrorKind::TimedOut => {
                        if clock::now().since(channel.active.get()) >= idle {
                            return Err(cause);
                        }
                    }
                    Err(cause) => return Err(cause),
                }
            };
            channel.active.set(clock::now());
            buffer.filled(count);
            self.take(id, buffer.cells())?;
            buffer.consume();
        }
    }

    fn take(&self, id: ChannelId, cells: &[u8]) -> io::Result<()> {
        self.shared.gate.received(cells.len() as u64);
        let now = clock::now();
        for bytes in cells.chunks_exact(CELL) {
            let mut state = self.shared.state.borrow_mut();
            // The node may have closed the channel on an earlier cell.
            if !state.channels.contains_key(&id) {
                return Ok(());
            }
            let command = encrypted::command(bytes[4], &bytes[HEADER..]).ok_or(io::ErrorKind::InvalidData)?;
            let circ = CircId(u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes")));
            let body = Body(Box::new(bytes[HEADER..].try_into().expect("a cell has 514 bytes")));
            state.node.cell(now, id, Cell { circ, command, body });
        }
        self.pump(now);
        Ok(())
    }

    async fn write(
        &self,
        writer: &mut (impl AsyncWrite + Unpin),
        id: ChannelId,
        channel: &Channel,
    ) -> io::Result<()> {
        let mut batch = Vec::with_capacity(BATCH * CELL);
        loop {
            batch.clear();
            if !channel.closed.get() {
                self.with(|node, now| node.drain(now, id, &mut Batch(&mut batch)));
            }
            if !batch.is_empty() {
                self.shared.gate.leave(id, batch.len() as u64).await;
                channel.writing.set(Some(clock::now()));
                let unread = self.shared.timeouts.get().unread;
                link::within(unread, link::write_cells(writer, &batch)).await?;
                channel.writing.set(None);
                channel.active.set(clock::now());
            } else if channel.closed.get() {
                return Ok(());
            } else {
                channel.wake.notified().await;
            }
        }
    }
}
