//! Measures a stock Tor relay through ordinary circuits.
//!
//! Our tor clients build two-hop circuits over the relay to our exit, and download from our data source behind
//! it as fast as they can.
//!
//! This is **weaker** than a measurement with echo cells. The relay proves what it forwarded, since no other
//! party has the circuits' keys. But it does not report or limit its background, so the estimate is its spare
//! capacity, a lower bound. It can also recognise our circuits by their exit.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use subtle::ConstantTimeEq as _;
use tidegate_control::flashflow::schedule::RelayId;
use tidegate_control::flashflow::{Percent, aggregate};
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::flashflow::Reason;
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::{Failure, Outcome, Peer, SecondRecord};
use tidegate_proto::flashflow::load::{BATCH, Load, Turn};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::config::StockConfig;
use super::tor_control::Tor;
use crate::admission::{Admission, next_connection};
use crate::identity::{hex, random};
use crate::os::{self, LocalStream};
use crate::{clock, link};

/// Our exit, a tor 0.4.9, packs this many bytes of a stream
const READ: u64 = 32 * 498;
/// into this many cells of at most 488 bytes (measured; docs/real-tor.md).
const CELLS_PER_READ: u64 = 33;
/// Circuits per client and streams per circuit. With several streams the circuit's window is the limit (paper,
/// appendix C: three).
const CIRCUITS: usize = 2;
const STREAMS: usize = 3;
/// Time for clients to load the directory, and to open circuits and streams.
const LEARNING: Span = Span::from_secs(60);
const OPENING: Span = Span::from_secs(30);
/// Time for one circuit or stream before another is tried, and the pause between them.
const ATTEMPT: Span = Span::from_secs(6);
const PAUSE: Span = Span::from_millis(500);
/// Limit of accepted connections that have not shown the token.
const UNAUTHENTICATED: usize = 64;

