//! Cells and the relay messages inside them (tor-spec, "Cell packet format" and "Relay cells").

use std::fmt::Debug;
use std::net::IpAddr;

use tidegate_control::random::Random;

use crate::conflux::Link;
pub use crate::ids::{CircId, Nonce, RelayId, StreamId};
use crate::switching::CongestionNotice;

/// Bytes of a cell: 4 of circuit id, 1 of command, 509 of body (link protocol 4 and later).
pub const CELL_BYTES: u32 = 514;
/// Circuit id, command and length in front of a cell of variable length.
const VARIABLE_HEADER: u32 = 7;
/// Maximum size of a message for a neighbour: with its header it is as long as a fixed-length cell.
pub const NEIGHBOUR_BYTES: usize = (CELL_BYTES - VARIABLE_HEADER) as usize;
/// Application bytes that fit into one DATA message at most (body less the 11-byte header of format 0).
pub const DATA_BYTES: u16 = 498;

/// Command of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Create a circuit: the body holds the client's half of a key exchange.
    Create,
    /// The circuit is created: the relay's half of the key exchange.
    Created,
    /// As [`Create`](Command::Create), from a client to its guard, without public keys (CREATE_FAST).
    CreateFast,
    /// Answer to [`CreateFast`](Command::CreateFast).
    CreatedFast,
    /// A relay message under one or more onion layers.
    Relay,
    /// As [`Relay`](Command::Relay), and it may extend the circuit (RELAY_EARLY). A client may send eight per circuit,
    /// which limits the length of circuits.
    Early,
    /// Close the circuit.
    Destroy,
    /// The circuit's last cell on this channel: it moves to another one. The body is the nonce of the move.
    Leave,
    /// A circuit moves to this channel. The body is the nonce of the move.
    Join,
    /// Asks the neighbour to move the circuit, because the connection is congested.
    Congested,
    /// A controller's plans for the circuits between two neighbours ([`crate::control::predictor`]). The cell concerns
    /// the channel (circuit id 0) and has variable length.
    Plan,
}

impl Command {
    /// Whether the cell belongs to the protocol of [`crate::switching`] between neighbours.
    pub(crate) fn is_about_moves(self) -> bool {
        matches!(self, Command::Leave | Command::Join | Command::Congested)
    }

    /// Whether the cell goes to the output buffer directly, past circuit queues and their windows.
    pub(crate) fn skips_queues(self) -> bool {
        self.is_about_moves() || matches!(self, Command::Destroy | Command::Plan)
    }
}

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell<O: Onion> {
    /// Circuit id on the channel.
    pub circ: CircId,
    /// The command.
    pub command: Command,
    /// Key exchange or relay message; `Onion::empty()` in DESTROY.
    pub body: O::Body,
}

impl<O: Onion> Cell<O> {
    /// Bytes on the wire; [`CELL_BYTES`] at most.
    pub fn wire_bytes(&self) -> u32 {
        match self.command {
            Command::Plan => VARIABLE_HEADER + O::plain(&self.body).len() as u32,
            _ => CELL_BYTES,
        }
    }
}

/// A relay message in plaintext, as its two ends see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message<O: Onion> {
    /// The stream; zero for the circuit.
    pub stream: StreamId,
    /// Command and content.
    pub payload: Payload<O>,
}

