//! `tidegate flashflow cycle`: measures a network of relay processes for one period.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_control::flashflow::MeasurementParameters;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span};
use tidegate_data::consensus::{Flags, Identity, RouterStatus};
use tidegate_data::signing::{self, Authority};
use tidegate_kernel::cpu_s_of;
use tidegate_lab::input::InputError;
use tidegate_net::clock;
use tidegate_net::identity::hex;

use super::args::measured_for;
use super::local::{Processes, Scratch, identity, measurer, spawn, write};
use crate::failure::Failure;

/// Measure a network of relays on this machine for one period, every role a process
///
/// Three authorities sign a consensus of relays with different rates, each at its own address. The coordinator
/// starts before the next period begins and follows its schedule. The cycle ends when every relay has a
/// conclusive result, or with the period.
///
/// Example: tidegate flashflow cycle --relays 20 --period "10 min"
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate flashflow cycle")]
pub struct Arguments {
    /// Number of relays
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    relays: u16,
    /// Rate limit of the slowest relay; limits are spread evenly in their logarithm
    #[arg(long, default_value = "1 Mbit/s")]
    slowest: Rate,
    /// Rate limit of the fastest relay
    #[arg(long, default_value = "20 Mbit/s")]
    fastest: Rate,
    /// Time in which every relay is measured
    #[arg(long, default_value = "30 min")]
    period: Span,
    /// Length of a measurement in whole seconds; a slot is 15 s longer
    #[arg(long, default_value = "10 s", value_parser = measured_for)]
    duration: Span,
    /// Sockets to each relay, over all measurers
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    sockets: u16,
    /// Number of measurers
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=10))]
    measurers: u8,
    /// Seed of the relays' limits, their consensus weights and the authorities' keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the outcome as a JSON object
    #[arg(long)]
    json: bool,
}

/// Share of the period's slots that the schedule fills; the rest is for second measurements.
const FILLED: f64 = 0.8;
/// Part of a slot for opening circuits; the coordinator requires it.
const SET_UP: Span = Span::from_secs(15);
/// If the next period begins sooner than this, the coordinator waits for the one after it.
const START: Span = Span::from_secs(5);
/// Range of consensus weight over true rate, high enough that one measurement is conclusive.
const WEIGHTS: (f64, f64) = (1.1, 1.5);

/// A relay of the network.
struct Relay {
    limit: Rate,
    status: RouterStatus,
    fingerprint: String,
    onion: String,
}

/// Measurements of one relay, from the coordinator's events.
#[derive(Default)]
struct Course {
    conclusive: Vec<u64>,
    inconclusive: usize,
    failed: usize,
}

/// Runs the cycle.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let slots = arguments.period.0 / (arguments.duration + SET_UP).0;
    let wrong = |option: &str, cause: &str, cure: &str| Failure::Input(InputError::new(option, cause, cure));
    if slots == 0 {
        return Err(wrong("--period", "is shorter than a slot", "give at least --duration and 15 s"));
    }
    if arguments.fastest == Rate::UNLIMITED {
        return Err(wrong("--fastest", "is unlimited", "give a rate such as \"50 Mbit/s\""));
    }
    if arguments.slowest > arguments.fastest {
        return Err(wrong("--slowest", "is above --fastest", "exchange the two"));
    }
    let scratch = Scratch::new(None)?;
    let directory = &scratch.path;
    let mut processes = Processes(Vec::new());
    let mut random = Seed::root(arguments.seed).random();
    let coordinator = hex(&identity(directory, "coordinator")?.fingerprint());
    let relays = (0..arguments.relays)
        .map(|n| relay(n, arguments, directory, &coordinator, &mut random, &mut processes))
        .collect::<Result<Vec<Relay>, Failure>>()?;
    let authorities = authorities(directory, &relays, &mut random)?;
    let network = network(arguments, slots, &authorities, &relays);
    let config = team(arguments, network, directory, &coordinator, &mut processes)?;

    let period = arguments.period.0 / 1_000_000_000;
    let begin = (clock::unix() + START.0 / 1_000_000_000).div_ceil(period) * period;
    eprintln!("{} relays run; the period begins in {} s", relays.len(), begin - clock::unix());
    // The daemon plans from the calendar, so it must start within the period that it shall follow.
    while clock::unix() < begin {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let events = spawn(&mut processes, "coordinator", &config, &[])?;
    let outcome = follow(events, &relays, arguments.json);
    let processor: f64 = processes.0.iter().filter_map(|child| cpu_s_of(child.id())).sum();
    let file = fs::read_to_string(directory.join("v3bw")).unwrap_or_default();
    report(&outcome, &relays, &file, (clock::unix() - begin, processor), arguments.json);
    Ok(ExitCode::SUCCESS)
}

