//! `tidegate overlay matrix`: every combination of the parts in `CHOICES` on sockets, under many circuits at once.
//!
//! Five relays of different bandwidth carry the downloads of one client. Its guard is the bottleneck. Each combination
//! must deliver every byte, must not close a circuit by itself, must not stall, and each part must show its effect.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_control::units::{Bytes, Span, Time};
use tidegate_lab::input::InputError;
use tidegate_net::clock;
use tidegate_proto::ending::Ending;
use tidegate_proto::system::SystemConfig;

use super::download::{Download, fetch};
use super::own::{Own, clocks};
use crate::failure::Failure;
use crate::stage::{Stage, status_of};

/// Download through every combination of a fixed list of parts on sockets and check bytes, stalls, and each part's effect
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate overlay matrix --sample 2 --circuits 40")]
pub struct MatrixArgs {
    /// Open this many circuits at once
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(4..=1000))]
    circuits: u16,
    /// Download this much over each circuit
    #[arg(long, default_value = "200 kB")]
    bytes: Bytes,
    /// Run only this many combinations; which ones changes from day to day
    #[arg(long)]
    sample: Option<usize>,
    /// Run only combinations with this text in their name
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// Bandwidths of the relays. They differ, so that some middles are better than others.
const BANDWIDTHS: [&str; 5] = ["24 Mbit/s", "28 Mbit/s", "32 Mbit/s", "36 Mbit/s", "40 Mbit/s"];
/// Half of the circuits begin this much later, so that EWMA has quiet circuits to prefer.
const LATER: Duration = Duration::from_millis(1000);
/// Least bytes per circuit where circuits move from connections of their own: those fill their buffers late.
const ALONE: u64 = 1_000_000;
/// Downloads become at most this many times longer until each part shows its effect.
const LONGER: u64 = 4;
/// Longest time without a byte of a download, in seconds, not counting pauses of this process.
const STALL_S: f64 = 5.0;
/// How often this process looks whether it was paused, and the least lateness that counts as a pause.
const LOOK: Span = Span::from_millis(50);
const PAUSED: Span = Span::from_millis(200);
/// Most unsent bytes that KIST may leave in the kernel and in TLS, averaged over its looks at a connection.
const UNSENT: f64 = 300_000.0;

/// A choice of parts: a name, and keys of a system.
type Choice = (&'static str, &'static str);

/// The choices that are combined.
const CHOICES: [&[Choice]; 5] = [
    &[("vanilla", ""), ("pctcp", "transport = \"pctcp\""), ("quic", "transport = \"quic\"")],
    &[("eager", ""), ("kist", "channel-scheduler = \"kist\"")],
    &[("rr", ""), ("ewma", "scheduler = \"ewma\"")],
    &[("windows", ""), ("vegas", "control = \"vegas\""), ("predictor", "control = \"predictor\"")],
    &[
        ("stay", ""),
        ("connection", "switching = \"connection\"\nswitch = { rest = \"500 ms\" }"),
        ("circuit", "switching = \"circuit\"\nswitch = { rest = \"500 ms\" }"),
    ],
];

/// A combination of parts.
struct Combination {
    name: String,
    /// The `[system]` table.
    system: String,
    /// Why the program refuses it.
    refused: Option<String>,
}

/// All combinations, the first choice varying slowest.
fn combinations() -> Vec<Combination> {
    let mut all = vec![(Vec::new(), String::new())];
    for choices in CHOICES {
        let longer = all.iter().flat_map(|(names, keys): &(Vec<&str>, String)| {
            choices
                .iter()
                .map(move |(name, more)| ([&names[..], &[*name]].concat(), format!("{keys}{more}\n")))
        });
        all = longer.collect();
    }
    let combination = |(names, keys): (Vec<&str>, String)| {
        let table = toml::from_str(&keys).expect("the keys above are TOML");
        let refused = SystemConfig::read(&table).err().map(|wrong| wrong.cause);
        let name = names.join("-");
        let clocks = clocks(&keys);
        let system = format!("[system]\nname = \"{name}\"\n{keys}{clocks}");
        Combination { name, system, refused }
    };
    all.into_iter().map(combination).collect()
}

