//! Reader of GraphML (Brandes et al. 2002): nodes, edges and their `data`, named by `attr.name`.

use std::collections::BTreeMap;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::document::{DataError, Document, quote};
use crate::graph::{Attributes, Draft, Graph, Node};

/// Maximum nesting of elements; GraphML without nested graphs needs four.
const MAX_DEPTH: usize = 32;

const CURE: &str = "give a GraphML graph";

/// Reads a graph.
///
/// # Errors
/// If the text is not well-formed XML or GraphML, does not hold exactly one graph, uses hyperedges, ports or nested
/// graphs, or fails the checks of [`Graph`].
pub fn read(document: &Document) -> Result<Graph, DataError> {
    let mut xml = Reader::from_str(document.text());
    // `<node/>` then gives a start and an end like any other element.
    xml.config_mut().expand_empty_elements = true;
    let mut state = State::new(document);
    loop {
        let from = xml.buffer_position() as usize;
        let event = xml.read_event().map_err(|error| {
            document.error_at_byte(
                xml.error_position() as usize,
                format!("is not well-formed XML: {error}"),
                CURE,
            )
        })?;
        state.at = from;
        match event {
            Event::Start(element) => state.start(&element)?,
            Event::End(_) => state.end()?,
            Event::Text(text) => state.text(&text),
            Event::CData(text) => state.text(&text),
            Event::GeneralRef(reference) => {
                let name: &str = &reference;
                let text =
                    resolve(name).ok_or_else(|| state.fail(format!("unknown entity {}", quote(name))))?;
                state.text(&text);
            }
            Event::Eof => break,
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) | Event::DocType(_) | Event::Empty(_) => {}
        }
    }
    if !state.path.is_empty() {
        return Err(document.error("the file ends inside an element", "give the whole file"));
    }
    state.graph.ok_or_else(|| document.error("does not hold a `graph`", CURE))?.check(document)
}

/// Whether the document begins like GraphML.
pub(crate) fn looks_like(document: &Document) -> bool {
    let head: String = document.text().chars().take(4096).collect();
    head.trim_start().starts_with('<') && head.contains("<graphml")
}

/// The kind of the enclosing element. Other elements are skipped with their contents.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Graphml,
    Graph,
    Node,
    Edge,
    Data,
    Other,
}

struct State<'a> {
    document: &'a Document,
    position: Lines<'a>,
    /// Byte where the current event begins.
    at: usize,
    path: Vec<Place>,
    /// Attribute names by key id.
    names: BTreeMap<String, String>,
    /// Attribute name of the current `data` element, and its text so far.
    data: Option<(String, String)>,
    graph: Option<Draft>,
}

impl<'a> State<'a> {
    fn new(document: &'a Document) -> State<'a> {
        State {
            document,
            position: Lines::new(document.text()),
            at: 0,
            path: Vec::new(),
            names: BTreeMap::new(),
            data: None,
            graph: None,
        }
    }

    fn fail(&self, cause: impl Into<String>) -> DataError {
        self.document.error_at_byte(self.at, cause, CURE)
    }

    /// An XML attribute of the element.
    fn attribute(&self, element: &BytesStart<'_>, name: &str) -> Result<Option<String>, DataError> {
        for attribute in element.attributes() {
            let attribute =
                attribute.map_err(|error| self.fail(format!("a malformed attribute: {error}")))?;
            if attribute.key.as_ref() == name {
                let value = quick_xml::escape::unescape(&attribute.value)
                    .map_err(|error| self.fail(error.to_string()))?;
                return Ok(Some(value.into_owned()));
            }
        }
        Ok(None)
    }

    fn needed(&self, element: &BytesStart<'_>, name: &str) -> Result<String, DataError> {
        self.attribute(element, name)?.ok_or_else(|| self.fail(format!("an element without `{name}`")))
    }

    fn start(&mut self, element: &BytesStart<'_>) -> Result<(), DataError> {
        if self.path.len() >= MAX_DEPTH {
            return Err(self.fail(format!("elements nest deeper than {MAX_DEPTH}")));
        }
        let line = self.position.line_of(self.at);
        let place = match (self.path.last(), element.local_name().as_ref()) {
            (None, "graphml") => Place::Graphml,
            (None, _) => return Err(self.fail("the outermost element is not `graphml`")),
            (Some(Place::Graphml), "key") => {
                let id = self.needed(element, "id")?;
                let name = self.attribute(element, "attr.name")?.unwrap_or_else(|| id.clone());
                if self.names.insert(id.clone(), name).is_some() {
                    return Err(self.fail(format!("key {} repeats", quote(&id))));
                }
                Place::Other
            }
            (Some(Place::Graphml), "graph") => {
                if self.graph.is_some() {
                    return Err(self.fail("a second graph begins"));
                }
                let directed = match self.needed(element, "edgedefault")?.as_str() {
                    "directed" => true,
                    "undirected" => false,
                    other => return Err(self.fail(format!("edgedefault {} is unknown", quote(other)))),
                };
                self.graph = Some(Draft { directed, ..Draft::default() });
                Place::Graph
            }
            (Some(Place::Graph), "node") => {
                let id = self.needed(element, "id")?;
                self.draft().nodes.push(Node { id, line, attributes: Attributes::new() });
                Place::Node
            }
            (Some(Place::Graph), "edge") => {
                let (source, target) = (self.needed(element, "source")?, self.needed(element, "target")?);
                self.draft().edges.push((source, target, line, Attributes::new()));
                Place::Edge
            }
            // Skipping these would silently change the graph.
            (Some(Place::Graph), "hyperedge") => return Err(self.fail("hyperedges are not supported")),
            (Some(Place::Node | Place::Edge), "graph") => {
                return Err(self.fail("nested graphs are not supported"));
            }
            (Some(Place::Graph | Place::Node | Place::Edge), "data") => {
                let key = self.needed(element, "key")?;
                let Some(name) = self.names.get(&key) else {
                    return Err(self.fail(format!("data names key {}, which does not exist", quote(&key))));
                };
                self.data = Some((name.clone(), String::new()));
                Place::Data
            }
            _ => Place::Other,
        };
        self.path.push(place);
        Ok(())
    }

    fn end(&mut self) -> Result<(), DataError> {
        if self.path.pop() != Some(Place::Data) {
            return Ok(());
        }
        let Some((name, value)) = self.data.take() else { return Ok(()) };
        let owner = self.path.last().copied();
        let draft = self.draft();
        let attributes = match owner {
            Some(Place::Node) => draft.nodes.last_mut().map(|node| &mut node.attributes),
            Some(Place::Edge) => draft.edges.last_mut().map(|(.., attributes)| attributes),
            _ => Some(&mut draft.attributes),
        };
        let attributes = attributes.expect("data is only read inside a node, an edge or a graph");
        if attributes.insert(name.clone(), value.trim().to_owned()).is_some() {
            return Err(self.fail(format!("{} is given twice", quote(&name))));
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        if self.path.last() == Some(&Place::Data)
            && let Some((_, value)) = &mut self.data
        {
            value.push_str(text);
        }
    }

    fn draft(&mut self) -> &mut Draft {
        self.graph.as_mut().expect("inside a graph element")
    }
}

/// Resolves XML's five entities and character references.
fn resolve(name: &str) -> Option<String> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix('x') {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => number.parse().ok()?,
        };
        return char::from_u32(code).map(String::from);
    }
    quick_xml::escape::resolve_xml_entity(name).map(str::to_owned)
}

