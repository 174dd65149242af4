//! Cells and the relay messages inside them (tor-spec, "Cell packet format" and "Relay cells").

use std::fmt::Debug;

use tidegate_control::random::Random;

use crate::conflux::Link;
pub use crate::ids::{CircId, Nonce, RelayId, StreamId};
use crate::switching::CongestionNotice;

/// A cell on the wire: 4 bytes of circuit id, 1 of command, 509 of body (link protocol 4 and later).
pub const CELL_BYTES: u32 = 514;
/// Circuit id, command and length in front of a cell of variable length.
const VARIABLE_HEADER: u32 = 7;
/// Bytes for a neighbour in one cell at most: with the header of a variable-length cell it is as long as an ordinary
/// one.
pub const NEIGHBOUR_BYTES: usize = (CELL_BYTES - VARIABLE_HEADER) as usize;
/// Application bytes that fit into one DATA message (body less the 11-byte relay header).
pub const DATA_BYTES: u16 = 498;

/// What a cell asks of the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begin a circuit: the body holds the first half of a key exchange.
    Create,
    /// The second half.
    Created,
    /// As [`Create`](Command::Create), from a client to its guard, without public keys (CREATE_FAST).
    CreateFast,
    /// Its second half.
    CreatedFast,
    /// A relay message under one or more onion layers.
    Relay,
    /// As [`Relay`](Command::Relay), and it may extend the circuit (RELAY_EARLY): a client has few of them,
    /// so that no circuit gets long.
    Early,
    /// End the circuit.
    Destroy,
    /// The circuit goes on elsewhere: this is its last cell here. The body says a nonce, as a JOIN's does.
    Leave,
    /// The circuit goes on here.
    Join,
    /// Please move the circuit: the connection is congested.
    Congested,
    /// What a relay plans for circuits that pass between the two ([`crate::control::predictor`]). It is about the
    /// channel (circuit id 0), and as long as what it says.
    Plan,
}

/// One fixed-size cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell<O: Onion> {
    /// Which circuit of the channel.
    pub circ: CircId,
    /// What to do with it.
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

/// A relay message in the clear, as its two ends see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message<O: Onion> {
    /// Which stream; zero for the circuit.
    pub stream: StreamId,
    /// What it says.
    pub payload: Payload<O>,
}

/// What a relay message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload<O: Onion> {
    /// Application bytes: how many (at most [`DATA_BYTES`]), and which.
    Data(u16, O::Data),
    /// Open a stream to this address (from the client).
    Begin(O::Address),
    /// The stream is open (from the exit).
    Connected,
    /// What a name stands for (from the exit), as it goes over the wire.
    Resolved(Box<[u8]>),
    /// The stream is over.
    End(EndReason),
    /// Another window's worth of cells arrived. For a circuit: the digest of the last of them, which proves it.
    Sendme(Option<Digest>),
    /// Send nothing on this stream (proposal 324).
    Xoff,
    /// Send again. Tor adds a rate that the stream is drained at; without one, as here, there is no limit.
    Xon,
    /// The circuit's streams go on over another circuit: this is the last message of this side here.
    Leave(Nonce),
    /// The streams of the circuit that was left with the same nonce go on here.
    Join(Nonce),
    /// Client: the circuit is to be a leg of a set ([`crate::conflux`]).
    Link(Box<Link>),
    /// Exit: it is one.
    Linked(Box<Link>),
    /// Client: it heard so.
    LinkedAck,
    /// The set's next messages come on this leg; so many went over others since the last.
    Switch(u32),
    /// Extend the circuit to this relay with the first half of a key exchange.
    Extend(O::Peer, O::Body),
    /// The circuit was extended: the second half.
    Extended(O::Body),
    /// Cut the circuit behind the relay that hears this.
    Truncate,
    /// It was cut.
    Truncated,
    /// A request for a stream that cannot be read: the stream is refused.
    Misread,
    /// Padding, or something of a later protocol: to be ignored.
    Nothing,
}

impl<O: Onion> Payload<O> {
    /// Whether it is about a stream, and keeps its order with others of a set of circuits, whichever leg it goes over
    /// (proposal 329, 2.8). SENDMEs are each circuit's own.
    pub fn is_of_stream(&self) -> bool {
        matches!(
            self,
            Payload::Data(..)
                | Payload::Begin(_)
                | Payload::Connected
                | Payload::Resolved(_)
                | Payload::End(_)
                | Payload::Xoff
                | Payload::Xon
                | Payload::Misread
        )
    }
}

/// A layer's running digest after a cell (proposal 289).
pub type Digest = [u8; 20];

/// Why a stream ended (tor-spec, "Closing streams").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndReason(pub u8);

impl EndReason {
    /// Nothing of what follows.
    pub const MISC: EndReason = EndReason(1);
    /// The name stands for no address.
    pub const RESOLVE_FAILED: EndReason = EndReason(2);
    /// The far side refused the connection.
    pub const CONNECT_REFUSED: EndReason = EndReason(3);
    /// The exit's policy forbids the address.
    pub const EXIT_POLICY: EndReason = EndReason(4);
    /// The circuit ended.
    pub const DESTROY: EndReason = EndReason(5);
    /// The connection was closed in order.
    pub const DONE: EndReason = EndReason(6);
    /// The connection timed out.
    pub const TIMEOUT: EndReason = EndReason(7);
    /// There is no way to the address.
    pub const NO_ROUTE: EndReason = EndReason(8);
    /// The relay has too much to do.
    pub const RESOURCE_LIMIT: EndReason = EndReason(11);
    /// The connection broke.
    pub const RESET: EndReason = EndReason(12);
    /// The peer broke the rules.
    pub const PROTOCOL: EndReason = EndReason(13);
    /// The relay hands out no directory.
    pub const NOT_DIRECTORY: EndReason = EndReason(14);
}

