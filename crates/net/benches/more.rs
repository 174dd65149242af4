//! Packets that a live relay of MORE forwards per second of processor time, against bare `sphinx-packet` unwrapping:
//! `cargo bench -p tidegate-net --bench more`.
//!
//! Both are thread processor time, so that other work on the machine counts little.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sphinx_packet::SphinxPacket;
use tidegate_control::paths::ControllerParameters;
use tidegate_control::units::Span;
use tidegate_more::directory::{Directory, Hex, PeerEntry};
use tidegate_more::keys::PeerKeys;
use tidegate_more::link::{LINK, Links};
use tidegate_more::onion::{Epoch, build};
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::more::{PeerConfig, Role, entropy, run};

const PACKETS: usize = 4000;
/// Packets in flight to the relay.
const AHEAD: usize = 32;
const ROUNDS: usize = 5;

fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() {
    // `cargo test` runs benches once and short.
    let packets = if std::env::args().any(|argument| argument == "--bench") { PACKETS } else { 100 };
    let (mut bare, mut live): (f64, f64) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let (unwrapped, passed) = round(packets);
        (bare, live) = (bare.max(unwrapped), live.max(passed));
    }
    println!("bare unwrapping: {bare:.0} packets per second and core");
    println!("live relay:      {live:.0} packets per second and core, {:.0} % of it", 100.0 * live / bare);
}

/// Packets per processor second: bare, and live.
fn round(packets: usize) -> (f64, f64) {
    let socket = |port: u16| UdpSocket::bind(("127.0.0.1", port)).expect("loopback has ports");
    let secrets: Vec<[u8; 32]> = (0..3).map(|_| entropy()).collect();
    let keys: Vec<PeerKeys> = secrets.iter().map(|secret| PeerKeys::new(*secret)).collect();
    let sink = socket(0);
    let relay: SocketAddr = socket(0).local_addr().expect("bound");
    let addresses = [relay, sink.local_addr().expect("bound"), sink.local_addr().expect("bound")];
    let peers = addresses.iter().zip(&keys).map(|(address, keys)| PeerEntry {
        address: address.to_string(),
        key: Hex(keys.link_key()),
        epochs: vec![Hex(keys.onion_key(0))],
    });
    let directory = Directory { start: clock::unix() - 1, seconds: 86_400, peers: peers.collect() };
    let epoch = Epoch::new(0, keys.iter().map(|keys| keys.onion_key(0)).collect());
    let mut links = Links::new(1, keys[1].link(), &directory.links());
    let body = [7; 500];
    let datagram =
        |_| links.seal(0, &build(&epoch, &[0, 1], 2, [1; 16], &body, &mut entropy).0).expect("a peer");
    let datagrams: Vec<Vec<u8>> = (0..packets).map(datagram).collect();

    let secret = keys[0].onion(0);
    let begin = cpu_s();
    for datagram in &datagrams {
        let packet = SphinxPacket::from_bytes(&datagram[LINK + 1..]).expect("as built");
        std::hint::black_box(packet.process(&secret).expect("as built"));
    }
    let bare = packets as f64 / (cpu_s() - begin);

    let settings = PeerConfig {
        directory,
        me: 0,
        secret: secrets[0],
        listen: None,
        memory: None,
        uses: 1,
        limit: 1e12,
        hops: 1,
        parameters: ControllerParameters::named("explicit-or-aimd", 1500.0).expect("known"),
        attempt_every: Span::from_millis(5),
        guards: Vec::new(),
        status: None,
        gate: Gate::Private,
    };
    let stop = AtomicBool::new(false);
    let live = std::thread::scope(|scope| {
        let relaying = scope.spawn(|| {
            let begin = cpu_s();
            let summary = run(&settings, Role::Relay, &stop).expect("relays");
            summary.node.forwarded as f64 / (cpu_s() - begin)
        });
        sink.set_read_timeout(Some(Duration::from_millis(100))).expect("not zero");
        let (mut sent, mut back, mut buffer) = (0, 0, [0; 2048]);
        while back < packets {
            while sent < packets && sent < back + AHEAD {
                sink.send_to(&datagrams[sent], relay).expect("loopback");
                sent += 1;
            }
            match sink.recv_from(&mut buffer) {
                Ok(_) => back += 1,
                // Packets are lost while the relay starts or its buffer is full.
                Err(_) if sent == packets => break,
                Err(_) => back = sent,
            }
        }
        stop.store(true, Ordering::Relaxed);
        relaying.join().expect("no panic")
    });
    (bare, live)
}
