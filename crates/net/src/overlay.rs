//! Drives a node of the overlay, relay or client, over TLS connections: cells become bytes, channels become
//! connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::encrypted::{self, Encrypted};
use tidegate_proto::crypto::layer::Body;
use tidegate_proto::crypto::wire::{FIXED, Splitter, command};
use tidegate_proto::links::ChannelId;
use tidegate_proto::node::{Node, Output, Socket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_rustls::TlsStream;

use crate::batch::{Batch, EIGHT_RECORDS, HELD, ONE_RECORD, Waits};
use crate::identity::{Contact, Identity};
use crate::link::{Carrier, Tcp};
use crate::lumps::LUMP;
use crate::steps::Steps;
use crate::{clock, link, os, tls};

pub use crate::gate::{Gate, Open};

/// How long a connection to a relay may take: as long as tor's. Where queues are seconds long, it takes many.
const CONNECTING: Span = Span::from_secs(60);

/// What a node's owner does with what the driver does not do itself: streams and circuits.
pub type Owner<N> = Box<dyn FnMut(&mut N, Time, Output<Encrypted>)>;

/// A connection on which both sides know whom they met.
pub struct Met {
    /// The connection.
    pub carrier: Carrier,
    /// What was read of it already.
    pub rest: Vec<u8>,
    /// Which relay is on the other end; `None`: a client.
    pub peer: Option<RelayId>,
    /// It understands this project's additions to Tor's protocol.
    pub ours: bool,
    /// It does not speak the transport that is configured.
    pub shared: bool,
}

impl Met {
    /// Tells a node what the neighbour on a channel does not do.
    fn tell(&self, node: &mut impl Node<Encrypted>, id: ChannelId) {
        if !self.ours {
            node.channel_is_stock(id);
        }
        if self.shared {
            node.channel_is_shared(id);
        }
    }

    /// Somebody of ours, over TLS.
    fn over_tls(stream: impl Into<TlsStream<Tcp>>, rest: Vec<u8>, peer: Option<RelayId>) -> Met {
        Met { carrier: Carrier::Tls(Box::new(stream.into())), rest, peer, ours: true, shared: false }
    }
}

/// How connections to relays are opened.
pub trait Dial {
    /// Connects to a relay, and proves who both sides are.
    fn dial(&self, relay: RelayId) -> impl Future<Output = io::Result<Met>>;
    /// A connection with a relay is open.
    fn opened(&self, relay: RelayId);
    /// A connection with a relay has ended (`was_open`), or could not be opened.
    fn ended(&self, relay: RelayId, was_open: bool);
}

/// Relays of a directory by address and fingerprint, and our own identity for them.
pub struct Pinned {
    identity: Option<Arc<Identity>>,
    directory: BTreeMap<RelayId, Contact>,
}

impl Dial for Pinned {
    async fn dial(&self, relay: RelayId) -> io::Result<Met> {
        let contact = self.directory.get(&relay).ok_or(io::ErrorKind::NotFound)?;
        let config = tls::client(self.identity.as_deref(), contact.fingerprint);
        let stream = link::connect(contact.address, config.map_err(io::Error::other)?, CONNECTING).await?;
        Ok(Met::over_tls(stream, Vec::new(), Some(relay)))
    }
    fn opened(&self, _: RelayId) {}
    fn ended(&self, _: RelayId, _: bool) {}
}

/// A node on sockets. Clones are handles to the same node.
pub struct Overlay<N, G, D = Pinned> {
    shared: Rc<Shared<N, G, D>>,
}

impl<N, G, D> Clone for Overlay<N, G, D> {
    fn clone(&self) -> Self {
        Overlay { shared: self.shared.clone() }
    }
}

struct Shared<N, G, D> {
    state: RefCell<State<N>>,
    gate: G,
    timeouts: std::cell::Cell<Timeouts>,
    waits: std::cell::Cell<Waits>,
    /// Of cells that were written, for those that come.
    bodies: RefCell<Vec<Body>>,
    steps: RefCell<Steps>,
    /// The kernel is asked about connections.
    inspects: std::cell::Cell<bool>,
    dial: D,
}

struct State<N> {
    node: N,
    /// A timeout of the node's is waited for until then.
    timer: Time,
    owner: Owner<N>,
    channels: BTreeMap<ChannelId, Rc<Channel>>,
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
    /// The connection once more, where the kernel is asked about it.
    socket: std::cell::OnceCell<os::Duplicate>,
    /// Bytes that the node has given and the kernel has not taken yet.
    unwritten: std::cell::Cell<u64>,
}

impl Channel {
    /// What KIST wants to know of the connection.
    fn inspect(&self) -> Option<Socket> {
        let sender = tidegate_kernel::sender(self.socket.get()?).ok()?;
        Some(Socket {
            window: sender.window,
            unacknowledged: sender.unacknowledged,
            unsent_bytes: sender.unsent_bytes + self.unwritten.get(),
            segment_bytes: sender.segment_bytes,
        })
    }
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
        Overlay::with_dial(node, gate, Pinned { identity, directory }, |_| owner)
    }
}

