//! Circuits with connections of their own that a client closes while cells arrive.

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::identity::fill;
use tidegate_net::live::fetch::fetch;
use tidegate_net::live::relay::{RelayConfig, Status, run};
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::names::Router;
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::node::CircuitKey;
use tidegate_proto::transport::Transport;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::a_relay;
use crate::one_hop::{OneHop, on_sockets};

/// A server that sends without end.
async fn endless() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            spawn_local(async move { while tcp.write_all(&[7; 16 << 10]).await.is_ok() {} });
        }
    });
    address
}

/// Closes eight circuits in the middle of downloads. Returns how many the relay saw closed by the client, and how many
/// lost their connection.
async fn closed_during_downloads(transport: Transport) -> [f64; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let page = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, status) = (listener.local_addr().unwrap(), page.local_addr().unwrap());
    let keys = RouterKeys::generate(&mut fill);
    let router = Router { address, fingerprint: keys.fingerprint(), ed25519: Some(keys.ed25519()) };
    let onion = keys.onion();
    let settings = RelayConfig {
        config: Config { transport, limits: Some(Limits::default()), ..Config::default() },
        exit: a_relay::open_exit(None),
        status: Some(Status { listener: page, circuits: false }),
        ..a_relay::settings(keys, address)
    };
    let (_orders, taken) = mpsc::channel(1);
    spawn_local(async move { run(settings, vec![listener], taken, &|_| {}).await });
    let (client, server) = (OneHop::new(router, transport), endless().await);
    for _ in 0..4 {
        assert_eq!(client.builds(onion).await, [true; 2]);
    }
    let circuits: Vec<CircuitKey> = client.ends.borrow().keys().copied().collect();
    for key in &circuits {
        client.node.with(|node, now| node.open(now, *key, server.into())).unwrap();
    }
    clock::until(clock::now() + Span::from_millis(300)).await;
    circuits.iter().for_each(|key| client.node.with(|node, now| node.close(now, *key)));
    for _ in 0..100 {
        clock::until(clock::now() + Span::from_millis(50)).await;
        let (_, _, body) = fetch(status, "/status.json", None).await.unwrap();
        let status: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let count = |key: &str| status[key].as_f64().unwrap();
        if count("circuits") == 0.0 {
            return [count("closed_by_client_side"), count("closed_connection_to_client_side")];
        }
    }
    panic!("the relay keeps circuits that the client has closed");
}

#[test]
fn the_relay_learns_that_the_client_closed_a_circuit_before_its_connection_ends() {
    on_sockets(async {
        for transport in [Transport::PerCircuit, Transport::Quic] {
            assert_eq!(closed_during_downloads(transport).await, [8.0, 0.0], "{transport:?}");
        }
    });
}