/// Command and content of a relay message.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload<O: Onion> {
    /// Application bytes: their number, at most [`DATA_BYTES`], and the bytes.
    Data(u16, O::Data),
    /// Open a stream to this address (from the client).
    Begin(O::Address),
    /// The stream is open (from the exit).
    Connected,
    /// The addresses of a host name (from the exit), in wire format.
    Resolved(Box<[u8]>),
    /// The stream is over.
    End(EndReason),
    /// The stream is over: the exit policy refuses this address, which clients may remember for so many seconds. It is read
    /// as [`End`](Payload::End).
    Refused(IpAddr, u32),
    /// Acknowledges a number of cells. For a circuit, with the digest of the last of them (proposal 289).
    Sendme(Option<Digest>),
    /// Stop sending on this stream (proposal 324).
    Xoff,
    /// Send on this stream, at most at this rate in units of 1,000 bytes per second; 0 means unlimited.
    Xon(u32),
    /// This side's last message on the circuit: its streams move to another circuit.
    Leave(Nonce),
    /// The streams of the circuit with the same nonce in LEAVE move to this circuit.
    Join(Nonce),
    /// Client: makes the circuit a leg of a set ([`crate::conflux`], proposal 329).
    Link(Box<Link>),
    /// Exit: accepts the leg.
    Linked(Box<Link>),
    /// Client: acknowledges [`Linked`](Payload::Linked).
    LinkedAck,
    /// The set's next messages come on this leg. The number counts the messages on other legs since its last one.
    Switch(u32),
    /// Extend the circuit to this relay: the client's half of a key exchange.
    Extend(O::Peer, O::Body),
    /// The circuit is extended: the relay's half of the key exchange.
    Extended(O::Body),
    /// Cut the circuit behind the receiving relay.
    Truncate,
    /// The circuit is cut.
    Truncated,
    /// A malformed stream request: the relay refuses the stream.
    Misread,
    /// A message of onion services. Relays act on those to introduction and rendezvous points.
    Service(ServiceCommand, Box<[u8]>),
    /// Padding, or an unknown command: ignored (tor-spec, "Relay cells").
    Nothing,
}

impl<O: Onion> Payload<O> {
    /// Whether the message makes the receiving relay the circuit's exit, or extends the circuit.
    pub(crate) fn uses_the_end(&self) -> bool {
        matches!(self, Payload::Begin(_) | Payload::Extend(..) | Payload::Join(_) | Payload::Link(_))
    }

    /// Whether the message belongs to a stream and keeps its order across the legs of a set (proposal 329, 2.8). SENDMEs
    /// belong to one leg.
    pub fn is_of_stream(&self) -> bool {
        matches!(
            self,
            Payload::Data(..)
                | Payload::Begin(_)
                | Payload::Connected
                | Payload::Resolved(_)
                | Payload::End(_)
                | Payload::Refused(..)
                | Payload::Xoff
                | Payload::Xon(_)
                | Payload::Misread
        )
    }
}

/// Commands of onion services' messages (rend-spec-v3), with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceCommand {
    /// Service to introduction point: make this circuit an introduction circuit.
    EstablishIntro = 32,
    /// Client to rendezvous point: wait for a service with this cookie.
    EstablishRendezvous = 33,
    /// Client to introduction point: introduce the client to a service.
    Introduce1 = 34,
    /// Introduction point to service: a client's introduction.
    Introduce2 = 35,
    /// Service to rendezvous point: join this circuit with the client's.
    Rendezvous1 = 36,
    /// Rendezvous point to client: the service has joined.
    Rendezvous2 = 37,
    /// Answer to [`EstablishIntro`](ServiceCommand::EstablishIntro).
    IntroEstablished = 38,
    /// Answer to [`EstablishRendezvous`](ServiceCommand::EstablishRendezvous).
    RendezvousEstablished = 39,
    /// Answer to [`Introduce1`](ServiceCommand::Introduce1).
    IntroduceAck = 40,
}

impl ServiceCommand {
    /// The command of a number.
    pub(crate) fn read(number: u8) -> Option<ServiceCommand> {
        use ServiceCommand as Is;
        let all = [
            Is::EstablishIntro,
            Is::EstablishRendezvous,
            Is::Introduce1,
            Is::Introduce2,
            Is::Rendezvous1,
            Is::Rendezvous2,
            Is::IntroEstablished,
            Is::RendezvousEstablished,
            Is::IntroduceAck,
        ];
        all.into_iter().find(|command| *command as u8 == number)
    }
}

/// The digest or tag by which a SENDME names a cell (proposal 289).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    /// The layer's running SHA-1 digest after the cell.
    Sha1([u8; 20]),
    /// The cell's tag under Counter Galois Onion.
    Tag([u8; 16]),
}

