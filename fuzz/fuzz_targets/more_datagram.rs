//! Datagrams to a peer of MORE, from a neighbour and from unknown senders.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use tidegate_control::units::{Span, Time};
use tidegate_more::keys::PeerKeys;
use tidegate_more::node::{Node, NodeConfig};

fn node(me: u16) -> Node {
    let keys = |peer: u16| PeerKeys::new([peer as u8 + 1; 32]);
    let links: Vec<[u8; 32]> = (0..4).map(|peer| keys(peer).link_key()).collect();
    Node::new(NodeConfig {
        me,
        keys: keys(me),
        links: &links,
        epoch: 3,
        limit: 1e9,
        phase: Span::ZERO,
        stamping: None,
    })
}

thread_local! {
    static NODES: RefCell<[Node; 2]> = RefCell::new([node(0), node(1)]);
}

fuzz_target!(|input: (u64, Vec<Vec<u8>>)| {
    NODES.with_borrow_mut(|[sender, relay]| {
        for datagram in input.1 {
            let now = Time(input.0);
            relay.handle(now, &datagram);
            if let Some(wire) = sender.seal(1, &datagram) {
                relay.handle(now, &wire);
            }
        }
    });
});
