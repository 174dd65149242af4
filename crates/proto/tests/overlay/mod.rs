//! A client and relays connected directly, without a simulated network.

mod linked;
mod net;

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate_control::random::Seed;
use tidegate_control::units::Span;
use tidegate_proto::cell::{Cell, CircId, Command, RelayId, StreamId};
use tidegate_proto::client::Client;
use tidegate_proto::links::{ChannelId, Config, kist};
use tidegate_proto::node::{CircuitKey, Node, StreamKey};
use tidegate_proto::onion::{Clear, ClearBody, Onion, Stamp};
use tidegate_proto::registry::{CONTROLS, SCHEDULERS};
use tidegate_proto::relay::Relay;
use tidegate_proto::switching::{Form, Switching};
use tidegate_proto::transport::{Sharing, Transport};

use net::{CLIENT, Net};

fn configs() -> impl Iterator<Item = Config> {
    let threshold = |beyond| Transport::Threshold { connections: 2, beyond };
    let transports = [
        Transport::Vanilla,
        Transport::PerCircuit,
        Transport::Quic,
        threshold(Sharing::RoundRobin),
        threshold(Sharing::ByClass),
    ];
    let channels = [None, Some(kist::KistParameters::default())];
    let config = |transport| Config { transport, ..Config::default() };
    (transports.into_iter().map(config))
        .flat_map(move |config| {
            SCHEDULERS.iter().map(move |part| Config { scheduler: part.by_default(), ..config.clone() })
        })
        .flat_map(move |config| channels.map(|kist| Config { kist, ..config.clone() }))
        .flat_map(move |config| {
            CONTROLS.iter().map(move |part| Config { control: part.by_default(), ..config.clone() })
        })
}

/// Number of configurations.
const CONFIGS: usize = 5 * 2 * SCHEDULERS.len() * CONTROLS.len();

const PATH: [RelayId; 3] = [RelayId(0), RelayId(1), RelayId(2)];

#[test]
fn downloads_arrive_whole_and_in_order_under_every_transport_and_scheduler() {
    for config in configs() {
        let mut net = Net::new(&config);
        let circuits: Vec<CircuitKey> = (0..5).map(|_| net.client.build(net.now, PATH.to_vec())).collect();
        net.settle();
        assert_eq!(BTreeSet::from_iter(&net.built), BTreeSet::from_iter(&circuits));
        let expected = match config.transport {
            Transport::Vanilla => 3,
            Transport::PerCircuit | Transport::Quic => 15,
            Transport::Threshold { .. } => 6,
        };
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
            assert_eq!(traces.last(), Some(&0), "including the last byte");
        }
        if format!("{:?}", config.scheduler) == "RoundRobin" {
            // Schedulers that prefer circuits are known by these counters.
            let preferred = net.relays.iter().map(|relay| relay.repeated_turns() + relay.overtaking_turns());
            assert_eq!(preferred.sum::<u64>(), 0, "{config:?}");
        }
        for key in circuits {
            net.client.close(net.now, key);
        }
        net.settle();
        assert!(net.relays.iter().all(|relay| relay.circuits() == 0 && relay.waiting() == (0, 0)));
        assert!(net.sources.is_empty(), "exits forget their streams");
        if config.transport != Transport::Vanilla {
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

    net.upload(streams[0], 700_000, Net::settle);
    assert_eq!(net.uploaded, 700_000);
    let now = net.now;
    net.client.stream_ended(now, streams[0]);
    net.settle();
    assert_eq!(net.sources.len(), 39);
}

#[test]
fn the_last_hop_discards_drops() {
    let mut net = Net::new(&Config { queue_limit: 500, ..Config::default() });
    let now = net.now;
    let key = net.client.build(now, PATH.to_vec());
    net.client.send_drops(now, key, 300);
    net.settle();
    let before: Vec<u64> = net.relays.iter().map(Relay::cells_processed).collect();
    net.client.send_drops(now, key, 300);
    net.settle();
    for (relay, before) in net.relays[..PATH.len()].iter().zip(before) {
        assert!(before < 10, "a circuit that is not built takes none");
        assert_eq!(relay.cells_processed() - before, 300);
    }
    let stream = net.client.open(net.now, key, 400_000).unwrap();
    net.settle();
    assert_eq!(net.received[&stream].last(), Some(&0), "windows do not count them");
    net.client.send_drops(net.now, key, 5000);
    net.settle();
    assert_eq!(net.closed, [key], "a full queue ends the circuit");
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
fn a_peer_that_floods_a_circuit_loses_the_circuit() {
    let config = Config { queue_limit: 100, queue_high: 50, ..Config::default() };
    let mut net = Net::new(&config);
    let key = net.client.build(net.now, PATH.to_vec());
    net.settle();
    // The connection behind the middle is blocked, while the previous neighbour keeps sending.
    let (&(_, from_client), _) =
        net.wires.iter().find(|((at, _), (to, _))| (*at, *to) == (0, CLIENT)).unwrap();
    let body = ClearBody::Data { layers: 9, bytes: 498, stream: StreamId(1), stamp: Stamp::default() };
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
        match data {
            true => ClearBody::Data { layers, bytes: 498, stream: StreamId(stream), stamp },
            false => ClearBody::Handshake(None),
        }
    })
}

