//! Drives a node of the overlay, a relay or a client, over TLS or QUIC connections.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{Command, RelayId};
use tidegate_proto::crypto::Encrypted;
use tidegate_proto::crypto::padding::{LinkPadding, Padding};
use tidegate_proto::crypto::wire::{FIXED, Splitter, command, read_cell};
use tidegate_proto::links::ChannelId;
use tidegate_proto::node::{Node, Output, Socket};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio_rustls::TlsStream;

use crate::batch::{Batch, EIGHT_RECORDS, HELD, ONE_RECORD, Waits};
use crate::buffered_tcp::BLOCK;
use crate::controller_time::ControllerTime;
use crate::driver::{Handler, SharedDriver, WeakDriver};
use crate::identity::{Contact, Identity, random};
use crate::link::{BufferedTcp, Carrier};
use crate::{clock, link, os, sockets, tls};

pub use crate::rate_limit::{Connection, RateLimit, Unlimited};

/// Timeout of connecting to a relay, as in tor. Queues of seconds make it long.
const CONNECTING: Span = Span::from_secs(60);

/// Handles the outputs that the driver does not: streams and circuits.
pub type Owner<N> = Box<dyn FnMut(&mut N, Time, Output<Encrypted>)>;

/// An authenticated link.
pub struct PeerLink {
    /// The connection.
    pub carrier: Carrier,
    /// Bytes that were already read.
    pub rest: Vec<u8>,
    /// The neighbour; `None` for a client.
    pub peer: Option<RelayId>,
    /// The neighbour supports this project's extensions of Tor's protocol.
    pub ours: bool,
    /// The neighbour does not support the configured transport.
    pub shared: bool,
    /// The neighbour understands padding.
    pub pads: bool,
}

impl PeerLink {
    /// Tells a node which features the neighbour on a channel lacks.
    fn announce(&self, node: &mut impl Node<Encrypted>, id: ChannelId) {
        if !self.ours {
            node.channel_is_stock(id);
        }
        if self.shared {
            node.channel_is_shared(id);
        }
    }

    /// A TLS link with a neighbour of this project.
    fn over_tls(stream: impl Into<TlsStream<BufferedTcp>>, rest: Vec<u8>, peer: Option<RelayId>) -> PeerLink {
        let carrier = Carrier::Tls(Box::new(stream.into()));
        PeerLink { carrier, rest, peer, ours: true, shared: false, pads: false }
    }
}

/// Opens links to relays.
pub trait Dial {
    /// Connects to a relay, and authenticates both sides.
    fn dial(&self, relay: RelayId) -> impl Future<Output = io::Result<PeerLink>>;
    /// Called as soon as the node asks for a link with a relay. [`dial`](Self::dial) may follow later.
    fn asked(&self, relay: RelayId);
    /// Called when that link is open, could not be opened, or is no longer needed; if it is open, after
    /// [`opened`](Self::opened).
    fn tried(&self, relay: RelayId);
    /// Called when a link with a relay is open.
    fn opened(&self, relay: RelayId);
    /// Called when a link with a relay has ended.
    fn ended(&self, relay: RelayId);
}

/// Dials relays of a fixed directory by address and fingerprint.
pub struct Pinned {
    identity: Option<Arc<Identity>>,
    directory: BTreeMap<RelayId, Contact>,
}

impl Dial for Pinned {
    async fn dial(&self, relay: RelayId) -> io::Result<PeerLink> {
        let contact = self.directory.get(&relay).ok_or(io::ErrorKind::NotFound)?;
        let config = tls::client(self.identity.as_deref(), contact.fingerprint);
        let stream = link::connect(contact.address, config.map_err(io::Error::other)?, CONNECTING).await?;
        Ok(PeerLink::over_tls(stream, Vec::new(), Some(relay)))
    }
    fn asked(&self, _: RelayId) {}
    fn tried(&self, _: RelayId) {}
    fn opened(&self, _: RelayId) {}
    fn ended(&self, _: RelayId) {}
}

/// A node on sockets. Clones are handles to the same node.
pub struct Overlay<N, G, D = Pinned> {
    driver: SharedDriver<N, Channels<N, G, D>>,
    shared: Rc<Shared<G, D>>,
}

