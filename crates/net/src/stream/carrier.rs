//! Connections by peer: dials a peer when there is something to send, and accepts peers that the tracker announced.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream, VarInt};
use tidegate_control::shares::{Shares, network};
use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::Fingerprint;
use tidegate_stream::message::{Contact, LONGEST, Message};
use tidegate_stream::packet::{self, Datagram, Share, WIRE};
use tidegate_stream::{Input, Output, Peer, SERVER};
use tokio::sync::mpsc;

use super::path::{Path, Socket};
use super::quic;
use crate::gate::Gate;
use crate::identity::Identity;
use crate::{clock, tls};

/// An event of a connection.
pub(crate) enum Event {
    /// A peer connected and authenticated.
    Accepted(Connection),
    /// A dialled connection is open, or failed.
    Dialed(Peer, Result<Connection, DialError>),
    /// A datagram.
    Datagram(usize, Bytes),
    /// A message of the reliable channel.
    Message(usize, Message),
    /// A connection ended, or violated the protocol.
    Closed(usize),
}

/// Why a dial failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// The peer has another fingerprint than the expected one.
    Fingerprint,
    /// Another cause.
    Other(String),
}

impl From<ConnectionError> for DialError {
    fn from(error: ConnectionError) -> DialError {
        match error {
            // QUIC keeps only the text of what the verifier of certificates says. The text of a peer is in other variants.
            ConnectionError::TransportError(error) if error.reason.contains(tls::OTHER_FINGERPRINT) => {
                DialError::Fingerprint
            }
            ConnectionError::TimedOut => {
                DialError::Other(format!("no answer on UDP for {} s", quic::IDLE.as_secs()))
            }
            other => DialError::Other(other.to_string()),
        }
    }
}

/// Events that wait to be handled. Beyond it, connections are not read.
const EVENTS: usize = 4096;
/// Messages that wait to be written to a peer. A peer that does not read them is disconnected.
const OUTBOX: usize = 1024;
/// Datagrams per peer that wait for a connection.
const PENDING: usize = 32;
/// Connections from peers that are not announced yet, shared by address, and their timeout.
const UNANNOUNCED: usize = 32;
const ANNOUNCE_TIMEOUT: Span = Span::from_secs(5);
/// Maximum number of connections with peers, shared by address.
const LINKS: usize = 4096;
/// Maximum number of connections in all, with pending handshakes.
const OPEN: usize = LINKS + LINKS / 8;
/// Pause before an unreachable peer is dialled again.
const PAUSE: Span = Span::from_secs(2);

/// Whether a connection carries messages besides datagrams, and which side opens their stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// No messages.
    None,
    /// The peer opens it.
    Accept,
    /// This side opens it.
    Open,
}

struct Link {
    connection: Connection,
    outbox: Option<mpsc::Sender<Vec<u8>>>,
}

enum State {
    Dialing(VecDeque<(Time, Bytes)>),
    Up(Link),
    Down(Time),
}

/// Bytes of sent datagrams by account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accounts {
    /// Video, with the packets' overhead on the wire.
    pub video: u64,
    /// Exploration, with the packets' overhead on the wire.
    pub exploration: u64,
    /// All bytes that left the socket.
    pub all: u64,
}

/// The connections of one peer.
pub(crate) struct Carrier {
    identity: Identity,
    /// The peers that it may dial.
    gate: Gate,
    endpoint: Endpoint,
    socket: Arc<Socket>,
    links: BTreeMap<Peer, State>,
    contacts: BTreeMap<Peer, Contact>,
    peers: BTreeMap<usize, Peer>,
    unannounced: VecDeque<(Time, Connection)>,
    /// Their places, by address.
    places: Shares<IpAddr, IpAddr, usize>,
    /// Connections with other peers than the server, when each was last used, and their places by address.
    open: BTreeMap<usize, (Connection, Time)>,
    seats: Shares<IpAddr, IpAddr, usize>,
    events: mpsc::Sender<Event>,
    accounts: Accounts,
}

