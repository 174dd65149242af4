//! A relay: forwards cells between the two legs of a circuit, and is the exit of circuits that end here.

mod defended;
mod driven;
mod handover;
mod linked;
mod memory;
mod points;
mod roles;
mod runs;
mod shards;
mod shown;
mod table;
mod watch;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use slab::Slab;
use tidegate_control::units::{Span, Time};

use crate::cell::{
    Cell, CircId, Command, DestroyReason, Digest, EndReason, Message, Nonce, Payload, RelayId, StreamId,
};
use crate::conflux::{Broken, Link, Linked};
use crate::control::{Controller, Place, Plant, StreamFlow, Timer, Totals};
use crate::defence::{Defence, StreamAction};
use crate::edge::{Edge, Phase, Signal, Wakes};
use crate::ending::{Ending, Endings};
use crate::links::{ChannelId, Config, LegId, Limits, Links, Side};
use crate::node::{CircuitKey, Output, StreamKey};
use crate::onion::Onion;
use handover::Shards;
pub use handover::{Between, HandedOver};
use linked::Unlinked;
use roles::{Points, Role};
pub use shown::Shown;
use table::{CELL_COST, Circuit, Switch, Table};
use watch::Watch;
pub use watch::{AddressCounts, Handshakes};

/// A relay without its sockets.
pub struct Relay<O: Onion> {
    onion: O,
    table: Table<O>,
    /// Exit: unfinished switches, by nonce: the circuits that clients have left, and those that they have joined.
    left: BTreeMap<Nonce, CircuitKey>,
    joined: BTreeMap<Nonce, CircuitKey>,
    cells: u64,
    controller: Option<Box<dyn Controller>>,
    watch: Option<Watch>,
    /// Defences that the consensus turns on.
    defence: Option<Defence>,
    points: Points,
    shards: Shards<O>,
    /// Bytes that streams' local sides have not consumed, and bytes of messages that wait for a LEAVE or for earlier
    /// messages of linked circuits.
    held: u64,
    shed: u64,
    endings: Endings,
    /// The digest with which the message at hand arrived, if a switch held it.
    heard: Option<Digest>,
    /// Circuits that moved to another connection or path here.
    moves: u64,
    draining: bool,
}

/// A circuit without a stream at this relay counts as in use until it was silent so long.
const SILENCE: Span = Span::from_secs(2);
/// Maximum number of messages that wait for a LEAVE. More would exceed the client's window.
const MAX_HELD: usize = 4096;
/// RELAY_EARLY cells that a circuit may carry (tor-spec, "Handling relay_early cells").
const MAX_EARLY: u8 = 8;

/// The answer to a refused RESOLVE: a transient error, without a text, with a lifetime of 0 (tor-spec, "Remote hostname
/// lookup").
const TRY_AGAIN: [u8; 6] = [0xf0, 0, 0, 0, 0, 0];

impl<O: Onion> Relay<O> {
    /// A relay without channels.
    pub fn new(onion: O, config: Config) -> Relay<O> {
        let place = Place { bandwidth: config.bandwidth, clock: config.clock };
        let controller = config.control.controller(&place);
        let first_allowance = controller.as_ref().map(|controller| controller.first_allowance().0);
        let watch = config.limits.map(Watch::new);
        let points = Points::new(config.limits.unwrap_or_default().points);
        let links = Links::new(config, first_allowance);
        Relay {
            onion,
            table: Table {
                links,
                circuits: Slab::new(),
                outputs: VecDeque::new(),
                sets: BTreeMap::new(),
                wakes: Wakes::default(),
            },
            left: BTreeMap::new(),
            joined: BTreeMap::new(),
            cells: 0,
            controller,
            watch,
            defence: None,
            points,
            shards: Shards::default(),
            held: 0,
            shed: 0,
            endings: Endings::default(),
            heard: None,
            moves: 0,
            draining: false,
        }
    }

    /// The keys of this relay.
    pub fn onion(&mut self) -> &mut O {
        &mut self.onion
    }

    /// The limits on what neighbours may use, if there are any.
    pub fn limits(&self) -> Option<&Limits> {
        self.watch.as_ref().map(|watch| &watch.limits)
    }

    /// Whether to reject a connection from an address, because the address has too many. If the relay is full, another
    /// connection is closed to make room: the idlest one of the network that has the most.
    pub fn turns_away(&mut self, now: Time, address: IpAddr) -> bool {
        if self.watch.as_ref().is_some_and(|watch| watch.is_crowded(address)) {
            return true;
        }
        self.make_room(now, address);
        false
    }