/// Starts a relay at its own address: relays that share an address are measured together.
fn relay(
    n: u16,
    arguments: &Arguments,
    directory: &Path,
    coordinator: &str,
    random: &mut Random,
    processes: &mut Processes,
) -> Result<Relay, Failure> {
    let name = format!("relay{n}");
    let (low, high) = ((arguments.slowest.0 as f64).ln(), (arguments.fastest.0 as f64).ln());
    let limit = Rate(random.uniform(low, high).exp() as u64);
    let identity = identity(directory, &name)?;
    let file = directory.join(format!("{name}.toml"));
    // 127.0.0.0/8 is loopback: two bytes of the number give every relay a distinct address.
    let [high_byte, low_byte] = (n + 256).to_be_bytes();
    write(
        &file,
        &format!(
            "listen = \"127.{high_byte}.{low_byte}.1:0\"\nidentity = \"{name}.key\"\nrate = \"{limit}\"\n\n\
             [measurement]\nallowed = true\ncoordinators = [\"{coordinator}\"]\nmax-duration = \"120 s\"\n"
        ),
    )?;
    let address = spawn(processes, "relay", &file, &[])?.address()?;
    let address: SocketAddr = address.parse().map_err(Failure::other)?;
    let SocketAddr::V4(address) = address else { unreachable!("it was told an IPv4 address") };
    let keys = identity.relay_public();
    let weight = limit.0 as f64 * random.uniform(WEIGHTS.0, WEIGHTS.1) / 8000.0;
    let status = RouterStatus {
        nickname: name,
        identity: Identity(keys.identity),
        address: *address.ip(),
        or_port: address.port(),
        flags: Flags::from_names(["Fast", "Running", "Valid"]),
        version: None,
        bandwidth: weight as u32,
        unmeasured: false,
        ports: None,
        microdescriptor: None,
    };
    Ok(Relay { limit, status, fingerprint: hex(&identity.fingerprint()), onion: hex(&keys.onion) })
}

/// Writes a consensus and the certificates of the three authorities that signed it.
///
/// Returns the authorities' identities.
fn authorities(directory: &Path, relays: &[Relay], random: &mut Random) -> Result<Vec<String>, Failure> {
    let authorities: Vec<Authority> = (0..3).map(|_| Authority::draw(random)).collect();
    let now = clock::unix();
    let certificates: Vec<String> =
        authorities.iter().map(|authority| authority.certificate(now - 86_400..now + 86_400)).collect();
    write(&directory.join("certificates"), &certificates.concat())?;
    let relays: Vec<RouterStatus> = relays.iter().map(|relay| relay.status.clone()).collect();
    let consensus = signing::consensus(now - 60, &random.bytes(), &relays, &authorities);
    write(&directory.join("consensus"), &consensus)?;
    Ok(authorities.iter().map(|authority| authority.identity().to_string()).collect())
}

/// The coordinator's configuration without the team, and the rate that the team needs.
fn network(arguments: &Arguments, slots: u64, authorities: &[String], relays: &[Relay]) -> (String, Rate) {
    let parameters = MeasurementParameters::default();
    let demand = |relay: &Relay| parameters.demand(Rate(u64::from(relay.status.bandwidth) * 8000)).0;
    let all: u64 = relays.iter().map(demand).sum();
    let largest = relays.iter().map(demand).max().unwrap_or(0);
    // The end of a slot stays empty if the next relay does not fit, so the team has room for one more.
    let team = Rate((all as f64 / (slots as f64 * FILLED)) as u64 + largest);
    let mut config = format!(
        "identity = \"coordinator.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nconsensus = \"consensus\"\n\
         certificates = \"certificates\"\nauthorities = {authorities:?}\nperiod = \"{}\"\nslot = \"{}\"\n\n\
         [parameters]\nduration = \"{}\"\nsockets = {}\n",
        arguments.period,
        arguments.duration + SET_UP,
        arguments.duration,
        arguments.sockets,
    );
    for relay in relays {
        config.push_str(&format!(
            "\n[[relay]]\nnickname = \"{}\"\nfingerprint = \"{}\"\nonion-key = \"{}\"\n",
            relay.status.nickname, relay.fingerprint, relay.onion
        ));
    }
    (config, team)
}

