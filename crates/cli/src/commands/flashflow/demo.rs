//! `tidegate flashflow demo`: a relay, three measurers and a coordinator as processes on loopback.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;

use serde_json::{Value, json};
use tidegate_control::units::{Rate, Span};
use tidegate_kernel::cpu_s_of;
use tidegate_lab::input::InputError;
use tidegate_net::flashflow::background::EXIT;
use tidegate_net::identity::{Identity, hex};
use tidegate_net::ports;

use super::args::{PathArguments, measured_for};
use super::local::{Events, Processes, Scratch, identity, measurer, spawn, spawn_with, write};
use super::roles::Liar;
use crate::failure::Failure;

/// Measure a relay on this machine: all roles as processes on loopback
///
/// Example: tidegate flashflow demo --rate 250Mbit/s
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate flashflow demo --rate 250Mbit/s")]
pub struct Arguments {
    /// Rate limit of the relay (default: unlimited, 20 Mbit/s with --liar)
    #[arg(long)]
    rate: Option<Rate>,
    /// Make the relay lie about its capacity
    #[arg(long)]
    liar: Option<Liar>,
    /// Length of the measurement in whole seconds (the paper uses 30 s)
    #[arg(long, default_value = "10 s", value_parser = measured_for)]
    duration: Span,
    /// Sockets to the relay, over all measurers
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    sockets: u16,
    /// Clients' traffic through the relay (default: a tenth of its rate, 20 Mbit/s if unlimited)
    #[arg(long)]
    background: Option<Rate>,
    /// First guess of the relay's capacity (default: its rate, at most 1 Gbit/s)
    #[arg(long)]
    guess: Option<Rate>,
    #[command(flatten)]
    path: PathArguments,
    /// Print the verdict as a JSON object
    #[arg(long)]
    json: bool,
    /// Keep all files in this directory, which must not exist (default: a temporary directory)
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// Rate at which a lying relay can decrypt.
const LIARS_RATE: Rate = Rate(20_000_000);
const MEASURERS: usize = 3;
/// Capacity that the coordinator assumes for the team, as much as loopback carries.
const TEAM: Rate = Rate(60_000_000_000);

/// Processes of the demo and what they need to know of each other.
struct Team<'a> {
    arguments: &'a Arguments,
    rate: Rate,
    directory: &'a Path,
    processes: Processes,
    /// The coordinator's fingerprint.
    coordinator: String,
}

/// The relay under test.
struct Target {
    events: Events,
    /// Listening address.
    address: String,
    fingerprint: String,
    onion: String,
}

impl Team<'_> {
    /// Starts the relay with the exit of the clients' circuits as neighbour.
    fn relay(&mut self, exit: &Identity, exit_address: SocketAddr) -> Result<Target, Failure> {
        let identity = identity(self.directory, "relay")?;
        let file = self.directory.join("relay.toml");
        write(
            &file,
            &format!(
                "listen = \"127.0.0.1:0\"\nidentity = \"relay.key\"\nrate = \"{}\"\n\n[measurement]\nallowed = true\n\
                 coordinators = [\"{}\"]\nmax-duration = \"{} s\"\n\n\
                 [[neighbour]]\nnumber = {}\naddress = \"{exit_address}\"\nfingerprint = \"{}\"\n",
                self.rate,
                self.coordinator,
                (seconds(self.arguments) + 30).clamp(45, 120),
                EXIT.0,
                hex(&exit.fingerprint())
            ),
        )?;
        // The relay's deadline covers circuits and measurement (proposal 316 allows 45 s by default).
        let lie: &[&str] = if self.arguments.liar.is_some() { &["--liar", "hold"] } else { &[] };
        let mut events = spawn(&mut self.processes, "relay", &file, lie)?;
        Ok(Target {
            address: events.address()?,
            events,
            fingerprint: hex(&identity.fingerprint()),
            onion: hex(&identity.relay_public().onion),
        })
    }

    /// Address at which measurers reach the relay: the delay process, if the path has a delay.
    fn path_to(&mut self, relay: &Target) -> Result<String, Failure> {
        let PathArguments { delay, jitter, seed } = self.arguments.path;
        if (delay, jitter) == (Span::ZERO, Span::ZERO) {
            return Ok(relay.address.clone());
        }
        let (delay, jitter, seed) = (delay.to_string(), jitter.to_string(), seed.to_string());
        let path = ["--delay", &delay, "--jitter", &jitter, "--seed", &seed, "--to", &relay.address];
        spawn_with(&mut self.processes, "delay", &path)?.address()
    }

    /// Sends clients' traffic through the relay and waits until it flows.
    fn background(&mut self, relay: &Target, exit_address: SocketAddr) -> Result<(), Failure> {
        let rate = self.arguments.background.unwrap_or(match self.rate {
            // Background would reduce what the lying relay can return.
            _ if self.arguments.liar.is_some() => Rate(0),
            Rate::UNLIMITED => Rate(20_000_000),
            limit => Rate(limit.0 / 10),
        });
        if rate.0 == 0 {
            return Ok(());
        }
        let file = self.directory.join("background.toml");
        let Target { address, fingerprint, onion, .. } = relay;
        write(
            &file,
            &format!(
                "listen = \"{exit_address}\"\nidentity = \"exit.key\"\nrate = \"{rate}\"\ncircuits = 4\n\n\
                 [target]\naddress = \"{address}\"\nfingerprint = \"{fingerprint}\"\nonion-key = \"{onion}\"\n"
            ),
        )?;
        let mut events = spawn(&mut self.processes, "background", &file, &[])?;
        events.address()?;
        events.find(|event| event["delivered_bits_per_s"].as_u64() > Some(0));
        std::thread::spawn(move || events.for_each(drop));
        Ok(())
    }

    /// Starts the measurers.
    ///
    /// Returns the coordinator's configuration, which names them and the relay.
    fn measurers(&mut self, relay: &Target, measured_at: &str) -> Result<PathBuf, Failure> {
        let guess = self.arguments.guess.unwrap_or(self.rate.min(Rate(1_000_000_000)));
        let mut config = format!(
            "identity = \"coordinator.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nfirst-guess = \"{guess}\"\n\
             slot = \"{} s\"\n\n[parameters]\nduration = \"{}\"\nsockets = {}\n\n\
             [[relay]]\nnickname = \"target\"\naddress = \"{measured_at}\"\nfingerprint = \"{}\"\n\
             onion-key = \"{}\"\n",
            seconds(self.arguments) + 15,
            self.arguments.duration,
            self.arguments.sockets,
            relay.fingerprint,
            relay.onion
        );
        for n in 0..MEASURERS {
            let capacity = Rate(TEAM.0 / MEASURERS as u64);
            config.push_str(&measurer(&mut self.processes, self.directory, n, &self.coordinator, capacity)?);
            config.push_str("source = \"127.0.0.1\"\n");
        }
        let file = self.directory.join("coordinator.toml");
        write(&file, &config)?;
        Ok(file)
    }
}

