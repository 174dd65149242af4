//! An overlay of seven peers on loopback.

use std::net::UdpSocket;

use tidegate_control::paths::ControllerParameters;
use tidegate_control::units::Span;
use tidegate_more::directory::{Directory, Hex, PeerEntry, authority_key};
use tidegate_more::keys::PeerKeys;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::more::PeerConfig;

pub const PEERS: u16 = 7;

fn secret(peer: u16) -> [u8; 32] {
    [peer as u8 + 1; 32]
}

/// Configuration of a peer with three hops.
pub fn settings(directory: &Directory, me: u16, controller: &str) -> PeerConfig {
    PeerConfig {
        directory: directory.clone(),
        me,
        secret: secret(me),
        listen: None,
        memory: None,
        limit: 2_000_000.0,
        hops: 3,
        uses: 64,
        parameters: ControllerParameters::named(controller, 1500.0).expect("known"),
        attempt_every: Span::from_millis(1),
        guards: Vec::new(),
        status: None,
        gate: Gate::Private,
    }
}

/// A signed directory with free ports of this machine.
pub fn directory() -> Directory {
    let sockets: Vec<UdpSocket> =
        (0..PEERS).map(|_| UdpSocket::bind("127.0.0.1:0").expect("loopback has ports")).collect();
    let peers = sockets.iter().zip(0..PEERS).map(|(socket, peer)| {
        let keys = PeerKeys::new(secret(peer));
        PeerEntry {
            address: socket.local_addr().expect("bound").to_string(),
            key: Hex(keys.link_key()),
            epochs: (0..3).map(|epoch| Hex(keys.onion_key(epoch))).collect(),
        }
    });
    let directory = Directory { start: clock::unix() - 1, seconds: 3600, peers: peers.collect() };
    Directory::parse(&directory.write(Some(&[3; 32])), &authority_key(&[3; 32])).expect("as written")
}
