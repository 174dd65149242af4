//! An overlay of seven peers on loopback.

use std::net::UdpSocket;

use tidegate_control::paths::parameters::Parameters;
use tidegate_control::units::Span;
use tidegate_more::directory::{Directory, Hex, PeerEntry, authority_key};
use tidegate_more::node::Node;
use tidegate_net::more::Settings;

pub const PEERS: u16 = 7;

fn secret(peer: u16) -> [u8; 32] {
    [peer as u8 + 1; 32]
}

/// A peer with three hops.
pub fn settings(directory: &Directory, me: u16, controller: &str) -> Settings {
    Settings {
        directory: directory.clone(),
        me,
        secret: secret(me),
        limit: 2_000_000.0,
        hops: 3,
        parameters: Parameters::named(controller, 1500.0).expect("known"),
        attempt_every: Span::from_millis(1),
        guards: Vec::new(),
    }
}

/// Free ports of this machine, written and signed as a directory.
pub fn directory() -> Directory {
    let sockets: Vec<UdpSocket> =
        (0..PEERS).map(|_| UdpSocket::bind("127.0.0.1:0").expect("loopback has ports")).collect();
    let peers = sockets.iter().zip(0..PEERS).map(|(socket, peer)| PeerEntry {
        address: socket.local_addr().expect("bound"),
        key: Hex(Node::new(secret(peer), 0.0, Span::ZERO, 1, None).key()),
    });
    let text = Directory { epoch: 1, peers: peers.collect() }.write(&[3; 32]);
    Directory::parse(&text, &authority_key(&[3; 32])).expect("as written")
}
