//! Attacks on a relay by strangers. Each test fails on a relay without the bound that it names.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use tidegate_control::units::{Bytes, Span};
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::fill;
use tidegate_net::live::bandwidth::Limit;
use tidegate_net::live::client::{self, ClientConfig, Event};
use tidegate_net::live::directory::{self, Admission, Authority, Entry};
use tidegate_net::live::relay::{Announce, RelayConfig};
use tidegate_net::live::{Exit, Policy, authority, fetch};
use tidegate_net::overlay::{Connection, RateLimit as _};
use tidegate_proto::crypto::cert::RouterKeys;
use tidegate_proto::crypto::layer::BODY;
use tidegate_proto::links::{ChannelId, Config, Limits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::spawn_local;
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

use crate::a_relay;
use crate::faults::neighbour::{
    Answer, BEGIN, CIRCUIT, CONNECTED, EARLY, END, Link, RELAY, RESOLVE, RESOLVED, Relay, begin,
    circuit_from, extend, good_from, host, message,
};
use crate::one_hop::on_sockets;
use crate::pauses::Pauses;
use crate::server::{Server, sending, server};

/// Reasons of END (tor-spec, "Closing streams").
const EXIT_POLICY: u8 = 4;

/// Settings of a relay that differ between tests.
struct Setup {
    limits: Limits,
    /// Its exit policy.
    rules: &'static [&'static str],
    exit_to_private: bool,
    extends: Gate,
    announce: Announce,
}

impl Default for Setup {
    fn default() -> Setup {
        let (limits, announce) = (Limits::default(), Announce::None);
        Setup { limits, rules: &["accept *:*"], exit_to_private: true, extends: Gate::Public, announce }
    }
}

/// Starts a relay. Returns it and the address of its status page.
async fn relay(setup: Setup) -> (Relay, SocketAddr) {
    let rules = setup.rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let change = |settings: &mut RelayConfig| {
        settings.config.limits = Some(setup.limits);
        settings.exit =
            Exit { policy: Policy::new(rules, setup.exit_to_private, Vec::new()), directories: Vec::new() };
        settings.extends = setup.extends;
        settings.announce = setup.announce;
    };
    let a_relay::Running { router, status, .. } = a_relay::start(change).await;
    (router.into(), status)
}

/// Opens a stream, and returns the command of the answer and its first byte of data.
async fn open(link: &mut Link, stream: u16, to: SocketAddr) -> (u8, u8) {
    link.say(RELAY, begin(stream, to)).await;
    let body = link.hear().await.expect("an answer");
    assert_eq!(body[3..5], stream.to_be_bytes());
    (body[0], body[11])
}

/// Connections from these addresses, which always have cells to write, at a relay with a bandwidth limit that knows the relays
/// at `relays`. Returns how often each could write until all together wrote this often: a busy machine takes longer.
async fn turns(rate: u32, often: u32, addresses: &[IpAddr], relays: &[IpAddr]) -> Vec<u32> {
    let limit = Rc::new(Limit::new(rate.into()));
    limit.know_relays(relays.iter().copied().collect());
    // The burst and the tokens of the first second are used up, so that all connections wait before one can write.
    limit.leave(Connection { channel: ChannelId(0), address: None }, u64::from(rate) * 11 / 10).await;
    let sent = Rc::new(RefCell::new(vec![0; addresses.len()]));
    for (number, address) in addresses.iter().enumerate() {
        let (limit, sent) = (limit.clone(), sent.clone());
        let connection = Connection { channel: ChannelId(number as u32), address: Some(*address) };
        spawn_local(async move {
            loop {
                limit.leave(connection, 2_000).await;
                sent.borrow_mut()[number] += 1;
            }
        });
    }
    let end = clock::now() + Span::from_secs(60);
    while sent.borrow().iter().sum::<u32>() < often {
        assert!(clock::now() < end, "{:?}", sent.borrow());
        clock::until(clock::now() + Span::from_millis(10)).await;
    }
    sent.take()
}

#[test]
fn connections_with_cells_take_turns_at_a_bandwidth_limit() {
    on_sockets(async {
        let addresses: Vec<IpAddr> = (1..=20).map(host).collect();
        let sent = turns(1_000_000, 150, &addresses, &[]).await;
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(*least > 0 && most - least <= 1, "{sent:?}");
    });
}

