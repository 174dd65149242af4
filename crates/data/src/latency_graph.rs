//! Latency tables from Shadow's network graphs: GML (Shadow 2 and 3) and GraphML (Shadow 1).
//!
//! Edges have `latency` (one way), `jitter` and `packet_loss`; nodes have bandwidths, a location and, in Shadow 1, the
//! loss of their hosts' access. Quantities in GML have units. In GraphML, bare latencies are ms and bare bandwidths KiB/s, as Shadow 1 defines them.

use tidegate_control::units::{Rate, Span};

use crate::country::Country;
use crate::document::{DataError, Document, quote};
use crate::graph::{Attributes, Graph};
use crate::latency::{LatencyTable, Location, Path, Routing, check_size};
use crate::shadow_yaml::{RATES, text_rate};

/// Meaning of a number without a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BareNumbers {
    /// An error, as in Shadow 2 and 3.
    Refused,
    /// Milliseconds and KiB/s, as in Shadow 1.
    Shadow1,
}

/// Makes the table of a network graph.
///
/// All paths are shortest paths (Shadow's `use_shortest_path`). With `preferdirectpaths` in the graph (Shadow 1),
/// direct edges take precedence.
///
/// # Errors
/// If an edge lacks a latency or repeats, a quantity is malformed, or the graph is not connected.
pub fn table(document: &Document, graph: &Graph, bare: BareNumbers) -> Result<LatencyTable, DataError> {
    let reader = Reader { document, bare };
    let n = graph.nodes.len();
    check_size(document, n)?;
    let mut locations = Vec::with_capacity(n);
    for node in &graph.nodes {
        locations.push(reader.location(&node.id, &node.attributes, node.line)?);
    }
    let mut known: Vec<Option<Path>> = vec![None; n * n];
    for edge in &graph.edges {
        let path = reader.path(&edge.attributes, edge.line)?;
        let cells = [edge.source * n + edge.target, edge.target * n + edge.source];
        // An undirected edge fills both directions, except a loop.
        let one_way = graph.directed || edge.source == edge.target;
        for cell in &cells[..if one_way { 1 } else { 2 }] {
            if known[*cell].replace(path).is_some() {
                let (a, b) = (&graph.nodes[edge.source].id, &graph.nodes[edge.target].id);
                let cause = format!("the edge from {} to {} repeats", quote(a), quote(b));
                return Err(document.error_at(edge.line, cause, "keep one of them"));
            }
        }
    }
    let direct =
        graph.attributes.get("preferdirectpaths").is_some_and(|value| value == "true" || value == "1");
    let routing = if direct { Routing::Direct } else { Routing::Shortest };
    let mut table = LatencyTable::complete(document, locations, known, routing)?;
    let losses = graph.nodes.iter().map(|node| reader.loss(&node.attributes, node.line));
    table.lose_at_ends(&losses.collect::<Result<Vec<f64>, DataError>>()?);
    Ok(table)
}

struct Reader<'a> {
    document: &'a Document,
    bare: BareNumbers,
}

