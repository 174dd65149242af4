//! Errors in a user's input: file, position, cause and cure; and the text that they point into.

use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

pub use tidegate_control::keys::suggest;
use tidegate_data::document::Document;
use tidegate_data::kinds;
use tidegate_data::open::open;

/// A mistake in a file or argument. The tool prints it and exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    /// The file (or argument) as the user named it.
    pub file: String,
    /// Line and column, from 1, if known.
    pub at: Option<(usize, usize)>,
    /// What is wrong.
    pub cause: String,
    /// How to fix it; may be empty.
    pub cure: String,
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.cause)?;
        if !self.cure.is_empty() {
            write!(f, "\n  help: {}", self.cure)?;
        }
        Ok(())
    }
}

impl std::error::Error for InputError {}

impl InputError {
    /// A mistake in a file as a whole, without a position.
    pub fn new(file: impl Into<String>, cause: impl Into<String>, cure: impl Into<String>) -> InputError {
        InputError { file: file.into(), at: None, cause: cause.into(), cure: cure.into() }
    }
}

/// A text file and its name, to turn byte offsets into lines and columns.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The file as the user named it.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// Limit on the size of hand-written files.
const MAX_BYTES: u64 = 4 << 20;

impl SourceFile {
    /// Reads a hand-written file: UTF-8, at most 4 MiB.
    pub fn read(path: &Path) -> Result<SourceFile, InputError> {
        let file = path.display().to_string();
        let fail = |cause: String, cure: &str| Err(InputError::new(file.clone(), cause, cure));
        // Checked before opening: opening a FIFO blocks until a writer comes, and reading a device never ends.
        match std::fs::metadata(path) {
            Ok(about) if about.is_dir() => return fail("is a directory".into(), "name a file in it"),
            Ok(about) if !about.is_file() => {
                return fail("is not a regular file".into(), "write the contents to a regular file first");
            }
            Ok(_) => {}
            Err(error) => return fail(format!("cannot be read: {error}"), "check the path"),
        }
        // The limit applies to the bytes read: the file may grow meanwhile.
        let read = || {
            let mut bytes = Vec::new();
            std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes)
        };
        match read().map(String::from_utf8) {
            Ok(Ok(text)) if text.len() as u64 > MAX_BYTES => {
                fail(format!("is longer than the limit of {MAX_BYTES} bytes"), "is this the right file?")
            }
            Ok(Ok(text)) => Ok(SourceFile { file, text }),
            Ok(Err(_)) => {
                let foreign = open(path).ok().and_then(|document| foreign(&document));
                foreign.map_or_else(|| fail("is not UTF-8 text".into(), "is this the right file?"), Err)
            }
            Err(error) => fail(format!("cannot be read: {error}"), "check the permissions"),
        }
    }

    /// Line and column (in characters, from 1) of a byte offset.
    pub(crate) fn position(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// A mistake at a position of this text.
    pub fn error(&self, span: Range<usize>, cause: impl Into<String>, cure: impl Into<String>) -> InputError {
        InputError { at: Some(self.position(span.start)), ..InputError::new(&self.file, cause, cure) }
    }

    /// Parses JSON. Errors have line and column.
    pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(&self, cure: &str) -> Result<T, InputError> {
        serde_json::from_str(&self.text).map_err(|error| InputError {
            at: (error.line() > 0).then(|| (error.line(), error.column())),
            ..InputError::new(&self.file, error.to_string(), cure)
        })
    }

    /// Parses TOML. Errors about unknown keys suggest the nearest known one. `example` says where a complete file is
    /// shown, for an empty one.
    pub fn parse_toml<T: serde::de::DeserializeOwned>(&self, example: &str) -> Result<T, InputError> {
        if self.text.trim().is_empty() {
            return Err(InputError::new(&self.file, "is empty", example));
        }
        toml::from_str(&self.text).map_err(|error| self.toml_error(&error))
    }

    /// The mistake that TOML's parser found, or the kind of this file if it is another known one.
    pub(crate) fn toml_error(&self, error: &toml::de::Error) -> InputError {
        let document = Document::new(self.file.clone(), self.text.clone()).ok();
        if let Some(foreign) = document.and_then(|document| foreign(&document)) {
            return foreign;
        }
        let (cause, cure) = explain(error.message());
        match error.span() {
            Some(span) => self.error(span, cause, cure),
            None => InputError::new(&self.file, cause, cure),
        }
    }
}

/// The mistake of naming a file of another known kind.
fn foreign(document: &Document) -> Option<InputError> {
    kinds::expect(document, "a TOML file of Tidegate", &[kinds::SCENARIO]).err().map(InputError::from)
}

/// Turns a message of serde or of TOML's parser into cause and cure.
pub(crate) fn explain(message: &str) -> (String, String) {
    let message = message.trim_end();
    if let Some(name) = message.strip_prefix("missing field ") {
        return (format!("{name} is missing"), "add it".into());
    }
    if message == "duplicate key" {
        return ("this key is there twice".into(), "remove one of them".into());
    }
    let Some((head, expected)) = message.split_once(", expected ") else {
        return (message.to_owned(), String::new());
    };
    if head.starts_with("invalid type: ") || head.starts_with("invalid value: ") {
        return (message.to_owned(), format!("write {}", plain_type(expected)));
    }
    let Some(name) = head.strip_prefix("unknown field ").or_else(|| head.strip_prefix("unknown variant "))
    else {
        return (message.to_owned(), String::new());
    };
    let name = name.trim_matches('`');
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let what = if head.starts_with("unknown field") { "key" } else { "value" };
    (format!("unknown {what} `{name}`"), suggest(name, &known))
}

/// What serde's name of an expected type means in a file.
fn plain_type(expected: &str) -> &str {
    match expected {
        "bool" | "a boolean" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i32" | "i64" => "a whole number",
        "f64" | "f32" => "a number",
        "a sequence" => "a list: [...]",
        "a map" => "a table",
        "path string" => "a path in quotes",
        text if text.starts_with("struct ") => "a table",
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters() {
        let source = SourceFile { file: "x".into(), text: "a\nµb = 1\n".into() };
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(4), (2, 2), "µ is two bytes, one column");
        assert_eq!(source.position(999), (3, 1));
    }

    #[test]
    fn mistakes_have_a_place_and_a_cure() {
        #[derive(Debug, serde::Deserialize)]
        struct File {
            #[serde(rename = "a")]
            _a: u32,
            #[serde(rename = "b")]
            _b: Option<bool>,
        }
        let wrong = |text: &str| {
            let source = SourceFile { file: "x".into(), text: text.into() };
            source.parse_toml::<File>("").unwrap_err().to_string()
        };
        for (text, parts) in [
            ("b = true", ["`a` is missing", "add it"]),
            ("a = 1\na = 2", ["there twice", "remove one of them"]),
            ("a = \"1\"", ["invalid type", "write a whole number of 0 or more"]),
            ("a = 1\nb = 1", ["invalid type", "write true or false"]),
            ("a = -1", ["invalid value", "write a whole number of 0 or more"]),
        ] {
            let why = wrong(text);
            assert!(parts.iter().chain(&["x:"]).all(|part| why.contains(part)), "{text}: {why}");
        }
    }
}
