//! A client and relays under arbitrary cells at arbitrary times.
//!
//! Cells have [`Clear`] bodies, so that arbitrary messages reach the end for which they are meant.

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{
    CELL_BYTES, Cell, CircId, Command, DATA_BYTES, Digest, EndReason, Message, Nonce, Payload, RelayId,
    StreamId,
};
use tidegate_proto::client::Client;
use tidegate_proto::conflux::{Link, Wish};
use tidegate_proto::links::{ChannelId, Config, Departure, Limits, kist};
use tidegate_proto::node::{Budget, CircuitKey, Node, Output, Sink, Source, StreamKey};
use tidegate_proto::onion::{Clear, ClearBody, Onion as _, Stamp};
use tidegate_proto::registry::{CONTROLS, SCHEDULERS, SPLITS};
use tidegate_proto::relay::Relay;
use tidegate_proto::switching::{Form, Switching};
use tidegate_proto::transport::{Sharing, Transport};

/// The nodes: relays, and behind them the client.
const RELAYS: usize = 3;
const CLIENT: usize = RELAYS;
/// Bytes that a node holds. 16 circuits of at most 100 cells in each direction have 1.6 MB; output buffers come on top.
const MOST_HELD: u64 = 4 << 20;
/// Outputs of one event. More are a loop.
const OUTPUTS: usize = 100_000;

/// How all nodes are configured.
#[derive(Debug, Arbitrary)]
struct Choice {
    scheduler: u8,
    control: u8,
    split: Option<u8>,
    transport: u8,
    switching: Option<bool>,
    kist: bool,
    limits: bool,
}

impl Choice {
    fn config(&self) -> Config {
        let transports = [
            Transport::Vanilla,
            Transport::PerCircuit,
            Transport::Quic,
            Transport::Threshold { connections: 2, beyond: Sharing::RoundRobin },
        ];
        let split = |part: u8| SPLITS[usize::from(part) % SPLITS.len()].by_default();
        let form = |circuit| if circuit { Form::Circuit } else { Form::Connection };
        Config {
            scheduler: SCHEDULERS[usize::from(self.scheduler) % SCHEDULERS.len()].by_default(),
            control: CONTROLS[usize::from(self.control) % CONTROLS.len()].by_default(),
            conflux: self.split.map(split),
            transport: transports[usize::from(self.transport) % transports.len()],
            switching: self
                .switching
                .map(|circuit| Switching { form: form(circuit), ..Switching::default() }),
            kist: self.kist.then(kist::KistParameters::default),
            limits: self.limits.then(Limits::default),
            queue_high: 20,
            queue_low: 5,
            queue_limit: 100,
            circuits_per_channel: 8,
            unread_limit: 16,
            ..Config::default()
        }
    }
}

/// One event. Numbers choose among what exists.
#[derive(Clone, Debug, Arbitrary)]
enum Event {
    /// Time passes; due timers fire at the end, late.
    Wait {
        micros: u32,
    },
    /// A timer fires early.
    EarlyTimeout {
        node: u8,
    },
    /// The oldest cells of a connection arrive together.
    Arrive {
        wire: u8,
        cells: u8,
    },
    /// Equal arbitrary cells arrive together.
    Forge {
        wire: u8,
        cell: AnyCell,
        cells: u8,
    },
    /// A stranger connects.
    Accept {
        node: u8,
        relay: Option<u8>,
    },
    /// A connection breaks.
    Break {
        wire: u8,
    },
    /// A connection takes `cells` further cells.
    Unblock {
        wire: u8,
        cells: u8,
    },
    Build {
        path: [u8; 3],
        hops: u8,
    },
    Open {
        circuit: u8,
        bytes: u64,
    },
    Close {
        circuit: u8,
    },
    Link {
        circuits: [u8; 3],
        wish: u8,
    },
    KeepStandby {
        circuit: u8,
        spare: u8,
    },
    Switch {
        circuit: u8,
    },
    Package {
        node: u8,
        circuit: u8,
        stream: u8,
        cells: u8,
    },
    Backlog {
        node: u8,
        circuit: u8,
        stream: u8,
        bytes: u32,
    },
    EndStream {
        node: u8,
        circuit: u8,
        stream: u8,
    },
}

/// A cell that a neighbour may send.
#[derive(Clone, Debug, Arbitrary)]
struct AnyCell {
    circ: u8,
    opener: bool,
    command: u8,
    layers: u8,
    stream: u8,
    content: Content,
}

