//! Exit: linked circuits, over which a client's streams go together ([`crate::conflux`], proposal 329).

use tidegate_control::units::Time;

use super::Relay;
use super::table::Switch;
use crate::cell::{Command, DestroyReason, Message, Payload, StreamId};
use crate::conflux::{Broken, Link, Linked, Refused, Set, Wish};
use crate::edge::Edge;
use crate::ids::{CircuitKey, StreamKey};
use crate::node::{Output, Source};
use crate::onion::Onion;

impl<O: Onion> Relay<O> {
    /// Handles LINK: makes a circuit a leg of a set. The circuit must end here, never had a stream, and have congestion
    /// control (proposal 329).
    pub(super) fn link(&mut self, now: Time, key: CircuitKey, theirs: &Link) {
        let edge = self.edge(key);
        let circuit = self.table.circuit(key);
        let fresh = circuit.next.is_none()
            && circuit.edge.is_none()
            && matches!((&circuit.switch, &circuit.linked), (Switch::None, Linked::No));
        if !fresh || !edge.has_congestion_control() {
            return self.end(now, key, DestroyReason::PROTOCOL);
        }
        let first = *self.sets.entry(theirs.nonce).or_insert(key);
        if first == key {
            let split = self.table.links.config().split(&theirs.nonce);
            let set = Box::new(Set::new(theirs.nonce, split));
            self.table.circuit(key).linked = Linked::First(set);
        }
        let set = self.set(first).expect("it is listed");
        // As tor's exits do: clients send little.
        let ours = set.link(Wish::MinLatency);
        match set.add(now, key, theirs.sent) {
            Ok(()) => set.follow(theirs.wish),
            Err(Refused::TooMany) => return self.end(now, key, DestroyReason::PROTOCOL),
            Err(Refused::Lost) => {
                self.end(now, key, DestroyReason::PROTOCOL);
                return self.end(now, first, DestroyReason::PROTOCOL);
            }
        }
        let circuit = self.table.circuit(key);
        circuit.edge = Some(Box::new(edge));
        if first != key {
            circuit.linked = Linked::With(first);
        }
        self.say(now, key, StreamId(0), Payload::Linked(Box::new(ours)));
    }

    fn set(&mut self, first: CircuitKey) -> Option<&mut Set<Message<O>>> {
        match &mut self.table.circuits.get_mut(first.0 as usize)?.linked {
            Linked::First(set) => Some(set),
            _ => None,
        }
    }

    /// Handles a message that came on a leg.
    pub(super) fn leg_message(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        let first = self.table.first(key);
        let Some(set) = self.set(first) else { return };
        let done = match message.payload {
            Payload::LinkedAck => set.answered(now, key),
            Payload::Switch(missed) => set.switched(key, missed),
            Payload::Link(_) | Payload::Leave(_) | Payload::Join(_) => Err(Broken),
            _ if message.payload.is_of_stream() => return self.leg_brings(now, key, message),
            _ => return self.act(now, key, message),
        };
        self.resume_or_end(now, key, done.is_ok());
    }

    /// Handles a stream's message from a leg. A DATA cell counts for the leg's window at once, but is delivered in order.
    fn leg_brings(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        if let (Payload::Data(..), Some(edge)) =
            (&message.payload, self.table.circuit(key).edge.as_deref_mut())
        {
            match edge.deliver(StreamId(0)) {
                Ok((owed, _)) if owed.circuit => self.acknowledge(now, key),
                Ok(_) => {}
                Err(_) => return self.end(now, key, DestroyReason::PROTOCOL),
            }
        }
        let first = self.table.first(key);
        let Some(set) = self.set(first) else { return };
        let before = set.held_bytes();
        let due = set.receive(now, key, message);
        let held = set.held_bytes();
        self.held = self.held + held - before;
        let Ok(mut due) = due else { return self.end(now, key, DestroyReason::PROTOCOL) };
        while let Some(message) = due {
            self.let_out(now, first, message);
            let Some(set) = self.set(first) else { return };
            let before = set.held_bytes();
            due = set.next_due();
            let freed = before - set.held_bytes();
            self.held -= freed;
        }
    }

    /// Delivers a stream's message that is due.
    fn let_out(&mut self, now: Time, first: CircuitKey, message: Message<O>) {
        let stream = StreamKey { circuit: first, stream: message.stream };
        let Payload::Data(bytes, data) = message.payload else { return self.act(now, first, message) };
        let edge = self.table.circuit(first).edge.as_deref();
        if edge.is_some_and(|edge| edge.has(message.stream)) {
            self.table.outputs.push_back(Output::Deliver(stream, bytes, data));
        }
    }

    /// Notes a valid circuit SENDME of a leg.
    pub(super) fn leg_acknowledged(&mut self, now: Time, key: CircuitKey) {
        let Some(edge) = &self.table.circuit(key).edge else { return };
        let (cells, round_trip) = (edge.sendme_increment(), edge.round_trip());
        let first = self.table.first(key);
        if let Some(set) = self.set(first) {
            set.acknowledged(now, key, cells, round_trip);
        }
    }

