//! A client and relays wired back to back, without a network: what the machines do together.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{Cell, CircId, Command, RelayId, StreamId};
use tidegate_proto::client::Client;
use tidegate_proto::links::{ChannelId, Config, Transport};
use tidegate_proto::node::{CircuitKey, Node, Output, Source, StreamKey};
use tidegate_proto::onion::{Clear, ClearBody, ClearMessage, Onion, Stamp};
use tidegate_proto::relay::Relay;
use tidegate_proto::scheduler::Kind;

const CLIENT: usize = 3;

/// Nodes 0..3 are relays, 3 is the client. Cells cross in the order they were written, one at a time.
struct Net {
    now: Time,
    client: Client<Clear>,
    relays: Vec<Relay<Clear>>,
    /// (node, channel) -> (node, channel) at the other end.
    wires: BTreeMap<(usize, ChannelId), (usize, ChannelId)>,
    flying: VecDeque<(usize, ChannelId, Cell<Clear>)>,
    /// Bytes each exit stream still has to send.
    sources: BTreeMap<(usize, StreamKey), u64>,
    received: BTreeMap<StreamKey, Vec<u32>>,
    uploaded: u64,
    built: Vec<CircuitKey>,
    closed: Vec<CircuitKey>,
    seen_channels: usize,
}

struct Numbered<'a>(&'a mut u64);
impl Source<Clear> for Numbered<'_> {
    fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
        let bytes = u64::from(max).min(*self.0);
        *self.0 -= bytes;
        // The trace number counts down, so that the receiver can check the order.
        (bytes > 0).then(|| (bytes as u16, Stamp { trace: *self.0 as u32, ..Stamp::default() }))
    }
}

impl Net {
    fn new(config: &Config) -> Net {
        Net {
            now: Time::ZERO,
            client: Client::new(Clear, config.clone()),
            relays: (0..3).map(|_| Relay::new(Clear, config.clone())).collect(),
            wires: BTreeMap::new(),
            flying: VecDeque::new(),
            sources: BTreeMap::new(),
            received: BTreeMap::new(),
            uploaded: 0,
            built: vec![],
            closed: vec![],
            seen_channels: 0,
        }
    }

    fn node(&mut self, at: usize) -> &mut dyn Node<Clear> {
        if at == CLIENT { &mut self.client } else { &mut self.relays[at] }
    }

    fn drain(&mut self, at: usize) {
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
                    // What was written before the close arrives before it.
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
                Output::Flush(channel) => {
                    let (to, theirs) = self.wires[&(at, channel)];
                    while let Some(departure) = self.node(at).pop(now, channel) {
                        self.flying.push_back((to, theirs, departure.cell));
                    }
                }
                Output::Connect(stream, bytes) => {
                    self.sources.insert((at, stream), bytes);
                    self.node(at).stream_connected(now, stream);
                    self.package(at, stream, u32::MAX);
                }
                Output::Package(stream, cells) => self.package(at, stream, cells),
                Output::Deliver(stream, _, stamp) if at == CLIENT => {
                    self.received.entry(stream).or_default().push(stamp.trace);
                }
                Output::Deliver(_, bytes, _) => self.uploaded += u64::from(bytes),
                Output::StreamClosed(stream) => drop(self.sources.remove(&(at, stream))),
                Output::CircuitBuilt(key) => self.built.push(key),
                Output::CircuitClosed(key) => self.closed.push(key),
                Output::StreamConnected(_) => {}
            }
        }
    }

    fn package(&mut self, at: usize, stream: StreamKey, cells: u32) {
        let Some(mut left) = self.sources.get(&(at, stream)).copied() else { return };
        let now = self.now;
        self.node(at).package(now, stream, cells, &mut Numbered(&mut left));
        self.sources.insert((at, stream), left);
    }

    fn settle(&mut self) {
        for at in 0..=CLIENT {
            self.drain(at);
        }
        while let Some((to, channel, cell)) = self.flying.pop_front() {
            self.now += Span::from_micros(10);
            let now = self.now;
            if self.wires.contains_key(&(to, channel)) {
                self.node(to).cell(now, channel, cell);
            }
            self.drain(to);
        }
    }
}

fn configs() -> impl Iterator<Item = Config> {
    [Transport::Vanilla, Transport::PerCircuit].into_iter().flat_map(|transport| {
        [Kind::RoundRobin, Kind::Ewma { half_life: Span::from_secs(30) }].map(|scheduler| Config {
            transport,
            scheduler,
            ..Config::default()
        })
    })
}

const PATH: [RelayId; 3] = [RelayId(0), RelayId(1), RelayId(2)];