#[derive(Clone, Debug, Arbitrary)]
enum Content {
    Handshake(Option<bool>),
    Plain(Vec<u8>),
    Data(u16),
    Begin(u64),
    Connected,
    Resolved(Vec<u8>),
    End(u8),
    Sendme(Option<[u8; 20]>),
    Xoff,
    Xon(u32),
    Leave(bool),
    Join(bool),
    Link(u64, u64, u8),
    Linked(u64, u64, u8),
    LinkedAck,
    Switch(u32),
    Extend(u8),
    Extended,
    Truncate,
    Truncated,
    Misread,
    Nothing,
}

fn wish(number: u8) -> Wish {
    let wishes = [
        Wish::None,
        Wish::MinLatency,
        Wish::MinLatencyLowMemory,
        Wish::Throughput,
        Wish::ThroughputLowMemory,
    ];
    wishes[usize::from(number) % wishes.len()]
}

impl AnyCell {
    fn cell(self) -> Cell<Clear> {
        const COMMANDS: [Command; 11] = [
            Command::Create,
            Command::Created,
            Command::CreateFast,
            Command::CreatedFast,
            Command::Relay,
            Command::Early,
            Command::Destroy,
            Command::Leave,
            Command::Join,
            Command::Congested,
            Command::Plan,
        ];
        let command = COMMANDS[usize::from(self.command) % COMMANDS.len()];
        let circ = CircId(u32::from(self.circ % 8) | if self.opener { 1 << 31 } else { 0 });
        let nonce = |one: bool| Nonce([u8::from(one); 8]);
        let link = |sent, delivered, number| {
            Box::new(Link { nonce: [number % 2; 32], sent, delivered, wish: wish(number) })
        };
        let payload = match self.content {
            Content::Handshake(asked) => {
                return Cell { circ, command, body: ClearBody::Handshake(asked) };
            }
            Content::Plain(mut bytes) => {
                bytes.truncate(CELL_BYTES as usize - 7);
                return Cell { circ, command, body: Clear::from_plain(bytes) };
            }
            Content::Data(bytes) => Payload::Data(bytes.min(DATA_BYTES), Stamp::default()),
            Content::Begin(bytes) => Payload::Begin(bytes),
            Content::Connected => Payload::Connected,
            Content::Resolved(bytes) => Payload::Resolved(bytes.into()),
            Content::End(reason) => Payload::End(EndReason(reason)),
            Content::Sendme(digest) => Payload::Sendme(digest.map(Digest::Sha1)),
            Content::Xoff => Payload::Xoff,
            Content::Xon(rate) => Payload::Xon(rate),
            Content::Leave(one) => Payload::Leave(nonce(one)),
            Content::Join(one) => Payload::Join(nonce(one)),
            Content::Link(sent, delivered, number) => Payload::Link(link(sent, delivered, number)),
            Content::Linked(sent, delivered, number) => Payload::Linked(link(sent, delivered, number)),
            Content::LinkedAck => Payload::LinkedAck,
            Content::Switch(missed) => Payload::Switch(missed),
            Content::Extend(relay) => Payload::Extend(RelayId(u32::from(relay % 8)), Clear::empty()),
            Content::Extended => Payload::Extended(Clear::empty()),
            Content::Truncate => Payload::Truncate,
            Content::Truncated => Payload::Truncated,
            Content::Misread => Payload::Misread,
            Content::Nothing => Payload::Nothing,
        };
        let message = Message { stream: StreamId(u16::from(self.stream % 4)), payload };
        let body = Clear::seal(&mut [None; 4], usize::from(self.layers % 4), false, message);
        Cell { circ, command, body }
    }
}

/// A node and its channel.
type End = (usize, ChannelId);

/// One direction of a connection: cells in transit to `to`, and how many more the sender may write.
struct Wire {
    /// Nothing if a stranger holds the other end.
    to: Option<End>,
    cells: Vec<Cell<Clear>>,
    room: u32,
}

struct Writer<'a>(&'a mut Wire);

impl Sink<Clear> for Writer<'_> {
    fn budget(&mut self) -> Budget {
        if self.0.room == 0 { Budget::Blocked } else { Budget::Cells(self.0.room) }
    }
    fn begin(&mut self, cells: u32, _: u64) -> bool {
        assert!(cells <= self.0.room);
        true
    }
    fn write(&mut self, departure: Departure<Clear>) {
        self.0.room -= 1;
        self.0.cells.push(departure.cell);
    }
}

/// Bytes without end, as runs of cells or cell by cell.
struct Endless {
    in_runs: bool,
}