/// A user has one connection, a stranger 1,000, and a known relay two with the cells of many users.
#[test]
fn the_connections_of_an_address_share_one_turn_at_a_bandwidth_limit() {
    on_sockets(async {
        let addresses = [&[host(2), host(4), host(4)][..], &[host(3); 1000]].concat();
        let sent = turns(1_000_000, 150, &addresses, &[host(4)]).await;
        let stranger: u32 = sent[3..].iter().sum();
        let shares = [sent[0], sent[1], sent[2], stranger];
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(*least > 20 && most - least <= 1, "{shares:?}");
    });
}

/// Relays join a directory with its token. One of them opens 1,000 connections.
#[test]
fn a_relay_with_many_connections_has_a_bounded_number_of_turns() {
    on_sockets(async {
        let addresses = [&[host(2)][..], &[host(4); 1000]].concat();
        let sent = turns(10_000_000, 1500, &addresses, &[host(4)]).await;
        let relay: u32 = sent[1..].iter().sum();
        // 64 turns of the relay for each one of the user, or not much more on a busy machine.
        assert!(sent[0] > 3 && relay < 128 * sent[0], "{} and {relay}", sent[0]);
    });
}

#[test]
fn a_stranger_with_many_streams_hurts_only_itself() {
    on_sockets(async {
        let limits = Limits { streams: 20, ..Limits::default() };
        let (relay, _) = relay(Setup { limits, ..Setup::default() }).await;
        let target = server(false).await.address;
        let mut user = circuit_from(host(2), relay).await;
        assert_eq!(open(&mut user, 1, target).await.0, CONNECTED);
        let mut stranger = circuit_from(host(3), relay).await;
        for stream in 1..=500 {
            stranger.say(RELAY, begin(stream, target)).await;
        }
        // The last stream of the stranger is open, so all of its requests were seen.
        while stranger.hear().await.is_ok_and(|body| body[0] != CONNECTED || body[3..5] != [1, 244]) {}
        for stream in 2..=6 {
            assert_eq!(open(&mut user, stream, target).await.0, CONNECTED, "stream {stream}");
        }
        // The user lost none of its streams.
        assert_eq!(user.hear_or_silence().await.unwrap_err(), Answer::Ignored);
    });
}

/// A server that accepts no connection, because others wait there. Returns its address, and what must stay open.
async fn silent_server() -> (SocketAddr, (TcpListener, Vec<TcpStream>)) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(Ok(tcp)) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        waiting.push(tcp);
    }
    (address, (listener, waiting))
}

#[test]
fn streams_to_a_silent_server_make_room_for_others() {
    on_sockets(async {
        let limits = Limits { streams: 20, ..Limits::default() };
        let (relay, _) = relay(Setup { limits, ..Setup::default() }).await;
        let (silent, _open) = silent_server().await;
        let mut stranger = circuit_from(host(3), relay).await;
        for stream in 1..=500 {
            stranger.say(RELAY, begin(stream, silent)).await;
        }
        // The relay ends streams to make room.
        assert_eq!(stranger.hear().await.expect("an answer")[0], END);
        let target = server(false).await.address;
        let mut user = circuit_from(host(2), relay).await;
        for stream in 1..=5 {
            assert_eq!(open(&mut user, stream, target).await.0, CONNECTED, "stream {stream}");
        }
    });
}

thread_local! {
    /// The lines that this thread logged by default.
    static LINES: Cell<usize> = const { Cell::new(0) };
}

