//! Client: linked circuits, over which streams go together ([`crate::conflux`], proposal 329).

use tidegate_control::units::Time;

use super::{Client, Fit, Switch};
use crate::cell::{Command, EndReason, Message, Payload, StreamId};
use crate::conflux::split::Capacity;
use crate::conflux::{Broken, Linked, MAX_LEGS, Set, Wish};
use crate::node::{CircuitKey, Output, Source, StreamKey};
use crate::onion::Onion;

impl<O: Onion> Client<O> {
    /// Links circuits to a set: streams of the first go over all of them. `wish`: what the exit's scheduling should favour.
    ///
    /// [`Output::Linked`] follows, or all are closed; until then streams cannot be opened. False, with nothing done,
    /// unless all circuits are different, built, without streams, under congestion control, and end at the same relay.
    pub fn link(&mut self, now: Time, legs: &[CircuitKey], wish: Wish) -> bool {
        let exit = |key: &CircuitKey| {
            let circuit = self.circuits.get(key.0 as usize)?;
            let fits = circuit.hops.len() == circuit.path.len()
                && circuit.next_stream == 1
                && circuit.edge.has_congestion_control()
                && matches!((&circuit.switch, &circuit.linked), (Switch::None, Linked::No));
            circuit.path.last().filter(|_| fits)
        };
        let Some((&first, others)) = legs.split_first() else { return false };
        let Some(last) = exit(&first) else { return false };
        let alike = others.iter().all(|key| exit(key) == Some(last));
        let different = legs.iter().enumerate().all(|(at, key)| !legs[..at].contains(key));
        if !alike || !different || legs.len() > MAX_LEGS {
            return false;
        }
        let nonce = self.onion.secret(&mut self.nonces);
        let mut set = Set::new(nonce, self.links.config().split(&nonce));
        let link = set.link(wish);
        for key in legs {
            set.add(now, *key, 0).expect("there is room, and nothing was said");
            self.circuits[key.0 as usize].linked = Linked::With(first);
        }
        self.circuits[first.0 as usize].linked = Linked::First(Box::new(set));
        for key in legs {
            if self.circuits.contains(key.0 as usize) {
                self.say(now, *key, StreamId(0), Payload::Link(Box::new(link)));
            }
        }
        true
    }

    /// The first circuit of the set, which has the streams; the circuit itself if it is not linked.
    fn first(&self, key: CircuitKey) -> CircuitKey {
        match self.circuits.get(key.0 as usize).map(|circuit| &circuit.linked) {
            Some(Linked::With(first)) => *first,
            _ => key,
        }
    }

    fn set(&mut self, first: CircuitKey) -> Option<&mut Set<Message<O>>> {
        match &mut self.circuits.get_mut(first.0 as usize)?.linked {
            Linked::First(set) => Some(set),
            _ => None,
        }
    }

    /// Cells that may be packaged for one circuit.
    fn room_of(&self, key: CircuitKey) -> u32 {
        let circuit = &self.circuits[key.0 as usize];
        circuit.edge.room(self.links.room(circuit.leg))
    }

    /// The current capacity of a leg.
    fn capacity(&self, leg: CircuitKey) -> Capacity {
        let circuit = &self.circuits[leg.0 as usize];
        circuit.edge.capacity(self.links.room(circuit.leg))
    }

    /// The first circuit of the set, and the number of cells that its streams may package.
    pub(super) fn room(&self, key: CircuitKey) -> (CircuitKey, u32) {
        let key = self.first(key);
        let cells = match &self.circuits[key.0 as usize].linked {
            Linked::First(set) => set.room(|leg| self.capacity(leg)),
            _ => self.room_of(key),
        };
        (key, cells)
    }

    /// Bytes of messages on linked circuits that wait for earlier ones (proposal 329, 2.8).
    pub fn held_bytes(&self) -> u64 {
        let sets = self.circuits.iter().filter_map(|(_, circuit)| match &circuit.linked {
            Linked::First(set) => Some(set.held_bytes()),
            _ => None,
        });
        sets.sum()
    }

