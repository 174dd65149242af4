//! A client: builds circuits hop by hop, opens streams, and removes all onion layers.

mod driven;
mod linked;

use std::collections::VecDeque;

use slab::Slab;
use tidegate_control::random::Random;
use tidegate_control::units::Time;

use crate::cell::{
    Cell, Command, DestroyReason, Digest, EndReason, Message, Nonce, Payload, RelayId, StreamId, Terms,
};
use crate::conflux::Linked;
use crate::edge::{Edge, Phase, Signal, Wakes};
use crate::links::{ChannelId, Config, LegId, Links, Side, insert_few};
use crate::node::{CircuitKey, Output, StreamKey};
use crate::onion::Onion;
use crate::switching::MoveStart;

/// A client without its sockets.
pub struct Client<O: Onion> {
    onion: O,
    links: Links<O>,
    circuits: Slab<Circuit<O>>,
    outputs: VecDeque<Output<O>>,
    /// Streams that exits' rates have stopped.
    wakes: Wakes,
    nonces: Random,
    /// The digest with which the message at hand arrived, if a switch held it or its path is not the circuit's own.
    heard: Option<Digest>,
}

struct Circuit<O: Onion> {
    leg: LegId,
    path: Vec<RelayId>,
    hops: Vec<O::ClientHop>,
    /// The key exchange under way, with hop `hops.len()`.
    handshake: Option<O::Handshake>,
    edge: Edge,
    next_stream: u16,
    /// All stream ids were in use once, so each may be that of a closed stream.
    wrapped: bool,
    /// A circuit to the same exit that its streams can switch to.
    spare: Option<CircuitKey>,
    switch: Switch<O>,
    linked: Linked<Message<O>>,
}

/// A message that waits for the end of a switch, and the digest that acknowledges it.
type Held<O> = (Message<O>, Option<Digest>);

/// Progress of a switch from a circuit to its spare. Streams keep the circuit's key: the two circuits swap their
/// paths.
enum Switch<O: Onion> {
    /// No switch is in progress.
    None,
    /// This side has switched. Messages on the new path wait until the exit has left the old one, which circuit `old`
    /// has now.
    Awaiting {
        nonce: Nonce,
        old: CircuitKey,
        held: VecDeque<Held<O>>,
        begun: MoveStart,
        left: Time,
        first: Option<Time>,
    },
    /// This circuit has the old path. Its messages belong to the circuit with this key.
    Ceded(CircuitKey),
}

/// How a message fits its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It may come now.
    Due,
    /// This end has closed the stream; the last hop may not know yet.
    Late,
    /// It does not fit the stream's phase: the stream ends.
    Wrong,
    /// The stream was never opened: the circuit ends.
    Unopened,
}

/// Maximum number of messages that wait for a LEAVE. More would exceed the exit's window.
const MAX_HELD: usize = 4096;

impl<O: Onion> Client<O> {
    /// A client without channels.
    pub fn new(onion: O, config: Config) -> Client<O> {
        let nonces = config.nonces.fork("circuits").random();
        Client {
            onion,
            links: Links::new(config, None),
            circuits: Slab::new(),
            outputs: VecDeque::new(),
            wakes: Wakes::default(),
            nonces,
            heard: None,
        }
    }

    /// The client's keys, and those of the relays that it knows.
    pub fn onion(&mut self) -> &mut O {
        &mut self.onion
    }

