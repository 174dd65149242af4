//! Each key of a relay's `[limits]` changes what a running relay does.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;

use futures_util::future::join_all;
use tidegate_control::units::{Bytes, Span};
use tidegate_net::clock;
use tidegate_net::link::within;
use tidegate_net::live::relay::RelayConfig;
use tidegate_proto::links::Limits;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpSocket;

use crate::a_relay;
use crate::faults::neighbour::{
    Answer, CIRCUIT, EARLY, Link, RELAY, Relay, begin, circuit_from, extend, good_from, host, message,
};
use crate::one_hop::on_sockets;
use crate::server::{Server, server};

const ESTABLISH_RENDEZVOUS: u8 = 33;

async fn relay(limits: Limits, threads: usize) -> Relay {
    let change = |settings: &mut RelayConfig| {
        settings.config.limits = Some(limits);
        settings.exit = a_relay::open_exit(None);
        settings.threads = NonZeroUsize::new(threads).unwrap();
    };
    a_relay::start(change).await.router.into()
}

/// How many of the links and their circuits still work.
async fn alive(links: &mut [Link]) -> u64 {
    let heard = join_all(links.iter_mut().map(|link| async {
        loop {
            match link.hear_or_silence().await {
                Ok(_) => {}
                Err(answer) => return answer == Answer::Ignored,
            }
        }
    }));
    heard.await.into_iter().filter(|alive| *alive).count() as u64
}

/// Four strangers with a circuit each. Returns the number of circuits that work.
async fn circuits(relay: Relay) -> u64 {
    let mut links = Vec::new();
    for number in 2..6 {
        links.push(circuit_from(host(number), relay).await);
    }
    alive(&mut links).await
}

/// One stranger with four connections. Returns the number of those that the relay accepts.
async fn connections(relay: Relay) -> u64 {
    let mut accepted = Vec::new();
    for _ in 0..3 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((host(2), 0).into()).unwrap();
        let mut tcp = socket.connect(relay.address).await.unwrap();
        let closed = within(Span::from_millis(300), async { tcp.read(&mut [0; 8]).await }).await;
        if closed.is_err() {
            drop(tcp);
            accepted.push(good_from(host(2), relay).await);
        }
    }
    accepted.len() as u64
}

/// One stranger with one connection begins ten circuits. Returns the number of those that are created.
async fn created(relay: Relay) -> u64 {
    let mut link = good_from(host(2), relay).await;
    let mut created = 0;
    for number in 0..10 {
        created += u64::from(link.begins(CIRCUIT + number).await);
        // The relay refills the allowances every 100 ms, so a high rate allows all ten.
        clock::until(clock::now() + Span::from_millis(120)).await;
    }
    created
}

/// Waits while `unchanged`, up to 60 s, if `limit` is shorter than in a usual configuration. A busy machine takes longer than
/// the limit; the usual one changes nothing in any time.
async fn wait_for_effect<T: PartialOrd>(
    limit: T,
    usual: T,
    mut unchanged: impl AsyncFnMut() -> bool,
) -> bool {
    let end = clock::now() + Span::from_secs(60);
    loop {
        let unchanged = unchanged().await;
        if !unchanged || limit >= usual || clock::now() > end {
            return unchanged;
        }
    }
}

/// A relay that never answers: whether the circuit to it still waits.
async fn waits_for_a_silent_relay(relay: Relay, limits: Limits) -> u64 {
    let silent = server(false).await.address;
    let mut link = circuit_from(host(2), relay).await;
    link.say(EARLY, extend(silent, [9; 20])).await;
    let waits = async || link.hear_or_silence().await.unwrap_err() == Answer::Ignored;
    wait_for_effect(limits.extending, Limits::default().extending, waits).await.into()
}

/// Whether a connection without circuits stays.
async fn stays_without_circuits(relay: Relay, limits: Limits) -> u64 {
    let mut links = [good_from(host(2), relay).await];
    clock::until(clock::now() + Span::from_millis(600)).await;
    let stays = async || alive(&mut links).await == 1;
    wait_for_effect(limits.without_circuits, Limits::default().without_circuits, stays).await.into()
}

#[test]
fn a_silent_circuit_keeps_its_connection() {
    on_sockets(async {
        // The relay may wait as long for the first circuit, also on a machine that pauses.
        let limits = Limits { without_circuits: Span::from_secs(2), ..Limits::default() };
        let mut links = [circuit_from(host(2), relay(limits, 1).await).await];
        clock::until(clock::now() + Span::from_secs(6)).await;
        assert_eq!(alive(&mut links).await, 1);
    });
}

/// Three rendezvous points of three strangers. Returns the number of circuits that work.
async fn points(relay: Relay) -> u64 {
    let mut links = Vec::new();
    for number in 2..5 {
        let mut link = circuit_from(host(number), relay).await;
        link.say(RELAY, message(ESTABLISH_RENDEZVOUS, 0, &[number; 20])).await;
        links.push(link);
    }
    alive(&mut links).await
}

async fn begin_streams(relay: Relay, target: SocketAddr, streams: u16) -> Link {
    let mut link = circuit_from(host(2), relay).await;
    for stream in 1..=streams {
        link.say(RELAY, begin(stream, target)).await;
    }
    link
}