/// The result of one combination.
struct Outcome {
    seconds: f64,
    /// Bytes of each download.
    bytes: u64,
    exact: usize,
    /// Longest time without a byte of a download, in seconds, not counting pauses of this process.
    pause: f64,
    moves: usize,
    /// Sums of the relays' counters.
    counters: Value,
    faults: Vec<String>,
}

/// Runs the subcommand.
pub fn main(arguments: &MatrixArgs) -> Result<ExitCode, Failure> {
    if arguments.bytes.0 == 0 {
        return Err(InputError::new("--bytes", "nothing would be downloaded", "give 1 B or more").into());
    }
    let (refused, running): (Vec<_>, Vec<_>) =
        combinations().into_iter().partition(|combination| combination.refused.is_some());
    let running = choose(running, arguments);
    if running.is_empty() {
        return Err(nothing_to_run(&refused, arguments).into());
    }
    let (mut rows, mut faulty) = (Vec::new(), 0);
    for combination in &running {
        let outcome = run(combination, arguments)?;
        faulty += usize::from(!outcome.faults.is_empty());
        if !arguments.json {
            let Outcome { seconds, exact, pause, moves, faults, .. } = &outcome;
            let all = arguments.circuits;
            let verdict = if faults.is_empty() { "fine".to_owned() } else { faults.join("; ") };
            println!(
                "{:34} {exact} of {all} exact, {seconds:.1} s, longest pause {pause:.1} s, {moves} moves: {verdict}",
                combination.name
            );
        }
        rows.push(json!({ "name": combination.name, "seconds": outcome.seconds, "bytes": outcome.bytes,
            "exact": outcome.exact,
            "longest_pause_s": outcome.pause, "moves": outcome.moves, "counters": outcome.counters,
            "faults": outcome.faults }));
    }
    let reasons: Vec<Value> = refused
        .iter()
        .map(|combination| json!({ "name": combination.name, "reason": combination.refused }))
        .collect();
    if arguments.json {
        println!(
            "{}",
            json!({ "run": running.len(), "faulty": faulty, "refused": refused.len(), "combination": rows,
                "refusal": reasons })
        );
    } else {
        for combination in &refused {
            println!(
                "{:34} refused: {}",
                combination.name,
                combination.refused.as_deref().unwrap_or_default()
            );
        }
        println!("{} combinations run, {faulty} faulty, {} refused", running.len(), refused.len());
    }
    Ok(ExitCode::from(u8::from(faulty > 0)))
}

/// The combinations that the arguments ask for. A sample begins at another place each day.
fn choose(mut running: Vec<Combination>, arguments: &MatrixArgs) -> Vec<Combination> {
    if let Some(text) = &arguments.only {
        running.retain(|combination| combination.name.contains(text.as_str()));
    }
    if let Some(sample) = arguments.sample
        && !running.is_empty()
    {
        let day = (clock::unix() / 86_400) as usize;
        // A stride without a common divisor with the number of combinations takes neighbours from different parts.
        let all = running.len();
        let stride = (all / 3..).find(|stride| gcd(*stride, all) == 1).unwrap_or(1);
        let picked: Vec<usize> = (0..sample.min(all)).map(|n| (day * sample + n) * stride % all).collect();
        let mut number = 0;
        running.retain(|_| {
            number += 1;
            picked.contains(&(number - 1))
        });
    }
    running
}

