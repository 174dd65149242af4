//! Reader of Shadow 2's and 3's configurations (`shadow.config.yaml`).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::Deserialize;
use tidegate_control::units::Rate;

use crate::country::Country;
use crate::document::{DataError, Document, quote};
use crate::shadow::{self, Config, Host, NetworkGraph, Process, program};

const CURE: &str = "give the configuration of a Shadow simulation, such as shadow.config.yaml";

/// The used part of the file.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    general: General,
    #[serde(default)]
    network: Network,
    hosts: BTreeMap<String, FileHost>,
}

#[derive(Default, Deserialize)]
struct General {
    stop_time: Option<Text>,
}

#[derive(Default, Deserialize)]
struct Network {
    #[serde(default)]
    graph: Graph,
    use_shortest_path: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Graph {
    #[serde(rename = "type")]
    kind: Option<String>,
    /// As Shadow 2.0 had it.
    path: Option<String>,
    file: Option<GraphFile>,
    inline: Option<String>,
}

#[derive(Deserialize)]
struct GraphFile {
    path: String,
}

#[derive(Deserialize)]
struct FileHost {
    network_node_id: Option<u64>,
    bandwidth_up: Option<Text>,
    bandwidth_down: Option<Text>,
    ip_addr: Option<String>,
    quantity: Option<u32>,
    #[serde(default)]
    options: Hints,
    #[serde(default)]
    processes: Vec<FileProcess>,
}

/// Location hints of a host, from before hosts named their nodes.
#[derive(Default, Deserialize)]
struct Hints {
    ip_address_hint: Option<String>,
    country_code_hint: Option<String>,
}

#[derive(Deserialize)]
struct FileProcess {
    #[serde(default)]
    path: String,
    #[serde(default)]
    args: Arguments,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Arguments {
    Line(String),
    List(Vec<Text>),
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments::List(Vec::new())
    }
}

/// A text, or a number in its base unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Number(u64),
    Text(String),
}

impl Text {
    fn to_text(&self) -> String {
        match self {
            Text::Number(number) => number.to_string(),
            Text::Text(text) => text.clone(),
        }
    }
}

/// Whether the document looks like a configuration of Shadow 2 or 3.
pub(crate) fn looks_like(document: &Document) -> bool {
    let has = |key: &str| document.lines().any(|(_, line)| line.starts_with(key));
    has("hosts:") && (has("network:") || has("general:") || document.text().contains("processes:"))
}

/// Reads a configuration.
///
/// # Errors
/// If the document is not YAML of Shadow 2 or 3, or a quantity is malformed.
pub(crate) fn read(document: &Document) -> Result<Config, DataError> {
    let file: File = serde_saphyr::from_str(document.text()).map_err(|error| {
        let line = error.location().map(|place| place.line() as usize);
        let cause = error.without_snippet().to_string();
        let cause = format!("is not a configuration of Shadow: {}", cause.lines().next().unwrap_or_default());
        match line.filter(|line| *line > 0) {
            Some(line) => document.error_at(line, cause, CURE),
            None => document.error(cause, CURE),
        }
    })?;
    let Graph { kind, path, file: graph, inline } = file.network.graph;
    let graph = match (inline, path.or(graph.map(|graph| graph.path)), kind) {
        (Some(text), ..) => NetworkGraph::Inline(text),
        (_, Some(path), _) => NetworkGraph::File(path),
        (_, _, Some(kind)) => NetworkGraph::BuiltIn(kind),
        _ => NetworkGraph::Absent,
    };
    let hosts = file.hosts.into_iter().map(|(name, host)| read_host(document, name, host));
    Ok(Config {
        hosts: hosts.collect::<Result<_, _>>()?,
        graph,
        direct: file.network.use_shortest_path == Some(false),
        stop: file.general.stop_time.and_then(|time| match time {
            Text::Number(seconds) => shadow::seconds(seconds),
            Text::Text(text) => text.parse().ok(),
        }),
    })
}

fn read_host(document: &Document, name: String, host: FileHost) -> Result<Host, DataError> {
    let rate = |rate: Option<Text>| match rate {
        None => Ok(None),
        Some(Text::Number(bits)) => Ok(Some(Rate(bits))),
        Some(Text::Text(text)) => text_rate(&text)
            .map(Some)
            .map_err(|why| document.error(format!("host {} has a bad bandwidth: {why}", quote(&name)), CURE)),
    };
    // Old tornettools writes hints, current versions the node of the graph.
    let address = host.ip_addr.or(host.options.ip_address_hint);
    let process = |process: FileProcess| Process {
        program: program(&process.path),
        arguments: match process.args {
            Arguments::Line(line) => line,
            Arguments::List(words) => words.iter().map(Text::to_text).collect::<Vec<_>>().join(" "),
        },
    };
    Ok(Host {
        count: host.quantity.unwrap_or(1),
        node: host.network_node_id.map(|node| node.to_string()),
        country: host.options.country_code_hint.as_deref().and_then(Country::from_code),
        address: address.and_then(|text| text.parse::<Ipv4Addr>().ok()),
        up: rate(host.bandwidth_up)?,
        down: rate(host.bandwidth_down)?,
        processes: host.processes.into_iter().map(process).collect(),
        name,
    })
}