impl<N, G, D> Clone for Overlay<N, G, D> {
    fn clone(&self) -> Self {
        Overlay { driver: self.driver.clone(), shared: self.shared.clone() }
    }
}

/// State of the connections that is independent of the node.
struct Shared<G, D> {
    limit: G,
    timeouts: Cell<Timeouts>,
    /// Whether the kernel is asked about connections (TCP_INFO).
    inspects: Cell<bool>,
    /// When connections are padded that open from now on; `None`: never.
    padding: Cell<Option<Padding>>,
    dial: D,
}

/// Carries out the node's outputs.
struct Channels<N, G, D> {
    overlay: Handle<N, G, D>,
    owner: Owner<N>,
    channels: BTreeMap<ChannelId, Rc<Channel>>,
    /// Number of channels without connections.
    attached: usize,
    waits: Waits,
    controller_time: ControllerTime,
}

/// Signals that the node has cells for a channel without a connection.
pub(crate) struct CellSignal(Rc<Channel>);

impl CellSignal {
    /// Waits for the next signal.
    pub(crate) async fn wait(&self) {
        self.0.wake.notified().await;
    }
}

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Close it after this time without a read or a write. If unset, the node decides: circuits may be silent, and the
    /// node closes connections without circuits ([`tidegate_proto::links::Limits`]).
    pub idle: Option<Span>,
    /// Close it if a write is stalled for this long.
    pub unread: Span,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { idle: None, unread: Span::from_secs(60) }
    }
}

/// Maximum unsent bytes of a connection in the kernel. A neighbour that does not read costs no more. It is less than a window
/// of a circuit: a connection with a whole window for a neighbour that does not read is stalled, and counts for the memory
/// limit.
const UNSENT: u32 = 256 << 10;
/// How long a neighbour's last cells are awaited after a connection ended in one direction.
const LINGER: Span = Span::from_secs(2);
/// If a write stalls longer than this, reads are slowed to one batch per [`SLOW`], and the kernel holds few unread bytes.
const STALLED: Span = Span::from_secs(2);
/// See [`STALLED`].
const SLOW: Span = Span::from_millis(100);
/// Limits of a connection's unread bytes in the kernel, which doubles them for its bookkeeping: while the neighbour does
/// not read, and afterwards. Before, the kernel decides.
const UNREAD: u32 = 128 << 10;
/// See [`UNREAD`].
const UNREAD_AGAIN: u32 = 4 << 20;
/// Kernel memory that a connection with a neighbour that does not read may take.
const STALLED_BYTES: u64 = UNSENT as u64 + 2 * UNREAD as u64;

#[derive(Default)]
struct Channel {
    /// There are cells to write, or the channel was closed.
    wake: Notify,
    /// When the pending write started, and when bytes were last read or written.
    writing: Cell<Option<Time>>,
    active: Cell<Time>,
    /// The node has forgotten it, and may have given its id to another channel. The connection ends once all cells are
    /// written.
    closed: Cell<bool>,
    /// A duplicate of the socket's handle, for TCP_INFO.
    socket: OnceCell<os::Duplicate>,
    /// Bytes that the node has given and the kernel has not taken yet.
    unwritten: Cell<u64>,
    /// It is a TCP connection, which has buffers in the kernel.
    in_kernel: Cell<bool>,
    /// Its place is needed: it ends now.
    cut: Notify,
    /// Its padding, if it is padded.
    padding: RefCell<Option<LinkPadding>>,
}

impl Channel {
    /// Waits until the node closes a channel that is being opened.
    async fn given_up(&self) {
        while !self.closed.get() {
            self.wake.notified().await;
        }
    }

    /// When to pad it, unless it is active before.
    fn padding_due(&self) -> Option<Time> {
        self.padding.borrow_mut().as_mut()?.due(self.active.get())
    }

    /// Since when the neighbour has not read, if that is too long.
    fn stalled(&self, now: Time) -> Option<Time> {
        self.writing.get().filter(|since| now.since(*since) > STALLED)
    }

