//! Linked circuits: streams over two paths at once.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate_control::random::Seed;
use tidegate_proto::cell::RelayId;
use tidegate_proto::conflux::Wish;
use tidegate_proto::control::vegas::VegasParameters;
use tidegate_proto::links::{ChannelId, Config};
use tidegate_proto::node::{CircuitKey, Node};
use tidegate_proto::registry::SPLITS;

use super::PATH;
use super::net::{CLIENT, Net};

const OTHER: [RelayId; 3] = [RelayId(3), RelayId(0), RelayId(2)];

fn config(seed: u64) -> Config {
    Config { control: Arc::new(VegasParameters::default()), nonces: Seed::root(seed), ..Config::default() }
}

/// The same with one of the splits, and the clients' wish that selects it.
fn dividing(seed: u64, split: usize) -> (Config, Wish) {
    let split = SPLITS[split].by_default();
    let wish = split.wish();
    (Config { conflux: Some(split), ..config(seed) }, wish)
}

/// Two linked circuits.
fn pair(net: &mut Net, wish: Wish) -> [CircuitKey; 2] {
    let legs = [PATH, OTHER].map(|path| net.client.build(net.now, path.to_vec()));
    net.settle();
    assert!(net.client.link(net.now, &legs, wish));
    assert_eq!(net.client.open(net.now, legs[0], 1), None, "they are not linked yet");
    net.settle();
    assert_eq!(net.linked.last(), Some(&legs[0]));
    legs
}

/// Cells that the exit has sent on each circuit.
fn sent(net: &Net) -> Vec<u64> {
    net.relays[2].shown().map(|circuit| circuit.sent).collect()
}

/// Breaks the connection between two nodes.
fn cut(net: &mut Net, a: usize, b: usize) {
    let mut wires = net.wires.iter().map(|(from, to)| (*from, *to));
    let (one, other) = wires.find(|((at, _), (to, _))| (*at, *to) == (a, b)).unwrap();
    for (at, channel) in [one, other] {
        net.wires.remove(&(at, channel));
        let now = net.now;
        net.node(at).channel_closed(now, channel);
    }
    net.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Cells cross small wires at random speeds: every stream arrives completely, once and in order in both directions,
    /// and nothing is left over.
    #[test]
    fn linked_circuits_deliver_every_cell_once_in_order(
        seed in any::<u64>(), split in 0..SPLITS.len(), capacity in 1usize..40,
        sizes in proptest::collection::vec(1u64..200_000, 1..5), upload in 0u64..60_000,
    ) {
        let (config, wish) = dividing(seed, split);
        let mut net = Net::new(&config);
        let mut random = Seed::root(seed).random();
        let legs = pair(&mut net, wish);
        net.capacity = capacity;
        let streams: Vec<_> =
            sizes.iter().map(|size| net.client.open(net.now, legs[0], *size).unwrap()).collect();
        prop_assert_eq!(net.client.open(net.now, legs[1], 1), None, "only the first circuit opens streams");
        net.settle_at_random(&mut random, usize::MAX);
        net.upload(streams[0], upload, |net| net.settle_at_random(&mut random, usize::MAX));
        net.assert_exact(upload, streams.iter().copied().zip(sizes.iter().copied()));
        // The first window is 124 cells.
        let both = sent(&net).iter().all(|sent| *sent > 31);
        prop_assert!(both || wish == Wish::MinLatency || sizes.iter().sum::<u64>() < 200_000, "{:?}", sent(&net));
        prop_assert_eq!(net.relays[2].memory(), 0);
        let now = net.now;
        net.client.close(now, legs[0]);
        net.settle_at_random(&mut random, usize::MAX);
        prop_assert_eq!(net.closed.len(), 2, "both legs close together");
        prop_assert!(net.relays.iter().all(|relay| relay.circuits() == 0 && relay.waiting() == (0, 0)));
        prop_assert_eq!(net.client.waiting(), (0, 0));
    }

    /// A connection breaks at any moment: either the whole set ends, at both ends, or it goes on.
    #[test]
    fn a_broken_leg_ends_the_whole_set_or_loses_no_cell(
        seed in any::<u64>(), split in 0..SPLITS.len(), stop in 0usize..400,
        wire in prop::sample::select(vec![(CLIENT, 0), (CLIENT, 3), (0, 1), (3, 0), (1, 2), (0, 2)]),
    ) {
        let (config, wish) = dividing(seed, split);
        let mut net = Net::new(&config);
        let mut random = Seed::root(seed).random();
        let legs = pair(&mut net, wish);
        let stream = net.client.open(net.now, legs[0], 200_000).unwrap();
        for at in 0..=CLIENT {
            net.drain(at);
        }
        for _ in 0..stop {
            let Some((to, channel, cell)) = net.flying.pop_front() else { break };
            let now = net.now;
            net.node(to).cell(now, channel, cell);
            net.drain(to);
        }
        let ends = |(at, _): &(usize, ChannelId), to: usize| (*at, to) == wire;
        prop_assert!(net.wires.iter().any(|(from, (to, _))| ends(from, *to)));
        cut(&mut net, wire.0, wire.1);
        net.settle_at_random(&mut random, usize::MAX);
        if net.closed.contains(&legs[0]) {
            prop_assert_eq!(net.closed.len(), 2);
            prop_assert!(net.sources.is_empty());
            prop_assert!(net.relays.iter().all(|relay| relay.circuits() == 0));
        } else {
            let traces = &net.received[&stream];
            prop_assert_eq!((traces.len(), traces.last()), (402, Some(&0)), "whole");
            prop_assert!(traces.is_sorted_by(|a, b| a > b), "in order");
            let next = net.client.open(net.now, legs[0], 30_000).unwrap();
            net.settle();
            prop_assert_eq!(net.received[&next].last(), Some(&0));
        }
        prop_assert_eq!(net.relays[2].memory(), 0);
    }
}

#[test]
fn a_set_survives_the_loss_of_either_leg_if_it_is_unused() {
    for broken in [(CLIENT, 0), (CLIENT, 3)] {
        let mut net = Net::new(&config(5));
        let legs = pair(&mut net, Wish::Throughput);
        cut(&mut net, broken.0, broken.1);
        assert_eq!(net.closed, [legs[1]], "streams keep their key");
        let stream = net.client.open(net.now, legs[0], 300_000).unwrap();
        net.settle();
        assert_eq!(net.received[&stream].last(), Some(&0));
    }
}

#[test]
fn unsuitable_circuits_are_not_linked() {
    let mut net = Net::new(&config(1));
    let wish = Wish::Throughput;
    let one = net.client.build(net.now, PATH.to_vec());
    assert!(!net.client.link(net.now, &[one], wish), "it is not built");
    net.settle();
    let elsewhere = net.client.build(net.now, vec![RelayId(3), RelayId(2), RelayId(1)]);
    let used = net.client.build(net.now, OTHER.to_vec());
    net.settle();
    net.client.open(net.now, used, 1).unwrap();
    net.settle();
    for legs in [&[][..], &[one, one], &[one, elsewhere], &[one, used], &[one, CircuitKey(99)]] {
        assert!(!net.client.link(net.now, legs, wish), "{legs:?}");
    }
    assert!(net.client.link(net.now, &[one], wish), "a set of one circuit is valid");
    assert!(!net.client.link(net.now, &[one], wish), "once");
    net.settle();
    assert_eq!(net.linked, [one]);
    let mut windows = Net::new(&Config::default());
    let legs = [PATH, OTHER].map(|path| windows.client.build(windows.now, path.to_vec()));
    windows.settle();
    assert!(!windows.client.link(windows.now, &legs, wish), "without congestion control");
}
