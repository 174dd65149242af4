//! Reader of Shadow 2's and 3's configurations (`shadow.config.yaml`).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tidegate_control::units::Rate;

use crate::country::Country;
use crate::document::{DataError, Document, quote};
use crate::shadow::{self, Config, Host, NetworkGraph, Process, program};

const CURE: &str = "give the configuration of a Shadow simulation, such as shadow.config.yaml";

/// The cure of a rate that Shadow does not know.
pub(crate) const RATES: &str = "write a number and bit, kilobit (Kbit), megabit (Mbit), gigabit (Gbit) or terabit (Tbit), \
     or kibibit (Kibit) and so on; a bare number is bits per second";

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
    stop_time: Option<Scalar>,
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
    network_node_id: Option<Spanned<u64>>,
    bandwidth_up: Option<Spanned<Scalar>>,
    bandwidth_down: Option<Spanned<Scalar>>,
    ip_addr: Option<String>,
    quantity: Option<Spanned<Scalar>>,
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
    quantity: Option<Spanned<Scalar>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Arguments {
    Line(String),
    List(Vec<Scalar>),
}

impl Default for Arguments {
    fn default() -> Arguments {
        Arguments::List(Vec::new())
    }
}

/// A text, or a number in its base unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Number(u64),
    Real(f64),
    Text(String),
}

impl Scalar {
    fn to_text(&self) -> String {
        match self {
            Scalar::Number(number) => number.to_string(),
            Scalar::Real(number) => number.to_string(),
            Scalar::Text(text) => text.clone(),
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
    let file: File = serde_saphyr::from_str(document.text()).map_err(|error| malformed(document, &error))?;
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
            Scalar::Number(seconds) => shadow::seconds(seconds),
            other => other.to_text().parse().ok(),
        }),
    })
}

/// The error of a document that is not YAML, or lacks the structure of a configuration.
fn malformed(document: &Document, error: &serde_saphyr::Error) -> DataError {
    let text = error.without_snippet().to_string();
    // The library's text ends with the place, and its hint is about its own options.
    let text = text.lines().next().unwrap_or_default().split(" at line ").next().unwrap_or_default();
    let (cause, cure) = match text.split_once(", set DuplicateKeyPolicy") {
        Some((cause, _)) => (cause, "keep one of them"),
        None => (text, CURE),
    };
    let cause = format!("is not a configuration of Shadow: {cause}");
    match error.location().filter(|place| place.line() > 0) {
        Some(place) => DataError {
            line: Some(place.line() as usize),
            column: Some(place.column() as usize),
            ..document.error(cause, cure)
        },
        None => document.error(cause, cure),
    }
}

fn read_host(document: &Document, name: String, host: FileHost) -> Result<Host, DataError> {
    let fail = |place: &Spanned<Scalar>, cause: String, cure: &str| {
        let cause = format!("host {} {cause}", quote(&name));
        document.error_at(place.referenced.line() as usize, cause, cure)
    };
    let rate = |rate: Option<Spanned<Scalar>>| {
        let Some(rate) = rate else { return Ok(None) };
        text_rate(&rate.value.to_text())
            .map(Some)
            .map_err(|cause| fail(&rate, format!("has a bad bandwidth: {cause}"), RATES))
    };
    let quantity = |number: Option<Spanned<Scalar>>| {
        let Some(number) = number else { return Ok(1) };
        let text = number.value.to_text();
        let cause = || format!("has the `quantity` {}", quote(&text));
        shadow::quantity(&text).ok_or_else(|| fail(&number, cause(), shadow::QUANTITY))
    };
    // Old tornettools writes hints, current versions the node of the graph.
    let address = host.ip_addr.or(host.options.ip_address_hint);
    let process = |process: FileProcess| {
        Ok(Process {
            program: program(&process.path),
            arguments: match process.args {
                Arguments::Line(line) => line,
                Arguments::List(words) => words.iter().map(Scalar::to_text).collect::<Vec<_>>().join(" "),
            },
            count: quantity(process.quantity)?,
        })
    };
    Ok(Host {
        count: quantity(host.quantity)?,
        line: host.network_node_id.as_ref().map(|node| node.referenced.line() as usize),
        node: host.network_node_id.map(|node| node.value.to_string()),
        country: host.options.country_code_hint.as_deref().and_then(Country::from_code),
        address: address.and_then(|text| text.parse::<Ipv4Addr>().ok()),
        up: rate(host.bandwidth_up)?,
        down: rate(host.bandwidth_down)?,
        processes: host.processes.into_iter().map(process).collect::<Result<_, _>>()?,
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
    short.parse().map_err(|_| format!("{} is not a rate", quote(text)))
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
        let curl = Process { program: "curl".into(), arguments: "-s 5".into(), count: 1 };
        assert_eq!(host.processes[0], curl);
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

    #[test]
    fn wrong_values_have_their_line_and_the_cure_of_shadow() {
        let processes = "processes:\n    - {path: tor, quantity: 0}";
        for (key, cause, cure) in [
            ("bandwidth_up: 95 furlong", "`95 furlong` is not a rate", "megabit (Mbit)"),
            ("bandwidth_down: 1.5", "`1.5` is not a rate", "megabit (Mbit)"),
            ("quantity: -2", "host `relay1` has the `quantity` `-2`", "from 1 to 1000000"),
            ("quantity: 0", "`quantity` `0`", "from 1 to 1000000"),
            ("quantity: 9000000000", "`quantity` `9000000000`", "from 1 to 1000000"),
            (processes, "host `relay1` has the `quantity` `0`", "from 1 to 1000000"),
        ] {
            let error = parse(&format!("hosts:\n  relay1:\n    {key}\n")).unwrap_err();
            assert!(error.cause.contains(cause) && error.cure.contains(cure), "{key}: {error}");
            assert_eq!(error.line, Some(3 + key.matches('\n').count()), "{key}: {error}");
        }
        let twice = parse("hosts:\n  a: {}\n  b: {}\n  a: {}\n").unwrap_err();
        assert_eq!((twice.line, twice.column, twice.cure.as_str()), (Some(4), Some(3), "keep one of them"));
        assert!(twice.cause.ends_with("duplicate mapping key: a"), "{twice}");
    }
}
