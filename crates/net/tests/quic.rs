//! Neighbours that support QUIC share a connection; others use TLS.

use crate::a_relay;
use crate::one_hop::on_sockets;
use crate::pauses::Pauses;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::gate::Gate;
use tidegate_net::identity::{Identity, fill, random};
use tidegate_net::link::{Carrier, within};
use tidegate_net::live::Links;
use tidegate_net::live::quic::{self, Quic};
use tidegate_net::overlay::{Dial as _, PeerLink};
use tidegate_net::quic_stream::QuicStream;
use tidegate_proto::cell::RelayId;
use tidegate_proto::crypto::cert::{RouterKeys, Signing};
use tidegate_proto::crypto::{KeyLifetimes, Router, SharedNames};
use tidegate_proto::transport::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::spawn_local;

fn keys() -> RouterKeys {
    RouterKeys::generate(&mut fill)
}

fn router(keys: &RouterKeys, address: SocketAddr) -> Router {
    Router { address, fingerprint: keys.fingerprint(), ed25519: Some(keys.ed25519()) }
}

/// A complete relay with that transport.
async fn relay(transport: Transport) -> Router {
    a_relay::start(|settings| settings.config.transport = transport).await.router
}

/// The links of a relay at that address, with QUIC.
fn links_of(keys: &RouterKeys, names: SharedNames, address: SocketAddr, quic: SocketAddr) -> Links {
    let identity = Identity::for_links();
    let [signing, link] = KeyLifetimes::default().certified(clock::unix());
    let signing = Signing::new(random(), signing);
    let certified = keys.certify(signing, link, identity.certificate(), random());
    Links::relay(certified, names, vec![address.ip()], &identity, &[quic]).unwrap().with_gate(Gate::Private)
}

/// The TLS side of a relay that announces QUIC, which listens at another address.
async fn with_quic_elsewhere(quic: SocketAddr) -> Router {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let keys = keys();
    let links = links_of(&keys, SharedNames::default(), address, quic);
    let router = router(&keys, address);
    spawn_local(async move {
        let mut met = Vec::new();
        while let Ok((tcp, _)) = listener.accept().await {
            met.push(links.accept(tcp).await.unwrap());
        }
    });
    router
}

/// A client that supports QUIC, and its id of a relay.
fn client(router: Router) -> (Rc<Links>, RelayId) {
    let names = SharedNames::default();
    let id = names.borrow_mut().keep(router);
    (Rc::new(Links::client(names, true).unwrap().with_gate(Gate::Private)), id)
}

fn lane(met: &PeerLink) -> &QuicStream {
    match &met.carrier {
        Carrier::Quic(lane) => lane,
        Carrier::Tls(_) => panic!("over TLS"),
    }
}

#[test]
fn channels_with_a_quic_neighbour_share_one_connection() {
    on_sockets(async {
        let (links, id) = client(relay(Transport::Quic).await);
        // All dial at once: the first tries QUIC, the others wait for its result.
        let dialled = (0..20).map(|_| {
            let links = links.clone();
            spawn_local(async move { links.dial(id).await.unwrap() })
        });
        let dialled: Vec<_> = dialled.collect();
        let mut connections = Vec::new();
        for met in dialled {
            let met = met.await.unwrap();
            assert!(met.ours && !met.shared && met.peer == Some(id));
            connections.push(lane(&met).connection().stable_id());
        }
        connections.dedup();
        assert_eq!(connections.len(), 1);
    });
}

#[test]
fn a_dead_neighbour_times_out_and_an_idle_one_does_not() {
    let (told, heard) = std::sync::mpsc::channel();
    let (die, dies) = tokio::sync::oneshot::channel();
    let (seen, is_seen) = std::sync::mpsc::channel::<()>();
    // Another runtime: dropping it closes its sockets without a message.
    let other = std::thread::spawn(move || {
        on_sockets(async {
            told.send(relay(Transport::Quic).await).unwrap();
            dies.await.unwrap();
            // Like SIGKILL: connections are not closed in order. The runtime stands still until the test has seen the effect.
            let _ = is_seen.recv();
        });
    });
    on_sockets(async {
        let (links, id) = client(heard.recv().unwrap());
        let end = clock::now() + Span::from_secs(120);
        let (_met, connection) = loop {
            let pauses = Pauses::watch();
            let met = links.dial(id).await.unwrap();
            let connection = lane(&met).connection().clone();
            let idle = within(Span::from_secs(4), async { Ok(connection.closed().await) }).await;
            if idle.is_err() {
                break (met, connection);
            }
            // In a pause of this machine both ends miss the keep-alives. That shows nothing, so idle again.
            assert!(pauses.lost() > Span::from_millis(500) && clock::now() < end, "{idle:?}");
        };
        let (before, pauses) = (clock::now(), Pauses::watch());
        die.send(()).unwrap();
        let missed = within(Span::from_secs(60), async { Ok(connection.closed().await) }).await;
        let after = clock::now().since(before) - pauses.lost();
        assert!(missed.is_ok() && after < Span::from_millis(4200), "{missed:?} after {after}");
    });
    drop(seen);
    other.join().unwrap();
}