/// Reads a rate in Shadow's units: `95080 kilobit`, `1 Gibit`, `100 Mbit`. A bare number is bits per second.
pub(crate) fn text_rate(text: &str) -> Result<Rate, String> {
    if let Ok(bits) = text.trim().parse() {
        return Ok(Rate(bits));
    }
    let long = [
        ("kilo", "K"),
        ("kibi", "Ki"),
        ("mega", "M"),
        ("mebi", "Mi"),
        ("giga", "G"),
        ("gibi", "Gi"),
        ("tera", "T"),
        ("tebi", "Ti"),
    ];
    let short = long.iter().fold(text.to_owned(), |text, (long, short)| text.replace(long, short));
    let short = short.replace("bits", "bit").replace("Kbit", "kbit");
    short.parse().map_err(|error| format!("{error}"))
}

#[cfg(test)]
mod tests {
    use tidegate_control::units::Span;

    use super::*;
    use crate::shadow::Role;

    const CONFIG: &str = include_str!("../fixtures/shadow.config.yaml");

    fn parse(text: &str) -> Result<Config, DataError> {
        read(&Document::new("shadow.config.yaml", text).unwrap())
    }

    #[test]
    fn hosts_have_links_nodes_and_programs() {
        let config = parse(CONFIG).unwrap();
        assert_eq!(config.graph, NetworkGraph::File("conf/network.gml".into()));
        assert!(config.direct);
        assert_eq!(config.stop, Some(Span::from_secs(3600)));
        let host = |name: &str| config.hosts.iter().find(|host| host.name == name).unwrap();
        let relay = host("relay1exitguard");
        assert_eq!((relay.up, relay.node.as_deref()), (Some(Rate(95_080_000)), Some("7")));
        let hinted = host("relay2guard");
        assert_eq!((hinted.country, hinted.role()), (Country::from_code("NL"), Role::Relay));
        assert_eq!((hinted.up, hinted.down), (Some(Rate(1_000_000)), Some(Rate(1_000_000_000))));
        assert_eq!(hinted.processes[0].arguments, "--Address relay2guard");
        let clients = config.hosts.iter().filter(|host| host.role() == Role::Client).count();
        assert_eq!(clients, 3);
    }

    #[test]
    fn inline_graphs_anchors_and_bare_numbers_are_read() {
        let config = parse(
            "general:\n  stop_time: 30 min\nnetwork:\n  graph:\n    type: gml\n    inline: |\n      graph [\n      ]\n\
             hosts:\n  a: &host\n    network_node_id: 0\n    bandwidth_up: 1000000\n    quantity: 3\n\
             \x20   processes:\n    - path: /usr/bin/curl\n      args: [-s, 5]\n  b: *host\n",
        )
        .unwrap();
        assert_eq!(config.graph, NetworkGraph::Inline("graph [\n]\n".into()));
        assert_eq!(config.stop, Some(Span::from_secs(1800)));
        assert!(!config.direct);
        assert_eq!(config.hosts.len(), 2);
        let host = &config.hosts[1];
        assert_eq!((host.up, host.count), (Some(Rate(1_000_000)), 3));
        assert_eq!(host.processes[0], Process { program: "curl".into(), arguments: "-s 5".into() });
        let built_in = parse("network: {graph: {type: 1_gbit_switch}}\nhosts: {}").unwrap();
        assert_eq!(built_in.graph, NetworkGraph::BuiltIn("1_gbit_switch".into()));
    }

    #[test]
    fn rates_have_shadows_units() {
        for (text, bits) in [
            ("95080 kilobit", 95_080_000),
            ("10 Kbit", 10_000),
            ("1 Gibit", 1 << 30),
            ("2 mebibit", 2 << 20),
            ("3 gigabits", 3_000_000_000),
            ("81920 Kibit", 81_920 << 10),
        ] {
            assert_eq!(text_rate(text), Ok(Rate(bits)), "{text}");
        }
        assert!(text_rate("3 shoes").is_err());
    }

    #[test]
    fn other_documents_are_refused() {
        for (bad, cause) in [
            ("hosts: [1, 2]", "is not a configuration of Shadow"),
            ("general: {}", "is not a configuration of Shadow"),
            ("hosts: {relay1: {bandwidth_up: 3 shoes}}", "has a bad bandwidth"),
            ("a: &a [x]\nb: &b [*a, *a, *a]\nhosts: *b", "is not a configuration of Shadow"),
        ] {
            let refused = parse(bad).unwrap_err();
            assert!(refused.cause.contains(cause), "{bad}: {refused}");
        }
        let line = parse("hosts:\n  relay1:\n    network_node_id: x\n").unwrap_err();
        assert_eq!(line.line, Some(3), "{line}");
    }
}