    /// Closes connections until another one of an address has a place.
    fn make_room(&mut self, now: Time, address: IpAddr) {
        while let Some(watch) = &mut self.watch
            && let Some(displaced) = watch.displaced(address, |id| self.table.links.is_bare(id))
        {
            self.close_channel(now, displaced);
        }
    }

    /// Ends circuits until another one of an address has a place: the idlest ones of the network that has the most.
    fn make_room_for_circuit(&mut self, now: Time, of: Option<IpAddr>) {
        let Some(of) = of else { return };
        let used = |circuits: &Slab<Circuit<O>>, key: &CircuitKey| circuits[key.0 as usize].used;
        while let Some(watch) = &mut self.watch
            && let Some(displaced) = watch.displaced_circuit(of, |key| used(&self.table.circuits, key))
        {
            self.end(now, displaced, Ending::Idle);
        }
    }

    /// Gives a new circuit its place.
    fn hold(&mut self, now: Time, of: Option<IpAddr>, circuit: CircuitKey) {
        if let (Some(watch), Some(of)) = (&mut self.watch, of) {
            watch.holds(now, of, circuit);
        }
    }

    /// Number of circuits that have a place.
    pub fn held_circuits(&self) -> usize {
        self.watch.as_ref().map_or(0, Watch::held)
    }

    /// The network of the neighbour that a circuit comes from.
    pub fn network_of(&self, circuit: CircuitKey) -> Option<IpAddr> {
        self.table.circuits.get(circuit.0 as usize)?.owner
    }

    /// Replaces the parameters of streams' flow control.
    pub fn set_stream_flow(&mut self, flow: StreamFlow) {
        self.table.links.set_stream_flow(flow);
    }

    /// Refuses further circuits.
    pub fn drain_circuits(&mut self) {
        self.draining = true;
    }

    /// Whether a draining relay need not wait: no circuit has a stream or queued cells here, and none has carried a cell
    /// for 2 s. A relay that does not drain is never drained.
    pub fn is_drained(&self, now: Time) -> bool {
        let is_in_use = |circuit: &Circuit<O>| {
            let has_stream = circuit.edge.as_ref().is_some_and(|edge| edge.ids().next().is_some());
            let mut legs = [Some(circuit.prev), circuit.next].into_iter().flatten();
            let waits = legs.any(|leg| self.table.links.traffic(leg).0 > 0);
            has_stream || waits || now.since(circuit.used) < SILENCE
        };
        self.draining && !self.table.circuits.iter().any(|(_, circuit)| is_in_use(circuit))
    }

    /// Replaces the limits, if there are any.
    pub fn set_limits(&mut self, limits: Limits) {
        if let Some(watch) = &mut self.watch {
            watch.set_limits(limits);
        }
    }

    /// Notes the address that a channel comes from.
    pub fn channel_is_from(&mut self, now: Time, channel: ChannelId, address: IpAddr) {
        if let Some(watch) = &mut self.watch {
            watch.accepted(now, channel, address);
        }
    }

    /// Cells received so far.
    pub fn cells_processed(&self) -> u64 {
        self.cells
    }

    /// Circuits that this relay closed so far, by reason.
    pub fn endings(&self) -> Endings {
        self.endings
    }

    /// Moves of circuits to another connection, or at an exit to another path, that were completed here.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Number of KIST's runs so far.
    pub fn kist_runs(&self) -> u64 {
        self.table.links.kist_runs()
    }

    /// Cells sent right after one of the same circuit while another waited on the same connection. Round robin never sends so.
    pub fn repeated_turns(&self) -> u64 {
        self.table.links.repeated()
    }

    /// Turns that KIST gave a connection before one that had waited longer, as the scheduler orders them. Round robin never
    /// causes one.
    pub fn overtaking_turns(&self) -> u64 {
        self.table.links.overtakes()
    }

    /// Whether the circuit comes from a client, which does not prove an identity.
    pub fn is_from_client(&self, circuit: CircuitKey) -> bool {
        let circuit = self.table.circuits.get(circuit.0 as usize);
        circuit.is_some_and(|circuit| self.table.links.is_at_guard(circuit.prev))
    }

    /// Number of circuits that pass or end here.
    pub fn circuits(&self) -> usize {
        self.table.circuits.len() - self.passed()
    }

