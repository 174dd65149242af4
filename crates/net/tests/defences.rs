//! Defences against denial of service on sockets: they act on the hostile address and on no other.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::link::within;
use tidegate_net::live::fetch;
use tidegate_net::live::relay::{Announce, RelayConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::spawn_local;

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
        assert_eq!(honest.hear_or_silence().await.unwrap_err(), Answer::Ignored, "its circuit stays");
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
        let (mut answers, begun) = ([0; 2], clock::now());
        for stream in 1..=30 {
            hostile.say(RELAY, begin(stream)).await;
            match hostile.hear().await.expect("an answer")[0] {
                CONNECTED => answers[0] += 1,
                END => answers[1] += 1,
                other => panic!("relay command {other}"),
            }
        }
        // A token comes back with every second that passes meanwhile.
        let seconds = clock::now().since(begun).as_secs_f64().ceil() as u32;
        assert!((5..=5 + seconds).contains(&answers[0]), "{answers:?} in {seconds} s");
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
            ("DoSCircuitCreationRate", 1),
            ("DoSCircuitCreationBurst", 2),
        ])
        .await;
        let _first = circuit_from(host(2), relay).await;
        // One circuit of the second connection takes the last token, which marks the address. A token comes back with
        // every second that passes meanwhile, so many are sent at once.
        let mut link = good_from(host(2), relay).await;
        for number in 0..20 {
            link.cell(CIRCUIT + number, CREATE_FAST, &[7; 20]).await;
        }
        let mut refused = 0;
        for _ in 0..20 {
            refused += u32::from(!link.created().await);
        }
        assert!(refused > 10, "{refused} of 20");
        let mut honest = circuit_from(host(3), relay).await;
        assert_eq!(honest.hear_or_silence().await.unwrap_err(), Answer::Ignored);
        assert_eq!(counted(status, "dos_circuits_refused").await, f64::from(refused));
    });
}

/// A directory authority with the consensus, or directory of an overlay, in this cell; without one it answers 404.
async fn authority(consensus: Rc<RefCell<Option<String>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.windows(4).any(|end| end == b"\r\n\r\n")
                && tcp.read_buf(&mut request).await.unwrap() > 0
            {}
            let asks =
                [&b"GET /tor/status-vote/current/consensus-microdesc HTTP/1."[..], b"GET /directory HTTP/1."];
            let asks = asks.iter().any(|ask| request.starts_with(ask));
            let body = if asks { consensus.borrow().clone() } else { Some(String::new()) };
            let answer = match body {
                Some(body) => format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
                None => "HTTP/1.0 404 Consensus is too old\r\n\r\n".to_owned(),
            };
            // The relay may have gone.
            let _ = tcp.write_all(answer.as_bytes()).await;
        }
    });
    address
}

/// A consensus of one relay, at 127.0.0.9, with a line of parameters. A relay does not check signatures.
fn consensus(parameters: &str) -> String {
    format!(
        "network-status-version 3 microdesc\nvote-status consensus\nconsensus-method 33\n\
         valid-after 2026-01-01 00:00:00\nfresh-until 2026-01-01 01:00:00\nvalid-until 2026-01-01 03:00:00\n\
         known-flags Fast Running Valid\nparams {parameters}\n\
         r Known AAAAAAAAAAAAAAAAAAAAAAAAAAA 2026-01-01 00:00:00 127.0.0.9 9001 0\n\
         m AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\ns Fast Running Valid\nw Bandwidth=1\ndirectory-footer\n\
         directory-signature sha256 {key} {key}\n-----BEGIN SIGNATURE-----\nAAAA\n-----END SIGNATURE-----\n",
        key = "0".repeat(40)
    )
}

/// How many of 20 connections from an address the relay leaves open.
async fn stay_open(from: IpAddr, relay: &Relay) -> usize {
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(connect(from, relay.address).await);
    }
    let mut stay = 0;
    for mut tcp in open {
        let closed = within(Span::from_millis(100), async { tcp.read(&mut [0; 8]).await }).await;
        stay += usize::from(closed.is_err());
    }
    stay
}

/// Waits until this many of 20 connections from an address stay open. In a pause of the machine the relay closes none in time.
async fn wait_until_open(from: IpAddr, relay: &Relay, stay: usize, what: &str) {
    let until = clock::now() + Span::from_secs(60);
    loop {
        let open = stay_open(from, relay).await;
        if open == stay {
            return;
        }
        assert!(clock::now() < until, "{what}: {open} stay open");
    }
}

/// The first authority lacks a consensus. That of the second one limits connections until the next one lifts the limit.
#[test]
fn a_relay_obeys_the_consensus_that_it_reads_from_an_authority() {
    on_sockets(async {
        let limited = consensus("DoSConnectionEnabled=1 DoSConnectionMaxConcurrentCount=3");
        let said = Rc::new(RefCell::new(Some(limited)));
        let authorities = vec![authority(Rc::default()).await, authority(said.clone()).await];
        let a_relay::Running { router, .. } =
            a_relay::start(|settings| settings.announce = Announce::Tor(authorities)).await;
        let relay = Relay::from(router);
        wait_until_open(host(2), &relay, 4, "it obeys the limit").await;
        assert_eq!(stay_open(host(9), &relay).await, 20, "relays of the consensus are exempt");
        said.replace(Some(consensus("DoSConnectionEnabled=0")));
        wait_until_open(host(2), &relay, 20, "it reads the next consensus").await;
    });
}

#[test]
fn a_relay_knows_the_relays_that_the_directory_of_its_overlay_lists() {
    on_sockets(async {
        let listed = "tidegate-overlay 1\nrelay other 127.0.0.9:9001 and further words\n".to_owned();
        let directory = authority(Rc::new(RefCell::new(Some(listed)))).await;
        let limit = [("DoSConnectionEnabled", 1), ("DoSConnectionMaxConcurrentCount", 3)];
        let change = |settings: &mut RelayConfig| {
            settings.announce = Announce::Overlay(directory, None);
            settings.defences = limit.map(|(name, value)| (name.to_owned(), value)).into();
        };
        let relay = Relay::from(a_relay::start(change).await.router);
        wait_until_open(host(9), &relay, 20, "it reads the directory").await;
        wait_until_open(host(2), &relay, 4, "it obeys the limit").await;
    });
}
