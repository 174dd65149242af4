//! Storms of valid requests by one stranger: what other users of the relay notice.

use std::cell::Cell;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::rc::Rc;

use tidegate_control::units::{Bytes, Span};
use tidegate_net::clock;
use tidegate_net::live::relay::RelayConfig;
use tidegate_proto::links::Limits;
use tokio::task::spawn_local;

use crate::a_relay;
use crate::faults::neighbour::{
    Answer, BEGIN_DIR, CIRCUIT, CONNECTED, DATA, DESTROY, EARLY, Link, RELAY, Relay, begin, circuit_from,
    extend, host, message,
};
use crate::one_hop::on_sockets;
use crate::server::{Server, server};

/// Commands of cells and messages that have no effect.
const PADDING: u8 = 0;
const DROP: u8 = 10;

/// A relay with these limits that is an exit to this machine, with a directory behind it.
async fn relay(limits: Limits, directory: Option<SocketAddr>) -> Relay {
    let change = |settings: &mut RelayConfig| {
        settings.config.limits = Some(limits);
        settings.exit = a_relay::open_exit(directory);
    };
    a_relay::start(change).await.router.into()
}

/// How long a user's download may take during an attack.
const LIMIT: Span = Span::from_secs(5);

/// The time of a user's first 45 kB on a new circuit.
async fn download(from: u8, relay: Relay, target: SocketAddr) -> Span {
    let begun = clock::now();
    let mut user = circuit_from(host(from), relay).await;
    user.say(RELAY, begin(1, target)).await;
    assert_eq!(user.hear().await.expect("an answer")[0], CONNECTED);
    for _ in 0..90 {
        user.hear().await.expect("a cell");
    }
    clock::now().since(begun)
}

/// The shortest of up to 3 downloads. A pause of the machine delays one of them; an attack delays all.
async fn shortest_download(from: [u8; 3], relay: Relay, target: SocketAddr) -> Span {
    let mut shortest = Span::from_secs(3600);
    for user in from {
        shortest = shortest.min(download(user, relay, target).await);
        if shortest < LIMIT {
            break;
        }
    }
    shortest
}

/// A stranger with one connection begins a circuit, extends it to another relay, and ends it, 300 times.
#[test]
fn extensions_of_a_stranger_open_no_more_connections_than_it_has_places() {
    on_sockets(async {
        let limits = Limits { connections: 30, ..Limits::default() };
        let relay = relay(limits, None).await;
        let Server { address: victim, open, most, .. } = server(false).await;
        let target = server(true).await.address;
        let before = download(2, relay, target).await;
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
        let during = shortest_download([4, 5, 6], relay, target).await;
        eprintln!(
            "{sent} bytes opened at most {} connections, {} now; a download takes {before}, then {during}",
            most.get(),
            open.get()
        );
        assert!(open.get() <= 30 && most.get() <= 60, "{} of {} are open", open.get(), most.get());
        assert!(during < LIMIT, "{during}");
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
        let Server { address: directory, open, most, .. } = server(false).await;
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
        assert_eq!(
            user.hear_or_silence().await.unwrap_err(),
            Answer::Ignored,
            "it waits for the directory's answer"
        );
        assert!(open.get() <= 48, "{} connections", open.get());
    });
}

/// Four strangers send padding, DROP, and DESTROY and RELAY of unknown circuits, as fast as they can.
#[test]
fn floods_of_cells_without_effect_delay_a_user_little() {
    on_sockets(async {
        let relay = relay(Limits::default(), None).await;
        let target = server(true).await.address;
        let before = download(2, relay, target).await;
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
        let during = shortest_download([8, 9, 10], relay, target).await;
        let seconds = clock::now().since(begun.0).0 as f64 / 1e9;
        let rate = (sent.get() - begun.1) as f64 / seconds / 1e6;
        eprintln!("floods of {rate:.1} MB/s: a download takes {before}, then {during}");
        assert!(during < LIMIT, "{during}");
    });
}

/// A relay with these limits and two threads that is an exit to this machine.
async fn on_two_threads(limits: Limits) -> Relay {
    let change = |settings: &mut RelayConfig| {
        settings.config.limits = Some(limits);
        settings.exit = a_relay::open_exit(None);
        settings.threads = NonZeroUsize::new(2).unwrap();
    };
    a_relay::start(change).await.router.into()
}

