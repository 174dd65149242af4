//! The observer: bytes of packets at both ends of circuits, and the packets that relays handle.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::{Host, Observation, Recorder, Seen, User};
use tidegate_sim::plan::{Plan, Role};

use super::attack::{Flows, Matched, Series, attack};
use crate::input::InputError;

/// Role of a host in the observation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Relay,
    ClientOf(User),
    ServerOf(User),
    Unused,
}

/// Packets at both ends of all users' circuits.
#[derive(Debug)]
pub(crate) struct Ends {
    bin: Span,
    from: Time,
    bins: usize,
    ends: Vec<End>,
    /// Bytes that arrive at a user's client from each of its guards.
    entries: BTreeMap<(User, Host), Series>,
    /// Bytes that leave a user's server.
    exits: BTreeMap<User, Series>,
    /// Packets that relays received, plus packets that they sent.
    relays_packets: u64,
}

impl Ends {
    /// Observes the users of a plan after the warm-up, in bins of this length.
    ///
    /// # Errors
    /// If two users share a client or a server: their flows could not be told apart.
    pub(crate) fn of(plan: &Plan, bin: Span, warmup: Span) -> Result<Ends, InputError> {
        let bins = (plan.duration.0.saturating_sub(warmup.0) / bin.0.max(1)) as usize;
        let mut ends: Vec<End> = (plan.hosts.iter())
            .map(|host| if matches!(host.role, Role::Relay(_)) { End::Relay } else { End::Unused })
            .collect();
        for (number, user) in (0..).zip(&plan.users) {
            let client = (user.host, End::ClientOf(User(number)));
            let servers = user.servers.iter().map(|server| (*server, End::ServerOf(User(number))));
            for (host, end) in std::iter::once(client).chain(servers) {
                let there = &mut ends[host as usize];
                if *there != End::Unused {
                    let cause = format!("several users use `{}`", plan.hosts[host as usize].name);
                    let cure = "give each user its own client and server, such as `own-server = true` in a [tor] network";
                    return Err(InputError::new("the correlation attack", cause, cure));
                }
                *there = end;
            }
        }
        let (entries, exits) = (BTreeMap::new(), BTreeMap::new());
        Ok(Ends { bin, from: Time::ZERO + warmup, bins, ends, entries, exits, relays_packets: 0 })
    }

    /// Number of bins that were observed.
    pub(crate) fn bins(&self) -> usize {
        self.bins
    }

    /// Packets that relays received, plus packets that they sent, from the start of the run.
    pub(crate) fn relays_packets(&self) -> u64 {
        self.relays_packets
    }

    /// The attack by an observer of one guard: each guard of a client gives an entry flow of its own.
    pub(crate) fn by_guard(&self, window: usize, false_positives: f64) -> Option<Matched> {
        let entries = self.entries.iter().map(|((user, _), series)| (*user, &series[..])).collect();
        attack(&Flows { entries, exits: self.exits() }, window, false_positives)
    }

    /// The attack by an observer of the client's own link, which carries the traffic of all its guards.
    pub(crate) fn by_client(&self, window: usize, false_positives: f64) -> Option<Matched> {
        let mut sums: BTreeMap<User, Series> = BTreeMap::new();
        for ((user, _), series) in &self.entries {
            let sum = sums.entry(*user).or_insert_with(|| vec![0.0; self.bins]);
            sum.iter_mut().zip(series).for_each(|(sum, bytes)| *sum += bytes);
        }
        let entries = sums.iter().map(|(user, series)| (*user, &series[..])).collect();
        attack(&Flows { entries, exits: self.exits() }, window, false_positives)
    }

    fn exits(&self) -> Vec<(User, &[f64])> {
        self.exits.iter().map(|(user, series)| (*user, &series[..])).collect()
    }

    fn end(&self, host: Host) -> End {
        self.ends.get(host.0 as usize).copied().unwrap_or(End::Unused)
    }
}

impl Recorder for Ends {
    const WATCHES_PACKETS: bool = true;

    fn packet(&mut self, now: Time, seen: Seen) {
        let (from, to) = (self.end(seen.from), self.end(seen.to));
        self.relays_packets += u64::from(from == End::Relay) + u64::from(to == End::Relay);
        let bin = (now >= self.from).then(|| (now.since(self.from).0 / self.bin.0.max(1)) as usize);
        let Some(bin) = bin.filter(|bin| *bin < self.bins) else { return };
        let series = match (from, to) {
            (_, End::ClientOf(user)) => self.entries.entry((user, seen.from)).or_default(),
            (End::ServerOf(user), _) => self.exits.entry(user).or_default(),
            _ => return,
        };
        series.resize(self.bins, 0.0);
        series[bin] += f64::from(seen.bytes);
    }

    fn record(&mut self, _: Time, _: &Observation) {}
}