/// The error if the arguments leave no combination that runs.
fn nothing_to_run(refused: &[Combination], arguments: &MatrixArgs) -> InputError {
    let Some(text) = &arguments.only else {
        return InputError::new("--sample", "0 combinations are no sample", "give 1 or more");
    };
    let same = refused.iter().find(|combination| combination.name.contains(text.as_str()));
    let cause = match same {
        Some(Combination { name, refused, .. }) => {
            format!("{name} is refused: {}", refused.as_deref().unwrap_or_default())
        }
        None => format!("no combination has `{text}` in its name"),
    };
    InputError::new("--only", cause, "give a part such as quic, or a name such as quic-kist-ewma-vegas-stay")
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Runs one combination and checks it. A part without effect gets another chance under longer downloads: queues
/// that Vegas keeps short may not make a circuit move in a short run.
fn run(combination: &Combination, arguments: &MatrixArgs) -> Result<Outcome, Failure> {
    let alone = combination.name.ends_with("circuit") && !combination.name.starts_with("vanilla");
    let mut bytes = if alone { arguments.bytes.0.max(ALONE) } else { arguments.bytes.0 };
    let most = LONGER * bytes;
    loop {
        let mut outcome = run_once(combination, arguments.circuits, bytes)?;
        let missing = missing_effects(&combination.name, &outcome.counters, outcome.moves);
        bytes *= 2;
        if missing.is_empty() || !outcome.faults.is_empty() || bytes > most {
            outcome.faults.extend(missing);
            return Ok(outcome);
        }
    }
}

/// Downloads `bytes` over each circuit at once, and checks bytes, closed circuits and stalls.
fn run_once(combination: &Combination, circuits: u16, bytes: u64) -> Result<Outcome, Failure> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let own = Own::start_on(Stage::unattended("matrix")?, &combination.system, any, &BANDWIDTHS)?;
    let (socks, file) = (own.socks, own.file);
    let begun = clock::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    let watch = thread::spawn(move || pauses_until(&over));
    let users: Vec<_> = (0..circuits)
        .map(|user| {
            thread::spawn(move || {
                thread::sleep(LATER * u32::from(user % 2));
                fetch(user, socks, file, bytes)
            })
        })
        .collect();
    let downloads: Vec<Result<Download, Failure>> =
        users.into_iter().map(|user| user.join().expect("download threads do not panic")).collect();
    let seconds = clock::now().since(begun).as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    let paused = watch.join().expect("the watching thread does not panic");
    let counters = counters(&own)?;
    let moves = own.moves();
    let exact = downloads.iter().flatten().filter(|download| download.exact()).count();
    let longest = downloads.iter().flatten().map(|download| download.pause).fold(0.0, f64::max);
    let pause = longest - longest_paused(&paused, Span::from_secs_f64(longest)).as_secs_f64();
    let mut faults = Vec::new();
    if exact < usize::from(circuits) {
        let why = downloads.iter().find_map(|download| download.as_ref().err().map(ToString::to_string));
        faults.push(format!("{exact} exact: {}", why.unwrap_or_else(|| "short or wrong bytes".into())));
    }
    if pause > STALL_S {
        faults.push(format!("a download stalled for {pause:.1} s"));
    }
    let closed = Ending::ALL.iter().filter(|ending| !ending.is_passed_on());
    for (ending, number) in closed.map(|ending| (ending, counters[ending.counter()].as_f64().unwrap_or(0.0)))
    {
        if number > 0.0 {
            faults.push(format!("{number} circuits closed: {}", ending.about()));
        }
    }
    Ok(Outcome { seconds, bytes, exact, pause, moves, counters, faults })
}

/// Pauses of this process until `is_over`: their beginnings and lengths.
///
/// A virtual machine may stop for seconds, and with it all relays and downloads. Only a thread that wakes too late tells
/// this from a download that stalled.
fn pauses_until(is_over: &AtomicBool) -> Vec<(Time, Span)> {
    let mut pauses = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let begun = clock::now();
        thread::sleep(Duration::from_nanos(LOOK.0));
        let late = clock::now().since(begun) - LOOK;
        if late >= PAUSED {
            pauses.push((begun, late));
        }
    }
    pauses
}

/// The most time that this process was paused in any period of this length.
///
/// A download says how long it waited, but not when.
fn longest_paused(pauses: &[(Time, Span)], period: Span) -> Span {
    let within = |from: usize| {
        let end = pauses[from].0 + period;
        let some = pauses[from..].iter().take_while(|(begun, _)| *begun < end);
        some.fold(Span::ZERO, |sum, (_, length)| sum + *length)
    };
    (0..pauses.len()).map(within).max().unwrap_or(Span::ZERO).min(period)
}

/// Sums the counters of all relays.
fn counters(own: &Own) -> Result<Value, Failure> {
    let mut sums = serde_json::Map::new();
    for relay in &own.relays {
        let status = status_of(relay.status).map_err(Failure::other)?;
        for (key, value) in status.as_object().into_iter().flatten() {
            if let Some(value) = value.as_f64() {
                let sum = sums.get(key).and_then(Value::as_f64).unwrap_or(0.0) + value;
                sums.insert(key.clone(), json!(sum));
            }
        }
    }
    Ok(Value::Object(sums))
}