/// Line numbers of ascending byte positions, in one pass over the text.
struct Lines<'a> {
    text: &'a [u8],
    at: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Lines<'a> {
        Lines { text: text.as_bytes(), at: 0, line: 1 }
    }

    fn line_of(&mut self, byte: usize) -> usize {
        let to = byte.clamp(self.at, self.text.len());
        self.line += self.text[self.at..to].iter().filter(|&&b| b == b'\n').count();
        self.at = to;
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Graph, DataError> {
        read(&Document::new("x.graphml", text)?)
    }

    const HEAD: &str = "<?xml version='1.0'?>\n<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">\n\
        <key id='d0' attr.name='latency' for='edge' attr.type='double'/><key id='d1' attr.name='name'/>\n\
        <graph edgedefault='undirected'>\n";
    const TAIL: &str = "</graph></graphml>";

    #[test]
    fn nodes_edges_and_data_are_read() {
        let body = "<node id='a'><data key='d1'>A &amp; &#66;<![CDATA[<c>]]></data></node><node id='b'/>\n\
            <!-- made up --><edge source='a' target='b'><data key='d0'> 2.5 </data></edge>";
        let graph = read_text(&format!("{HEAD}{body}{TAIL}")).unwrap();
        assert!(!graph.directed);
        assert_eq!(graph.nodes[0].attributes["name"], "A & B<c>");
        assert_eq!(graph.edges[0].attributes["latency"], "2.5");
        assert_eq!((graph.nodes[0].line, graph.edges[0].line), (5, 6));
    }

    #[test]
    fn malformed_graphs_are_refused() {
        let a = "<node id='a'/>\n";
        for (bad, cause) in [
            ("<html></html>".to_owned(), "not `graphml`"),
            ("<graphml></graphml>".to_owned(), "hold a `graph`"),
            (format!("{HEAD}{a}"), "ends inside"),
            (format!("{HEAD}{a}</node>{TAIL}"), "not well-formed"),
            (format!("{HEAD}{TAIL}"), "lacks nodes"),
            (format!("{HEAD}{a}{a}{TAIL}"), "repeats"),
            (format!("{HEAD}{a}<edge source='a' target='z'/>{TAIL}"), "does not exist"),
            (format!("{HEAD}{a}<edge source='a'/>{TAIL}"), "without `target`"),
            (format!("{HEAD}<node/>{TAIL}"), "without `id`"),
            (format!("{HEAD}<node id='a'><data key='zz'/></node>{TAIL}"), "names key"),
            (format!("{HEAD}<node id='a'><data key='d1'>&bomb;</data></node>{TAIL}"), "unknown entity"),
            (format!("{HEAD}<hyperedge/>{TAIL}"), "hyperedges"),
            (format!("{HEAD}<node id='a'><graph/></node>{TAIL}"), "nested graphs"),
            ("<graphml>".repeat(10_000), "deeper"),
        ] {
            let error = read_text(&bad).unwrap_err();
            assert!(error.cause.contains(cause), "{bad:.60}: {error}");
        }
    }
}
