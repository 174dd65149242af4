//! Imports the whole network of a Shadow simulation: relays, latencies, clients and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tidegate_control::markov::{Chain, Observation};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_data::formats::TRAFFIC_MODELS;
use tidegate_data::open;
use tidegate_data::shadow::{Host, NetworkGraph, Process, Role};
use tidegate_data::shadow_folder::Folder;
use tidegate_data::tgen_actions::{self, Actions, Models};

use super::draft::{Behaviour, Draft, Table, Users, Whole};
use super::text::{OLD_TOR, markov, table};
use super::whole;
use crate::input::InputError;
use crate::scenario::users::MOST_USERS;

/// Timeout of streams if the source lacks one.
const TIMEOUT: Span = Span::from_secs(120);
/// Number of missing files that are named, of each sort.
const SHOWN: usize = 4;
/// Largest number of clients alike.
const MOST_CLIENTS: u32 = 1_000_000;
/// The keys of tor since 0.4.8, where a consensus that would say so is missing.
const NEW_TOR: &str = "for tor since 0.4.8 replace `of-consensus = true` by `control = \"vegas\"`, `scheduler = \"ewma\"`, \
     `channel-scheduler = \"kist\"`, `kist = { interval = \"2 ms\" }` and \
     `tls = { round-trips = 2, standing = true, record-cells = 8 }`";
/// Walks over a chain, and moves of one, from which its mean duration is computed.
const WALKS: u32 = 4_000;
const MOVES: u32 = 20_000;