    fn create(&mut self, now: Time, channel: ChannelId, circ: CircId, body: &O::Body, fast: bool) {
        let defended = self.may_create(now, channel);
        if self.draining {
            return self.table.links.refuse(now, channel, circ, DestroyReason::HIBERNATING);
        }
        if !defended {
            return self.table.links.refuse(now, channel, circ, DestroyReason::RESOURCE_LIMIT);
        }
        let Ok(owner) = self.watch.as_mut().map_or(Ok(None), |watch| watch.begin(now, channel)) else {
            return self.table.links.refuse(now, channel, circ, DestroyReason::RESOURCE_LIMIT);
        };
        // Its own connection may end with the circuit that makes room.
        self.make_room_for_circuit(now, owner);
        if !self.table.links.has(channel) {
            return self.disown(owner);
        }
        let key = CircuitKey(self.table.circuits.vacant_key() as u32);
        let begun = (self.onion.accept(body, fast)).and_then(|accepted| {
            Some((accepted, self.table.links.accept_leg(channel, circ, key, Side::Prev)?))
        });
        let Some(((hop, answer), prev)) = begun else {
            self.disown(owner);
            return self.table.links.refuse(now, channel, circ, DestroyReason::PROTOCOL);
        };
        let switch = Switch::None;
        self.table.circuits.insert(Circuit {
            owner,
            used: now,
            prev,
            next: None,
            extending: None,
            early: 0,
            hop,
            edge: None,
            switch,
            linked: Linked::No,
            role: Role::None,
            introduced: false,
            opened: None,
        });
        self.hold(now, owner, key);
        if let Some(controller) = &mut self.controller {
            controller.begun(key);
        }
        let created = if fast { Command::CreatedFast } else { Command::Created };
        self.push(now, key, prev, created, answer);
    }

    /// Ends a stream and sends END with a reason.
    pub fn end_stream(&mut self, now: Time, stream: StreamKey, reason: EndReason) {
        self.close_stream(now, stream, reason, Payload::End(reason));
    }

    /// Ends a stream to an address that the exit policy refuses. Clients may remember that for so many seconds.
    pub fn refuse_stream(&mut self, now: Time, stream: StreamKey, address: IpAddr, seconds: u32) {
        self.close_stream(now, stream, EndReason::EXIT_POLICY, Payload::Refused(address, seconds));
    }

    /// Answers a RESOLVE request. `answer` is in wire format.
    pub fn resolved(&mut self, now: Time, stream: StreamKey, answer: Box<[u8]>) {
        self.close_stream(now, stream, EndReason::DONE, Payload::Resolved(answer));
    }

    fn close_stream(&mut self, now: Time, stream: StreamKey, reason: EndReason, last: Payload<O>) {
        if self.drop_stream(stream) {
            self.table.outputs.push_back(Output::StreamClosed(stream, reason));
            self.say(now, stream.circuit, stream.stream, last);
        }
    }

    /// Removes a stream; false if it does not exist.
    fn drop_stream(&mut self, stream: StreamKey) -> bool {
        let circuit = self.table.circuits.get_mut(stream.circuit.0 as usize);
        let Some(edge) = circuit.and_then(|circuit| circuit.edge.as_deref_mut()) else { return false };
        let before = edge.held();
        let closed = edge.close(stream, &mut self.table.wakes);
        self.held -= before - edge.held();
        closed
    }

    /// Totals of the controller, if there is one that counts.
    pub fn control_totals(&self) -> Option<Totals> {
        self.controller.as_ref()?.totals()
    }

    /// The next timer, and whether it is a step of the controller.
    fn next_timer(&self) -> Option<(Timer, bool)> {
        let step = self.controller.as_ref().and_then(|controller| controller.next_step());
        match (self.table.links.next_run(), step) {
            (Some(run), Some(step)) if step < run => Some((step, true)),
            (Some(run), _) => Some((run, false)),
            (None, step) => step.map(|step| (step, true)),
        }
    }

    /// Gives a neighbour's message to the controller.
    fn receive(&mut self, now: Time, channel: ChannelId, body: O::Body) {
        let links = &mut self.table.links;
        if let Some(controller) = &mut self.controller {
            controller.receive(now, O::plain(&body), &|circ| links.circuit_of(channel, circ));
        }
        links.recycle(O::recycle(body));
    }

    fn push(&mut self, now: Time, key: CircuitKey, leg: LegId, command: Command, body: O::Body) {
        self.try_push(now, key, leg, (command, body), 1);
    }

    /// Queues a run of equal cells on a leg. A full queue ends the circuit; returns false then.
    fn try_push(
        &mut self,
        now: Time,
        key: CircuitKey,
        leg: LegId,
        cell: (Command, O::Body),
        count: u32,
    ) -> bool {
        let queued = self.table.links.push_run(now, leg, cell, count).is_ok();
        if !queued {
            self.note_overflow(now, key, leg);
            self.end(now, key, Ending::QueueFull);
        }
        queued
    }

