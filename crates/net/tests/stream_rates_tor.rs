//! Rates of streams in XON, between stock tor's client and our exits. Runs where tor is installed.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_control::units::Span;
use tidegate_net::identity::fill;
use tidegate_net::private_tor::{self, Network};
use tidegate_net::{clock, ports};
use tidegate_proto::crypto::cert::RouterKeys;
use tokio::net::TcpSocket;

use crate::{a_relay, skipped};

/// Rate at which the slow side reads, in bytes per second.
const RATE: usize = 150_000;

/// A server with small buffers in the kernel that does `serve` with each connection, on threads.
fn server(serve: impl Fn(std::net::TcpStream) + Send + Sync + Clone + 'static) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(16 << 10).unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        socket.listen(16).unwrap().into_std().unwrap()
    });
    listener.set_nonblocking(false).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), serve.clone());
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Reads slowly until the end.
fn read_slowly(mut stream: std::net::TcpStream) {
    let mut some = [0; RATE / 50];
    while stream.read_exact(&mut some).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes without end, and counts.
fn write_fast(mut stream: std::net::TcpStream, sent: &AtomicU64) {
    while stream.write_all(&[7; 4096]).is_ok() {
        sent.fetch_add(4096, Ordering::Relaxed);
    }
}

/// A connection through tor, with a small receive buffer.
fn connect(socks: SocketAddr, user: &str, port: u16) -> std::net::TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.connect(socks).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    let named = [&[1, user.len() as u8], user.as_bytes(), &[1, b'x']].concat();
    let wanted = [&[5, 1, 0, 1, 127, 0, 0, 1], &port.to_be_bytes()[..]].concat();
    for (said, answered) in [(&[5, 1, 2][..], 2), (&named, 2), (&wanted, 10)] {
        stream.write_all(said).unwrap();
        stream.read_exact(&mut [0; 10][..answered]).unwrap();
    }
    stream
}

/// The bytes per second that were counted in some seconds, after some others.
fn rate_later(sent: &AtomicU64, wait: u64, seconds: u64) -> f64 {
    std::thread::sleep(Duration::from_secs(wait));
    let before = sent.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(seconds));
    (sent.load(Ordering::Relaxed) - before) as f64 / seconds as f64
}

#[test]
#[ignore = "needs an idle machine"]
fn rates_of_xon_are_those_of_stock_tor() {
    if !private_tor::is_installed(Path::new("tor")) {
        return skipped::skipped("rates of XON between stock tor and our exits", "tor");
    }
    let directory = std::env::temp_dir().join(format!("tidegate-xon-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let mut network = Network::new(Path::new("tor"), &directory, 1).unwrap();
    network.start("").unwrap();
    a_relay::serve_in_tor(network.authority(), || RouterKeys::generate(&mut fill).into(), |_, _| {});
    network.wait_for(&a_relay::IN_TOR.map(|name| format!("\nr {name} "))).unwrap();
    let socks = ports::free().unwrap();
    let only = ["EntryNodes", "MiddleNodes", "ExitNodes"]
        .map(|nodes| format!("{nodes} {}\n", a_relay::IN_TOR.join(",")));
    let edges = directory.join("edges");
    let options = format!(
        "SocksPort {socks}\nClientOnly 1\nConstrainedSockets 1\nConstrainedSockSize 16384\nLog [edge]info file {}\n{}",
        edges.display(),
        only.concat()
    );
    network.run("client", &options).unwrap();
    let end = clock::now() + Span::from_secs(120);
    while !network.log("client").contains("Bootstrapped 100%") {
        assert!(clock::now() < end, "{}", network.log("client"));
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = |text: &str| {
        let log = std::fs::read_to_string(&edges).unwrap();
        log.lines().filter_map(|line| line.split_once(text)).map(|(_, rest)| rest.to_owned()).collect()
    };

    // Our exit obeys the rate of tor's client.
    let sent = Arc::<AtomicU64>::default();
    let count = sent.clone();
    let endless = server(move |stream| write_fast(stream, &count));
    let application = connect(socks, "slow", endless);
    std::thread::spawn(move || read_slowly(application));
    let download = rate_later(&sent, 12, 8);
    let xoffs: Vec<String> = said("Sending XOFF");
    eprintln!("download: {download:.0} bytes per second, {} XOFF, {:?}", xoffs.len(), said("Sending XON"));
    assert!((0.6..1.4).contains(&(download / RATE as f64)), "{download}");
    // Without the rate, a burst would fill the buffer of 244 kB every few seconds.
    assert!((1..=2).contains(&xoffs.len()), "{xoffs:?}");

    // Tor's client obeys the rate of our exit.
    let slow = server(read_slowly);
    let sent = Arc::<AtomicU64>::default();
    let (application, count) = (connect(socks, "fast", slow), sent.clone());
    std::thread::spawn(move || write_fast(application, &count));
    let upload = rate_later(&sent, 10, 8);
    let (xoffs, xons): (Vec<String>, Vec<String>) = (said("Got XOFF"), said("Got XON: "));
    let rates: Vec<f64> = xons.iter().map(|rate| rate.trim().parse().unwrap()).collect();
    eprintln!("upload: {upload:.0} bytes per second, {} XOFF, rates {rates:?}", xoffs.len());
    assert!((0.6..1.4).contains(&(upload / RATE as f64)), "{upload}");
    assert!((1..=2).contains(&xoffs.len()), "{xoffs:?}");
    // It may double while the kernel's buffers take all.
    let of_rate: Vec<f64> = rates.iter().map(|rate| rate * 1000.0 / RATE as f64).collect();
    assert!(of_rate.first().is_some_and(|first| (0.6..1.4).contains(first)), "{rates:?}");
    assert!(of_rate.iter().all(|rate| (0.4..3.0).contains(rate)), "{rates:?}");
    let log = std::fs::read_to_string(&edges).unwrap();
    assert!(!log.contains("extra XO"), "tor accepts when they come");
    drop(network);
    std::fs::remove_dir_all(&directory).unwrap();
}
