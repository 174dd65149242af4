//! A client: builds circuits hop by hop, opens streams, and takes off all layers.

use std::collections::VecDeque;

use slab::Slab;
use tidegate_control::units::Time;

use crate::cell::{Cell, Command, Message, Payload, RelayId, StreamId};
use crate::edge::Edge;
use crate::links::{ChannelId, Config, Departure, LegId, Links, Side};
use crate::node::{CircuitKey, Node, Output, Source, StreamKey};
use crate::onion::Onion;

/// A client without its sockets.
pub struct Client<O: Onion> {
    onion: O,
    links: Links<O>,
    circuits: Slab<Circuit<O>>,
    outputs: VecDeque<Output<O>>,
}

struct Circuit<O: Onion> {
    leg: LegId,
    path: Vec<RelayId>,
    hops: Vec<O::ClientHop>,
    /// The key exchange under way, with hop `hops.len()`.
    handshake: Option<O::Handshake>,
    edge: Edge,
    next_stream: u16,
}

impl<O: Onion> Client<O> {
    /// A client without channels.
    pub fn new(onion: O, config: Config) -> Client<O> {
        Client { onion, links: Links::new(config), circuits: Slab::new(), outputs: VecDeque::new() }
    }

    /// Begins a circuit over these relays, guard first. [`Output::CircuitBuilt`] or
    /// [`Output::CircuitClosed`] will follow.
    ///
    /// # Panics
    /// If the path is empty or longer than a layer counter holds.
    pub fn build(&mut self, now: Time, path: Vec<RelayId>) -> CircuitKey {
        assert!((1..=8).contains(&path.len()), "a circuit has one to eight hops");
        let key = CircuitKey(self.circuits.vacant_key() as u32);
        let (channel, must_open) = self.links.channel_to(path[0]);
        if must_open {
            self.outputs.push_back(Output::OpenChannel(channel, path[0]));
        }
        let leg = self.links.begin_leg(channel, key, Side::Next);
        let (handshake, body) = self.onion.start(path[0]);
        let edge = Edge::new(self.links.config().control);
        let handshake = Some(handshake);
        self.circuits.insert(Circuit { leg, path, hops: Vec::new(), handshake, edge, next_stream: 1 });
        self.push(now, key, Command::Create, body);
        key
    }

    /// Opens a stream at the last hop of a built circuit; `None` if the circuit is not built, is gone, or
    /// has no stream ids left.
    pub fn open(&mut self, now: Time, key: CircuitKey, address: O::Address) -> Option<StreamKey> {
        let circuit = self.circuits.get_mut(key.0 as usize)?;
        if circuit.hops.len() < circuit.path.len() {
            return None;
        }
        let stream = StreamId(circuit.next_stream);
        if !circuit.edge.open(stream) {
            return None;
        }
        circuit.next_stream = circuit.next_stream.checked_add(1).unwrap_or(1);
        self.say(now, key, stream, Payload::Begin(address));
        Some(StreamKey { circuit: key, stream })
    }

    /// Ends a circuit and its streams.
    pub fn close(&mut self, now: Time, key: CircuitKey) {
        self.end(now, key, true);
    }

    fn push(&mut self, now: Time, key: CircuitKey, command: Command, body: O::Body) {
        let leg = self.circuits[key.0 as usize].leg;
        if self.links.push(now, leg, command, body).is_err() {
            self.end(now, key, true);
        }
    }

    /// Says something to the last hop so far.
    fn say(&mut self, now: Time, key: CircuitKey, stream: StreamId, payload: Payload<O>) {
        let circuit = &mut self.circuits[key.0 as usize];
        let last = circuit.hops.len() - 1;
        let body = O::seal(&mut circuit.hops, last, Message { stream, payload });
        self.push(now, key, Command::Relay, body);
    }

    /// The second half of a key exchange: on to the next hop, or done.
    fn extended(&mut self, now: Time, key: CircuitKey, body: &O::Body) {
        let circuit = &mut self.circuits[key.0 as usize];
        let hop = circuit.handshake.take().and_then(|handshake| self.onion.finish(handshake, body));
        let Some(hop) = hop else { return self.end(now, key, true) };
        circuit.hops.push(hop);
        match circuit.path.get(circuit.hops.len()).copied() {
            Some(relay) => {
                let (handshake, body) = self.onion.start(relay);
                circuit.handshake = Some(handshake);
                self.say(now, key, StreamId(0), Payload::Extend(relay, body));
            }
            None => self.outputs.push_back(Output::CircuitBuilt(key)),
        }
    }