    /// Sends a message to the client. Stream messages of linked circuits go over the chosen leg.
    fn say(&mut self, now: Time, key: CircuitKey, stream: StreamId, payload: Payload<O>) {
        let (key, missed) = if payload.is_of_stream() { self.table.way(key) } else { (key, None) };
        if let Some(missed) = missed {
            self.say(now, key, StreamId(0), Payload::Switch(missed));
            // A full queue has ended the leg with that.
            if !self.table.contains(key) {
                return;
            }
        }
        let circuit = &mut self.table.circuits[key.0 as usize];
        let body = O::originate(&mut circuit.hop, Message { stream, payload });
        let prev = circuit.prev;
        self.push(now, key, prev, Command::Relay, body);
    }

    fn peel(&mut self, now: Time, key: CircuitKey, command: Command, mut body: O::Body) {
        let circuit = &mut self.table.circuits[key.0 as usize];
        if let (Role::Passed, Some(next)) = (&circuit.role, circuit.next) {
            return self.push(now, key, next, command, body);
        }
        let early = command == Command::Early;
        circuit.early += u8::from(early);
        if circuit.early > MAX_EARLY {
            return self.end(now, key, Ending::EarlyCells);
        }
        match O::peel(&mut circuit.hop, early, &mut body) {
            Ok(None) => match (circuit.next, &circuit.role) {
                (Some(next), _) if circuit.extending.is_none() => self.push(now, key, next, command, body),
                (None, Role::Joined(other)) => {
                    let other = *other;
                    self.cross(now, other, body);
                }
                _ => self.end(now, key, Ending::BeyondEnd),
            },
            // Tor drops an EXTEND in a cell other than RELAY_EARLY (tor-spec, "Handling relay_early cells").
            Ok(Some(Message { payload: Payload::Extend(..), .. })) if !early => {}
            Ok(Some(message)) => self.message(now, key, message),
            Err(_) => self.end(now, key, Ending::Unreadable),
        }
    }

    fn wrap(&mut self, now: Time, key: CircuitKey, command: Command, mut body: O::Body) {
        let circuit = &mut self.table.circuits[key.0 as usize];
        match command {
            Command::Relay if circuit.extending.is_none() => {
                // The shard with the circuit's end has added the layer.
                if !matches!(circuit.role, Role::Passed) {
                    O::wrap(&mut circuit.hop, &mut body);
                }
                let prev = circuit.prev;
                self.push(now, key, prev, Command::Relay, body);
            }
            Command::Created if circuit.extending.is_some() => {
                self.waits_no_more(key);
                if let Some(controller) = &mut self.controller {
                    controller.joined(key);
                }
                self.say(now, key, StreamId(0), Payload::Extended(body));
            }
            _ => self.end(now, key, Ending::UnexpectedCell),
        }
    }

    /// Exit: follows the client from one circuit to another once its LEAVE and its JOIN are here. The two circuits swap
    /// their paths, so that streams keep their keys.
    fn switch(&mut self, now: Time, nonce: Nonce) {
        let (Some(&old), Some(&new)) = (self.left.get(&nonce), self.joined.get(&nonce)) else { return };
        self.moves += 1;
        self.left.remove(&nonce);
        self.joined.remove(&nonce);
        // Streams stay with the old circuit, which gets the new path.
        let [a, b] = self.table.circuits.get_disjoint_mut([old.0 as usize, new.0 as usize]).expect("listed");
        std::mem::swap(&mut a.prev, &mut b.prev);
        std::mem::swap(&mut a.hop, &mut b.hop);
        a.switch = Switch::None;
        if let Some(edge) = a.edge.as_deref_mut() {
            edge.carry(O::terms(&a.hop).data_bytes);
        }
        let held = std::mem::replace(&mut b.switch, Switch::None);
        if let Some(controller) = &mut self.controller {
            controller.exchanged(old, new);
        }
        self.table.links.assign(a.prev, old);
        self.table.links.assign(b.prev, new);
        self.say(now, new, StreamId(0), Payload::Leave(nonce));
        if let Switch::Joined(_, _, held) = held {
            self.held -= held.len() as u64 * CELL_COST;
            for (message, heard) in held {
                if self.table.contains(old) {
                    // Its SENDME must have the digest of the time when it arrived.
                    self.heard = heard;
                    self.message(now, old, message);
                    self.heard = None;
                }
            }
        }
        if self.table.contains(old) {
            self.table.resume(old);
        }
    }

