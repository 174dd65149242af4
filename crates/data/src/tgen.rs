//! Reader of tgen's Markov models (GraphML).
//!
//! There are two dialects. The current one uses `distribution` and `param_*`, and the names of states and
//! observations are in `name`. That of the PrivCount measurements of 2018 uses `lognorm_mu`, `lognorm_sigma` and
//! `exp_lambda`, and names are node ids.

use tidegate_control::markov::{Chain, Delay, Emission, Observation, State};
use tidegate_control::units::Span;

use crate::document::{DataError, Document, quote};
use crate::graph::{Edge, Graph, Node};
use crate::graphml;

const CURE: &str = "give a Markov model that tgen accepts";

/// Reads a model.
///
/// # Errors
/// If the document is not GraphML, or tgen would refuse the model: not exactly one start, nodes or edges with a
/// missing or wrong type, parameters missing or out of range.
pub fn read(document: &Document) -> Result<Chain, DataError> {
    let graph = graphml::read(document)?;
    Reader { document, graph: &graph }.chain()
}

/// The kind of a node: a state (by index) or an observation.
#[derive(Clone, Copy)]
enum Vertex {
    State(usize),
    Observation(Observation),
}

struct Reader<'a> {
    document: &'a Document,
    graph: &'a Graph,
}

impl Reader<'_> {
    fn fail(&self, line: usize, cause: String) -> DataError {
        self.document.error_at(line, cause, CURE)
    }

    fn chain(&self) -> Result<Chain, DataError> {
        if !self.graph.directed {
            return Err(self.document.error("the graph is undirected", CURE));
        }
        let old = self.graph.edges.iter().any(|edge| edge.attributes.contains_key("lognorm_mu"));
        let mut states: Vec<State> = Vec::new();
        let mut vertices = Vec::with_capacity(self.graph.nodes.len());
        let mut start = None;
        for node in &self.graph.nodes {
            let name = self.name(node, old)?;
            let vertex = self.vertex(node, name, states.len())?;
            if let Vertex::State(index) = vertex {
                if name == "start" && start.replace(index).is_some() {
                    return Err(self.fail(node.line, "a second state is named `start`".into()));
                }
                states.push(State { name: name.to_owned(), ..State::default() });
            }
            vertices.push(vertex);
        }
        let start = start.ok_or_else(|| self.document.error("the state `start` is missing", CURE))?;
        for edge in &self.graph.edges {
            let weight = self.parameter(edge, "weight", |weight| weight >= 0.0, "zero or more")?;
            match (self.text(edge, "type")?, vertices[edge.source], vertices[edge.target]) {
                ("transition", Vertex::State(from), Vertex::State(to)) => {
                    states[from].transitions.push((to, weight));
                }
                ("emission", Vertex::State(from), Vertex::Observation(observation)) => {
                    let delay = if old { self.old_delay(edge, observation)? } else { self.delay(edge)? };
                    states[from].emissions.push(Emission { observation, weight, delay });
                }
                ("transition", ..) => {
                    return Err(self.fail(edge.line, "a transition does not join two states".into()));
                }
                ("emission", ..) => {
                    return Err(self
                        .fail(edge.line, "an emission does not lead from a state to an observation".into()));
                }
                (other, ..) => {
                    return Err(
                        self.fail(edge.line, format!("the edge has the unknown type {}", quote(other)))
                    );
                }
            }
        }
        // tgen limits delays to 10 minutes, in the old dialect to one.
        let chain = Chain::new(states, start, Span::from_secs(if old { 60 } else { 600 }));
        if let Some(state) = chain.stops_the_clock() {
            let nodes = self.graph.nodes.iter().zip(&vertices);
            let line = nodes
                .filter(|(_, vertex)| matches!(vertex, Vertex::State(at) if *at == state))
                .map(|(node, _)| node.line);
            let cause = format!(
                "the state {} starts a cycle without delay and without end",
                quote(&chain.states()[state].name)
            );
            let cure = "give emissions on the cycle a mean delay of a microsecond or more, or an end (`F`)";
            return Err(self.document.error_at(line.min().unwrap_or(1), cause, cure));
        }
        Ok(chain)
    }

    fn name<'n>(&self, node: &'n Node, old: bool) -> Result<&'n str, DataError> {
        match node.attributes.get("name") {
            Some(name) => Ok(name),
            None if old => Ok(&node.id),
            None => Err(self.fail(node.line, format!("node {} lacks `name`", quote(&node.id)))),
        }
    }

    /// Reads the kind of a node. A state gets `index`.
    fn vertex(&self, node: &Node, name: &str, index: usize) -> Result<Vertex, DataError> {
        match (node.attributes.get("type").map(String::as_str), name) {
            // The start state lacks a type in the old dialect.
            (Some("state"), _) | (None, "start") => Ok(Vertex::State(index)),
            // `$` is a new stream in the old dialect, as `+` is today.
            (Some("observation"), "+" | "$") => Ok(Vertex::Observation(Observation::ToServer)),
            (Some("observation"), "-") => Ok(Vertex::Observation(Observation::ToOrigin)),
            (Some("observation"), "F") => Ok(Vertex::Observation(Observation::End)),
            (Some("observation"), other) => {
                Err(self.fail(node.line, format!("observation {} is not `+`, `-` or `F`", quote(other))))
            }
            (Some(other), _) => {
                Err(self.fail(node.line, format!("the node has the unknown type {}", quote(other))))
            }
            (None, _) => Err(self.fail(node.line, format!("node {} lacks a type", quote(&node.id)))),
        }
    }

    fn text<'e>(&self, edge: &'e Edge, key: &str) -> Result<&'e str, DataError> {
        let value = edge.attributes.get(key).map(String::as_str);
        value.ok_or_else(|| self.fail(edge.line, format!("the edge lacks `{key}`")))
    }

    /// Parses a finite number that satisfies a condition.
    fn parameter(
        &self,
        edge: &Edge,
        key: &str,
        holds: fn(f64) -> bool,
        condition: &str,
    ) -> Result<f64, DataError> {
        let text = self.text(edge, key)?;
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && holds(value) => Ok(value),
            _ => Err(self.fail(edge.line, format!("`{key}` is {}, not {condition}", quote(text)))),
        }
    }

    fn delay(&self, edge: &Edge) -> Result<Delay, DataError> {
        let not_negative = |key| self.parameter(edge, key, |value| value >= 0.0, "a number of zero or more");
        let positive = |key| self.parameter(edge, key, |value| value > 0.0, "a number above zero");
        match self.text(edge, "distribution")? {
            "normal" => Ok(Delay::Normal {
                location: not_negative("param_location")?,
                scale: not_negative("param_scale")?,
            }),
            "lognormal" => Ok(Delay::LogNormal {
                location: not_negative("param_location")?,
                scale: not_negative("param_scale")?,
            }),
            "exponential" => Ok(Delay::Exponential { rate: positive("param_rate")? }),
            "pareto" => {
                Ok(Delay::Pareto { scale: not_negative("param_scale")?, shape: positive("param_shape")? })
            }
            "uniform" => {
                // The bounds of a uniform distribution may be negative.
                let any = |key| self.parameter(edge, key, |_| true, "a number");
                let (low, high) = (any("param_low")?, any("param_high")?);
                if low > high {
                    return Err(
                        self.fail(edge.line, format!("`param_low` {low} is above `param_high` {high}"))
                    );
                }
                Ok(Delay::Uniform { low, high })
            }
            other => Err(self.fail(edge.line, format!("the distribution {} is unknown", quote(other)))),
        }
    }

    /// Reads a delay of the old dialect.
    ///
    /// Edges have all parameters. Two zeros for the log-normal mean an exponential, and the end lacks a delay.
    fn old_delay(&self, edge: &Edge, observation: Observation) -> Result<Delay, DataError> {
        let not_negative = |key| self.parameter(edge, key, |value| value >= 0.0, "a number of zero or more");
        let (location, scale, rate) =
            (not_negative("lognorm_mu")?, not_negative("lognorm_sigma")?, not_negative("exp_lambda")?);
        if location > 0.0 || scale > 0.0 {
            Ok(Delay::LogNormal { location, scale })
        } else if rate > 0.0 {
            Ok(Delay::Exponential { rate })
        } else if observation == Observation::End {
            Ok(Delay::Uniform { low: 0.0, high: 0.0 })
        } else {
            Err(self.fail(edge.line, "the emission lacks a delay: all parameters are zero".into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "<key id='t' attr.name='type'/><key id='n' attr.name='name'/><key id='w' attr.name='weight'/>\
        <key id='d' attr.name='distribution'/><key id='l' attr.name='param_location'/><key id='s' attr.name='param_scale'/>\
        <key id='r' attr.name='param_rate'/><key id='h' attr.name='param_shape'/><key id='a' attr.name='param_low'/>\
        <key id='b' attr.name='param_high'/><key id='lm' attr.name='lognorm_mu'/><key id='ls' attr.name='lognorm_sigma'/>\
        <key id='el' attr.name='exp_lambda'/>";

    fn data(pairs: &[(&str, &str)]) -> String {
        pairs.iter().map(|(key, value)| format!("<data key='{key}'>{value}</data>")).collect()
    }

    fn node(id: &str, pairs: &[(&str, &str)]) -> String {
        format!("<node id='{id}'>{}</node>\n", data(pairs))
    }

    fn edge(from: &str, to: &str, pairs: &[(&str, &str)]) -> String {
        format!("<edge source='{from}' target='{to}'>{}</edge>\n", data(pairs))
    }

    fn read_body(body: &str) -> Result<Chain, DataError> {
        let text = format!("<graphml>{KEYS}<graph edgedefault='directed'>\n{body}</graph></graphml>");
        read(&Document::new("x", text)?)
    }

    fn nodes() -> String {
        node("s0", &[("t", "state"), ("n", "start")])
            + &node("s1", &[("t", "state"), ("n", "A")])
            + &node("o1", &[("t", "observation"), ("n", "+")])
            + &node("o2", &[("t", "observation"), ("n", "-")])
            + &node("o3", &[("t", "observation"), ("n", "F")])
            + &edge("s0", "s1", &[("t", "transition"), ("w", "0.5")])
    }

    fn emission(pairs: &[(&str, &str)]) -> Result<Delay, DataError> {
        let pairs = [&[("t", "emission"), ("w", "1")], pairs].concat();
        read_body(&(nodes() + &edge("s1", "o1", &pairs))).map(|model| model.states()[1].emissions[0].delay)
    }

    #[test]
    fn all_distributions_are_read() {
        assert_eq!(
            emission(&[("d", "normal"), ("l", "5"), ("s", "2")]),
            Ok(Delay::Normal { location: 5.0, scale: 2.0 })
        );
        let lognormal = emission(&[("d", "lognormal"), ("l", "5"), ("s", "2")]);
        assert_eq!(lognormal, Ok(Delay::LogNormal { location: 5.0, scale: 2.0 }));
        assert_eq!(emission(&[("d", "exponential"), ("r", "1e-3")]), Ok(Delay::Exponential { rate: 1e-3 }));
        assert_eq!(
            emission(&[("d", "pareto"), ("s", "2"), ("h", "3")]),
            Ok(Delay::Pareto { scale: 2.0, shape: 3.0 })
        );
        assert_eq!(
            emission(&[("d", "uniform"), ("a", "2"), ("b", "3")]),
            Ok(Delay::Uniform { low: 2.0, high: 3.0 })
        );
    }

    #[test]
    fn the_old_dialect_chooses_by_its_parameters() {
        let model = read_body(
            &(node("start", &[])
                + &node("A", &[("t", "state")])
                + &node("$", &[("t", "observation")])
                + &node("F", &[("t", "observation")])
                + &edge("start", "A", &[("t", "transition"), ("w", "1")])
                + &edge(
                    "A",
                    "$",
                    &[("t", "emission"), ("w", "1"), ("lm", "0"), ("ls", "0"), ("el", "0.25")],
                )
                + &edge("A", "F", &[("t", "emission"), ("w", "0"), ("lm", "0"), ("ls", "0"), ("el", "0")])),
        )
        .unwrap();
        assert_eq!(model.states()[1].emissions[0].delay, Delay::Exponential { rate: 0.25 });
        assert_eq!(model.states()[1].emissions[0].observation, Observation::ToServer, "a new stream");
        assert_eq!(model.states()[model.start()].transitions, [(1, 1.0)]);
        assert_eq!(model.ceiling(), Span::from_secs(60));
    }

    #[test]
    fn models_that_stop_the_clock_are_refused_with_their_line() {
        let cycle = edge("s1", "s1", &[("t", "transition"), ("w", "1")]);
        let plus =
            |pairs: &[(&str, &str)]| edge("s1", "o1", &[&[("t", "emission"), ("w", "1")], pairs].concat());
        for (delay, stops) in [
            (&[("d", "exponential"), ("r", "100")][..], true),
            (&[("d", "uniform"), ("a", "0"), ("b", "0")], true),
            (&[("d", "normal"), ("l", "0"), ("s", "0.01")], true),
            (&[("d", "exponential"), ("r", "0.5")], false),
            (&[("d", "uniform"), ("a", "0"), ("b", "3")], false),
        ] {
            let read = read_body(&(nodes() + &cycle + &plus(delay)));
            let refused = read.err().filter(|error| error.cause.contains("without delay and without end"));
            assert_eq!(refused.map(|error| error.line), stops.then_some(Some(3)), "{delay:?}");
        }
        // A way out makes it end.
        let out =
            edge("s1", "o3", &[("t", "emission"), ("w", "0.1"), ("d", "uniform"), ("a", "0"), ("b", "0")]);
        assert!(read_body(&(nodes() + &cycle + &plus(&[("d", "exponential"), ("r", "100")]) + &out)).is_ok());
    }

    #[test]
    fn models_that_tgen_refuses_are_refused_with_their_line() {
        for (pairs, cause) in [
            (&[("d", "normal"), ("l", "-5"), ("s", "2")][..], "`param_location` is"),
            (&[("d", "normal"), ("l", "5")], "lacks `param_scale`"),
            (&[("d", "exponential"), ("r", "0")], "above zero"),
            (&[("d", "exponential"), ("r", "inf")], "above zero"),
            (&[("d", "uniform"), ("a", "3"), ("b", "2")], "above `param_high`"),
            (&[("d", "weibull")], "unknown"),
            (&[], "lacks `distribution`"),
        ] {
            let error = emission(pairs).unwrap_err();
            assert!(error.cause.contains(cause) && error.line == Some(8), "{pairs:?}: {error}");
        }
        for (body, cause) in [
            (node("s1", &[("t", "state"), ("n", "A")]), "the state `start` is missing"),
            (nodes() + &node("x", &[("t", "state"), ("n", "start")]), "second state"),
            (nodes() + &node("x", &[("t", "observation"), ("n", "?")]), "is not `+`"),
            (nodes() + &node("x", &[("n", "A")]), "lacks a type"),
            (nodes() + &node("x", &[("t", "state")]), "lacks `name`"),
            (nodes() + &edge("s1", "o1", &[("t", "transition"), ("w", "1")]), "does not join"),
            (nodes() + &edge("o1", "s1", &[("t", "emission"), ("w", "1")]), "does not lead"),
            (nodes() + &edge("s1", "s1", &[("t", "transition"), ("w", "-1")]), "zero or more"),
            (nodes() + &edge("s1", "s1", &[("t", "jump"), ("w", "1")]), "unknown type"),
        ] {
            let error = read_body(&body).unwrap_err();
            assert!(error.cause.contains(cause), "{body}: {error}");
        }
    }
}
