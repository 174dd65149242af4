//! Defences against denial of service on sockets: they act on the hostile address and on no other.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;

use tidegate_net::live::fetch::fetch;
use tidegate_net::live::relay::RelayConfig;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::a_relay;
use crate::faults::neighbour::{
    Answer, BEGIN, CIRCUIT, CONNECTED, CREATE_FAST, END, RELAY, Relay, circuit_from, good_from, host, message,
};
use crate::one_hop::on_sockets;

/// Starts an exit on two threads with these parameters. Returns it and the address of its status page.
async fn relay(defences: &[(&str, i32)]) -> (Relay, SocketAddr) {
    let defences = defences.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let change = |settings: &mut RelayConfig| {
        settings.exit = a_relay::open_exit(None);
        settings.threads = NonZeroUsize::new(2).unwrap();
        settings.defences = defences;
    };
    let a_relay::Running { router, status, .. } = a_relay::start(change).await;
    (router.into(), status)
}

/// A counter of the relay.
async fn counted(status: SocketAddr, name: &str) -> f64 {
    let (_, _, body) = fetch(status, "/status.json", None).await.unwrap();
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    document[name].as_f64().unwrap()
}

async fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

#[test]
fn connections_beyond_the_maximum_are_closed_for_the_hostile_address_alone() {
    on_sockets(async {
        let (relay, status) =
            relay(&[("DoSConnectionEnabled", 1), ("DoSConnectionMaxConcurrentCount", 3)]).await;
        let mut open = Vec::new();
        // Tor refuses when more than the maximum are open, so one more passes. The threads count together.
        for _ in 0..4 {
            open.push(connect(host(2), relay.address).await);
        }
        for _ in 0..10 {
            let mut refused = connect(host(2), relay.address).await;
            assert_eq!(refused.read(&mut [0; 8]).await.unwrap_or(0), 0, "closed before a handshake");
        }
        let mut honest = circuit_from(host(3), relay).await;
        assert_eq!(honest.hear().await.unwrap_err(), Answer::Ignored, "its circuit stays");
        assert_eq!(counted(status, "dos_concurrent_connections_refused").await, 10.0);
    });
}

#[test]
fn streams_beyond_the_burst_end_for_the_hostile_circuit_alone() {
    on_sockets(async {
        let (relay, status) = relay(&[
            ("DoSStreamCreationEnabled", 1),
            ("DoSStreamCreationRate", 1),
            ("DoSStreamCreationBurst", 5),
        ])
        .await;
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let begin =
            |stream| message(BEGIN, stream, format!("{}\0\0\0\0\0", server.local_addr().unwrap()).as_bytes());
        let mut hostile = circuit_from(host(2), relay).await;
        let mut answers = [0; 2];
        for stream in 1..=30 {
            hostile.say(RELAY, begin(stream)).await;
            match hostile.hear().await.expect("an answer")[0] {
                CONNECTED => answers[0] += 1,
                END => answers[1] += 1,
                other => panic!("relay command {other}"),
            }
        }
        // A token comes back with every second that passes meanwhile.
        assert!((5..10).contains(&answers[0]), "{answers:?}");
        assert_eq!(counted(status, "dos_streams_refused").await, f64::from(answers[1]));
        let mut honest = circuit_from(host(2), relay).await;
        honest.say(RELAY, begin(1)).await;
        assert_eq!(honest.hear().await.expect("an answer")[0], CONNECTED, "another circuit");
    });
}

#[test]
fn circuits_of_an_address_that_creates_too_many_are_refused() {
    on_sockets(async {
        let (relay, status) = relay(&[
            ("DoSCircuitCreationEnabled", 1),
            ("DoSCircuitCreationMinConnections", 2),
            ("DoSCircuitCreationBurst", 2),
        ])
        .await;
        let _first = circuit_from(host(2), relay).await;
        // The second connection's circuit takes the last token, which marks the address.
        let mut link = good_from(host(2), relay).await;
        link.cell(CIRCUIT, CREATE_FAST, &[7; 20]).await;
        assert!(matches!(link.link_answer().await, Answer::Destroyed(_)));
        let mut honest = circuit_from(host(3), relay).await;
        assert_eq!(honest.hear().await.unwrap_err(), Answer::Ignored);
        assert_eq!(counted(status, "dos_circuits_refused").await, 1.0);
    });
}