proptest! {
    /// Whatever cells arrive, nodes do not panic, stay within their limits, and serve other circuits.
    #[test]
    fn hostile_cells_cost_only_their_circuit(
        cells in proptest::collection::vec((0usize..4, 0u32..6, any::<bool>(), 0u8..4, any_body()), 1..80),
    ) {
        let mut net = Net::new(&Config::default());
        let honest = net.client.build(net.now, PATH.to_vec());
        net.settle();
        let evil: Vec<ChannelId> = (0..3).map(|at| net.relays[at].channel_accepted(None)).collect();
        for (at, channel) in evil.iter().enumerate() {
            // The relays' answers are dropped.
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

/// Downloads over one circuit after another, so that the circuits differ in loudness.
fn loud_and_quiet(beyond: Sharing) -> Vec<usize> {
    let transport = Transport::Threshold { connections: 2, beyond };
    let mut net = Net::new(&Config { transport, ..Config::default() });
    // Uploads make the client's legs loud, because the test examines the client's choice of connection.
    for bytes in [1_000_000, 498] {
        let key = net.client.build(net.now, PATH.to_vec());
        net.settle();
        let now = net.now;
        let stream = net.client.open(now, key, 1).unwrap();
        net.settle();
        net.upload(stream, bytes, Net::settle);
    }
    // The channel of a CREATE at the guard shows which of the two connections a circuit shares.
    (0..4)
        .map(|_| {
            let now = net.now;
            net.client.build(now, PATH.to_vec());
            net.drain(CLIENT);
            let (_, channel, _) = net.flying.back().expect("a CREATE is on its way");
            let at = *channel;
            net.settle();
            at.0 as usize
        })
        .collect()
}

#[test]
fn beyond_the_threshold_circuits_share_round_robin_or_with_quiet_circuits() {
    let turns = loud_and_quiet(Sharing::RoundRobin);
    assert_eq!(turns, [turns[0], turns[1], turns[0], turns[1]]);
    assert_ne!(turns[0], turns[1]);
    let classes = loud_and_quiet(Sharing::ByClass);
    assert!(classes.iter().all(|channel| *channel == classes[0]), "the loud connection is avoided");
}

#[test]
fn a_pair_with_a_legacy_relay_shares_one_connection() {
    let legacy = Arc::new(BTreeSet::from([RelayId(1)]));
    let upgraded = Config { transport: Transport::PerCircuit, legacy, ..Config::default() };
    let mut net = Net::new(&upgraded);
    net.relays[1] = Relay::new(Clear::default(), Config::default());
    let circuits: Vec<CircuitKey> = (0..4).map(|_| net.client.build(net.now, PATH.to_vec())).collect();
    net.settle();
    assert_eq!(net.built, circuits);
    let pairs =
        |a: usize, b: usize| net.wires.iter().filter(|((at, _), (to, _))| (*at, *to) == (a, b)).count();
    assert_eq!((pairs(CLIENT, 0), pairs(0, 1), pairs(1, 2)), (4, 1, 1));
    for key in circuits {
        net.client.close(net.now, key);
    }
    net.settle();
    assert_eq!(net.wires.len(), 4, "shared connections stay; connections of one circuit close");
}

#[test]
fn a_shared_connection_stays_unless_its_opener_closes_unused_ones() {
    for close_unused in [false, true] {
        let mut net = Net::new(&Config::default());
        let own = Config { close_unused, ..Config::default() };
        net.client = Client::new(Clear::default(), own);
        let circuits = [(); 2].map(|()| net.client.build(net.now, PATH.to_vec()));
        net.settle();
        assert_eq!((net.seen_channels, net.wires.len()), (3, 6), "both circuits share");
        net.client.close(net.now, circuits[0]);
        net.settle();
        assert_eq!(net.wires.len(), 6, "one circuit is left");
        net.client.close(net.now, circuits[1]);
        net.settle();
        assert_eq!(net.wires.len(), if close_unused { 4 } else { 6 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Cells cross small wires at random speeds, and circuits move at random moments on all hops at once: every stream
    /// arrives completely, once and in order, and nothing is left over.
    #[test]
    fn moves_at_any_time_deliver_every_cell_once_in_order(
        seed in any::<u64>(), which in 0..CONFIGS, circuit_form in any::<bool>(),
        capacity in 1usize..40, alarm in 2usize..60,
        sizes in proptest::collection::vec(1u64..150_000, 1..5), upload in 0u64..60_000,
    ) {
        let form = if circuit_form { Form::Circuit } else { Form::Connection };
        let config = configs().nth(which).unwrap();
        let switching = Some(Switching { form, rest: Span::ZERO, ..Switching::default() });
        let config = Config { switching, nonces: Seed::root(seed), ..config };
        let mut net = Net::new(&config);
        let mut random = Seed::root(seed).random();
        let keys: Vec<CircuitKey> = sizes.iter().map(|_| net.client.build(net.now, PATH.to_vec())).collect();
        net.settle();
        // Circuits over another middle, to switch to.
        let other = [RelayId(0), RelayId(3), RelayId(2)];
        let spares: Vec<CircuitKey> = sizes.iter().map(|_| net.client.build(net.now, other.to_vec())).collect();
        net.settle();
        net.capacity = capacity;
        let mut streams = vec![];
        for ((key, spare), size) in keys.iter().zip(&spares).zip(&sizes) {
            streams.push(net.client.open(net.now, *key, *size).unwrap());
            prop_assert!(net.client.keep_standby(*key, *spare));
        }
        net.settle_at_random(&mut random, alarm);
        net.upload(streams[0], upload, |net| net.settle_at_random(&mut random, alarm));
        net.assert_exact(upload, streams.iter().copied().zip(sizes.iter().copied()));
        let total: u64 = sizes.iter().sum();
        // With one connection per circuit there may be no better connection to move to.
        let can_move = circuit_form || config.transport == Transport::Vanilla;
        prop_assert!(net.switched > 0 || !can_move || total < 60_000 || alarm > 20, "at least one circuit moved");
        for key in keys.into_iter().chain(spares) {
            net.client.close(net.now, key);
        }
        net.settle_at_random(&mut random, 1_000_000);
        prop_assert!(net.relays.iter().all(|relay| relay.circuits() == 0 && relay.waiting() == (0, 0)));
        prop_assert_eq!(net.client.waiting(), (0, 0));
    }

    /// A relay does the same with cells that it reads together and one by one, also where circuits end between them.
    #[test]
    fn cells_read_together_change_nothing(
        seed in any::<u64>(), which in 0..CONFIGS, capacity in 1usize..40,
        sizes in proptest::collection::vec(1u64..150_000, 2..5),
    ) {
        let run = |together| {
            let mut net = Net::new(&Config { nonces: Seed::root(seed), ..configs().nth(which).unwrap() });
            net.together = together;
            let mut random = Seed::root(seed).random();
            let keys: Vec<CircuitKey> = sizes.iter().map(|_| net.client.build(net.now, PATH.to_vec())).collect();
            net.settle();
            net.capacity = capacity;
            for (key, size) in keys.iter().zip(&sizes) {
                net.client.open(net.now, *key, *size).unwrap();
            }
            net.drain(CLIENT);
            for _ in 0..random.below(40) {
                net.run_timers();
                net.settle_once();
            }
            net.client.close(net.now, keys[0]);
            net.settle_at_random(&mut random, 1_000_000);
            let relays = net.relays.iter().map(|relay| (relay.cells_processed(), relay.repeated_turns()));
            (net.now, relays.collect::<Vec<_>>(), net.received)
        };
        prop_assert_eq!(run(true), run(false));
    }

    /// Circuits end and connections break while others move: the remaining ones work.
    #[test]
    fn circuits_that_end_during_moves_free_all_state(
        seed in any::<u64>(), which in 0..CONFIGS, circuit_form in any::<bool>(), broken in any::<bool>(),
    ) {
        let form = if circuit_form { Form::Circuit } else { Form::Connection };
        let switching = Some(Switching { form, rest: Span::ZERO, ..Switching::default() });
        let nonces = Seed::root(seed);
        let mut net = Net::new(&Config { switching, nonces, ..configs().nth(which).unwrap() });
        let mut random = nonces.random();
        let keys: Vec<CircuitKey> = (0..4).map(|_| net.client.build(net.now, PATH.to_vec())).collect();
        let other = [RelayId(0), RelayId(3), RelayId(2)];
        let spares: Vec<CircuitKey> = (0..4).map(|_| net.client.build(net.now, other.to_vec())).collect();
        net.settle();
        net.capacity = 5;
        let streams: Vec<StreamKey> =
            keys.iter().map(|key| net.client.open(net.now, *key, 40_000).unwrap()).collect();
        for (key, spare) in keys.iter().zip(&spares) {
            prop_assert!(net.client.keep_standby(*key, *spare));
        }
        for at in 0..=CLIENT {
            net.drain(at);
        }
        // Stop somewhere in the middle.
        let stop = random.below(200);
        for _ in 0..stop {
            net.run_timers();
            let Some((to, channel, cell)) = net.flying.pop_front() else { break };
            let circ = cell.circ;
            net.now += Span::from_millis(1);
            let now = net.now;
            if net.wires.contains_key(&(to, channel)) {
                net.node(to).cell(now, channel, cell);
                net.drain(to);
                if random.below(4) == 0 && net.wires.contains_key(&(to, channel)) {
                    let command = Command::Congested;
                    net.node(to).cell(now, channel, Cell { circ, command, body: Clear::empty() });
                    net.drain(to);
                }
                if let Some(&(writer, theirs)) = net.wires.get(&(to, channel)) {
                    net.write(writer, theirs);
                    net.drain(writer);
                }
            }
        }
        if broken {
            let nth = random.below(net.wires.len());
            let (&(at, ours), &(to, theirs)) = net.wires.iter().nth(nth).unwrap();
            net.wires.remove(&(at, ours));
            net.wires.remove(&(to, theirs));
            net.flying.retain(|(node, channel, _)| {
                (*node, *channel) != (at, ours) && (*node, *channel) != (to, theirs)
            });
            let now = net.now;
            net.node(at).channel_closed(now, ours);
            net.node(to).channel_closed(now, theirs);
        } else {
            net.client.close(net.now, keys[0]);
        }
        net.settle_at_random(&mut random, 1_000_000);
        for (key, stream) in keys.iter().zip(&streams) {
            if !net.closed.contains(key) {
                let traces = &net.received[stream];
                prop_assert_eq!(traces.len(), 81, "{:?}", key);
                prop_assert!(traces.is_sorted_by(|a, b| a > b));
            }
        }
        for key in keys.into_iter().chain(spares) {
            net.client.close(net.now, key);
        }
        net.settle_at_random(&mut random, 1_000_000);
        prop_assert!(net.relays.iter().all(|relay| relay.circuits() == 0 && relay.waiting() == (0, 0)));
    }
}
