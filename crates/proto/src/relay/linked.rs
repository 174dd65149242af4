//! Exit: linked circuits, over which a client's streams go together ([`crate::conflux`], proposal 329).

use std::collections::BTreeSet;

use tidegate_control::units::Time;

use super::table::{Switch, Table};
use crate::cell::{Command, Message, Payload, StreamId};
use crate::conflux::{Link, Linked, Refused, Set, Wish};
use crate::edge::Edge;
use crate::ids::{CircuitKey, StreamKey};
use crate::node::Source;
use crate::onion::Onion;

/// Result of taking a circuit out of its set.
pub(super) struct Unlinked {
    /// The circuit to remove.
    pub circuit: CircuitKey,
    /// Two circuits that have swapped their paths towards the client.
    pub exchanged: Option<(CircuitKey, CircuitKey)>,
    /// Bytes that the set no longer holds.
    pub freed: u64,
    /// Other circuits that end.
    pub ends: Vec<CircuitKey>,
}

impl<O: Onion> Table<O> {
    /// Makes a circuit a leg of a set. Returns our answer, or the circuits that end because of a violation.
    ///
    /// The circuit must end here, never had a stream, and have congestion control (proposal 329).
    pub(crate) fn link(
        &mut self,
        now: Time,
        key: CircuitKey,
        edge: Edge,
        theirs: &Link,
    ) -> Result<Link, Vec<CircuitKey>> {
        let circuit = self.circuit(key);
        let fresh = circuit.next.is_none()
            && circuit.edge.is_none()
            && matches!((&circuit.switch, &circuit.linked), (Switch::None, Linked::No));
        if !fresh || !edge.has_congestion_control() {
            return Err(vec![key]);
        }
        let first = *self.sets.entry(theirs.nonce).or_insert(key);
        if first == key {
            let split = self.links.config().split(&theirs.nonce);
            let set = Box::new(Set::new(theirs.nonce, split));
            self.circuit(key).linked = Linked::First(set);
        }
        let set = self.set(first).expect("it is listed");
        // As tor's exits do: clients send little.
        let ours = set.link(Wish::MinLatency);
        match set.add(now, key, theirs.sent) {
            Ok(()) => set.follow(theirs.wish),
            Err(Refused::TooMany) => return Err(vec![key]),
            Err(Refused::Lost) => return Err(vec![key, first]),
        }
        let circuit = self.circuit(key);
        circuit.edge = Some(Box::new(edge));
        if first != key {
            circuit.linked = Linked::With(first);
        }
        Ok(ours)
    }

    /// The set with this first circuit.
    pub(crate) fn set(&mut self, first: CircuitKey) -> Option<&mut Set<Message<O>>> {
        match &mut self.circuits.get_mut(first.0 as usize)?.linked {
            Linked::First(set) => Some(set),
            _ => None,
        }
    }

    /// Notes a valid circuit SENDME of a leg.
    pub(crate) fn leg_acknowledged(&mut self, now: Time, key: CircuitKey) {
        let Some(edge) = &self.circuit(key).edge else { return };
        let (cells, round_trip) = (edge.sendme_increment(), edge.round_trip());
        let first = self.first(key);
        if let Some(set) = self.set(first) {
            set.acknowledged(now, key, cells, round_trip);
        }
    }

    /// Chooses the leg for a stream's message. The number is due in a SWITCH on the leg before the message.
    pub(crate) fn way(&mut self, key: CircuitKey) -> (CircuitKey, Option<u32>) {
        let leg = self.choose_any(key);
        match self.set(key) {
            Some(set) => (leg, set.send(leg)),
            None => (key, None),
        }
    }