/// A stranger's unread streams use up the memory of its thread. Users of the other thread keep a part of it.
#[test]
fn a_stranger_on_one_thread_leaves_memory_to_users_of_others() {
    on_sockets(async {
        let relay = on_two_threads(Limits { memory: Bytes(16 << 20), ..Limits::default() }).await;
        let (target, Server { address, open, accepted, .. }) =
            (server(true).await.address, server(true).await);
        let mut stranger = circuit_from(host(3), relay).await;
        for stream in 1..=200 {
            stranger.say(RELAY, begin(stream, address)).await;
        }
        let end = clock::now() + Span::from_secs(60);
        // The relay ends streams above the limit. On a slow machine it does so before all have begun.
        while accepted.get() < 200 || open.get() > 150 {
            assert!(clock::now() < end, "{} of {} streams are open", open.get(), accepted.get());
            clock::until(clock::now() + Span::from_millis(20)).await;
        }
        // Each connection of a user goes to the thread with the fewest.
        for user in 10..16 {
            download(user, relay, target).await;
            clock::until(clock::now() + Span::from_millis(200)).await;
        }
    });
}

/// A stranger opens streams without end. Each of two threads keeps a quarter of its half of the places, so users of both
/// have at least 25 places.
#[test]
fn a_stranger_on_one_thread_leaves_streams_to_users_of_both() {
    on_sockets(async {
        let relay = on_two_threads(Limits { streams: 200, ..Limits::default() }).await;
        let Server { address: target, open, .. } = server(false).await;
        let mut stranger = circuit_from(host(3), relay).await;
        for stream in 1..=3000 {
            stranger.say(RELAY, begin(stream, target)).await;
        }
        let end = clock::now() + Span::from_secs(60);
        while open.get() < 100 {
            assert!(clock::now() < end, "{} streams are open", open.get());
            clock::until(clock::now() + Span::from_millis(20)).await;
        }
        let mut users = Vec::new();
        for number in 10..16 {
            let mut user = circuit_from(host(number), relay).await;
            for stream in 1..=4 {
                user.say(RELAY, begin(stream, target)).await;
                assert_eq!(user.hear().await.unwrap()[0], CONNECTED, "stream {stream} of user {number}");
            }
            users.push(user);
        }
        for user in &mut users {
            assert_eq!(user.hear_or_silence().await.unwrap_err(), Answer::Ignored, "its streams stay");
        }
    });
}

/// Opens two streams from an address to a server that sends without end, and counts the cells that come.
async fn downloading(from: u8, relay: Relay, target: SocketAddr, cells: Rc<Cell<u32>>) {
    let mut link = circuit_from(host(from), relay).await;
    // Two streams fill the window of a circuit: 1,000 cells.
    for stream in 1..=2 {
        link.say(RELAY, begin(stream, target)).await;
    }
    spawn_local(async move {
        loop {
            link.hear().await.expect("a cell");
            cells.set(cells.get() + 1);
        }
    });
}

/// An address downloads over 40 connections beside a user with one, at a relay with a bandwidth limit. Cells are compared, not
/// times.
#[test]
fn downloads_over_many_connections_leave_a_user_its_turn() {
    on_sockets(async {
        let change = |settings: &mut RelayConfig| {
            settings.config.bandwidth = 2e6;
            settings.exit = a_relay::open_exit(None);
        };
        let relay = a_relay::start(change).await.router.into();
        let target = server(true).await.address;
        let [stranger, user] = [(); 2].map(|()| Rc::<Cell<u32>>::default());
        for _ in 0..40 {
            downloading(3, relay, target, stranger.clone()).await;
        }
        downloading(2, relay, target, user.clone()).await;
        let until = async |cells: u32| {
            let end = clock::now() + Span::from_secs(60);
            while user.get() < cells {
                assert!(clock::now() < end, "the user has {} cells", user.get());
                clock::until(clock::now() + Span::from_millis(1)).await;
            }
            stranger.get()
        };
        let before = until(100).await;
        let during = until(800).await - before;
        eprintln!("the user gets 700 cells, and the stranger {during}");
        assert!(during < 1400, "{during} cells of the stranger beside 700 of the user");
    });
}