    fn relayed(&mut self, now: Time, key: CircuitKey, body: O::Body) {
        let circuit = &mut self.circuits[key.0 as usize];
        let Ok((hop, message)) = O::open(&mut circuit.hops, body) else { return self.end(now, key, true) };
        if hop + 1 != circuit.hops.len() {
            return self.end(now, key, true);
        }
        let stream = StreamKey { circuit: key, stream: message.stream };
        match message.payload {
            Payload::Extended(body) if circuit.handshake.is_some() => self.extended(now, key, &body),
            Payload::Connected if circuit.edge.connect(message.stream) => {
                self.outputs.push_back(Output::StreamConnected(stream));
            }
            // A stream that we closed while the exit connected it.
            Payload::Connected => {}
            Payload::Data(bytes, data) => match circuit.edge.deliver(message.stream) {
                Ok((owed, known)) => {
                    if known {
                        self.outputs.push_back(Output::Deliver(stream, bytes, data));
                    }
                    if owed.circuit {
                        self.say(now, key, StreamId(0), Payload::Sendme);
                    }
                    if owed.stream && self.circuits.contains(key.0 as usize) {
                        self.say(now, key, message.stream, Payload::Sendme);
                    }
                }
                Err(_) => self.end(now, key, true),
            },
            Payload::Sendme => {
                let blocked = self.links.is_blocked(circuit.leg);
                match circuit.edge.sendme(now, message.stream, blocked) {
                    Ok(()) => self.resume(key),
                    Err(_) => self.end(now, key, true),
                }
            }
            ref payload @ (Payload::Xoff | Payload::Xon) => {
                match circuit.edge.stop(message.stream, *payload == Payload::Xoff) {
                    Ok(()) => self.resume(key),
                    Err(_) => self.end(now, key, true),
                }
            }
            Payload::End => {
                if circuit.edge.close(message.stream) {
                    self.outputs.push_back(Output::StreamClosed(stream));
                }
            }
            _ => self.end(now, key, true),
        }
    }

    fn resume(&mut self, key: CircuitKey) {
        let circuit = &mut self.circuits[key.0 as usize];
        for (stream, cells) in circuit.edge.resumable(self.links.room(circuit.leg)) {
            self.outputs.push_back(Output::Package(StreamKey { circuit: key, stream }, cells));
        }
    }

    fn end(&mut self, now: Time, key: CircuitKey, destroy: bool) {
        let Some(circuit) = self.circuits.try_remove(key.0 as usize) else { return };
        self.outputs.push_back(Output::CircuitClosed(key));
        let channel = self.links.remove_leg(now, circuit.leg, destroy);
        self.close_if_spent(channel);
    }

    fn close_if_spent(&mut self, channel: ChannelId) {
        if self.links.is_spent(channel) {
            self.links.closed(channel);
            self.outputs.push_back(Output::CloseChannel(channel));
        }
    }
}

impl<O: Onion> Node<O> for Client<O> {
    fn channel_accepted(&mut self, peer: Option<RelayId>) -> ChannelId {
        self.links.accept(peer)
    }

    fn channel_opened(&mut self, now: Time, channel: ChannelId) {
        self.links.opened(now, channel);
    }

    fn channel_closed(&mut self, _: Time, channel: ChannelId) {
        for (key, _) in self.links.closed(channel) {
            if self.circuits.try_remove(key.0 as usize).is_some() {
                self.outputs.push_back(Output::CircuitClosed(key));
            }
        }
    }

    fn cell(&mut self, now: Time, channel: ChannelId, cell: Cell<O>) {
        let Some((_, key, _)) = self.links.lookup(channel, cell.circ) else { return };
        match cell.command {
            Command::Created if self.circuits[key.0 as usize].hops.is_empty() => {
                self.extended(now, key, &cell.body);
            }
            Command::Relay => self.relayed(now, key, cell.body),
            Command::Destroy => self.end(now, key, false),
            _ => self.end(now, key, true),
        }
    }

    fn ready(&self, channel: ChannelId) -> u64 {
        self.links.ready(channel)
    }

    fn pop(&mut self, now: Time, channel: ChannelId) -> Option<Departure<O>> {
        let departure = self.links.pop(now, channel)?;
        if departure.cell.command == Command::Destroy {
            self.close_if_spent(channel);
        }
        Some(departure)
    }

    fn hold(&mut self, channel: ChannelId) {
        self.links.hold(channel);
    }

    fn package(&mut self, now: Time, stream: StreamKey, cells: u32, source: &mut dyn Source<O>) {
        let Some(circuit) = self.circuits.get_mut(stream.circuit.0 as usize) else { return };
        let (hops, leg, links) = (&mut circuit.hops, circuit.leg, &mut self.links);
        let room = links.room(leg);
        circuit.edge.package(now, stream.stream, cells, room, source, |message| {
            let last = hops.len() - 1;
            let full = links.push(now, leg, Command::Relay, O::seal(hops, last, message));
            debug_assert_eq!(full, Ok(()), "the high mark is below the limit");
        });
        links.note_packaged(leg);
    }

    /// Clients have no exit streams.
    fn stream_connected(&mut self, _: Time, _: StreamKey) {}

    fn backlog(&mut self, now: Time, stream: StreamKey, bytes: u64) {
        let Some(circuit) = self.circuits.get_mut(stream.circuit.0 as usize) else { return };
        if let Some(payload) = circuit.edge.backlog(stream.stream, bytes) {
            self.say(now, stream.circuit, stream.stream, payload);
        }
    }

    fn stream_ended(&mut self, now: Time, stream: StreamKey) {
        let Some(circuit) = self.circuits.get_mut(stream.circuit.0 as usize) else { return };
        if circuit.edge.close(stream.stream) {
            self.outputs.push_back(Output::StreamClosed(stream));
            self.say(now, stream.circuit, stream.stream, Payload::End);
        }
    }

    fn poll(&mut self) -> Option<Output<O>> {
        while let Some((key, _)) = self.links.next_drained() {
            if self.circuits.contains(key.0 as usize) {
                self.resume(key);
            }
        }
        self.outputs.pop_front().or_else(|| self.links.next_flushable().map(Output::Flush))
    }

    fn waiting(&self) -> (u64, u64) {
        self.links.waiting()
    }
}