/// Counts lines in [`LINES`].
struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("tidegate")
    }
    fn event(&self, _: &tracing::Event<'_>) {
        LINES.set(LINES.get() + 1);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn circuits_that_a_stranger_breaks_do_not_fill_the_log() {
    // No other test of this program logs.
    tracing::subscriber::set_global_default(Lines).unwrap();
    on_sockets(async {
        let (relay, _) = relay(Setup::default()).await;
        let mut stranger = good_from(host(2), relay).await;
        for _ in 0..100 {
            stranger.create().await;
            stranger.cell(CIRCUIT, RELAY, &[7; BODY]).await;
            assert!(matches!(stranger.hear().await, Err(Answer::Destroyed(_))));
        }
    });
    assert!((1..=20).contains(&LINES.get()), "{} lines of 100 circuits", LINES.get());
}

#[test]
fn connections_with_an_idle_circuit_each_do_not_lock_out_newcomers() {
    on_sockets(async {
        let limits = Limits { connections: 12, ..Limits::default() };
        let (relay, _) = relay(Setup { limits, ..Setup::default() }).await;
        let mut idle = Vec::new();
        for stranger in 2..=7 {
            idle.push(circuit_from(host(stranger), relay).await);
            idle.push(circuit_from(host(stranger), relay).await);
        }
        let mut newcomers = Vec::new();
        for newcomer in 8..=12 {
            newcomers.push(circuit_from(host(newcomer), relay).await);
        }
        for newcomer in &mut newcomers {
            assert_eq!(newcomer.hear_or_silence().await.unwrap_err(), Answer::Ignored, "its circuit stays");
        }
        let mut kept = [false; 6];
        for (number, link) in idle.iter_mut().enumerate() {
            kept[number / 2] |= link.hear_or_silence().await.unwrap_err() == Answer::Ignored;
        }
        assert_eq!(kept, [true; 6], "every address keeps its share");
    });
}

/// A relay with few file descriptors has few places for connections, and a quarter of them for handshakes.
#[test]
fn half_open_connections_leave_descriptors_to_others() {
    on_sockets(async {
        let limits = Limits { connections: 64, ..Limits::default() };
        let (relay, _) = relay(Setup { limits, ..Setup::default() }).await;
        let mut half_open = Vec::new();
        for number in 0..60 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((host(3 + number), 0).into()).unwrap();
            half_open.push(socket.connect(relay.address).await.unwrap());
        }
        let mut user = circuit_from(host(2), relay).await;
        assert_eq!(user.hear_or_silence().await.unwrap_err(), Answer::Ignored, "its circuit stays");
        let closed = half_open.iter_mut().filter(|tcp| tcp.try_read(&mut [0; 8]).is_ok_and(|read| read == 0));
        let open = 60 - closed.count();
        assert!((1..=16).contains(&open), "{open} half-open connections");
    });
}

#[test]
fn circuits_are_not_extended_to_private_addresses() {
    on_sockets(async {
        let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (relay, _) = relay(Setup::default()).await;
        for to in
            [trap.local_addr().unwrap(), "10.0.0.1:9".parse().unwrap(), "169.254.169.254:80".parse().unwrap()]
        {
            let mut link = circuit_from(host(2), relay).await;
            link.say(EARLY, extend(to, [9; 20])).await;
            assert!(matches!(link.hear().await.unwrap_err(), Answer::Destroyed(_)), "{to}");
        }
        let came = tokio::time::timeout(Duration::from_millis(50), trap.accept()).await;
        assert!(came.is_err(), "the relay connected to this machine");
    });
}

#[test]
fn metadata_services_stay_out_of_reach_in_a_private_network() {
    on_sockets(async {
        let (relay, _) = relay(Setup { extends: Gate::Private, ..Setup::default() }).await;
        for to in
            ["169.254.169.254:80", "100.100.100.200:80", "[fd00:ec2::254]:80", "[64:ff9b::a9fe:a9fe]:80"]
        {
            let to: SocketAddr = to.parse().unwrap();
            let mut link = circuit_from(host(2), relay).await;
            if to.is_ipv4() {
                assert_eq!(open(&mut link, 1, to).await, (END, EXIT_POLICY), "{to}");
            }
            link.say(EARLY, extend(to, [9; 20])).await;
            // A connection attempt would take until its timeout.
            assert!(matches!(link.hear().await.unwrap_err(), Answer::Destroyed(_)), "{to}");
        }
    });
}

/// The first answer to a RESOLVE: type and length.
async fn resolve(link: &mut Link, name: &str) -> [u8; 2] {
    link.say(RELAY, message(RESOLVE, 9, format!("{name}\0").as_bytes())).await;
    let body = link.hear().await.expect("an answer");
    assert_eq!(body[0], RESOLVED);
    [body[11], body[12]]
}