impl Digest {
    /// The bytes on the wire.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Digest::Sha1(bytes) => bytes,
            Digest::Tag(bytes) => bytes,
        }
    }

    /// The digest of these bytes; `None` if no digest has their number.
    pub(crate) fn read(bytes: &[u8]) -> Option<Digest> {
        let sha1 = bytes.try_into().map(Digest::Sha1);
        sha1.or_else(|_| bytes.try_into().map(Digest::Tag)).ok()
    }
}

/// What the two ends of a circuit have agreed on in their key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Whether they use congestion control; `None`: key exchanges do not negotiate it, and the configuration decides.
    pub congestion_control: Option<bool>,
    /// Whether the layer between them is Counter Galois Onion.
    pub cgo: bool,
    /// Application bytes that fit into a DATA message: [`DATA_BYTES`] at most.
    pub data_bytes: u16,
    /// Bytes that fit into a message without a stream.
    pub circuit_bytes: u16,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms { congestion_control: None, cgo: false, data_bytes: DATA_BYTES, circuit_bytes: DATA_BYTES }
    }
}

/// Why a stream ended (tor-spec, "Closing streams").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndReason(pub u8);

impl EndReason {
    /// Any reason without a code of its own.
    pub const MISC: EndReason = EndReason(1);
    /// The name could not be resolved.
    pub const RESOLVE_FAILED: EndReason = EndReason(2);
    /// The far side refused the connection.
    pub const CONNECT_REFUSED: EndReason = EndReason(3);
    /// The exit's policy forbids the address.
    pub const EXIT_POLICY: EndReason = EndReason(4);
    /// The circuit ended.
    pub const DESTROY: EndReason = EndReason(5);
    /// The connection was closed cleanly.
    pub const DONE: EndReason = EndReason(6);
    /// The connection timed out.
    pub const TIMEOUT: EndReason = EndReason(7);
    /// The address is unreachable.
    pub const NO_ROUTE: EndReason = EndReason(8);
    /// The relay is overloaded.
    pub const RESOURCE_LIMIT: EndReason = EndReason(11);
    /// The connection was reset.
    pub const RESET: EndReason = EndReason(12);
    /// The peer violated the protocol.
    pub const PROTOCOL: EndReason = EndReason(13);
    /// The relay is not a directory.
    pub const NOT_DIRECTORY: EndReason = EndReason(14);
}

/// Why a circuit ended (tor-spec, "Tearing down circuits"). Clients always send `NONE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestroyReason(pub u8);

impl DestroyReason {
    /// Unspecified.
    pub(crate) const NONE: DestroyReason = DestroyReason(0);
    /// The neighbour violated the protocol.
    pub(crate) const PROTOCOL: DestroyReason = DestroyReason(1);
    /// The relay is shutting down.
    pub(crate) const HIBERNATING: DestroyReason = DestroyReason(4);
    /// The relay is overloaded.
    pub(crate) const RESOURCE_LIMIT: DestroyReason = DestroyReason(5);
    /// The next relay cannot be reached or may not follow.
    pub(crate) const CONNECT_FAILED: DestroyReason = DestroyReason(6);
    /// The circuit's connection closed.
    pub(crate) const CHANNEL_CLOSED: DestroyReason = DestroyReason(8);
    /// The other neighbour closed the circuit.
    pub(crate) const DESTROYED: DestroyReason = DestroyReason(11);
    /// The next relay did not answer in time.
    pub(crate) const TIMEOUT: DestroyReason = DestroyReason(10);
}

/// One implementation of onion routing: key exchange and layers.
pub trait Onion: Sized + Clone + Debug + PartialEq {
    /// The body of a cell on the wire.
    type Body: Clone + Debug + PartialEq;
    /// The application bytes of one DATA message.
    type Data: Clone + Debug + PartialEq;
    /// The target of a stream.
    type Address: Clone + Debug + PartialEq;
    /// How an EXTEND message names the next relay.
    type Peer: Clone + Debug + PartialEq;
    /// A relay's state of one circuit. The default stands for a state that another owner has taken.
    type RelayHop: Default;
    /// A client's state of one hop of a circuit.
    type ClientHop;
    /// A client's state of an unfinished key exchange.
    type Handshake;

    /// Whether neighbouring cells of a circuit are often equal, so that queues compare them.
    const REPEATS: bool;