impl Carrier {
    /// Binds the socket and starts to accept. Returns the receiver of events.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(crate) fn open(
        identity: Identity,
        listen: SocketAddr,
        path: Path,
        gate: Gate,
    ) -> io::Result<(Carrier, mpsc::Receiver<Event>)> {
        let socket = Socket::bind(listen, path)?;
        let endpoint = quic::endpoint(&identity, socket.clone())?;
        let (events, incoming) = mpsc::channel(EVENTS);
        tokio::spawn(accept(endpoint.clone(), events.clone()));
        let carrier = Carrier {
            identity,
            gate,
            endpoint,
            socket,
            links: BTreeMap::new(),
            contacts: BTreeMap::new(),
            peers: BTreeMap::new(),
            unannounced: VecDeque::new(),
            places: Shares::new(UNANNOUNCED),
            open: BTreeMap::new(),
            seats: Shares::new(LINKS),
            events,
            accounts: Accounts::default(),
        };
        Ok((carrier, incoming))
    }

    /// The local address.
    ///
    /// # Errors
    /// If the socket is closed.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// The fingerprint of this peer's certificate.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.identity.fingerprint()
    }

    /// Bytes sent so far.
    pub(crate) fn accounts(&self) -> Accounts {
        Accounts { all: self.socket.sent.load(Ordering::Relaxed), ..self.accounts }
    }

    /// Converts an event into the machine's input; `None` if the connection is not assigned to a peer.
    pub(crate) fn input(&mut self, event: Event) -> Option<Input> {
        if let Event::Datagram(connection, _) | Event::Message(connection, _) = &event
            && let Some((_, used)) = self.open.get_mut(connection)
        {
            *used = clock::now();
        }
        let peer = |connection: usize| self.peers.get(&connection).copied();
        match event {
            Event::Datagram(connection, bytes) => {
                peer(connection).map(|from| Input::Datagram { from, bytes })
            }
            Event::Message(connection, message) => {
                peer(connection).map(|from| Input::Message { from, message })
            }
            Event::Closed(connection) => self.closed(connection).map(Input::Lost),
            Event::Accepted(_) | Event::Dialed(..) => None,
        }
    }

    /// Carries out a machine's output. Returns data for the player; no bytes mean the end of the stream.
    pub(crate) fn act(&mut self, output: Output) -> Option<Bytes> {
        match output {
            Output::Datagram { to, bytes } => self.datagram(to, bytes),
            Output::Message { to, message } => self.message(to, &message),
            Output::Meet(peer, contact) => self.meet(peer, contact),
            Output::Part(peer) => self.part(peer),
            Output::Deliver(bytes) => return Some(bytes),
            Output::End => return Some(Bytes::new()),
        }
        None
    }

    /// Assigns a connection to a peer.
    pub(crate) fn attach(&mut self, peer: Peer, connection: Connection, channel: Channel) {
        // The user chose the server, so it does not need a place.
        if peer != SERVER {
            self.seat(&connection);
        }
        let outbox = (channel != Channel::None).then(|| {
            let (outbox, messages) = mpsc::channel(OUTBOX);
            tokio::spawn(talk(connection.clone(), channel, messages, self.events.clone()));
            outbox
        });
        tokio::spawn(listen(connection.clone(), self.events.clone()));
        self.peers.insert(connection.stable_id(), peer);
        let link = Link { connection, outbox };
        if let Some(State::Dialing(pending)) = self.links.insert(peer, State::Up(link)) {
            let now = clock::now();
            for (since, bytes) in pending {
                self.datagram(peer, aged(bytes, now.since(since)));
            }
        }
    }

    /// Sends a datagram to a peer. Dials the peer first if necessary.
    fn datagram(&mut self, to: Peer, bytes: Bytes) {
        let now = clock::now();
        match self.links.get_mut(&to) {
            Some(State::Up(link)) => {
                let wire = (bytes.len() + WIRE) as u64;
                match packet::share(&bytes) {
                    Share::Video => self.accounts.video += wire,
                    Share::Exploration => self.accounts.exploration += wire,
                    Share::Control | Share::Signatures => {}
                }
                // A datagram may be lost.
                let _ = link.connection.send_datagram(bytes);
            }
            Some(State::Dialing(pending)) if pending.len() < PENDING => pending.push_back((now, bytes)),
            Some(State::Dialing(_)) => {}
            Some(State::Down(until)) if now < *until => {}
            _ if to != SERVER => {
                if let Some(contact) = self.contacts.get(&to).copied() {
                    self.links.insert(to, State::Dialing(VecDeque::from([(now, bytes)])));
                    self.dial(to, contact.address, Some(contact.fingerprint), false);
                }
            }
            _ => {}
        }
    }

    /// Sends a message to a peer that has a message stream.
    pub(crate) fn message(&mut self, to: Peer, message: &Message) {
        if let Some(State::Up(link)) = self.links.get(&to)
            && let Some(outbox) = &link.outbox
            && outbox.try_send(message.encode()).is_err()
        {
            link.connection.close(VarInt::from_u32(1), b"peer does not read");
        }
    }

    /// Dials a peer. An event reports the result.
    pub(crate) fn dial(
        &self,
        peer: Peer,
        address: SocketAddr,
        fingerprint: Option<Fingerprint>,
        to_server: bool,
    ) {
        let events = self.events.clone();
        // The user chose the server. The server chose the other peers.
        let gate = if to_server { Gate::Private } else { self.gate };
        if let Err(refused) = gate.check(address) {
            tracing::debug!("a peer is not dialled: {refused}");
            let failed = Err(DialError::Other(refused.to_string()));
            tokio::spawn(async move { events.send(Event::Dialed(peer, failed)).await });
            return;
        }
        let config = quic::client(&self.identity, fingerprint, to_server);
        let connecting = config.map_err(|cause| DialError::Other(cause.to_string())).and_then(|config| {
            let connecting = self.endpoint.connect_with(config, address, "tidegate.invalid");
            connecting.map_err(|cause| DialError::Other(cause.to_string()))
        });
        tokio::spawn(async move {
            let connection = match connecting {
                Ok(connecting) => connecting.await.map_err(DialError::from),
                Err(cause) => Err(cause),
            };
            let _ = events.send(Event::Dialed(peer, connection)).await;
        });
    }

    /// Handles the result of a dial.
    pub(crate) fn dialed(&mut self, peer: Peer, connection: Result<Connection, DialError>) {
        match (connection, self.links.get(&peer)) {
            (Ok(connection), _) => self.welcome(peer, connection),
            (Err(_), Some(State::Dialing(_))) => {
                self.links.insert(peer, State::Down(clock::now() + PAUSE));
            }
            (Err(_), _) => {}
        }
    }

    /// Handles the tracker's announcement of a peer.
    fn meet(&mut self, peer: Peer, contact: Contact) {
        self.contacts.insert(peer, contact);
        let known = |connection: &Connection| quic::peer(connection) == Some(contact.fingerprint);
        if let Some(at) = self.unannounced.iter().position(|(_, connection)| known(connection))
            && let Some((_, connection)) = self.unannounced.remove(at)
        {
            self.places.release(&connection.stable_id());
            self.welcome(peer, connection);
        } else if self.gate.check(contact.address).is_ok() {
            // The server introduces both at the same time. If both are behind address translation, each side's datagram
            // opens its own way in, before one of them dials.
            self.socket.punch(contact.address);
        }
    }

    /// Handles a new connection, from an announced peer or one that may be announced soon.
    pub(crate) fn accepted(&mut self, connection: Connection) {
        let Some(fingerprint) = quic::peer(&connection) else {
            return connection.close(VarInt::from_u32(2), b"no certificate");
        };
        match self.contacts.iter().find(|(_, contact)| contact.fingerprint == fingerprint) {
            Some((peer, _)) => self.welcome(*peer, connection),
            None => {
                let (now, of) = (clock::now(), network(connection.remote_address().ip()));
                let displaced = self.places.displaced(&of, |_| Time::ZERO);
                self.places.admit(now, of, connection.stable_id());
                let places = &mut self.places;
                self.unannounced.retain(|(since, connection)| {
                    let id = connection.stable_id();
                    let goes = displaced == Some(id) || now.since(*since) > ANNOUNCE_TIMEOUT;
                    if goes {
                        places.release(&id);
                        connection.close(VarInt::from_u32(2), b"not announced");
                    }
                    !goes
                });
                self.unannounced.push_back((now, connection));
            }
        }
    }

    /// Gives a connection a place. Of the network with the most, the idlest connection makes room.
    fn seat(&mut self, connection: &Connection) {
        let (now, of) = (clock::now(), network(connection.remote_address().ip()));
        let open = &self.open;
        let used = |id: &usize| open.get(id).map_or(Time::ZERO, |(_, used)| *used);
        if let Some(displaced) = self.seats.displaced(&of, used)
            && let Some((connection, _)) = self.open.remove(&displaced)
        {
            connection.close(VarInt::from_u32(2), b"displaced");
        }
        self.seats.admit(now, of, connection.stable_id());
        self.open.insert(connection.stable_id(), (connection.clone(), now));
    }

    fn unseat(&mut self, connection: usize) {
        self.seats.release(&connection);
        self.open.remove(&connection);
    }

    fn welcome(&mut self, peer: Peer, connection: Connection) {
        if let Some(State::Up(_)) = self.links.get(&peer) {
            self.seat(&connection);
            // Both sides dialled. Each sends on its own connection and reads both, since closing one might close the
            // one that the peer sends on. An unused connection times out.
            tokio::spawn(listen(connection.clone(), self.events.clone()));
            self.peers.insert(connection.stable_id(), peer);
        } else {
            self.attach(peer, connection, Channel::None);
        }
    }

    /// Disconnects from a peer after a moment for data in flight.
    pub(crate) fn part(&mut self, peer: Peer) {
        self.contacts.remove(&peer);
        if let Some(State::Up(Link { connection, outbox })) = self.links.remove(&peer) {
            self.peers.remove(&connection.stable_id());
            self.unseat(connection.stable_id());
            drop(outbox);
            tokio::spawn(async move {
                clock::until(clock::now() + Span::from_millis(300)).await;
                connection.close(VarInt::from_u32(0), b"part");
            });
        }
    }

    /// Handles a closed connection. Returns its peer if that connection was in use.
    fn closed(&mut self, connection: usize) -> Option<Peer> {
        self.unseat(connection);
        let peer = self.peers.remove(&connection)?;
        match self.links.get(&peer) {
            Some(State::Up(link)) if link.connection.stable_id() == connection => {
                self.links.remove(&peer);
                Some(peer)
            }
            _ => None,
        }
    }

    /// Closes all connections.
    pub(crate) async fn close(self) {
        clock::until(clock::now() + Span::from_millis(100)).await;
        self.endpoint.close(VarInt::from_u32(0), b"end");
        let _ = tokio::time::timeout(std::time::Duration::from_millis(300), self.endpoint.wait_idle()).await;
    }
}