#[test]
fn names_are_resolved_at_exits_and_to_public_addresses_only() {
    const ERROR: [u8; 2] = [0xf1, 0];
    on_sockets(async {
        const ALL: &[&str] = &["accept *:*"];
        for (rules, exit_to_private, answers) in
            [(&[][..], true, None), (ALL, false, None), (ALL, true, Some(([4, 4], [0, 9])))]
        {
            let (relay, _) = relay(Setup { rules, exit_to_private, ..Setup::default() }).await;
            let mut link = circuit_from(host(2), relay).await;
            let (address, name) = answers.unwrap_or((ERROR, ERROR));
            assert_eq!(resolve(&mut link, "127.0.0.1").await, address, "{rules:?} {exit_to_private}");
            assert_eq!(resolve(&mut link, "169.254.169.254").await, ERROR);
            // A reverse lookup: the name is `localhost`.
            assert_eq!(
                resolve(&mut link, "1.0.0.127.in-addr.arpa").await,
                name,
                "{rules:?} {exit_to_private}"
            );
            assert_eq!(resolve(&mut link, "254.169.254.169.in-addr.arpa").await, ERROR);
        }
    });
}

/// A stock client that is not told the address concludes that the exit refuses all of them.
#[test]
fn a_refused_stream_names_the_address() {
    on_sockets(async {
        let rules = &["reject 192.0.2.5:*", "accept *:*"];
        let (relay, _) = relay(Setup { rules, ..Setup::default() }).await;
        let mut link = circuit_from(host(2), relay).await;
        link.say(RELAY, begin(1, "192.0.2.5:80".parse().unwrap())).await;
        let body = link.hear().await.expect("an answer");
        // The reason, the address, and how many seconds it may be remembered.
        assert_eq!(
            (body[0], &body[9..11], &body[11..20]),
            (END, &[0, 9][..], &[4, 192, 0, 2, 5, 0, 0, 0, 60][..])
        );
    });
}

#[test]
fn an_exit_of_ipv4_alone_connects_to_names_with_an_ipv6_address() {
    on_sockets(async {
        let (relay, _) = relay(Setup { rules: &["accept 127.0.0.1:*"], ..Setup::default() }).await;
        let mut link = circuit_from(host(2), relay).await;
        let port = server(false).await.address.port();
        // The flags accept IPv6.
        link.say(RELAY, message(BEGIN, 1, format!("localhost:{port}\0\0\0\0\u{1}").as_bytes())).await;
        assert_eq!(link.hear().await.expect("an answer")[0], CONNECTED);
    });
}

#[test]
fn an_exit_does_not_connect_to_itself() {
    on_sockets(async {
        let (relay, status) = relay(Setup::default()).await;
        let mut link = circuit_from(host(2), relay).await;
        let other = SocketAddr::new(host(9), relay.address.port());
        for (stream, own) in [(1, relay.address), (2, status), (3, other)] {
            assert_eq!(open(&mut link, stream, own).await, (END, EXIT_POLICY), "{own}");
        }
        let target = server(false).await.address;
        assert_eq!(open(&mut link, 4, target).await.0, CONNECTED);
    });
}

/// Names that the resolver takes for addresses of this machine, and invalid names.
const PATHOLOGICAL: [&str; 16] = [
    "127.1",
    "0x7f.1",
    "0x7f000001",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "127.0.0.1.",
    "0",
    "localhost",
    "LocalHost.",
    "::ffff:127.0.0.1",
    "::1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "a..b",
    ".",
];

#[test]
fn names_that_hide_an_address_of_this_machine_reach_nothing() {
    const RESOLVE_FAILED: u8 = 2;
    on_sockets(async {
        let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = trap.local_addr().unwrap().port();
        let (relay, _) = relay(Setup { exit_to_private: false, ..Setup::default() }).await;
        let mut link = circuit_from(host(2), relay).await;
        for (stream, name) in (1..).zip(PATHOLOGICAL) {
            let host = if name.contains(':') { format!("[{name}]") } else { name.to_owned() };
            // The flags accept IPv6.
            let begin = format!("{host}:{port}\0\0\0\0\u{1}");
            link.say(RELAY, message(BEGIN, stream, begin.as_bytes())).await;
            let body = link.hear().await.expect("an answer");
            assert_eq!(body[0], END, "{name}");
            assert!([RESOLVE_FAILED, EXIT_POLICY].contains(&body[11]), "{name}: {}", body[11]);
            let told = body[11] == EXIT_POLICY;
            assert!(!told || name.parse::<IpAddr>().is_ok(), "{name}: the answer tells an address");
        }
        let came = tokio::time::timeout(Duration::from_millis(50), trap.accept()).await;
        assert!(came.is_err(), "the exit connected to this machine");
    });
}