    /// Packages up to `cells` cells of a stream over the legs that have room.
    pub(crate) fn package_over_legs(
        &mut self,
        now: Time,
        stream: StreamKey,
        mut cells: u32,
        source: &mut dyn Source<O>,
    ) {
        let first = stream.circuit;
        loop {
            // Without room, a call with zero cells marks the stream as waiting.
            let (offer, most) = self.choose(first).unzip();
            let leg = offer.map_or(first, |offer| offer.circuit);
            let circuit = self.circuit(first);
            let linked = std::mem::replace(&mut circuit.linked, Linked::No);
            let (Linked::First(mut set), Some(mut edge)) = (linked, circuit.edge.take()) else { return };
            let exchange = |edge: &mut Edge, own: Option<&mut Box<Edge>>| {
                own.into_iter().for_each(|own| edge.exchange_circuits(own));
            };
            let circuit = self.circuits.get_mut(leg.0 as usize).expect("it is a leg");
            exchange(&mut edge, circuit.edge.as_mut());
            let (hop, prev, links) = (&mut circuit.hop, circuit.prev, &mut self.links);
            let room = links.room(prev);
            let cells_now = cells.min(most.unwrap_or(0));
            // Each cell decides whether a SWITCH goes before it.
            let source = &mut |max| source.take(max);
            let sent = edge.package(now, stream.stream, cells_now, room, source, |message, _, digest| {
                let mut push = |message| {
                    let full = links.push(now, prev, Command::Relay, O::originate(hop, message));
                    debug_assert_eq!(full, Ok(()), "the high mark is below the limit");
                };
                let missed = offer.and_then(|offer| set.send_data(now, &offer));
                if let Some(missed) = missed {
                    push(Message { stream: StreamId(0), payload: Payload::Switch(missed) });
                }
                push(message);
                if digest { O::digests(hop).map(|[_, said]| said) } else { None }
            });
            links.note_packaged(prev);
            exchange(&mut edge, circuit.edge.as_mut());
            let circuit = self.circuit(first);
            (circuit.linked, circuit.edge) = (Linked::First(set), Some(edge));
            cells -= sent;
            if sent == 0 {
                return self.settle(stream);
            }
        }
    }

    /// Takes a closing circuit out of its set. If the first leg closes and the set goes on, another leg takes over its
    /// key and goes instead.
    ///
    /// `alone`: a neighbour or the network closed it; our own decision ends the whole set. `gone`: circuits without a
    /// leg.
    pub(crate) fn unlink(&mut self, key: CircuitKey, alone: bool, gone: &BTreeSet<CircuitKey>) -> Unlinked {
        let nothing = |circuit| Unlinked { circuit, exchanged: None, freed: 0, ends: Vec::new() };
        let first = self.first(key);
        let increment = self.circuits.get(key.0 as usize).and_then(|circuit| circuit.edge.as_ref());
        let increment = increment.map_or(0, |edge| edge.sendme_increment());
        let is_gone = |leg: CircuitKey| gone.contains(&leg);
        let Some(set) = self.set(first) else { return nothing(key) };
        // The set goes on only if another leg is left and nothing is lost with this one.
        let other = set.legs().find(|leg| *leg != key && !is_gone(*leg));
        let goes_on = set.remove(key, increment) && alone;
        match other {
            Some(_) if goes_on && key != first => {
                self.circuit(key).linked = Linked::No;
                nothing(key)
            }
            Some(other) if goes_on => {
                set.rename(other, first);
                self.exchange(first, other, gone);
                self.circuit(other).linked = Linked::No;
                Unlinked { exchanged: Some((first, other)), ..nothing(other) }
            }
            _ => {
                let (freed, ends) = self.dissolve(first, key, &is_gone);
                Unlinked { freed, ends, ..nothing(key) }
            }
        }
    }

    /// Dissolves a set. Returns the bytes that it held, and the circuits that end with `key`: all but those without a
    /// leg.
    fn dissolve(
        &mut self,
        first: CircuitKey,
        key: CircuitKey,
        is_gone: &dyn Fn(CircuitKey) -> bool,
    ) -> (u64, Vec<CircuitKey>) {
        let linked = std::mem::replace(&mut self.circuit(first).linked, Linked::No);
        let Linked::First(set) = linked else { return (0, Vec::new()) };
        self.sets.remove(&set.nonce());
        self.circuit(key).linked = Linked::No;
        let others: Vec<CircuitKey> = set.legs().filter(|leg| *leg != key).collect();
        for leg in &others {
            self.circuit(*leg).linked = Linked::No;
        }
        (set.held_bytes(), others.into_iter().filter(|leg| !is_gone(*leg)).collect())
    }

    /// Swaps the paths of two circuits towards the client; each keeps its streams.
    fn exchange(&mut self, a: CircuitKey, b: CircuitKey, gone: &BTreeSet<CircuitKey>) {
        let [one, other] =
            self.circuits.get_disjoint_mut([a.0 as usize, b.0 as usize]).expect("both are there");
        std::mem::swap(&mut one.prev, &mut other.prev);
        std::mem::swap(&mut one.hop, &mut other.hop);
        if let (Some(one), Some(other)) = (&mut one.edge, &mut other.edge) {
            one.exchange_circuits(other);
        }
        let ways = [(one.prev, a), (other.prev, b)];
        self.links.assign(ways[0].0, a);
        if gone.is_empty() {
            self.links.assign(ways[1].0, b);
        }
    }
}