impl Source<Clear> for Endless {
    fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
        Some((max, Stamp::default()))
    }
    fn take_run(&mut self, max: u16, cells: u32) -> Option<(u16, Stamp, u32)> {
        Some((max, Stamp::default(), if self.in_runs { cells } else { 1 }))
    }
}

struct Overlay {
    /// Whether equal cells arrive and are packaged as runs, or one by one.
    in_runs: bool,
    now: Time,
    relays: Vec<Relay<Clear>>,
    client: Client<Clear>,
    /// By the end that writes.
    wires: BTreeMap<End, Wire>,
    circuits: Vec<CircuitKey>,
    /// DATA cells that reached an end of their stream.
    delivered: u64,
}

impl Overlay {
    fn new(config: &Config, in_runs: bool) -> Overlay {
        let own = |n| Config { nonces: Seed::root(1).fork_index(n), ..config.clone() };
        Overlay {
            in_runs,
            now: Time::ZERO,
            relays: (0..RELAYS as u64).map(|n| Relay::new(Clear::default(), own(n))).collect(),
            client: Client::new(Clear::default(), own(CLIENT as u64)),
            wires: BTreeMap::new(),
            circuits: Vec::new(),
            delivered: 0,
        }
    }

    fn node(&mut self, at: usize) -> &mut dyn Node<Clear> {
        if at == CLIENT { &mut self.client } else { &mut self.relays[at] }
    }

    fn wire(&self, number: u8) -> Option<End> {
        let count = self.wires.len().max(1);
        self.wires.keys().nth(usize::from(number) % count).copied()
    }

    fn circuit(&self, number: u8) -> CircuitKey {
        let count = self.circuits.len().max(1);
        self.circuits.get(usize::from(number) % count).copied().unwrap_or(CircuitKey(u32::from(number)))
    }

    /// Performs the requests of all nodes.
    fn settle(&mut self) {
        let mut handled = 0;
        // A node that acts may give work to a node that came before it.
        loop {
            let before = handled;
            for at in 0..=CLIENT {
                while let Some(output) = self.node(at).poll() {
                    handled += 1;
                    assert!(handled < OUTPUTS, "the nodes do not settle");
                    self.perform(at, output);
                }
                let (queued, buffered) = self.node(at).waiting();
                assert!(
                    queued * u64::from(CELL_BYTES) + buffered < MOST_HELD,
                    "{queued} cells, {buffered} bytes"
                );
            }
            if handled == before {
                break;
            }
        }
    }

    fn perform(&mut self, at: usize, output: Output<Clear>) {
        let now = self.now;
        match output {
            Output::OpenChannel(ours, RelayId(to)) => {
                let to = to as usize;
                if to >= RELAYS {
                    return self.node(at).channel_closed(now, ours);
                }
                let from = (at != CLIENT).then_some(RelayId(at as u32));
                let theirs = self.relays[to].channel_accepted(from);
                self.wires.insert((at, ours), Wire { to: Some((to, theirs)), cells: Vec::new(), room: 50 });
                self.wires.insert((to, theirs), Wire { to: Some((at, ours)), cells: Vec::new(), room: 50 });
                self.node(at).channel_opened(now, ours);
            }
            Output::CloseChannel(ours) => {
                let wire = self.wires.remove(&(at, ours)).expect("a node closes its own channels");
                self.closed(wire.to);
            }
            Output::OutOfBand(channel, cell, _) => {
                if let Some(wire) = self.wires.get_mut(&(at, channel)) {
                    wire.cells.push(cell);
                }
            }
            Output::Flush(channel) => self.write((at, channel)),
            Output::Inspect(channel) => self.node(at).socket(now, channel, None),
            Output::Connect(stream, bytes) => {
                if bytes % 2 == 0 {
                    self.node(at).stream_connected(now, stream);
                } else {
                    self.node(at).stream_ended(now, stream);
                }
            }
            Output::Package(stream, cells) => self.package(at, stream, cells.min(20)),
            Output::CircuitClosed(key) => self.circuits.retain(|other| *other != key),
            Output::Deliver(_, bytes, _, cells) => {
                assert!(bytes <= DATA_BYTES);
                self.delivered += u64::from(cells);
            }
            Output::StreamClosed(..)
            | Output::CircuitBuilt(_)
            | Output::Linked(_)
            | Output::StreamConnected(_)
            | Output::Resolved(..)
            | Output::CircuitEnded(..)
            | Output::Switched(..) => {}
        }
    }

