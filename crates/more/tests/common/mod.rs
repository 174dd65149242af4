//! Peers of an overlay, with secrets derived from their numbers.

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::{ControllerParameters, Peer};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_more::keys::PeerKeys;
use tidegate_more::machine::Randomness;
use tidegate_more::node::{Node, NodeConfig};
use tidegate_more::onion::{Epoch, Opened};

fn keys(peer: usize) -> PeerKeys {
    PeerKeys::new([peer as u8 + 1; 32])
}

/// The keys of an epoch.
pub fn epoch(peers: usize, number: u32) -> Epoch {
    Epoch::new(number, (0..peers).map(|peer| keys(peer).onion_key(number)).collect())
}

/// All peers in epoch 0, each with this limit.
pub fn nodes(peers: usize, limit: f64, parameters: &ControllerParameters) -> Vec<Node> {
    let links: Vec<[u8; 32]> = (0..peers).map(|peer| keys(peer).link_key()).collect();
    let node = |peer: usize| {
        Node::new(NodeConfig {
            me: peer as Peer,
            keys: keys(peer),
            links: &links,
            networks: (0..peers as Peer).collect(),
            epoch: 0,
            limit,
            phase: Span::from_millis(100 * peer as u64),
            stamping: parameters.stamping(),
        })
    };
    (0..peers).map(node).collect()
}

/// The result of a datagram at a peer: at most one output.
pub fn open(node: &mut Node, now: Time, wire: &[u8]) -> Option<Opened> {
    node.handle(now, wire);
    let opened = node.poll();
    assert!(node.poll().is_none());
    opened
}

/// Randomness of one machine.
pub fn randomness(seed: u64) -> Randomness {
    Randomness::foretold(Seed::root(2).fork_index(seed).random(), Seed::root(3).fork_index(seed).random())
}