impl Reader<'_> {
    fn location(&self, id: &str, attributes: &Attributes, line: usize) -> Result<Location, DataError> {
        let first = |names: &[&str]| names.iter().find_map(|name| attributes.get(*name)).map(String::as_str);
        // Shadow 1's geocode is a country, with a state for the United States and Canada.
        let geocode = first(&["geocode"]).unwrap_or("");
        let (head, state) = geocode.split_at_checked(2).unwrap_or((geocode, ""));
        let code = first(&["country_code", "countrycode", "country"]).unwrap_or(head);
        let city = first(&["city", "city_code"]).or((!state.is_empty()).then_some(state));
        Ok(Location {
            name: id.to_owned(),
            country: Country::from_code(code),
            city: city.map(str::to_owned),
            up: self.rate(first(&["host_bandwidth_up", "bandwidth_up", "bandwidthup"]), line)?,
            down: self.rate(first(&["host_bandwidth_down", "bandwidth_down", "bandwidthdown"]), line)?,
        })
    }

    fn path(&self, attributes: &Attributes, line: usize) -> Result<Path, DataError> {
        let Some(latency) = attributes.get("latency") else {
            return Err(self.document.error_at(
                line,
                "the edge lacks a latency",
                "give every edge a latency such as \"10 ms\"",
            ));
        };
        let delay = self.span("latency", latency, line)?;
        if delay == Span::ZERO {
            return Err(self.document.error_at(line, "the latency is zero", "give a latency above zero"));
        }
        let jitter = match attributes.get("jitter") {
            Some(jitter) => self.span("jitter", jitter, line)?,
            None => Span::ZERO,
        };
        Ok(Path { delay, jitter, loss: self.loss(attributes, line)? })
    }

    /// The loss of an edge or a node.
    fn loss(&self, attributes: &Attributes, line: usize) -> Result<f64, DataError> {
        let loss = attributes.get("packet_loss").or(attributes.get("packetloss"));
        loss.map_or(Ok(0.0), |text| match text.parse::<f64>() {
            Ok(loss) if (0.0..=1.0).contains(&loss) => Ok(loss),
            _ => {
                let cause = format!("packet loss {} is not a probability", quote(text));
                Err(self.document.error_at(line, cause, "give a number from 0 to 1"))
            }
        })
    }

    fn span(&self, what: &str, text: &str, line: usize) -> Result<Span, DataError> {
        if self.bare == BareNumbers::Shadow1
            && let Ok(ms) = text.parse::<f64>()
        {
            if (0.0..=60_000.0).contains(&ms) {
                return Ok(Span::from_secs_f64(ms / 1e3));
            }
            let cause = format!("{what} {} is not between 0 and 60 s", quote(text));
            return Err(self.document.error_at(line, cause, "give it in milliseconds"));
        }
        let span: Result<Span, _> = text.parse();
        span.map_err(|error| self.document.error_at(line, format!("{what} {error}"), "correct it"))
    }

    fn rate(&self, text: Option<&str>, line: usize) -> Result<Option<Rate>, DataError> {
        let Some(text) = text else { return Ok(None) };
        if self.bare == BareNumbers::Shadow1
            && let Ok(kib_per_s) = text.parse::<u32>()
        {
            return Ok(Some(Rate::from_bytes_per_s(u64::from(kib_per_s) << 10)));
        }
        text_rate(text)
            .map(Some)
            .map_err(|error| self.document.error_at(line, format!("bandwidth {error}"), RATES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{gml, graphml};

    fn gml_table(text: &str) -> Result<LatencyTable, DataError> {
        let document = Document::new("x.gml", text)?;
        table(&document, &gml::read(&document)?, BareNumbers::Refused)
    }

    #[test]
    fn shadows_gml_gives_shortest_paths_and_bandwidths() {
        let table = gml_table(
            "graph [\n directed 0\n node [ id 0 host_bandwidth_up \"100 Mbit\" host_bandwidth_down \"1 Gbit\" ]\n\
             node [ id 1 country_code \"DE\" city_code \"42\" ]\n node [ id 2 ]\n\
             edge [ source 0 target 0 latency \"3 ms\" ]\n\
             edge [ source 0 target 1 latency \"10 ms\" jitter \"1 ms\" packet_loss 0.1 ]\n\
             edge [ source 1 target 2 latency \"20 ms\" ]\n\
             edge [ source 0 target 2 latency \"50 ms\" ]\n]\n",
        )
        .unwrap();
        assert_eq!(table.locations[0].up, Some(Rate(100_000_000)));
        assert_eq!(table.locations[0].down, Some(Rate(1_000_000_000)));
        assert_eq!(table.locations[1].country, Country::from_code("DE"));
        assert_eq!(table.path(0, 0).delay, Span::from_millis(3));
        let far = table.path(2, 0);
        assert_eq!((far.delay, far.jitter), (Span::from_millis(30), Span::from_millis(1)));
        assert!((far.loss - 0.1).abs() < 1e-12);
        assert_eq!(table.path(1, 1).delay, Span::from_millis(5));
    }

    #[test]
    fn graphs_have_shadows_units() {
        for (latency, bandwidth, delay, rate) in [
            ("1 secs", "95080 kilobit", Span::from_secs(1), Rate(95_080_000)),
            ("2 mins", "100 megabits", Span::from_secs(120), Rate(100_000_000)),
            ("1 hrs", "1 Tbit", Span::from_secs(3600), Rate(1_000_000_000_000)),
            ("50000 microseconds", "2 mebibit", Span::from_millis(50), Rate(2 << 20)),
            ("5000 \u{b5}s", "5000", Span::from_millis(5), Rate(5000)),
        ] {
            let table = gml_table(&format!(
                "graph [ node [ id 0 host_bandwidth_up \"{bandwidth}\" ] node [ id 1 ]\n\
                 edge [ source 0 target 1 latency \"{latency}\" ] ]"
            ))
            .unwrap();
            assert_eq!((table.path(0, 1).delay, table.locations[0].up), (delay, Some(rate)), "{latency}");
        }
    }

    #[test]
    fn a_direction_counts_when_the_graph_has_one() {
        let cycle = "graph [ directed 1 node [ id 0 ] node [ id 1 ] node [ id 2 ]\n\
            edge [ source 0 target 1 latency \"1 ms\" ] edge [ source 1 target 2 latency \"1 ms\" ]\n\
            edge [ source 2 target 0 latency \"1 ms\" ] ]";
        let table = gml_table(cycle).unwrap();
        assert_eq!(table.path(1, 0).delay, Span::from_millis(2), "round the cycle");
        let error = gml_table(&cycle.replace("source 2 target 0", "source 2 target 2")).unwrap_err();
        assert!(error.cause.contains("unreachable"), "{error}");
    }

    #[test]
    fn bad_edges_are_refused_with_their_line() {
        let graph = |edge: &str| {
            format!("graph [ node [ id 0 ]\nnode [ id 1 ]\n edge [ source 0 target 1 {edge} ]\n]")
        };
        for (edge, cause) in [
            ("", "lacks a latency"),
            ("latency 10", "no unit"),
            ("latency \"-5 ms\"", "negative"),
            ("latency \"0 ms\"", "zero"),
            ("latency \"5 ms\" packet_loss 1.5", "probability"),
            ("latency \"5 ms\" packet_loss nan", "probability"),
            ("latency \"5 ms\" jitter \"5 parsecs\"", "unknown unit"),
            ("latency \"5 ms\" ] edge [ source 1 target 0 latency \"5 ms\"", "repeats"),
        ] {
            let error = gml_table(&graph(edge)).unwrap_err();
            assert!(error.cause.contains(cause) && error.line == Some(3), "{edge}: {error}");
        }
    }

    #[test]
    fn shadow_1_numbers_are_milliseconds_and_kib_per_second() {
        let text = "<graphml><key id='a' attr.name='latency'/><key id='b' attr.name='geocode'/>\
            <key id='c' attr.name='bandwidthup'/><key id='d' attr.name='jitter'/>\
            <graph edgedefault='undirected'><node id='p1'><data key='b'>USAR</data><data key='c'>2</data></node>\
            <node id='p2'><data key='b'>DE</data></node><edge source='p1' target='p2'><data key='a'>69.5</data>\
            <data key='d'>12</data></edge></graph></graphml>";
        let document = Document::new("x", text).unwrap();
        let table = table(&document, &graphml::read(&document).unwrap(), BareNumbers::Shadow1).unwrap();
        assert_eq!(table.path(1, 0).delay, Span::from_micros(69_500));
        assert_eq!(table.path(1, 0).jitter, Span::from_millis(12));
        assert_eq!(table.locations[0].up, Some(Rate(2 * 1024 * 8)));
        assert_eq!(table.locations[0].country, Country::from_code("US"));
        assert_eq!(table.locations[0].city.as_deref(), Some("AR"));
    }

    #[test]
    fn nodes_lose_packets_at_both_ends_of_a_path() {
        let text = "<graphml><key id='a' attr.name='latency'/><key id='l' attr.name='packetloss'/>\
            <graph edgedefault='undirected'><node id='p1'><data key='l'>0.02</data></node>\
            <node id='p2'><data key='l'>0.05</data></node><node id='p3'/>\
            <edge source='p1' target='p2'><data key='a'>5</data><data key='l'>0.1</data></edge>\
            <edge source='p2' target='p3'><data key='a'>5</data></edge></graph></graphml>";
        let read = |text: &str| {
            let document = Document::new("x", text).unwrap();
            table(&document, &graphml::read(&document).unwrap(), BareNumbers::Shadow1)
        };
        let lossy = read(text).unwrap();
        let loss = |from, to| (lossy.path(from, to).loss * 1e6).round() / 1e6;
        assert_eq!((loss(0, 1), loss(1, 0)), (0.1621, 0.1621), "1 - 0.98 * 0.9 * 0.95");
        // The host in between does not lose: only ends do (Shadow 1's `topology.c`).
        assert_eq!((loss(0, 2), loss(1, 2)), (0.118, 0.05));
        assert_eq!(loss(1, 1), 0.0, "within a node Shadow counts edges only");
        let error = read(&text.replace(">0.05<", ">1.05<")).unwrap_err();
        assert!(error.cause.contains("probability"), "{error}");
    }
}
