//! Graphs with attributes from GML and GraphML files, and their checks.

use std::collections::BTreeMap;

use crate::document::{DataError, Document, quote};

/// Attributes of a node or an edge, by name, as text.
pub(crate) type Attributes = BTreeMap<String, String>;

/// A checked graph: node names are unique, and every edge joins two existing nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Whether edges have a direction.
    pub directed: bool,
    /// Attributes of the graph itself.
    pub attributes: Attributes,
    /// Nodes in the order of the file.
    pub(crate) nodes: Vec<Node>,
    /// Edges in the order of the file.
    pub(crate) edges: Vec<Edge>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    /// Its identifier in the file.
    pub id: String,
    /// Its line in the file.
    pub line: usize,
    /// Its attributes.
    pub attributes: Attributes,
}

/// An edge.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Edge {
    /// Index of the source node.
    pub source: usize,
    /// Index of the target node.
    pub target: usize,
    /// Its line in the file.
    pub line: usize,
    /// Its attributes.
    pub attributes: Attributes,
}

/// A graph before the checks. Edges name their nodes.
#[derive(Default)]
pub(crate) struct Draft {
    pub directed: bool,
    pub attributes: Attributes,
    pub nodes: Vec<Node>,
    /// Source, target, line, attributes.
    pub edges: Vec<(String, String, usize, Attributes)>,
}

impl Draft {
    /// Checks that nodes exist and are unique, and that all edges join existing nodes.
    pub(crate) fn check(self, document: &Document) -> Result<Graph, DataError> {
        if self.nodes.is_empty() {
            return Err(document.error("the graph lacks nodes", "give a graph with nodes and edges"));
        }
        // Edges may precede their nodes in a file, so they are resolved after all nodes.
        let mut index = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(first) = index.insert(node.id.as_str(), at) {
                let cause = format!(
                    "node {} repeats; it is first in line {}",
                    quote(&node.id),
                    self.nodes[first].line
                );
                return Err(document.error_at(node.line, cause, "give every node a unique id"));
            }
        }
        let mut edges = Vec::with_capacity(self.edges.len());
        for (source, target, line, attributes) in self.edges {
            let find = |id: &str| {
                index.get(id).copied().ok_or_else(|| {
                    let cause = format!("the edge names node {}, which does not exist", quote(id));
                    document.error_at(line, cause, "add the node or remove the edge")
                })
            };
            edges.push(Edge { source: find(&source)?, target: find(&target)?, line, attributes });
        }
        Ok(Graph { directed: self.directed, attributes: self.attributes, edges, nodes: self.nodes })
    }
}