    /// The connection's state for KIST.
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

impl<N: Node<Encrypted> + 'static, G: RateLimit + 'static> Overlay<N, G> {
    /// Drives a node that connects to relays of `directory`, and authenticates with `identity` if given.
    pub(crate) fn new(
        node: N,
        limit: G,
        identity: Option<Arc<Identity>>,
        directory: BTreeMap<RelayId, Contact>,
        owner: Owner<N>,
    ) -> Overlay<N, G> {
        Overlay::with_dial(node, limit, Pinned { identity, directory }, |_| owner)
    }
}

/// A handle that does not keep the node alive, for its owner.
pub struct Handle<N, G, D> {
    driver: WeakDriver<N, Channels<N, G, D>>,
    shared: Rc<Shared<G, D>>,
}

impl<N, G, D> Handle<N, G, D> {
    /// The node, unless its last handle is gone.
    pub(crate) fn get(&self) -> Option<Overlay<N, G, D>> {
        let driver = self.driver.upgrade()?;
        Some(Overlay { driver, shared: self.shared.clone() })
    }
}

impl<N, G, D> Handler<N> for Channels<N, G, D>
where
    N: Node<Encrypted> + 'static,
    G: RateLimit + 'static,
    D: Dial + 'static,
{
    fn handle(&mut self, node: &mut N, now: Time, output: Output<Encrypted>) {
        match output {
            Output::OpenChannel(channel, relay) => {
                let overlay = self.overlay.get().expect("a handle drives the node");
                let opening = Rc::<Channel>::default();
                self.channels.insert(channel, opening.clone());
                overlay.shared.dial.asked(relay);
                tokio::task::spawn_local(async move { overlay.open(channel, opening, relay).await });
            }
            Output::Flush(channel) => {
                if let Some(channel) = self.channels.get(&channel) {
                    channel.wake.notify_one();
                }
            }
            Output::CloseChannel(channel) => {
                if let Some(channel) = self.channels.remove(&channel) {
                    channel.closed.set(true);
                    channel.wake.notify_one();
                }
            }
            Output::Inspect(channel) => {
                // Without an answer KIST counts output buffers alone.
                let known = self.channels.get(&channel).and_then(|channel| channel.inspect());
                self.waits.inspections += u64::from(known.is_some());
                self.waits.unsent_bytes += known.map_or(0, |socket| socket.unsent_bytes);
                node.socket(now, channel, known);
            }
            other => (self.owner)(node, now, other),
        }
    }

    /// Measures how long the controller keeps this thread busy, and tells the node.
    fn timeout(&mut self, node: &mut N, now: Time) {
        node.timeout(now);
        let spent = clock::now().since(now);
        let solved = node.took(now, spent);
        self.controller_time.add(spent, solved);
    }
}

impl<N: Node<Encrypted> + 'static, G: RateLimit + 'static, D: Dial + 'static> Overlay<N, G, D> {
    /// Drives a node that opens connections with `dial`. `owner` gets a handle for the outputs it handles.
    pub fn with_dial(
        node: N,
        limit: G,
        dial: D,
        owner: impl FnOnce(Handle<N, G, D>) -> Owner<N>,
    ) -> Overlay<N, G, D> {
        let (timeouts, inspects, padding) = Default::default();
        let shared = Rc::new(Shared { limit, timeouts, inspects, padding, dial });
        let handle = |driver: &WeakDriver<_, _>| Handle { driver: driver.clone(), shared: shared.clone() };
        let driver = SharedDriver::new(node, |driver| Channels {
            overlay: handle(&driver),
            owner: owner(handle(&driver)),
            channels: BTreeMap::new(),
            attached: 0,
            waits: Waits::default(),
            controller_time: ControllerTime::default(),
        });
        Overlay { driver, shared }
    }

    /// Sets the timeouts of connections.
    pub(crate) fn set_timeouts(&self, timeouts: Timeouts) {
        self.shared.timeouts.set(timeouts);
    }

    /// Lets the node query the kernel about its connections (TCP_INFO), for connections opened from now on. Each
    /// takes one more file descriptor.
    pub(crate) fn inspect_sockets(&self) {
        self.shared.inspects.set(true);
    }