    fn circuit_cell(&mut self, now: Time, key: CircuitKey, side: Side, cell: Cell<O>) {
        self.table.circuits[key.0 as usize].used = now;
        match (cell.command, side) {
            (Command::Destroy, _) => self.part(now, key, Some(side), Ending::by(side)),
            // The circuit id is in use: tor drops the cell.
            (Command::Create | Command::CreateFast, Side::Prev) => {}
            (Command::Relay | Command::Early, Side::Prev) => self.peel(now, key, cell.command, cell.body),
            (_, Side::Next) => self.wrap(now, key, cell.command, cell.body),
            _ => self.end(now, key, Ending::UnexpectedCell),
        }
    }

    fn extend(&mut self, now: Time, key: CircuitKey, relay: RelayId, body: O::Body) {
        let prev = self.table.circuit(key).prev;
        let prev = self.table.links.channel_of(prev);
        if self.watch.as_mut().is_some_and(|watch| !watch.may_shake(now, prev)) {
            return self.end(now, key, Ending::Handshakes);
        }
        let (channel, must_open) = self.table.links.channel_to(now, relay);
        if must_open && !self.open_channel(now, key, channel, relay) {
            return;
        }
        let circuit = &mut self.table.circuits[key.0 as usize];
        let at_guard = self.table.links.is_at_guard(circuit.prev);
        let next = self.table.links.begin_leg(channel, key, Side::Next, at_guard);
        circuit.next = Some(next);
        circuit.extending = Some(now);
        if let Some(watch) = &mut self.watch {
            watch.extends(now, key);
        }
        self.push(now, key, next, Command::Create, body);
    }

    /// Opens a channel that a circuit needs. False if the circuit lost its own connection, which made room.
    fn open_channel(&mut self, now: Time, key: CircuitKey, channel: ChannelId, relay: RelayId) -> bool {
        if self.watch.is_some() {
            // Circuits that no limit counts have one place in common.
            let of = self.table.circuit(key).owner.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            self.make_room(now, of);
            if !self.table.contains(key) {
                self.forget_channel(now, channel);
                return false;
            }
            if let Some(watch) = &mut self.watch {
                watch.opens(now, channel, of);
            }
        }
        self.table.outputs.push_back(Output::OpenChannel(channel, relay));
        true
    }

    fn waits_no_more(&mut self, key: CircuitKey) {
        if let Some(since) = self.table.circuit(key).extending.take()
            && let Some(watch) = &mut self.watch
        {
            watch.extended(since, key);
        }
    }

    fn disown(&mut self, owner: Option<IpAddr>) {
        if let (Some(watch), Some(owner)) = (&mut self.watch, owner) {
            watch.ended(owner);
        }
    }

    /// Ends a circuit and sends DESTROY to both neighbours.
    fn end(&mut self, now: Time, key: CircuitKey, ending: Ending) {
        self.part(now, key, None, ending);
    }

    /// Ends a circuit and sends DESTROY to the neighbours, except to the one that sent it.
    fn part(&mut self, now: Time, key: CircuitKey, told_by: Option<Side>, ending: Ending) {
        let key = self.unlink(now, key, told_by.is_some(), &BTreeSet::new());
        let Some(circuit) = self.forget(key, ending) else { return };
        self.leave_joined(now, &circuit);
        let tell = |side| (told_by != Some(side)).then_some(ending.destroy());
        let channel = self.table.links.remove_leg(now, circuit.prev, tell(Side::Prev));
        self.close_if_spent(now, channel);
        if let Some(next) = circuit.next {
            let channel = self.table.links.remove_leg(now, next, tell(Side::Next));
            self.close_if_spent(now, channel);
        }
    }

    /// Forgets a circuit, but not its legs.
    fn forget(&mut self, key: CircuitKey, ending: Ending) -> Option<Circuit<O>> {
        if !self.table.contains(key) {
            return None;
        }
        self.waits_no_more(key);
        let circuit = self.table.circuits.remove(key.0 as usize);
        if let Some(watch) = &mut self.watch {
            watch.gone(key);
        }
        if self.is_counted(&circuit.role) {
            self.endings.add(ending);
            self.table.outputs.push_back(Output::CircuitEnded(key, ending));
        }
        self.disown(circuit.owner);
        self.forget_switch(&circuit.switch);
        self.points.forget(key, &circuit.role);
        if let Some(edge) = &circuit.edge {
            self.held -= edge.held();
            edge.forget_wakes(key, &mut self.table.wakes);
            for stream in edge.ids() {
                let stream = StreamKey { circuit: key, stream };
                self.table.outputs.push_back(Output::StreamClosed(stream, EndReason::DESTROY));
            }
        }
        Some(circuit)
    }

