//! The tests' client and relays, and the wires between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{CELL_BYTES, Cell, Command, RelayId};
use tidegate_proto::client::Client;
use tidegate_proto::links::{ChannelId, Config, Departure, kist};
use tidegate_proto::node::{Budget, CircuitKey, Node, Output, Sink, Source, StreamKey};
use tidegate_proto::onion::{Clear, Onion, Stamp};
use tidegate_proto::relay::Relay;

pub const CLIENT: usize = 4;

/// Nodes 0 to 3 are relays, node 4 is the client. Cells cross one at a time in the order of writing.
pub struct Net {
    pub now: Time,
    pub client: Client<Clear>,
    pub relays: Vec<Relay<Clear>>,
    /// (node, channel) -> (node, channel) at the other end.
    pub wires: BTreeMap<(usize, ChannelId), (usize, ChannelId)>,
    pub flying: VecDeque<(usize, ChannelId, Cell<Clear>)>,
    /// Bytes each exit stream still has to send.
    pub sources: BTreeMap<(usize, StreamKey), u64>,
    pub received: BTreeMap<StreamKey, Vec<u32>>,
    pub uploaded: u64,
    pub built: Vec<CircuitKey>,
    pub linked: Vec<CircuitKey>,
    pub closed: Vec<CircuitKey>,
    pub switched: usize,
    pub seen_channels: usize,
    /// Capacity of a wire in cells, and the writers that wait.
    pub capacity: usize,
    pub waiting: BTreeSet<(usize, ChannelId)>,
    /// The socket state that the driver reports.
    pub sockets: Random,
    /// Relays get cells that they read at once together.
    pub together: bool,
}

pub struct Numbered<'a>(pub &'a mut u64);
impl Source<Clear> for Numbered<'_> {
    fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
        let bytes = u64::from(max).min(*self.0);
        *self.0 -= bytes;
        // The trace number counts down, so that the receiver can check the order.
        (bytes > 0).then(|| (bytes as u16, Stamp { trace: *self.0 as u32, ..Stamp::default() }))
    }
}

/// A wire's remaining capacity, as a sink.
struct Wire {
    room: usize,
    cells: Vec<Cell<Clear>>,
    full: bool,
}

impl Sink<Clear> for Wire {
    fn budget(&mut self) -> Budget {
        self.full = self.room == 0;
        // Several at a time, to check that a channel writes only the cells that it has.
        if self.full { Budget::Blocked } else { Budget::Cells(self.room.min(7) as u32) }
    }

    fn begin(&mut self, cells: u32, bytes: u64) -> bool {
        assert!(bytes <= u64::from(cells * CELL_BYTES));
        true
    }

    fn write(&mut self, departure: Departure<Clear>) {
        self.room -= 1;
        self.cells.push(departure.cell);
    }
}

impl Net {
    pub fn new(config: &Config) -> Net {
        let own = |n| Config { nonces: config.nonces.fork_index(n), ..config.clone() };
        Net {
            now: Time::ZERO,
            client: Client::new(Clear::default(), own(CLIENT as u64)),
            relays: (0..CLIENT as u64).map(|n| Relay::new(Clear::default(), own(n))).collect(),
            wires: BTreeMap::new(),
            flying: VecDeque::new(),
            sources: BTreeMap::new(),
            received: BTreeMap::new(),
            uploaded: 0,
            built: vec![],
            linked: vec![],
            closed: vec![],
            switched: 0,
            seen_channels: 0,
            capacity: usize::MAX,
            waiting: BTreeSet::new(),
            sockets: config.nonces.fork("sockets").random(),
            together: true,
        }
    }

    pub fn node(&mut self, at: usize) -> &mut dyn Node<Clear> {
        if at == CLIENT { &mut self.client } else { &mut self.relays[at] }
    }

