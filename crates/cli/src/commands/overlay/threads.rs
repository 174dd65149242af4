//! `tidegate overlay threads`: what a relay carries per second of processor time, with several numbers of threads.
//!
//! Three relays on loopback carry downloads of several clients. The guard's threads are counted: on a machine of few cores the
//! clients and the other relays take most of the time, so bytes per second of the clock say little. A relay of N threads
//! cannot carry more than its busiest thread does, so the counted rate is bytes per second of that thread's time. The guard
//! has the lowest priority, so that it is the bottleneck: an idle relay wakes for a few cells at a time, a busy one for many.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate_control::units::Span;
use tidegate_lab::monitor::Monitor as _;
use tidegate_net::clock;
use tidegate_net::os::{thread_cpu_s_of, yield_to_others};

use super::download::fetch;
use super::own::{Network, RelaySetup, VANILLA, system_table};
use crate::console::Console;
use crate::failure::Failure;
use crate::stage::Stage;

/// Measure what a relay carries per second of processor time, with several numbers of threads
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate overlay threads --threads 1,2,4 --clients 16")]
pub struct ThreadsArgs {
    /// Give the measured relay these numbers of threads, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Let this many clients download, each over a connection of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// Duration of each measurement
    #[arg(long, default_value = "10 s")]
    phase: Span,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Bytes per download.
const BYTES: u64 = 1_000_000;
/// Time to build circuits before a measurement.
const WARMUP: Span = Span::from_secs(3);
/// More than any machine carries here, so that processor time is the limit.
const UNLIMITED: &str = "10 Gbit/s";
/// The measured relay first.
const PATH: &str = "relay0,relay1,relay2";

/// Result for one number of threads.
struct Measured {
    threads: u16,
    bytes_per_s: f64,
    bytes_per_cpu_s: f64,
    /// Bytes per second of its busiest thread.
    limit: f64,
    wrong: u64,
}

/// Runs the subcommand.
pub fn main(arguments: &ThreadsArgs) -> Result<ExitCode, Failure> {
    let console = Console::new(0, 0);
    let mut all = Vec::new();
    for threads in &arguments.threads {
        let measured = measure(*threads, arguments, &console)?;
        if console.stopped() {
            return Ok(ExitCode::from(130));
        }
        if !arguments.json {
            println!(
                "{threads:2} threads  {:.1} MB per CPU-second, {:.1} MB per second of the busiest thread, {:.1} MB/s, {} failed downloads",
                measured.bytes_per_cpu_s / 1e6,
                measured.limit / 1e6,
                measured.bytes_per_s / 1e6,
                measured.wrong
            );
        }
        all.push(measured);
    }
    let first = all.first().map_or(f64::NAN, |first| first.limit);
    if arguments.json {
        let object = |found: &Measured| {
            let value = json!({ "bytes_per_s": found.bytes_per_s, "bytes_per_cpu_s": found.bytes_per_cpu_s,
                "limit": found.limit, "speed_up": found.limit / first, "wrong": found.wrong });
            (format!("threads-{}", found.threads), value)
        };
        println!("{}", Value::Object(all.iter().map(object).collect::<Map<_, _>>()));
    } else {
        for found in &all[1..] {
            println!(
                "{:2} threads can carry {:.2} times as much as {}",
                found.threads,
                found.limit / first,
                all[0].threads
            );
        }
    }
    Ok(ExitCode::from(u8::from(all.iter().any(|found| found.wrong > 0))))
}

/// Starts an overlay in which the first relay has this many threads, and measures that relay.
fn measure(threads: u16, arguments: &ThreadsArgs, console: &Console) -> Result<Measured, Failure> {
    let mut setups: Vec<RelaySetup> = (0..3).map(|_| RelaySetup::new(UNLIMITED)).collect();
    setups[0].keys = format!("threads = {threads}\n");
    let mut network = Network::start(Stage::unattended("threads")?, &system_table(VANILLA), &setups, &[])?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let clients = (0..arguments.clients).map(|_| network.client(any_port, &["--path", PATH]));
    let socks: Vec<SocketAddr> =
        clients.map(|client| client.map(|(_, socks)| socks)).collect::<Result<_, _>>()?;
    let shared = Arc::new(Shared::default());
    let users: Vec<_> = socks
        .into_iter()
        .map(|socks| {
            let (shared, file) = (shared.clone(), network.file);
            thread::spawn(move || shared.download(socks, file))
        })
        .collect();
    let relay = network.relays[0].process;
    yield_to_others(relay);
    let wait = |span: Span| {
        let end = clock::now() + span;
        while clock::now() < end && !console.stopped() {
            thread::sleep(Duration::from_millis(20));
        }
    };
    wait(WARMUP);
    // Threads have their numbers in common at both times, because a relay starts all of them at once.
    let (begun, before, bytes) = (clock::now(), thread_cpu_s_of(relay), shared.bytes.load(Ordering::Relaxed));
    wait(arguments.phase);
    let (seconds, after) = (clock::now().since(begun).as_secs_f64(), thread_cpu_s_of(relay));
    let bytes = (shared.bytes.load(Ordering::Relaxed) - bytes) as f64;
    shared.over.store(true, Ordering::Relaxed);
    users.into_iter().for_each(|user| user.join().expect("user threads do not panic"));
    let used: Vec<f64> =
        after.iter().map(|(thread, cpu_s)| cpu_s - before.get(thread).copied().unwrap_or(0.0)).collect();
    let busiest = used.iter().copied().fold(0.0, f64::max);
    Ok(Measured {
        threads,
        bytes_per_s: bytes / seconds,
        bytes_per_cpu_s: bytes / used.iter().sum::<f64>(),
        limit: bytes / busiest,
        wrong: shared.wrong.load(Ordering::Relaxed),
    })
}

/// State of all users.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    bytes: AtomicU64,
    wrong: AtomicU64,
}

impl Shared {
    /// Repeats downloads as one user.
    fn download(&self, socks: SocketAddr, file: SocketAddr) {
        while !self.over.load(Ordering::Relaxed) {
            match fetch(0, socks, file, BYTES) {
                Ok(download) if download.exact() => self.bytes.fetch_add(BYTES, Ordering::Relaxed),
                _ => self.wrong.fetch_add(1, Ordering::Relaxed),
            };
        }
    }
}
