//! `tidegate flashflow schedule`: a coordinator's schedule, or the time that a team needs for a network.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_control::flashflow::MeasurementParameters;
use tidegate_control::flashflow::bandwidth_file::relay_name;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_data::document::DataError;
use tidegate_data::formats::{self, CONSENSUSES, HOURLY_RELAYS, SPEED_TESTS};
use tidegate_data::{consensus, speed_test};
use tidegate_lab::flashflow::{Deployment, Member};
use tidegate_lab::input::InputError;
use tidegate_net::clock;
use tidegate_net::flashflow::{CoordinatorConfig, network, plan, store};
use tidegate_net::identity::Identity;

use super::args::read_config;
use crate::failure::Failure;

/// How far ahead the schedule of a coordinator can be printed, in periods: the shortest last some minutes.
const PERIODS_AHEAD: u64 = 1_000_000;

/// Print a coordinator's schedule, or how long a team needs for a whole network; sends nothing
///
/// Example: tidegate flashflow schedule --consensus FILE --team "3 x 1 Gbit/s"
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate flashflow schedule --config coordinator.toml")]
pub struct Arguments {
    #[command(flatten)]
    network: Network,
    /// With --config: number of the period (default: the current one)
    #[arg(long, conflicts_with_all = ["consensus", "speed_test"])]
    period: Option<u64>,
    /// Capacity of the team: a sum such as "3 x 1 Gbit/s" or "1 Gbit/s + 2 x 500 Mbit/s"
    #[arg(long, default_value = "3 x 1 Gbit/s", value_parser = team, conflicts_with = "config")]
    team: Rate,
    /// With --consensus: capacities from a `tornettools stage` file (default, and for relays not in the file:
    /// consensus weights)
    #[arg(long, conflicts_with_all = ["config", "speed_test"])]
    capacities: Option<PathBuf>,
    /// Team capacity per relay capacity (default: 2.953, from the paper's formula; its text says 2.84)
    #[arg(long, conflicts_with = "config")]
    factor: Option<f64>,
    /// Length of a slot
    #[arg(long, default_value = "30 s", conflicts_with = "config")]
    slot: Span,
    /// Time in which every relay is measured
    #[arg(long, default_value = "24 h", conflicts_with = "config")]
    every: Span,
    /// Seed of the random schedules, in place of the coordinators' secrets
    #[arg(long, default_value_t = 1, conflicts_with = "config")]
    seed: u64,
    /// Share of measurements that fail, from 0 to 1
    #[arg(long, default_value_t = 0.0, conflicts_with = "config")]
    failures: f64,
    /// Number of coordinators, each with such a team
    #[arg(long, default_value_t = 1, conflicts_with = "config")]
    coordinators: usize,
    /// Hourly sets of relays (`relay-churn-*.json`), to compute how long new relays wait
    #[arg(long, conflicts_with = "config")]
    new_relays: Option<PathBuf>,
    /// Guess for new relays (default: the 75th percentile of the network)
    #[arg(long, requires = "new_relays")]
    new_guess: Option<Rate>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Source of the relays.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Network {
    /// Schedule of the coordinator with this configuration
    #[arg(long)]
    config: Option<PathBuf>,
    /// Network of this consensus, which may be compressed
    #[arg(long)]
    consensus: Option<PathBuf>,
    /// Network of the August 2019 speed test (`speedtest.diffs.json`): the guess is the bandwidth advertised
    /// before, the capacity the larger of before and after
    #[arg(long)]
    speed_test: Option<PathBuf>,
}

/// Parses a sum of `N x RATE` and `RATE`.
fn team(text: &str) -> Result<Rate, String> {
    let mut sum = 0u64;
    for part in text.split('+') {
        let (count, rate) = match part.split_once('x') {
            Some((count, rate)) => {
                (count.trim().parse::<u64>().map_err(|_| format!("`{count}` is not a number"))?, rate)
            }
            None => (1, part),
        };
        let rate: Rate =
            rate.parse().map_err(|error: tidegate_control::units::UnitError| error.to_string())?;
        if count == 0 || rate.0 == 0 || rate == Rate::UNLIMITED {
            return Err("a measurer needs a rate above zero".into());
        }
        sum = count
            .checked_mul(rate.0)
            .and_then(|rates| sum.checked_add(rates))
            .ok_or("the sum is too large")?;
    }
    Ok(Rate(sum))
}

fn input(error: DataError) -> Failure {
    let (place, at) = (error.file.clone(), error.line.map_or(String::new(), |line| format!("line {line}: ")));
    Failure::Input(InputError::new(place, format!("{at}{}", error.cause), error.cure))
}

fn wrong(argument: &str, cause: &str, cure: &str) -> Failure {
    Failure::Input(InputError::new(argument, cause, cure))
}

/// Runs the subcommand.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.network {
        Network { config: Some(file), .. } => of_coordinator(file, arguments)?,
        Network { consensus: Some(file), .. } => {
            let (network, from) = of_consensus(file, arguments.capacities.as_deref())?;
            of_network(&network, from, arguments)?;
        }
        Network { speed_test: Some(file), .. } => {
            let relays = SPEED_TESTS.open(file).map_err(input)?;
            let rate = |bytes: u64| Rate(bytes.saturating_mul(8));
            let member = |(id, seen): (&consensus::Identity, &speed_test::Advertised)| Member {
                id: id.0,
                address: None,
                guess: rate(seen.before.max(seen.after)),
                capacity: rate(seen.before.max(seen.after)),
            };
            let network: Vec<Member> = relays.iter().map(member).collect();
            let stale = |(member, seen): (&Member, &speed_test::Advertised)| Member {
                guess: rate(seen.before),
                ..*member
            };
            // Section 7: what it costs if the guesses come from before the speed test.
            let before: Vec<Member> = network.iter().zip(relays.values()).map(stale).collect();
            let from = "the larger of what relays advertised before and after the speed test";
            let mut object = of(&network, from, arguments)?;
            let repeated = deployment(arguments)?.repeated(&before, arguments.failures);
            object["with_guesses_from_before"] = json!({ "attempts": repeated.attempts, "slots": repeated.slots,
                "relays_not_concluded": repeated.open });
            print(&object, arguments.json);
        }
        Network { .. } => unreachable!("one of them is required"),
    }
    Ok(ExitCode::SUCCESS)
}

