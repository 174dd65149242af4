//! A relay's circuits with their legs: the plant that its controller measures and steers.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use slab::Slab;
use tidegate_control::units::Time;

use super::roles::Role;
use crate::cell::{Digest, Message};
use crate::conflux::Linked;
use crate::conflux::split::{Capacity, Offer};
use crate::control::{Allowance, Plant, Route, View};
use crate::defence::Quota;
use crate::edge::{Edge, Wakes};
use crate::ids::{CircId, CircuitKey, LegId, Nonce, Side, StreamId, StreamKey};
use crate::links::{ChannelId, Links};
use crate::node::Output;
use crate::onion::Onion;

pub(super) struct Table<O: Onion> {
    pub links: Links<O>,
    pub circuits: Slab<Circuit<O>>,
    pub outputs: VecDeque<Output<O>>,
    /// Exit: sets of linked circuits, by nonce: the first circuit of each.
    pub sets: BTreeMap<[u8; 32], CircuitKey>,
    /// Exit: streams that clients' rates have stopped.
    pub wakes: Wakes,
}

pub(super) struct Circuit<O: Onion> {
    /// The address that the circuit counts for in limits.
    pub owner: Option<IpAddr>,
    /// When its last cell came.
    pub used: Time,
    pub prev: LegId,
    pub next: Option<LegId>,
    /// Since when the circuit waits for the next relay's CREATED.
    pub extending: Option<Time>,
    /// Number of RELAY_EARLY cells from the client.
    pub early: u8,
    pub hop: O::RelayHop,
    /// Present once a stream was opened here.
    pub edge: Option<Box<Edge>>,
    /// Exit: progress of the client's switch to another circuit.
    pub switch: Switch<O>,
    /// Exit: whether the circuit is a leg of a conflux set.
    pub linked: Linked<Message<O>>,
    /// Its part in an onion service's connection.
    pub role: Role,
    /// The client has introduced itself to a service.
    pub introduced: bool,
    /// Streams that it may still open, once the consensus limits them.
    pub opened: Option<Quota>,
}

/// Memory of a held cell in bytes: its body and its bookkeeping.
pub(super) const CELL_COST: u64 = 640;

/// Progress of a client's switch from one circuit to another at the same exit.
pub(super) enum Switch<O: Onion> {
    /// No switch is in progress.
    None,
    /// The client has left this circuit.
    Left(Nonce),
    /// The client has joined this circuit, at this time. Its messages wait until it has left the other circuit.
    Joined(Nonce, Time, Vec<(Message<O>, Option<Digest>)>),
}

impl<O: Onion> Table<O> {
    pub(crate) fn contains(&self, key: CircuitKey) -> bool {
        self.circuits.contains(key.0 as usize)
    }

    pub(crate) fn circuit(&mut self, key: CircuitKey) -> &mut Circuit<O> {
        &mut self.circuits[key.0 as usize]
    }

    /// The first circuit of the set, which has the streams; the circuit itself if it is not linked.
    pub(crate) fn first(&self, key: CircuitKey) -> CircuitKey {
        match self.circuits.get(key.0 as usize) {
            Some(Circuit { linked: Linked::With(first), .. }) => *first,
            _ => key,
        }
    }

    /// Frees memory of the idle circuits from a channel.
    pub(crate) fn rest(&mut self, channel: ChannelId) {
        for key in self.links.circuits_from(channel) {
            if let Some(circuit) = self.circuits.get_mut(key.0 as usize) {
                O::rest(&mut circuit.hop);
            }
        }
    }

    /// Cells that may be packaged for one circuit.
    fn room_of(&self, key: CircuitKey) -> u32 {
        let circuit = &self.circuits[key.0 as usize];
        circuit.edge.as_ref().map_or(0, |edge| edge.room(self.links.room(circuit.prev)))
    }

    /// The current capacity of a leg.
    fn capacity(&self, leg: CircuitKey) -> Capacity {
        let circuit = &self.circuits[leg.0 as usize];
        circuit.edge.as_ref().expect("legs have one").capacity(self.links.room(circuit.prev))
    }

    /// The leg for the next DATA cells of a set, and how many; `None` if they must wait.
    pub(crate) fn choose(&self, first: CircuitKey) -> Option<(Offer, u32)> {
        match &self.circuits[first.0 as usize].linked {
            Linked::First(set) => set.choose(|leg| self.capacity(leg)),
            _ => None,
        }
    }

    /// The edge that has the streams of a circuit.
    fn streams(&self, circuit: CircuitKey) -> Option<&Edge> {
        self.circuits[self.first(circuit).0 as usize].edge.as_deref()
    }

    /// The leg for messages that windows do not limit.
    pub(crate) fn choose_any(&self, key: CircuitKey) -> CircuitKey {
        match &self.circuits[key.0 as usize].linked {
            Linked::First(set) => set.choose_any(|leg| self.capacity(leg)).unwrap_or(key),
            _ => key,
        }
    }

