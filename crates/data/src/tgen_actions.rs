//! Reader of tgen's action graphs (GraphML): what a client fetches, and when.
//!
//! The id of a node says which action it is: the first of `start`, `end`, `pause`, `stream`, `flow` and `traffic` that
//! it contains, as in tgen. Attributes mean different things for different actions: `time` is a pause's duration and
//! a condition of `end`.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::units::Span;

use crate::document::{DataError, Document, quote};
use crate::graph::{Edge, Graph, Node};
use crate::graphml;

const CURE: &str = "give an action graph that tgen accepts";

/// The behaviour of a client: pauses, and requests that it chooses by weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actions {
    /// The pause between requests.
    pub pause: Option<Pause>,
    /// The requests, in the order of the file.
    pub requests: Vec<Request>,
    /// Reasons for which parts of the graph cannot be simulated.
    pub left: Vec<String>,
    /// Whether the client fetches from onion services only.
    pub onion_service: bool,
    /// Whether it only serves: it listens, and has neither streams nor models.
    pub serves: bool,
    /// The Markov models that it follows (`flow`, `traffic`).
    pub models: Option<Models>,
}

/// The Markov models of an action, as paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Models {
    /// When the client builds circuits (`flowmodelpath`).
    pub flows: Option<String>,
    /// When it opens streams on a circuit (`streammodelpath`).
    pub streams: Option<String>,
    /// When a stream carries packets (`packetmodelpath`).
    pub packets: Option<String>,
    /// Time after which the client gives up a stream.
    pub timeout: Option<Span>,
}

/// A pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Its shortest and longest duration; tgen draws one of a list.
    pub time: [Span; 2],
    /// Whether it leads to itself: it then goes on while requests are under way.
    pub again: bool,
}

/// A request (`stream`).
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The action's id.
    pub name: String,
    /// Bytes from the server.
    pub size: u64,
    /// Bytes to the server.
    pub sent: Option<u64>,
    /// Time after which the client gives up.
    pub timeout: Option<Span>,
    /// Relative frequency; zero if tgen never chooses it.
    pub weight: f64,
}

/// The kinds of actions, in the order in which tgen looks for them in an id.
const KINDS: [&str; 6] = ["start", "end", "pause", "stream", "flow", "traffic"];

fn kind(node: &Node) -> Option<&'static str> {
    KINDS.into_iter().find(|kind| node.id.contains(kind))
}

/// Reads an action graph.
///
/// # Errors
/// If the document is not GraphML, lacks `start`, has an action of an unknown kind, or a time or size that tgen does
/// not know.
pub fn read(document: &Document) -> Result<Actions, DataError> {
    let mut graph = graphml::read(document)?;
    // tgen takes an empty attribute for one that is not set.
    let attributes = graph.nodes.iter_mut().map(|node| &mut node.attributes);
    let attributes = attributes.chain(graph.edges.iter_mut().map(|edge| &mut edge.attributes));
    attributes.for_each(|of| of.retain(|_, value| !value.is_empty()));
    let Some(start) = graph.nodes.iter().find(|node| kind(node) == Some("start")) else {
        return Err(document.error("the action `start` is missing", CURE));
    };
    let reader = Reader::new(document, &graph, start);
    let mut actions = Actions::default();
    let reached = reader.reached();
    for (at, node) in graph.nodes.iter().enumerate() {
        if reached.contains(&at) {
            reader.action(at, node, &mut actions)?;
        } else {
            let cause = "no edges lead to it from `start`, so that tgen never comes to it";
            actions.left.push(format!("the action `{}`: {cause}", node.id));
        }
    }
    reader.sort_peers(&mut actions);
    reader.say_order(&mut actions);
    reader.say_stallout(&mut actions);
    actions.serves = start.attributes.contains_key("serverport")
        && actions.requests.is_empty()
        && actions.models.is_none();
    Ok(actions)
}

struct Reader<'a> {
    document: &'a Document,
    graph: &'a Graph,
    start: &'a Node,
    /// Nodes by their id; the first of an id counts.
    named: BTreeMap<&'a str, usize>,
    /// The edges from and to each node.
    edges: Vec<[Vec<&'a Edge>; 2]>,
}