/// A directory that is deleted on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        // A short path: names of Unix sockets have at most 108 bytes.
        let path = std::env::temp_dir().join(format!("tidegate-{}", hex(&random::<6>())));
        os::private_directory()?.create(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures a stock relay at up to `rate` for `seconds`. Must run inside a [`tokio::task::LocalSet`].
///
/// The seconds' records have one measurer, the tor clients together, in bytes of cells, and no background.
pub(crate) async fn measure(
    config: &StockConfig,
    relay: &RelayId,
    rate: Rate,
    seconds: u16,
    mut stop: watch::Receiver<bool>,
    on_second: impl FnMut(u16, &SecondRecord),
) -> Result<Outcome, Failure> {
    let stopped = async {
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        result = load(config, relay, rate, seconds, on_second) => result,
        () = stopped => Err(Failure { reason: Reason::Stopped, by: None }),
    }
}

async fn load(
    config: &StockConfig,
    relay: &RelayId,
    rate: Rate,
    seconds: u16,
    mut on_second: impl FnMut(u16, &SecondRecord),
) -> Result<Outcome, Failure> {
    let ours = |reason| move |_| Failure { reason, by: None };
    let listener = TcpListener::bind(config.listen).await.map_err(ours(Reason::Busy))?;
    let source = listener.local_addr().map_err(ours(Reason::Other))?;
    let token: [u8; 16] = random();
    let network = config.torrc.as_ref().map_or(Ok(String::new()), std::fs::read_to_string);
    let network = network.map_err(ours(Reason::Other))?;
    let scratch = Scratch::new().map_err(ours(Reason::Other))?;
    let pace = Rc::new(RefCell::new(Load::new(rate.0, 1)));
    let serving = tokio::task::spawn_local(serve(listener, token, pace));
    let _serving = Aborted(serving);

    let mut starting = JoinSet::new();
    for n in 0..config.clients {
        let (config, path) = (config.clone(), vec![*relay, config.far_end]);
        let (directory, network) = (scratch.0.join(n.to_string()), network.clone());
        starting.spawn_local(async move { client(&config, directory, &network, &path, source).await });
    }
    // Dropping a client ends its process.
    let (mut clients, mut streams) = (Vec::new(), Vec::new());
    while let Some(started) = starting.join_next().await {
        match started.expect("a client does not panic") {
            Ok((tor, opened)) => {
                clients.push(tor);
                streams.extend(opened);
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Err(ours(Reason::Other)(cause)),
            Err(_) => {}
        }
    }
    // As with echo cells, at least half of the circuits must be open.
    if 2 * streams.len() < config.clients * CIRCUITS * STREAMS {
        return Err(Failure { reason: Reason::Circuits, by: Some(Peer::Measurer(0)) });
    }
    let received = Rc::new(Cell::new(0));
    let mut reading = JoinSet::new();
    for stream in streams {
        reading.spawn_local(fetch(stream, token, received.clone()));
    }
    let mut records = Vec::new();
    let mut next = clock::now();
    for second in 1..=seconds {
        next += Span::from_secs(1);
        clock::until(next).await;
        let bytes = received.take() * CELLS_PER_READ / READ * CELL as u64;
        let record = SecondRecord { measurers: vec![bytes], sent: 0, received: 0 };
        on_second(second, &record);
        records.push(record);
    }
    if reading.try_join_next().is_some() {
        return Err(Failure { reason: Reason::Lost, by: Some(Peer::Relay) });
    }
    drop(clients);
    let none = Percent::new(0).expect("below 100");
    let counted: Vec<_> = records.iter().map(|record| record.second(none)).collect();
    let estimate = aggregate::estimate(&counted).ok_or(Failure { reason: Reason::Other, by: None })?;
    Ok(Outcome { seconds: records, estimate, allocated: rate, checked: 0 })
}

struct Aborted(tokio::task::JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a client and opens as many of its circuits and streams as possible.
async fn client(
    config: &StockConfig,
    directory: PathBuf,
    network: &str,
    path: &[RelayId],
    source: SocketAddr,
) -> io::Result<(Tor, Vec<LocalStream>)> {
    os::private_directory()?.create(&directory)?;
    let mut tor = link::within(LEARNING, async {
        let mut tor = Tor::start(&config.tor, directory, network).await?;
        tor.ready().await?;
        Ok(tor)
    })
    .await?;
    let mut streams = Vec::new();
    let end = clock::now() + OPENING;
    let attempt = || end.min(clock::now() + ATTEMPT);
    let mut circuits = 0;
    while circuits < CIRCUITS && clock::now() < end {
        let before_it = streams.len();
        if let Ok(circuit) = before(attempt(), tor.circuit(path)).await {
            for _ in 0..STREAMS {
                if let Ok(stream) = before(attempt(), tor.stream(circuit, source)).await {
                    streams.push(stream);
                }
            }
        }
        // A network that has just started refuses some attempts or leaves them unanswered.
        match streams.len() > before_it {
            true => circuits += 1,
            false => clock::until(end.min(clock::now() + PAUSE)).await,
        }
    }
    Ok((tor, streams))
}

async fn before<T>(end: Time, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    link::within(end.since(clock::now()), future).await
}

/// Sends the token and counts the received bytes.
async fn fetch(mut stream: LocalStream, token: [u8; 16], received: Rc<Cell<u64>>) {
    if stream.write_all(&token).await.is_err() {
        return;
    }
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        received.set(received.get() + count as u64);
    }
}

/// The data source: sends to connections that show the token, all together at the given rate.
async fn serve(listener: TcpListener, token: [u8; 16], pace: Rc<RefCell<Load>>) {
    let unauthenticated = Rc::new(Admission::new(UNAUTHENTICATED));
    let mut serving = JoinSet::new();
    loop {
        tokio::select! {
            (tcp, from) = next_connection(&listener) => {
                let (unauthenticated, pace) = (unauthenticated.clone(), pace.clone());
                serving.spawn_local(async move {
                    if let Some(Ok(tcp)) = unauthenticated.run(from.ip(), authenticate(tcp, &token)).await {
                        send(tcp, &pace).await;
                    }
                });
            }
            Some(_) = serving.join_next() => {}
        }
    }
}

async fn authenticate(mut tcp: TcpStream, token: &[u8; 16]) -> io::Result<TcpStream> {
    let mut shown = [0; 16];
    link::within(OPENING, tcp.read_exact(&mut shown)).await?;
    if shown.ct_eq(token).into() { Ok(tcp) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

async fn send(mut tcp: TcpStream, pace: &RefCell<Load>) {
    let zeros = vec![0; BATCH * READ as usize / CELLS_PER_READ as usize];
    loop {
        let turn = pace.borrow_mut().turn(clock::now(), 0, BATCH as u64);
        match turn {
            Turn::Send(cells) => {
                let bytes = (cells * READ / CELLS_PER_READ) as usize;
                if tcp.write_all(&zeros[..bytes]).await.is_err() {
                    return;
                }
            }
            Turn::At(later) => clock::until(later).await,
            Turn::Full => unreachable!("nothing is counted as in flight"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn crowd() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::task::spawn_local(serve(listener, [7; 16], Rc::new(RefCell::new(Load::new(1_000_000, 1)))));
        let mut silent = Vec::new();
        for _ in 0..2 * UNAUTHENTICATED {
            silent.push(TcpStream::connect(at).await.unwrap());
        }
        let mut wrong = TcpStream::connect(at).await.unwrap();
        wrong.write_all(&[8; 16]).await.unwrap();
        assert_eq!(wrong.read(&mut [0]).await.unwrap_or(0), 0, "another token gets nothing");
        let mut client = TcpStream::connect(at).await.unwrap();
        client.write_all(&[7; 16]).await.unwrap();
        // The silent ones would keep their places for `OPENING`.
        let got = link::within(Span::from_secs(5), client.read_exact(&mut [0; 1000])).await;
        assert_eq!(got.unwrap(), 1000);
    }

    #[test]
    fn silent_connections_do_not_keep_a_client_from_the_data_source() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(crowd()));
    }
}