/// Requests that never end, of one address, at a directory.
#[test]
fn half_written_posts_do_not_delay_a_directory() {
    on_sockets(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = listener.local_addr().unwrap();
        let key = SigningKey::from_bytes(&[7; 32]);
        let rules = Admission { allowed: Vec::new(), token: None, per_address: 8, gate: Gate::Private };
        spawn_local(authority::run(Authority::new(key, rules, 600), None, None, listener, |_| {}));
        let time = async || {
            let begun = clock::now();
            let (status, ..) = fetch(directory, "/none", None).await.unwrap();
            assert_eq!(status, 404);
            clock::now().since(begun)
        };
        let before = time().await;
        let (mut halves, mut sent) = (Vec::new(), 0);
        for number in 0..300 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((host(3), 0).into()).unwrap();
            let mut half = socket.connect(directory).await.unwrap();
            // Bodies that stop, bodies without end, heads that stop.
            let text = match number % 3 {
                0 => "POST /relay HTTP/1.1\r\nHost: a\r\nContent-Length: 8000\r\n\r\ntoken",
                1 => "POST /relay HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
                _ => "POST /relay HTTP/1.1\r\nHost: a\r\nX: ",
            };
            half.write_all(text.as_bytes()).await.unwrap();
            sent += text.len();
            halves.push(half);
        }
        let mut during = time().await;
        // A pause of the machine delays one answer; the attack delays all.
        for _ in 0..2 {
            during = during.min(time().await);
        }
        eprintln!("{sent} bytes of 300 requests: an answer takes {before}, then {during}");
        assert!(during < Span::from_secs(2), "{during}");
    });
}

/// The token that relays present to [`a_directory`].
const TOKEN: &str = "0123456789abcdef";

/// The signing key of [`a_directory`].
fn directory_key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

/// Starts the directory of an overlay on this machine.
async fn a_directory() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (token, gate) = (Some(TOKEN.to_owned()), Gate::Private);
    let rules = Admission { allowed: Vec::new(), token, per_address: 8, gate };
    let authority = Authority::new(directory_key(), rules, 600);
    spawn_local(authority::run(authority, None, None, listener, |_| {}));
    address
}

/// Lists a relay at this address that is faster than all others.
async fn list_fastest(directory: SocketAddr, address: SocketAddr, keys: &RouterKeys, exit: bool) {
    let facts = (90_000_000_000, exit, clock::unix());
    let line = Entry::new("fastest", address.into(), keys, facts).line();
    let post = format!("token {TOKEN}\n{}\n{line}\n", directory::proof(keys));
    assert_eq!(fetch(directory, "/relay", Some(post.as_bytes())).await.unwrap().0, 200);
}

/// Starts exits that the directory lists.
async fn announce(directory: SocketAddr, relays: usize) {
    for _ in 0..relays {
        let announce = Announce::Overlay(directory, Some(TOKEN.to_owned()));
        relay(Setup { extends: Gate::Private, announce, ..Setup::default() }).await;
    }
}

