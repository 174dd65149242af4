//! Reader of GML (Himsolt 1996), as Shadow writes it: `graph [ directed 0 node [ id 0 ... ] edge [...] ]`.

use crate::document::{DataError, Document, quote};
use crate::graph::{Attributes, Draft, Graph, Node};

/// Maximum nesting of lists; Shadow needs two.
const MAX_DEPTH: u32 = 32;

/// Reads a graph. Skips attributes that are lists (`graphics [ ... ]`).
///
/// # Errors
/// If the text is not GML, does not hold exactly one graph, or fails the checks of [`Graph`].
pub fn read(document: &Document) -> Result<Graph, DataError> {
    let mut reader = Reader { document, at: 0, line: 1 };
    let mut graph = None;
    while let Some(key) = reader.key()? {
        let value = reader.value()?;
        match (key, value) {
            ("graph", Value::Open) if graph.is_none() => graph = Some(reader.graph()?),
            ("graph", Value::Open) => return Err(reader.fail("a second graph begins", "keep one graph")),
            ("graph", Value::Text(_)) => return Err(reader.fail("`graph` is not followed by `[`", CURE)),
            (_, Value::Open) => reader.skip_list(1)?,
            (_, Value::Text(_)) => {}
        }
    }
    graph.ok_or_else(|| document.error("does not hold a `graph [ ... ]`", CURE))?.check(document)
}

/// Whether the document begins like GML.
pub(crate) fn looks_like(document: &Document) -> bool {
    let mut reader = Reader { document, at: 0, line: 1 };
    while let Ok(Some(key)) = reader.key() {
        match reader.value() {
            Ok(Value::Open) => return key == "graph",
            Ok(Value::Text(_)) => {}
            Err(_) => return false,
        }
    }
    false
}

const CURE: &str = "give a GML graph, as Shadow reads it";

struct Reader<'a> {
    document: &'a Document,
    at: usize,
    /// The line of `at`.
    line: usize,
}

enum Value<'a> {
    /// A number, word or string, without quotes.
    Text(&'a str),
    /// `[`
    Open,
}

impl<'a> Reader<'a> {
    fn fail(&self, cause: impl Into<String>, cure: &str) -> DataError {
        self.document.error_at_byte(self.at, cause, cure)
    }

    fn rest(&self) -> &'a str {
        &self.document.text()[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        self.line += self.rest().as_bytes()[..bytes].iter().filter(|&&b| b == b'\n').count();
        self.at += bytes;
    }

    /// Skips blanks, and comments (`#`) at the place of a key.
    fn blanks(&mut self) {
        loop {
            let rest = self.rest();
            self.advance(rest.len() - rest.trim_start().len());
            let rest = self.rest();
            if !rest.starts_with('#') {
                return;
            }
            self.advance(rest.find('\n').unwrap_or(rest.len()));
        }
    }

