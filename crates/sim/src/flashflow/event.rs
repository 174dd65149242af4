//! What happens in a run.

use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::Peer;

use super::wires::TimerEvent;
use crate::underlay::NetEvent;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Net(NetEvent),
    Timer(TimerEvent),
    /// The measurements begin: the coordinator connects to everyone.
    Begin,
    Connected(usize, Peer),
    /// To or from the coordinator of a session.
    Said(usize, Peer, bool, Box<[u8; CELL]>),
    /// The peer closed its connection to the coordinator.
    Lost(usize, Peer),
    /// A member learns that the relay closed a circuit.
    CircuitGone(usize, usize),
    Wake(usize, Who),
    /// Exits of a session send.
    Background(usize),
    /// A second is over.
    Second,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Coordinator,
    Relay,
    Member(usize),
    Load(usize),
}

impl From<NetEvent> for Event {
    fn from(event: NetEvent) -> Event {
        Event::Net(event)
    }
}

impl From<TimerEvent> for Event {
    fn from(event: TimerEvent) -> Event {
        Event::Timer(event)
    }
}