fn of_consensus(file: &Path, capacities: Option<&Path>) -> Result<(Vec<Member>, &'static str), Failure> {
    let network = CONSENSUSES.open(file).map_err(input)?;
    let known = match capacities {
        Some(file) => formats::open_relays(file).map_err(input)?,
        None => Default::default(),
    };
    let from = match capacities {
        Some(_) => "observed bandwidth; where there is none, weights as if they were capacities",
        None => "weights as if they were capacities",
    };
    let member = |relay: &consensus::RouterStatus| {
        let seen =
            known.get(&relay.identity).map(|seen| seen.capacity_bytes_per_s.min(seen.rate_bytes_per_s));
        let capacity = Rate(seen.unwrap_or(u64::from(relay.bandwidth) * 1000).saturating_mul(8));
        Member { id: relay.identity.0, address: Some(relay.address), guess: capacity, capacity }
    };
    // Relays that are listed but not running are not measured.
    let running = network.relays.iter().filter(|relay| relay.flags.running());
    Ok((running.map(member).collect(), from))
}

fn deployment(arguments: &Arguments) -> Result<Deployment, Failure> {
    let mut parameters = MeasurementParameters::default();
    if let Some(factor) = arguments.factor {
        if !(1.0..=1000.0).contains(&factor) {
            return Err(wrong("--factor", "is not between 1 and 1000", "the paper's formula gives 2.953"));
        }
        // The excess factor is proportional to the multiplier.
        parameters.multiplier *= factor / parameters.excess_factor();
    }
    let (slot, period) = (arguments.slot, arguments.every);
    if slot < Span::from_secs(1) || slot > period || period.0 / slot.0 > 1_000_000 {
        return Err(wrong(
            "--slot",
            "does not cut --every into 1 to 1,000,000 slots",
            "give \"30 s\" and \"24 h\"",
        ));
    }
    if !(0.0..=1.0).contains(&arguments.failures) || !(1..=16).contains(&arguments.coordinators) {
        return Err(wrong(
            "--failures, --coordinators",
            "out of range",
            "give a share from 0 to 1, and 1 to 16",
        ));
    }
    Ok(Deployment { team: arguments.team, parameters, slot, period, seed: Seed::root(arguments.seed) })
}

fn of_network(network: &[Member], from: &str, arguments: &Arguments) -> Result<(), Failure> {
    print(&of(network, from, arguments)?, arguments.json);
    Ok(())
}