    /// Pads connections that open from now on.
    pub(crate) fn set_padding(&self, padding: Option<Padding>) {
        self.shared.padding.set(padding);
    }

    /// How long cells waited, summed over all cells sent.
    pub fn waits(&self) -> Waits {
        self.driver.handler(|channels| channels.waits)
    }

    /// How long the node's controller kept this thread busy.
    pub(crate) fn controller_time(&self) -> ControllerTime {
        self.driver.handler(|channels| channels.controller_time.clone())
    }

    /// The rate limit.
    pub(crate) fn limit(&self) -> &G {
        &self.shared.limit
    }

    /// Connections that are open or being opened.
    pub fn connections(&self) -> usize {
        self.driver.handler(|channels| channels.channels.len() - channels.attached)
    }

    /// Adds a channel without a connection: the caller moves its cells when the signal says so. It never closes.
    pub(crate) fn attach(&self, id: ChannelId) -> CellSignal {
        let channel = Rc::<Channel>::default();
        self.driver.handler(|channels| {
            channels.channels.insert(id, channel.clone());
            channels.attached += 1;
        });
        CellSignal(channel)
    }

    /// Kernel memory that connections may take with neighbours that do not read.
    pub(crate) fn stalled_bytes(&self) -> u64 {
        let now = clock::now();
        let stalled = |channel: &&Rc<Channel>| channel.in_kernel.get() && channel.stalled(now).is_some();
        let count = self.driver.handler(|all| all.channels.values().filter(stalled).count());
        count as u64 * STALLED_BYTES
    }

    /// Ends the TCP connection with the neighbour that has not read for the longest time; false without one.
    pub(crate) fn cut_most_stalled(&self) -> bool {
        let now = clock::now();
        let longest = self.driver.handler(|all| {
            let of_kernel = all.channels.iter().filter(|(_, channel)| channel.in_kernel.get());
            let since = of_kernel.filter_map(|(id, channel)| Some((channel.stalled(now)?, *id)));
            let (_, id) = since.min()?;
            Some((id, all.channels[&id].clone()))
        });
        let Some((id, channel)) = longest else { return false };
        channel.in_kernel.set(false);
        channel.cut.notify_one();
        self.gone(id, &channel);
        true
    }

    /// Gives the node an input, and carries out its outputs.
    pub fn with<T>(&self, act: impl FnOnce(&mut N, Time) -> T) -> T {
        self.driver.input(|node, _, now| act(node, now))
    }

    async fn open(self, id: ChannelId, channel: Rc<Channel>, relay: RelayId) {
        let dialled = tokio::select! {
            dialled = link::within(CONNECTING, self.shared.dial.dial(relay)) => dialled,
            // The node has given up every circuit that needed it, or needs its place.
            () = channel.given_up() => return self.shared.dial.tried(relay),
        };
        match dialled {
            Ok(_) if channel.closed.get() => self.shared.dial.tried(relay),
            Ok(peer_link) => {
                self.shared.dial.opened(relay);
                self.shared.dial.tried(relay);
                self.with(|node, now| {
                    if let Some(address) = peer_link.carrier.peer_address() {
                        node.channel_is_at(now, id, address);
                    }
                    peer_link.announce(node, id);
                    node.channel_opened(now, id);
                });
                self.run(peer_link, id, &channel, LINGER).await;
                self.shared.dial.ended(relay);
            }
            Err(cause) => {
                tracing::debug!(%cause, "cannot connect to a relay");
                self.gone(id, &channel);
                self.shared.dial.tried(relay);
            }
        }
    }

    /// Serves a TLS connection that a neighbour opened, with its first cell.
    pub(crate) async fn accepted(&self, stream: impl Into<TlsStream<BufferedTcp>>, first: [u8; FIXED]) {
        self.serve(PeerLink::over_tls(stream, first.to_vec(), None)).await;
    }

    /// Serves a link that a neighbour opened.
    pub(crate) async fn serve(&self, peer_link: PeerLink) {
        self.serve_with(peer_link, |_, _, _| {}).await;
    }