    fn closed(&mut self, other: Option<End>) {
        if let Some(end) = other
            && self.wires.remove(&end).is_some()
        {
            let now = self.now;
            self.node(end.0).channel_closed(now, end.1);
        }
    }

    fn write(&mut self, end: End) {
        let Some(mut wire) = self.wires.remove(&end) else { return };
        let now = self.now;
        self.node(end.0).drain(now, end.1, &mut Writer(&mut wire));
        self.wires.insert(end, wire);
    }

    fn package(&mut self, at: usize, stream: StreamKey, cells: u32) {
        let (now, mut source) = (self.now, Endless { in_runs: self.in_runs });
        self.node(at).package(now, stream, cells, &mut source);
    }

    /// Cells arrive together: equal ones as runs, or one by one.
    fn arrive(&mut self, (at, channel): End, cells: impl Iterator<Item = Cell<Clear>>) {
        let now = self.now;
        if !self.in_runs {
            return cells.for_each(|cell| self.node(at).cell(now, channel, cell));
        }
        let mut runs: Vec<(Cell<Clear>, u32)> = Vec::new();
        for cell in cells {
            match runs.last_mut() {
                Some((last, count)) if *last == cell => *count += 1,
                _ => runs.push((cell, 1)),
            }
        }
        self.node(at).cells_arrived(now, channel, &mut runs.into_iter());
    }

    /// Builds three circuits and opens a stream on each: arbitrary events seldom build one.
    fn begin(&mut self) {
        for path in [[0, 1, 2], [1, 0, 2], [2, 1, 2]] {
            self.handle(Event::Build { path, hops: 2 });
        }
        self.deliver();
        for circuit in 0..3 {
            self.handle(Event::Open { circuit, bytes: 1000 });
        }
        self.deliver();
    }

    /// Cells arrive until none is under way. KIST writes them only after some time.
    fn deliver(&mut self) {
        let mut still = 0;
        while still < 3 {
            self.settle();
            still += 1;
            for end in self.wires.keys().copied().collect::<Vec<_>>() {
                let Some(wire) = self.wires.get_mut(&end) else { continue };
                let Some(to) = wire.to else { continue };
                wire.room = 50;
                let cells = std::mem::take(&mut wire.cells);
                still = if cells.is_empty() { still } else { 0 };
                self.arrive(to, cells.into_iter());
                self.settle();
            }
            if still > 0 {
                self.now += Span::from_millis(10);
                self.fire();
            }
        }
    }

    /// Asserts that both overlays hold the same cells and circuits.
    fn assert_equals(&self, other: &Overlay) {
        assert_eq!((&self.circuits, self.delivered), (&other.circuits, other.delivered));
        let waiting = |overlay: &Overlay| -> Vec<(u64, u64)> {
            let relays = overlay.relays.iter().map(Node::waiting);
            relays.chain([overlay.client.waiting()]).collect()
        };
        assert_eq!(waiting(self), waiting(other));
        assert!(self.wires.keys().eq(other.wires.keys()), "they have other connections");
        for (end, wire) in &self.wires {
            let same = &other.wires[end];
            assert_eq!((&wire.cells, wire.room, wire.to), (&same.cells, same.room, same.to));
        }
    }

    fn stream(&self, node: u8, circuit: u8, stream: u8) -> (usize, StreamKey) {
        let at = usize::from(node) % (CLIENT + 1);
        let circuit = if at == CLIENT { self.circuit(circuit) } else { CircuitKey(u32::from(circuit % 8)) };
        (at, StreamKey { circuit, stream: StreamId(u16::from(stream % 4)) })
    }