    /// Begins a circuit over these relays, guard first. [`Output::CircuitBuilt`] or
    /// [`Output::CircuitClosed`] follows.
    ///
    /// # Panics
    /// If the path is empty or has more than eight hops.
    pub fn build(&mut self, now: Time, path: Vec<RelayId>) -> CircuitKey {
        assert!((1..=8).contains(&path.len()), "a circuit has one to eight hops");
        let key = CircuitKey(self.circuits.vacant_key() as u32);
        let (channel, must_open) = self.links.channel_to(now, path[0]);
        if must_open {
            self.outputs.push_back(Output::OpenChannel(channel, path[0]));
        }
        let leg = self.links.begin_leg(channel, key, Side::Next, false);
        let (handshake, body) = self.onion.start(path[0]);
        let edge = Edge::agreed(Terms::default(), self.links.config(), f64::INFINITY);
        let handshake = Some(handshake);
        let circuit = Circuit {
            leg,
            path,
            hops: Vec::new(),
            handshake,
            edge,
            next_stream: 1,
            wrapped: false,
            spare: None,
            switch: Switch::None,
            linked: Linked::No,
        };
        insert_few(&mut self.circuits, circuit);
        self.push(now, key, Command::Create, body);
        key
    }

    /// The number of a circuit's hops that have answered; 0 if it is closed.
    pub fn answered(&self, key: CircuitKey) -> usize {
        self.circuits.get(key.0 as usize).map_or(0, |circuit| circuit.hops.len())
    }

    /// Opens a stream at the last hop of a built circuit.
    ///
    /// `None` if the circuit is closed, not built, being linked or not the first of its set, or if its stream ids are
    /// all in use.
    pub fn open(&mut self, now: Time, key: CircuitKey, address: O::Address) -> Option<StreamKey> {
        let circuit = self.circuits.get_mut(key.0 as usize)?;
        let ready = match &circuit.linked {
            Linked::No => circuit.hops.len() == circuit.path.len(),
            Linked::First(set) => set.is_linked(),
            Linked::With(_) => false,
        };
        if !ready {
            return None;
        }
        let stream = StreamId(circuit.next_stream);
        let edge = &mut circuit.edge;
        let opened = if O::is_lookup(&address) { edge.look_up(stream) } else { edge.open(stream) };
        if !opened {
            return None;
        }
        circuit.wrapped |= circuit.next_stream == u16::MAX;
        circuit.next_stream = circuit.next_stream.checked_add(1).unwrap_or(1);
        self.say(now, key, stream, Payload::Begin(address));
        Some(StreamKey { circuit: key, stream })
    }

    /// Sends cells without content (RELAY_DROP) over a built circuit. Its last hop discards them, and no window counts them.
    pub fn send_drops(&mut self, now: Time, key: CircuitKey, cells: u32) {
        let is_built = |circuit: &Circuit<O>| circuit.hops.len() == circuit.path.len();
        for _ in 0..cells {
            // A full queue ends the circuit.
            if !self.circuits.get(key.0 as usize).is_some_and(is_built) {
                return;
            }
            self.say(now, key, StreamId(0), Payload::Nothing);
        }
    }

    /// Keeps a circuit without streams as a spare, to which another switches when its guard reports congestion. False,
    /// with nothing kept, unless both are built and end at the same relay.
    pub fn keep_standby(&mut self, key: CircuitKey, spare: CircuitKey) -> bool {
        let built = |key: CircuitKey| {
            let circuit = self.circuits.get(key.0 as usize)?;
            (circuit.hops.len() == circuit.path.len()).then_some(circuit)
        };
        let (Some(a), Some(b)) = (built(key), built(spare)) else { return false };
        let alone = matches!((&a.linked, &b.linked), (Linked::No, Linked::No));
        let fits = alone && key != spare && a.path.last() == b.path.last() && b.edge.ids().next().is_none();
        if fits {
            self.circuits[key.0 as usize].spare = Some(spare);
        }
        fits
    }

    /// Switches a circuit's streams to its spare, which gets the old path. [`Output::Switched`] follows. Nothing happens
    /// without a spare or during another switch.
    pub fn switch(&mut self, now: Time, key: CircuitKey) {
        self.switch_as(now, key, MoveStart::alone(now, None));
    }