/// Starts a client of [`a_directory`] once that lists so many relays. Returns its front.
async fn client_of(directory: SocketAddr, relays: usize) -> SocketAddr {
    // A client asks for the directory seldom, so it starts when all are listed. Relays generate RSA keys before.
    let end = clock::now() + Span::from_secs(60);
    loop {
        let (_, _, listed) = fetch(directory, "/directory", None).await.unwrap();
        let listed = String::from_utf8(listed).unwrap();
        if listed.lines().filter(|line| line.starts_with("relay ")).count() == relays {
            break;
        }
        assert!(clock::now() < end, "{listed}");
        clock::until(clock::now() + Span::from_millis(50)).await;
    }
    let socks = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = socks.local_addr().unwrap();
    let known = Rc::<Cell<usize>>::default();
    let seen = known.clone();
    let on_event = Rc::new(move |event| {
        if let Event::Directory(relays) = event {
            seen.set(relays);
        }
    });
    let (config, directory) = (Config::default(), (directory, directory_key().verifying_key().to_bytes()));
    let settings = ClientConfig { directory, config, hops: 2, path: None, gate: Gate::Private };
    spawn_local(client::run(settings, socks, on_event));
    let begun = clock::now();
    while known.get() < relays {
        assert!(clock::now().since(begun) < Span::from_secs(60), "{} relays", known.get());
        clock::until(clock::now() + Span::from_millis(20)).await;
    }
    front
}

/// The directory lists two relays and a faster one that accepts connections and never answers.
#[test]
fn a_silent_relay_delays_a_client_by_seconds() {
    on_sockets(async {
        let directory = a_directory().await;
        let silent = server(false).await.address;
        let keys = RouterKeys::generate(&mut fill);
        list_fastest(directory, silent, &keys, true).await;
        announce(directory, 2).await;
        let front = client_of(directory, 3).await;
        let target = server(true).await.address;
        let (begun, pauses) = (clock::now(), Pauses::watch());
        let mut tcp = TcpStream::connect(front).await.unwrap();
        let port = target.port().to_be_bytes();
        tcp.write_all(&[&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &port].concat()).await.unwrap();
        let mut answer = [0; 12];
        tcp.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[..4], [5, 0, 5, 0]);
        let took = clock::now().since(begun) - pauses.lost();
        assert!(took < Span::from_secs(10), "{took}");
    });
}

/// Forwards connections to a relay until `frozen`: then they stay open, and nothing passes.
async fn freezable(relay: SocketAddr, frozen: Rc<Cell<bool>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((outer, _)) = listener.accept().await {
            let inner = TcpStream::connect(relay).await.unwrap();
            let ((from, to), (back, out)) = (outer.into_split(), inner.into_split());
            for (mut from, mut to) in [(from, out), (back, to)] {
                let frozen = frozen.clone();
                spawn_local(async move {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut bytes).await {
                        if frozen.get() {
                            std::future::pending::<()>().await;
                        }
                        let _ = to.write_all(&bytes[..count]).await;
                    }
                });
            }
        }
    });
    address
}

/// Connects to a server through a client's front, as this SOCKS user.
async fn connect_as(user: u8, front: SocketAddr, target: SocketAddr) {
    let mut tcp = TcpStream::connect(front).await.unwrap();
    let port = target.port().to_be_bytes();
    let words = [&[5, 1, 2, 1, 1, user, 1, b'x', 5, 1, 0, 1, 127, 0, 0, 1][..], &port].concat();
    tcp.write_all(&words).await.unwrap();
    let mut answer = [0; 14];
    tcp.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..6], [5, 2, 1, 0, 5, 0]);
}

/// A client's guard freezes after circuits were built over it, and its connection stays open.
#[test]
fn a_guard_that_freezes_delays_each_user_by_seconds() {
    on_sockets(async {
        let directory = a_directory().await;
        // The fastest relay is not an exit, so it is the guard.
        let frozen = Rc::<Cell<bool>>::default();
        let own = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let keys = RouterKeys::generate(&mut fill);
        let address = freezable(own.local_addr().unwrap(), frozen.clone()).await;
        list_fastest(directory, address, &keys, false).await;
        a_relay::serve(a_relay::settings(keys, own.local_addr().unwrap()), vec![own]);
        announce(directory, 3).await;
        let front = client_of(directory, 4).await;
        let target = server(true).await.address;
        connect_as(b'a', front, target).await;
        frozen.set(true);
        for user in [b'b', b'c', b'd'] {
            let (begun, pauses) = (clock::now(), Pauses::watch());
            connect_as(user, front, target).await;
            let took = clock::now().since(begun) - pauses.lost();
            eprintln!("user {} waited for {took}", char::from(user));
            assert!(took < Span::from_secs(10), "{took}");
        }
    });
}

