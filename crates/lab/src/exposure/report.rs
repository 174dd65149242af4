//! The results of a simulation, as JSON and as text.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tidegate_data::document::day;

use super::client::{ClientExposure, World};
use super::guards::GuardParameters;
use super::settings::{ExposureSettings, StreamPaths};
use super::survival::Survival;
use super::user::PORTS;
use crate::statistics::Estimate;

/// Days at which shares of clients are stated, if they are simulated.
const DAYS: [u32; 7] = [1, 7, 30, 60, 90, 180, 365];

/// The adversary's view of all clients.
#[derive(Clone, Debug)]
pub struct Exposure {
    /// How the simulation was made, in sentences.
    conditions: Vec<String>,
    /// Simulated days.
    days: u32,
    /// The clients in order.
    pub(super) clients: Vec<ClientExposure>,
    /// The probability that a sampled guard is the adversary's, on the first day.
    pub(super) guard_probability: f64,
    /// The probability that an exit is the adversary's, on the first day, as a mean over the streams of the user.
    pub(super) exit_probability: f64,
}

/// A kind of exposure: its key, its name, the streams of a client, and its first such stream.
type Kind = (&'static str, &'static str, fn(&ClientExposure) -> u64, fn(&ClientExposure) -> Option<f64>);

const KINDS: [Kind; 4] = [
    ("both", "guard and exit (compromised)", |client| client.at_both, |client| client.first_at_both),
    ("guard", "guard", |client| client.at_guard, |client| client.first_at_guard),
    ("exit", "exit", |client| client.at_exit, |client| client.first_at_exit),
    ("middle", "middle (learns the guard)", |client| client.at_middle, |client| client.first_at_middle),
];

/// Fewest clients for an interval of a mean: Student's t holds for few values only if they are about normal, and shares
/// of single clients are not.
const LEAST_CLIENTS: usize = 20;

impl Exposure {
    pub(super) fn new(settings: &ExposureSettings, world: &World, clients: Vec<ClientExposure>) -> Exposure {
        let first = &world.days[0];
        let theirs = |relay: u32| world.roster.adversary[relay as usize];
        let exits: Vec<f64> = first.exits.iter().map(|exits| exits.share(theirs)).collect();
        Exposure {
            conditions: conditions(settings),
            days: settings.days,
            clients,
            guard_probability: first.guards.share(theirs),
            exit_probability: settings.user.mean_over_ports(&exits),
        }
    }

    /// A client's mean share of streams that count, with its interval over clients.
    pub(super) fn share(&self, count: fn(&ClientExposure) -> u64) -> Estimate {
        let shares: Vec<f64> =
            self.clients.iter().map(|client| count(client) as f64 / client.streams as f64).collect();
        Estimate::of(&shares)
    }

    /// The time to a first stream.
    fn survival(&self, first: fn(&ClientExposure) -> Option<f64>) -> Survival {
        Survival::of(self.clients.iter().map(|client| first(client).ok_or(f64::from(self.days))))
    }

    /// The shares of streams over the adversary's guard and exit, its guard, and its exit.
    pub(crate) fn stream_shares(&self) -> [Estimate; 3] {
        let counts: [fn(&ClientExposure) -> u64; 3] =
            [|client| client.at_both, |client| client.at_guard, |client| client.at_exit];
        counts.map(|count| self.share(count))
    }

    /// The share of streams over the adversary's middle.
    pub(super) fn streams_over_middles(&self) -> Estimate {
        self.share(|client| client.at_middle)
    }

    /// The time to the first compromised stream.
    pub(super) fn first_compromise(&self) -> Survival {
        self.survival(|client| client.first_at_both)
    }

    /// The time to the first stream over an adversary's guard.
    pub(super) fn first_bad_guard(&self) -> Survival {
        self.survival(|client| client.first_at_guard)
    }

    /// The mean number of guards that a client has used by a day.
    pub(super) fn guards_by(&self, day: f64) -> Estimate {
        let used = |client: &ClientExposure| client.guards_since.iter().filter(|since| **since < day).count();
        Estimate::of(&self.clients.iter().map(|client| used(client) as f64).collect::<Vec<_>>())
    }

    /// Days at which to state results.
    fn milestones(&self) -> Vec<u32> {
        let mut days: Vec<u32> = DAYS.into_iter().filter(|day| *day < self.days).collect();
        days.push(self.days);
        days
    }

