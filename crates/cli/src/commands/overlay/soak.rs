//! `tidegate overlay soak`: endless downloads while relays are killed; measures outages and memory growth.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::json;
use tidegate_control::units::{Span, Time};
use tidegate_kernel::memory_of;
use tidegate_lab::monitor::Monitor as _;
use tidegate_net::clock;

use super::download::fetch;
use super::own::{Own, RELAYS, VANILLA, systems};
use crate::console::Console;
use crate::failure::Failure;

/// Download through five relays while relays are killed, and check outages and memory growth
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate overlay soak --duration '10 min'")]
pub struct SoakArgs {
    /// Run this system on all nodes
    #[arg(long, default_value = VANILLA, value_parser = systems())]
    system: String,
    /// Run for this long; relays are killed in the first half, memory is compared in the second
    #[arg(long, default_value = "1 h", value_parser = super::crowd::seconds)]
    duration: Span,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Number of users, each with separate circuits, and bytes per download.
const USERS: u16 = 8;
const BYTES: u64 = 500_000;
/// Interval between kills, and time until the relay restarts.
const KILL_EVERY: Span = Span::from_secs(20);
const AWAY: Span = Span::from_secs(5);
/// Longest allowed outage after a kill, and allowed memory growth (allocators keep some memory).
const REBUILT: Span = Span::from_secs(5);
const GROWTH: f64 = 0.1;

/// Results of all users.
#[derive(Default)]
struct Outcomes {
    fetched: u64,
    wrong: u64,
    /// Broken downloads, and times from the break, or from the kill that caused it, to the next complete download.
    broken: u64,
    outages: Vec<Span>,
    /// Time of the last kill.
    killed: Option<Time>,
}

impl Outcomes {
    /// Start of an outage: the last kill if it was recent, because users notice it late; otherwise now.
    fn since(&self) -> Time {
        let now = clock::now();
        self.killed.filter(|killed| now.since(*killed) <= AWAY).unwrap_or(now)
    }

    /// Longest outage.
    fn outage(&self) -> Span {
        self.outages.iter().copied().max().unwrap_or(Span::ZERO)
    }
}

/// Runs the subcommand.
pub fn main(arguments: &SoakArgs) -> Result<ExitCode, Failure> {
    let mut own = Own::start(&arguments.system, SocketAddr::from(([127, 0, 0, 1], 0)), RELAYS)?;
    let (seen, over) = (Arc::new(Mutex::new(Outcomes::default())), Arc::new(AtomicBool::new(false)));
    let users: Vec<_> = (0..USERS)
        .map(|user| {
            let (seen, over, at) = (seen.clone(), over.clone(), (own.socks, own.file));
            thread::spawn(move || download(user, at, &over, &seen))
        })
        .collect();
    let begun = clock::now();
    let half = begun + Span(arguments.duration.0 / 2);
    let mut kills = 0;
    let console = Console::new(1, 1);
    let watch = |kills| {
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let state = format!(
            "{} downloads, {kills} kills, longest outage {:.1} s",
            seen.fetched,
            seen.outage().as_secs_f64()
        );
        let done = clock::now().since(begun).as_secs_f64() / arguments.duration.as_secs_f64();
        console.progress(&arguments.system, &state, done);
    };
    while clock::now() + KILL_EVERY < half && !own.stage.is_stopped() {
        pause(KILL_EVERY - AWAY, &own, || watch(kills));
        let relay = kills % own.relays.len();
        own.stage.kill(own.relays[relay].process);
        seen.lock().unwrap_or_else(PoisonError::into_inner).killed = Some(clock::now());
        kills += 1;
        pause(AWAY, &own, || watch(kills));
        own.restart(relay)?;
    }
    // Let buffers grow to their final size before memory is compared.
    pause(Span(arguments.duration.0 / 6), &own, || watch(kills));
    let processes: Vec<u32> = own.relays.iter().map(|relay| relay.process).chain(own.others).collect();
    let before: Vec<Option<f64>> = processes.iter().map(|process| resident(*process)).collect();
    pause(Span((begun + arguments.duration).since(clock::now()).0), &own, || watch(kills));
    let pairs =
        processes.iter().zip(&before).map(|(process, before)| Some(resident(*process)? / (*before)? - 1.0));
    let growths: Vec<Option<f64>> = pairs.collect();
    let ended = growths.iter().filter(|growth| growth.is_none()).count();
    let growth = growths.into_iter().flatten().fold(0.0, f64::max);
    over.store(true, Ordering::Relaxed);
    users.into_iter().for_each(|user| user.join().expect("user threads do not panic"));
    console.finish();

    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let outage = seen.outage();
    let fine = seen.wrong == 0 && seen.fetched > 0 && outage <= REBUILT && growth <= GROWTH && ended == 0;
    let kept = before.iter().flatten().copied().fold(0.0, f64::max);
    if arguments.json {
        println!(
            "{}",
            json!({ "seconds": clock::now().since(begun).as_secs_f64(), "fetched": seen.fetched,
                "bytes": seen.fetched * BYTES, "wrong": seen.wrong, "kills": kills, "broken": seen.broken,
                "longest_outage_s": outage.as_secs_f64(), "largest_process_bytes": kept, "growth": growth,
                "ended": ended, "fine": fine })
        );
    } else {
        println!("fetched   {} times {BYTES} bytes, {} not correct", seen.fetched, seen.wrong);
        let without = outage.as_secs_f64();
        println!("killed    {kills} relays: {} downloads broke, longest outage {without:.1} s", seen.broken);
        println!("memory    {:.1} MB in the largest process, growth {:.1} %", kept / 1e6, 100.0 * growth);
        if ended > 0 {
            println!("ended     {ended} processes that should run");
        }
    }
    Ok(ExitCode::from(u8::from(!fine)))
}

fn pause(span: Span, own: &Own, watch: impl Fn()) {
    let end = clock::now() + span;
    while clock::now() < end && !own.stage.is_stopped() {
        watch();
        thread::sleep(Duration::from_millis(50));
    }
}

/// Repeats downloads as one user.
fn download(user: u16, (socks, file): (SocketAddr, SocketAddr), over: &AtomicBool, seen: &Mutex<Outcomes>) {
    let mut broke: Option<Time> = None;
    while !over.load(Ordering::Relaxed) {
        let fetched = fetch(user, socks, file, BYTES);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match fetched {
            Ok(download) if download.exact() => {
                seen.fetched += 1;
                seen.outages.extend(broke.take().map(|since| clock::now().since(since)));
            }
            // A relay was killed: the bytes that arrived must still be correct.
            broken => {
                seen.wrong += u64::from(broken.is_ok_and(|download| !download.right));
                seen.broken += u64::from(broke.is_none());
                broke.get_or_insert(seen.since());
                drop(seen);
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    if let Some(since) = broke {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.outages.push(clock::now().since(since));
    }
}

/// Returns the resident memory of a process in bytes; `None` if it has exited.
fn resident(process: u32) -> Option<f64> {
    memory_of(process).map(|bytes| bytes as f64)
}