    /// The next key; `None` at the end of the text.
    fn key(&mut self) -> Result<Option<&'a str>, DataError> {
        self.blanks();
        let rest = self.rest();
        if rest.is_empty() {
            return Ok(None);
        }
        let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let key = &rest[..length];
        if !key.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let found = rest.split_whitespace().next().unwrap_or(rest);
            return Err(self.fail(format!("expected a key, found {}", quote(found)), CURE));
        }
        self.advance(length);
        Ok(Some(key))
    }

    fn value(&mut self) -> Result<Value<'a>, DataError> {
        self.blanks();
        let rest = self.rest();
        if rest.starts_with('[') {
            self.advance(1);
            return Ok(Value::Open);
        }
        if let Some(inner) = rest.strip_prefix('"') {
            let Some(length) = inner.find('"') else {
                return Err(self.fail("a string does not end", "close it with a quotation mark"));
            };
            self.advance(length + 2);
            return Ok(Value::Text(&inner[..length]));
        }
        let length = rest.find(|c: char| c.is_whitespace() || "[]\"".contains(c)).unwrap_or(rest.len());
        let word = &rest[..length];
        if word.is_empty() {
            return Err(self.fail("a key lacks a value", "write `key value`"));
        }
        self.advance(length);
        Ok(Value::Text(word))
    }

    /// The next key in a list; `None` after its `]`.
    fn key_in_list(&mut self) -> Result<Option<&'a str>, DataError> {
        self.blanks();
        if self.rest().starts_with(']') {
            self.advance(1);
            return Ok(None);
        }
        self.key()?.map_or_else(
            || Err(self.fail("the file ends inside a list", "close it with `]`")),
            |k| Ok(Some(k)),
        )
    }

    fn skip_list(&mut self, depth: u32) -> Result<(), DataError> {
        if depth > MAX_DEPTH {
            return Err(self.fail(format!("lists nest deeper than {MAX_DEPTH}"), CURE));
        }
        while self.key_in_list()?.is_some() {
            if let Value::Open = self.value()? {
                self.skip_list(depth + 1)?;
            }
        }
        Ok(())
    }

    fn graph(&mut self) -> Result<Draft, DataError> {
        let mut draft = Draft::default();
        while let Some(key) = self.key_in_list()? {
            let line = self.line;
            match (key, self.value()?) {
                ("node", Value::Open) => {
                    let mut attributes = self.attributes()?;
                    let id = self.take(&mut attributes, "id", "node", line)?;
                    draft.nodes.push(Node { id, line, attributes });
                }
                ("edge", Value::Open) => {
                    let mut attributes = self.attributes()?;
                    let source = self.take(&mut attributes, "source", "edge", line)?;
                    let target = self.take(&mut attributes, "target", "edge", line)?;
                    draft.edges.push((source, target, line, attributes));
                }
                ("node" | "edge", Value::Text(_)) => {
                    return Err(self.fail(format!("`{key}` is not followed by `[`"), CURE));
                }
                ("directed", Value::Text("0")) => draft.directed = false,
                ("directed", Value::Text("1")) => draft.directed = true,
                ("directed", _) => return Err(self.fail("`directed` is neither 0 nor 1", "write 0 or 1")),
                (_, Value::Open) => self.skip_list(2)?,
                (_, Value::Text(text)) => {
                    draft.attributes.insert(key.to_owned(), text.to_owned());
                }
            }
        }
        Ok(draft)
    }

    fn attributes(&mut self) -> Result<Attributes, DataError> {
        let mut attributes = Attributes::new();
        while let Some(key) = self.key_in_list()? {
            match self.value()? {
                Value::Open => self.skip_list(3)?,
                Value::Text(text) => {
                    if attributes.insert(key.to_owned(), text.to_owned()).is_some() {
                        return Err(self.fail(format!("`{key}` is given twice"), "keep one of them"));
                    }
                }
            }
        }
        Ok(attributes)
    }

    fn take(&self, from: &mut Attributes, key: &str, what: &str, line: usize) -> Result<String, DataError> {
        from.remove(key).ok_or_else(|| {
            self.document.error_at(
                line,
                format!("the {what} lacks `{key}`"),
                format!("give every {what} a `{key}`"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Graph, DataError> {
        read(&Document::new("x.gml", text)?)
    }

    #[test]
    fn a_graph_with_comments_strings_and_nested_lists_is_read() {
        let graph = read_text(
            "# made up\nCreator \"me\"\ngraph [ directed 1 label \"a [b]\"\n node [ id 7 graphics [ x 1 y [ z 2 ] ] ]\n\
             node [ id 9 host_bandwidth_up \"10 Mbit\" ]\n edge [ source 7 target 9 latency \"5 ms\" ] ]\n",
        )
        .unwrap();
        assert!(graph.directed);
        assert_eq!(graph.attributes["label"], "a [b]");
        assert_eq!(graph.nodes[1].attributes["host_bandwidth_up"], "10 Mbit");
        assert_eq!((graph.edges[0].source, graph.edges[0].target, graph.edges[0].line), (0, 1, 6));
    }

    #[test]
    fn malformed_graphs_are_refused_with_their_place() {
        let node = "graph [\nnode [ id 1 ]\n";
        for (bad, line, cause) in [
            ("hello world".to_owned(), None, "`graph"),
            (format!("{node}node [ id 1 ]\n]"), Some(3), "repeats"),
            (format!("{node}edge [ source 1 target 2 ]\n]"), Some(3), "does not exist"),
            (format!("{node}edge [ source 1 ]\n]"), Some(3), "lacks `target`"),
            (format!("{node}node [ label 1 ]\n]"), Some(3), "lacks `id`"),
            (node.to_owned(), Some(3), "ends inside"),
            (format!("{node}directed 2 ]"), Some(3), "neither"),
            (format!("{node}] graph [ ]"), Some(3), "second graph"),
            ("graph [ ]".to_owned(), None, "lacks nodes"),
            ("graph 3".to_owned(), Some(1), "not followed"),
            (format!("{node}name \"open\n"), Some(3), "string does not end"),
            ("[ ]".to_owned(), Some(1), "expected a key"),
            (format!("graph {}", "[ a ".repeat(10_000)), Some(1), "nest deeper"),
        ] {
            let error = read_text(&bad).unwrap_err();
            assert!(error.cause.contains(cause) && error.line == line, "{bad:.60}: {error}");
        }
    }
}
