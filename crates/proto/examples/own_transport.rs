//! A client and three relays on a custom transport, here queues in memory. A transport only has to deliver cells in
//! order. `cargo run -p tidegate-proto --example own_transport` fetches a megabyte.

use std::collections::{BTreeMap, VecDeque};

use tidegate_control::units::Time;
use tidegate_proto::cell::RelayId;
use tidegate_proto::client::Client;
use tidegate_proto::links::Config;
use tidegate_proto::node::{Node, Output};
use tidegate_proto::onion::{Clear, Stamp};
use tidegate_proto::relay::Relay;

fn main() {
    let (now, mut left, mut received) = (Time::ZERO, 1_000_000, 0);
    let mut page = |max: u16| {
        let bytes = u16::try_from(left).unwrap_or(max).min(max);
        left -= u32::from(bytes);
        (bytes > 0).then(|| (bytes, Stamp::default()))
    };
    let mut client = Client::new(Clear::default(), Config::default());
    let mut relays = [(); 3].map(|()| Relay::new(Clear::default(), Config::default()));
    // (node, its channel id) -> the same at the other end, and the cells in transit to an end. Node 3 is the client.
    let (mut wires, mut flying) = (BTreeMap::new(), VecDeque::new());
    let circuit = client.build(now, (0..3).map(RelayId).collect());
    let mut at = 3;
    loop {
        let node: &mut dyn Node<Clear> = if at == 3 { &mut client } else { &mut relays[at] };
        match node.poll() {
            Some(Output::OpenChannel(ours, RelayId(to))) => {
                node.channel_opened(now, ours);
                let theirs = relays[to as usize].channel_accepted((at < 3).then_some(RelayId(at as u32)));
                wires.insert((at, ours), (to as usize, theirs));
                wires.insert((to as usize, theirs), (at, ours));
            }
            Some(Output::Flush(ours)) => {
                let mut written = Vec::new();
                node.drain(now, ours, &mut written);
                flying.extend(written.into_iter().map(|departure| (wires[&(at, ours)], departure.cell)));
            }
            Some(Output::CircuitBuilt(_)) => drop(client.open(now, circuit, 80)),
            Some(Output::Connect(stream, _)) => {
                node.stream_connected(now, stream);
                node.package(now, stream, u32::MAX, &mut page);
            }
            Some(Output::Package(stream, cells)) => node.package(now, stream, cells, &mut page),
            Some(Output::Deliver(_, bytes, ..)) => received += u32::from(bytes),
            Some(_) => {}
            None => {
                let Some(((to, channel), cell)) = flying.pop_front() else { break };
                at = to;
                let node: &mut dyn Node<Clear> = if at == 3 { &mut client } else { &mut relays[at] };
                node.cell(now, channel, cell);
            }
        }
    }
    assert_eq!(received, 1_000_000);
}