    /// Handles a message that came on a leg.
    pub(super) fn leg_message(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        let first = self.first(key);
        let Some(set) = self.set(first) else { return };
        let done = match message.payload {
            Payload::Linked(theirs) => {
                let right = theirs.nonce == set.nonce() && set.answered(now, key).is_ok();
                if !right {
                    return self.end(now, key, true);
                }
                set.follow(theirs.wish);
                let linked = set.is_linked();
                self.say(now, key, StreamId(0), Payload::LinkedAck);
                if linked && self.circuits.contains(first.0 as usize) {
                    self.outputs.push_back(Output::Linked(first));
                }
                return;
            }
            Payload::Switch(missed) => set.switched(key, missed),
            Payload::Link(_) | Payload::LinkedAck | Payload::Leave(_) => Err(Broken),
            _ if !message.payload.is_of_stream() => return self.message(now, key, message),
            // The exit may not send stream messages before our LINKED_ACK.
            _ if !set.is_answered(key) => Err(Broken),
            _ => return self.leg_brings(now, key, message),
        };
        if done.is_err() {
            self.end(now, key, true);
        }
    }

    /// Handles a stream's message from a leg. A DATA cell counts for the leg's window at once, but is delivered in order.
    fn leg_brings(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        if let Payload::Data(..) = message.payload {
            match self.circuits[key.0 as usize].edge.deliver(StreamId(0)) {
                Ok((owed, _)) if owed.circuit => self.acknowledge(now, key),
                Ok(_) => {}
                Err(_) => return self.end(now, key, true),
            }
        }
        let first = self.first(key);
        let Some(set) = self.set(first) else { return };
        let Ok(mut due) = set.receive(now, key, message) else { return self.end(now, key, true) };
        while let Some(message) = due {
            self.let_out(now, first, message);
            let Some(set) = self.set(first) else { return };
            due = set.next_due();
        }
    }

    /// Delivers a stream's message that is due.
    fn let_out(&mut self, now: Time, first: CircuitKey, message: Message<O>) {
        let stream = StreamKey { circuit: first, stream: message.stream };
        let circuit = &self.circuits[first.0 as usize];
        let fit = Self::fit(circuit, message.stream, &message.payload);
        let Payload::Data(bytes, data) = message.payload else { return self.message(now, first, message) };
        match fit {
            Fit::Due => self.outputs.push_back(Output::Deliver(stream, bytes, data, 1)),
            Fit::Late => {}
            Fit::Wrong => self.end_stream(now, stream, EndReason::PROTOCOL),
            Fit::Unopened => self.end(now, first, true),
        }
    }

    /// Notes a valid circuit SENDME of a leg.
    pub(super) fn leg_acknowledged(&mut self, now: Time, key: CircuitKey) {
        let edge = &self.circuits[key.0 as usize].edge;
        let (cells, round_trip) = (edge.sendme_increment(), edge.round_trip());
        let first = self.first(key);
        if let Some(set) = self.set(first) {
            set.acknowledged(now, key, cells, round_trip);
        }
    }