    /// As [`serve`](Self::serve). `tell` tells the node more about the channel.
    pub(crate) async fn serve_with(&self, peer_link: PeerLink, tell: impl FnOnce(&mut N, Time, ChannelId)) {
        let channel = Rc::<Channel>::default();
        let id = self.driver.input(|node, channels, now| {
            let id = node.channel_accepted(peer_link.peer);
            // First, because the node may close it at once.
            channels.channels.insert(id, channel.clone());
            tell(node, now, id);
            peer_link.announce(node, id);
            id
        });
        let peer = peer_link.peer;
        peer.inspect(|peer| self.shared.dial.opened(*peer));
        // Only misbehaving or displaced neighbours lose a link that they opened: it ends at once.
        self.run(peer_link, id, &channel, Span::ZERO).await;
        peer.inspect(|peer| self.shared.dial.ended(*peer));
    }

    /// Moves cells until the link ends. `linger`: how long to wait for the neighbour's end after the node closed it.
    async fn run(&self, mut peer_link: PeerLink, id: ChannelId, channel: &Channel, linger: Span) {
        if self.shared.inspects.get()
            && let Some(tcp) = peer_link.carrier.tcp()
            && let Ok(socket) = os::duplicate(tcp)
        {
            // The cell is set only here.
            let _ = channel.socket.set(socket);
        }
        if let Some(tcp) = peer_link.carrier.tcp() {
            sockets::bound_unsent(tcp, UNSENT);
            channel.in_kernel.set(true);
        }
        if let Some(padding) = self.shared.padding.get().filter(|_| peer_link.pads) {
            let random = Seed::root(u64::from_le_bytes(random())).random();
            channel.padding.replace(padding.of_link(peer_link.peer.is_some(), random));
        }
        let unread = peer_link.carrier.unread_limit();
        peer_link.carrier.may_hold(HELD);
        let connection = Connection { channel: id, address: peer_link.carrier.peer_address() };
        let (mut reader, mut writer) = tokio::io::split(peer_link.carrier);
        {
            let limit = |bytes| unread.iter().for_each(|limit| limit.set(bytes));
            let mut reading = pin!(self.read(&mut reader, id, channel, &peer_link.rest, &limit));
            let written = tokio::select! {
                // In every case the channel is gone.
                _ = &mut reading => None,
                result = self.write(&mut writer, connection, channel) => Some(result),
                () = channel.cut.notified() => return,
            };
            if let Some(Err(_)) = written
                && !channel.closed.get()
            {
                // The neighbour stopped reading. Its last cells may be under way and say why: it closed circuits.
                let _ = link::within(LINGER, reading).await;
            }
        }
        if !channel.closed.get() {
            return self.gone(id, channel);
        }
        // A connection that closes with unread bytes is reset, and our last cells (DESTROY) would be lost with it.
        let ended = async {
            writer.shutdown().await?;
            // On the heap, because an array would be part of every connection's task from its start.
            let mut rest = vec![0; 4096];
            while reader.read(&mut rest).await? > 0 {}
            Ok(())
        };
        // A neighbour that does not end the connection in time is cut off.
        let _ = link::within(linger, ended).await;
    }

    /// Tells the node that a connection has ended, unless the node closed the channel before.
    fn gone(&self, id: ChannelId, channel: &Channel) {
        if !channel.closed.replace(true) {
            self.driver.input(|node, channels, now| {
                channels.channels.remove(&id);
                node.channel_closed(now, id);
            });
        }
    }

    async fn read(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        id: ChannelId,
        channel: &Channel,
        first: &[u8],
        limit_unread: &dyn Fn(u32),
    ) -> io::Result<()> {
        let mut splitter = Splitter::new(first);
        self.take(id, channel, &mut splitter)?;
        channel.active.set(clock::now());
        let (mut taken, mut limited) = (0, false);
        loop {
            if channel.closed.get() {
                // The writer sends the rest, or times out.
                return std::future::pending().await;
            }
            let stalled = channel.stalled(clock::now()).is_some();
            if stalled != limited {
                limited = stalled;
                limit_unread(if stalled { UNREAD } else { UNREAD_AGAIN });
            }
            if stalled {
                clock::until(clock::now() + SLOW).await;
            }
            let count = self.read_some(reader, channel, splitter.space()).await?;
            if count == 0 {
                return Ok(());
            }
            channel.active.set(clock::now());
            splitter.filled(count);
            self.take(id, channel, &mut splitter)?;
            taken += count;
            if taken >= BLOCK {
                // Let the writer forward this block while it is in the processor's cache.
                taken = 0;
                link::others_first().await;
            }
        }
    }