    /// Tells the driver which streams may package again.
    pub(crate) fn package_again(
        &mut self,
        key: CircuitKey,
        which: fn(&mut Edge, u32) -> Vec<(StreamId, u32)>,
    ) {
        let key = self.first(key);
        let Some(cells) = self.room(key) else { return };
        let Some(edge) = self.circuit(key).edge.as_deref_mut() else { return };
        for (stream, cells) in which(edge, cells) {
            self.outputs.push_back(Output::Package(StreamKey { circuit: key, stream }, cells));
        }
    }

    /// Cells that a circuit may package, with those that are linked with it.
    fn room(&self, first: CircuitKey) -> Option<u32> {
        let circuit = self.circuits.get(first.0 as usize)?;
        Some(match &circuit.linked {
            Linked::First(set) => set.room(|leg| self.capacity(leg)),
            _ => self.room_of(first),
        })
    }

    /// Lets a stream go on that the client's rate has stopped until now.
    pub(crate) fn wake(&mut self, now: Time, stream: StreamKey) {
        let Some(room) = self.room(stream.circuit) else { return };
        let circuit = &mut self.circuits[stream.circuit.0 as usize];
        let Some(edge) = circuit.edge.as_deref_mut() else { return };
        // Without room, the circuit resumes it later.
        if edge.wake(now, stream, &mut self.wakes) && room > 0 {
            self.outputs.push_back(Output::Package(stream, room));
        }
    }

    /// Notes until when the client's rate stops a stream.
    pub(crate) fn settle(&mut self, stream: StreamKey) {
        let circuit = self.circuits.get_mut(stream.circuit.0 as usize);
        if let Some(edge) = circuit.and_then(|circuit| circuit.edge.as_deref_mut()) {
            edge.settle(stream, &mut self.wakes);
        }
    }

    fn leg(&self, circuit: CircuitKey, side: Side) -> Option<LegId> {
        let circuit = &self.circuits[circuit.0 as usize];
        match side {
            Side::Prev => Some(circuit.prev),
            Side::Next => circuit.next,
        }
    }
}

impl<O: Onion> Plant for Table<O> {
    fn circuits(&self, into: &mut Vec<CircuitKey>) {
        into.clear();
        into.extend(self.circuits.iter().map(|(key, _)| CircuitKey(key as u32)));
    }

    fn view(&self, circuit: CircuitKey) -> View {
        let circuit = &self.circuits[circuit.0 as usize];
        let tells = circuit.next.map(|next| self.links.is_to_relay(next));
        View {
            waiting: self.links.backlog(circuit.prev),
            // A stock successor sends no plans, so the circuit counts as entering here, as from a server.
            enters: circuit.edge.is_some() || tells == Some(false),
            passes: tells == Some(true),
            to_client: !self.links.is_to_relay(circuit.prev),
        }
    }

    fn demand(&mut self, circuit: CircuitKey) -> f64 {
        let backlogged = self.streams(circuit).is_some_and(Edge::is_backlogged);
        let circuit = &mut self.circuits[circuit.0 as usize];
        match (circuit.edge.as_deref_mut(), circuit.next) {
            (Some(edge), _) => edge.demand(backlogged),
            // Twice what waits here, so that the rate can grow.
            (None, Some(_)) => 2.0 * self.links.backlog(circuit.prev) + 2.0,
            (None, None) => 0.0,
        }
    }

    fn announced(&self, circuit: CircuitKey) -> f64 {
        self.streams(circuit).map_or(0.0, Edge::announced)
    }

    fn allow(&mut self, now: Time, circuit: CircuitKey, allowance: &Allowance) {
        let Allowance { send, share, package, planned, carry } = *allowance;
        let begun = carry || self.streams(circuit).is_some_and(Edge::is_starved);
        let circuit = &mut self.circuits[circuit.0 as usize];
        self.links.allow(now, circuit.prev, send, share, carry);
        if let Some(edge) = circuit.edge.as_deref_mut() {
            edge.allow(package, planned, begun);
        }
    }

    fn release(&mut self, now: Time) {
        self.links.release(now);
    }

    fn resume(&mut self, circuit: CircuitKey) {
        self.package_again(circuit, Edge::resumable);
    }

    fn has_neighbour(&self, circuit: CircuitKey, side: Side) -> bool {
        self.leg(circuit, side).is_some_and(|leg| self.links.is_to_relay(leg) && !self.links.is_moving(leg))
    }

    fn advertise(
        &mut self,
        now: Time,
        (circuit, side): (CircuitKey, Side),
        most: usize,
        route: Route,
        write: &mut dyn FnMut(CircId, &mut Vec<u8>),
    ) -> u64 {
        self.leg(circuit, side).map_or(0, |leg| self.links.advertise(now, leg, most, route, write))
    }

    fn send(&mut self, now: Time, route: Route) -> u64 {
        self.links.send_told(now, route)
    }
}