    /// Chooses the leg for a stream's message and sends SWITCH first if one is due. `None` if the leg ended with that.
    pub(super) fn way(&mut self, now: Time, key: CircuitKey) -> Option<CircuitKey> {
        let Linked::First(set) = &self.circuits[key.0 as usize].linked else { return Some(key) };
        let leg = set.choose_any(|leg| self.capacity(leg)).unwrap_or(key);
        if let Some(missed) = self.set(key)?.send(leg) {
            self.say(now, leg, StreamId(0), Payload::Switch(missed));
        }
        self.circuits.contains(leg.0 as usize).then_some(leg)
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
            let Linked::First(set) = &self.circuits[first.0 as usize].linked else { return };
            let (offer, most) = set.choose(|leg| self.capacity(leg)).unzip();
            let leg = offer.map_or(first, |offer| offer.circuit);
            self.exchange_edges(first, leg);
            let way = &mut self.circuits[leg.0 as usize];
            let (mut hops, id) = (std::mem::take(&mut way.hops), way.leg);
            let circuit = &mut self.circuits[first.0 as usize];
            let (Linked::First(set), links) = (&mut circuit.linked, &mut self.links) else { return };
            let (last, room) = (hops.len() - 1, links.room(id));
            let cells_now = cells.min(most.unwrap_or(0));
            // Each cell decides whether a SWITCH goes before it.
            let source = &mut |max| source.take(max);
            let sent =
                circuit.edge.package(now, stream.stream, cells_now, room, source, |message, _, digest| {
                    let mut push = |message| {
                        let full =
                            links.push(now, id, Command::Relay, O::seal(&mut hops, last, false, message));
                        debug_assert_eq!(full, Ok(()), "the high mark is below the limit");
                    };
                    let missed = offer.and_then(|offer| set.send_data(now, &offer));
                    if let Some(missed) = missed {
                        push(Message { stream: StreamId(0), payload: Payload::Switch(missed) });
                    }
                    push(message);
                    if digest { O::client_digests(&hops[last]).map(|[_, said]| said) } else { None }
                });
            links.note_packaged(id);
            self.circuits[leg.0 as usize].hops = hops;
            self.exchange_edges(first, leg);
            cells -= sent;
            if sent == 0 {
                let edge = &mut self.circuits[first.0 as usize].edge;
                return edge.settle(stream, &mut self.wakes);
            }
        }
    }

    /// Swaps the circuit-level flow control of two circuits; each keeps its streams.
    fn exchange_edges(&mut self, a: CircuitKey, b: CircuitKey) {
        if let Ok([a, b]) = self.circuits.get_disjoint_mut([a.0 as usize, b.0 as usize]) {
            a.edge.exchange_circuits(&mut b.edge);
        }
    }

    /// Takes a closing circuit out of its set. Returns the circuit to remove: if the first leg closes, another one takes over
    /// its key and goes instead.
    ///
    /// `alone`: the peer or the network closed it; our own decision ends the whole set. `gone`: circuits without a leg.
    pub(super) fn unlink(
        &mut self,
        now: Time,
        key: CircuitKey,
        alone: bool,
        gone: &[CircuitKey],
    ) -> CircuitKey {
        let first = self.first(key);
        let increment = self.circuits.get(key.0 as usize).map(|circuit| circuit.edge.sendme_increment());
        let Some((set, increment)) = self.set(first).zip(increment) else { return key };
        let other = set.legs().find(|leg| *leg != key && !gone.contains(leg));
        let waited = !set.is_linked();
        let goes_on = set.remove(key, increment) && alone;
        let linked = waited && set.is_linked();
        // The set goes on only if the peer closed the leg, another leg is left, and nothing is lost with this one.
        let Some(other) = other.filter(|_| goes_on) else {
            self.dissolve(now, first, key, gone);
            return key;
        };
        let going = if key == first {
            set.rename(other, first);
            let legs = self.circuits.get_disjoint_mut([first.0 as usize, other.0 as usize]);
            let [a, b] = legs.expect("both are there");
            std::mem::swap(&mut a.leg, &mut b.leg);
            std::mem::swap(&mut a.path, &mut b.path);
            std::mem::swap(&mut a.hops, &mut b.hops);
            let (ours, theirs) = (a.leg, b.leg);
            self.exchange_edges(first, other);
            self.links.assign(ours, first);
            if gone.is_empty() {
                self.links.assign(theirs, other);
            }
            other
        } else {
            key
        };
        self.circuits[going.0 as usize].linked = Linked::No;
        if linked {
            self.outputs.push_back(Output::Linked(first));
        }
        going
    }

    /// Ends all other circuits of a set, except those without a leg.
    fn dissolve(&mut self, now: Time, first: CircuitKey, key: CircuitKey, gone: &[CircuitKey]) {
        let linked = std::mem::replace(&mut self.circuits[first.0 as usize].linked, Linked::No);
        let Linked::First(set) = linked else { return };
        self.circuits[key.0 as usize].linked = Linked::No;
        for leg in set.legs().filter(|leg| *leg != key) {
            self.circuits[leg.0 as usize].linked = Linked::No;
            if !gone.contains(&leg) {
                self.end(now, leg, true);
            }
        }
    }
}