    /// The results as JSON.
    pub fn document(&self) -> Value {
        let kinds = KINDS.map(|(key, _, count, first)| {
            let (share, survival) = (self.share(count), self.survival(first));
            let by: serde_json::Map<String, Value> = (self.milestones().into_iter())
                .map(|day| (day.to_string(), limits(survival.by(f64::from(day)))))
                .collect();
            let quantile = |share: f64| {
                let [time, low, high] = survival.quantile(share);
                json!({ "days": time, "low": low, "high": high })
            };
            let value = json!({
                "streams": { "share": share.mean, "ci95": share.ci95, "n": share.n },
                "first": {
                    "clients": survival.n,
                    "events": survival.events,
                    "by_day": by,
                    "p10": quantile(0.1),
                    "p25": quantile(0.25),
                    "p50": quantile(0.5),
                },
            });
            (key.to_owned(), value)
        });
        let guards: serde_json::Map<String, Value> = (self.milestones().into_iter())
            .map(|day| {
                let used = self.guards_by(f64::from(day));
                (day.to_string(), json!({ "mean": used.mean, "ci95": used.ci95, "n": used.n }))
            })
            .collect();
        json!({
            "conditions": self.conditions,
            "days": self.days,
            "clients": self.clients.len(),
            "streams": self.clients.iter().map(|client| client.streams).sum::<u64>(),
            "failed_streams": self.clients.iter().map(|client| client.failed).sum::<u64>(),
            "guard_probability": self.guard_probability,
            "exit_probability": self.exit_probability,
            "seen_at": serde_json::Map::from_iter(kinds),
            "guards_used_by_day": guards,
        })
    }

    /// The results as tables for a terminal.
    pub fn text(&self) -> String {
        let mut text = self.conditions.join("\n");
        let expected = self.guard_probability * self.exit_probability;
        let _ = write!(
            text,
            "\n\nBy weight, a guard is the adversary's with probability {:.4}, an exit with {:.4}, both with {expected:.5}.\n",
            self.guard_probability, self.exit_probability
        );
        let failed: u64 = self.clients.iter().map(|client| client.failed).sum();
        if failed > 0 {
            let _ =
                writeln!(text, "{failed} streams failed, because every relay of a position was excluded.");
        }
        let milestones = self.milestones();
        let _ = write!(text, "\n{:<30}{:>26}", "the adversary has the", "share of streams");
        milestones.iter().for_each(|day| {
            let _ = write!(text, "{:>22}", format!("clients by day {day}"));
        });
        let _ = write!(text, "{:>24}", "median time, days");
        for (_, name, count, first) in KINDS {
            let (share, survival) = (self.share(count), self.survival(first));
            let _ = write!(text, "\n{name:<30}{:>26}", share_text(&share));
            for day in &milestones {
                let [share, low, high] = survival.by(f64::from(*day));
                let _ = write!(text, "{:>22}", format!("{share:.3} ({low:.3}, {high:.3})"));
            }
            let show = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.1}"));
            let [median, low, high] = survival.quantile(0.5).map(show);
            let _ = write!(text, "{:>24}", format!("{median} ({low}, {high})"));
        }
        let _ = write!(text, "\n\n{:<30}{:>26}", "guards that a client used", "");
        for day in &milestones {
            let used = self.guards_by(f64::from(*day));
            let half = used.ci95.filter(|_| used.n >= LEAST_CLIENTS);
            let half = half.map_or(String::new(), |half| format!(" ± {half:.2}"));
            let _ = write!(text, "{:>22}", format!("{:.2}{half}", used.mean));
        }
        let (n, days) = (self.clients.len(), self.days);
        let same = KINDS.iter().any(|(_, _, count, _)| self.share(*count).ci95 == Some(0.0));
        let few = if n < LEAST_CLIENTS {
            format!(" too few for intervals of means, which need {LEAST_CLIENTS};")
        } else if same {
            " a share without interval is the same for all clients;".to_owned()
        } else {
            String::new()
        };
        let _ = write!(
            text,
            "\n\nn = {n} clients;{few} ± and (low, high) are 95 % intervals over clients. Times are Kaplan and Meier's estimates; \
             `-` means later than day {days}.\n"
        );
        text
    }
}

/// A mean share of streams with its interval, which stays between 0 and 1. A share that is equal for all clients, such
/// as one without events, lacks an interval: its width would be zero, and that is not certain.
fn share_text(share: &Estimate) -> String {
    let known = share.ci95.filter(|half| share.n >= LEAST_CLIENTS && *half > 0.0);
    let interval = known
        .map(|half| format!(" ({:.4}, {:.4})", (share.mean - half).max(0.0), (share.mean + half).min(1.0)));
    format!("{:.4}{}", share.mean, interval.unwrap_or_default())
}

