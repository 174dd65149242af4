//! Relays that are reached by IPv6, alone or beside IPv4.

use crate::{a_relay, one_hop, skipped};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use one_hop::{OneHop, on_sockets};
use tidegate_net::gate::Gate;
use tidegate_net::identity::fill;
use tidegate_net::link::Carrier;
use tidegate_net::live::relay::{Announce, Event, RelayConfig, run};
use tidegate_net::live::{Addresses, Exit, Links, Policy};
use tidegate_net::overlay::Dial as _;
use tidegate_net::private_tor::{self, Network};
use tidegate_net::{ports, sockets};
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::{Router, SharedNames};
use tidegate_proto::links::{Config, Limits};
use tidegate_proto::transport::Transport;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Whether this machine supports IPv6; otherwise the test is skipped.
fn has_ipv6(what: &str) -> bool {
    let has = std::net::TcpListener::bind("[::1]:0").is_ok();
    if !has {
        skipped::skipped(what, "IPv6");
    }
    has
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn settings(keys: RouterKeys, address: Addresses, transport: Transport, announce: Announce) -> RelayConfig {
    let directory = match &announce {
        Announce::Tor(authorities) => authorities.first().copied(),
        _ => None,
    };
    // An authority refuses descriptors that mix IPv6 rules with other exit rules.
    let rules =
        ["reject [2001:db8::]/32:25", "accept [::]/0:80", "accept *:*"].map(|rule| rule.parse().unwrap());
    RelayConfig {
        config: Config {
            transport,
            bandwidth: a_relay::WEIGHT as f64,
            limits: Some(Limits::default()),
            ..Config::default()
        },
        published: Some(a_relay::WEIGHT),
        exit: Exit {
            policy: Policy::new(rules.to_vec(), true, Vec::new()),
            directories: directory.into_iter().collect(),
        },
        announce,
        ..a_relay::settings(keys, address)
    }
}

/// A relay that listens on these addresses; its router by the first address, and its onion key.
fn relay(listeners: Vec<TcpListener>, transport: Transport) -> (Router, [u8; 32]) {
    let bound: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let address = Addresses::new(&bound).unwrap();
    let keys = RouterKeys::generate(&mut fill);
    let router =
        Router { address: address.first(), fingerprint: keys.fingerprint(), ed25519: Some(keys.ed25519()) };
    let onion = keys.onion();
    let settings = settings(keys, address, transport, Announce::None);
    a_relay::serve(settings, listeners);
    (router, onion)
}

#[test]
fn clients_build_circuits_over_ipv6_by_tls_and_quic() {
    if !has_ipv6("clients build circuits over IPv6") {
        return;
    }
    on_sockets(async {
        for transport in [Transport::Vanilla, Transport::PerCircuit, Transport::Quic] {
            let (router, onion) = relay(vec![sockets::listen(at("[::1]:0"), false).unwrap()], transport);
            assert_eq!(OneHop::new(router, transport).builds(onion).await, [true; 2], "{transport:?}");
        }
    });
}

/// How a relay was reached: the address, and whether by QUIC.
async fn met(router: Router, also: Option<SocketAddr>) -> (SocketAddr, bool) {
    let names = SharedNames::default();
    let id = names.borrow_mut().keep(router);
    names.borrow_mut().also(id, also);
    let links = Rc::new(Links::client(names, true).unwrap().with_gate(Gate::Private));
    match links.dial(id).await.unwrap().carrier {
        Carrier::Tls(stream) => (stream.get_ref().0.get_ref().peer_addr().unwrap(), false),
        Carrier::Quic(lane) => (lane.connection().remote_address(), true),
    }
}

#[test]
fn both_families_share_a_port_and_the_first_answer_wins() {
    if !has_ipv6("one port is listened at by IPv4 and IPv6") {
        return;
    }
    on_sockets(async {
        let listeners = loop {
            let v6 = sockets::listen(at("[::]:0"), true).unwrap();
            let port = v6.local_addr().unwrap().port();
            // Another process may have taken the port.
            if let Ok(v4) = sockets::listen(SocketAddr::from(([0, 0, 0, 0], port)), true) {
                break vec![v4, v6];
            }
        };
        let port = listeners[0].local_addr().unwrap().port();
        let (router, _) = relay(listeners, Transport::Quic);
        let [v4, v6] = [SocketAddr::from(([127, 0, 0, 1], port)), at(&format!("[::1]:{port}"))];
        assert_eq!(met(Router { address: v4, ..router }, None).await, (v4, true));
        assert_eq!(met(Router { address: v6, ..router }, None).await, (v6, true));
        assert_eq!(met(Router { address: v4, ..router }, Some(v6)).await, (v6, true), "it is asked first");
        // Nothing listens on the address.
        let [gone4, gone6] =
            [ports::free().unwrap(), at(&format!("[::1]:{}", ports::free().unwrap().port()))];
        assert_eq!(met(Router { address: v4, ..router }, Some(gone6)).await, (v4, true));
        assert_eq!(met(Router { address: gone4, ..router }, Some(v6)).await, (v6, true));
        // The other address never answers: it is reserved for documentation (RFC 3849).
        let nowhere = at("[2001:db8::1]:9001");
        assert_eq!(met(Router { address: v4, ..router }, Some(nowhere)).await, (v4, true));
    });
}

/// Forwards connections while the flag is set.
fn forward(listener: std::net::TcpListener, to: SocketAddr, open: Arc<AtomicBool>) {
    let carry = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if open.load(Ordering::Relaxed) {
                let (here, there) = (stream.unwrap(), TcpStream::connect(to).unwrap());
                carry(here.try_clone().unwrap(), there.try_clone().unwrap());
                carry(there, here);
            }
        }
    });
}

