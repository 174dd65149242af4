//! The gate that counts: work per delivered cell of small workloads against the recorded table, `counts.txt`.
//!
//! `cargo test` runs the workloads and fails if a count of the engine is more than 3 % above the table. These counts
//! depend on the code alone. A change that raises one has to change the table in the same commit.
//! `make counts` also counts instructions with valgrind, and `make counts RECORD=1` writes the table.

mod networks;

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::control::Control;
use tidegate_proto::links::kist::KistParameters;
use tidegate_proto::registry::CONTROLS;
use tidegate_proto::scheduler::Ewma;
use tidegate_sim::observe::{Observation, Recorder};
use tidegate_sim::plan::{Path as PathPlan, PathTable, Plan, QueuePlan, System, Traffic, Transport};
use tidegate_sim::tcp::Fidelity;
use tidegate_sim::world::{self, RunEnd};

/// Growth of a count that needs a new table.
const TOLERANCE: f64 = 0.03;

/// A workload: its name in the table, a network, and a system.
type Workload = (&'static str, fn() -> Plan, fn() -> System);

const WORKLOADS: [Workload; 10] = [
    ("bottleneck", || networks::bottleneck(Span::from_secs(60)), System::default),
    ("own-links", || networks::own_links(None, Span::from_millis(4_000)), System::default),
    (
        "buckets",
        || networks::own_links(Some(networks::LARGE_BUCKET), Span::from_millis(4_000)),
        System::default,
    ),
    ("100x1000", || networks::random(100, 1_000, Span::from_millis(2_000)), System::default),
    ("tor", || networks::random(100, 1_000, Span::from_millis(2_000)), tor),
    ("lossy-web", lossy_web, System::default),
    ("own-links-train", || networks::own_links(None, Span::from_millis(4_000)), trains),
    ("100x1000-train", || networks::random(100, 1_000, Span::from_millis(2_000)), trains),
    ("quic", || networks::own_links(None, Span::from_millis(4_000)), quic),
    ("predictor", || networks::random(100, 1_000, Span::from_millis(2_000)), predictor),
];

/// Short downloads, one after the other, over CoDel links and paths with loss and jitter.
fn lossy_web() -> Plan {
    let mut plan = networks::own_links(None, Span::from_secs(10));
    let codel =
        QueuePlan::CoDel { target: Span::from_millis(5), interval: Span::from_millis(100), packets: 1_000 };
    for host in &mut plan.hosts {
        (host.up.queue, host.down.queue) = (codel, codel);
        host.up.rate = host.up.rate.min(Rate(20_000_000));
    }
    let path = PathPlan { delay: Span::from_millis(40), jitter: Span::from_millis(2), loss: 0.002 };
    plan.paths = PathTable::uniform(1, path);
    for user in &mut plan.users {
        if let Traffic::Fetch { requests, .. } = &mut user.traffic {
            requests.iter_mut().for_each(|request| request.bytes = 100_000);
        }
    }
    plan
}

fn trains() -> System {
    let mut system = System::default();
    system.tcp.fidelity = Fidelity::Train;
    system
}

fn quic() -> System {
    System { transport: Transport::Quic, ..System::default() }
}

/// The scheduling and congestion control of today's tor.
fn tor() -> System {
    let kist = Some(KistParameters::default());
    let scheduler = Arc::new(Ewma::default());
    System { scheduler, kist, control: control("vegas"), ..System::default() }
}

fn predictor() -> System {
    System { control: control("predictor"), ..System::default() }
}

fn control(name: &str) -> Arc<dyn Control> {
    CONTROLS.iter().find(|part| part.name == name).expect("it is registered").by_default()
}

/// Work per delivered cell. Instructions are counted only where valgrind is asked to.
#[derive(Clone, Debug)]
struct Counts {
    workload: String,
    events: f64,
    filings: f64,
    instructions: Option<f64>,
}

/// A recorder that ignores all observations.
struct Ignore;

impl Recorder for Ignore {
    fn record(&mut self, _: Time, _: &Observation) {}
}

fn run((_, plan, system): &Workload) -> RunEnd {
    world::run(&plan(), &system(), Seed::root(1), &mut Ignore, &mut |_| ControlFlow::Continue(()))
}

fn count(workload: &Workload, instructions: bool) -> Counts {
    let end = run(workload);
    let per_cell = |count: u64| count as f64 / end.cells_delivered.max(1) as f64;
    Counts {
        workload: workload.0.into(),
        events: per_cell(end.events),
        filings: per_cell(end.filings),
        instructions: instructions.then(|| per_cell(count_instructions(workload.0))),
    }
}

/// Instructions of this program when it runs one workload, its start included.
fn count_instructions(workload: &str) -> u64 {
    let program = std::env::current_exe().expect("a running program has a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .arg(workload)
        .output()
        .expect("`make counts` needs valgrind; install it");
    let report = String::from_utf8_lossy(&output.stderr);
    let count = report.split("Collected : ").nth(1).and_then(|rest| rest.split_whitespace().next());
    count
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("valgrind counted nothing:\n{report}"))
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/counts.txt")
}

/// The recorded counts, by workload.
fn read_table(text: &str) -> Vec<Counts> {
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let row = |line: &str| {
        let mut cells = line.split_whitespace();
        let workload = cells.next()?.to_string();
        let mut number = || cells.next()?.parse().ok();
        Some(Counts { workload, events: number()?, filings: number()?, instructions: number() })
    };
    rows.map(|line| row(line).unwrap_or_else(|| panic!("counts.txt: `{line}` is not a row"))).collect()
}

fn write_table(rows: &[Counts]) -> String {
    let mut text = String::from(
        "# Work per delivered cell, written by `make counts RECORD=1`; benches/counts.rs compares.\n\
         # Instructions depend on the compiler and the machine, and are compared only by `make counts`.\n",
    );
    let _ = writeln!(text, "# {:<14} {:>8} {:>8} {:>13}", "workload", "events", "filings", "instructions");
    for Counts { workload, events, filings, instructions } in rows {
        let instructions = instructions.map_or("-".into(), |count| format!("{count:.0}"));
        let _ = writeln!(text, "{workload:<16} {events:>8.4} {filings:>8.4} {instructions:>13}");
    }
    text
}

/// Counts that grew beyond the tolerance, one message each.
fn growth(now: &Counts, before: &Counts) -> Vec<String> {
    let pairs = [
        ("events", Some(now.events), Some(before.events)),
        ("filings", Some(now.filings), Some(before.filings)),
        ("instructions", now.instructions, before.instructions),
    ];
    let grown = pairs.into_iter().filter_map(|(name, now, before)| Some((name, now?, before?)));
    let grown = grown.filter(|(_, now, before)| *now > before * (1.0 + TOLERANCE));
    let message = |(name, after, before): (&str, f64, f64)| {
        let percent = 100.0 * (after / before - 1.0);
        format!("{}: {name} per cell grew by {percent:.1} %, from {before:.4} to {after:.4}", now.workload)
    };
    grown.map(message).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(workload) = WORKLOADS.iter().find(|(name, ..)| arguments.iter().any(|a| a == name)) {
        run(workload);
        return ExitCode::SUCCESS;
    }
    let instructions = networks::is_measured();
    let counts: Vec<Counts> = WORKLOADS.iter().map(|workload| count(workload, instructions)).collect();
    print!("{}", write_table(&counts));
    if arguments.iter().any(|argument| argument == "--record") {
        std::fs::write(table(), write_table(&counts)).expect("the table can be written");
        return ExitCode::SUCCESS;
    }
    let recorded = read_table(&std::fs::read_to_string(table()).expect("the table is there"));
    let find = |now: &Counts| recorded.iter().find(|row| row.workload == now.workload).cloned();
    let grown: Vec<String> = counts
        .iter()
        .flat_map(|now| match find(now) {
            Some(before) => growth(now, &before),
            None => vec![format!("{}: no row in the table", now.workload)],
        })
        .collect();
    if grown.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("{}", grown.join("\n"));
    eprintln!("If the growth is worth it, run `make counts RECORD=1` and say why in the commit.");
    if instructions {
        eprintln!(
            "Instructions depend on the compiler and the machine: count the commit that wrote the table here, too."
        );
    }
    ExitCode::FAILURE
}