    fn forget_switch(&mut self, switch: &Switch<O>) {
        match switch {
            Switch::None => {}
            Switch::Left(nonce) => drop(self.left.remove(nonce)),
            Switch::Joined(nonce, _, held) => {
                self.held -= held.len() as u64 * CELL_COST;
                self.joined.remove(nonce);
            }
        }
    }

    /// Forgets a channel and its place. Returns the circuits on it.
    fn forget_channel(&mut self, now: Time, channel: ChannelId) -> Vec<(CircuitKey, Side)> {
        // The number of a closed channel is used again, so the old place must be free by then.
        if let Some(watch) = &mut self.watch {
            watch.closed(channel);
        }
        self.table.links.closed(now, channel)
    }

    fn close_if_spent(&mut self, now: Time, channel: ChannelId) {
        if self.table.links.is_spent(channel) {
            self.forget_channel(now, channel);
            self.table.outputs.push_back(Output::CloseChannel(channel));
        }
    }

    /// Closes a channel and the circuits on it.
    fn close_channel(&mut self, now: Time, channel: ChannelId) {
        self.orphan(now, channel);
        self.table.outputs.push_back(Output::CloseChannel(channel));
    }

    /// Forgets a closed channel and ends its circuits. Their other neighbours get DESTROY.
    fn orphan(&mut self, now: Time, channel: ChannelId) {
        let legs = self.forget_channel(now, channel);
        let gone = legs.iter().map(|(circuit, _)| *circuit).collect();
        let mut joined = Vec::new();
        for (key, side) in legs {
            let key = self.unlink(now, key, true, &gone);
            let ending = Ending::without(side);
            let Some(circuit) = self.forget(key, ending) else { continue };
            let other = match side {
                Side::Prev => circuit.next,
                Side::Next => Some(circuit.prev),
            };
            if let Some(leg) = other {
                let channel = self.table.links.remove_leg(now, leg, Some(ending.destroy()));
                self.close_if_spent(now, channel);
            }
            joined.push(circuit);
        }
        // The circuits joined with these may be on the same channel, without legs: they are forgotten by now.
        for circuit in joined {
            self.leave_joined(now, &circuit);
        }
    }

    /// Handles a message from the client, unless a switch of circuits holds it.
    fn message(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        // The two circuits may be on two shards.
        if self.is_shard() && matches!(message.payload, Payload::Leave(_) | Payload::Join(_)) {
            return self.end(now, key, Ending::WrongMove);
        }
        if let Some(to) = self.elsewhere(&message.payload) {
            return self.hand_over(now, key, to, message);
        }
        let circuit = &mut self.table.circuits[key.0 as usize];
        match &mut circuit.switch {
            Switch::None => {}
            Switch::Joined(_, _, held) if held.len() < MAX_HELD => {
                self.held += CELL_COST;
                let heard = O::digests(&circuit.hop).map(|[heard, _]| heard);
                return held.push((message, heard));
            }
            // A client must not send more than its window, or anything after LEAVE.
            Switch::Joined(..) | Switch::Left(_) => return self.end(now, key, Ending::WrongMove),
        }
        match self.table.circuit(key).linked {
            Linked::No => self.act(now, key, message),
            Linked::First(_) | Linked::With(_) => self.leg_message(now, key, message),
        }
    }