    fn switch_as(&mut self, now: Time, key: CircuitKey, begun: MoveStart) {
        let Some(circuit) = self.circuits.get_mut(key.0 as usize) else { return };
        let idle = matches!(circuit.switch, Switch::None);
        let Some(spare) = circuit.spare.filter(|_| idle) else { return };
        circuit.spare = None;
        // The exit accepts a switch only from a circuit that had a stream, to one that never had.
        let fits = circuit.next_stream > 1
            && self
                .circuits
                .get(spare.0 as usize)
                .is_some_and(|other| matches!(other.switch, Switch::None) && other.next_stream == 1);
        if !fits {
            return;
        }
        let nonce = Nonce(self.nonces.bits().to_le_bytes());
        self.say(now, key, StreamId(0), Payload::Leave(nonce));
        if self.circuits.contains(key.0 as usize) {
            self.say(now, spare, StreamId(0), Payload::Join(nonce));
        }
        let Some([a, b]) = self.circuits.get_disjoint_mut([key.0 as usize, spare.0 as usize]).ok() else {
            return self.end(now, key, true);
        };
        std::mem::swap(&mut a.leg, &mut b.leg);
        std::mem::swap(&mut a.path, &mut b.path);
        std::mem::swap(&mut a.hops, &mut b.hops);
        for circuit in [&mut *a, &mut *b] {
            if let Some(last) = circuit.hops.last() {
                circuit.edge.carry(O::client_terms(last).data_bytes);
            }
        }
        a.switch =
            Switch::Awaiting { nonce, old: spare, held: VecDeque::new(), begun, left: now, first: None };
        b.switch = Switch::Ceded(key);
        self.links.assign(a.leg, key);
        self.links.assign(b.leg, spare);
    }

    /// The exit has left the old path: messages held from the new one are due.
    fn switched(&mut self, now: Time, old: CircuitKey, nonce: Nonce) {
        let Switch::Ceded(key) = self.circuits[old.0 as usize].switch else {
            return self.end(now, old, true);
        };
        let circuit = &mut self.circuits[key.0 as usize];
        match std::mem::replace(&mut circuit.switch, Switch::None) {
            Switch::Awaiting { nonce: own, held, begun, left, first, .. } if own == nonce => {
                self.circuits[old.0 as usize].switch = Switch::None;
                self.outputs.push_back(Output::Switched(key, begun.over(left, first, now)));
                for (message, heard) in held {
                    if self.circuits.contains(key.0 as usize) {
                        self.message_from(now, key, message, heard);
                    }
                }
                if self.circuits.contains(key.0 as usize) {
                    self.resume(key);
                }
            }
            other => {
                circuit.switch = other;
                self.end(now, old, true);
            }
        }
    }

    /// Closes a circuit, its streams, and the circuits that are linked with it.
    pub fn close(&mut self, now: Time, key: CircuitKey) {
        self.end(now, key, true);
    }

    fn push(&mut self, now: Time, key: CircuitKey, command: Command, body: O::Body) {
        let leg = self.circuits[key.0 as usize].leg;
        if self.links.push(now, leg, command, body).is_err() {
            self.end(now, key, true);
        }
    }

    /// Sends a message to the last hop so far. Stream messages of linked circuits go over the chosen leg.
    fn say(&mut self, now: Time, key: CircuitKey, stream: StreamId, payload: Payload<O>) {
        let way = if payload.is_of_stream() { self.way(now, key) } else { Some(key) };
        let Some(key) = way else { return };
        let circuit = &mut self.circuits[key.0 as usize];
        let last = circuit.hops.len() - 1;
        let extends = matches!(payload, Payload::Extend(..));
        let body = O::seal(&mut circuit.hops, last, extends, Message { stream, payload });
        self.push(now, key, if extends { Command::Early } else { Command::Relay }, body);
    }

