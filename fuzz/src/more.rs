//! MORE: datagrams to a peer, directories and descriptors.

use std::cell::RefCell;

use tidegate_control::units::{Span, Time};
use tidegate_more::descriptor::Descriptor;
use tidegate_more::directory::{Directory, authority_key};
use tidegate_more::keys::PeerKeys;
use tidegate_more::node::{Node, NodeConfig};

fn node(me: u16) -> Node {
    let keys = |peer: u16| PeerKeys::new([peer as u8 + 1; 32]);
    let links: Vec<[u8; 32]> = (0..4).map(|peer| keys(peer).link_key()).collect();
    Node::new(NodeConfig {
        me,
        keys: keys(me),
        links: &links,
        networks: (0..4).collect(),
        epoch: 3,
        limit: 1e9,
        phase: Span::ZERO,
        stamping: None,
    })
}

thread_local! {
    static NODES: RefCell<[Node; 2]> = RefCell::new([node(0), node(1)]);
}

/// Datagrams to a peer, from a neighbour and from unknown senders.
pub fn more_datagram(input: &[u8]) {
    let Some((time, datagrams)) = crate::typed::<(u64, Vec<Vec<u8>>)>(input) else { return };
    NODES.with_borrow_mut(|[sender, relay]| {
        for datagram in datagrams {
            let now = Time(time);
            relay.handle(now, &datagram);
            if let Some(wire) = sender.seal(1, &datagram) {
                relay.handle(now, &wire);
            }
        }
    });
}

/// Directories and descriptors: writing and reading again gives the same.
pub fn more_files(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = Descriptor::parse(text);
    let _ = Directory::parse(text, &authority_key(&[1; 32]));
    if let Ok((directory, _)) = Directory::parse_unsigned(text) {
        let again = Directory::parse_unsigned(&directory.write(Some(&[1; 32])));
        assert_eq!(again.map(|(again, _)| again), Ok(directory));
    }
}