/// Length of the measurement in seconds.
fn seconds(arguments: &Arguments) -> u64 {
    arguments.duration.0 / 1_000_000_000
}

/// Runs the demo.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let liar = arguments.liar.is_some();
    let rate = arguments.rate.unwrap_or(if liar { LIARS_RATE } else { Rate::UNLIMITED });
    if liar && rate == Rate::UNLIMITED {
        let cure = "give the rate at which the lying relay can decrypt, such as \"20 Mbit/s\"";
        return Err(Failure::Input(InputError::new("--rate", "is unlimited with --liar", cure)));
    }
    let scratch = Scratch::new(arguments.keep.as_deref())?;
    let directory = &scratch.path;
    let coordinator = hex(&identity(directory, "coordinator")?.fingerprint());
    let exit = identity(directory, "exit")?;
    let exit_address = ports::free().map_err(Failure::other)?;
    let mut team = Team { arguments, rate, directory, processes: Processes(Vec::new()), coordinator };
    let relay = team.relay(&exit, exit_address)?;
    let measured_at = team.path_to(&relay)?;
    team.background(&relay, exit_address)?;
    let file = team.measurers(&relay, &measured_at)?;

    // The relay's own count serves as the true capacity of an unlimited relay.
    let (tell, own_count) = mpsc::channel();
    std::thread::spawn(move || relay.events.for_each(|event| drop(tell.send(event))));
    let events = spawn(&mut team.processes, "coordinator", &file, &["--once"])?;
    let relay_process = team.processes.0[0].id();
    let followed = follow(events, arguments.json, relay_process);
    let own_count: Vec<Value> = own_count.try_iter().collect();
    if let (true, None, Some(failure)) = (liar, &followed.result, &followed.failure) {
        let refused = json!({ "estimate_bits_per_s": 0, "truth_bits_per_s": rate.0, "refused": failure });
        println!("{}", if arguments.json { refused.to_string() } else { format!("refused: {failure}") });
        return Ok(ExitCode::SUCCESS);
    }
    let truth = truth(rate, &own_count, followed.seconds.len());
    report(followed, rate, truth, directory, arguments)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the estimate and the true capacity.
