//! The relay's data path in processor time: echo traffic per core, against a bare loop of the same rustls and
//! AES-CTR. Both carry cells over TLS on loopback from clients on other threads. Only the serving thread's time
//! counts.
//!
//! `cargo bench -p tidegate-net --bench echo` prints bits per second of processor time and their ratio.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate_control::flashflow::Percent;
use tidegate_control::units::Rate;
use tidegate_net::flashflow::measurer::{self, MeasurerOptions};
use tidegate_net::flashflow::{Limits, MeasuredRelay, measure};
use tidegate_net::identity::{Contact, Identity, random};
use tidegate_net::tls;
use tidegate_proto::crypto::layer::Keystream;
use tidegate_proto::flashflow::cell::{CELL, HEADER};
use tidegate_proto::flashflow::coordinator::{Order, Timeouts};
use tidegate_proto::flashflow::relay::Config;
use tidegate_proto::flashflow::{MeasurerId, Open, Params};
use tokio::sync::watch;

/// `cargo test` also runs benches, once and short.
fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

fn seconds() -> u16 {
    if is_measured() { 8 } else { 2 }
}

const SOCKETS: u16 = 8;
const BATCH: usize = 127;

/// Processor time of this thread, nanoseconds.
fn thread_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Echoed bits per second of processor time, by the relay under a measurement.
fn relay() -> f64 {
    let coordinator = Identity::generate();
    let allowed = coordinator.fingerprint();
    let relay_identity = Arc::new(Identity::generate());
    let (tell, told) = mpsc::channel();
    let spent = Arc::new(AtomicU64::new(0));
    let (identity, clock) = (relay_identity.clone(), spent.clone());
    std::thread::spawn(move || {
        let local = tokio::task::LocalSet::new();
        runtime().block_on(local.run_until(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            tell.send(listener.local_addr().expect("bound")).expect("someone waits");
            let config = Config { allowed: true, coordinators: vec![allowed], ..Config::default() };
            let relay =
                MeasuredRelay::new(identity, Rate::UNLIMITED, config, Limits::default(), BTreeMap::new());
            let watch = async {
                loop {
                    clock.store(thread_time(), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                () = relay.expect("an identity").serve(listener) => {}
                () = watch => {}
            }
        }));
    });
    let relay =
        Contact { address: told.recv().expect("it starts"), fingerprint: relay_identity.fingerprint() };
    let measurer_identity = Arc::new(Identity::generate());
    let (tell, told) = mpsc::channel();
    let identity = measurer_identity.clone();
    std::thread::spawn(move || {
        let local = tokio::task::LocalSet::new();
        runtime().block_on(local.run_until(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            tell.send(listener.local_addr().expect("bound")).expect("someone waits");
            let options = MeasurerOptions { coordinators: vec![allowed], workers: 1, rate: u64::MAX };
            measurer::serve(listener, identity, options).await.expect("it serves");
        }));
    });
    let measurer =
        Contact { address: told.recv().expect("it starts"), fingerprint: measurer_identity.fingerprint() };
    let token = random();
    let share = Open {
        token,
        seconds: seconds(),
        sockets: SOCKETS,
        rate: 40_000_000_000,
        check_one_in: 125,
        address: relay.address,
        fingerprint: relay.fingerprint,
        relay: relay_identity.relay_public(),
    };
    let measurers = vec![MeasurerId { fingerprint: measurer.fingerprint, address: None }];
    let order = Order {
        params: Params { token, seconds: seconds(), background: 25, measurers },
        shares: vec![share],
        ratio: Percent::new(25).expect("below 100"),
        timeouts: Timeouts::default(),
    };
    let (_keep, stop) = watch::channel(false);
    // Processor time at the end of each second, to exclude the handshakes.
    let mut marks = Vec::new();
    let on_second = |_, second: &tidegate_proto::flashflow::coordinator::SecondRecord| {
        marks.push((spent.load(Ordering::Relaxed), second.measurers[0]));
    };
    let result = runtime().block_on(measure(&coordinator, relay, &[measurer], order, stop, on_second));
    result.expect("the measurement is complete");
    let bytes: u64 = marks[1..].iter().map(|(_, bytes)| bytes).sum();
    let time = marks[marks.len() - 1].0 - marks[0].0;
    bytes as f64 * 8e9 / time as f64
}

/// The same for a bare loop of rustls and AES-CTR.
fn bare() -> f64 {
    let server = Identity::generate();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let stop = Arc::new(AtomicBool::new(false));
    let config = tls::client(None, server.fingerprint()).expect("a configuration");
    let clients: Vec<_> = (0..SOCKETS)
        .map(|_| {
            let (config, stop) = (config.clone(), stop.clone());
            std::thread::spawn(move || client(address, config, &stop))
        })
        .collect();
    let config = tls::server(&server).expect("a configuration");
    let mut connections: Vec<_> = (0..SOCKETS)
        .map(|_| {
            let (tcp, _) = listener.accept().expect("a client");
            tcp.set_nodelay(true).expect("a socket");
            let tls = rustls::ServerConnection::new(config.clone()).expect("a connection");
            (rustls::StreamOwned::new(tls, tcp), Keystream::new(&random()), vec![0; BATCH * CELL])
        })
        .collect();
    let (mut bytes, mut before) = (0u64, 0);
    let bytes_echoed: u64 = if is_measured() { 6_000_000_000 } else { 20_000_000 };
    let rounds = bytes_echoed / (BATCH * CELL) as u64 / u64::from(SOCKETS);
    for round in 0..rounds {
        // The first rounds run the handshakes.
        if round == 10 {
            (bytes, before) = (0, thread_time());
        }
        for (stream, keystream, buffer) in &mut connections {
            stream.read_exact(buffer).expect("cells");
            buffer.chunks_exact_mut(CELL).for_each(|cell| keystream.apply(&mut cell[HEADER..]));
            stream.write_all(buffer).expect("room");
            bytes += buffer.len() as u64;
        }
    }
    let time = thread_time() - before;
    stop.store(true, Ordering::Relaxed);
    drop(connections);
    clients.into_iter().for_each(|client| drop(client.join()));
    bytes as f64 * 8e9 / time as f64
}

/// Keeps two batches in flight.
fn client(address: SocketAddr, config: Arc<rustls::ClientConfig>, stop: &AtomicBool) -> std::io::Result<()> {
    let name = rustls::pki_types::ServerName::try_from("tidegate.invalid").expect("a name");
    let tls = rustls::ClientConnection::new(config, name).map_err(std::io::Error::other)?;
    let tcp = TcpStream::connect(address)?;
    tcp.set_nodelay(true)?;
    let mut stream = rustls::StreamOwned::new(tls, tcp);
    let mut buffer = vec![7; BATCH * CELL];
    stream.write_all(&buffer)?;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
    }
    Ok(())
}

fn main() {
    let (bare, relay) = (bare(), relay());
    println!("bare rustls + AES-CTR loop: {:.2} Gbit per second of processor time", bare / 1e9);
    println!("relay under measurement:    {:.2} Gbit per second of processor time", relay / 1e9);
    println!("ratio:                      {:.2}", relay / bare);
}