fn limits([share, low, high]: [f64; 3]) -> Value {
    json!({ "share": share, "low": low, "high": high })
}

/// The simulation in sentences.
fn conditions(settings: &ExposureSettings) -> Vec<String> {
    let ExposureSettings { consensuses, adversary, guards, days, samples, seed, .. } = settings;
    let relays =
        consensuses.iter().map(|one| format!("{} ({} relays)", day(one.valid_after), one.relays.len()));
    let networks = relays.collect::<Vec<_>>().join(", ");
    let covered = consensuses.last().map_or(0, |last| last.valid_after) - consensuses[0].valid_after;
    let covered = covered / 86_400;
    let rule = match consensuses.len() {
        1 => format!("the consensus of {networks} holds for all days, so guards leave by age alone"),
        _ => format!(
            "consensuses of {networks}; each relay changes from one to the next at a moment drawn uniformly between \
             them, and the last holds from day {covered} on"
        ),
    };
    let policies = consensuses.iter().flat_map(|one| &one.relays).any(|relay| relay.ports.is_some());
    let exits = if policies {
        "exits by the port summaries of the consensus"
    } else {
        "exits by the flag Exit, because the consensus does not state policies"
    };
    let families = match settings.families.len() {
        0 => "families unknown".to_owned(),
        known => format!("families of {known} relays"),
    };
    let share = |value: f64| format!("{:.3} %", 100.0 * value);
    vec![
        format!("Clients: {samples}, for {days} days, seed {seed}. User: {}.", settings.user.description()),
        format!("Network: {rule}; {exits}; one relay of a /16 per circuit; {families}."),
        relays_of_streams(guards, settings.paths),
        format!(
            "Adversary: {} of all weight, {} of it on {} and the rest on {}; position weights include it. \
             Ports: {PORTS:?}.",
            share(adversary.share),
            share(adversary.on_guards),
            counted(adversary.relays, "guard"),
            counted(adversary.relays, "exit")
        ),
    ]
}

fn counted(number: u16, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// How streams choose relays, in a sentence.
fn relays_of_streams(guards: &GuardParameters, paths: StreamPaths) -> String {
    let more = match paths {
        StreamPaths::PerPacket(count) => {
            return format!(
                "No guards: packets of a stream take {count} paths, each with an entry, a middle and an exit of its own."
            );
        }
        StreamPaths::Circuit => String::new(),
        // Its second leg takes another guard than the first.
        StreamPaths::Conflux if guards.used == 1 => {
            " Conflux: two linked circuits, the second with the next primary guard, so that a client uses two.".into()
        }
        StreamPaths::Conflux => " Conflux: two linked circuits with different guards.".into(),
        StreamPaths::Moving(moves) => format!(" A circuit moves {moves} times to another middle."),
    };
    // A sample that is smaller than the number of primary guards is all primary.
    let primary = guards.primary.min(guards.sampled);
    format!(
        "Guards: {} in use of {primary} primary ones; sampled for {} days, used ones at least {} days, unlisted ones {} days.{more}",
        guards.used.min(primary),
        guards.lifetime_days,
        guards.confirmed_days,
        guards.unlisted_days,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_shares_stay_within_one_and_need_clients() {
        let of = |n, mean, half| share_text(&Estimate { n, mean, ci95: Some(half) });
        assert_eq!(of(2, 0.1157, 1.47), "0.1157", "two clients say nothing about others");
        assert_eq!(of(1000, 0.0, 0.0), "0.0000", "no event is not a certain zero");
        assert_eq!(of(20, 0.01, 0.02), "0.0100 (0.0000, 0.0300)");
        assert_eq!(of(1000, 0.99, 0.02), "0.9900 (0.9700, 1.0000)");
    }

    #[test]
    fn the_guards_of_streams_are_those_that_clients_use() {
        let mut guards = GuardParameters::of(&std::collections::BTreeMap::new());
        let conflux = relays_of_streams(&guards, StreamPaths::Conflux);
        assert!(
            conflux.contains("1 in use of 3") && conflux.contains("so that a client uses two"),
            "{conflux}"
        );
        (guards.used, guards.primary) = (20, 30);
        let many = relays_of_streams(&guards, StreamPaths::Circuit);
        assert!(many.starts_with("Guards: 20 in use of 20 primary ones;"), "{many}");
    }
}
