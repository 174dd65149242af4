//! `tidegate overlay soak`: downloads without end, relays that are killed meanwhile, and what grows.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::json;
use tidegate_control::units::{Span, Time};
use tidegate_lab::monitor::Monitor as _;
use tidegate_net::clock;
use tidegate_net::os::memory_of;

use super::download::fetch;
use super::own::{Own, RELAYS, VANILLA, systems};
use crate::console::Console;
use crate::failure::Failure;

/// Download without end through five relays while one after another is killed, and see whether memory grows
#[derive(clap::Args)]
pub struct Arguments {
    /// What all of them run
    #[arg(long, default_value = VANILLA, value_parser = systems())]
    system: String,
    /// For how long: relays are killed in the first half, and memory is compared in the second
    #[arg(long, default_value = "1 h")]
    duration: Span,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Who downloads at one time, each over circuits of its own, and how much each time.
const USERS: u16 = 8;
const BYTES: u64 = 500_000;
/// How often a relay is killed, and how long it stays away.
const KILL_EVERY: Span = Span::from_secs(20);
const AWAY: Span = Span::from_secs(5);
/// What users may wait after a kill, and a process may grow by: allocators keep some.
const REBUILT: Span = Span::from_secs(5);
const GROWTH: f64 = 0.1;

/// What the users saw.
#[derive(Default)]
struct Seen {
    fetched: u64,
    wrong: u64,
    /// Downloads that broke, and from then on, or from the kill that they broke for, until the next one was whole.
    broken: u64,
    outages: Vec<Span>,
    /// When a relay was killed last.
    killed: Option<Time>,
}

impl Seen {
    /// Since when a user whose download has just broken goes without: it may not have noticed at once.
    fn since(&self) -> Time {
        let now = clock::now();
        self.killed.filter(|killed| now.since(*killed) <= AWAY).unwrap_or(now)
    }

    /// The longest.
    fn outage(&self) -> Span {
        self.outages.iter().copied().max().unwrap_or(Span::ZERO)
    }
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut own = Own::start(&arguments.system, SocketAddr::from(([127, 0, 0, 1], 0)), RELAYS)?;
    let (seen, over) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
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
            "{} downloads, {kills} kills, {:.1} s without at most",
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
    // Buffers grow to what they need before anything is compared.
    pause(Span(arguments.duration.0 / 6), &own, || watch(kills));
    let processes: Vec<u32> = own.relays.iter().map(|relay| relay.process).chain(own.others).collect();
    let before: Vec<f64> = processes.iter().map(|process| resident(*process)).collect();
    pause(Span((begun + arguments.duration).since(clock::now()).0), &own, || watch(kills));
    let pairs = processes.iter().zip(&before).map(|(process, before)| resident(*process) / before - 1.0);
    let growth = pairs.fold(0.0, f64::max);
    over.store(true, Ordering::Relaxed);
    users.into_iter().for_each(|user| user.join().expect("a user does not panic"));
    console.finish();

    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let outage = seen.outage();
    let fine = seen.wrong == 0 && seen.fetched > 0 && outage <= REBUILT && growth <= GROWTH;
    let kept = before.iter().copied().fold(0.0, f64::max);
    if arguments.json {
        println!(
            "{}",
            json!({ "seconds": clock::now().since(begun).as_secs_f64(), "fetched": seen.fetched,
                "bytes": seen.fetched * BYTES, "wrong": seen.wrong, "kills": kills, "broken": seen.broken,
                "longest_outage_s": outage.as_secs_f64(), "largest_process_bytes": kept, "growth": growth, "fine": fine })
        );
    } else {
        println!("fetched   {} times {BYTES} bytes, {} not as sent", seen.fetched, seen.wrong);
        let without = outage.as_secs_f64();
        println!("killed    {kills} relays: {} downloads broke, for {without:.1} s at most", seen.broken);
        println!("memory    {:.1} MB in the largest process, grown by {:.1} %", kept / 1e6, 100.0 * growth);
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

/// Downloads again and again, as one user.
fn download(user: u16, (socks, file): (SocketAddr, SocketAddr), over: &AtomicBool, seen: &Mutex<Seen>) {
    let mut broke: Option<Time> = None;
    while !over.load(Ordering::Relaxed) {
        let fetched = fetch(user, socks, file, BYTES);
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        match fetched {
            Ok(download) if download.exact() => {
                seen.fetched += 1;
                seen.outages.extend(broke.take().map(|since| clock::now().since(since)));
            }
            // A relay was killed: what had come must be right, as far as it came.
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

/// Bytes of memory that a process has; no number if it is gone.
fn resident(process: u32) -> f64 {
    memory_of(process).map_or(f64::NAN, |bytes| bytes as f64)
}
