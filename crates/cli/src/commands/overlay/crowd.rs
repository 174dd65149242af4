//! `tidegate overlay crowd`: measures a relay under thousands of hostile connections.
//!
//! Three relays on loopback carry downloads. One of them also gets connections from many addresses: a third stay silent, a
//! third send garbage, a third finish TLS and the link handshake and then stay idle. The relay's processor time is compared,
//! not wall time, so that the cost of the attacker on this machine does not count.

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
use tidegate_kernel::cpu_s_of;
use tidegate_net::os::raise_descriptors;
use tidegate_net::{clock, link, tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::download::fetch;
use super::own::{Own, VANILLA};
use crate::failure::Failure;

/// Measure downloads through a relay that thousands of hostile connections attack
#[derive(clap::Args, Clone)]
#[command(after_help = "Example:\n  tidegate overlay crowd --connections 2000 --phase '10 s'")]
pub struct CrowdArgs {
    /// Hold up to this many hostile connections open
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Open this many new connections per second, and close as many old ones
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    per_second: u32,
    /// Let all hostile connections finish the handshakes and then stay idle
    #[arg(long)]
    idle: bool,
    /// Measure for this long without and then with the attack; at least 1 s
    #[arg(long, default_value = "20 s", value_parser = seconds)]
    phase: Span,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses a phase; processor time cannot be measured in less than a second.
pub fn seconds(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    if span < Span::from_secs(1) { Err("at least 1 s".into()) } else { Ok(span) }
}

/// Number of users, and bytes per download.
const USERS: u16 = 4;
const BYTES: u64 = 1_000_000;
/// Time to build circuits before the measurement.
const WARMUP: Span = Span::from_secs(3);
/// Connections are opened this many times faster until the crowd is complete.
const GATHERING: u32 = 5;

/// State shared between the threads.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    /// The crowd is complete; from now on old connections are replaced.
    gathered: AtomicBool,
    fetched: AtomicU64,
    wrong: AtomicU64,
    opened: AtomicU64,
    open: AtomicU64,
}

/// Counters at one moment: users' bytes, the relay's CPU seconds, hostile connections.
struct Counters {
    at: Time,
    bytes: f64,
    cpu_s: f64,
    opened: f64,
}

/// Differences of the counters between two moments.
struct Phase {
    seconds: f64,
    bytes: f64,
    cpu_s: f64,
    opened: f64,
}

impl Counters {
    fn since(&self, begun: &Counters) -> Phase {
        Phase {
            seconds: self.at.since(begun.at).as_secs_f64(),
            bytes: self.bytes - begun.bytes,
            cpu_s: self.cpu_s - begun.cpu_s,
            opened: self.opened - begun.opened,
        }
    }
}

/// Goal: the share of one core that remains for users during the attack.
const GOAL: f64 = 0.9;

/// Runs the subcommand.
pub fn main(arguments: &CrowdArgs) -> Result<ExitCode, Failure> {
    let allowed = raise_descriptors().map_err(Failure::other)?;
    if allowed < arguments.connections as u64 + 1_000 {
        let cause =
            format!("the limit of open files is {allowed}: raise it (ulimit -n) or reduce --connections");
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
    let mark = || Counters {
        at: clock::now(),
        bytes: shared.fetched.load(Ordering::Relaxed) as f64 * BYTES as f64,
        // Without a value, the differences have none either.
        cpu_s: cpu_s_of(relay.process).unwrap_or(f64::NAN),
        opened: shared.opened.load(Ordering::Relaxed) as f64,
    };
    // Building circuits and growing buffers must not count.
    wait(WARMUP, &own);
    let begun = mark();
    wait(arguments.phase, &own);
    let calm = mark().since(&begun);
    let CrowdArgs { connections, per_second, idle, .. } = *arguments;
    let attack = Attack { target: relay.address, connections: connections as usize, per_second, idle };
    let crowd = Crowd::start(attack, shared.clone());
    while !shared.gathered.load(Ordering::Relaxed) && !crowd.thread.is_finished() && !own.stage.is_stopped() {
        wait(Span::from_millis(50), &own);
    }
    let begun = mark();
    wait(arguments.phase, &own);
    let attacked = mark().since(&begun);
    let open = shared.open.load(Ordering::Relaxed);
    crowd.disperse()?;
    if own.stage.is_stopped() {
        return Err(Failure::Stopped);
    }
    users.into_iter().for_each(|user| user.join().expect("user threads do not panic"));

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
        println!("attack    {opened:.0} new connections per second, {open} open at the end");
        println!(
            "users     {:.1} MB/s before, {:.1} MB/s during the attack, {wrong} failed downloads",
            rates[0].0 / 1e6,
            rates[1].0 / 1e6
        );
        println!("relay     {:.0} % of a core remain for users", 100.0 * left);
    }
    Ok(ExitCode::from(u8::from(!(wrong == 0 && left >= GOAL))))
}

fn wait(span: Span, own: &Own) {
    let end = clock::now() + span;
    while clock::now() < end && !own.stage.is_stopped() {
        thread::sleep(Duration::from_millis(20));
    }
}

/// Repeats downloads as one user.
fn download(user: u16, (socks, file): (SocketAddr, SocketAddr), shared: &Shared) {
    while !shared.over.load(Ordering::Relaxed) {
        let fetched = fetch(user, socks, file, BYTES);
        let count =
            if fetched.is_ok_and(|download| download.exact()) { &shared.fetched } else { &shared.wrong };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Hostile connections to open.
struct Attack {
    target: SocketAddr,
    connections: usize,
    per_second: u32,
    idle: bool,
}

/// Hostile connections to a relay, opened by a thread of their own.
pub struct Crowd {
    shared: Arc<Shared>,
    thread: thread::JoinHandle<io::Result<()>>,
}

impl Crowd {
    /// Holds up to this many connections open, and replaces some of them every second.
    pub fn gather(target: SocketAddr, connections: usize, per_second: u32) -> Crowd {
        Crowd::start(Attack { target, connections, per_second, idle: false }, Arc::default())
    }

    fn start(attack: Attack, shared: Arc<Shared>) -> Crowd {
        let state = shared.clone();
        Crowd { shared, thread: thread::spawn(move || attack.run(&state)) }
    }

    /// Closes all connections. Returns the number of those that were opened.
    ///
    /// # Errors
    /// If the thread could not run.
    pub fn disperse(self) -> Result<u64, Failure> {
        self.shared.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the attack thread does not panic").map_err(Failure::other)?;
        Ok(self.shared.opened.load(Ordering::Relaxed))
    }
}

impl Attack {
    /// Opens hostile connections to a relay and keeps them open while the relay allows it.
    fn run(self, shared: &Arc<Shared>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let Attack { target, connections, per_second, idle } = self;
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
}

/// Counts a connection while it is open.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs one hostile connection until the relay closes it.
async fn connection(target: SocketAddr, number: u64, idle: bool, shared: Arc<Shared>) {
    // Errors are expected: the relay closes hostile connections.
    let _ = converse(target, number, idle, shared).await;
}

async fn converse(target: SocketAddr, number: u64, idle: bool, shared: Arc<Shared>) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    // Use 16,000 loopback addresses, so that limits per address do not apply.
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
            // VERSIONS 4 and 5, then NETINFO with the peer's address and without own addresses (tor-spec, 4.1 and 4.5).
            let mut cells = vec![0, 0, 7, 0, 4, 0, 4, 0, 5];
            let netinfo = [0, 0, 0, 0, 8, 0, 0, 0, 0, 4, 4, 127, 0, 0, 1, 0];
            cells.extend(netinfo.into_iter().chain(std::iter::repeat(0)).take(514));
            stream.write_all(&cells).await?;
            while stream.read(&mut buffer).await? > 0 {}
        }
    }
    Ok(())
}
