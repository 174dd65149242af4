//! Imports the whole network of a Shadow simulation: relays, latencies, clients and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tidegate_control::markov::{Chain, Observation};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_data::formats::TRAFFIC_MODELS;
use tidegate_data::open;
use tidegate_data::shadow::{Host, NetworkGraph, Role};
use tidegate_data::shadow_folder::Folder;
use tidegate_data::tgen_actions::{self, Actions, Models};

use super::draft::{Behaviour, Count, Draft, Users, Whole};
use super::text::{markov, table};
use super::whole;
use crate::input::InputError;

/// Timeout of streams if the source lacks one.
const TIMEOUT: Span = Span::from_secs(120);
/// Walks over a chain, and moves of one, from which its mean duration is computed.
const WALKS: u32 = 4_000;
const MOVES: u32 = 20_000;

/// Clients that do the same.
#[derive(Default)]
struct Group {
    hosts: u32,
    countries: Vec<Option<String>>,
    /// Flows that they begin per second, if their flow models are known.
    flows: Option<f64>,
}

/// The behaviour of a client, to group by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Does {
    /// An action graph with requests.
    Fetches(PathBuf),
    /// Stream model, packet model and timeout.
    Walks(PathBuf, PathBuf, Span),
    /// Its files are missing.
    Unknown,
}

/// The models of a simulation's clients: how long flows last, and how often they begin.
#[derive(Default)]
struct Chains(BTreeMap<PathBuf, Option<f64>>);

impl Draft {
    /// Imports the network of a simulation.
    pub(super) fn take_network(&mut self, config: &Path) -> Result<(), InputError> {
        let folder = Folder::open(config)?;
        let name = config.display().to_string();
        if self.network.is_some() {
            let cause = "is a second Shadow simulation";
            return Err(InputError::new(name, cause, "import one at a time"));
        }
        if count(&folder, Role::Relay) == 0 {
            // Other files of the folder may be of use.
            let why = folder.relays().err().map_or(String::new(), |error| error.to_string());
            self.left.push(why);
            self.use_file(config);
            return Ok(());
        }
        let relays = folder.relays()?;
        self.relays = Some(whole(config));
        self.left.extend(relays.assumed.iter().map(|what| format!("{name}: {what}")));
        self.taken.push(format!("{name}: relays with their links, limits, weights and nodes"));
        self.use_file(config);
        self.take_graph(&folder, &name);
        self.network = Some(Whole::default());
        let chosen = relays.relays.values().filter(|relay| relay.weight > 0.0).count() as u64;
        let all = relays.relays.len() as u64;
        self.count("relays", all, chosen, "relays whose weight is zero, which clients never choose");
        self.take_clients(&folder, &name)?;
        self.take_others(&folder, &name);
        Ok(())
    }

    fn use_file(&mut self, file: &Path) {
        self.used.insert(whole(file));
    }

    fn count(&mut self, what: impl Into<String>, source: u64, scenario: u64, why: &str) {
        let why = (source != scenario).then(|| why.to_owned());
        self.counts.push(Count { what: what.into(), source, scenario, why });
    }

    fn take_graph(&mut self, folder: &Folder, name: &str) {
        match folder.latencies() {
            Ok(table) => {
                self.latency = Some(whole(&folder.file));
                let n = table.locations.len() as u64;
                self.taken.push(format!("{name}: latencies between the nodes of its graph"));
                self.count("nodes of the graph", n, n, "");
            }
            Err(error) => {
                self.left.push(format!("{name}: latencies, the built-in model stands in: {error}"));
            }
        }
        if let NetworkGraph::File(path) = &folder.config.graph
            && let Some(file) = folder.find("", path)
        {
            self.use_file(&file);
        }
    }

    fn take_clients(&mut self, folder: &Folder, name: &str) -> Result<(), InputError> {
        let mut groups: BTreeMap<(String, Does, bool), Group> = BTreeMap::new();
        let mut chains = Chains::default();
        let mut reasons = BTreeSet::new();
        let mut read: BTreeMap<PathBuf, Actions> = BTreeMap::new();
        let is_client = |host: &&Host| [Role::Client, Role::OnionClient].contains(&folder.role(host));
        for host in folder.config.hosts.iter().filter(is_client) {
            let mut onion = folder.role(host) == Role::OnionClient;
            let (does, flows) = match script(folder, host) {
                None => (Does::Unknown, None),
                Some(file) => {
                    self.use_file(&file);
                    if !read.contains_key(&file) {
                        let mut actions = tgen_actions::read(&open::open(&file)?)?;
                        super::requests::fit(&mut actions);
                        read.insert(file.clone(), actions);
                    }
                    let actions = &read[&file];
                    onion |= actions.onion_service;
                    match &actions.models {
                        Some(models) => self.walks(folder, host, models, &mut chains, &mut reasons)?,
                        None => (Does::Fetches(file), None),
                    }
                }
            };
            let group = groups.entry((kind(host), does, onion)).or_default();
            let country = folder.country(host).map(|country| country.code().to_owned());
            group.countries.extend(std::iter::repeat_n(country, host.count as usize));
            group.hosts += host.count;
            // One client without a known flow model makes the group's rate unknown.
            group.flows = match (group.hosts == host.count, group.flows, flows) {
                (true, _, flows) => flows,
                (false, Some(sum), Some(flows)) => Some(sum + flows),
                _ => None,
            };
        }
        for ((kind, does, onion), group) in groups {
            self.add_group((&kind, &does, onion), group, &read, &mut chains)?;
        }
        self.left.extend(reasons.into_iter().map(|why| format!("{name}: {why}")));
        Ok(())
    }

