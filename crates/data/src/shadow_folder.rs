//! A Shadow simulation in its folder: the configuration, and the files that it names.
//!
//! tornettools keeps graphs and models in `conf`, and a folder per host in `shadow.data.template/hosts`. Every file may
//! be plain, .xz or .gz.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sha1::{Digest, Sha1};
use tidegate_control::flashflow::bandwidth_file::read_relays;
use tidegate_control::units::Rate;

use crate::consensus::Identity;
use crate::country::Country;
use crate::document::{DataError, Document, quote};
use crate::graph::{Attributes, Graph};
use crate::latency::LatencyTable;
use crate::latency_graph::{self, BareNumbers};
use crate::open::{find_packed, open};
use crate::relays::Capacity;
use crate::shadow::{Config, Host, NetworkGraph, Role};
use crate::torrc::{self, Options};
use crate::{gml, graphml, shadow_file, shadow_yaml};

const CURE: &str = "give the folder of a Shadow simulation of Tor, as `tornettools generate` makes it";

/// Names of configurations, as tornettools and Shadow's examples write them.
const CONFIGS: [&str; 5] =
    ["shadow.config.yaml", "shadow.config.xml", "shadow.yaml", "shadow.yml", "shadow.xml"];
/// The folder of hosts' files.
const HOSTS: &str = "shadow.data.template/hosts";
/// Names of bandwidth files.
const WEIGHTS: [&str; 2] = ["v3bw.init.consensus", "v3bw"];
/// Weight of a relay that the bandwidth file does not name, kB/s: tor caps unmeasured relays there (dir-spec 3.4.2).
const UNMEASURED: f64 = 20.0;
/// Shadow's built-in graph (`network.graph.type`).
const ONE_GBIT_SWITCH: &str = "graph [ directed 0 node [ id 0 host_bandwidth_up \"1 Gbit\" host_bandwidth_down \"1 Gbit\" ] \
     edge [ source 0 target 0 latency \"1 ms\" packet_loss 0.0 ] ]";

/// A simulation.
pub struct Folder {
    /// The configuration's file.
    pub file: PathBuf,
    /// Its contents.
    pub config: Config,
    folder: PathBuf,
    /// Hosts with a tor that is a client by its options, whatever their names are.
    tor_clients: BTreeSet<String>,
    graph: OnceCell<(Document, Graph, BareNumbers)>,
}

/// Relays of a simulation.
#[derive(Debug, Default)]
pub struct Relays {
    /// By identity.
    pub relays: BTreeMap<Identity, Capacity>,
    /// Assumptions where the files are silent.
    pub assumed: Vec<String>,
}

/// The configuration in a folder, if there is one.
pub fn find(folder: &Path) -> Option<PathBuf> {
    CONFIGS.iter().map(|name| find_packed(folder, name)).find(|path| path.is_file())
}

impl Folder {
    /// Opens the simulation of a folder, or of a configuration's file.
    ///
    /// # Errors
    /// If the configuration is missing or malformed.
    pub fn open(place: &Path) -> Result<Folder, DataError> {
        let file = if place.is_dir() {
            find(place).unwrap_or_else(|| find_packed(place, CONFIGS[0]))
        } else {
            place.to_owned()
        };
        Folder::read(&file, &open(&file)?)
    }

    /// Reads a configuration that was opened at `file`.
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn read(file: &Path, document: &Document) -> Result<Folder, DataError> {
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        let config = shadow_file::read(document)?;
        let (tor_clients, graph) = (BTreeSet::new(), OnceCell::new());
        let mut folder = Folder { file: file.to_owned(), config, folder, tor_clients, graph };
        let relays = folder.config.hosts.iter().filter(|host| host.role() == Role::Relay);
        let clients = relays.filter(|host| is_client(&folder.options(host)));
        folder.tor_clients = clients.map(|host| host.name.clone()).collect();
        Ok(folder)
    }

    fn name(&self) -> String {
        self.file.display().to_string()
    }

    fn fail(&self, cause: String) -> DataError {
        DataError { file: self.name(), line: None, column: None, cause, cure: CURE.into() }
    }