/// Four streams of one stranger. Returns the number of those that stay open.
async fn streams(relay: Relay) -> u64 {
    let Server { address, open, .. } = server(false).await;
    let mut link = begin_streams(relay, address, 4).await;
    // CONNECTED or END of each.
    while link.hear_or_silence().await.is_ok() {}
    open.get() as u64
}

/// Sixty streams that are not read. Returns the number of those that stay open.
async fn unread_streams(relay: Relay, limits: Limits) -> u64 {
    const STREAMS: u16 = 60;
    let Server { address, open, accepted, .. } = server(true).await;
    let _link = begin_streams(relay, address, STREAMS).await;
    let end = clock::now() + Span::from_secs(60);
    while accepted.get() < STREAMS.into() {
        assert!(clock::now() < end, "{} streams began", accepted.get());
        clock::until(clock::now() + Span::from_millis(10)).await;
    }
    // Streams that are blocked for a second count, and the relay looks once a second.
    clock::until(clock::now() + Span::from_secs(3)).await;
    let all_stay = async || {
        clock::until(clock::now() + Span::from_millis(100)).await;
        open.get() == usize::from(STREAMS)
    };
    wait_for_effect(limits.memory, Limits::default().memory, all_stay).await;
    open.get() as u64
}

type Probe = Box<dyn Fn(Relay, Limits) -> Pin<Box<dyn Future<Output = u64>>>>;

fn probe<F: Future<Output = u64> + 'static>(probe: impl Fn(Relay) -> F + 'static) -> Probe {
    Box::new(move |relay, _| Box::pin(probe(relay)))
}

/// A probe that waits for the effect of a limit.
fn patient<F: Future<Output = u64> + 'static>(probe: impl Fn(Relay, Limits) -> F + 'static) -> Probe {
    Box::new(move |relay, limits| Box::pin(probe(relay, limits)))
}

/// A key, a change of it, and what the change reduces. Some need other limits in both runs.
fn cases() -> Vec<(&'static str, Limits, Limits, Probe)> {
    let usual = Limits::default();
    let slow = Limits { handshake_burst: 1, handshakes_per_second: 10_000, ..usual };
    vec![
        ("memory", usual, Limits { memory: Bytes(4 << 20), ..usual }, patient(unread_streams)),
        ("connections", usual, Limits { connections: 2, ..usual }, probe(circuits)),
        ("circuits", usual, Limits { circuits: 2, ..usual }, probe(circuits)),
        (
            "connections-per-address",
            usual,
            Limits { connections_per_address: 1, ..usual },
            probe(connections),
        ),
        ("circuits-per-address", usual, Limits { circuits_per_address: 2, ..usual }, probe(created)),
        ("handshakes-per-second", slow, Limits { handshakes_per_second: 1, ..slow }, probe(created)),
        (
            "handshake-burst",
            Limits { handshakes_per_second: 1, ..usual },
            Limits { handshakes_per_second: 1, handshake_burst: 2, ..usual },
            probe(created),
        ),
        (
            "all-handshakes-per-second",
            usual,
            Limits { all_handshakes_per_second: 2, ..usual },
            probe(created),
        ),
        (
            "extending",
            usual,
            Limits { extending: Span::from_millis(100), ..usual },
            patient(waits_for_a_silent_relay),
        ),
        (
            "without-circuits",
            usual,
            Limits { without_circuits: Span::from_millis(200), ..usual },
            patient(stays_without_circuits),
        ),
        ("points", usual, Limits { points: 1, ..usual }, probe(points)),
        ("streams", usual, Limits { streams: 2, ..usual }, probe(streams)),
    ]
}

#[test]
fn every_limit_has_an_effect() {
    let cases = cases();
    let keys = serde_json::to_value(Limits::default()).unwrap();
    let known: Vec<&str> = keys.as_object().unwrap().keys().map(String::as_str).collect();
    let mut tried: Vec<&str> = cases.iter().map(|(key, ..)| *key).collect();
    tried.sort_unstable();
    assert_eq!(tried, known, "a case for each key");
    let mut wrong = Vec::new();
    for (key, before, after, probe) in &cases {
        let run = |limits: Limits| {
            let result = std::cell::Cell::new(0);
            on_sockets(async { result.set(probe(relay(limits, 1).await, limits).await) });
            result.get()
        };
        let [usual, limited] = [run(*before), run(*after)];
        eprintln!("{key}: {usual}, then {limited}");
        if limited >= usual {
            wrong.push(*key);
        }
    }
    assert!(wrong.is_empty(), "without effect: {wrong:?}");
}

/// The shards of a relay divide other limits ten times a second.
#[test]
fn an_address_has_no_more_handshakes_on_two_threads() {
    on_sockets(async {
        let limits = Limits { handshakes_per_second: 1, handshake_burst: 3, ..Limits::default() };
        let relay = relay(limits, 2).await;
        let mut link = good_from(host(2), relay).await;
        let (mut created, begun) = (0, clock::now());
        for number in 0..30 {
            created += u64::from(link.begins(CIRCUIT + number).await);
            clock::until(clock::now() + Span::from_millis(30)).await;
        }
        let seconds = clock::now().since(begun).as_secs_f64().ceil() as u64;
        assert!((3..=3 + seconds).contains(&created), "{created} of 30 in {seconds} s");
    });
}