    /// Fires all timers that are due.
    fn fire(&mut self) {
        for at in 0..=CLIENT {
            let now = self.now;
            for fired in 0.. {
                if self.node(at).next_timeout().is_none_or(|due| due > now) {
                    break;
                }
                assert!(fired < OUTPUTS, "timers do not end");
                self.node(at).timeout(now);
                self.settle();
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Wait { micros } => {
                self.now += Span::from_micros(u64::from(micros % 2_000_000));
                self.fire();
            }
            Event::EarlyTimeout { node } => self.node(usize::from(node) % (CLIENT + 1)).timeout(now),
            Event::Arrive { wire, cells } => {
                let Some(wire) = self.wire(wire).and_then(|end| self.wires.get_mut(&end)) else { return };
                let Some(to) = wire.to else { return wire.cells.clear() };
                let count = wire.cells.len().min(1 + usize::from(cells));
                let cells: Vec<_> = wire.cells.drain(..count).collect();
                self.arrive(to, cells.into_iter());
            }
            Event::Forge { wire, cell, cells } => {
                let Some(end) = self.wire(wire) else { return };
                self.arrive(end, std::iter::repeat_n(cell.cell(), 1 + usize::from(cells)));
            }
            Event::Accept { node, relay } => {
                let at = usize::from(node) % RELAYS;
                let from = relay.map(|relay| RelayId(u32::from(relay % 8)));
                let channel = self.relays[at].channel_accepted(from);
                self.wires.insert((at, channel), Wire { to: None, cells: Vec::new(), room: 0 });
            }
            Event::Break { wire } => {
                let Some(end) = self.wire(wire) else { return };
                let other = self.wires[&end].to;
                self.closed(Some(end));
                self.closed(other);
            }
            Event::Unblock { wire, cells } => {
                let Some(end) = self.wire(wire) else { return };
                if let Some(wire) = self.wires.get_mut(&end) {
                    wire.room += u32::from(cells);
                }
                self.write(end);
            }
            Event::Package { node, circuit, stream, cells } => {
                let (at, stream) = self.stream(node, circuit, stream);
                self.package(at, stream, u32::from(cells));
            }
            Event::Backlog { node, circuit, stream, bytes } => {
                let (at, stream) = self.stream(node, circuit, stream);
                self.node(at).backlog(now, stream, u64::from(bytes), u64::from(bytes));
            }
            Event::EndStream { node, circuit, stream } => {
                let (at, stream) = self.stream(node, circuit, stream);
                self.node(at).stream_ended(now, stream);
            }
            event => self.client_event(event),
        }
    }

    /// Calls of the client's application.
    fn client_event(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Build { path, hops } if self.circuits.len() < 16 => {
                let relay = |n: u8| RelayId(u32::from(n) % RELAYS as u32);
                let path = path.into_iter().take(1 + usize::from(hops % 3)).map(relay).collect();
                let key = self.client.build(now, path);
                self.circuits.push(key);
            }
            Event::Open { circuit, bytes } => drop(self.client.open(now, self.circuit(circuit), bytes)),
            Event::Close { circuit } => self.client.close(now, self.circuit(circuit)),
            Event::Link { circuits, wish: number } => {
                let legs = circuits.map(|number| self.circuit(number));
                self.client.link(now, &legs[..1 + usize::from(number % 3)], wish(number));
            }
            Event::KeepStandby { circuit, spare } => {
                let (circuit, spare) = (self.circuit(circuit), self.circuit(spare));
                self.client.keep_standby(circuit, spare);
            }
            Event::Switch { circuit } => self.client.switch(now, self.circuit(circuit)),
            _ => {}
        }
    }
}

/// A client and three relays under any sequence of events. Nodes stay within their limits, settle after every event and do
/// not panic. Runs of equal cells have the effect of their cells one by one.
pub fn proto_overlay(input: &[u8]) {
    let Some((choice, events)) = crate::typed::<(Choice, Vec<Event>)>(input) else { return };
    run(&choice, events);
}

/// Runs the events; returns the number of DATA cells that reached an end of their stream.
fn run(choice: &Choice, events: Vec<Event>) -> u64 {
    let mut overlays = [true, false].map(|in_runs| Overlay::new(&choice.config(), in_runs));
    overlays.iter_mut().for_each(Overlay::begin);
    overlays[0].assert_equals(&overlays[1]);
    for event in events {
        for overlay in &mut overlays {
            overlay.handle(event.clone());
            overlay.settle();
        }
        overlays[0].assert_equals(&overlays[1]);
    }
    overlays[0].delivered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_data_cross_the_overlay_in_both_directions() {
        for scheduler in 0..SCHEDULERS.len() as u8 {
            let (split, switching, kist, limits) = (None, None, false, true);
            let choice = Choice { scheduler, control: 0, split, transport: 0, switching, kist, limits };
            let node = |from: usize, circuit| (0..4).map(move |stream| (from as u8, circuit, stream));
            let ends = node(CLIENT, 0).chain((0..8).flat_map(|circuit| node(2, circuit)));
            let package =
                ends.map(|(node, circuit, stream)| Event::Package { node, circuit, stream, cells: 40 });
            let arrive = (0..200).flat_map(|round| {
                let wire = (round % 12) as u8;
                [Event::Arrive { wire, cells: 30 }, Event::Unblock { wire, cells: 60 }]
            });
            let delivered = run(&choice, package.chain(arrive).collect());
            assert!(delivered >= 100, "{scheduler}: {delivered} cells");
        }
    }
}