    /// Finishes a key exchange, then extends to the next hop or reports the circuit as built.
    fn extended(&mut self, now: Time, key: CircuitKey, body: &O::Body) {
        let circuit = &mut self.circuits[key.0 as usize];
        let hop = circuit.handshake.take().and_then(|handshake| self.onion.finish(handshake, body));
        let Some(hop) = hop else { return self.end(now, key, true) };
        circuit.hops.push(hop);
        match circuit.path.get(circuit.hops.len()).copied() {
            Some(relay) => {
                let (handshake, body) = self.onion.start(relay);
                circuit.handshake = Some(handshake);
                let peer = self.onion.peer(relay);
                self.say(now, key, StreamId(0), Payload::Extend(peer, body));
            }
            None => {
                let last = circuit.hops.last().expect("a hop was just added");
                let terms = O::client_terms(last);
                circuit.edge = Edge::agreed(terms, self.links.config(), f64::INFINITY);
                self.outputs.push_back(Output::CircuitBuilt(key));
            }
        }
    }

    fn relayed(&mut self, now: Time, key: CircuitKey, body: O::Body) {
        let circuit = &mut self.circuits[key.0 as usize];
        let Ok((hop, message)) = O::open(&mut circuit.hops, body) else { return self.end(now, key, true) };
        // Circuits are not used as leaky pipes: only the last hop sends messages.
        if hop + 1 != circuit.hops.len() {
            return self.end(now, key, true);
        }
        match &mut circuit.switch {
            Switch::Awaiting { held, first, .. } if held.len() < MAX_HELD => {
                first.get_or_insert(now);
                let heard = circuit.hops.last().and_then(O::client_digests).map(|[heard, _]| heard);
                held.push_back((message, heard));
            }
            Switch::Awaiting { .. } => self.end(now, key, true),
            Switch::Ceded(streams) => {
                let streams = *streams;
                let heard = circuit.hops.last().and_then(O::client_digests).map(|[heard, _]| heard);
                match message.payload {
                    Payload::Leave(nonce) => self.switched(now, key, nonce),
                    _ => self.message_from(now, streams, message, heard),
                }
            }
            Switch::None => match circuit.linked {
                Linked::No => self.message(now, key, message),
                Linked::First(_) | Linked::With(_) => self.leg_message(now, key, message),
            },
        }
    }

    /// Handles a message that arrived on another path or earlier. Its SENDME must have the digest of that time.
    fn message_from(&mut self, now: Time, key: CircuitKey, message: Message<O>, heard: Option<Digest>) {
        self.heard = heard;
        self.message(now, key, message);
        self.heard = None;
    }

    /// How a stream's message that arrives now fits the stream.
    fn fit(circuit: &Circuit<O>, id: StreamId, payload: &Payload<O>) -> Fit {
        let Some(phase) = circuit.edge.phase(id) else {
            let used = id.0 != 0 && (circuit.wrapped || id.0 < circuit.next_stream);
            return if used { Fit::Late } else { Fit::Unopened };
        };
        let due = match payload {
            Payload::End(_) => true,
            Payload::Connected => phase == Phase::Connecting,
            Payload::Resolved(_) => phase == Phase::Resolving,
            _ => phase == Phase::Connected,
        };
        if due { Fit::Due } else { Fit::Wrong }
    }

    fn message(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        let circuit = &mut self.circuits[key.0 as usize];
        let stream = StreamKey { circuit: key, stream: message.stream };
        let of_stream = match message.payload {
            Payload::Begin(_) | Payload::Misread => return self.end(now, key, true),
            Payload::Sendme(_) => message.stream.0 != 0,
            ref payload => payload.is_of_stream(),
        };
        let fit = if of_stream { Self::fit(circuit, message.stream, &message.payload) } else { Fit::Due };
        match (fit, message.payload) {
            (Fit::Unopened, _) => self.end(now, key, true),
            (fit, Payload::Data(bytes, data)) => self.data(now, stream, fit, (bytes, data), false),
            (Fit::Wrong, _) => self.end_stream(now, stream, EndReason::PROTOCOL),
            (Fit::Late, _) => {}
            (Fit::Due, payload) => self.act(now, stream, payload),
        }
    }