/// Whether stock tor's client gets a server's answer over these relays, and the client's log.
fn hello(network: &mut Network, name: &str, path: [&str; 3], options: &str, at: &str) -> (bool, String) {
    let (socks, [guard, middle, exit]) = (ports::free().unwrap(), path);
    let nodes = format!("EntryNodes {guard}\nMiddleNodes {middle}\nExitNodes {exit}\n");
    network.run(name, &format!("SocksPort {socks}\nClientOnly 1\n{nodes}{options}")).unwrap();
    let server = std::net::TcpListener::bind(at).unwrap();
    let (port, asked) = match server.local_addr().unwrap() {
        SocketAddr::V4(at) => (at.port(), [&[1][..], &at.ip().octets()].concat()),
        SocketAddr::V6(at) => (at.port(), [&[4][..], &at.ip().octets()].concat()),
    };
    std::thread::spawn(move || {
        server.incoming().for_each(|stream| drop(stream.unwrap().write_all(b"hello")));
    });
    for _ in 0..600 {
        if network.log(name).contains("Bootstrapped 100%") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut stream = TcpStream::connect(socks).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&[&[5, 1, 0, 5, 1, 0][..], &asked, &port.to_be_bytes()].concat()).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    (said.ends_with(b"hello"), network.log(name))
}

/// The authority tests our relay over IPv4 and IPv6. Then stock tor's client connects after IPv4 was closed.
#[test]
#[ignore = "slow: make test-all"]
fn stock_tor_uses_the_ipv6_address_of_the_descriptor() {
    if !private_tor::is_installed(Path::new("tor")) {
        return skipped::skipped("stock tor finds an address of IPv6 in the descriptor", "tor");
    }
    if !has_ipv6("stock tor finds an address of IPv6 in the descriptor") {
        return;
    }
    let directory = std::env::temp_dir().join(format!("tidegate-ipv6-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let mut network = Network::new(Path::new("tor"), &directory, 1).unwrap();
    network.start("AuthDirHasIPv6Connectivity 1\n").unwrap();
    let stock: Vec<private_tor::Relay> =
        ["stock0", "stock1"].iter().map(|name| network.relay(name).unwrap()).collect();
    stock.iter().for_each(|relay| network.run_relay(relay, private_tor::RELAY).unwrap());
    let v6 = std::net::TcpListener::bind("[::1]:0").unwrap();
    v6.set_nonblocking(true).unwrap();
    let v4 = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Addresses::new(&[v4.local_addr().unwrap(), v6.local_addr().unwrap()]).unwrap();
    let open = Arc::new(AtomicBool::new(true));
    forward(v4, v6.local_addr().unwrap(), open.clone());
    let authority = network.authority();
    std::thread::spawn(move || {
        on_sockets(async {
            let keys = RouterKeys::generate(&mut fill);
            let settings = settings(keys, address, Transport::Vanilla, Announce::Tor(vec![authority]));
            let (_orders, taken) = mpsc::channel(1);
            let listeners = vec![TcpListener::from_std(v6).unwrap()];
            let hear = |event| assert!(!matches!(event, Event::Refused(_)), "{event:?}");
            run(settings, listeners, taken, &hear).await.unwrap();
        });
    });
    let named = format!("\na {}", address.second().unwrap());
    let all = [named, "\nr relay ".into(), "\nr stock0 ".into(), "\nr stock1 ".into()];
    network.wait_for(&all).unwrap();
    // First as an exit that announces IPv6.
    let through_exit = hello(&mut network, "first", ["stock0", "stock1", "relay"], "", "[::1]:0");
    open.store(false, Ordering::Relaxed);
    let preferred = "ClientUseIPv6 1\nClientPreferIPv6ORPort 1\n";
    let through_guard =
        hello(&mut network, "second", ["relay", "stock0", "stock1"], preferred, "127.0.0.1:0");
    drop(network);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(through_exit.0, "{}", through_exit.1);
    assert!(through_guard.0, "{}", through_guard.1);
}