/// Parts of a combination that had no effect.
fn missing_effects(name: &str, counters: &Value, moves: usize) -> Vec<String> {
    let count = |key: &str| counters[key].as_f64().unwrap_or(0.0);
    let has = |part: &str| name.split('-').any(|own| own == part);
    let mut missing = Vec::new();
    let mut check = |part: &str, shown: bool, otherwise: String| {
        if has(part) && !shown {
            missing.push(otherwise);
        }
    };
    let unsent = count("kernel_unsent_bytes") / count("kernel_inspections").max(1.0);
    check("kist", count("kist_runs") > 0.0, "KIST did not run".into());
    // TCP_INFO does not cover QUIC.
    let looked = has("quic") || count("kernel_inspections") > 0.0;
    check("kist", looked, "KIST did not look at the kernel".into());
    check("kist", unsent < UNSENT, format!("KIST left {unsent:.0} B unsent on average"));
    // With a connection per circuit EWMA orders the connections of KIST's runs.
    let preferred = if has("vanilla") { "repeated_turns" } else { "overtaking_turns" };
    check("ewma", count(preferred) > 0.0, "EWMA did not prefer a circuit".into());
    // No other part may be taken for EWMA.
    check(
        "rr",
        count("repeated_turns") + count("overtaking_turns") == 0.0,
        "round robin preferred a circuit".into(),
    );
    check("predictor", count("solves") > 0.0, "PredicTor did not solve".into());
    check("connection", moves > 0, "no circuit moved to another connection".into());
    check("circuit", moves > 0, "no circuit moved to another circuit".into());
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_runs_or_has_a_reason() {
        let all = combinations();
        assert_eq!(all.len(), 3 * 2 * 2 * 3 * 3);
        let refused: Vec<_> = all.iter().filter(|combination| combination.refused.is_some()).collect();
        // Under PredicTor 9 of 36 run. Under windows or Vegas all 24 run over one connection; of the 24 of each other
        // transport, EWMA without KIST (6) and switching of connections do not run, which leaves 12.
        let with = |text: &str| refused.iter().filter(|one| one.name.contains(text)).count();
        assert_eq!(refused.len(), 108 - 9 - 24 - 12 - 12);
        assert_eq!((with("predictor-connection"), with("predictor-circuit")), (12, 12));
        assert!(all.iter().any(|one| one.name == "vanilla-kist-ewma-vegas-circuit" && one.refused.is_none()));
        assert!(refused.iter().any(|one| one.name == "quic-eager-ewma-vegas-stay"));
    }

    /// EWMA is accepted with every transport. Round robin must not look like it.
    #[test]
    fn ewma_must_show_its_effect_under_each_transport() {
        for (name, counter) in [
            ("vanilla-eager-ewma-windows-stay", "repeated_turns"),
            ("pctcp-kist-ewma-windows-stay", "overtaking_turns"),
            ("quic-kist-ewma-windows-stay", "overtaking_turns"),
        ] {
            let missing = |name: &str, turns: f64| {
                let counters = json!({ "kist_runs": 1.0, "kernel_inspections": 1.0, counter: turns });
                missing_effects(name, &counters, 0)
            };
            assert!(combinations().iter().any(|one| one.name == name && one.refused.is_none()), "{name}");
            assert_eq!(missing(name, 0.0), ["EWMA did not prefer a circuit"]);
            assert_eq!(missing(name, 1.0), [""; 0]);
            assert_eq!(missing(&name.replace("ewma", "rr"), 1.0), ["round robin preferred a circuit"]);
        }
    }

    #[test]
    fn pauses_within_a_period_are_summed() {
        let second = Span::from_secs(1);
        let at = |s: u64| (Time::ZERO + Span::from_secs(s), second * 2);
        assert_eq!(longest_paused(&[], second * 9), Span::ZERO);
        let pauses = [at(1), at(10), at(13)];
        assert_eq!(longest_paused(&pauses, second * 3), second * 2);
        assert_eq!(longest_paused(&pauses, second * 6), second * 4);
        assert_eq!(longest_paused(&pauses, second), second, "no longer than the period");
    }

    #[test]
    fn samples_reach_every_combination() {
        let all = combinations().len();
        let stride = (all / 3..).find(|stride| gcd(*stride, all) == 1).unwrap();
        let reached: std::collections::BTreeSet<usize> = (0..all).map(|n| n * stride % all).collect();
        assert_eq!(reached.len(), all);
    }
}
