//! A relay on several threads: circuits of its shards meet, limits count all of them, and it stops cleanly.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use serde_json::Value;
use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::fill;
use tidegate_net::live::relay::{Announce, Order, RelayConfig, Status, not_on_threads, run};
use tidegate_net::live::{Links, fetch};
use tidegate_proto::conflux::Wish;
use tidegate_proto::control::vegas::VegasParameters;
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::{Router, SharedNames};
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::node::{CircuitKey, Node as _, StreamKey};
use tidegate_proto::switching::Switching;
use tidegate_proto::transport::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};

use crate::a_relay;
use crate::one_hop::{OneHop, on_sockets};

const THREADS: usize = 3;

struct Running {
    router: Router,
    onion: [u8; 32],
    status: SocketAddr,
    orders: mpsc::Sender<Order>,
    ended: JoinHandle<std::io::Result<()>>,
}

/// Runs a relay on three threads.
async fn relay(bandwidth: f64, limits: Limits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let page = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, status) = (listener.local_addr().unwrap(), page.local_addr().unwrap());
    let keys = RouterKeys::generate(&mut fill);
    let router = Router { address, fingerprint: keys.fingerprint(), ed25519: Some(keys.ed25519()) };
    let onion = keys.onion();
    let settings = RelayConfig {
        config: Config { limits: Some(limits), bandwidth, ..vegas() },
        exit: a_relay::open_exit(None),
        // Without a directory, but with a TLS key that is cheap to generate.
        announce: Announce::Overlay(([127, 0, 0, 1], 1).into(), None),
        status: Some(Status { listener: page, circuits: true }),
        threads: NonZeroUsize::new(THREADS).unwrap(),
        ..a_relay::settings(keys, address)
    };
    let (orders, taken) = mpsc::channel(1);
    let ended = spawn_local(async move { run(settings, vec![listener], taken, &|_| {}).await });
    Running { router, onion, status, orders, ended }
}

fn vegas() -> Config {
    Config { control: Arc::new(VegasParameters::default()), ..Config::default() }
}

/// A byte of the test file.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 16) as u8
}