    pub fn drain(&mut self, at: usize) {
        while let Some(output) = self.node(at).poll() {
            let now = self.now;
            match output {
                Output::OpenChannel(ours, RelayId(to)) => {
                    let from = (at != CLIENT).then_some(RelayId(at as u32));
                    let theirs = self.relays[to as usize].channel_accepted(from);
                    self.wires.insert((at, ours), (to as usize, theirs));
                    self.wires.insert((to as usize, theirs), (at, ours));
                    self.seen_channels += 1;
                    self.node(at).channel_opened(now, ours);
                }
                Output::CloseChannel(ours) => {
                    let (to, theirs) = self.wires.remove(&(at, ours)).unwrap();
                    self.wires.remove(&(to, theirs));
                    // Cells written before the close arrive before it.
                    let mine = |(node, channel, _): &(usize, ChannelId, Cell<Clear>)| {
                        (*node, *channel) == (to, theirs)
                    };
                    let (due, rest): (VecDeque<_>, _) =
                        std::mem::take(&mut self.flying).into_iter().partition(mine);
                    self.flying = rest;
                    for (_, channel, cell) in due {
                        self.node(to).cell(now, channel, cell);
                    }
                    self.node(to).channel_closed(now, theirs);
                    self.drain(to);
                }
                Output::Inspect(channel) => {
                    let random = &mut self.sockets;
                    let socket = kist::Socket {
                        window: random.below(20) as u32,
                        unacknowledged: random.below(20) as u32,
                        unsent_bytes: random.below(20_000) as u64,
                        segment_bytes: 1448,
                    };
                    // Some drivers cannot read the socket state.
                    let known = self.sockets.below(4) > 0;
                    self.node(at).socket(now, channel, known.then_some(socket));
                }
                Output::Flush(channel) => self.write(at, channel),
                Output::Connect(stream, bytes) => {
                    self.sources.insert((at, stream), bytes);
                    self.node(at).stream_connected(now, stream);
                    self.package(at, stream, u32::MAX);
                }
                Output::Package(stream, cells) => self.package(at, stream, cells),
                Output::Deliver(stream, _, stamp, _) if at == CLIENT => {
                    self.received.entry(stream).or_default().push(stamp.trace);
                }
                Output::Deliver(_, bytes, ..) => self.uploaded += u64::from(bytes),
                Output::StreamClosed(stream, _) => drop(self.sources.remove(&(at, stream))),
                Output::CircuitBuilt(key) => self.built.push(key),
                Output::Linked(key) => self.linked.push(key),
                Output::CircuitClosed(key) => self.closed.push(key),
                Output::Switched(..) => self.switched += 1,
                Output::StreamConnected(_) | Output::Resolved(..) | Output::CircuitEnded(..) => {}
                Output::OutOfBand(channel, cell, _) => {
                    let (to, theirs) = self.wires[&(at, channel)];
                    self.node(to).cell(now, theirs, cell);
                    self.drain(to);
                }
            }
        }
    }

    /// The node with the next timeout.
    pub fn next_timeout(&mut self) -> Option<(Time, usize)> {
        let due = |at| self.node(at).next_timeout().map(|due| (due, at));
        (0..=CLIENT).filter_map(due).min()
    }

    /// Fires the timeouts that are due, or the next one if no cell is in transit; false if they lead to nothing for a
    /// while.
    pub fn run_timers(&mut self) -> bool {
        let quiet = self.now + Span::from_secs(2);
        while let Some((due, at)) = self.next_timeout() {
            if due > self.now && !self.flying.is_empty() || due > quiet {
                break;
            }
            self.now = self.now.max(due);
            let now = self.now;
            self.node(at).timeout(now);
            self.drain(at);
        }
        !self.flying.is_empty()
    }

    pub fn write(&mut self, at: usize, channel: ChannelId) {
        let Some(&(to, theirs)) = self.wires.get(&(at, channel)) else { return };
        let here = self.flying.iter().filter(|(node, other, _)| (*node, *other) == (to, theirs)).count();
        let mut wire = Wire { room: self.capacity.saturating_sub(here), cells: Vec::new(), full: false };
        let now = self.now;
        self.node(at).drain(now, channel, &mut wire);
        self.flying.extend(wire.cells.into_iter().map(|cell| (to, theirs, cell)));
        if wire.full {
            self.waiting.insert((at, channel));
        } else {
            self.waiting.remove(&(at, channel));
        }
    }

