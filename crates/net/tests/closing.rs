//! Circuits with connections of their own that a client closes while cells arrive.

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::live::fetch;
use tidegate_net::live::relay::RelayConfig;
use tidegate_net::overlay::{Connection, RateLimit};
use tidegate_proto::links::Config;
use tidegate_proto::node::CircuitKey;
use tidegate_proto::transport::Transport;

use crate::a_relay;
use crate::faults::neighbour::{Answer, CIRCUIT, DESTROY, EARLY, circuit_from, extend, host};
use crate::one_hop::{OneHop, on_sockets};
use crate::server::server;

/// Starts an exit with this transport.
async fn exit(transport: Transport) -> a_relay::Running {
    let change = |settings: &mut RelayConfig| {
        settings.config.transport = transport;
        settings.exit = a_relay::open_exit(None);
    };
    a_relay::start(change).await
}

/// Closes eight circuits in the middle of downloads. Returns how many the relay saw closed by the client, and how many
/// lost their connection.
async fn closed_during_downloads(transport: Transport) -> [f64; 2] {
    let a_relay::Running { router, onion, status } = exit(transport).await;
    let (client, server) = (OneHop::new(router, transport), server(true).await.address);
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

/// A circuit ends while the relay connects for it. Another one to the same relay has just begun to be extended.
#[test]
fn a_circuit_that_ends_during_an_attempt_to_connect_ends_no_other() {
    /// tor-spec, "Tearing down circuits": the next relay refused the handshake, which is not a valid one.
    const DESTROYED: u8 = 11;
    on_sockets(async {
        let relay = a_relay::start(|settings| settings.config.transport = Transport::PerCircuit).await.router;
        let next = a_relay::start(|_| {}).await.router;
        let mut first = circuit_from(host(2), relay.into()).await;
        let mut second = circuit_from(host(3), relay.into()).await;
        first.say(EARLY, extend(next.address, next.fingerprint)).await;
        first.cell(CIRCUIT, DESTROY, &[0]).await;
        second.say(EARLY, extend(next.address, next.fingerprint)).await;
        assert_eq!(second.hear().await.unwrap_err(), Answer::Destroyed(DESTROYED));
    });
}

/// Keeps every write waiting for a while.
struct Slow;

impl RateLimit for Slow {
    async fn leave(&self, _: Connection, _: u64) {
        clock::until(clock::now() + Span::from_millis(20)).await;
    }
    fn received(&self, _: u64) {}
}

/// A client that gives a circuit up frees its channel's id while the last write waits, and the next channel gets it. The
/// answer to the first circuit must not reach the second.
#[test]
fn a_late_answer_does_not_reach_the_next_channel() {
    on_sockets(async {
        let transport = Transport::PerCircuit;
        let a_relay::Running { router, onion, .. } = exit(transport).await;
        let client = OneHop::limited(router, Config { transport, ..Config::default() }, Slow);
        assert_eq!(client.builds(onion).await, [true; 2]);
        let none_is_open = async || {
            while client.node.connections() > 0 {
                tokio::task::yield_now().await;
            }
        };
        for _ in 0..4 {
            client.close_all();
            none_is_open().await;
            let before = client.node.waits().cells;
            let first = client.build();
            while client.node.waits().cells == before {
                tokio::task::yield_now().await;
            }
            // CREATE waits. DESTROY follows it, and the node forgets the channel.
            client.node.with(|node, now| node.close(now, first));
            none_is_open().await;
            assert!(client.built(client.build()).await);
        }
    });
}