fn of(network: &[Member], from: &str, arguments: &Arguments) -> Result<Value, Failure> {
    let deployment = deployment(arguments)?;
    let seconds = |span: Span| span.0 / 1_000_000_000;
    let slots = deployment.fastest(network);
    let drawn = deployment.drawn(network);
    let sum: u64 = network.iter().fold(0, |sum, relay| sum.saturating_add(relay.capacity.0));
    if sum == 0 {
        let cure = "give a network whose relays have bandwidths";
        return Err(wrong("the network", "has no running relay with a bandwidth", cure));
    }
    // Such a relay gets the whole team, and its result cannot be conclusive.
    let beyond = |relay: &&Member| deployment.parameters.demand(relay.guess) > deployment.team;
    let mut object = json!({
        "slots": slots,
        "slot_s": seconds(deployment.slot),
        "hours": slots as f64 * deployment.slot.as_secs_f64() / 3600.0,
        "relays": network.len(),
        "capacity_bits_per_s": sum,
        "capacities_from": from,
        "team_bits_per_s": deployment.team.0,
        "factor": deployment.parameters.excess_factor(),
        "relays_beyond_the_team": network.iter().filter(beyond).count(),
        "random": { "period_s": seconds(deployment.period), "slots": drawn.slots, "used": drawn.used,
            "placed": drawn.placed, "unplaced": drawn.unplaced, "fewest_choices": drawn.fewest_choices },
    });
    if arguments.failures > 0.0 {
        let repeated = deployment.repeated(network, arguments.failures);
        object["failures"] = json!({ "share": arguments.failures, "attempts": repeated.attempts,
            "slots": repeated.slots, "relays_not_concluded": repeated.open });
    }
    if arguments.coordinators > 1 {
        let several = deployment.several(network, arguments.coordinators);
        object["several"] = json!({ "coordinators": several.coordinators,
            "alone": { "meetings": several.meetings, "unplaced": several.unplaced.0 },
            "shared": { "meetings": 0, "unplaced": several.unplaced.1 } });
    }
    if let Some(file) = &arguments.new_relays {
        let hours = HOURLY_RELAYS.open(file).map_err(input)?;
        let hours =
            hours.into_iter().map(|(hour, ids)| (hour, ids.into_iter().map(|id| id.0).collect())).collect();
        let guess = arguments.new_guess.or_else(|| deployment.guess_for_new(network)).unwrap_or(Rate(0));
        let new = deployment.newcomers(network, &hours, guess);
        object["new_relays"] = json!({ "guess_bits_per_s": new.guess.0, "consensuses": new.consensuses,
            "median": new.new.0, "most": new.new.1, "median_wait_s": seconds(new.wait.0),
            "longest_wait_s": seconds(new.wait.1), "unplaced": new.unplaced });
    }
    Ok(object)
}

fn print(object: &Value, as_json: bool) {
    if as_json {
        println!("{object}");
        return;
    }
    print!("{}", described(object));
}

/// The answer in sentences.
fn described(object: &Value) -> String {
    let mut text = String::new();
    let mut say = |line: String| text.push_str(&(line + "\n"));
    let gbit = |key: &str| object[key].as_f64().unwrap_or(0.0) / 1e9;
    say(format!(
        "{} relays with {:.1} Gbit/s ({})",
        object["relays"],
        gbit("capacity_bits_per_s"),
        object["capacities_from"].as_str().unwrap_or("")
    ));
    say(format!(
        "a team of {}, factor {:.3}: {} slots of {} s, {:.1} h, without a random schedule",
        Rate(object["team_bits_per_s"].as_u64().unwrap_or(0)),
        object["factor"].as_f64().unwrap_or(0.0),
        object["slots"],
        object["slot_s"],
        object["hours"].as_f64().unwrap_or(0.0)
    ));
    if object["relays_beyond_the_team"] != 0 {
        say(format!(
            "{} of {} relays need more than the whole team: each gets it for a slot, and its result is not conclusive",
            object["relays_beyond_the_team"], object["relays"]
        ));
    }
    let random = &object["random"];
    say(format!(
        "random schedule: {} relays in {} of {} slots, {} without room; each drawn from at least {} slots",
        random["placed"], random["used"], random["slots"], random["unplaced"], random["fewest_choices"]
    ));
    let tried = |part: &Value| {
        format!(
            "{} attempts in {} slots, {} relays not concluded",
            part["attempts"], part["slots"], part["relays_not_concluded"]
        )
    };
    if let Some(part) = object.get("with_guesses_from_before") {
        say(format!("guessed from before the speed test: {}", tried(part)));
    }
    if let Some(part) = object.get("failures") {
        let share = 100.0 * part["share"].as_f64().unwrap_or(0.0);
        say(format!("if {share} % of measurements fail: {}", tried(part)));
    }
    if let Some(part) = object.get("several") {
        say(format!(
            "{} coordinators, if each draws alone: {} times two measure a relay in the same slot, {} relays without room; \
             if they share a secret: {} and {}",
            part["coordinators"],
            part["alone"]["meetings"],
            part["alone"]["unplaced"],
            part["shared"]["meetings"],
            part["shared"]["unplaced"]
        ));
    }
    if let Some(part) = object.get("new_relays") {
        say(format!(
            "new relays, guessed to have {}: {} in the median of {} consensuses, at most {}; they wait {} s in the median, \
             at most {} s, {} without room",
            Rate(part["guess_bits_per_s"].as_u64().unwrap_or(0)),
            part["median"],
            part["consensuses"],
            part["most"],
            part["median_wait_s"],
            part["longest_wait_s"],
            part["unplaced"]
        ));
    }
    text
}

