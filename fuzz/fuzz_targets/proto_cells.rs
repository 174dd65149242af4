//! Arbitrary bytes from a neighbour to a relay. The relay parses and handles cells; its memory for a neighbour that
//! does not read stays bounded.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use tidegate_control::machine::Machine as _;
use tidegate_control::units::Time;
use tidegate_proto::crypto::encrypted::{Encrypted, read_cell};
use tidegate_proto::crypto::ntor::RelaySecret;
use tidegate_proto::crypto::wire::Splitter;
use tidegate_proto::links::Config;
use tidegate_proto::node::Node as _;
use tidegate_proto::relay::Relay;

fuzz_target!(|bytes: &[u8]| {
    let onion = Encrypted::new(Some(RelaySecret::new([1; 20], [2; 32])), BTreeMap::new(), [3; 32]);
    let config = Config { circuits_per_channel: 32, unread_limit: 64, ..Config::default() };
    let mut relay = Relay::new(onion, config);
    let channel = relay.channel_accepted(None);
    let mut splitter = Splitter::new(bytes);
    let mut now = 0;
    while let Ok(Some((circ, number, body))) = splitter.take() {
        let Some(cell) = read_cell(circ, number, body) else { continue };
        now += 1;
        relay.cell(Time(now), channel, cell);
        while relay.poll().is_some() {}
        let (queued, buffered) = relay.waiting();
        assert!(queued * 514 + buffered < 1 << 20, "{queued} cells, {buffered} bytes");
    }
});