    /// The behaviour of a client with Markov models, and the rate of its flows.
    fn walks(
        &mut self,
        folder: &Folder,
        host: &Host,
        models: &Models,
        chains: &mut Chains,
        reasons: &mut BTreeSet<String>,
    ) -> Result<(Does, Option<f64>), InputError> {
        let find = |path: &Option<String>| path.as_ref().and_then(|path| folder.find(&host.name, path));
        let (streams, packets) = (find(&models.streams), find(&models.packets));
        let flows = match find(&models.flows) {
            Some(file) => {
                let said = format!(
                    "{}: a flow model; its rate sets the number of users, which begin one flow after another",
                    file.display()
                );
                self.use_file(&file);
                reasons.insert(said);
                chains.rate(&file)?.map(|rate| rate * f64::from(host.count))
            }
            None => None,
        };
        match (streams, packets) {
            (Some(streams), Some(packets)) => {
                self.use_file(&streams);
                self.use_file(&packets);
                Ok((Does::Walks(streams, packets, models.timeout.unwrap_or(TIMEOUT)), flows))
            }
            _ => Ok((Does::Unknown, flows)),
        }
    }

    /// Adds a group as users.
    fn add_group(
        &mut self,
        (kind, does, onion): (&str, &Does, bool),
        group: Group,
        read: &BTreeMap<PathBuf, Actions>,
        chains: &mut Chains,
    ) -> Result<(), InputError> {
        let same = self
            .users
            .iter()
            .filter(|users| users.name.trim_end_matches(|c: char| c.is_ascii_digit()) == kind);
        let name = match same.count() {
            0 => kind.to_owned(),
            known => format!("{kind}{}", known + 1),
        };
        let mut count = group.hosts;
        let traffic = match does {
            Does::Fetches(file) => {
                let actions = &read[file];
                if let Err(why) = super::fetches(actions) {
                    self.count(format!("clients {kind}"), group.hosts.into(), 0, &why);
                    return Ok(());
                }
                self.left.extend(actions.left.iter().map(|what| format!("{}: {what}", file.display())));
                self.traffic.push((name.clone(), table(&name, actions)));
                Behaviour::Table(name.clone())
            }
            Does::Walks(streams, packets, timeout) => {
                if let (Some(flows), Some(lasts)) = (group.flows, chains.duration(streams)?) {
                    // As many flows are under way at a time as begin per second times their duration.
                    count = ((flows * lasts).round() as u32).clamp(1, 200_000);
                    self.taken.push(format!(
                        "{kind}: {} clients begin {flows:.2} flows/s of {lasts:.0} s: {count} users have as many under way",
                        group.hosts
                    ));
                }
                self.traffic.push((name.clone(), markov(&name, streams, packets, *timeout)));
                Behaviour::Table(name.clone())
            }
            Does::Unknown => {
                let measures = kind.starts_with("perf");
                let instead =
                    if measures { "measuring downloads stand in" } else { "browsing users stand in" };
                self.left.push(format!("{kind}: the files of their traffic are missing; {instead}"));
                if measures { Behaviour::Measures } else { Behaviour::Browses }
            }
        };
        let why = "a user has one flow at a time, where a client of tgen has many";
        self.count(format!("clients {kind}"), group.hosts.into(), count.into(), why);
        let unknown = group.countries.iter().filter(|country| country.is_none()).count();
        let countries: Vec<String> = group.countries.into_iter().flatten().collect();
        if unknown > 0 {
            let instead = if countries.is_empty() { "the built-in shares" } else { "those of the others" };
            self.left.push(format!("{kind}: clients without a known country: {unknown}; {instead} stand in"));
        }
        self.users.push(Users { name, traffic, count, countries, onion });
        Ok(())
    }