impl<'a> Reader<'a> {
    fn new(document: &'a Document, graph: &'a Graph, start: &'a Node) -> Reader<'a> {
        let mut named = BTreeMap::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            named.entry(node.id.as_str()).or_insert(at);
        }
        let mut edges = vec![[const { Vec::new() }; 2]; graph.nodes.len()];
        for edge in &graph.edges {
            edges[edge.source][0].push(edge);
            edges[edge.target][1].push(edge);
        }
        Reader { document, graph, start, named, edges }
    }

    /// The nodes to which edges lead from `start`, and `start` itself.
    fn reached(&self) -> BTreeSet<usize> {
        let (mut reached, mut next) = (BTreeSet::new(), vec![self.named[self.start.id.as_str()]]);
        while let Some(at) = next.pop() {
            if reached.insert(at) {
                let [from, to] = &self.edges[at];
                next.extend(from.iter().map(|edge| edge.target));
                if !self.graph.directed {
                    next.extend(to.iter().map(|edge| edge.source));
                }
            }
        }
        reached
    }

    fn action(&self, at: usize, node: &Node, actions: &mut Actions) -> Result<(), DataError> {
        match kind(node) {
            Some("start") => {
                if let Some(time) = node.attributes.get("time") {
                    actions.left.push(format!("the delay of `{}`: {time}", node.id));
                }
            }
            Some("end") => {
                let conditions: Vec<&str> = node.attributes.keys().map(String::as_str).collect();
                if !conditions.is_empty() {
                    actions.left.push(format!("the conditions of `{}`: {}", node.id, conditions.join(", ")));
                }
            }
            Some("pause") => self.pause(at, node, actions)?,
            Some("stream") => match self.request(at, node)? {
                Some(request) => actions.requests.push(request),
                None => actions.left.push(format!(
                    "the stream `{}`: it lacks `recvsize`, so that a packet model sets its size",
                    node.id
                )),
            },
            Some(_) => match actions.models {
                None => actions.models = Some(self.models(node)?),
                Some(_) => {
                    actions.left.push(format!("the action `{}`: a client follows one model here", node.id));
                }
            },
            None => {
                let cause = format!("the action {} is none of {}", quote(&node.id), KINDS.join(", "));
                return Err(self.document.error_at(node.line, cause, CURE));
            }
        }
        Ok(())
    }

    /// Whether all peers of an action are onion services, and whether some are.
    fn onion_peers(&self, node: &Node) -> [bool; 2] {
        let peers: Vec<&str> = self
            .option(node, "peers")
            .unwrap_or("")
            .split(',')
            .filter(|peer| !peer.trim().is_empty())
            .collect();
        let onions = peers.iter().filter(|peer| peer.contains(".onion")).count();
        [onions > 0 && onions == peers.len(), onions > 0]
    }

    /// Keeps the streams from public servers, if there are any.
    fn sort_peers(&self, actions: &mut Actions) {
        let of = |id: &str| self.named.get(id).map_or(self.start, |at| &self.graph.nodes[*at]);
        let is_onion = |request: &Request| self.onion_peers(of(&request.name))[0];
        actions.onion_service = match actions.requests.as_slice() {
            [] => self.onion_peers(self.start)[0],
            requests => requests.iter().all(is_onion),
        };
        if actions.onion_service {
            return;
        }
        let Actions { requests, left, .. } = actions;
        requests.retain(|request| {
            let onion = is_onion(request);
            if onion {
                left.push(format!("the stream `{}`: it fetches from an onion service", request.name));
            }
            !onion
        });
        if actions.requests.iter().any(|request| self.onion_peers(of(&request.name))[1]) {
            actions
                .left
                .push("peers that are onion services: other peers of the same streams stand in".into());
        }
    }