    /// Carries out a message.
    fn act(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        let circuit = &mut self.table.circuits[key.0 as usize];
        let stream = StreamKey { circuit: key, stream: message.stream };
        if !matches!(circuit.role, Role::None) && message.payload.uses_the_end() {
            return self.end(now, key, Ending::UnexpectedMessage);
        }
        match (message.payload, circuit.edge.as_deref_mut()) {
            (Payload::Nothing, _) => {}
            // Tor drops messages that only clients receive, and those of unknown streams.
            (Payload::Connected | Payload::Resolved(_) | Payload::Extended(_) | Payload::Truncated, _)
            | (Payload::Data(..) | Payload::End(_) | Payload::Xoff | Payload::Xon(_), None) => {}
            (Payload::Sendme(_), None) if message.stream.0 != 0 => {}
            (Payload::Extend(peer, body), None) if circuit.next.is_none() => {
                // A relay must not extend a circuit to the previous relay (tor-spec, "EXTEND and EXTENDED cells").
                let behind = self.table.links.peer(circuit.prev);
                match self.onion.relay(&peer).filter(|relay| behind != Some(*relay)) {
                    Some(relay) => self.extend(now, key, relay, body),
                    None => self.end(now, key, Ending::ExtendRefused),
                }
            }
            // Tor drops a BEGIN for stream 0 or for an existing stream.
            (Payload::Begin(_), _) if message.stream.0 == 0 => {}
            (Payload::Begin(_), Some(edge)) if edge.has(message.stream) => {}
            (Payload::Begin(address), _) if circuit.next.is_none() => self.begin(now, stream, address),
            (Payload::Misread, _) => self.say(now, key, message.stream, Payload::End(EndReason::PROTOCOL)),
            (Payload::Truncate, _) => self.truncate(now, key),
            (Payload::Data(bytes, data), Some(edge)) => match edge.deliver(message.stream) {
                Ok((owed, known)) => {
                    let lookup = edge.phase(message.stream) == Some(Phase::Resolving);
                    if known && !lookup {
                        self.table.outputs.push_back(Output::Deliver(stream, bytes, data, 1));
                    }
                    if owed.circuit {
                        self.acknowledge(now, key);
                    }
                    if lookup {
                        // Lookups do not carry data (tor-spec, "Remote hostname lookup").
                        self.end_stream(now, stream, EndReason::PROTOCOL);
                    } else if owed.stream && self.table.contains(key) {
                        self.say(now, key, message.stream, Payload::Sendme(None));
                    }
                }
                Err(_) => self.end(now, key, Ending::BeyondWindow),
            },
            (Payload::Sendme(digest), Some(edge)) => {
                let blocked = self.table.links.is_blocked(circuit.prev);
                let taken = edge.sendme(now, message.stream, digest, blocked).is_ok();
                self.table.leg_acknowledged(now, key);
                self.resume_or_end(now, key, taken, Ending::WrongSendme);
            }
            (Payload::Xoff, Some(edge)) => edge.hear(now, stream, Signal::Xoff, &mut self.table.wakes),
            (Payload::Xon(rate), Some(edge)) => {
                edge.hear(now, stream, Signal::Xon(rate), &mut self.table.wakes);
                self.table.resume(key);
            }
            (Payload::Leave(nonce), Some(_)) if !self.left.contains_key(&nonce) => {
                circuit.switch = Switch::Left(nonce);
                self.left.insert(nonce, key);
                self.switch(now, nonce);
            }
            (Payload::Join(nonce), None) if circuit.next.is_none() && !self.joined.contains_key(&nonce) => {
                circuit.switch = Switch::Joined(nonce, now, Vec::new());
                self.joined.insert(nonce, key);
                self.switch(now, nonce);
            }
            (Payload::Link(link), None) => self.link(now, key, &link),
            (Payload::Service(command, data), _) => self.service_message(now, key, command, &data),
            (Payload::End(reason), Some(_)) => {
                if self.drop_stream(stream) {
                    self.table.outputs.push_back(Output::StreamClosed(stream, reason));
                    self.table.resume(key);
                }
            }
            (Payload::Leave(_) | Payload::Join(_), _) => self.end(now, key, Ending::WrongMove),
            (Payload::Link(_) | Payload::LinkedAck | Payload::Switch(_), _) => {
                self.end(now, key, Ending::WrongLink);
            }
            _ => self.end(now, key, Ending::UnexpectedMessage),
        }
    }

    /// Sends a circuit SENDME with the digest of the last cell (proposal 289).
    fn acknowledge(&mut self, now: Time, key: CircuitKey) {
        let now_heard = || O::digests(&self.table.circuit(key).hop).map(|[heard, _]| heard);
        let heard = self.heard.or_else(now_heard);
        self.say(now, key, StreamId(0), Payload::Sendme(heard));
    }

    /// Resumes sending if a message about windows was valid, and otherwise ends the circuit.
    fn resume_or_end(&mut self, now: Time, key: CircuitKey, right: bool, otherwise: Ending) {
        if right { self.table.resume(key) } else { self.end(now, key, otherwise) }
    }

    /// Creates this end of a circuit, with or without congestion control as its client asked.
    fn edge(&mut self, key: CircuitKey) -> Edge {
        let controller = self.controller.as_ref();
        let allowance = controller.map_or(f64::INFINITY, |steers| steers.first_allowance().1);
        let terms = O::terms(&self.table.circuit(key).hop);
        Edge::agreed(terms, self.table.links.config(), allowance)
    }

