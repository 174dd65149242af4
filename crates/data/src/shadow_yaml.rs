//! Relays of a Shadow 2 or 3 configuration by `tornettools generate`.
//!
//! The reader takes links and limits of relays, the numbers of clients and servers, and the graph's name. Consensus
//! weights are in a separate bandwidth file.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::Deserialize;
use tidegate_control::units::Rate;

use crate::consensus::Identity;
use crate::country::Country;
use crate::document::{DataError, Document, quote};
use crate::relays::Capacity;
use crate::shadow::{limit, weights_by_name};

const CURE: &str = "give the shadow.config.yaml of `tornettools generate`, in its folder";

/// The used part of the file.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    network: Network,
    hosts: BTreeMap<String, Host>,
}

#[derive(Default, Deserialize)]
struct Network {
    #[serde(default)]
    graph: Graph,
}

#[derive(Default, Deserialize)]
struct Graph {
    path: Option<String>,
    file: Option<GraphFile>,
}

#[derive(Deserialize)]
struct GraphFile {
    path: String,
}

#[derive(Deserialize)]
struct Host {
    network_node_id: Option<u64>,
    bandwidth_up: Option<String>,
    bandwidth_down: Option<String>,
    ip_addr: Option<String>,
    #[serde(default)]
    options: Hints,
    #[serde(default)]
    processes: Vec<Process>,
}

/// Location hints of a host, from before hosts named their nodes.
#[derive(Default, Deserialize)]
struct Hints {
    ip_address_hint: Option<String>,
    country_code_hint: Option<String>,
}

#[derive(Deserialize)]
struct Process {
    #[serde(default)]
    path: String,
    #[serde(default)]
    args: Arguments,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Arguments {
    Line(String),
    List(Vec<String>),
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments::List(Vec::new())
    }
}

/// The other contents of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Path of the graph, as in the file.
    pub graph: Option<String>,
    /// Number of hosts by kind: the name without its number (`perfclientexit`).
    pub kinds: BTreeMap<String, u32>,
    /// Programs besides tor and tgen.
    pub programs: Vec<String>,
}

fn parse(config: &Document) -> Result<Config, DataError> {
    serde_saphyr::from_str(config.text()).map_err(|error| {
        let line = error.location().map(|place| place.line() as usize);
        let cause = error.without_snippet().to_string();
        let cause = format!("is not a configuration of Shadow: {}", cause.lines().next().unwrap_or_default());
        match line.filter(|line| *line > 0) {
            Some(line) => config.error_at(line, cause, CURE),
            None => config.error(cause, CURE),
        }
    })
}

/// Reads the contents of a configuration besides relays.
///
/// # Errors
/// If the document is not a configuration.
pub fn contents(config: &Document) -> Result<Contents, DataError> {
    let Config { network, hosts } = parse(config)?;
    let Graph { path, file } = network.graph;
    let mut contents = Contents { graph: path.or(file.map(|file| file.path)), ..Contents::default() };
    for (name, host) in &hosts {
        let kind = name.chars().filter(|c| !c.is_ascii_digit()).collect();
        *contents.kinds.entry(kind).or_default() += 1;
        let programs =
            host.processes.iter().map(|process| process.path.rsplit('/').next().unwrap_or_default());
        contents
            .programs
            .extend(programs.filter(|program| !["tor", "tgen"].contains(program)).map(str::to_owned));
    }
    contents.programs.sort();
    contents.programs.dedup();
    Ok(contents)
}