    /// Handles a run of equal cells if they are DATA of an open stream of a circuit with one path; false otherwise.
    fn data_run(&mut self, now: Time, channel: ChannelId, cell: &Cell<O>, count: u32) -> bool {
        let Some((key, _)) = self.links.settled_circuit(channel, cell.circ) else { return false };
        let circuit = &mut self.circuits[key.0 as usize];
        let is_alone = matches!((&circuit.switch, &circuit.linked), (Switch::None, Linked::No));
        if cell.command != Command::Relay || !is_alone {
            return false;
        }
        let hops = circuit.hops.len();
        let Ok((hop, Message { stream, payload })) = O::open(&mut circuit.hops, cell.body.clone()) else {
            return false;
        };
        if hop + 1 != hops || Self::fit(circuit, stream, &payload) != Fit::Due {
            return false;
        }
        let Payload::Data(bytes, data) = payload else { return false };
        let stream = StreamKey { circuit: key, stream };
        for cell in 0..count {
            // A violation or a full queue has ended the circuit with the cell before.
            if !self.circuits.contains(key.0 as usize) {
                break;
            }
            self.data(now, stream, Fit::Due, (bytes, data.clone()), cell > 0);
        }
        true
    }

    /// Handles DATA. It counts for the circuit's window even if the stream is closed.
    ///
    /// `again`: it equals the one before, which has just been delivered.
    fn data(&mut self, now: Time, stream: StreamKey, fit: Fit, (bytes, data): (u16, O::Data), again: bool) {
        let key = stream.circuit;
        let Ok((owed, _)) = self.circuits[key.0 as usize].edge.deliver(stream.stream) else {
            return self.end(now, key, true);
        };
        match self.outputs.back_mut() {
            Some(Output::Deliver(_, _, _, cells)) if again => *cells += 1,
            _ if fit == Fit::Due => self.outputs.push_back(Output::Deliver(stream, bytes, data, 1)),
            _ => {}
        }
        if owed.circuit {
            self.acknowledge(now, key);
        }
        if fit == Fit::Wrong {
            self.end_stream(now, stream, EndReason::PROTOCOL);
        } else if owed.stream && self.circuits.contains(key.0 as usize) {
            self.say(now, key, stream.stream, Payload::Sendme(None));
        }
    }

    /// Ends a stream and sends END with a reason.
    fn end_stream(&mut self, now: Time, stream: StreamKey, reason: EndReason) {
        let Some(circuit) = self.circuits.get_mut(stream.circuit.0 as usize) else { return };
        if circuit.edge.close(stream, &mut self.wakes) {
            self.outputs.push_back(Output::StreamClosed(stream, reason));
            self.say(now, stream.circuit, stream.stream, Payload::End(reason));
        }
    }

    /// Carries out a message that is due.
    fn act(&mut self, now: Time, stream: StreamKey, payload: Payload<O>) {
        let key = stream.circuit;
        let circuit = &mut self.circuits[key.0 as usize];
        match payload {
            Payload::Nothing => {}
            Payload::Extended(body) if circuit.handshake.is_some() => self.extended(now, key, &body),
            Payload::Connected => {
                circuit.edge.connect(stream.stream);
                self.outputs.push_back(Output::StreamConnected(stream));
            }
            Payload::Resolved(answer) => {
                circuit.edge.close(stream, &mut self.wakes);
                self.outputs.push_back(Output::Resolved(stream, answer));
            }
            Payload::Sendme(digest) => {
                let blocked = self.links.is_blocked(circuit.leg);
                match circuit.edge.sendme(now, stream.stream, digest, blocked) {
                    Ok(()) => {
                        self.leg_acknowledged(now, key);
                        self.resume(key);
                    }
                    Err(_) => self.end(now, key, true),
                }
            }
            Payload::Xoff => self.hear(now, stream, Signal::Xoff),
            Payload::Xon(rate) => self.hear(now, stream, Signal::Xon(rate)),
            Payload::End(reason) => {
                if circuit.edge.close(stream, &mut self.wakes) {
                    self.outputs.push_back(Output::StreamClosed(stream, reason));
                }
            }
            _ => self.end(now, key, true),
        }
    }