    /// Chooses the leg for a stream's message and sends SWITCH first if one is due. `None` if the leg ended with that.
    pub(super) fn way(&mut self, now: Time, key: CircuitKey) -> Option<CircuitKey> {
        let leg = self.table.choose_any(key);
        let Some(set) = self.set(key) else { return Some(key) };
        if let Some(missed) = set.send(leg) {
            self.say(now, leg, StreamId(0), Payload::Switch(missed));
        }
        self.table.contains(leg).then_some(leg)
    }

    /// Packages up to `cells` cells of a stream over the legs that have room.
    pub(super) fn package_over_legs(
        &mut self,
        now: Time,
        stream: StreamKey,
        mut cells: u32,
        source: &mut dyn Source<O>,
    ) {
        let first = stream.circuit;
        loop {
            // Without room, a call with zero cells marks the stream as waiting.
            let (offer, most) = self.table.choose(first).unzip();
            let leg = offer.map_or(first, |offer| offer.circuit);
            let circuit = self.table.circuit(first);
            let linked = std::mem::replace(&mut circuit.linked, Linked::No);
            let (Linked::First(mut set), Some(mut edge)) = (linked, circuit.edge.take()) else { return };
            let exchange = |edge: &mut Edge, own: Option<&mut Box<Edge>>| {
                own.into_iter().for_each(|own| edge.exchange_circuits(own));
            };
            let circuit = self.table.circuits.get_mut(leg.0 as usize).expect("it is a leg");
            exchange(&mut edge, circuit.edge.as_mut());
            let (hop, prev, links) = (&mut circuit.hop, circuit.prev, &mut self.table.links);
            let room = links.room(prev);
            let cells_now = cells.min(most.unwrap_or(0));
            let sent = edge.package(now, stream.stream, cells_now, room, source, |message, digest| {
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
            let circuit = self.table.circuit(first);
            (circuit.linked, circuit.edge) = (Linked::First(set), Some(edge));
            cells -= sent;
            if sent == 0 {
                return;
            }
        }
    }

    /// Takes a closing circuit out of its set. Returns the circuit to remove: if the first leg closes, another one takes over
    /// its key and goes instead.
    ///
    /// `alone`: a neighbour or the network closed it; our own decision ends the whole set. `gone`: circuits without a
    /// leg.
    pub(super) fn unlink(
        &mut self,
        now: Time,
        key: CircuitKey,
        alone: bool,
        gone: &[(CircuitKey, crate::ids::Side)],
    ) -> CircuitKey {
        let first = self.table.first(key);
        let increment = self.table.circuits.get(key.0 as usize).and_then(|circuit| circuit.edge.as_ref());
        let increment = increment.map_or(0, |edge| edge.sendme_increment());
        let is_gone = |leg: CircuitKey| gone.iter().any(|(other, _)| *other == leg);
        let Some(set) = self.set(first) else { return key };
        let other = set.legs().find(|leg| *leg != key && !is_gone(*leg));
        let goes_on = set.remove(key, increment) && alone;
        match other {
            Some(_) if goes_on && key != first => {
                self.table.circuit(key).linked = Linked::No;
                key
            }
            Some(other) if goes_on => {
                set.rename(other, first);
                self.exchange(first, other, gone);
                self.table.circuit(other).linked = Linked::No;
                other
            }
            _ => {
                self.dissolve(now, first, key, &is_gone);
                key
            }
        }
    }

    /// Ends all other circuits of a set, except those without a leg.
    fn dissolve(
        &mut self,
        now: Time,
        first: CircuitKey,
        key: CircuitKey,
        is_gone: &dyn Fn(CircuitKey) -> bool,
    ) {
        let linked = std::mem::replace(&mut self.table.circuit(first).linked, Linked::No);
        let Linked::First(set) = linked else { return };
        self.sets.remove(&set.nonce());
        self.held -= set.held_bytes();
        self.table.circuit(key).linked = Linked::No;
        for leg in set.legs().filter(|leg| *leg != key) {
            self.table.circuit(leg).linked = Linked::No;
            if !is_gone(leg) {
                self.end(now, leg, DestroyReason::DESTROYED);
            }
        }
    }

    /// Swaps the paths of two circuits towards the client; each keeps its streams.
    fn exchange(&mut self, a: CircuitKey, b: CircuitKey, gone: &[(CircuitKey, crate::ids::Side)]) {
        let [one, other] =
            self.table.circuits.get_disjoint_mut([a.0 as usize, b.0 as usize]).expect("both are there");
        std::mem::swap(&mut one.prev, &mut other.prev);
        std::mem::swap(&mut one.hop, &mut other.hop);
        if let (Some(one), Some(other)) = (&mut one.edge, &mut other.edge) {
            one.exchange_circuits(other);
        }
        let ways = [(one.prev, a), (other.prev, b)];
        self.table.links.assign(ways[0].0, a);
        if gone.is_empty() {
            self.table.links.assign(ways[1].0, b);
        }
        if let Some(controller) = &mut self.controller {
            controller.exchanged(a, b);
        }
    }
}