/// A handle to a node that does not keep it alive: for its owner.
pub struct Handle<N, G, D>(Weak<Shared<N, G, D>>);

impl<N, G, D> Handle<N, G, D> {
    /// The node, if anybody still holds it.
    pub fn get(&self) -> Option<Overlay<N, G, D>> {
        self.0.upgrade().map(|shared| Overlay { shared })
    }
}

impl<N: Node<Encrypted> + 'static, G: Gate + 'static, D: Dial + 'static> Overlay<N, G, D> {
    /// A node that opens connections in its own way; its owner may hold a handle to it.
    pub fn with_dial(
        node: N,
        gate: G,
        dial: D,
        owner: impl FnOnce(Handle<N, G, D>) -> Owner<N>,
    ) -> Overlay<N, G, D> {
        let shared = Rc::new_cyclic(|weak| {
            let owner = owner(Handle(weak.clone()));
            let state = RefCell::new(State { node, timer: Time::NEVER, owner, channels: BTreeMap::new() });
            let (timeouts, waits, bodies, steps, inspects) = Default::default();
            Shared { state, gate, timeouts, waits, bodies, steps, inspects, dial }
        });
        Overlay { shared }
    }

    /// Sets how long connections may do nothing.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.shared.timeouts.set(timeouts);
    }

    /// Lets the node know what the kernel says of its connections, from the next one on: each takes another descriptor.
    pub fn inspect_sockets(&self) {
        self.shared.inspects.set(true);
    }

    /// Where cells have waited.
    pub fn waits(&self) -> Waits {
        self.shared.waits.get()
    }

    /// How long the node's controller has kept it busy.
    pub fn steps(&self) -> Steps {
        self.shared.steps.borrow().clone()
    }

    /// What lets bytes through.
    pub fn gate(&self) -> &G {
        &self.shared.gate
    }

    /// Connections that are open or being opened.
    pub fn connections(&self) -> usize {
        self.shared.state.borrow().channels.len()
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
                Output::Inspect(channel) => {
                    // Without an answer KIST counts output buffers alone.
                    let known = state.channels.get(&channel).and_then(|channel| channel.inspect());
                    let mut waits = self.shared.waits.get();
                    waits.inspections += u64::from(known.is_some());
                    waits.unsent_bytes += known.map_or(0, |socket| socket.unsent_bytes);
                    self.shared.waits.set(waits);
                    state.node.socket(now, channel, known);
                }
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
    async fn wait(shared: Weak<Shared<N, G, D>>, due: Time) {
        clock::until(due).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.state.borrow().timer == due {
            shared.state.borrow_mut().timer = Time::NEVER;
            let overlay = Overlay { shared };
            let (spent, solved) = overlay.with(|node, now| {
                node.timeout(now);
                let spent = clock::now().since(now);
                (spent, node.took(now, spent))
            });
            overlay.shared.steps.borrow_mut().took(spent, solved);
        }
    }

    async fn open(self, id: ChannelId, relay: RelayId) {
        match link::within(CONNECTING, self.shared.dial.dial(relay)).await {
            Ok(met) => {
                self.shared.dial.opened(relay);
                self.with(|node, now| {
                    met.tell(node, id);
                    node.channel_opened(now, id);
                });
                self.run(met, id).await;
                self.shared.dial.ended(relay, true);
            }
            Err(cause) => {
                tracing::debug!(%cause, "no connection to a relay");
                self.gone(id);
                self.shared.dial.ended(relay, false);
            }
        }
    }

    /// Serves a connection that a neighbour opened, whose first cell was read already.
    pub async fn accepted(&self, stream: impl Into<TlsStream<Tcp>>, first: [u8; FIXED]) {
        self.met(Met::over_tls(stream, first.to_vec(), None)).await;
    }

    /// Serves a connection that a neighbour opened.
    pub async fn met(&self, met: Met) {
        self.met_from(met, |_, _, _| {}).await;
    }

    /// As [`met`](Self::met), when the node is to be told more of the channel.
    pub async fn met_from(&self, met: Met, tell: impl FnOnce(&mut N, Time, ChannelId)) {
        let id = self.with(|node, now| {
            let id = node.channel_accepted(met.peer);
            tell(node, now, id);
            met.tell(node, id);
            id
        });
        self.shared.state.borrow_mut().channels.insert(id, Rc::default());
        let peer = met.peer;
        peer.inspect(|peer| self.shared.dial.opened(*peer));
        self.run(met, id).await;
        peer.inspect(|peer| self.shared.dial.ended(*peer, true));
    }

    async fn run(&self, mut met: Met, id: ChannelId) {
        let channel = self.shared.state.borrow().channels.get(&id).cloned();
        let Some(channel) = channel else { return };
        if self.shared.inspects.get()
            && let Some(tcp) = met.carrier.tcp()
            && let Ok(socket) = os::duplicate(tcp)
        {
            // It is set once.
            let _ = channel.socket.set(socket);
        }
        met.carrier.may_hold(HELD);
        let (mut reader, mut writer) = tokio::io::split(met.carrier);
        // However it ends, the channel is gone.
        let _ = tokio::select! {
            result = self.read(&mut reader, id, &channel, &met.rest) => result,
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
        first: &[u8],
    ) -> io::Result<()> {
        let mut splitter = Splitter::new(first);
        self.take(id, &mut splitter)?;
        channel.active.set(clock::now());
        let mut taken = 0;
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
                match link::within(idle, link::read_some(reader, splitter.space())).await {
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
            splitter.filled(count);
            self.take(id, &mut splitter)?;
            taken += count;
            if taken >= LUMP {
                // What came in a lump is written on while the processor has it at hand.
                taken = 0;
                link::others_first().await;
            }
        }
    }

    fn take(&self, id: ChannelId, splitter: &mut Splitter) -> io::Result<()> {
        let now = clock::now();
        let mut received = 0;
        {
            let mut state = self.shared.state.borrow_mut();
            let mut bodies = self.shared.bodies.borrow_mut();
            // The node may close the channel on any cell.
            while state.channels.contains_key(&id) {
                let cell = splitter.take().map_err(|_| io::ErrorKind::InvalidData)?;
                let Some((circ, number, body)) = cell else { break };
                received += FIXED as u64;
                match number {
                    command::CERTS | command::AUTH_CHALLENGE | command::AUTHENTICATE => {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    // Padding, and what others may know (tor-spec, "Cell packet format"), says nothing.
                    _ => {
                        if let Some(cell) = encrypted::read_cell(circ, number, body, &mut bodies) {
                            state.node.cell(now, id, cell);
                        }
                    }
                }
            }
        }
        self.shared.gate.received(received);
        self.pump(now);
        Ok(())
    }

    async fn write(
        &self,
        writer: &mut (impl AsyncWrite + Unpin),
        id: ChannelId,
        channel: &Channel,
    ) -> io::Result<()> {
        let (mut batch, mut most) = (Vec::new(), ONE_RECORD);
        loop {
            batch.clear();
            if !channel.closed.get() {
                let mut waits = self.shared.waits.get();
                self.with(|node, now| {
                    let bodies = &mut *self.shared.bodies.borrow_mut();
                    node.drain(
                        now,
                        id,
                        &mut Batch { bytes: &mut batch, most, bodies, waits: &mut waits, now },
                    );
                    self.shared.waits.set(waits);
                });
            }
            channel.unwritten.set(batch.len() as u64);
            if !batch.is_empty() {
                let unread = self.shared.timeouts.get().unread;
                let written = async {
                    self.shared.gate.leave(id, batch.len() as u64).await;
                    channel.writing.set(Some(clock::now()));
                    link::within(unread, link::write_cells(writer, &batch)).await
                };
                let (written, waited) = link::waits(written).await;
                written?;
                most = if waited { ONE_RECORD } else { EIGHT_RECORDS };
                channel.writing.set(None);
                channel.unwritten.set(0);
                channel.active.set(clock::now());
            } else if channel.closed.get() {
                return Ok(());
            } else {
                channel.wake.notified().await;
            }
        }
    }
}