    /// Finds a file that the configuration names, as a host sees it.
    ///
    /// Paths of other machines, where the network was generated, do not exist here; then the name counts.
    pub fn find(&self, host: &str, path: &str) -> Option<PathBuf> {
        let path = Path::new(path);
        let name = path.file_name()?.to_string_lossy().into_owned();
        let own = self.folder.join(HOSTS).join(host);
        let places = [own.join(path), self.folder.join(path)];
        let moved = [self.folder.join("conf"), self.folder.clone()];
        let found = places.into_iter().find(|place| place.is_file());
        let found = found
            .or_else(|| moved.iter().map(|folder| packed(folder, &name)).find(|place| place.is_file()))?;
        // Hosts name the same file in different ways.
        Some(found.canonicalize().unwrap_or(found))
    }

    /// The bandwidth file.
    fn weights(&self) -> Option<PathBuf> {
        let authorities = std::fs::read_dir(self.folder.join(HOSTS)).into_iter().flatten().flatten();
        let mut authorities: Vec<PathBuf> = authorities
            .map(|entry| entry.path())
            .filter(|path| path.to_string_lossy().contains("authority"))
            .collect();
        authorities.sort();
        let folders = std::iter::once(self.folder.clone()).chain(authorities);
        let mut places = folders.flat_map(|folder| WEIGHTS.map(|name| find_packed(&folder, name)));
        places.find(|place| place.is_file())
    }

    /// Whether the configuration lacks a graph, or names a file that does not exist here.
    pub fn lacks_graph(&self) -> bool {
        match &self.config.graph {
            NetworkGraph::Absent => true,
            NetworkGraph::File(path) => self.find("", path).is_none(),
            NetworkGraph::BuiltIn(_) | NetworkGraph::Inline(_) => false,
        }
    }

    /// The document of the graph, its contents, and what bare numbers mean in it.
    fn graph(&self) -> Result<&(Document, Graph, BareNumbers), DataError> {
        if let Some(graph) = self.graph.get() {
            return Ok(graph);
        }
        let inline = |text: &str| Document::new(format!("{} (its inline graph)", self.name()), text);
        let document = match &self.config.graph {
            NetworkGraph::Absent => return Err(self.fail("does not name a network graph".into())),
            NetworkGraph::BuiltIn(kind) if kind == "1_gbit_switch" => inline(ONE_GBIT_SWITCH)?,
            NetworkGraph::BuiltIn(kind) => {
                return Err(self.fail(format!("names the unknown network graph {}", quote(kind))));
            }
            NetworkGraph::File(path) => match self.find("", path) {
                Some(found) => open(&found)?,
                None => return Err(self.fail(format!("names the graph {path}, which does not exist"))),
            },
            NetworkGraph::Inline(text) => inline(text)?,
        };
        let (mut graph, bare) = if graphml::looks_like(&document) {
            (graphml::read(&document)?, BareNumbers::Shadow1)
        } else {
            (gml::read(&document)?, BareNumbers::Refused)
        };
        let known: BTreeSet<&str> = graph.nodes.iter().map(|node| node.id.as_str()).collect();
        let lost = |host: &&Host| host.node.as_deref().is_some_and(|node| !known.contains(node));
        if let Some(host) = self.config.hosts.iter().filter(lost).min_by_key(|host| host.line) {
            let (name, node) = (quote(&host.name), host.node.as_deref().unwrap_or_default());
            let cause = format!("host {name} is at node {node}, which {} lacks", document.name());
            let cure = "correct its `network_node_id`, or add the node to the graph".into();
            return Err(DataError { line: host.line, cure, ..self.fail(cause) });
        }
        if self.config.direct {
            // Shadow 1 has the same choice in the graph.
            graph.attributes.insert("preferdirectpaths".into(), "true".into());
        }
        Ok(self.graph.get_or_init(|| (document, graph, bare)))
    }

    /// Latencies between the nodes of the graph.
    ///
    /// # Errors
    /// If the graph is missing or malformed.
    pub fn latencies(&self) -> Result<LatencyTable, DataError> {
        let (document, graph, bare) = self.graph()?;
        latency_graph::table(document, graph, *bare)
    }

    /// Attributes of a host's node, or of the only node.
    fn node(&self, host: &Host) -> Option<&Attributes> {
        let nodes = &self.graph().ok()?.1.nodes;
        let node = match (&host.node, &nodes[..]) {
            (Some(id), _) => nodes.iter().find(|node| node.id == *id),
            (None, [only]) => Some(only),
            _ => None,
        };
        node.map(|node| &node.attributes)
    }