/// Adds the time that an exploration packet waited for its connection.
fn aged(bytes: Bytes, waited: Span) -> Bytes {
    match packet::decode(&bytes) {
        Some(Datagram::Explore(mut explore)) => {
            explore.held = explore.held.saturating_add((waited.0 / 1000) as u32);
            explore.encode()
        }
        _ => bytes,
    }
}

async fn accept(endpoint: Endpoint, events: mpsc::Sender<Event>) {
    while let Some(incoming) = endpoint.accept().await {
        // Under load, a peer must prove its address before it costs a handshake.
        if !incoming.remote_address_validated() && endpoint.open_connections() > LINKS / 8 {
            let _ = incoming.retry();
            continue;
        }
        // Connections with peers make room once they are authenticated.
        if endpoint.open_connections() > OPEN {
            incoming.refuse();
            continue;
        }
        let events = events.clone();
        tokio::spawn(async move {
            if let Ok(connecting) = incoming.accept()
                && let Ok(connection) = connecting.await
            {
                let _ = events.send(Event::Accepted(connection)).await;
            }
        });
    }
}

async fn listen(connection: Connection, events: mpsc::Sender<Event>) {
    let id = connection.stable_id();
    while let Ok(bytes) = connection.read_datagram().await {
        if events.send(Event::Datagram(id, bytes)).await.is_err() {
            return;
        }
    }
    let _ = events.send(Event::Closed(id)).await;
}

