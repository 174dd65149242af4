//! Why a relay closed a circuit.

use crate::cell::DestroyReason;
use crate::ids::Side;

macro_rules! endings {
    ($($(#[$doc:meta])* $ending:ident = $name:literal, $destroy:ident, $about:literal;)+) => {
        /// The reason for which a relay closed a circuit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Ending {
            $(#[doc = $about] $ending,)+
        }

        impl Ending {
            /// All reasons.
            pub const ALL: &'static [Ending] = &[$(Ending::$ending,)+];

            /// Name of the counter.
            pub fn counter(self) -> &'static str {
                match self { $(Ending::$ending => concat!("closed_", $name),)+ }
            }

            /// Name of the counter for Prometheus.
            pub fn metric(self) -> &'static str {
                match self { $(Ending::$ending => concat!("closed_", $name, "_total"),)+ }
            }

            /// The reason in words.
            pub fn about(self) -> &'static str {
                match self { $(Ending::$ending => $about,)+ }
            }

            /// The reason that the neighbours are told.
            pub(crate) fn destroy(self) -> DestroyReason {
                match self { $(Ending::$ending => DestroyReason::$destroy,)+ }
            }
        }
    };
}

endings! {
    ClientSide = "by_client_side", DESTROYED, "The neighbour towards the client closed it";
    ExitSide = "by_exit_side", DESTROYED, "The neighbour towards the exit closed it";
    ClientConnection = "connection_to_client_side", CHANNEL_CLOSED, "The connection towards the client ended";
    ExitConnection = "connection_to_exit_side", CHANNEL_CLOSED, "The connection towards the exit ended";
    LinkedCircuit = "linked_circuit", DESTROYED, "A circuit that it was linked with ended (Conflux)";
    QueueFull = "queue_full", RESOURCE_LIMIT, "Its queue was full";
    Memory = "memory", RESOURCE_LIMIT, "Memory was short, and its data had waited longest";
    Idle = "idle", RESOURCE_LIMIT, "It was the idlest of the network with the most circuits, and a newer one needed its place";
    Handshakes = "handshakes", RESOURCE_LIMIT, "Its address used up its handshakes";
    Streams = "streams", RESOURCE_LIMIT, "It opened more streams than the consensus allows";
    ExtendTimedOut = "extend_timed_out", TIMEOUT, "The next relay did not answer in time";
    ExtendRefused = "extend_refused", CONNECT_FAILED, "It may not be extended to that relay";
    EarlyCells = "early_cells", PROTOCOL, "Too many RELAY_EARLY cells";
    Unreadable = "unreadable", PROTOCOL, "A relay cell could not be read";
    BeyondEnd = "beyond_end", PROTOCOL, "A cell for a relay beyond the circuit's end";
    UnexpectedCell = "unexpected_cell", PROTOCOL, "A cell that has no place on this side of a circuit";
    UnexpectedMessage = "unexpected_message", PROTOCOL, "A message that has no place here";
    BeyondWindow = "beyond_window", PROTOCOL, "Data beyond a window";
    WrongSendme = "wrong_sendme", PROTOCOL, "A SENDME that was early or had a wrong digest";
    WrongMove = "wrong_move", PROTOCOL, "A violation of the rules of moving to another connection or circuit";
    JoinedCircuit = "joined_circuit", DESTROYED, "The circuit that it was joined with at this rendezvous point ended";
    Replaced = "replaced", DESTROYED, "The onion service built another circuit to this introduction point";
    Displaced = "displaced", RESOURCE_LIMIT, "It lost its place as introduction or rendezvous point to a newer circuit";
    WrongRendezvous = "wrong_rendezvous", PROTOCOL, "A violation of the rules of introduction and rendezvous points";
    WrongLink = "wrong_link", PROTOCOL, "A violation of the rules of linked circuits (Conflux)";
}

impl Ending {
    /// The neighbour on this side closed the circuit.
    pub(crate) fn by(side: Side) -> Ending {
        if side == Side::Prev { Ending::ClientSide } else { Ending::ExitSide }
    }

    /// The connection on this side ended.
    pub(crate) fn without(side: Side) -> Ending {
        if side == Side::Prev { Ending::ClientConnection } else { Ending::ExitConnection }
    }

    /// Whether a neighbour closed the circuit in the usual way, and the relay only passed it on.
    pub fn is_passed_on(self) -> bool {
        matches!(self, Ending::ClientSide | Ending::ExitSide | Ending::LinkedCircuit | Ending::JoinedCircuit)
    }
}

/// Number of circuits that a relay closed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings([u64; Ending::ALL.len()]);

impl Endings {
    /// Counts one more.
    pub(crate) fn add(&mut self, ending: Ending) {
        self.0[ending as usize] += 1;
    }

    /// Each reason and its number.
    pub fn iter(&self) -> impl Iterator<Item = (Ending, u64)> + '_ {
        Ending::ALL.iter().map(|ending| (*ending, self.0[*ending as usize]))
    }
}

impl std::ops::AddAssign for Endings {
    fn add_assign(&mut self, other: Endings) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, number)| *sum += number);
    }
}