/// Starts the measurers and writes the coordinator's whole configuration.
fn team(
    arguments: &Arguments,
    (mut config, team): (String, Rate),
    directory: &Path,
    coordinator: &str,
    processes: &mut Processes,
) -> Result<PathBuf, Failure> {
    for n in 0..arguments.measurers {
        let capacity = Rate(team.0 / u64::from(arguments.measurers));
        config.push_str(&measurer(processes, directory, n.into(), coordinator, capacity)?);
    }
    let file = directory.join("coordinator.toml");
    write(&file, &config)?;
    Ok(file)
}

/// Results of a cycle.
#[derive(Default)]
struct Outcome {
    courses: BTreeMap<String, Course>,
    most_at_once: usize,
}

/// Follows the coordinator until every relay has a conclusive result, or the next period begins.
fn follow(events: impl Iterator<Item = Value>, relays: &[Relay], quiet: bool) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut now, mut left) = (0usize, relays.len());
    for event in events {
        let name = event["relay"].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str() {
            Some("attempt") => {
                now += 1;
                outcome.most_at_once = outcome.most_at_once.max(now);
            }
            Some("result") => {
                now = now.saturating_sub(1);
                let course = outcome.courses.entry(name.clone()).or_default();
                let estimate = event["estimate_bits_per_s"].as_u64().unwrap_or(0);
                if event["conclusive"] == true {
                    left -= usize::from(course.conclusive.is_empty());
                    course.conclusive.push(estimate);
                } else {
                    course.inconclusive += 1;
                }
                if !quiet {
                    println!("{name}: {}, {left} left", Rate(estimate));
                }
            }
            Some("failure") => {
                now = now.saturating_sub(1);
                if !quiet {
                    println!("{name}: {}", event["cause"].as_str().unwrap_or("failed"));
                }
                outcome.courses.entry(name).or_default().failed += 1;
            }
            // The file is written after the slot, so no measurement of the slot is still running.
            Some("file") if left == 0 => break,
            Some("period") => break,
            _ => {}
        }
    }
    outcome
}

fn report(outcome: &Outcome, relays: &[Relay], file: &str, (took, processor): (u64, f64), json: bool) {
    let of = |relay: &Relay| outcome.courses.get(&relay.status.nickname);
    let count =
        |what: &dyn Fn(&Course) -> bool| relays.iter().filter_map(of).filter(|course| what(course)).count();
    let sum = |what: &dyn Fn(&Course) -> usize| outcome.courses.values().map(what).sum::<usize>();
    let ratio = |relay: &Relay| Some(*of(relay)?.conclusive.last()? as f64 / relay.limit.0 as f64);
    let mut ratios: Vec<f64> = relays.iter().filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let at =
        |share: f64| ratios.get(((ratios.len() as f64 * share) as usize).min(ratios.len().saturating_sub(1)));
    let header = |key: &str| {
        file.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok())
    };
    let object = json!({
        "relays": relays.len(),
        "measured": count(&|course| !course.conclusive.is_empty()),
        "measured_once": count(&|course| (course.conclusive.len(), course.inconclusive) == (1, 0)),
        "inconclusive": sum(&|course| course.inconclusive),
        "failed": sum(&|course| course.failed),
        "most_at_once": outcome.most_at_once,
        "took_s": took,
        "processor_s": processor,
        "estimate_over_limit": { "min": at(0.0), "p05": at(0.05), "median": at(0.5), "p95": at(0.95), "max": at(1.0) },
        "network_relays": header("number_consensus_relays"),
        "percent_eligible": header("percent_eligible_relays"),
        "limits_bits_per_s": relays.iter().map(|relay| relay.limit.0).collect::<Vec<_>>(),
    });
    if json {
        println!("{object}");
        return;
    }
    println!(
        "\n{} of {} relays measured, {} of them once; {} inconclusive, {} failed; up to {} at once; {took} s, {processor:.0} s \
         of processor time",
        object["measured"],
        relays.len(),
        object["measured_once"],
        object["inconclusive"],
        object["failed"],
        outcome.most_at_once
    );
    println!("estimate over limit: {}", object["estimate_over_limit"]);
}