#[test]
fn downloads_arrive_whole_and_in_order_under_every_transport_and_scheduler() {
    for config in configs() {
        let mut net = Net::new(&config);
        let circuits: Vec<CircuitKey> = (0..5).map(|_| net.client.build(net.now, PATH.to_vec())).collect();
        net.settle();
        assert_eq!(net.built, circuits);
        let expected = if config.transport == Transport::Vanilla { 3 } else { 15 };
        assert_eq!(net.seen_channels, expected);

        let sizes = [1, 498, 499, 3_000_000, 1_234_567];
        let streams: Vec<StreamKey> = circuits
            .iter()
            .zip(sizes)
            .map(|(key, size)| net.client.open(net.now, *key, size).unwrap())
            .collect();
        net.settle();
        for (stream, size) in streams.iter().zip(sizes) {
            let traces = &net.received[stream];
            assert_eq!(traces.len() as u64, size.div_ceil(498), "every cell once");
            assert!(traces.is_sorted_by(|a, b| a > b), "in order");
            assert_eq!(traces.last(), Some(&0), "to the last byte");
        }
        for key in circuits {
            net.client.close(net.now, key);
        }
        net.settle();
        assert!(net.relays.iter().all(|relay| relay.circuits() == 0 && relay.waiting() == (0, 0)));
        assert!(net.sources.is_empty(), "exits forget their streams");
        if config.transport == Transport::PerCircuit {
            assert!(net.wires.is_empty(), "a circuit's connections close with it");
        }
    }
}

#[test]
fn many_streams_share_a_circuit_and_uploads_work() {
    let mut net = Net::new(&Config::default());
    let key = net.client.build(net.now, PATH.to_vec());
    net.settle();
    let streams: Vec<StreamKey> = (0..40).map(|_| net.client.open(net.now, key, 400_000).unwrap()).collect();
    net.settle();
    assert!(streams.iter().all(|stream| net.received[stream].last() == Some(&0)));

    let mut left = 700_000;
    while left > 0 {
        let now = net.now;
        net.client.package(now, streams[0], u32::MAX, &mut Numbered(&mut left));
        net.settle();
    }
    assert_eq!(net.uploaded, 700_000);
    let now = net.now;
    net.client.stream_ended(now, streams[0]);
    net.settle();
    assert_eq!(net.sources.len(), 39);
}

#[test]
fn a_broken_channel_ends_its_circuits_and_no_others() {
    let mut net = Net::new(&Config::default());
    let long = net.client.build(net.now, PATH.to_vec());
    let short = net.client.build(net.now, PATH[..1].to_vec());
    net.settle();
    let (&(at, ours), &(to, theirs)) =
        net.wires.iter().find(|((at, _), (to, _))| (*at, *to) == (1, 2)).unwrap();
    net.wires.remove(&(at, ours));
    net.wires.remove(&(to, theirs));
    let now = net.now;
    net.relays[1].channel_closed(now, ours);
    net.relays[2].channel_closed(now, theirs);
    net.settle();
    assert_eq!(net.closed, [long]);
    assert!(net.client.open(now, short, 498).is_some());
    net.settle();
    assert_eq!(net.relays[0].circuits(), 1);
}

#[test]
fn a_peer_that_floods_a_circuit_loses_it() {
    let config = Config { queue_limit: 100, queue_high: 50, ..Config::default() };
    let mut net = Net::new(&config);
    let key = net.client.build(net.now, PATH.to_vec());
    net.settle();
    // The middle's connection onwards takes nothing; its neighbour sends on regardless.
    let (&(_, from_client), _) =
        net.wires.iter().find(|((at, _), (to, _))| (*at, *to) == (0, CLIENT)).unwrap();
    let body = ClearBody { layers: 9, ..Clear::empty() };
    let now = net.now;
    for _ in 0..1000 {
        let cell = Cell { circ: CircId(1 | 1 << 31), command: Command::Relay, body: body.clone() };
        net.relays[0].cell(now, from_client, cell);
    }
    let (queued, buffered) = net.relays[0].waiting();
    assert!(queued <= 100 && buffered <= 34 << 10, "{queued} cells, {buffered} bytes");
    assert_eq!(net.relays[0].circuits(), 0, "the flooded circuit is gone");
    net.settle();
    assert_eq!(net.closed, [key]);
}

fn any_body() -> impl Strategy<Value = ClearBody> {
    (0u8..5, 0u16..4, any::<bool>()).prop_map(|(layers, stream, data)| {
        let stamp = Stamp::default();
        let message = if data {
            ClearMessage::Data { stream: StreamId(stream), bytes: 498, stamp }
        } else {
            ClearMessage::Handshake
        };
        ClearBody { layers, message }
    })
}

proptest! {
    /// Whatever cells arrive, nodes neither panic nor hold more than their limits, and other circuits work.
    #[test]
    fn hostile_cells_cost_only_their_circuit(
        cells in proptest::collection::vec((0usize..4, 0u32..6, any::<bool>(), 0u8..4, any_body()), 1..80),
    ) {
        let mut net = Net::new(&Config::default());
        let honest = net.client.build(net.now, PATH.to_vec());
        net.settle();
        let evil: Vec<ChannelId> = (0..3).map(|at| net.relays[at].channel_accepted(None)).collect();
        for (at, channel) in evil.iter().enumerate() {
            // What relays answer goes nowhere.
            net.wires.insert((at, *channel), (CLIENT, ChannelId(u32::MAX)));
        }
        for (at, circ, opener, command, body) in cells {
            let at = at.min(2);
            let command = [Command::Create, Command::Created, Command::Relay, Command::Destroy][usize::from(command)];
            let circ = CircId(circ | if opener { 1 << 31 } else { 0 });
            let now = net.now;
            net.relays[at].cell(now, evil[at], Cell { circ, command, body });
            net.settle();
        }
        let stream = net.client.open(net.now, honest, 1_000_000).unwrap();
        net.settle();
        prop_assert_eq!(net.received[&stream].last(), Some(&0));
    }
}