    /// The country of a host, by its hint or its node.
    pub fn country(&self, host: &Host) -> Option<Country> {
        let of_node = || {
            let node = self.node(host)?;
            ["country_code", "countrycode"].iter().find_map(|key| Country::from_code(node.get(*key)?))
        };
        host.country.or_else(of_node)
    }

    /// Rates of a host's link: its own, or those of its node. Out of the host, and into it.
    pub fn links(&self, host: &Host) -> [Option<Rate>; 2] {
        let of_node = |keys: [&str; 2]| {
            let node = self.node(host)?;
            let text = keys.iter().find_map(|key| node.get(*key))?;
            match text.parse::<u64>() {
                // Shadow 1 has bare KiB/s.
                Ok(kib) => Some(Rate::from_bytes_per_s(kib.saturating_mul(1024))),
                Err(_) => shadow_yaml::text_rate(text).ok(),
            }
        };
        [
            host.up.or_else(|| of_node(["host_bandwidth_up", "bandwidthup"])),
            host.down.or_else(|| of_node(["host_bandwidth_down", "bandwidthdown"])),
        ]
    }

    /// The role of a host, by its programs, its name and the options of its tor.
    pub fn role(&self, host: &Host) -> Role {
        match host.role() {
            Role::Relay if self.tor_clients.contains(&host.name) => Role::Other,
            role => role,
        }
    }