    /// Reads what has arrived, 0 bytes at the end, within the timeout of an idle connection.
    async fn read_some(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        channel: &Channel,
        space: &mut [u8],
    ) -> io::Result<usize> {
        let Some(idle) = self.shared.timeouts.get().idle else { return link::read_some(reader, space).await };
        loop {
            match link::within(idle, link::read_some(reader, space)).await {
                // A peer that only receives is not idle.
                Err(cause)
                    if cause.kind() == io::ErrorKind::TimedOut
                        && clock::now().since(channel.active.get()) < idle => {}
                result => return result,
            }
        }
    }

    fn take(&self, id: ChannelId, channel: &Channel, splitter: &mut Splitter) -> io::Result<()> {
        // The node may have closed the channel while this read waited. Its id may belong to another one by now.
        if channel.closed.get() {
            return Ok(());
        }
        let (mut received, mut valid) = (0, true);
        self.driver.input(|node, _, now| {
            let mut next = || loop {
                let Ok(cell) = splitter.take() else {
                    valid = false;
                    return None;
                };
                let (circ, number, body) = cell?;
                received += FIXED as u64;
                if matches!(number, command::CERTS | command::AUTH_CHALLENGE | command::AUTHENTICATE) {
                    valid = false;
                    return None;
                }
                // Padding and unknown commands are ignored (tor-spec, "Cell packet format").
                if let Some(cell) = read_cell(circ, number, body) {
                    if cell.command == Command::Create {
                        channel.padding.borrow_mut().iter_mut().for_each(LinkPadding::used);
                    }
                    return Some((cell, 1));
                }
                if number == command::PADDING_NEGOTIATE {
                    channel.padding.borrow_mut().iter_mut().for_each(|padding| padding.negotiate(body));
                    // The writer waits for another time now.
                    channel.wake.notify_one();
                }
            };
            node.cells_arrived(now, id, &mut std::iter::from_fn(&mut next));
            if !valid {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.shared.limit.received(received);
            Ok(())
        })
    }

    async fn write(
        &self,
        writer: &mut (impl AsyncWrite + Unpin),
        connection: Connection,
        channel: &Channel,
    ) -> io::Result<()> {
        let (mut batch, mut most) = (Vec::new(), ONE_RECORD);
        loop {
            batch.clear();
            if !channel.closed.get() {
                self.driver.input(|node, channels, now| {
                    let waits = &mut channels.waits;
                    node.drain(now, connection.channel, &mut Batch { bytes: &mut batch, most, waits, now });
                });
            }
            // A connection with cells to write is not idle.
            let due = if batch.is_empty() && !channel.closed.get() { channel.padding_due() } else { None };
            if due.is_some_and(|due| due <= clock::now()) {
                LinkPadding::write(&mut batch);
            }
            channel.unwritten.set(batch.len() as u64);
            if !batch.is_empty() {
                let unread = self.shared.timeouts.get().unread;
                let written = async {
                    self.shared.limit.leave(connection, batch.len() as u64).await;
                    channel.writing.set(Some(clock::now()));
                    link::within(unread, link::write_cells(writer, &batch)).await
                };
                let (written, waited) = link::waits(written).await;
                written?;
                // A wait means that the kernel's buffer is full. Keep further cells in circuit queues, for the scheduler.
                most = if waited { ONE_RECORD } else { EIGHT_RECORDS };
                channel.writing.set(None);
                channel.unwritten.set(0);
                channel.active.set(clock::now());
            } else if channel.closed.get() {
                return Ok(());
            } else {
                tokio::select! {
                    () = channel.wake.notified() => {}
                    () = clock::until(due.unwrap_or(Time::ZERO)), if due.is_some() => {}
                }
            }
        }
    }
}
