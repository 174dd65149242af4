//! Storms of valid requests by one stranger: what other users of the relay notice.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::live::relay::RelayConfig;
use tidegate_proto::links::Limits;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::spawn_local;

use crate::a_relay;
use crate::faults::neighbour::{
    Answer, BEGIN, BEGIN_DIR, CIRCUIT, CONNECTED, DATA, DESTROY, EARLY, EXTEND2, Link, RELAY, Relay,
    circuit_from, message,
};
use crate::one_hop::on_sockets;

/// Commands of cells and messages that have no effect.
const PADDING: u8 = 0;
const DROP: u8 = 10;

/// An address of this machine: the 127.0.0.0/8 network stands for strangers from different networks.
fn host(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, number).into()
}

/// A relay with these limits that is an exit to this machine, with a directory behind it.
async fn relay(limits: Limits, directory: Option<SocketAddr>) -> Relay {
    let change = |settings: &mut RelayConfig| {
        settings.config.limits = Some(limits);
        settings.exit = a_relay::open_exit(directory);
    };
    a_relay::start(change).await.router.into()
}

/// A server that accepts connections and answers nothing. Returns how many are open now, and the most so far.
async fn silent_server() -> (SocketAddr, Rc<Cell<usize>>, Rc<Cell<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (open, most) = (Rc::<Cell<usize>>::default(), Rc::<Cell<usize>>::default());
    let (now, highest) = (open.clone(), most.clone());
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let now = now.clone();
            now.set(now.get() + 1);
            highest.set(highest.get().max(now.get()));
            spawn_local(async move {
                let _ = tokio::io::copy(&mut tcp, &mut tokio::io::sink()).await;
                now.set(now.get() - 1);
            });
        }
    });
    (address, open, most)
}

/// A server that sends without end.
async fn endless() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            spawn_local(async move { while tcp.write_all(&[7; 16 << 10]).await.is_ok() {} });
        }
    });
    address
}

fn begin(stream: u16, to: SocketAddr) -> [u8; 509] {
    message(BEGIN, stream, format!("{to}\0\0\0\0\0").as_bytes())
}

/// The time of a user's first 45 kB on a new circuit.
async fn download(from: u8, relay: Relay, server: SocketAddr) -> Span {
    let begun = clock::now();
    let mut user = circuit_from(host(from), relay).await;
    user.say(RELAY, begin(1, server)).await;
    assert_eq!(user.hear().await.expect("an answer")[0], CONNECTED);
    for _ in 0..90 {
        user.hear().await.expect("a cell");
    }
    clock::now().since(begun)
}

/// EXTEND2 to an address and an identity.
fn extend(to: SocketAddr, identity: [u8; 20]) -> [u8; 509] {
    let SocketAddr::V4(to) = to else { panic!("IPv4") };
    let address = [&[0, 6][..], &to.ip().octets(), &to.port().to_be_bytes()].concat();
    let identity = [&[2, 20][..], &identity].concat();
    message(EXTEND2, 0, &[&[2][..], &address, &identity, &[0, 2, 0, 84], &[7; 84]].concat())
}

/// A stranger with one connection begins a circuit, extends it to another relay, and ends it, 300 times.
#[test]
fn extensions_of_a_stranger_open_no_more_connections_than_it_has_places() {
    on_sockets(async {
        let limits = Limits { connections: 30, ..Limits::default() };
        let relay = relay(limits, None).await;
        let (victim, open, most) = silent_server().await;
        let server = endless().await;
        let before = download(2, relay, server).await;
        let mut stranger = circuit_from(host(3), relay).await;
        let mut sent = 0;
        for number in 0..300u16 {
            let mut identity = [9; 20];
            identity[..2].copy_from_slice(&number.to_be_bytes());
            stranger.say(EARLY, extend(victim, identity)).await;
            stranger.cell(CIRCUIT, DESTROY, &[0]).await;
            stranger.create().await;
            sent += 3 * 514;
        }
        let during = download(4, relay, server).await;
        eprintln!(
            "{sent} bytes opened at most {} connections, {} now; a download takes {before}, then {during}",
            most.get(),
            open.get()
        );
        assert!(open.get() <= 30 && most.get() <= 60, "{} of {} are open", open.get(), most.get());
        assert!(during < Span::from_secs(5), "{during}");
    });
}

async fn request(link: &mut Link, stream: u16, path: &str) {
    link.say(RELAY, message(DATA, stream, format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes()))
        .await;
}

/// A stranger opens directory streams that the directory does not answer.
#[test]
fn directory_streams_of_a_stranger_take_few_connections_of_the_directory() {
    on_sockets(async {
        let (directory, open, most) = silent_server().await;
        let relay = relay(Limits::default(), Some(directory)).await;
        let mut stranger = circuit_from(host(3), relay).await;
        let count = 400;
        for stream in 1..=count {
            stranger.say(RELAY, message(BEGIN_DIR, stream, &[])).await;
            request(&mut stranger, stream, &format!("/tor/server/fp/{stream}")).await;
        }
        let end = clock::now() + Span::from_secs(1);
        clock::until(end).await;
        eprintln!("{count} streams hold {} connections of the directory, at most {}", open.get(), most.get());
        assert!(open.get() <= 48, "{} connections", open.get());
        // A user's request reaches the directory meanwhile.
        let mut user = circuit_from(host(4), relay).await;
        user.say(RELAY, message(BEGIN_DIR, 1, &[])).await;
        request(&mut user, 1, "/tor/server/all").await;
        assert_eq!(user.hear().await.unwrap()[0], CONNECTED);
        assert_eq!(user.hear().await.unwrap_err(), Answer::Ignored, "it waits for the directory's answer");
        assert!(open.get() <= 48, "{} connections", open.get());
    });
}

/// Four strangers send padding, DROP, and DESTROY and RELAY of unknown circuits, as fast as they can.
#[test]
fn floods_of_cells_without_effect_delay_a_user_little() {
    on_sockets(async {
        let relay = relay(Limits::default(), None).await;
        let server = endless().await;
        let before = download(2, relay, server).await;
        let sent = Rc::<Cell<u64>>::default();
        for number in 3..7 {
            let mut stranger = circuit_from(host(number), relay).await;
            let sent = sent.clone();
            spawn_local(async move {
                loop {
                    match number {
                        3 => stranger.cell(0, PADDING, &[7; 509]).await,
                        4 => stranger.say(RELAY, message(DROP, 0, &[])).await,
                        5 => stranger.cell(CIRCUIT + 7, DESTROY, &[0]).await,
                        _ => stranger.cell(CIRCUIT + 7, RELAY, &[7; 509]).await,
                    }
                    sent.set(sent.get() + 514);
                }
            });
        }
        clock::until(clock::now() + Span::from_millis(500)).await;
        let begun = (clock::now(), sent.get());
        let during = download(8, relay, server).await;
        let seconds = clock::now().since(begun.0).0 as f64 / 1e9;
        let rate = (sent.get() - begun.1) as f64 / seconds / 1e6;
        eprintln!("floods of {rate:.1} MB/s: a download takes {before}, then {during}");
        assert!(during < Span::from_secs(5), "{during}");
    });
}
