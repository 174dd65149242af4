//! Collects the hosts of a plan and the paths between them.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span};
use tidegate_data::country::Country;
use tidegate_data::latency::LatencyTable;
use tidegate_sim::plan::{BucketPlan, HostPlan, LinkPlan, Path, PathTable, QueuePlan, RelayLimits, Role};

use super::builtin;
use crate::scenario::Scenario;
use crate::scenario::file::{Name, ScenarioFile};
use crate::scenario::tables::{BandwidthFile, HostFile};
use crate::scenario::users::UserFile;

/// Published properties of a relay that the simulation does not use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Listed {
    /// Its name in the consensus.
    pub nickname: String,
    /// Its flags there.
    pub flags: String,
    /// Its country code.
    pub country: String,
}

/// The hosts collected so far.
pub(super) struct Hosts {
    plans: Vec<HostPlan>,
    names: BTreeMap<String, u32>,
    listed: BTreeMap<u32, Listed>,
    /// One-way access delay of each location, in a star.
    access: Vec<Span>,
    half_delay: Span,
    jitter: Span,
    loss: f64,
    fuzziness: f64,
    draws: Random,
    /// Hosts named by a fault, each with its own location; other hosts share one location per access delay.
    faulty: BTreeSet<String>,
    /// The locations of these hosts.
    alone: BTreeSet<usize>,
    /// The map that replaces the star, if any.
    map: Option<Map>,
    /// Locations of a latency file for hosts of a country; filled on first use.
    near: BTreeMap<Country, Vec<usize>>,
}

/// The possible locations of hosts, if they do not form a star.
enum Map {
    /// The locations of a latency file.
    Table(LatencyTable),
    /// Countries in order of first use.
    Countries(Vec<Country>),
}

impl Hosts {
    pub(super) fn new(scenario: &Scenario, seed: Seed) -> Hosts {
        let underlay = &scenario.file.underlay;
        Hosts {
            plans: Vec::new(),
            names: BTreeMap::new(),
            listed: BTreeMap::new(),
            access: Vec::new(),
            half_delay: underlay.delay / 2,
            jitter: underlay.jitter,
            loss: underlay.loss,
            fuzziness: underlay.fuzziness,
            draws: seed.random(),
            faulty: (scenario.file.fault.iter())
                .flat_map(|fault| fault.get_ref().between.iter().flatten())
                .map(|name| name.get_ref().clone())
                .collect(),
            alone: BTreeSet::new(),
            map: match (&scenario.inputs.latency, &scenario.file.tor) {
                (Some(table), _) => Some(Map::Table(table.clone())),
                (None, Some(_)) => Some(Map::Countries(Vec::new())),
                (None, None) => None,
            },
            near: BTreeMap::new(),
        }
    }

    /// The locations of a latency file for hosts of a country.
    pub(super) fn in_or_near(&mut self, latency: &LatencyTable, country: Country) -> &[usize] {
        self.near.entry(country).or_insert_with(|| latency.in_or_near(country))
    }

    /// Adds the hosts that the scenario names.
    pub(super) fn add_named(&mut self, file: &ScenarioFile) {
        for relay in &file.relay {
            let limits = RelayLimits { cell_cost: relay.cell_cost, ..limits(relay.bandwidth.as_ref()) };
            self.add_file(relay, Role::Relay(limits));
        }
        for (hosts, role) in [(&file.server, Role::Server), (&file.client, Role::Client)] {
            for host in hosts {
                self.add_file(host, role.clone());
            }
        }
    }

    fn add_file(&mut self, host: &HostFile, role: Role) {
        // Hosts with `at` may lack a link.
        let rate = |own: Option<Rate>| own.or(host.link).unwrap_or(Rate::UNLIMITED);
        let (up, down) = (rate(host.up), rate(host.down));
        let up = LinkPlan { rate: up, queue: host.queue.0 };
        let down = LinkPlan { rate: down, queue: host.queue_down.unwrap_or(host.queue).0 };
        let name = host.name.get_ref();
        match &host.at {
            Some(machine) => {
                let machine = self.named(machine.get_ref());
                match role {
                    Role::Relay(_) => self.add_sharing(name, role, machine),
                    _ => self.add_colocated(name, role, machine),
                };
            }
            None => {
                let wanted = host.location.as_ref().map(|name| name.get_ref());
                if let (Some(Map::Table(table)), Some(wanted)) = (&self.map, wanted) {
                    let place = table.locations.iter().position(|place| place.name == *wanted);
                    let place = place.expect("locations are checked") as u32;
                    self.add_at(name, role, up, down, place);
                    return;
                }
                self.add(name, role, up, down, host.access_delay);
            }
        }
    }