fn report(
    followed: Followed,
    rate: Rate,
    truth: u64,
    directory: &Path,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let rate_of_processor = followed.bits_per_cpu_s();
    let no_result = || Failure::Other(followed.failure.unwrap_or("no measurement completed".into()));
    let result = followed.result.ok_or_else(no_result)?;
    let text = fs::read_to_string(directory.join("v3bw")).map_err(Failure::other)?;
    let keep = arguments.keep.is_some();
    // The JSON object is the input of the runner `flashflow-loopback`.
    if arguments.json {
        let mut object = json!({
            "estimate_bits_per_s": result["estimate_bits_per_s"].as_u64().unwrap_or(0),
            "truth_bits_per_s": truth,
            "conclusive": result["conclusive"],
            "per_second": followed.seconds,
            "low_bits_per_s": result["low_bits_per_s"],
            "high_bits_per_s": result["high_bits_per_s"],
            "allocated_bits_per_s": result["allocated_bits_per_s"],
            "cells_checked": result["cells_checked"],
            "relay_bits_per_cpu_s": rate_of_processor,
            "bandwidth_file": text,
        });
        if keep {
            object["directory"] = json!(directory);
        }
        println!("{object}");
        return Ok(());
    }
    println!("\n{}", text.trim_end());
    let conclusive = result["conclusive"] == true;
    let low = mbit(&result["low_bits_per_s"]);
    let range = if conclusive {
        format!("conclusive (true capacity between {low} and {})", mbit(&result["high_bits_per_s"]))
    } else {
        format!("NOT conclusive (true capacity above {low}): the measurers sent too little")
    };
    println!(
        "\nestimate {}, {range}; the relay's {} {}",
        mbit(&result["estimate_bits_per_s"]),
        truth_kind(rate),
        mbit(&json!(truth)),
    );
    if conclusive && result["high_bits_per_s"].as_u64().is_some_and(|high| high < truth) {
        println!(
            "the range is too low: relays of less than about 13 Mbit/s with users are underestimated (docs/flashflow.md)"
        );
    }
    if keep {
        println!("everything is in {}", directory.display());
    }
    Ok(())
}

fn truth_kind(rate: Rate) -> &'static str {
    if rate == Rate::UNLIMITED { "own count says" } else { "limit is" }
}

fn mbit(value: &Value) -> String {
    format!("{:.1} Mbit/s", value.as_f64().unwrap_or(0.0) / 1e6)
}

/// True capacity: the relay's limit, or its own count without a limit.
///
/// The count is the median of the last `measured` seconds under load: earlier attempts had smaller teams.
fn truth(rate: Rate, own_count: &[Value], measured: usize) -> u64 {
    if rate != Rate::UNLIMITED {
        return rate.0;
    }
    let sum = |event: &Value| -> u64 {
        ["measurement_bits_per_s", "background_bits_per_s"].iter().filter_map(|key| event[key].as_u64()).sum()
    };
    let loaded = |event: &&Value| event["measurement_bits_per_s"].as_u64().is_some_and(|bits| bits > 0);
    let mut seconds: Vec<u64> = own_count.iter().rev().filter(loaded).take(measured).map(sum).collect();
    seconds.sort_unstable();
    seconds.get(seconds.len() / 2).copied().unwrap_or(0)
}

struct Followed {
    result: Option<Value>,
    seconds: Vec<Value>,
    /// The relay's processor time at the end of each second, in seconds.
    processor: Vec<f64>,
    failure: Option<String>,
}

impl Followed {
    /// Bits that the relay forwarded per second of processor time, without the first second.
    fn bits_per_cpu_s(&self) -> Option<u64> {
        let bits = self.seconds.iter().skip(1).filter_map(|second| second["sum_bits_per_s"].as_f64());
        let time = self.processor.last()? - self.processor.first()?;
        (time > 0.0).then(|| (bits.sum::<f64>() / time) as u64)
    }
}

/// Prints the coordinator's events and keeps those of the last measurement.
fn follow(events: Events, quiet: bool, relay: u32) -> Followed {
    let mut followed = Followed { result: None, seconds: Vec::new(), processor: Vec::new(), failure: None };
    for event in events {
        let line = match event["event"].as_str() {
            // Only the seconds of the last attempt belong to the result.
            Some("attempt") => {
                followed.seconds.clear();
                followed.processor.clear();
                format!(
                    "measuring with {} of measurers' capacity (guess {})",
                    mbit(&event["allocated_bits_per_s"]),
                    mbit(&event["guess_bits_per_s"])
                )
            }
            Some("second") => {
                let line = format!(
                    "{:>4} s   measurement {:>14}   background {:>13}   sum {:>14}",
                    event["second"].as_u64().unwrap_or(0),
                    mbit(&event["measurement_bits_per_s"]),
                    mbit(&event["background_bits_per_s"]),
                    mbit(&event["sum_bits_per_s"])
                );
                followed.seconds.push(event);
                followed.processor.extend(cpu_s_of(relay));
                line
            }
            Some("result") => {
                let conclusive = event["conclusive"] == true;
                followed.result = Some(event);
                if conclusive {
                    continue;
                }
                "not conclusive: the relay may be faster than what was sent".into()
            }
            Some("failure") => {
                let message = format!("the measurement failed: {}", event["cause"].as_str().unwrap_or("?"));
                followed.failure = Some(message.clone());
                message
            }
            _ => continue,
        };
        if !quiet {
            println!("{line}");
        }
    }
    followed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_truth_is_of_the_last_attempt() {
        let second = |bits: u64| json!({ "measurement_bits_per_s": bits, "background_bits_per_s": 1 });
        let counts: Vec<Value> = [0, 300, 300, 300, 0, 500, 700, 600, 0].map(second).into();
        assert_eq!(truth(Rate::UNLIMITED, &counts, 3), 601);
        assert_eq!(truth(Rate(250), &counts, 3), 250, "the limit");
        assert_eq!(truth(Rate::UNLIMITED, &[], 3), 0);
    }
}