    /// Sends bytes of the client on a stream; `settle` delivers cells after each write.
    pub fn upload(&mut self, stream: StreamKey, mut left: u64, mut settle: impl FnMut(&mut Self)) {
        while left > 0 {
            let now = self.now;
            self.client.package(now, stream, u32::MAX, &mut Numbered(&mut left));
            settle(self);
        }
    }

    /// Checks that all uploaded bytes and all cells of downloads of these sizes came once and in order.
    pub fn assert_exact(&self, uploaded: u64, downloads: impl Iterator<Item = (StreamKey, u64)>) {
        assert_eq!(self.uploaded, uploaded);
        assert!(self.closed.is_empty());
        for (stream, size) in downloads {
            let traces = &self.received[&stream];
            assert_eq!(traces.len() as u64, size.div_ceil(498), "every cell once");
            assert!(traces.is_sorted_by(|a, b| a > b), "in order");
        }
    }

    /// Takes up to `most` cells from a wire.
    fn read(&mut self, wire: (usize, ChannelId), most: usize) -> Vec<Cell<Clear>> {
        let next = |net: &mut Self| {
            let first = net.flying.iter().position(|(to, channel, _)| (*to, *channel) == wire)?;
            net.flying.remove(first).map(|(_, _, cell)| cell)
        };
        (0..most).map_while(|_| next(self)).collect()
    }

    /// Delivers cells from wires chosen at random, each wire in order, until none is left. Relays read up to four cells at
    /// once. One read in `alarm` starts a move: the receiver moves to another connection, if it can, or the client to a spare.
    pub fn settle_at_random(&mut self, random: &mut Random, alarm: usize) {
        for at in 0..=CLIENT {
            self.drain(at);
        }
        while self.run_timers() {
            let any = &self.flying[random.below(self.flying.len())];
            let wire = (any.0, any.1);
            let (to, channel) = wire;
            let most = if to == CLIENT { 1 } else { 1 + random.below(4) };
            let cells = self.read(wire, most);
            self.now += Span::from_millis(1);
            let now = self.now;
            let circ = cells[0].circ;
            if self.wires.contains_key(&wire) {
                if self.together {
                    self.node(to).cells_arrived(now, channel, &mut cells.into_iter().map(|cell| (cell, 1)));
                } else {
                    cells.into_iter().for_each(|cell| self.node(to).cell(now, channel, cell));
                }
            }
            if random.below(alarm) == 0 {
                self.drain(to);
                if self.wires.contains_key(&wire) {
                    let command = Command::Congested;
                    self.node(to).cell(now, channel, Cell { circ, command, body: Clear::empty() });
                }
            }
            self.drain(to);
            self.resume(wire);
        }
    }

    /// Lets the writer of a wire that was read continue, if it waits.
    fn resume(&mut self, wire: (usize, ChannelId)) {
        if let Some(&(writer, theirs)) = self.wires.get(&wire)
            && self.waiting.contains(&(writer, theirs))
        {
            self.write(writer, theirs);
            self.drain(writer);
        }
    }

    pub fn package(&mut self, at: usize, stream: StreamKey, cells: u32) {
        let Some(mut left) = self.sources.get(&(at, stream)).copied() else { return };
        let now = self.now;
        self.node(at).package(now, stream, cells, &mut Numbered(&mut left));
        self.sources.insert((at, stream), left);
    }

    pub fn settle(&mut self) {
        for at in 0..=CLIENT {
            self.drain(at);
        }
        while self.run_timers() && self.settle_once() {}
    }

    /// Delivers one cell; false without one.
    pub fn settle_once(&mut self) -> bool {
        let Some((to, channel, cell)) = self.flying.pop_front() else { return false };
        self.now += Span::from_micros(10);
        let now = self.now;
        if self.wires.contains_key(&(to, channel)) {
            self.node(to).cell(now, channel, cell);
        }
        self.drain(to);
        self.resume((to, channel));
        true
    }
}
