//! Reloads of a relay's configuration: a Tor network that comes and goes, and what the descriptor says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::fill;
use tidegate_net::live::Operator;
use tidegate_net::live::relay::{Announce, Changes, Event, Order, run};
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::{KeyLifetimes, Router};
use tidegate_proto::links::Limits;
use tidegate_proto::transport::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::a_relay;
use crate::one_hop::{OneHop, on_sockets};

const CONSENSUS: &str = include_str!("../../data/fixtures/consensus-microdesc");

/// Serves a consensus that limits connections, and keeps the documents that relays publish.
async fn authority(published: Rc<RefCell<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let consensus = CONSENSUS.replacen("params ", "params DoSConnectionEnabled=1 ", 1);
    spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let whole = |request: &[u8]| {
                let text = String::from_utf8_lossy(request).into_owned();
                let (head, body) = text.split_once("\r\n\r\n")?;
                let head = head.to_lowercase();
                let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
                    rest.split("\r\n").next().unwrap_or_default().parse::<usize>().unwrap()
                });
                (body.len() >= length).then(|| body.to_owned())
            };
            let body = loop {
                if let Some(body) = whole(&request) {
                    break body;
                }
                if stream.read_buf(&mut request).await.unwrap() == 0 {
                    break String::new();
                }
            };
            let answer = if request.starts_with(b"POST") { "" } else { &*consensus };
            if request.starts_with(b"POST") {
                published.borrow_mut().push(body);
            }
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
            let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
        }
    });
    address
}

/// A relay that obeys orders.
struct Relay {
    router: Router,
    onion: [u8; 32],
    orders: mpsc::Sender<Order>,
    events: Rc<RefCell<Vec<Event>>>,
}

impl Relay {
    async fn start() -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let keys = RouterKeys::generate(&mut fill);
        let router = Router { address, fingerprint: keys.fingerprint(), ed25519: Some(keys.ed25519()) };
        let (onion, events) = (keys.onion(), Rc::<RefCell<Vec<Event>>>::default());
        let (orders, taken) = mpsc::channel(1);
        let mut settings = a_relay::settings(keys, address);
        settings.exit = a_relay::open_exit(None);
        let heard = events.clone();
        spawn_local(async move {
            let hear = |event| heard.borrow_mut().push(event);
            run(settings, vec![listener], taken, &hear).await
        });
        Relay { router, onion, orders, events }
    }

    async fn reload(&self, announce: Announce, operator: Operator) {
        let changes = Changes {
            address: self.router.address.into(),
            exit: a_relay::open_exit(None),
            extends: Gate::Private,
            bandwidth: 1e7,
            published: None,
            limits: Limits::default(),
            announce,
            operator,
            defences: BTreeMap::new(),
            lifetimes: KeyLifetimes::default(),
        };
        assert!(self.orders.send(Order::Reload(Box::new(changes))).await.is_ok());
    }

    /// Waits until the last report on the defences is that connections are limited, or not. The relay may still generate its
    /// RSA key, which takes seconds on a slow machine.
    async fn limits_connections(&self, limits: bool) {
        let end = clock::now() + Span::from_secs(60);
        let last = || {
            let events = self.events.borrow();
            let defends = events.iter().rev().find_map(|event| match event {
                Event::Defends(parameters) => Some(parameters.connections.is_some()),
                _ => None,
            });
            defends.unwrap_or(false)
        };
        while last() != limits {
            assert!(clock::now() < end, "{:?}", self.events.borrow());
            clock::until(clock::now() + Span::from_millis(10)).await;
        }
    }

    /// Waits until it reports that its test failed: the authority does not serve microdescriptors.
    async fn fails_to_test_its_bandwidth(&self) {
        let end = clock::now() + Span::from_secs(60);
        let failed = |event: &Event| matches!(event, Event::NotTested(why) if why.contains("none of the microdescriptors"));
        while !self.events.borrow().iter().any(failed) {
            assert!(clock::now() < end, "{:?}", self.events.borrow());
            clock::until(clock::now() + Span::from_millis(10)).await;
        }
    }
}

/// A published document with this text. A relay may publish again for an earlier change.
async fn document(published: &RefCell<Vec<String>>, text: &str) -> String {
    let end = clock::now() + Span::from_secs(60);
    loop {
        if let Some(document) = published.borrow().iter().find(|document| document.contains(text)) {
            return document.clone();
        }
        assert!(clock::now() < end, "{:?}", published.borrow());
        clock::until(clock::now() + Span::from_millis(10)).await;
    }
}

/// The arguments of a line.
fn line<'a>(document: &'a str, keyword: &str) -> &'a str {
    let line = document.lines().find_map(|line| line.strip_prefix(keyword)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{keyword}: {document}"))
}

/// Downloads from a server of 400 kB through the relay.
async fn download(relay: &Relay) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = server.local_addr().unwrap();
    spawn_local(async move {
        let (mut stream, _) = server.accept().await.unwrap();
        stream.write_all(&[7; 400_000]).await.unwrap();
    });
    let client = OneHop::new(relay.router, Transport::Vanilla);
    assert_eq!(client.builds(relay.onion).await, [true; 2]);
    let circuit = *client.ends.borrow().keys().last().unwrap();
    let stream = client.node.with(|node, now| node.open(now, circuit, at.into())).unwrap();
    let end = clock::now() + Span::from_secs(60);
    while client.received.borrow().get(&stream).map_or(0, Vec::len) < 400_000 {
        assert!(clock::now() < end, "the download does not end");
        clock::until(clock::now() + Span::from_millis(10)).await;
    }
}

#[test]
fn a_tor_network_that_comes_and_goes_takes_its_parameters_along() {
    on_sockets(async {
        let published = Rc::<RefCell<Vec<String>>>::default();
        let authority = authority(published.clone()).await;
        let relay = Relay::start().await;
        relay.reload(Announce::Tor(vec![authority]), Operator::default()).await;
        relay.limits_connections(true).await;
        relay.fails_to_test_its_bandwidth().await;
        relay.reload(Announce::None, Operator::default()).await;
        relay.limits_connections(false).await;
        relay.reload(Announce::Tor(vec![authority]), Operator::default()).await;
        relay.limits_connections(true).await;
    });
}

#[test]
fn the_descriptor_says_what_was_carried_and_who_operates_the_relay() {
    on_sockets(async {
        let published = Rc::<RefCell<Vec<String>>>::default();
        let authority = authority(published.clone()).await;
        let relay = Relay::start().await;
        relay.reload(Announce::Tor(vec![authority]), Operator::default()).await;
        let before = document(&published, "router relay ").await;
        assert_eq!(line(&before, "bandwidth"), "10000000 10000000 0");
        assert!(!before.contains("\ncontact ") && before.contains("\nextra-info relay "), "{before}");

        // Exits of a Tor network refuse streams of circuits with one relay.
        relay.reload(Announce::None, Operator::default()).await;
        download(&relay).await;
        clock::until(clock::now() + Span::from_millis(1100)).await;
        let operator = Operator { contact: Some("tide".into()), ..Operator::default() };
        relay.reload(Announce::Tor(vec![authority]), operator).await;
        let after = document(&published, "\ncontact ").await;
        assert_eq!(line(&after, "contact"), "tide");
        let observed: u64 = line(&after, "bandwidth").rsplit_once(' ').unwrap().1.parse().unwrap();
        // 400 kB and the cells around them, in a window of 10 s.
        assert!((40_000..60_000).contains(&observed), "{observed}");
        assert!(line(&after, "uptime").parse::<u64>().unwrap() >= 1);
    });
}