/// The message stream in both directions: each message follows its length in two bytes.
async fn talk(
    connection: Connection,
    channel: Channel,
    messages: mpsc::Receiver<Vec<u8>>,
    events: mpsc::Sender<Event>,
) {
    let streams = match channel {
        Channel::Open => connection.open_bi().await,
        _ => connection.accept_bi().await,
    };
    let Ok((send, receive)) = streams else { return };
    tokio::join!(write(send, messages), async {
        if read(receive, connection.stable_id(), &events).await.is_none() {
            connection.close(VarInt::from_u32(3), b"invalid message");
        }
    });
}

async fn write(mut send: SendStream, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = messages.recv().await {
        let length = (message.len() as u16).to_be_bytes();
        if send.write_all(&[&length[..], &message].concat()).await.is_err() {
            return;
        }
    }
    let _ = send.finish();
}

/// Reads messages. `None` if one is invalid.
async fn read(mut receive: RecvStream, id: usize, events: &mpsc::Sender<Event>) -> Option<()> {
    let mut buffer = [0; LONGEST];
    loop {
        let mut length = [0; 2];
        if receive.read_exact(&mut length).await.is_err() {
            return Some(());
        }
        let message = buffer.get_mut(..usize::from(u16::from_be_bytes(length)))?;
        if receive.read_exact(message).await.is_err() {
            return Some(());
        }
        let message = Message::decode(message)?;
        if events.send(Event::Message(id, message)).await.is_err() {
            return Some(());
        }
    }
}