/// Clients that do the same.
#[derive(Default)]
struct Group {
    clients: u32,
    countries: Vec<Option<String>>,
    /// Clients with a known flow model, and the flows that these begin per second.
    flowing: u32,
    flows: f64,
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

/// Files that clients lack.
#[derive(Default)]
struct Lack {
    /// The paths, as clients name them.
    files: BTreeSet<String>,
    clients: u32,
    /// The first of these clients.
    first: String,
}

/// The files that clients lack, by the reason.
type Lacking = BTreeMap<String, Lack>;

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
        let relays = folder.relays()?;
        self.relays = Some(whole(config));
        self.say_least(&name, &relays.relays);
        self.left.extend(relays.assumed.iter().map(|what| format!("{name}: {what}")));
        self.taken.push(format!("{name}: relays with their links, limits, weights and nodes"));
        self.use_file(config);
        self.take_graph(&folder, &name)?;
        self.network = Some(Whole::default());
        let chosen = relays.relays.values().filter(|relay| relay.weight > 0.0).count() as u64;
        let all = relays.relays.len() as u64;
        let hosts = folder.config.hosts.iter().filter(|host| folder.role(host) == Role::Relay);
        let source: u64 = hosts.map(|host| processes(host, "tor")).sum();
        let why = match (source > all, all > chosen) {
            (true, false) => "hosts that run several tors count as one relay, since they share a link",
            (true, true) => {
                "hosts that run several tors count as one relay, and some relays have the weight zero"
            }
            (false, _) => "relays whose weight is zero, which clients never choose",
        };
        self.count("relays", source, chosen, why);
        self.take_clients(&folder, &name)?;
        self.take_others(&folder, &name);
        if self.users.is_empty() {
            let clients = self.counts.iter().find(|count| count.what.starts_with("clients "));
            let (cause, cure) = match clients.and_then(|count| count.why.as_ref()) {
                Some(why) => {
                    (format!("has clients that cannot be simulated: {why}"), "correct their action graphs")
                }
                None => (
                    "has relays, but no client that uses tor and runs tgen".into(),
                    "is the file cut off? Add a client, such as `perfclient1exit` of tornettools",
                ),
            };
            return Err(InputError::new(name, cause, cure));
        }
        Ok(())
    }

    fn use_file(&mut self, file: &Path) {
        self.used.insert(whole(file));
    }

    fn take_graph(&mut self, folder: &Folder, name: &str) -> Result<(), InputError> {
        match folder.latencies() {
            Ok(table) => {
                self.latency = Some(whole(&folder.file));
                let n = table.locations.len() as u64;
                self.taken.push(format!("{name}: latencies between the nodes of its graph"));
                self.count("nodes of the graph", n, n, "");
            }
            Err(error) if folder.lacks_graph() => {
                self.left.push(format!(
                    "{name}: latencies, the built-in model stands in: it {}; put a graph into its folder or `conf`",
                    error.cause
                ));
            }
            Err(error) => return Err(error.into()),
        }
        if let NetworkGraph::File(path) = &folder.config.graph
            && let Some(file) = folder.find("", path)
        {
            self.use_file(&file);
        }
        Ok(())
    }

    fn take_clients(&mut self, folder: &Folder, name: &str) -> Result<(), InputError> {
        let mut groups: BTreeMap<(String, Does, bool), Group> = BTreeMap::new();
        let mut chains = Chains::default();
        let mut lacking = Lacking::new();
        let mut read: BTreeMap<PathBuf, Actions> = BTreeMap::new();
        let is_client = |host: &&Host| [Role::Client, Role::OnionClient].contains(&folder.role(host));
        let hosts = folder.config.hosts.iter().filter(is_client);
        // Each tgen of a host is a client.
        for (host, tgen) in hosts.flat_map(|host| host.running("tgen").map(move |tgen| (host, tgen))) {
            let mut onion = folder.role(host) == Role::OnionClient;
            let clients = host.count.saturating_mul(tgen.count);
            let (does, flows) = match named(folder, host, "action graph", script(tgen), &mut lacking) {
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
                        Some(models) => self.walks(folder, host, models, &mut chains, &mut lacking)?,
                        None => (Does::Fetches(file), None),
                    }
                }
            };
            let group = groups.entry((kind(host), does, onion)).or_default();
            let country = folder.country(host).map(|country| country.code().to_owned());
            if clients > MOST_CLIENTS - group.clients {
                let cause = format!("has more than {MOST_CLIENTS} clients like {}", host.name);
                return Err(InputError::new(name, cause, "lower their `quantity`"));
            }
            group.countries.extend(std::iter::repeat_n(country, clients as usize));
            group.clients += clients;
            if let Some(rate) = flows {
                group.flowing += clients;
                group.flows += rate * f64::from(clients);
            }
        }
        for (what, Lack { files, clients, first }) in lacking {
            let shown: Vec<&str> = files.iter().take(SHOWN).map(String::as_str).collect();
            let more = files.len() - shown.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let shown =
                if files.is_empty() { String::new() } else { format!(": {}{more}", shown.join(", ")) };
            self.left.push(format!("{name}: {what}{shown}; of {clients} clients, such as {first}"));
        }
        for ((kind, does, onion), group) in groups {
            self.add_group((&kind, &does, onion), group, &read, &mut chains)?;
        }
        Ok(())
    }

    /// The behaviour of a client with Markov models, and the flows that it begins per second.
    fn walks(
        &mut self,
        folder: &Folder,
        host: &Host,
        models: &Models,
        chains: &mut Chains,
        lacking: &mut Lacking,
    ) -> Result<(Does, Option<f64>), InputError> {
        let mut find =
            |what, path: &Option<String>| named(folder, host, what, path.as_deref(), &mut *lacking);
        let (streams, packets) =
            (find("stream model", &models.streams), find("packet model", &models.packets));
        // Without the path of a flow model, a client begins one flow.
        let flows = models.flows.as_ref().and_then(|_| find("flow model", &models.flows));
        let flows = match flows {
            Some(file) => {
                self.use_file(&file);
                let rate = chains.rate(&file)?;
                if rate.is_some() {
                    self.flow_models.insert(file);
                } else {
                    let file = file.display().to_string();
                    note("flow models that begin no flows".into(), Some(&file), host, lacking);
                }
                rate
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
        let mut count = group.clients;
        let traffic = match does {
            Does::Fetches(file) => {
                let actions = &read[file];
                if let Err(why) = super::fetches(actions) {
                    self.count(format!("clients {kind}"), group.clients.into(), 0, &why);
                    return Ok(());
                }
                self.left.extend(actions.left.iter().map(|what| format!("{}: {what}", file.display())));
                self.traffic.push(Table { name: name.clone(), text: table(&name, actions), file: None });
                Behaviour::Table(name.clone())
            }
            Does::Walks(streams, packets, timeout) => {
                if group.flowing > 0 {
                    count = self.users_of_flows(kind, streams, &group, chains)?;
                }
                let text = markov(&name, streams, packets, *timeout);
                self.traffic.push(Table { name: name.clone(), text, file: None });
                Behaviour::Table(name.clone())
            }
            Does::Unknown if kind.starts_with("perf") => Behaviour::Measures,
            Does::Unknown => Behaviour::Browses,
        };
        let why = "a user has one flow at a time, where a client of tgen has many";
        self.count(format!("clients {kind}"), group.clients.into(), count.into(), why);
        let unknown = group.countries.iter().filter(|country| country.is_none()).count();
        let countries: Vec<String> = group.countries.into_iter().flatten().collect();
        if unknown > 0 {
            let instead = if countries.is_empty() { "the built-in shares" } else { "those of the others" };
            self.left.push(format!("{kind}: clients without a known country: {unknown}; {instead} stand in"));
        }
        self.users.push(Users { name, traffic, count, countries, onion });
        Ok(())
    }

    /// The number of users that have as many flows under way as the clients of a group.
    fn users_of_flows(
        &mut self,
        kind: &str,
        streams: &Path,
        group: &Group,
        chains: &mut Chains,
    ) -> Result<u32, InputError> {
        let Group { flowing, flows, clients, .. } = group;
        let Some(lasts) = chains.duration(streams)? else {
            let why = "flows of this stream model do not end, so that each client is one user";
            self.left.push(format!("{kind}: the rate of flows: {}: {why}", streams.display()));
            return Ok(*clients);
        };
        // As many flows are under way at a time as begin per second times their duration.
        let (wanted, others) = ((flows * lasts).round().max(1.0), clients - flowing);
        let users = wanted.min(f64::from(MOST_USERS - others.min(MOST_USERS))) as u32;
        self.taken.push(format!(
            "{kind}: {flowing} clients begin {flows:.2} flows/s of {lasts:.0} s: {users} users have as many under way"
        ));
        if f64::from(users) < wanted {
            self.left.push(format!(
                "{kind}: {wanted} users: a group has at most {MOST_USERS}; write a second [[user]] for the rest"
            ));
        }
        if others > 0 {
            self.left.push(format!("{kind}: clients without a flow model: {others}; each is one user"));
        }
        Ok(users + others)
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
            let scripts = host.running("tgen").filter_map(|tgen| folder.find(&host.name, script(tgen)?));
            scripts.for_each(|file| self.use_file(&file));
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
        let names = |keep: fn(&Process) -> bool| {
            let processes = folder.config.hosts.iter().flat_map(|host| &host.processes);
            let kept = processes.filter(|process| keep(process)).map(|process| process.program.as_str());
            Vec::from_iter(BTreeSet::from_iter(kept)).join(", ")
        };
        let programs = names(|process| !process.is("tor") && !process.is("tgen"));
        if !programs.is_empty() {
            self.left.push(format!("{name}: programs other than tor and tgen: {programs}"));
        }
        let stop = folder.config.stop.map_or(String::new(), |stop| format!(" (the source stops at {stop})"));
        self.left.push(format!(
            "{name}: nodes of clients and servers (their countries count), servers' countries, link rates other than the most \
             common one, and times of start and stop{stop}; set `duration`"
        ));
        let tors = names(|process| process.is("tor"));
        self.left.push(format!("{name}: the version of tor ({tors}); {OLD_TOR}; {NEW_TOR}"));
    }
}

/// The action graph that a tgen names.
fn script(tgen: &Process) -> Option<&str> {
    tgen.arguments.split_whitespace().last()
}

/// The file that a client names; notes what it lacks.
fn named(
    folder: &Folder,
    host: &Host,
    what: &str,
    path: Option<&str>,
    lacking: &mut Lacking,
) -> Option<PathBuf> {
    let found = path.and_then(|path| folder.find(&host.name, path));
    if found.is_none() {
        let what = match path {
            Some(_) => format!("{what}s that do not exist"),
            None => format!("the name of a {what}, which the files of clients lack"),
        };
        note(what, path, host, lacking);
    }
    found
}

fn note(what: String, path: Option<&str>, host: &Host, lacking: &mut Lacking) {
    let lack = lacking.entry(what).or_default();
    lack.files.extend(path.map(str::to_owned));
    lack.clients = lack.clients.saturating_add(host.count);
    if lack.first.is_empty() {
        lack.first = host.name.clone();
    }
}

/// Number of processes of a program on a host and those alike.
fn processes(host: &Host, program: &str) -> u64 {
    host.running(program).map(|process| u64::from(host.count) * u64::from(process.count)).sum()
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