/// Prints the schedule of one coordinator's period.
fn of_coordinator(file: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let mut config: CoordinatorConfig = read_config(file)?;
    let network = network(&mut config, clock::unix()).map_err(|cause| Failure::Input(cause.into()))?;
    let identity = Identity::load(&config.identity).map_err(Failure::other)?;
    let records =
        if config.state.exists() { store::read(&config.state).map_err(Failure::other)? } else { Vec::new() };
    let period_s = config.period.0 / 1_000_000_000;
    let now = clock::unix() / period_s;
    let period = arguments.period.unwrap_or(now);
    // Times are seconds of 64 bits.
    if period > now + PERIODS_AHEAD {
        let cause = format!("{period} is in a distant future; the current period is {now}");
        return Err(
            InputError::new("--period", cause, format!("give at most {}", now + PERIODS_AHEAD)).into()
        );
    }
    let schedule = plan::plan(&config, network.as_ref(), &identity, &records, period);
    let name = |id| config.relays.iter().find(|r| r.id == id).map_or("?", |r| r.nickname.as_str());
    // Placements are in drawing order; people read them in the order of time.
    let mut placements = schedule.placements().to_vec();
    placements.sort_by_key(|p| (p.slot, p.relay));
    let begin = |slot: u32| period * period_s + u64::from(slot) * (config.slot.0 / 1_000_000_000);
    if arguments.json {
        let rows = placements.iter().map(|p| {
            json!({ "slot": p.slot, "begin_unix": begin(p.slot), "relay": relay_name(&p.relay),
                "nickname": name(p.relay), "guess_bits_per_s": p.guess.0, "reserved_bits_per_s": p.reserved.0 })
        });
        println!("{}", json!({ "period": period, "placements": rows.collect::<Vec<_>>() }));
    } else {
        println!("period {period}: {} of {} slots used", schedule.used_slots(), schedule.slots());
        for p in placements {
            println!("slot {:5}  unix {}  {:19}  guess {}", p.slot, begin(p.slot), name(p.relay), p.guess);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_that_is_too_small_is_named_and_parts_are_sentences() {
        let object = json!({
            "slots": 9106, "slot_s": 30, "hours": 75.9, "relays": 9106, "capacity_bits_per_s": 2_000_000_000u64,
            "capacities_from": "weights", "team_bits_per_s": 1000, "factor": 2.953,
            "relays_beyond_the_team": 9106,
            "random": { "used": 0, "slots": 2880, "placed": 0, "unplaced": 9106, "fewest_choices": 0 },
            "failures": { "share": 0.1, "attempts": 7, "slots": 5, "relays_not_concluded": 2 },
            "new_relays": { "guess_bits_per_s": 5000, "consensuses": 3, "median": 1, "most": 2,
                "median_wait_s": 30, "longest_wait_s": 60, "unplaced": 0 },
        });
        let text = described(&object);
        assert!(text.contains("a team of 1 kbit/s, factor 2.953"), "{text}");
        assert!(text.contains("9106 of 9106 relays need more than the whole team"), "{text}");
        assert!(
            text.contains("if 10 % of measurements fail: 7 attempts in 5 slots, 2 relays not concluded"),
            "{text}"
        );
        assert!(
            text.contains("new relays, guessed to have 5 kbit/s: 1 in the median of 3 consensuses"),
            "{text}"
        );
        assert!(!text.contains('{') && !text.contains('"'), "no JSON: {text}");
    }
}