    /// Says if tgen makes several streams between two pauses. It follows every edge without a weight.
    fn say_order(&self, actions: &mut Actions) {
        let is_choice = |request: &&Request| {
            let to = self.named.get(request.name.as_str()).map(|at| &self.edges[*at][1]);
            to.into_iter().flatten().any(|edge| edge.attributes.contains_key("weight"))
        };
        let all: Vec<&str> = actions
            .requests
            .iter()
            .filter(|request| !is_choice(request))
            .map(|request| request.name.as_str())
            .collect();
        if actions.requests.len() > 1 && !all.is_empty() {
            actions.left.push(format!(
                "the order of streams: tgen makes each of {} in every round; here a user draws one and then pauses",
                all.join(", ")
            ));
        }
    }

    /// Says if tgen gives up streams that stand still. The tool knows only times for whole streams.
    fn say_stallout(&self, actions: &mut Actions) {
        let value = self.graph.nodes.iter().find_map(|node| node.attributes.get("stallout"));
        if let Some(value) = value.filter(|value| value.trim() != "0") {
            actions.left.push(format!("the stallout of streams, {value}: they end only by `timeout`"));
        }
    }

    /// A pause without `time` waits for other actions and has no duration.
    fn pause(&self, at: usize, node: &Node, actions: &mut Actions) -> Result<(), DataError> {
        let Some(text) = node.attributes.get("time") else { return Ok(()) };
        let again = self.edges[at][0].iter().any(|edge| edge.target == at);
        let times: Vec<Span> = text.split(',').map(|text| self.time(node, text)).collect::<Result<_, _>>()?;
        let longest = times.iter().copied().max().unwrap_or_default();
        let shortest = times.iter().copied().min().unwrap_or_default();
        let pause = Pause { time: [shortest, longest], again };
        if shortest < longest {
            let instead =
                if again { "the interval is the shortest" } else { "the pause is drawn from its range" };
            actions.left.push(format!("the list of times of `{}`: {instead}", node.id));
        }
        match actions.pause {
            None => actions.pause = Some(pause),
            Some(_) => actions.left.push(format!("the pause `{}`: a client has one pause here", node.id)),
        }
        Ok(())
    }

    /// An option of an action; those of `start` are the defaults.
    fn option<'n>(&'n self, node: &'n Node, key: &str) -> Option<&'n str> {
        let value = node.attributes.get(key).or_else(|| self.start.attributes.get(key));
        value.map(String::as_str)
    }

    fn models(&self, node: &Node) -> Result<Models, DataError> {
        let path = |key| self.option(node, key).map(str::to_owned);
        Ok(Models {
            flows: path("flowmodelpath"),
            streams: path("streammodelpath"),
            packets: path("packetmodelpath"),
            timeout: self.timeout(node)?,
        })
    }

    /// Zero turns the timeout off.
    fn timeout(&self, node: &Node) -> Result<Option<Span>, DataError> {
        let timeout = self.option(node, "timeout").map(|text| self.time(node, text)).transpose()?;
        Ok(timeout.filter(|time| time.0 > 0))
    }

    /// Reads a stream; none if a packet model sets its size.
    fn request(&self, at: usize, node: &Node) -> Result<Option<Request>, DataError> {
        let option = |key| self.option(node, key);
        let Some(size) = option("recvsize") else { return Ok(None) };
        let weights = self.edges[at][1].iter();
        let mut weights = weights.filter_map(|edge| Some((edge.line, edge.attributes.get("weight")?)));
        let weight = match weights.next() {
            None => 1.0,
            Some((line, text)) => {
                let weight = text.trim().parse::<f64>().ok();
                weight.filter(|weight| weight.is_finite() && *weight >= 0.0).ok_or_else(|| {
                    let cause = format!("the weight {} is not a number of zero or more", quote(text));
                    self.document.error_at(line, cause, CURE)
                })?
            }
        };
        Ok(Some(Request {
            name: node.id.clone(),
            size: self.size(node, size)?,
            sent: option("sendsize").map(|text| self.size(node, text)).transpose()?,
            timeout: self.timeout(node)?,
            weight,
        }))
    }

    fn time(&self, node: &Node, text: &str) -> Result<Span, DataError> {
        parse_time(text).map_err(|cause| {
            let cure = "write a number and ns, us, ms, s, m (minutes) or h; a bare number is seconds";
            self.document.error_at(node.line, cause, cure)
        })
    }