    /// Opens a stream at this end of the circuit.
    fn begin(&mut self, now: Time, stream: StreamKey, address: O::Address) {
        let key = stream.circuit;
        match self.defend_stream(now, key, &address) {
            StreamAction::Accept => {}
            StreamAction::EndCircuit => return self.end(now, key, Ending::Streams),
            StreamAction::EndStream if O::is_lookup(&address) => {
                return self.say(now, key, stream.stream, Payload::Resolved(TRY_AGAIN.into()));
            }
            // RESOURCE_LIMIT would let clients avoid this exit until the next consensus.
            StreamAction::EndStream => {
                return self.say(now, key, stream.stream, Payload::End(EndReason::MISC));
            }
        }
        if self.table.circuit(key).edge.is_none() {
            let edge = self.edge(key);
            self.table.circuit(key).edge = Some(Box::new(edge));
        }
        let lookup = O::is_lookup(&address);
        let add =
            |edge: &mut Edge| if lookup { edge.look_up(stream.stream) } else { edge.open(stream.stream) };
        let opened = self.table.circuit(key).edge.as_deref_mut().is_some_and(add);
        if opened {
            self.table.outputs.push_back(Output::Connect(stream, address));
        } else {
            self.say(now, stream.circuit, stream.stream, Payload::End(EndReason::RESOURCE_LIMIT));
        }
    }

    /// Cuts a circuit behind this relay.
    fn truncate(&mut self, now: Time, key: CircuitKey) {
        self.waits_no_more(key);
        if let Some(next) = self.table.circuits[key.0 as usize].next.take() {
            let channel = self.table.links.remove_leg(now, next, Some(DestroyReason::NONE));
            self.close_if_spent(now, channel);
        }
        self.say(now, key, StreamId(0), Payload::Truncated);
    }

    /// Handles LINK: makes a circuit a leg of a set.
    fn link(&mut self, now: Time, key: CircuitKey, theirs: &Link) {
        let edge = self.edge(key);
        match self.table.link(now, key, edge, theirs) {
            Ok(ours) => self.say(now, key, StreamId(0), Payload::Linked(Box::new(ours))),
            Err(refused) => {
                for key in refused {
                    self.end(now, key, Ending::WrongLink);
                }
            }
        }
    }

    /// Takes a closing circuit out of its set; see [`Table::unlink`]. Returns the circuit to remove.
    fn unlink(&mut self, now: Time, key: CircuitKey, alone: bool, gone: &BTreeSet<CircuitKey>) -> CircuitKey {
        let Unlinked { circuit, exchanged, freed, ends } = self.table.unlink(key, alone, gone);
        self.held -= freed;
        if let (Some((a, b)), Some(controller)) = (exchanged, &mut self.controller) {
            controller.exchanged(a, b);
        }
        for leg in ends {
            self.end(now, leg, Ending::LinkedCircuit);
        }
        circuit
    }

    /// Handles a message that came on a leg.
    fn leg_message(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        let first = self.table.first(key);
        let Some(set) = self.table.set(first) else { return };
        let done = match message.payload {
            Payload::LinkedAck => set.answered(now, key),
            Payload::Switch(missed) => set.switched(key, missed),
            Payload::Link(_) | Payload::Leave(_) | Payload::Join(_) => Err(Broken),
            _ if message.payload.is_of_stream() => return self.leg_brings(now, key, message),
            _ => return self.act(now, key, message),
        };
        self.resume_or_end(now, key, done.is_ok(), Ending::WrongLink);
    }

    /// Handles a stream's message from a leg. A DATA cell counts for the leg's window at once, but is delivered in order.
    fn leg_brings(&mut self, now: Time, key: CircuitKey, message: Message<O>) {
        if let (Payload::Data(..), Some(edge)) =
            (&message.payload, self.table.circuit(key).edge.as_deref_mut())
        {
            match edge.deliver(StreamId(0)) {
                Ok((owed, _)) if owed.circuit => self.acknowledge(now, key),
                Ok(_) => {}
                Err(_) => return self.end(now, key, Ending::BeyondWindow),
            }
        }
        let first = self.table.first(key);
        let Some(set) = self.table.set(first) else { return };
        let before = set.held_bytes();
        let due = set.receive(now, key, message);
        let held = set.held_bytes();
        self.held = self.held + held - before;
        let Ok(mut due) = due else { return self.end(now, key, Ending::WrongLink) };
        while let Some(message) = due {
            self.let_out(now, first, message);
            let Some(set) = self.table.set(first) else { return };
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
        match edge.and_then(|edge| edge.phase(message.stream)) {
            Some(Phase::Resolving) => self.end_stream(now, stream, EndReason::PROTOCOL),
            Some(_) => self.table.outputs.push_back(Output::Deliver(stream, bytes, data, 1)),
            None => {}
        }
    }
}
