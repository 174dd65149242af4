//! PCTCP's clients: one connection per circuit to our guard, one connection for all circuits to a stock guard.

use crate::{a_relay, one_hop, skipped, stock_relay};
use std::path::Path;

use one_hop::{OneHop, on_sockets};
use tidegate_control::units::Span;
use tidegate_net::identity::unhex;
use tidegate_net::live::relay::RelayConfig;
use tidegate_net::{clock, private_tor};
use tidegate_proto::crypto::Router;
use tidegate_proto::node::CircuitKey;
use tidegate_proto::transport::{Sharing, Transport};

/// Builds four circuits in sequence. Returns the number of connections then, after closing two circuits, and after
/// closing all, as far as `expected` goes. Each number is waited for, and must then stay.
async fn connections(
    router: Router,
    onion: [u8; 32],
    transport: Transport,
    expected: &[usize],
) -> Vec<usize> {
    let client = OneHop::new(router, transport);
    for _ in 0..2 {
        assert_eq!(client.builds(onion).await, [true; 2]);
    }
    let all = client.node.connections();
    let circuits: Vec<CircuitKey> = client.ends.borrow().keys().copied().collect();
    let mut numbers = vec![all];
    for (some, expected) in circuits.chunks(2).zip(&expected[1..]) {
        some.iter().for_each(|key| client.node.with(|node, now| node.close(now, *key)));
        let end = clock::now() + Span::from_secs(20);
        while client.node.connections() != *expected && clock::now() < end {
            clock::until(clock::now() + Span::from_millis(5)).await;
        }
        clock::until(clock::now() + Span::from_millis(100)).await;
        numbers.push(client.node.connections());
    }
    numbers
}

#[test]
fn a_client_has_one_connection_per_circuit_to_our_guard() {
    on_sockets(async {
        let change = |settings: &mut RelayConfig| {
            settings.nickname = "guard".into();
            settings.config.transport = Transport::PerCircuit;
        };
        let a_relay::Running { router, onion, .. } = a_relay::start(change).await;
        for (transport, expected) in [(Transport::PerCircuit, [4, 2, 0]), (Transport::Vanilla, [1, 1, 1])] {
            assert_eq!(connections(router, onion, transport, &expected).await, expected);
        }
        let threshold = Transport::Threshold { connections: 3, beyond: Sharing::RoundRobin };
        assert_eq!(connections(router, onion, threshold, &[3]).await, [3]);
    });
}

#[test]
fn a_client_has_one_connection_to_a_stock_guard() {
    if !private_tor::is_installed(Path::new("tor")) {
        return skipped::skipped("a client has one connection to a stock guard", "tor");
    }
    let (network, stock, directory) = stock_relay::network("pctcp");
    let keys = |file: &str| std::fs::read(network.files_of("stock").join("keys").join(file)).unwrap();
    // tor's key files end with the public key; the identity's file ends with the whole key.
    let last = |bytes: Vec<u8>| <[u8; 32]>::try_from(&bytes[bytes.len() - 32..]).unwrap();
    let (onion, ed25519) = (last(keys("secret_onion_key_ntor")), last(keys("ed25519_master_id_public_key")));
    let fingerprint = unhex(&stock.fingerprint).unwrap();
    let router = Router { address: stock.address(), fingerprint, ed25519: Some(ed25519) };
    on_sockets(async {
        let expected = [1, 1, 0];
        assert_eq!(connections(router, onion, Transport::PerCircuit, &expected).await, expected);
    });
    drop(network);
    std::fs::remove_dir_all(&directory).unwrap();
}
