//! `tidegate overlay crowd`: downloads beside thousands of connections to a relay that mean no good.
//!
//! Three relays on loopback carry downloads; on one of them a crowd opens connections from addresses of its own: silent ones,
//! garbage, and clients that finish TLS and the link handshake and then say nothing, in turn. Processor time is compared, not
//! wall time, so that what the crowd itself costs this machine does not count.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;
use tidegate_control::units::{Span, Time};
use tidegate_net::os::{cpu_s_of, raise_descriptors};
use tidegate_net::{clock, link, tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::download::fetch;
use super::own::{Own, VANILLA};
use crate::failure::Failure;

/// Download through three relays while one of them has a crowd of hostile connections, and see what that costs it
#[derive(clap::Args, Clone)]
pub struct Arguments {
    /// How many connections the crowd holds, if the relay lets it
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// New ones a second; one of those before goes for each
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    per_second: u32,
    /// All of the crowd finish the handshakes and then say nothing
    #[arg(long)]
    idle: bool,
    /// How long users are measured alone, and then beside the crowd
    #[arg(long, default_value = "20 s", value_parser = seconds)]
    phase: Span,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A time in which processor time can be measured.
fn seconds(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    if span < Span::from_secs(1) { Err("at least 1 s".into()) } else { Ok(span) }
}

/// Who downloads at one time, and how much each time.
const USERS: u16 = 4;
const BYTES: u64 = 1_000_000;
/// Circuits are built in it.
const WARMUP: Span = Span::from_secs(3);
/// The crowd gathers so much faster than it is renewed.
const GATHERING: u32 = 5;

/// What passes between the threads.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    /// The crowd is as large as it is to be, and is renewed from now on.
    gathered: AtomicBool,
    fetched: AtomicU64,
    wrong: AtomicU64,
    opened: AtomicU64,
    open: AtomicU64,
}

/// Bytes for users, processor seconds of the relay, connections of the crowd, up to a moment.
struct Mark {
    at: Time,
    bytes: f64,
    cpu_s: f64,
    opened: f64,
}

/// What came between two moments.
struct Part {
    seconds: f64,
    bytes: f64,
    cpu_s: f64,
    opened: f64,
}

impl Mark {
    fn since(&self, begun: &Mark) -> Part {
        Part {
            seconds: self.at.since(begun.at).as_secs_f64(),
            bytes: self.bytes - begun.bytes,
            cpu_s: self.cpu_s - begun.cpu_s,
            opened: self.opened - begun.opened,
        }
    }
}

/// What the relay does for its users beside the crowd, if it has one core, is to be at least this share.
const GOAL: f64 = 0.9;

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let allowed = raise_descriptors().map_err(Failure::other)?;
    if allowed < arguments.connections as u64 + 1_000 {
        let cause =
            format!("{allowed} open files are allowed here: raise the limit (ulimit -n), or ask for fewer");
        return Err(Failure::Other(cause));
    }
    let own = Own::start(VANILLA, SocketAddr::from(([127, 0, 0, 1], 0)), 3)?;
    let relay = &own.relays[0];
    let shared = Arc::new(Shared::default());
    let users: Vec<_> = (0..USERS)
        .map(|user| {
            let (shared, at) = (shared.clone(), (own.socks, own.file));
            thread::spawn(move || download(user, at, &shared))
        })
        .collect();
    let mark = || Mark {
        at: clock::now(),
        bytes: shared.fetched.load(Ordering::Relaxed) as f64 * BYTES as f64,
        cpu_s: cpu_s_of(relay.process),
        opened: shared.opened.load(Ordering::Relaxed) as f64,
    };
    // Circuits are built and buffers grown before anything counts.
    wait(WARMUP, &own);
    let begun = mark();
    wait(arguments.phase, &own);
    let calm = mark().since(&begun);
    let crowd = {
        let (shared, arguments, target) = (shared.clone(), arguments.clone(), relay.address);
        thread::spawn(move || attack(target, &arguments, &shared))
    };
    while !shared.gathered.load(Ordering::Relaxed) && !crowd.is_finished() && !own.stage.is_stopped() {
        wait(Span::from_millis(50), &own);
    }
    let begun = mark();
    wait(arguments.phase, &own);
    let attacked = mark().since(&begun);
    let open = shared.open.load(Ordering::Relaxed);
    shared.over.store(true, Ordering::Relaxed);
    crowd.join().expect("a crowd does not panic").map_err(Failure::other)?;
    users.into_iter().for_each(|user| user.join().expect("a user does not panic"));

    let per_byte = calm.cpu_s / calm.bytes;
    let left = 1.0 - (attacked.cpu_s - attacked.bytes * per_byte) / attacked.seconds;
    let (wrong, opened) = (shared.wrong.load(Ordering::Relaxed), attacked.opened / attacked.seconds);
    let rates = [&calm, &attacked].map(|part| (part.bytes / part.seconds, part.bytes / part.cpu_s));
    if arguments.json {
        println!(
            "{}",
            json!({ "left": left, "opened_per_s": opened, "open": open, "wrong": wrong,
                "calm_bytes_per_s": rates[0].0, "calm_bytes_per_cpu_s": rates[0].1,
                "attacked_bytes_per_s": rates[1].0, "attacked_bytes_per_cpu_s": rates[1].1 })
        );
    } else {
        println!("crowd     {opened:.0} new connections a second, {open} open at the end");
        println!(
            "users     {:.1} MB/s before, {:.1} beside it, {wrong} downloads broke",
            rates[0].0 / 1e6,
            rates[1].0 / 1e6
        );
        println!("relay     {:.0} % of a core are left for users", 100.0 * left);
    }
    Ok(ExitCode::from(u8::from(!(wrong == 0 && left >= GOAL))))
}

