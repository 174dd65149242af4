//! A stream crosses peers on loopback, byte for byte.

use crate::loopback;
use crate::one_hop::on_sockets;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loopback::{PEERS, directory, settings};
use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::live::fetch;
use tidegate_net::more::{PeerConfig, Role, run};

#[test]
fn a_stream_crosses_seven_peers_on_loopback() {
    let directory = directory();
    let content: Vec<u8> = (0..40_000u32).map(|i| ((i * i) >> 5) as u8).collect();
    let (stop, mut received) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        for me in 1..PEERS - 1 {
            let (directory, stop) = (&directory, &stop);
            scope.spawn(move || run(&settings(directory, me, "explicit"), Role::Relay, stop));
        }
        let receiver = scope.spawn(|| {
            let role = Role::Receive { content: &mut received };
            run(&settings(&directory, PEERS - 1, "explicit"), role, &AtomicBool::new(false))
        });
        let role = Role::Send { to: PEERS - 1, content: &mut content.as_slice() };
        let sent = run(&settings(&directory, 0, "explicit"), role, &stop).expect("the upload ends");
        assert_eq!(sent.bytes, content.len() as u64);
        let got = receiver.join().expect("no panic").expect("the download ends");
        assert_eq!(got.bytes, content.len() as u64);
        stop.store(true, Ordering::Relaxed);
    });
    assert!(received == content);
}

#[test]
fn unauthenticated_datagrams_are_counted_and_stop_nothing() {
    let directory = directory();
    let stop = AtomicBool::new(false);
    let page = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let status = page.local_addr().expect("bound");
    let settings = PeerConfig { status: Some(page), ..settings(&directory, 1, "aimd") };
    std::thread::scope(|scope| {
        let relaying = scope.spawn(|| run(&settings, Role::Relay, &stop));
        let outsider = UdpSocket::bind("127.0.0.1:0").expect("loopback has ports");
        let to: SocketAddr = directory.peers[1].address.parse().expect("an address");
        // Before the relay listens, the kernel answers for it. Binding the port to test for that would keep it from
        // the relay.
        outsider.connect(to).expect("loopback");
        outsider.set_read_timeout(Some(Duration::from_millis(20))).expect("more than zero");
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        let not_listening =
            || outsider.send(&[]).and_then(|_| outsider.recv(&mut [0])).is_err_and(|error| refused(&error));
        while not_listening() && !relaying.is_finished() {
            std::thread::yield_now();
        }
        let sizes = [0, 1, 447, 1451, 1452, 1453, 60_000];
        for size in sizes {
            for kind in [0, 1, 2, 3, 255] {
                let mut junk = vec![9; size];
                junk.iter_mut().take(1).for_each(|byte| *byte = kind);
                outsider.send(&junk).expect("loopback");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        // The relay shows its counters once a second. It may have counted some datagrams before it read the others.
        on_sockets(async {
            let end = clock::now() + Span::from_secs(60);
            loop {
                let (_, _, body) = fetch(status, "/status.json", None).await.expect("a status page");
                let shown: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                if shown["unauthenticated"].as_f64().is_some_and(|number| number >= 20.0) {
                    break;
                }
                assert!(clock::now() < end, "{shown}");
                clock::until(clock::now() + Span::from_millis(20)).await;
            }
        });
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        let counters = relaying.join().expect("no panic").expect("no error").node;
        assert_eq!(counters.forwarded + counters.delivered, 0);
        // The kernel dropped datagrams that did not fit into the socket's buffer; they are not counted.
        assert!((20..=36).contains(&counters.unauthenticated), "{counters:?}");
        assert_eq!(
            (counters.forged, counters.over_limit, counters.flooding),
            (0, 0, 0),
            "no cryptography, no room"
        );
    });
}

#[test]
fn invalid_configurations_are_rejected() {
    let directory = directory();
    let go = AtomicBool::new(false);
    let refused = |settings: PeerConfig, to| {
        let role = Role::Send { to, content: &mut std::io::empty() };
        run(&settings, role, &go).expect_err("refused").kind()
    };
    let kind = std::io::ErrorKind::InvalidInput;
    assert_eq!(refused(settings(&directory, 9, "aimd"), 1), kind);
    assert_eq!(refused(PeerConfig { secret: [9; 32], ..settings(&directory, 0, "aimd") }, 1), kind);
    assert_eq!(refused(settings(&directory, 0, "aimd"), 0), kind);
    assert_eq!(refused(settings(&directory, 0, "perfect"), 1), kind);
    assert_eq!(refused(PeerConfig { hops: 5, ..settings(&directory, 0, "aimd") }, 1), kind);
}