    /// The relays, each host as often as its `quantity` says: Shadow then numbers their names.
    fn relay_hosts(&self) -> Vec<Cow<'_, Host>> {
        let relays = self.config.hosts.iter().filter(|host| self.role(host) == Role::Relay);
        relays
            .flat_map(|host| match host.count {
                1 => vec![Cow::Borrowed(host)],
                count => (1..=count)
                    .map(|number| Host { name: format!("{}{number}", host.name), count: 1, ..host.clone() })
                    .map(Cow::Owned)
                    .collect(),
            })
            .collect()
    }

    /// The options of a host's tor, from its files and its command line.
    fn options(&self, host: &Host) -> Options {
        let mut options = Options::new();
        let words = words_of_tor(host);
        // Options of the file override its defaults, and the command line overrides both.
        for (named, usual) in named_torrcs(&words).into_iter().zip(["torrc-defaults", "torrc"]) {
            if let Some(file) = self.find(&host.name, named.unwrap_or(usual)) {
                torrc::read_options(&file, &mut options);
            }
        }
        torrc::read_arguments(&words, &mut options);
        options
    }

    /// The identity of a relay: of the bandwidth file, of its fingerprint file, or derived from its name.
    fn identity(&self, host: &Host) -> Identity {
        let path = self.folder.join(HOSTS).join(&host.name).join("fingerprint");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let hex: String = text.split_whitespace().skip(1).collect();
        Identity::from_hex(&hex).unwrap_or_else(|| Identity(Sha1::digest(host.name.as_bytes()).into()))
    }

    /// Reads the relays, with their links, limits, weights and flags.
    ///
    /// # Errors
    /// If no host is a relay, a relay lacks a bandwidth, or the graph or the bandwidth file is malformed.
    pub fn relays(&self) -> Result<Relays, DataError> {
        let hosts = self.relay_hosts();
        if hosts.is_empty() {
            return Err(self.fail(no_relay(&self.config)));
        }
        if !self.lacks_graph() {
            self.graph()?;
        }
        let weights = self.weights().map(|path| open(&path)).transpose()?;
        let weighed = weights.as_ref().map(weights_by_name).transpose()?;
        let mut found = Relays::default();
        let guards = self.guards();
        let (mut unweighed, mut total) = (0, 0.0);
        let lacks_torrc = |host: &&Cow<Host>| {
            let named = named_torrcs(&words_of_tor(host)).into_iter().flatten();
            named.into_iter().any(|path| self.find(&host.name, path).is_none())
        };
        let lacking: Vec<&str> = hosts.iter().filter(lacks_torrc).map(|host| host.name.as_str()).collect();
        if let [first, ..] = lacking[..] {
            found.assumed.push(format!(
                "relays whose torrc does not exist: {} ({first} is one); tor's defaults stand in",
                lacking.len()
            ));
        }
        for host in hosts {
            let mut capacity = self.capacity(&host, guards.as_deref())?;
            let named = weighed.as_ref().and_then(|weighed| weighed.get(host.name.as_str()));
            let identity = named.map_or_else(|| self.identity(&host), |(identity, _)| *identity);
            if let Some(guards) = &guards {
                capacity.guard = if guards.contains(&identity) { 1.0 } else { 0.0 };
            }
            capacity.weight = match (named, &weighed) {
                (Some((_, weight)), _) => *weight,
                (None, Some(_)) => UNMEASURED,
                (None, None) => capacity.capacity_bytes_per_s.min(capacity.rate_bytes_per_s) as f64 / 1000.0,
            };
            unweighed += u32::from(named.is_none());
            total += capacity.weight;
            found.relays.insert(identity, capacity);
        }
        // Weights are shares. Where all are zero, they stay zero, and clients choose uniformly.
        let scale = if total > 0.0 { total } else { 1.0 };
        found.relays.values_mut().for_each(|relay| relay.weight /= scale);
        match (&weights, unweighed) {
            (_, 0) => {}
            (Some(file), _) => found.assumed.push(format!(
                "relays that {} does not name: {unweighed}; each weighs {UNMEASURED} kB/s, as tor weighs unmeasured relays",
                file.name()
            )),
            (None, _) => found
                .assumed
                .push("the folder lacks a bandwidth file (v3bw.init.consensus); capacities are the weights".into()),
        }
        Ok(found)
    }

    /// Identities with the flag Guard, if an authority votes for them alone.
    fn guards(&self) -> Option<Vec<Identity>> {
        let authorities = self.config.hosts.iter().filter(|host| host.role() == Role::Authority);
        let lists = authorities.filter_map(|host| {
            let options = self.options(host);
            let list = options.get("testingdirauthvoteguard")?.last()?;
            let ids: Option<Vec<Identity>> =
                list.split(',').map(|id| Identity::from_hex(id.trim())).collect();
            ids
        });
        lists.into_iter().next()
    }

    fn capacity(&self, host: &Host, guards: Option<&[Identity]>) -> Result<Capacity, DataError> {
        let lacks = |what: &str| self.fail(format!("relay {} lacks {what}", quote(&host.name)));
        // A relay forwards each byte, so the slower direction limits it.
        let link = match self.links(host) {
            [Some(up), Some(down)] => up.min(down),
            _ => return Err(lacks("a bandwidth, and so does its node")),
        };
        let options = self.options(host);
        let of_name = |flag: &str| host.name.contains(flag);
        let named = self.config.hosts.iter().any(|host| host.name.contains("guard"));
        let policy = options.get("exitpolicy").and_then(|policies| policies.last());
        let accepts = policy.is_some_and(|policy| policy.trim_start().starts_with("accept"));
        let share = |flag: bool| if flag { 1.0 } else { 0.0 };
        Ok(Capacity {
            name: host.name.clone(),
            country: self.country(host),
            node: host.node.clone(),
            address: host.address,
            weight: 0.0,
            capacity_bytes_per_s: link.0 / 8,
            rate_bytes_per_s: torrc::bytes(&options, "bandwidthrate").unwrap_or(u64::MAX),
            burst_bytes: torrc::bytes(&options, "bandwidthburst").unwrap_or(u64::MAX),
            running: 1.0,
            // Without names that say so, and without votes, every relay can be a guard.
            guard: share(of_name("guard") || !named && guards.is_none()),
            exit: share(of_name("exit") || accepts),
        })
    }
}

/// The arguments of a host's tor.
fn words_of_tor(host: &Host) -> Vec<&str> {
    let tor = host.running("tor").next();
    tor.map_or(Vec::new(), |tor| tor.arguments.split_whitespace().collect())
}

/// The files that these arguments of tor name: those of defaults, then of options.
fn named_torrcs<'a>(words: &[&'a str]) -> [Option<&'a str>; 2] {
    ["--defaults-torrc", "-f"].map(|flag| words.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1]))
}

/// Whether a tor with these options is a client.
fn is_client(options: &Options) -> bool {
    let first_word = |key: &str| options.get(key)?.last()?.split_whitespace().next();
    first_word("clientonly") == Some("1") || first_word("orport") == Some("0")
}

/// The file in a folder, without or with its packing's ending.
fn packed(folder: &Path, name: &str) -> PathBuf {
    let plain = name.strip_suffix(".xz").or(name.strip_suffix(".gz")).unwrap_or(name);
    let exact = folder.join(name);
    if exact.is_file() { exact } else { find_packed(folder, plain) }
}