    /// An empty body.
    fn empty() -> Self::Body;
    /// The body of a DESTROY cell.
    fn destroy(_reason: DestroyReason) -> Self::Body {
        Self::empty()
    }

    /// A body without layers, for the neighbour, of at most [`NEIGHBOUR_BYTES`].
    fn from_plain(bytes: Vec<u8>) -> Self::Body;
    /// The bytes of a body without layers; empty for other bodies.
    fn plain(body: &Self::Body) -> &[u8];
    /// Frees a body without layers and returns its memory for another.
    fn recycle(body: Self::Body) -> Vec<u8>;

    /// A body without layers with `notice` if cells are simulated. Real cells carry no timestamps.
    fn with_notice(notice: CongestionNotice) -> Self::Body;
    /// The notice in a body without layers.
    fn notice(body: &Self::Body) -> Option<CongestionNotice>;

    /// Whether a stream to this target only looks a name up (RESOLVE).
    fn is_lookup(_: &Self::Address) -> bool {
        false
    }

    /// Whether a stream to this target asks the relay's directory (BEGIN_DIR).
    fn is_directory(_: &Self::Address) -> bool {
        false
    }

    /// Client: how EXTEND messages name a relay.
    fn peer(&self, relay: RelayId) -> Self::Peer;
    /// Relay: the relay of that name; `None` if circuits may not be extended to it.
    fn relay(&mut self, peer: &Self::Peer) -> Option<RelayId>;

    /// Client: 32 secret bytes. A simulation takes them from `draws`.
    fn secret(&mut self, draws: &mut Random) -> [u8; 32];
    /// Client: begins a key exchange with a relay.
    fn start(&mut self, relay: RelayId) -> (Self::Handshake, Self::Body);
    /// Relay: answers a key exchange, `fast` (CREATE_FAST) or not; `None` if it is malformed.
    fn accept(&mut self, create: &Self::Body, fast: bool) -> Option<(Self::RelayHop, Self::Body)>;
    /// Client: finishes a key exchange; `None` if the answer is invalid.
    fn finish(&mut self, handshake: Self::Handshake, created: &Self::Body) -> Option<Self::ClientHop>;

    /// Relay: frees memory if no cell has passed since the last call.
    fn rest(_: &mut Self::RelayHop) {}
    /// Relay: removes the layer of a cell from the client, which is RELAY_EARLY or not. Returns the message if it is for
    /// this hop, and `None` if the cell goes on.
    ///
    /// # Errors
    /// If the message is for this hop and malformed.
    fn peel(
        hop: &mut Self::RelayHop,
        early: bool,
        body: &mut Self::Body,
    ) -> Result<Option<Message<Self>>, Malformed>;
    /// Relay: adds a layer towards the client.
    fn wrap(hop: &mut Self::RelayHop, body: &mut Self::Body);
    /// Relay: encodes a message to the client.
    fn originate(hop: &mut Self::RelayHop, message: Message<Self>) -> Self::Body;

    /// Relay: the terms of the circuit.
    fn terms(hop: &Self::RelayHop) -> Terms;
    /// Relay: bytes that only it and the client of the circuit know; `None` where circuits have no keys.
    fn binding(hop: &Self::RelayHop) -> Option<[u8; 20]>;
    /// Relay: the digest of the last message from the client to this hop, and of the last to the client.
    fn digests(hop: &Self::RelayHop) -> Option<[Digest; 2]>;
    /// Client: the terms of the circuit with this last hop.
    fn client_terms(hop: &Self::ClientHop) -> Terms;
    /// Client: the digest of the last message from the hop, and of the last to it.
    fn client_digests(hop: &Self::ClientHop) -> Option<[Digest; 2]>;

    /// Client: encodes a message to hop `to` (0 = guard) for a RELAY_EARLY cell or a RELAY cell.
    fn seal(hops: &mut [Self::ClientHop], to: usize, early: bool, message: Message<Self>) -> Self::Body;
    /// Client: removes all layers. Returns the sending hop and its message.
    fn open(hops: &mut [Self::ClientHop], body: Self::Body) -> Result<(usize, Message<Self>), Malformed>;
}

/// A body that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;