fn wait(span: Span, own: &Own) {
    let end = clock::now() + span;
    while clock::now() < end && !own.stage.is_stopped() {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Downloads again and again, as one user.
fn download(user: u16, (socks, file): (SocketAddr, SocketAddr), shared: &Shared) {
    while !shared.over.load(Ordering::Relaxed) {
        let fetched = fetch(user, socks, file, BYTES);
        let count =
            if fetched.is_ok_and(|download| download.exact()) { &shared.fetched } else { &shared.wrong };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Opens connections to a relay, and holds as many as the relay lets it.
fn attack(target: SocketAddr, arguments: &Arguments, shared: &Arc<Shared>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Arguments { connections, per_second, idle, .. } = *arguments;
    let crowd = async {
        let mut held: VecDeque<JoinHandle<()>> = VecDeque::new();
        let (begun, mut due) = (clock::now(), 0.0);
        let mut renewed = begun;
        for number in 0u64.. {
            if shared.over.load(Ordering::Relaxed) {
                break;
            }
            let gathering = number < connections as u64;
            if number == connections as u64 {
                shared.gathered.store(true, Ordering::Relaxed);
                (renewed, due) = (clock::now(), 0.0);
            }
            held.push_back(spawn_local(connection(target, number, idle, shared.clone())));
            if held.len() > connections {
                held.pop_front().into_iter().for_each(|oldest| oldest.abort());
            }
            due += 1.0 / f64::from(if gathering { GATHERING * per_second } else { per_second });
            clock::until(renewed + Span::from_secs_f64(due)).await;
        }
        held.iter().for_each(JoinHandle::abort);
    };
    LocalSet::new().block_on(&runtime, crowd);
    Ok(())
}

/// Counts a connection while it is open.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One of the crowd, until the relay has enough of it.
async fn connection(target: SocketAddr, number: u64, idle: bool, shared: Arc<Shared>) {
    // How it ends is the relay's affair.
    let _ = converse(target, number, idle, shared).await;
}

async fn converse(target: SocketAddr, number: u64, idle: bool, shared: Arc<Shared>) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    // Some 16,000 addresses of loopback, so that no limit per address helps.
    let [_, _, high, low] = (number as u32 % 16_000 + 256).to_be_bytes();
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 9, high, low), 0)))?;
    let mut tcp = socket.connect(target).await?;
    shared.opened.fetch_add(1, Ordering::Relaxed);
    shared.open.fetch_add(1, Ordering::Relaxed);
    let _open = Open(shared);
    let mut buffer = [0; 4096];
    match number % 3 {
        0 if !idle => while tcp.read(&mut buffer).await? > 0 {},
        1 if !idle => {
            tcp.write_all(&[0x5a; 1024]).await?;
            while tcp.read(&mut buffer).await? > 0 {}
        }
        _ => {
            let config = tls::any_server().map_err(io::Error::other)?;
            let mut stream = link::secure(tcp, config).await?;
            // VERSIONS 4 and 5, and NETINFO with the other's address and none of its own.
            let mut cells = vec![0, 0, 7, 0, 4, 0, 4, 0, 5];
            let netinfo = [0, 0, 0, 0, 8, 0, 0, 0, 0, 4, 4, 127, 0, 0, 1, 0];
            cells.extend(netinfo.into_iter().chain(std::iter::repeat(0)).take(514));
            stream.write_all(&cells).await?;
            while stream.read(&mut buffer).await? > 0 {}
        }
    }
    Ok(())
}