    fn size(&self, node: &Node, text: &str) -> Result<u64, DataError> {
        parse_size(text).map_err(|cause| {
            let cure = "write a number and b, kb, kib, mb, mib, gb, gib, tb or tib; a bare number is bytes";
            self.document.error_at(node.line, cause, cure)
        })
    }
}

/// Splits a quantity into its number and its unit in lower case. tgen has a space between them.
fn parts(text: &str) -> Result<(f64, String), String> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse::<f64>().map_err(|_| format!("{} is not a quantity", quote(text)))?;
    Ok((number, unit.trim().to_lowercase()))
}

/// Reads a time as tgen does. Unlike elsewhere, `m` is a minute.
fn parse_time(text: &str) -> Result<Span, String> {
    let (number, unit) = parts(text)?;
    let nanoseconds = match unit.as_str() {
        "ns" | "nsec" | "nsecs" | "nanosecond" | "nanoseconds" => 1.0,
        "us" | "usec" | "usecs" | "\u{b5}s" | "\u{3bc}s" | "microsecond" | "microseconds" => 1e3,
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => 1e6,
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1e9,
        "m" | "min" | "mins" | "minute" | "minutes" => 60e9,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600e9,
        _ => return Err(format!("the time {} has an unknown unit", quote(text))),
    };
    let span = number * nanoseconds;
    // Beyond this, nanoseconds do not fit into 64 bits (584 years).
    if span < 1.8e19 {
        Ok(Span(span.round() as u64))
    } else {
        Err(format!("the time {} is too long", quote(text)))
    }
}