#[test]
fn both_relays_authenticate_each_other() {
    on_sockets(async {
        let at: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (theirs, ours) = (keys(), keys());
        let names = SharedNames::default();
        // Its TCP and UDP ports are equal, as on a relay.
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let there = Rc::new(links_of(&theirs, names.clone(), at, address));
        let wanted = router(&theirs, address);
        let answering = there.clone();
        let answered = spawn_local(async move {
            let tcp = listener.accept().await.unwrap().0;
            let (over_tls, incoming) =
                tokio::join!(answering.accept(tcp), answering.quic().unwrap().incoming());
            let (met, neighbour) = answering.accept_quic(incoming.unwrap()).await.unwrap();
            (over_tls.unwrap(), met, neighbour)
        });
        let own_names = SharedNames::default();
        let id = own_names.borrow_mut().keep(wanted);
        let here = Rc::new(links_of(&ours, own_names, at, at));
        let met = here.dial(id).await.unwrap();
        let (_, seen, _neighbour) = answered.await.unwrap();
        let peer = names.borrow().router(seen.peer.expect("it has proved who it is")).unwrap();
        assert_eq!(peer.fingerprint, ours.fingerprint());
        // The accepting side opens streams on the same connection.
        let back = there.dial(seen.peer.unwrap()).await.unwrap();
        assert_eq!(lane(&back).connection().stable_id(), lane(&seen).connection().stable_id());
        let (relay, neighbour) = here.take_opened().unwrap().recv().await.unwrap();
        assert_eq!(relay, id);
        let mut back = back;
        back.carrier.write_all(b"!").await.unwrap();
        let accepted = neighbour.accept().await.unwrap();
        assert_eq!(accepted.connection().stable_id(), lane(&met).connection().stable_id());
    });
}