/// A client opens streams to a server that sends without end, and never acknowledges a cell.
#[test]
fn unread_streams_hold_no_more_kernel_memory_than_the_limit() {
    on_sockets(async {
        let limits = Limits { memory: Bytes(4 << 20), ..Limits::default() };
        let (relay, _) = relay(Setup { limits, ..Setup::default() }).await;
        let Server { address: target, open: open_now, accepted, .. } = server(true).await;
        let mut stranger = circuit_from(host(2), relay).await;
        for stream in 1..=60 {
            stranger.say(RELAY, begin(stream, target)).await;
        }
        let end = clock::now() + Span::from_secs(60);
        // On a slow machine the relay ends streams before all have begun.
        while accepted.get() < 60 || open_now.get() > 30 {
            let (open, all) = (open_now.get(), accepted.get());
            assert!(clock::now() < end, "{open} of {all} unread streams are open");
            clock::until(clock::now() + Span::from_millis(50)).await;
        }
        // Another user is served meanwhile.
        let mut user = circuit_from(host(3), relay).await;
        user.say(RELAY, begin(1, target)).await;
        assert_eq!(user.hear().await.expect("an answer")[0], CONNECTED);
    });
}

/// Neighbours let a relay send one window of a circuit and read nothing. The kernel could hold all of it, so that nothing waits
/// in the relay.
#[test]
fn unread_windows_hold_no_more_kernel_memory_than_the_limit() {
    const STRANGERS: usize = 30;
    on_sockets(async {
        let limits = Limits { memory: Bytes(8 << 20), ..Limits::default() };
        let (relay, _) = relay(Setup { limits, ..Setup::default() }).await;
        // Two streams of 498 cells.
        let Server { address: target, open: open_now, accepted, .. } = sending(498 * 498).await;
        let mut strangers = Vec::new();
        for _ in 0..STRANGERS {
            let mut stranger = circuit_from(host(2), relay).await;
            // A stream has half of the circuit's window.
            stranger.say(RELAY, begin(1, target)).await;
            stranger.say(RELAY, begin(2, target)).await;
            strangers.push(stranger);
        }
        let end = clock::now() + Span::from_secs(60);
        // On a slow machine the relay ends streams before all have begun.
        while accepted.get() < 2 * STRANGERS {
            assert!(clock::now() < end, "{} streams began", accepted.get());
            clock::until(clock::now() + Span::from_millis(20)).await;
        }
        while open_now.get() > STRANGERS {
            assert!(clock::now() < end, "{} unread streams are open", open_now.get());
            clock::until(clock::now() + Span::from_millis(50)).await;
        }
    });
}

/// Memory of all TCP connections of this machine, MiB (proc_net(5), pages of 4 KiB).
fn tcp_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap();
    line.split_whitespace().last().unwrap().parse::<u64>().unwrap() / 256
}

/// Prints the kernel's TCP memory and the time of an honest download while 1,000 circuits of four streams are not read.
#[test]
#[ignore = "20 s and 11,000 descriptors: cargo test -p tidegate-net --test all kernel_memory_of -- --ignored --nocapture"]
fn kernel_memory_of_unread_streams() {
    on_sockets(async {
        tidegate_net::os::raise_descriptors().unwrap();
        let (relay, _) = relay(Setup::default()).await;
        let Server { address: target, open: open_now, .. } = server(true).await;
        let download = async |number: u8| {
            let mut user = circuit_from(host(number), relay).await;
            let begun = clock::now();
            user.say(RELAY, begin(1, target)).await;
            // CONNECTED and 45 kB.
            for _ in 0..=90 {
                user.hear().await.expect("a cell");
            }
            clock::now().since(begun)
        };
        eprintln!("before: {} MiB, a download takes {}", tcp_mib(), download(250).await);
        let mut strangers = Vec::new();
        for number in 0..1000 {
            let mut link = circuit_from(host(2 + (number % 200) as u8), relay).await;
            for stream in 1..=4 {
                link.say(RELAY, begin(stream, target)).await;
            }
            strangers.push(link);
        }
        for second in 1..=5 {
            clock::until(clock::now() + Span::from_secs(1)).await;
            eprintln!("{second} s: {} MiB, {} streams are open", tcp_mib(), open_now.get());
        }
        eprintln!("a download takes {}", download(251).await);
    });
}