/// A server that sends this many bytes of the test file and closes.
async fn server(bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            spawn_local(async move {
                for start in (0..bytes).step_by(1 << 16) {
                    let block: Vec<u8> = (start..bytes.min(start + (1 << 16))).map(byte).collect();
                    if tcp.write_all(&block).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = clock::now() + Span::from_secs(30);
    while !holds().await {
        assert!(clock::now() < end, "{what}");
        clock::until(clock::now() + Span::from_millis(5)).await;
    }
}

async fn status(relay: &Running) -> Value {
    let (_, _, body) = fetch(relay.status, "/status.json", None).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// Opens a stream to the server and waits for its whole file.
async fn downloads(client: &OneHop, circuit: CircuitKey, at: SocketAddr, bytes: usize) {
    let stream: StreamKey = client.node.with(|node, now| node.open(now, circuit, at.into())).unwrap();
    until("the whole file", async || {
        client.received.borrow().get(&stream).is_some_and(|got| got.len() >= bytes)
    })
    .await;
    let got = client.received.borrow_mut().remove(&stream).unwrap();
    assert!(got.len() == bytes && got.iter().enumerate().all(|(at, got)| *got == byte(at)), "byte-exact");
}

/// The names of this process's threads for shards.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("shard-")).count()
}

/// Clients on all shards download over plain circuits and over linked ones, some of which meet on another shard. Then
/// the relay drains.
#[test]
fn circuits_of_all_shards_are_carried_counted_and_drained() {
    on_sockets(async {
        let relay = relay(f64::INFINITY, Limits::default()).await;
        const BYTES: usize = 300_000;
        let at = server(BYTES).await;
        let clients: Vec<OneHop> = (0..THREADS).map(|_| OneHop::with(relay.router, vegas())).collect();
        for client in &clients {
            assert_eq!(client.builds(relay.onion).await, [true; 2]);
            // The second one has congestion control. A third links with it, under a random nonce.
            assert_eq!(client.builds(relay.onion).await, [true; 2]);
            let circuits: Vec<CircuitKey> = client.ends.borrow().keys().copied().collect();
            downloads(client, circuits[0], at, BYTES).await;
            let legs = [circuits[1], circuits[3]];
            assert!(client.node.with(|node, now| node.link(now, &legs, Wish::Throughput)));
            until("linked", async || !client.linked.borrow().is_empty()).await;
            for _ in 0..3 {
                downloads(client, circuits[1], at, BYTES).await;
            }
        }
        let counted = status(&relay).await;
        let circuits = counted["circuit"].as_array().unwrap();
        assert_eq!((&counted["threads"], &counted["connections"]), (&3.into(), &3.0.into()));
        assert_eq!(counted["circuits"], 12.0);
        let shards = std::collections::BTreeSet::from_iter(circuits.iter().map(|one| one["shard"].as_u64()));
        assert_eq!(shards.len(), THREADS, "the connections are spread");
        assert!(counted["written_bytes"].as_f64() > Some(12.0 * BYTES as f64));
        assert!(
            counted["sent_cells"].as_f64() <= counted["written_bytes"].as_f64().map(|bytes| bytes / 514.0)
        );

        clients.iter().for_each(|client| {
            let circuits: Vec<CircuitKey> = client.ends.borrow().keys().copied().collect();
            circuits.iter().for_each(|key| client.node.with(|node, now| node.close(now, *key)));
        });
        until("no circuit is left", async || status(&relay).await["circuits"] == 0.0).await;
        let counted = status(&relay).await;
        // The end of one leg may end the other before the client does.
        let closed = ["closed_by_client_side", "closed_linked_circuit"].map(|by| counted[by].as_f64());
        assert_eq!((closed.into_iter().flatten().sum::<f64>(), &counted["held_bytes"]), (12.0, &0.0.into()));
        assert!(threads() >= THREADS - 1);
        relay.orders.send(Order::Drain(Span::from_secs(30))).await.unwrap();
        relay.ended.await.unwrap().unwrap();
    });
}

/// A relay that drains waits for a stream that is silent, and not for circuits without streams and traffic.
#[test]
fn a_draining_relay_waits_for_circuits_in_use() {
    on_sockets(async {
        let relay = relay(f64::INFINITY, Limits::default()).await;
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let clients: Vec<OneHop> = (0..THREADS).map(|_| OneHop::with(relay.router, vegas())).collect();
        for client in &clients {
            assert_eq!(client.builds(relay.onion).await, [true; 2]);
        }
        let (client, at) = (&clients[1], silent.local_addr().unwrap());
        let circuit = *client.ends.borrow().keys().next().unwrap();
        let stream = client.node.with(|node, now| node.open(now, circuit, at.into())).unwrap();
        let _accepted = silent.accept().await.unwrap();
        relay.orders.send(Order::Drain(Span::from_secs(30))).await.unwrap();
        // Longer than a circuit without a stream is waited for.
        clock::until(clock::now() + Span::from_secs(4)).await;
        assert!(!relay.ended.is_finished(), "a stream is open");
        client.node.with(|node, now| node.stream_ended(now, stream));
        let closed = clock::now();
        relay.ended.await.unwrap().unwrap();
        let waited = clock::now().since(closed).as_secs_f64();
        assert!(waited < 8.0, "{waited} s, with six circuits that are silent");
    });
}

/// Three clients download without end from a relay with a rate limit.
#[test]
fn the_rate_limit_counts_all_shards() {
    on_sockets(async {
        const RATE: f64 = 2e6;
        let relay = relay(RATE, Limits::default()).await;
        let at = server(1 << 30).await;
        let clients: Vec<OneHop> = (0..THREADS).map(|_| OneHop::with(relay.router, vegas())).collect();
        for client in &clients {
            client.builds(relay.onion).await;
        }
        let before = (status(&relay).await["written_bytes"].as_f64().unwrap(), clock::now());
        for client in &clients {
            let circuit = *client.ends.borrow().keys().last().unwrap();
            client.node.with(|node, now| node.open(now, circuit, at.into())).unwrap();
        }
        let mut written = 0.0;
        // A second and a half at the limit. A busy machine takes longer.
        while written < RATE * 1.5 {
            clock::until(clock::now() + Span::from_millis(100)).await;
            written = status(&relay).await["written_bytes"].as_f64().unwrap() - before.0;
            let seconds = clock::now().since(before.1).as_secs_f64();
            // A burst of 0.1 s, and a batch of each connection into debt.
            let most = RATE * (seconds + 0.1) + 3.0 * 128e3;
            assert!(written <= most, "{written} B in {seconds} s");
            assert!(seconds < 20.0, "{written} B in {seconds} s");
        }
        for client in &clients {
            assert!(client.received.borrow().values().any(|got| !got.is_empty()), "each has a share");
        }
    });
}

#[test]
fn connections_per_address_count_on_all_shards() {
    on_sockets(async {
        let limits = Limits { connections_per_address: 4, ..Limits::default() };
        let relay = relay(f64::INFINITY, limits).await;
        let client = || Links::client(SharedNames::default(), false).unwrap().with_gate(Gate::Private);
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(client().connect(&relay.router, None).await.unwrap());
        }
        until("all are counted", async || status(&relay).await["connections"] == 4.0).await;
        for _ in 0..THREADS {
            assert!(client().connect(&relay.router, None).await.is_err());
        }
        open.pop();
        until("a place is free again", async || client().connect(&relay.router, None).await.is_ok()).await;
    });
}

#[test]
fn the_number_of_connections_counts_on_all_shards() {
    on_sockets(async {
        let limits = Limits { connections: 6, ..Limits::default() };
        let relay = relay(f64::INFINITY, limits).await;
        let client = || Links::client(SharedNames::default(), false).unwrap().with_gate(Gate::Private);
        let mut open = Vec::new();
        for _ in 0..30 {
            open.push(client().connect(&relay.router, None).await.unwrap());
        }
        until("six are left", async || status(&relay).await["connections"].as_f64() <= Some(6.0)).await;
        assert!(status(&relay).await["connections"].as_f64() > Some(0.0));
    });
}

#[test]
fn silent_handshakes_of_all_shards_do_not_lock_out_others() {
    on_sockets(async {
        let relay = relay(f64::INFINITY, Limits::default()).await;
        let mut silent = Vec::new();
        for _ in 0..600 {
            silent.push(TcpStream::connect(relay.router.address).await.unwrap());
        }
        let links = Links::client(SharedNames::default(), false).unwrap().with_gate(Gate::Private);
        for _ in 0..THREADS {
            assert!(links.connect(&relay.router, None).await.is_ok());
        }
        assert_eq!(silent[0].read(&mut [0; 8]).await.unwrap_or(0), 0, "the oldest went");
    });
}

#[test]
fn a_relay_that_is_dropped_ends_its_threads() {
    on_sockets(async {
        let relay = relay(f64::INFINITY, Limits::default()).await;
        // The second connection is on another thread than this one.
        let clients = [(); 2].map(|()| OneHop::with(relay.router, vegas()));
        for client in &clients {
            assert_eq!(client.builds(relay.onion).await, [true; 2]);
        }
        relay.ended.abort();
        assert!(relay.ended.await.is_err_and(|cause| cause.is_cancelled()));
        assert!(TcpStream::connect(relay.router.address).await.is_err());
        until("its client notices", async || clients[1].ends.borrow().values().all(|built| !built)).await;
    });
}

#[test]
fn parts_that_need_one_thread_are_refused() {
    let refused = |threads, config: &Config, measured| not_on_threads(threads, config, measured).is_some();
    let switching = Some(Switching::default());
    let rated = tidegate_proto::registry::CONTROLS.iter().map(|part| part.by_default());
    for config in [
        Config { transport: Transport::Quic, ..vegas() },
        Config { transport: Transport::PerCircuit, ..vegas() },
        Config { switching, ..vegas() },
    ] {
        assert!(!refused(1, &config, true) && refused(2, &config, false));
    }
    assert!(refused(2, &vegas(), true) && !refused(2, &vegas(), false));
    let by_control = rated.map(|control| refused(2, &Config { control, ..Config::default() }, false));
    assert!(by_control.clone().any(|refused| refused) && by_control.into_iter().any(|refused| !refused));
}