/// The QUIC side of a relay, which answers all attempts.
async fn answering() -> (SocketAddr, Rc<Quic>) {
    let identity = Identity::generate();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    let relay = Rc::new(Quic::relay(&identity, &[address], SharedNames::default()).unwrap());
    let config = Arc::new(quic::server(&identity).unwrap());
    let accepting = relay.clone();
    spawn_local(async move {
        while let Some(incoming) = accepting.incoming().await {
            let (relay, config) = (accepting.clone(), config.clone());
            spawn_local(async move {
                let neighbour = relay.answer(incoming, config).await?;
                // It says the same back on the first stream.
                let mut lane = neighbour.accept().await?;
                let (mut reader, mut writer) = tokio::io::split(&mut lane);
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    });
    (address, relay)
}

/// First packets of attempts to connect, each with another connection id.
async fn first_packets(number: usize) -> Vec<Vec<u8>> {
    let sink = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = sink.local_addr().unwrap();
    let clients = Rc::new(Quic::client(SharedNames::default()).unwrap());
    let attempt = |number| {
        for _ in 0..number {
            let clients = clients.clone();
            spawn_local(async move { clients.connect(address).await.map(drop) });
        }
    };
    attempt(number);
    let (mut packets, mut known, mut buffer) = (Vec::new(), BTreeSet::new(), [0; 2048]);
    while packets.len() < number {
        // Packets that the kernel dropped are not repeated if their attempts time out in a pause of the machine.
        let Ok(length) = within(Span::from_millis(500), sink.recv(&mut buffer)).await else {
            attempt(number - packets.len());
            continue;
        };
        // Flags, version, length of the connection id, id.
        let id = buffer[6..6 + usize::from(buffer[5])].to_vec();
        if known.insert(id) {
            packets.push(buffer[..length].to_vec());
        }
    }
    packets
}

/// Observations of a user, and of the senders of forged first packets.
struct Forged {
    /// How long the user's first exchange took, and all of it.
    user: Span,
    all: Span,
    /// Bytes that each sender got, and that it sent.
    bytes: Vec<(usize, usize)>,
    retries: usize,
    answers: usize,
}

/// Sends 300 first packets from as many addresses, and connects as a user.
async fn forged_attempts() -> Forged {
    let (address, _relay) = answering().await;
    let packets = first_packets(300).await;
    let begun = clock::now();
    let mut senders = Vec::new();
    for (number, packet) in packets.iter().enumerate() {
        let from = Ipv4Addr::new(127, 1, number as u8, 2);
        let sender = UdpSocket::bind((from, 0)).await.unwrap();
        sender.send_to(packet, address).await.unwrap();
        senders.push((sender, packet.len()));
    }
    let user = Quic::client(SharedNames::default()).unwrap();
    let before = clock::now();
    let mut lane = user.connect(address).await.unwrap().open().await.unwrap();
    lane.write_all(b"hello").await.unwrap();
    lane.read_exact(&mut [0; 5]).await.unwrap();
    let user = clock::now().since(before);
    let (mut bytes, mut retries, mut answers, mut buffer) = (Vec::new(), 0, 0, [0; 2048]);
    for (sender, sent) in senders {
        let mut heard = 0;
        while let Ok(length) = sender.try_recv(&mut buffer) {
            heard += length;
            // Long header packets of type 3 are Retry (RFC 9000, 17.2.5).
            match buffer[0] >> 4 {
                0b1111 => retries += 1,
                _ => answers += 1,
            }
        }
        bytes.push((heard, sent));
    }
    Forged { user, all: clock::now().since(begun), bytes, retries, answers }
}

/// Attempts from forged addresses, which never answer. Packets that Retry asks for cost the relay no state.
#[test]
fn attempts_from_forged_addresses_lock_out_nobody() {
    on_sockets(async {
        let second = Span::from_secs(1);
        let mut forged = forged_attempts().await;
        // In a pause of the machine the relay's probe timeout passes. quinn-proto then sends one datagram that may exceed the
        // limit. So one of up to 8 attempts must be over before.
        for _ in 1..8 {
            if forged.all < second {
                break;
            }
            forged = forged_attempts().await;
        }
        let Forged { user, bytes, retries, answers, .. } = forged;
        assert!(user < second, "{user}");
        for (heard, sent) in bytes {
            assert!(heard <= 3 * sent, "three times what came, at most (RFC 9000, 8.1): {heard} of {sent}");
        }
        assert!(retries >= 200 && answers > 0, "{retries} retries, {answers} other packets");
    });
}

/// A neighbour's packets come from another address from some moment on.
#[test]
fn a_connection_that_moves_to_another_address_ends() {
    on_sockets(async {
        let (address, _relay) = answering().await;
        let (front, user) =
            (UdpSocket::bind("127.0.0.1:0").await.unwrap(), Quic::client(SharedNames::default()).unwrap());
        let between = front.local_addr().unwrap();
        let (first, other) =
            (UdpSocket::bind("127.0.0.2:0").await.unwrap(), UdpSocket::bind("127.0.0.3:0").await.unwrap());
        let (moved, heard, sent) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (is_moved, hears, sends) = (moved.clone(), heard.clone(), sent.clone());
        spawn_local(async move {
            let (mut from_user, mut to_user, mut to_other) = ([0; 2048], [0; 2048], [0; 2048]);
            let mut user = None;
            loop {
                tokio::select! {
                    Ok((length, from)) = front.recv_from(&mut from_user) => {
                        user = Some(from);
                        let way = if is_moved.get() { &other } else { &first };
                        sends.set(sends.get() + if is_moved.get() { length } else { 0 });
                        way.send_to(&from_user[..length], address).await.unwrap();
                    }
                    Ok(length) = first.recv(&mut to_user) => {
                        front.send_to(&to_user[..length], user.unwrap()).await.unwrap();
                    }
                    Ok(length) = other.recv(&mut to_other) => hears.set(hears.get() + length),
                }
            }
        });
        let neighbour = user.connect(between).await.unwrap();
        let mut lane = neighbour.open().await.unwrap();
        lane.write_all(b"hello").await.unwrap();
        lane.read_exact(&mut [0; 5]).await.unwrap();
        moved.set(true);
        lane.write_all(b"hello").await.unwrap();
        let answered = within(Span::from_secs(6), async { lane.read_exact(&mut [0; 5]).await }).await;
        assert!(answered.is_err(), "the relay takes nothing from there");
        // Once it has forgotten the connection it answers with resets, which are shorter than what came (RFC 9000, 10.3).
        assert!(heard.get() < sent.get(), "{} of {}", heard.get(), sent.get());
    });
}

/// One address opens more connections than a relay accepts. None of them has a stream.
#[test]
fn idle_quic_connections_do_not_lock_out_newcomers() {
    on_sockets(async {
        let (address, _accepting) = answering().await;
        let strangers = Quic::client(SharedNames::default()).unwrap();
        let mut open = Vec::new();
        for number in 0..400 {
            let mut tries = 0;
            // A handshake times out if the machine pauses in it.
            open.push(loop {
                match strangers.connect(address).await {
                    Ok(neighbour) => break neighbour,
                    Err(why) => assert!(tries < 4, "{number}: {why}"),
                }
                tries += 1;
            });
        }
        // The newest stay, and can open streams.
        let mut lane = open.pop().unwrap().open().await.unwrap();
        lane.write_all(b"a").await.unwrap();
        assert!(open[0].accept().await.is_err(), "the oldest was closed");
    });
}

#[test]
fn a_neighbour_without_quic_is_reached_over_shared_tls() {
    on_sockets(async {
        for transport in [Transport::Vanilla, Transport::PerCircuit] {
            let (links, id) = client(relay(transport).await);
            for _ in 0..2 {
                let met = links.dial(id).await.unwrap();
                assert!(matches!(met.carrier, Carrier::Tls(_)) && met.ours && met.shared);
            }
        }
        // A relay without QUIC does not announce it.
        let names = SharedNames::default();
        let router = relay(Transport::Quic).await;
        let id = names.borrow_mut().keep(router);
        let links = Rc::new(Links::client(names, false).unwrap().with_gate(Gate::Private));
        let met = links.dial(id).await.unwrap();
        assert!(matches!(met.carrier, Carrier::Tls(_)) && !met.shared);
    });
}

#[test]
fn tls_is_used_if_udp_is_lost_or_hijacked() {
    on_sockets(async {
        let elsewhere = "127.0.0.1:0".parse().unwrap();
        let lost = with_quic_elsewhere(elsewhere).await;
        let (links, id) = client(lost);
        let (before, pauses) = (clock::now(), Pauses::watch());
        let met = links.dial(id).await.unwrap();
        assert!(matches!(met.carrier, Carrier::Tls(_)) && met.shared);
        assert!(clock::now().since(before) - pauses.lost() < Span::from_secs(8));
        let mut again = Span::from_secs(60);
        // The machine may pause in some of three dials.
        for _ in 0..3 {
            let before = clock::now();
            assert!(matches!(links.dial(id).await.unwrap().carrier, Carrier::Tls(_)));
            again = again.min(clock::now().since(before));
            if again < Span::from_secs(1) {
                break;
            }
        }
        assert!(again < Span::from_secs(1), "it is not tried again at once: {again}");

        // Another relay with its own keys has taken the port.
        let wanted = with_quic_elsewhere(elsewhere).await;
        let other = links_of(&keys(), SharedNames::default(), wanted.address, wanted.address);
        spawn_local(async move {
            while let Some(incoming) = other.quic().unwrap().incoming().await {
                let refused = other.accept_quic(incoming).await;
                assert!(refused.is_err(), "nobody wants to meet it");
            }
        });
        let (links, id) = client(wanted);
        let met = links.dial(id).await.unwrap();
        assert!(matches!(met.carrier, Carrier::Tls(_)), "it is not whom we want to meet");
    });
}

#[test]
fn an_unread_stream_is_bounded_by_its_window_and_blocks_no_other() {
    on_sockets(async {
        let at: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let (theirs, names) = (keys(), SharedNames::default());
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let there = Rc::new(links_of(&theirs, names, at, address));
        let (links, id) = client(router(&theirs, address));
        let answered = spawn_local(async move {
            let _tls = there.accept(listener.accept().await.unwrap().0).await.unwrap();
            let incoming = there.quic().unwrap().incoming().await.unwrap();
            there.accept_quic(incoming).await.unwrap()
        });
        let mut unread = links.dial(id).await.unwrap();
        let (_met, neighbour) = answered.await.unwrap();
        let mut other = links.dial(id).await.unwrap();
        let mut taken = 0;
        let second = Span::from_secs(1);
        while let Ok(count) = within(second, unread.carrier.write(&[0; 4096])).await {
            taken += count;
            assert!(taken <= 256 << 10, "more than the window: {taken} bytes");
        }
        assert!(taken > 128 << 10, "{taken} bytes");
        other.carrier.write_all(b"heard").await.unwrap();
        let mut heard = [0; 5];
        let mut lane = within(second, neighbour.accept()).await.unwrap();
        lane.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"heard");
    });
}
