//! Cells and their messages from a neighbour, as bytes.

use std::collections::BTreeMap;

use tidegate_control::machine::Machine as _;
use tidegate_control::units::Time;
use tidegate_proto::crypto::ntor::RelaySecret;
use tidegate_proto::crypto::wire::{Splitter, read_cell};
use tidegate_proto::crypto::{self, Encrypted, cert};
use tidegate_proto::flashflow::Message;
use tidegate_proto::flashflow::cell::{parse_create, parse_created};
use tidegate_proto::links::Config;
use tidegate_proto::node::Node as _;
use tidegate_proto::relay::Relay;

/// Arbitrary bytes from a neighbour to a relay. The relay parses and handles cells; its memory for a neighbour that does
/// not read stays bounded.
pub fn proto_cells(input: &[u8]) {
    let onion = Encrypted::new(Some(RelaySecret::new([1; 20], [2; 32])), BTreeMap::new(), [3; 32]);
    let config = Config { circuits_per_channel: 32, unread_limit: 64, ..Config::default() };
    let mut relay = Relay::new(onion, config);
    let channel = relay.channel_accepted(None);
    let mut splitter = Splitter::new(input);
    let mut now = 0;
    while let Ok(Some((circ, number, body))) = splitter.take() {
        let Some(cell) = read_cell(circ, number, body) else { continue };
        now += 1;
        relay.cell(Time(now), channel, cell);
        while relay.poll().is_some() {}
        let (queued, buffered) = relay.waiting();
        assert!(queued * 514 + buffered < 1 << 20, "{queued} cells, {buffered} bytes");
    }
}

/// Messages in single cells from neighbours, coordinators and measurers; certificates; names of targets.
pub fn proto_messages(input: &[u8]) {
    let _ = cert::check_certs(input, None, 1_700_000_000);
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = crypto::Target::parse(text, 0);
    }
    let mut cell = [0; 514];
    let length = input.len().min(cell.len());
    cell[..length].copy_from_slice(&input[..length]);
    let _ = (parse_create(&cell), parse_created(&cell, 1));
    if let Ok(message) = Message::from_cell(&cell) {
        let again = message.to_cell().expect("what was read can be written");
        assert_eq!(Message::from_cell(&again), Ok(message));
    }
}
