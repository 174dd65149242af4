//! `tidegate overlay threads`: what a relay carries per second of processor time, with several numbers of threads.
//!
//! Relays on loopback carry downloads of several clients. There is a guard for each number of threads, and its threads are
//! counted: on a machine of few cores the clients and the other relays take most of the time, so bytes per second of the clock say
//! little. A relay of N threads cannot carry more than its busiest thread does, so the counted rate is bytes per second of that
//! thread's time. The guards have the lowest priority, so that they are the bottleneck: an idle relay wakes for a few cells at a
//! time, a busy one for many.
//!
//! All guards share one network and are measured at the same time. In networks of their own, the middle relay mixed the cells of
//! clients more finely in one than in another, and the same guard carried 234 or 464 MB per CPU-second.
//!
//! A guard counts the bytes itself. Finished downloads would be too coarse: with 32 clients, few of them end in a phase.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate_control::units::{Span, Time};
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor as _;
use tidegate_net::clock;
use tidegate_net::os::{thread_cpu_s_of, yield_to_others};

use super::download::fetch;
use super::own::{Network, Relay, RelaySetup, VANILLA, system_table};
use crate::console::Console;
use crate::failure::Failure;
use crate::stage::{Stage, status_of};

/// Measure what a relay carries per second of processor time, with several numbers of threads
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate overlay threads --threads 1,2,4 --clients 16")]
pub struct ThreadsArgs {
    /// Measure relays with these numbers of threads, all at the same time
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,
    /// Let this many clients of each relay download, each over a connection of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// Duration of the measurement
    #[arg(long, default_value = "10 s", value_parser = super::crowd::seconds)]
    phase: Span,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Bytes per download.
const BYTES: u64 = 1_000_000;
/// Longest time until every client has downloaded once. Handshakes and new circuits must not count.
const WARMUP: Span = Span::from_secs(120);
/// Time from lowering the guards' priority to the measurement.
const SETTLING: Span = Span::from_secs(1);
/// More than any machine carries here, so that processor time is the limit.
const UNLIMITED: &str = "10 Gbit/s";
/// Processor time of the busiest thread below which a measurement says little, seconds.
const LEAST_CPU_S: f64 = 0.05;

/// Counters of a relay since its start.
struct Counters {
    at: Time,
    /// Bytes of cells that it wrote.
    written: f64,
    /// Processor time of each thread, by its number.
    cpu_s: BTreeMap<u32, f64>,
}

impl Counters {
    /// Reads the counters of a relay. The processor time is read last at both ends of a measurement, so that the time until
    /// a busy relay answers does not count.
    fn read(relay: &Relay) -> Result<Counters, Failure> {
        let status = status_of(relay.status).map_err(Failure::other)?;
        let cpu_s = thread_cpu_s_of(relay.process);
        let written = status["written_bytes"].as_f64();
        let written = written.ok_or_else(|| Failure::Other("a status page without written bytes".into()))?;
        Ok(Counters { at: clock::now(), written, cpu_s })
    }
}

/// Result for one number of threads.
struct Measured {
    threads: u16,
    bytes_per_s: f64,
    bytes_per_cpu_s: f64,
    /// Bytes per second of its busiest thread.
    limit: f64,
    /// Processor time of that thread.
    busiest_s: f64,
    wrong: u64,
}

impl Measured {
    fn between(threads: u16, before: &Counters, after: &Counters, wrong: u64) -> Measured {
        let bytes = after.written - before.written;
        // Threads have their numbers in common at both times, because a relay starts all of them at once.
        let used: Vec<f64> = (after.cpu_s.iter())
            .map(|(thread, cpu_s)| cpu_s - before.cpu_s.get(thread).copied().unwrap_or(0.0))
            .collect();
        let busiest_s = used.iter().copied().fold(0.0, f64::max);
        Measured {
            threads,
            bytes_per_s: bytes / after.at.since(before.at).as_secs_f64(),
            bytes_per_cpu_s: bytes / used.iter().sum::<f64>(),
            limit: bytes / busiest_s,
            busiest_s,
            wrong,
        }
    }
}

/// Runs the subcommand.
pub fn main(arguments: &ThreadsArgs) -> Result<ExitCode, Failure> {
    let mut numbers = arguments.threads.clone();
    numbers.sort_unstable();
    if let Some(twice) = numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        let cause = format!("{} stands there twice, and results are named by it", twice[0]);
        return Err(InputError::new("--threads", cause, "give each number once").into());
    }
    let console = Console::new(0, 0);
    let all = measure(arguments, &console)?;
    if console.stopped() {
        return Ok(ExitCode::from(130));
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
        for found in &all {
            println!(
                "{:2} threads  {:.1} MB per CPU-second, {:.1} MB per second of the busiest thread, {:.1} MB/s, {} failed downloads",
                found.threads,
                found.bytes_per_cpu_s / 1e6,
                found.limit / 1e6,
                found.bytes_per_s / 1e6,
                found.wrong
            );
        }
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

/// Starts an overlay with a guard for each number of threads, and measures the guards.
fn measure(arguments: &ThreadsArgs, console: &Console) -> Result<Vec<Measured>, Failure> {
    let guards = arguments.threads.len();
    let mut setups: Vec<RelaySetup> = (0..guards + 2).map(|_| RelaySetup::new(UNLIMITED)).collect();
    for (setup, threads) in setups.iter_mut().zip(&arguments.threads) {
        setup.keys = format!("threads = {threads}\n");
    }
    let mut network = Network::start(Stage::unattended("threads")?, &system_table(VANILLA), &setups, &[])?;
    let mut shared: Vec<Arc<Shared>> = Vec::new();
    let mut users = Vec::new();
    for guard in 0..guards {
        let path = format!("relay{guard},relay{guards},relay{}", guards + 1);
        let of_guard = Arc::new(Shared::default());
        for _ in 0..arguments.clients {
            let (_, socks) = network.client(SocketAddr::from(([127, 0, 0, 1], 0)), &["--path", &path])?;
            let (of_guard, file) = (of_guard.clone(), network.file);
            users.push(thread::spawn(move || of_guard.download(socks, file)));
        }
        shared.push(of_guard);
    }
    let wait_until = |span: Span, is_over: &dyn Fn() -> bool| {
        let end = clock::now() + span;
        while clock::now() < end && !is_over() && !console.stopped() {
            thread::sleep(Duration::from_millis(20));
        }
    };
    let wait = |span: Span| wait_until(span, &|| false);
    let is_warm = || shared.iter().all(|of| of.warm.load(Ordering::Relaxed) >= u64::from(arguments.clients));
    wait_until(WARMUP, &is_warm);
    if !is_warm() && !console.stopped() {
        return Err(Failure::Other(
            "not every client has downloaded once after 120 s; use fewer --clients".into(),
        ));
    }
    let relays = &network.relays[..guards];
    relays.iter().for_each(|relay| yield_to_others(relay.process));
    wait(SETTLING);
    let read = || relays.iter().map(Counters::read).collect::<Result<Vec<_>, _>>();
    let before = read()?;
    wait(arguments.phase);
    let after = read()?;
    shared.iter().for_each(|of| of.over.store(true, Ordering::Relaxed));
    users.into_iter().for_each(|user| user.join().expect("user threads do not panic"));
    let each = arguments.threads.iter().zip(before.iter().zip(&after)).zip(&shared);
    Ok(each
        .map(|((threads, (before, after)), of)| {
            let measured = Measured::between(*threads, before, after, of.wrong.load(Ordering::Relaxed));
            if measured.busiest_s < LEAST_CPU_S && !console.stopped() {
                crate::console::notice(&format!(
                    "the busiest of {threads} threads got only {:.3} s of processor time; repeat it with a longer \
                     --phase or without other programs",
                    measured.busiest_s
                ));
            }
            measured
        })
        .collect())
}

/// State of all users.
#[derive(Default)]
struct Shared {
    over: AtomicBool,
    /// Users that have downloaded once.
    warm: AtomicU64,
    wrong: AtomicU64,
}

impl Shared {
    /// Repeats downloads as one user.
    fn download(&self, socks: SocketAddr, file: SocketAddr) {
        let mut is_warm = false;
        while !self.over.load(Ordering::Relaxed) {
            if !fetch(0, socks, file, BYTES).is_ok_and(|download| download.exact()) {
                self.wrong.fetch_add(1, Ordering::Relaxed);
            } else if !std::mem::replace(&mut is_warm, true) {
                self.warm.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