/// Reads the relays of a configuration.
///
/// `weights` is the bandwidth file that names them (`nick=`); `country` returns the country of a node of the graph.
///
/// # Errors
/// If a document is malformed, or the two documents do not have any relay in common.
pub fn relays(
    config: &Document,
    weights: &Document,
    country: &dyn Fn(u64) -> Option<Country>,
) -> Result<BTreeMap<Identity, Capacity>, DataError> {
    let weighed = weights_by_name(weights)?;
    let total: f64 = weighed.values().map(|(_, weight)| weight).sum();
    let mut relays = BTreeMap::new();
    for (name, host) in parse(config)?.hosts {
        let Some((identity, weight)) = weighed.get(name.as_str()).filter(|_| name.starts_with("relay"))
        else {
            continue;
        };
        let fail = |what: String| config.error(format!("relay {} {what}", quote(&name)), CURE);
        let rate = |text: &Option<String>| {
            let text = text.as_deref().ok_or_else(|| fail("lacks a bandwidth".into()))?;
            let rate: Result<Rate, _> = shadows(text).parse();
            rate.map_err(|error| fail(format!("has a bad bandwidth: {error}")))
        };
        let link = rate(&host.bandwidth_up)?.min(rate(&host.bandwidth_down)?);
        // Old tornettools writes hints, current versions the node of the graph.
        let hinted = host.options.country_code_hint.as_deref().and_then(Country::from_code);
        let address = host.ip_addr.or(host.options.ip_address_hint);
        let share = |flag: bool| if flag { 1.0 } else { 0.0 };
        let mut capacity = Capacity {
            name: name.clone(),
            country: hinted.or_else(|| country(host.network_node_id?)),
            address: address.and_then(|text| text.parse::<Ipv4Addr>().ok()),
            weight: weight / total,
            capacity_bytes_per_s: link.0 / 8,
            rate_bytes_per_s: u64::MAX,
            burst_bytes: u64::MAX,
            running: 1.0,
            guard: share(name.contains("guard")),
            exit: share(name.contains("exit")),
        };
        for process in &host.processes {
            match &process.args {
                Arguments::Line(line) => limit(&mut capacity, line),
                Arguments::List(words) => limit(&mut capacity, &words.join(" ")),
            }
        }
        relays.insert(*identity, capacity);
    }
    if relays.is_empty() {
        return Err(config.error("does not hold any relay of the bandwidth file", CURE));
    }
    Ok(relays)
}

/// Converts Shadow's units to ours: `95080 kilobit`, `1 Gibit`.
fn shadows(text: &str) -> String {
    let short = [("kilobit", "kbit"), ("megabit", "Mbit"), ("gigabit", "Gbit")];
    short.iter().fold(text.to_owned(), |text, (long, short)| text.replace(long, short))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = include_str!("../fixtures/shadow.config.yaml");

    fn weights() -> Document {
        let line = |byte: &str, rest: &str| format!("node_id=${}\t{rest}\n", byte.repeat(20));
        let lines = line("0a", "bw=3\tnick=relay1exitguard") + &line("0b", "bw=1\tnick=relay2guard");
        Document::new("v3bw", format!("1\n{lines}")).unwrap()
    }

    fn document(text: &str) -> Document {
        Document::new("shadow.config.yaml", text).unwrap()
    }

    #[test]
    fn relays_have_links_limits_weights_and_countries() {
        let of_node = |node| Country::from_code(if node == 7 { "DE" } else { "FR" });
        let relays = relays(&document(CONFIG), &weights(), &of_node).unwrap();
        let (one, two) = (&relays[&Identity([10; 20])], &relays[&Identity([11; 20])]);
        assert_eq!((one.name.as_str(), one.weight, one.exit, one.guard), ("relay1exitguard", 0.75, 1.0, 1.0));
        assert_eq!(
            (one.capacity_bytes_per_s, one.rate_bytes_per_s, one.burst_bytes),
            (11_885_000, 5_000, 6_000)
        );
        assert_eq!((one.country, two.country), (Country::from_code("DE"), Country::from_code("NL")));
        assert_eq!((two.exit, two.capacity_bytes_per_s), (0.0, 125_000), "the slower direction");
    }

    #[test]
    fn clients_servers_and_the_graph_are_known() {
        let contents = contents(&document(CONFIG)).unwrap();
        assert_eq!(contents.graph.as_deref(), Some("conf/network.gml"));
        let counts = ["perfclientexit", "markovclientexit", "serverexit"].map(|kind| contents.kinds[kind]);
        assert_eq!(counts, [1, 2, 1]);
        assert_eq!(contents.programs, ["oniontrace"]);
    }

    #[test]
    fn other_documents_are_refused() {
        let none = |_| None;
        for (bad, cause) in [
            ("hosts: [1, 2]", "is not a configuration of Shadow"),
            ("hosts: {}", "hold any relay"),
            (
                "hosts: {relay1exitguard: {bandwidth_up: 3 shoes, bandwidth_down: 1 Mbit}}",
                "has a bad bandwidth",
            ),
            ("hosts: {relay1exitguard: {bandwidth_up: 1 Mbit}}", "lacks a bandwidth"),
            ("a: &a [x]\nb: &b [*a, *a, *a]\nhosts: *b", "is not a configuration of Shadow"),
        ] {
            let refused = relays(&document(bad), &weights(), &none).unwrap_err();
            assert!(refused.cause.contains(cause), "{bad}: {refused}");
        }
        let line = contents(&document("hosts:\n  relay1:\n    network_node_id: x\n")).unwrap_err();
        assert_eq!(line.line, Some(3), "{line}");
    }
}