/// Why a configuration is not a network of Tor.
fn no_relay(config: &Config) -> String {
    let mut programs: Vec<&str> = config
        .hosts
        .iter()
        .flat_map(|host| &host.processes)
        .map(|process| process.program.as_str())
        .collect();
    programs.sort_unstable();
    programs.dedup();
    let run = if programs.is_empty() { "no program".to_owned() } else { programs.join(", ") };
    format!("is a configuration of Shadow without a relay of Tor: its hosts run {run}")
}

/// Identity and weight by name. Relays with `vote=0` do not count, as in tor.
fn weights_by_name(weights: &Document) -> Result<BTreeMap<&str, (Identity, f64)>, DataError> {
    let relays = read_relays(weights.text()).map_err(|error| {
        weights.error_at(error.line, error.cause, "give the bandwidth file that tornettools wrote")
    })?;
    let named = relays.into_iter().filter(|relay| relay.votes);
    Ok(named.filter_map(|relay| Some((relay.nickname?, (Identity(relay.id), relay.weight as f64)))).collect())
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;

    /// A folder that is removed when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str, files: &[(&str, &str)]) -> Place {
            let path = std::env::temp_dir().join(format!("tidegate-folder-{name}-{}", std::process::id()));
            for (file, text) in files {
                let file = path.join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            Place(path)
        }

        fn open(&self) -> Folder {
            Folder::open(&self.0).unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const CONFIG: &str = include_str!("../fixtures/shadow.config.yaml");
    const NODES: &str = "graph [ directed 0 node [ id 0 country_code \"US\" ] node [ id 7 country_code \"DE\" ]\n\
        edge [ source 0 target 0 latency \"1 ms\" ] edge [ source 7 target 7 latency \"1 ms\" ]\n\
        edge [ source 0 target 7 latency \"90 ms\" ] ]";

    fn weights() -> String {
        let line = |byte: &str, rest: &str| format!("node_id=${}\t{rest}\n", byte.repeat(20));
        "1\n".to_owned() + &line("0a", "bw=3\tnick=relay1exitguard") + &line("0b", "bw=1\tnick=relay2guard")
    }

    #[test]
    fn relays_have_links_limits_weights_countries_and_nodes() {
        let place = Place::new(
            "relays",
            &[
                ("shadow.config.yaml", CONFIG),
                ("conf/network.gml", NODES),
                ("conf/common.torrc", "BandwidthRate 1 KB\n"),
                ("shadow.data.template/hosts/bwauthority/v3bw", &weights()),
                (
                    "shadow.data.template/hosts/relay2guard/torrc-defaults",
                    "%include ../../../conf/common.torrc\nBandwidthRate 102400\n",
                ),
            ],
        );
        let folder = place.open();
        let Relays { relays, assumed } = folder.relays().unwrap();
        let (one, two) = (&relays[&Identity([10; 20])], &relays[&Identity([11; 20])]);
        assert_eq!((one.name.as_str(), one.weight, one.exit, one.guard), ("relay1exitguard", 0.75, 1.0, 1.0));
        assert_eq!(
            (one.capacity_bytes_per_s, one.rate_bytes_per_s, one.burst_bytes),
            (11_885_000, 5_000, 6_000)
        );
        assert_eq!((one.country, two.country), (Country::from_code("DE"), Country::from_code("NL")));
        assert_eq!((one.node.as_deref(), two.node.as_deref()), (Some("7"), None));
        assert_eq!((two.exit, two.capacity_bytes_per_s), (0.0, 125_000), "the slower direction");
        assert_eq!(two.rate_bytes_per_s, 102_400, "of its torrc");
        assert!(assumed.is_empty(), "{assumed:?}");
        assert_eq!(folder.latencies().unwrap().path(0, 1).delay, Span::from_millis(90));
    }

    #[test]
    fn a_small_network_has_inline_links_votes_and_policies() {
        let config = "network: {graph: {type: 1_gbit_switch}}\nhosts:\n\
            \x20 4uthority: {processes: [{path: tor, args: -f torrc}]}\n\
            \x20 alpha: {network_node_id: 0, processes: [{path: tor}]}\n\
            \x20 beta: {network_node_id: 0, processes: [{path: tor}]}\n\
            \x20 gamma: {network_node_id: 0, processes: [{path: tor}]}\n";
        let votes = format!("TestingDirAuthVoteGuard {},{}\n", "0a".repeat(20), "0b".repeat(20));
        let weights = weights().replace("relay1exitguard", "alpha").replace("relay2guard", "beta");
        let place = Place::new(
            "small",
            &[
                ("shadow.yaml", config),
                ("shadow.data.template/hosts/4uthority/torrc", &votes),
                ("shadow.data.template/hosts/gamma/torrc", "ExitPolicy \"accept *:*\"\n"),
                ("shadow.data.template/hosts/gamma/fingerprint", &format!("gamma {}\n", "0C".repeat(20))),
                ("shadow.data.template/hosts/torflowauthority/v3bw", &weights),
            ],
        );
        let folder = place.open();
        let Relays { relays, assumed } = folder.relays().unwrap();
        let gamma = &relays[&Identity([12; 20])];
        assert_eq!((gamma.guard, gamma.exit, gamma.capacity_bytes_per_s), (0.0, 1.0, 125_000_000));
        assert_eq!(relays[&Identity([10; 20])].guard, 1.0);
        assert!(assumed[0].contains("does not name: 1; each weighs 20 kB/s"), "{assumed:?}");
        assert_eq!(folder.latencies().unwrap().path(0, 0).delay, Span::from_millis(1));
        std::fs::remove_file(place.0.join("shadow.data.template/hosts/torflowauthority/v3bw")).unwrap();
        let assumed = place.open().relays().unwrap().assumed;
        assert!(assumed[0].contains("lacks a bandwidth file"), "{assumed:?}");
    }

    #[test]
    fn hosts_alike_are_counted_and_clients_are_no_relays() {
        let config = "network: {graph: {type: 1_gbit_switch}}\nhosts:\n\
            \x20 middle: {network_node_id: 0, quantity: 3, processes: [{path: tor}]}\n\
            \x20 visitor: {network_node_id: 0, processes: [{path: tor}, {path: curl}]}\n\
            \x20 walker: {network_node_id: 0, processes: [{path: tor, args: --ClientOnly 1}]}\n\
            \x20 builds: {network_node_id: 0, processes: [{path: /opt/tor-0.4.8, args: -f conf/no.torrc}]}\n";
        let place = Place::new(
            "alike",
            &[("shadow.yaml", config), ("shadow.data.template/hosts/visitor/torrc", "ORPort 0\n")],
        );
        let folder = place.open();
        let names: Vec<String> = folder
            .relays()
            .unwrap()
            .relays
            .into_values()
            .map(|relay| relay.name)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        assert_eq!(names, ["builds", "middle1", "middle2", "middle3"]);
        let assumed = folder.relays().unwrap().assumed.join("\n");
        assert!(assumed.contains("torrc does not exist: 1 (builds is one)"), "{assumed}");
        let roles: Vec<Role> = folder.config.hosts.iter().map(|host| folder.role(host)).collect();
        assert_eq!(roles, [Role::Relay, Role::Relay, Role::Other, Role::Other]);
    }

    #[test]
    fn other_configurations_say_what_they_are() {
        let web = "network: {graph: {type: 1_gbit_switch}}\nhosts: {a: {processes: [{path: /usr/bin/curl}]}}";
        let slow = "hosts: {relay1: {processes: [{path: tor}]}}";
        for (name, config, cause) in [
            ("web", web, "without a relay of Tor: its hosts run curl"),
            ("slow", slow, "`relay1` lacks a bandwidth"),
        ] {
            let place = Place::new(name, &[("shadow.yaml", config)]);
            let refused = place.open().relays().unwrap_err();
            assert!(refused.cause.contains(cause), "{refused}");
        }
        // The graph lacks node 7 of the configuration; the other graph is cut off.
        for (name, graph, file, line, cause) in [
            (
                "node",
                NODES.replace("id 7", "id 8").replace(" 7", " 8"),
                "shadow.config.yaml",
                20,
                "at node 7, which",
            ),
            ("cut", NODES[..100].to_owned(), "network.gml", 2, "lacks a value"),
        ] {
            let place = Place::new(name, &[("shadow.config.yaml", CONFIG), ("conf/network.gml", &graph)]);
            let refused = place.open().relays().unwrap_err();
            assert!(refused.cause.contains(cause) && refused.file.ends_with(file), "{refused}");
            assert_eq!(refused.line, Some(line), "{refused}");
        }
        let place = Place::new("none", &[("readme", "x")]);
        assert!(Folder::open(&place.0).err().unwrap().file.ends_with("shadow.config.yaml"));
    }
}