/// Why a circuit ended (tor-spec, "Tearing down circuits"). Clients do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestroyReason(pub u8);

impl DestroyReason {
    /// None is said.
    pub const NONE: DestroyReason = DestroyReason(0);
    /// The neighbour broke the rules.
    pub const PROTOCOL: DestroyReason = DestroyReason(1);
    /// The relay is about to end.
    pub const HIBERNATING: DestroyReason = DestroyReason(4);
    /// The relay has too much to do.
    pub const RESOURCE_LIMIT: DestroyReason = DestroyReason(5);
    /// The next relay cannot be reached, or is one that it must not be.
    pub const CONNECT_FAILED: DestroyReason = DestroyReason(6);
    /// The connection that carried the circuit is gone.
    pub const CHANNEL_CLOSED: DestroyReason = DestroyReason(8);
    /// The other neighbour ended it.
    pub const DESTROYED: DestroyReason = DestroyReason(9);
    /// The next relay did not answer in time.
    pub const TIMEOUT: DestroyReason = DestroyReason(10);
}

/// Key exchange and layers of one implementation of onion routing.
pub trait Onion: Sized + Clone + Debug + PartialEq {
    /// The body of a cell on the wire.
    type Body: Clone + Debug + PartialEq;
    /// The application bytes of one DATA message.
    type Data: Clone + Debug + PartialEq;
    /// Where an exit connects a stream to.
    type Address: Clone + Debug + PartialEq;
    /// How a client names the relay that a circuit is to be extended to.
    type Peer: Clone + Debug + PartialEq;
    /// What a relay keeps for one circuit.
    type RelayHop;
    /// What a client keeps for one hop of a circuit.
    type ClientHop;
    /// What a client keeps while a key exchange is under way.
    type Handshake;

    /// The body of a cell that says nothing.
    fn empty() -> Self::Body;
    /// The body of a DESTROY cell.
    fn destroy(_reason: DestroyReason) -> Self::Body {
        Self::empty()
    }

    /// A body without layers, for the neighbour: at most 507 bytes.
    fn from_plain(bytes: Vec<u8>) -> Self::Body;
    /// What a body without layers says; empty if it says nothing.
    fn plain(body: &Self::Body) -> &[u8];
    /// The memory of such a body, for the next one.
    fn recycle(body: Self::Body) -> Vec<u8>;

    /// A body without layers that says `notice` if it is simulated; real ones say nothing of clocks.
    fn with_notice(notice: CongestionNotice) -> Self::Body;
    /// The notice that a body without layers says.
    fn notice(body: &Self::Body) -> Option<CongestionNotice>;

    /// Client: a relay's name for others.
    fn peer(&self, relay: RelayId) -> Self::Peer;
    /// Relay: the relay of that name; `None` if it is none that a circuit may go to from here.
    fn relay(&mut self, peer: &Self::Peer) -> Option<RelayId>;

    /// Client: bytes that nobody else knows; a simulation draws them.
    fn secret(&mut self, draws: &mut Random) -> [u8; 32];
    /// Client: begins a key exchange with a relay.
    fn start(&mut self, relay: RelayId) -> (Self::Handshake, Self::Body);
    /// Relay: answers one, `fast` or not; `None` if it is malformed.
    fn accept(&mut self, create: &Self::Body, fast: bool) -> Option<(Self::RelayHop, Self::Body)>;
    /// Client: ends one; `None` if the answer does not check.
    fn finish(&mut self, handshake: Self::Handshake, created: &Self::Body) -> Option<Self::ClientHop>;

    /// Relay: gives back what memory it can if no cell has come by since the last call.
    fn rest(_: &mut Self::RelayHop) {}
    /// Relay: takes off a layer from the client; the message if it is for this hop, `Err` if it was for
    /// this hop and malformed, `Ok(None)` if it goes on.
    fn peel(hop: &mut Self::RelayHop, body: &mut Self::Body) -> Result<Option<Message<Self>>, Malformed>;
    /// Relay: adds a layer towards the client.
    fn wrap(hop: &mut Self::RelayHop, body: &mut Self::Body);
    /// Relay: says something to the client.
    fn originate(hop: &mut Self::RelayHop, message: Message<Self>) -> Self::Body;

    /// Relay: whether the client asked for congestion control in the key exchange; `None` if key exchanges do
    /// not say, and circuits are controlled as nodes are configured.
    fn asks_congestion_control(hop: &Self::RelayHop) -> Option<bool>;
    /// Relay: the digest of the last message from the client to this hop, and of the last to the client.
    fn digests(hop: &Self::RelayHop) -> Option<[Digest; 2]>;
    /// Client: as [`asks_congestion_control`](Onion::asks_congestion_control).
    fn has_congestion_control(hop: &Self::ClientHop) -> Option<bool>;
    /// Client: the digest of the last message from the hop, and of the last to it.
    fn client_digests(hop: &Self::ClientHop) -> Option<[Digest; 2]>;

    /// Client: says something to hop `to` (0 = guard).
    fn seal(hops: &mut [Self::ClientHop], to: usize, message: Message<Self>) -> Self::Body;
    /// Client: takes off all layers; which hop spoke, and what it said.
    fn open(hops: &mut [Self::ClientHop], body: Self::Body) -> Result<(usize, Message<Self>), Malformed>;
}

/// A body that does not say anything a machine understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;