    /// Adds a host with links of its own.
    pub(super) fn add(
        &mut self,
        name: &str,
        role: Role,
        up: LinkPlan,
        down: LinkPlan,
        delay: Option<Span>,
    ) -> u32 {
        if let Some(Map::Table(table)) = &self.map {
            let place = self.draws.below(table.locations.len()) as u32;
            return self.add_at(name, role, up, down, place);
        }
        let access = self.fuzzy(delay.unwrap_or(self.half_delay));
        // Hosts with equal access delay share a location, which keeps the path table small.
        let shared = |(number, known): (usize, &Span)| *known == access && !self.alone.contains(&number);
        let location = match self.access.iter().enumerate().position(shared) {
            Some(known) if !self.faulty.contains(name) => known,
            _ => {
                if self.faulty.contains(name) {
                    self.alone.insert(self.access.len());
                }
                self.access.push(access);
                self.access.len() - 1
            }
        };
        let plan =
            HostPlan { name: name.to_owned(), role, location: location as u32, colocated: None, up, down };
        self.push(plan)
    }

    /// Adds a host with links of its own at a location of the map.
    pub(super) fn add_at(
        &mut self,
        name: &str,
        role: Role,
        up: LinkPlan,
        down: LinkPlan,
        location: u32,
    ) -> u32 {
        self.push(HostPlan { name: name.to_owned(), role, location, colocated: None, up, down })
    }

    /// The location of a country on the map of countries.
    pub(super) fn country(&mut self, country: Country) -> u32 {
        let Some(Map::Countries(countries)) = &mut self.map else { return 0 };
        let number = countries.iter().position(|known| *known == country).unwrap_or_else(|| {
            countries.push(country);
            countries.len() - 1
        });
        number as u32
    }

    /// Adds a host on the machine of another, with unlimited links.
    pub(super) fn add_colocated(&mut self, name: &str, role: Role, machine: u32) -> u32 {
        let location = self.plans[machine as usize].location;
        let open = LinkPlan {
            rate: Rate::UNLIMITED,
            queue: QueuePlan::DropTail { packets: u32::MAX, bytes: u64::MAX },
        };
        let plan = HostPlan {
            name: name.to_owned(),
            role,
            location,
            colocated: Some(machine),
            up: open,
            down: open,
        };
        self.push(plan)
    }

    /// Adds a host that shares the machine and the links of another.
    pub(super) fn add_sharing(&mut self, name: &str, role: Role, machine: u32) -> u32 {
        let HostPlan { location, up, down, .. } = self.plans[machine as usize];
        let of = |link: LinkPlan| LinkPlan { queue: QueuePlan::Machine, ..link };
        let (name, colocated) = (name.to_owned(), Some(machine));
        self.push(HostPlan { name, role, location, colocated, up: of(up), down: of(down) })
    }

    /// Increases the rate of a machine's links, which all its hosts share.
    pub(super) fn widen(&mut self, machine: u32, more: Rate) {
        let shares =
            |(host, plan): &(u32, &mut HostPlan)| *host == machine || plan.colocated == Some(machine);
        for (_, plan) in (0..).zip(&mut self.plans).filter(shares) {
            plan.up.rate = Rate(plan.up.rate.0 + more.0);
            plan.down.rate = Rate(plan.down.rate.0 + more.0);
        }
    }

    fn push(&mut self, plan: HostPlan) -> u32 {
        let number = self.plans.len() as u32;
        self.names.insert(plan.name.clone(), number);
        self.plans.push(plan);
        number
    }

    /// The host with a name that the scenario's check has verified.
    pub(super) fn named(&self, name: &str) -> u32 {
        self.names[name]
    }