    /// Counts servers and everything that is left out.
    fn take_others(&mut self, folder: &Folder, name: &str) {
        let servers = count(folder, Role::Server);
        self.count("servers", servers, servers.max(1), "a network has at least one server");
        let links = |role| {
            let hosts = folder.config.hosts.iter().filter(move |host| folder.role(host) == role);
            hosts.filter_map(|host| match folder.links(host) {
                [Some(up), Some(down)] => Some([up, down]),
                _ => None,
            })
        };
        let client_links = most_common(links(Role::Client));
        let server_link = most_common(links(Role::Server)).map(|[up, down]| up.min(down));
        self.network = Some(Whole { servers: servers as u32, client_links, server_link });
        let unused = [Role::Server, Role::OnionService, Role::DirectClient];
        for host in folder.config.hosts.iter().filter(|host| unused.contains(&folder.role(host))) {
            script(folder, host).iter().for_each(|file| self.use_file(file));
        }
        for (role, what, why) in [
            (Role::Authority, "directory authorities", "the simulator has no directory traffic"),
            (Role::OnionService, "onion services", "circuits end at the guard of the service"),
            (Role::DirectClient, "clients without Tor", "they do not use the network of relays"),
            (Role::Other, "other hosts", "they run neither a relay nor tgen"),
        ] {
            let source = count(folder, role);
            if source > 0 {
                self.count(what, source, 0, why);
            }
        }
        let programs: BTreeSet<&str> = (folder.config.hosts.iter().flat_map(|host| &host.processes))
            .map(|process| process.program.as_str())
            .filter(|program| !["tor", "tgen"].contains(program))
            .collect();
        if !programs.is_empty() {
            let programs: Vec<&str> = programs.into_iter().collect();
            self.left.push(format!("{name}: programs other than tor and tgen: {}", programs.join(", ")));
        }
        let stop = folder.config.stop.map_or(String::new(), |stop| format!(" (the source stops at {stop})"));
        self.left.push(format!(
            "{name}: nodes of clients and servers (their countries count), servers' countries, link rates other than the most \
             common one, and times of start and stop{stop}; set `duration`"
        ));
        self.left.push(format!(
            "{name}: the version of tor; [[system]] has tor of 2018, before congestion control"
        ));
    }
}

/// The action graph of a client.
fn script(folder: &Folder, host: &Host) -> Option<PathBuf> {
    let tgen = host.processes.iter().find(|process| process.program == "tgen")?;
    folder.find(&host.name, tgen.arguments.split_whitespace().last()?)
}

/// The kind of a host: its name without its number.
fn kind(host: &Host) -> String {
    super::requests::key(&host.name.chars().filter(|c| !c.is_ascii_digit()).collect::<String>())
}

fn count(folder: &Folder, role: Role) -> u64 {
    let hosts = folder.config.hosts.iter().filter(|host| folder.role(host) == role);
    hosts.map(|host| u64::from(host.count)).sum()
}

fn most_common(links: impl Iterator<Item = [Rate; 2]>) -> Option<[Rate; 2]> {
    let mut counts: BTreeMap<[Rate; 2], u32> = BTreeMap::new();
    links.for_each(|pair| *counts.entry(pair).or_default() += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(pair, _)| pair)
}

impl Chains {
    /// Mean duration of a walk in seconds; none if walks do not end.
    fn duration(&mut self, file: &Path) -> Result<Option<f64>, InputError> {
        self.get(file, |chain| {
            let mut random = Seed::root(1).fork("durations").random();
            let mut total = Span::ZERO;
            for _ in 0..WALKS {
                let mut walk = chain.walk();
                let mut moves = 0;
                loop {
                    let (observation, delay) = chain.step(&mut walk, &mut random);
                    if observation == Observation::End {
                        break;
                    }
                    total = total + delay;
                    moves += 1;
                    if moves > MOVES {
                        return None;
                    }
                }
            }
            Some(total.as_secs_f64() / f64::from(WALKS))
        })
    }

    /// Mean number of observations of a flow model per second.
    fn rate(&mut self, file: &Path) -> Result<Option<f64>, InputError> {
        self.get(file, |chain| {
            let mut random = Seed::root(1).fork("flows").random();
            let (mut total, mut flows) = (Span::ZERO, 0);
            let mut walk = chain.walk();
            for _ in 0..MOVES {
                let (observation, delay) = chain.step(&mut walk, &mut random);
                if observation == Observation::End {
                    // tgen repeats `traffic` when its model ends.
                    walk = chain.walk();
                } else {
                    flows += 1;
                    total = total + delay;
                }
            }
            (total > Span::ZERO).then(|| f64::from(flows) / total.as_secs_f64())
        })
    }

    fn get(&mut self, file: &Path, value: fn(&Chain) -> Option<f64>) -> Result<Option<f64>, InputError> {
        if let Some(known) = self.0.get(file) {
            return Ok(*known);
        }
        let value = value(&TRAFFIC_MODELS.open(file)?);
        self.0.insert(file.to_owned(), value);
        Ok(value)
    }
}