/// Reads a size as tgen does: decimal and binary multiples of bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = parts(text)?;
    let bytes = match unit.strip_suffix('s').filter(|rest| !rest.is_empty()).unwrap_or(&unit) {
        "" | "b" | "byte" => 1.0,
        "kb" | "kilobyte" => 1e3,
        "mb" | "megabyte" => 1e6,
        "gb" | "gigabyte" => 1e9,
        "tb" | "terabyte" => 1e12,
        "kib" | "kibibyte" => 1024.0,
        "mib" | "mebibyte" => 1_048_576.0,
        "gib" | "gibibyte" => 1_073_741_824.0,
        "tib" | "tebibyte" => 1_099_511_627_776.0,
        _ => return Err(format!("the size {} has an unknown unit", quote(text))),
    };
    let size = number * bytes;
    if size < 1.8e19 {
        Ok(size.round() as u64)
    } else {
        Err(format!("the size {} is too large", quote(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(nodes: &str, edges: &str) -> Result<Actions, DataError> {
        let keys: String =
            ["time", "recvsize", "sendsize", "timeout", "stallout", "peers", "weight", "serverport"]
                .map(|key| format!("<key id='{key}' attr.name='{key}'/>"))
                .concat();
        // Without edges of its own, every action of a test follows `start`.
        let ids = nodes.split("<node id='").skip(1).filter_map(|node| node.split('\'').next());
        let ids = ids.filter(|id| edges.is_empty() && nodes.contains("'start'") && !id.contains("start"));
        let all: String = ids.map(|id| format!("<edge source='start' target='{id}'/>")).collect();
        let text =
            format!("<graphml>{keys}<graph edgedefault='directed'>\n{nodes}\n{edges}{all}</graph></graphml>");
        read(&Document::new("x", text)?)
    }

    fn node(id: &str, data: &[(&str, &str)]) -> String {
        let data: String =
            data.iter().map(|(key, value)| format!("<data key='{key}'>{value}</data>")).collect();
        format!("<node id='{id}'>{data}</node>\n")
    }

    #[test]
    fn times_and_sizes_have_tgens_units() {
        for (text, ns) in [
            ("60", 60_000_000_000),
            ("5 m", 300_000_000_000),
            ("5 Minutes", 300_000_000_000),
            ("5m", 300_000_000_000),
            ("1 hour", 3_600_000_000_000),
            ("2 hrs", 7_200_000_000_000),
            ("500 us", 500_000),
            ("500 usecs", 500_000),
            ("500 msec", 500_000_000),
            ("1.5 s", 1_500_000_000),
            ("7 nsec", 7),
        ] {
            assert_eq!(parse_time(text), Ok(Span(ns)), "{text}");
        }
        for (text, bytes) in [
            ("100000", 100_000),
            ("1000 bytes", 1_000),
            ("50 KiB", 51_200),
            ("50 kb", 50_000),
            ("2 tib", 2 << 40),
            ("3 MB", 3_000_000),
            ("1 b", 1),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "m", "5 fortnights", "-1 s", "1e3 s", "1 2 s", "99999999999999 h"] {
            assert!(parse_time(wrong).is_err() && parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_id_says_which_action_a_node_is() {
        let end = node("end", &[("time", "20 minutes"), ("recvsize", "1 GiB")]);
        let start = node("start", &[("peers", "server:80"), ("time", "3"), ("timeout", "10")]);
        let rest = node("stream", &[("recvsize", "100 KiB"), ("sendsize", "1 KiB")])
            + &node("pause", &[("time", "2 seconds")]);
        for order in [[&end, &start, &rest], [&rest, &start, &end], [&start, &rest, &end]] {
            let actions = graph(&order.map(String::as_str).concat(), "").unwrap();
            assert_eq!(actions.pause, Some(Pause { time: [Span::from_secs(2); 2], again: false }));
            let (sent, timeout) = (Some(1024), Some(Span::from_secs(10)));
            let request = Request { name: "stream".into(), size: 102_400, sent, timeout, weight: 1.0 };
            assert_eq!(actions.requests, [request]);
            let left = actions.left.join("; ");
            assert!(!actions.onion_service && left.contains("recvsize, time"), "{left}");
            assert!(left.contains("the delay of `start`: 3"), "{left}");
        }
    }

    #[test]
    fn empty_attributes_are_not_set() {
        let nodes = node("start", &[("peers", "server:80"), ("time", ""), ("timeout", "")])
            + &node("stream", &[("recvsize", "1 MiB"), ("sendsize", ""), ("peers", "")])
            + &node("pause", &[("time", " ")]);
        let edges = "<edge source='start' target='stream'><data key='weight'/></edge><edge source='start' target='pause'/>";
        let actions = graph(&nodes, edges).unwrap();
        let request =
            Request { name: "stream".into(), size: 1 << 20, sent: None, timeout: None, weight: 1.0 };
        assert_eq!((actions.requests, actions.pause), (vec![request], None));
        assert!(actions.left.is_empty(), "{:?}", actions.left);
    }

    #[test]
    fn unsupported_graphs_are_named_in_errors() {
        let start = node("start", &[("peers", "abc.onion:80")]);
        assert!(graph(&start, "").unwrap().onion_service);
        let flow = graph(&(start.clone() + &node("flow1", &[("timeout", "10")])), "").unwrap();
        let models = Models { timeout: Some(Span::from_secs(10)), ..Models::default() };
        assert_eq!((flow.requests.len(), flow.models), (0, Some(models)));
        let server = graph(&node("start", &[("serverport", "80")]), "").unwrap();
        assert!(server.serves && server.requests.is_empty());
        let still = graph(&node("start", &[("serverport", "80"), ("stallout", "30 s")]), "").unwrap();
        assert!(still.left[0].contains("the stallout of streams, 30 s"), "{:?}", still.left);
        let list = graph(&(start.clone() + &node("pause", &[("time", "3,1, 2 min")])), "").unwrap();
        let ends = [Span::from_secs(1), Span::from_secs(120)];
        assert_eq!(list.pause, Some(Pause { time: ends, again: false }));
        assert!(list.left[0].contains("list of times"), "{:?}", list.left);
        for (nodes, cause) in [
            (node("pause", &[]), "`start` is missing"),
            (start.clone() + &node("dance", &[]), "none of start"),
            (start + &node("stream", &[("recvsize", "9 shoes")]), "unknown unit"),
        ] {
            let error = graph(&nodes, "").unwrap_err();
            assert!(error.cause.contains(cause), "{nodes}: {error}");
        }
    }

    #[test]
    fn ids_contain_the_kind_and_streams_have_own_peers() {
        let start = node("start", &[("serverport", "80")]);
        let ids = start.clone()
            + &node("my-pause", &[("time", "7 min")])
            + &node("bulk_stream", &[("recvsize", "1 tib"), ("peers", "a:1")])
            + &node("stream_upload_end", &[("recvsize", "1")]);
        let actions = graph(&ids, "").unwrap();
        assert_eq!(actions.pause.map(|pause| pause.time[0]), Some(Span::from_secs(420)));
        assert!(!actions.serves && actions.requests.len() == 1 && actions.requests[0].size == 1 << 40);
        let peers = |of: &str| {
            let stream = node("stream2", &[("recvsize", "5"), ("peers", of)]);
            graph(
                &(start.clone() + &node("stream1", &[("recvsize", "9"), ("peers", "b.onion:1")]) + &stream),
                "",
            )
        };
        assert!(peers("c.onion:2").unwrap().onion_service);
        for (of, left) in [("a:1", "the stream `stream1`"), ("a:1,c.onion:2", "other peers")] {
            let actions = peers(of).unwrap();
            assert!(!actions.onion_service && actions.requests.len() == 1, "{actions:?}");
            assert!(actions.left.join("; ").contains(left), "{:?}", actions.left);
        }
        let modelled = graph(&(start + &node("stream", &[("sendsize", "50 KiB")])), "").unwrap();
        assert!(modelled.left[0].contains("lacks `recvsize`") && modelled.requests.is_empty());
    }

    #[test]
    fn actions_that_tgen_never_reaches_are_left_out() {
        let nodes = node("start", &[("peers", "a:1")])
            + &node("stream", &[("recvsize", "100 KiB")])
            + &node("stream2", &[("recvsize", "9 MiB")])
            + &node("pause", &[("time", "5 s")]);
        let edge = |from: &str, to: &str| format!("<edge source='{from}' target='{to}'/>");
        let back = edge("stream", "pause") + &edge("pause", "start");
        let actions = graph(&nodes, &(edge("start", "stream") + &back)).unwrap();
        assert_eq!(actions.requests.iter().map(|one| one.size).collect::<Vec<_>>(), [102_400]);
        assert!(actions.pause.is_some());
        assert_eq!(actions.left.len(), 1, "{:?}", actions.left);
        assert!(
            actions.left[0].contains("`stream2`: no edges lead to it from `start`"),
            "{:?}",
            actions.left
        );
        let none = graph(&nodes, &back).unwrap();
        assert!(none.requests.is_empty() && none.pause.is_none() && none.left.len() == 3, "{none:?}");
    }

    #[test]
    fn a_list_of_times_is_a_range_and_says_so() {
        for (times, said) in [("5,10", true), ("5, 5", false), ("5", false)] {
            let nodes = node("start", &[("peers", "a:1")]) + &node("pause", &[("time", times)]);
            let actions = graph(&nodes, "").unwrap();
            assert_eq!(actions.left.join(" ").contains("list of times"), said, "{times}: {:?}", actions.left);
        }
    }

    #[test]
    fn weights_choose_and_edges_without_weights_are_all_followed() {
        let nodes = node("start", &[("peers", "a:1"), ("recvsize", "1 MiB")])
            + &node("stream1", &[])
            + &node("stream2", &[("recvsize", "5 MiB")]);
        let edge = |target: &str, weight: &str| {
            let data =
                if weight.is_empty() { String::new() } else { format!("<data key='weight'>{weight}</data>") };
            format!("<edge source='start' target='{target}'>{data}</edge>")
        };
        let both = graph(&nodes, &(edge("stream1", "") + &edge("stream2", ""))).unwrap();
        assert!(both.left.join("; ").contains("each of stream1, stream2 in every round"), "{:?}", both.left);
        let chosen = graph(&nodes, &(edge("stream1", "0") + &edge("stream2", "2.5"))).unwrap();
        assert!(chosen.left.is_empty(), "{:?}", chosen.left);
        assert_eq!(chosen.requests.iter().map(|one| one.weight).collect::<Vec<_>>(), [0.0, 2.5]);
        for bad in ["x", "nan", "-1"] {
            let error = graph(&nodes, &edge("stream1", bad)).unwrap_err();
            assert!(error.cause.contains("zero or more"), "{error}");
        }
    }
}