    /// The hosts of a path that the check has verified.
    pub(super) fn path(&self, names: &[Name; 3]) -> [u32; 3] {
        [0, 1, 2].map(|hop| self.named(names[hop].get_ref()))
    }

    /// The host with this name, if it exists.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// A host's location in the path table.
    pub(super) fn location(&self, host: u32) -> u32 {
        self.plans[host as usize].location
    }

    /// Sets the published properties of a relay.
    pub(super) fn list(&mut self, relay: u32, listed: Listed) {
        self.listed.insert(relay, listed);
    }

    /// Number of hosts so far.
    pub(super) fn count(&self) -> usize {
        self.plans.len()
    }

    /// All relays and their names.
    pub(super) fn relays(&self) -> impl Iterator<Item = (u32, &str)> {
        let relays = (0..).zip(&self.plans).filter(|(_, plan)| matches!(plan.role, Role::Relay(_)));
        relays.map(|(host, plan)| (host, plan.name.as_str()))
    }

    /// Client and server of a user with a path: the named ones, or new ones on the machines of guard and exit.
    pub(super) fn ends(&mut self, user: &UserFile, path: [u32; 3]) -> (u32, u32) {
        let mut end = |name: &Option<Name>, role: Role, at: u32| match name {
            Some(name) => self.named(name.get_ref()),
            None => {
                let prefix = if role == Role::Client { "client" } else { "server" };
                let name = format!("{prefix} at {}", self.plans[at as usize].name);
                self.find(&name).unwrap_or_else(|| self.add_colocated(&name, role, at))
            }
        };
        let client = end(&user.client, Role::Client, path[0]);
        (client, end(&user.server, Role::Server, path[2]))
    }

    /// The paper's link fuzziness: an access delay times U[max(0.01, 1 - f), 1 + f] (predictor.md, 5).
    fn fuzzy(&mut self, delay: Span) -> Span {
        if self.fuzziness == 0.0 {
            return delay;
        }
        let factor = self.draws.uniform((1.0 - self.fuzziness).max(0.01), 1.0 + self.fuzziness);
        Span::from_secs_f64(delay.as_secs_f64() * factor)
    }

    /// Returns hosts, paths and published properties of relays.
    ///
    /// Delays come from the map, or in a star are the sum of both access delays. The underlay's jitter and loss add to
    /// those of a map.
    pub(super) fn finish(self) -> (Vec<HostPlan>, PathTable, BTreeMap<u32, Listed>) {
        let Hosts { plans, access, jitter, loss, map, listed, .. } = self;
        let over = |delay: Span| Path { delay, jitter, loss };
        let paths = match map {
            None => PathTable::from_fn(access.len() as u32, |from, to| {
                over(access[from as usize] + access[to as usize])
            }),
            Some(Map::Countries(countries)) => PathTable::from_fn(countries.len() as u32, |from, to| {
                over(builtin::delay(countries[from as usize], countries[to as usize]))
            }),
            Some(Map::Table(table)) => PathTable::from_fn(table.locations.len() as u32, |from, to| {
                let path = table.path(from as usize, to as usize);
                let loss = 1.0 - (1.0 - path.loss) * (1.0 - loss);
                Path { delay: path.delay, jitter: path.jitter + jitter, loss }
            }),
        };
        (plans, paths, listed)
    }
}

/// A relay's limits from its optional token bucket.
pub(super) fn limits(bandwidth: Option<&BandwidthFile>) -> RelayLimits {
    RelayLimits {
        bucket: bandwidth.map(bucket),
        retry_after: bandwidth.map_or(Span::ZERO, |file| file.retry),
        cell_cost: Span::ZERO,
        servers: bandwidth.is_some_and(|file| file.servers),
    }
}

/// Converts a token bucket; the default burst is one second of its rate.
fn bucket(file: &BandwidthFile) -> BucketPlan {
    let rate_bytes_per_s = file.rate.get_ref().0 / 8;
    BucketPlan {
        rate_bytes_per_s,
        burst_bytes: file.burst.map_or(rate_bytes_per_s, |burst| burst.0),
        refill_every: file.refill,
        drop_fractions: file.drop_fractions,
    }
}