    /// The exit stops a stream, or states its rate.
    fn hear(&mut self, now: Time, stream: StreamKey, signal: Signal) {
        let edge = &mut self.circuits[stream.circuit.0 as usize].edge;
        if !edge.allows(stream.stream, signal, &self.links.config().stream_flow) {
            return self.end(now, stream.circuit, true);
        }
        edge.hear(now, stream, signal, &mut self.wakes);
        if signal != Signal::Xoff {
            self.resume(stream.circuit);
        }
    }

    /// Lets a stream go on that the exit's rate has stopped until now.
    fn wake(&mut self, now: Time, stream: StreamKey) {
        if !self.circuits.contains(stream.circuit.0 as usize) {
            return;
        }
        let (_, room) = self.room(stream.circuit);
        let edge = &mut self.circuits[stream.circuit.0 as usize].edge;
        // Without room, the circuit resumes it later.
        if edge.wake(now, stream, &mut self.wakes) && room > 0 {
            self.outputs.push_back(Output::Package(stream, room));
        }
    }

    /// Sends a circuit SENDME with the digest of the last cell (proposal 289).
    fn acknowledge(&mut self, now: Time, key: CircuitKey) {
        let last = self.circuits[key.0 as usize].hops.last();
        let heard = self.heard.or_else(|| last.and_then(O::client_digests).map(|[heard, _]| heard));
        self.say(now, key, StreamId(0), Payload::Sendme(heard));
    }

    fn resume(&mut self, key: CircuitKey) {
        self.package_again(key, Edge::resumable);
    }

    fn package_again(&mut self, key: CircuitKey, which: fn(&mut Edge, u32) -> Vec<(StreamId, u32)>) {
        let (key, cells) = self.room(key);
        for (stream, cells) in which(&mut self.circuits[key.0 as usize].edge, cells) {
            self.outputs.push_back(Output::Package(StreamKey { circuit: key, stream }, cells));
        }
    }

    fn end(&mut self, now: Time, key: CircuitKey, destroy: bool) {
        // The peer's DESTROY ends one leg of a set; our own decision ends all legs.
        let key = self.unlink(now, key, !destroy, &[]);
        let Some(circuit) = self.circuits.try_remove(key.0 as usize) else { return };
        circuit.edge.forget_wakes(key, &mut self.wakes);
        self.outputs.push_back(Output::CircuitClosed(key));
        let channel = self.links.remove_leg(now, circuit.leg, destroy.then_some(DestroyReason::NONE));
        self.close_if_spent(now, channel);
        self.end_switch(now, &circuit.switch);
    }

    /// Ends the other circuit of an unfinished switch, since neither path is complete without this one.
    fn end_switch(&mut self, now: Time, switch: &Switch<O>) {
        match switch {
            Switch::None => {}
            Switch::Awaiting { old, .. } => {
                if let Some(other) = self.circuits.get_mut(old.0 as usize) {
                    other.switch = Switch::None;
                }
                self.end(now, *old, true);
            }
            Switch::Ceded(streams) => {
                if let Some(other) = self.circuits.get_mut(streams.0 as usize) {
                    other.switch = Switch::None;
                }
                self.end(now, *streams, true);
            }
        }
    }

    fn close_if_spent(&mut self, now: Time, channel: ChannelId) {
        if self.links.is_spent(channel) {
            self.links.closed(now, channel);
            self.outputs.push_back(Output::CloseChannel(channel));
        }
    }

    fn circuit_cell(&mut self, now: Time, key: CircuitKey, cell: Cell<O>) {
        match cell.command {
            Command::Created if self.circuits[key.0 as usize].hops.is_empty() => {
                self.extended(now, key, &cell.body);
            }
            Command::Relay => self.relayed(now, key, cell.body),
            Command::Destroy => self.end(now, key, false),
            _ => self.end(now, key, true),
        }
    }
}
