//! Limits of the code: functions of at most 80 lines, no circle of files.

mod imports;
mod methods;

use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

const LONGEST_FUNCTION: usize = 80;
/// Files of one type that may call each other's methods.
const LARGEST_TYPE: usize = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust file below `folder`, in order.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        if entry.is_dir() && entry.file_name().is_some_and(|name| name != "target") {
            found.extend(rust_files(&entry));
        } else if entry.extension().is_some_and(|end| end == "rs") {
            found.push(entry);
        }
    }
    found
}

/// A path as seen from the root.
fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn tokens(path: &Path) -> TokenStream {
    let text = std::fs::read_to_string(path).unwrap();
    (text.parse()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The functions in `tokens` that are too long, with their lines.
fn long_functions(tokens: TokenStream, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            long_functions(group.stream(), found);
        }
        let (TokenTree::Ident(keyword), Some(TokenTree::Ident(name))) = (token, tokens.get(index + 1)) else {
            continue;
        };
        if keyword != "fn" {
            continue;
        }
        let body = tokens[index..].iter().find_map(|token| match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(Some(group)),
            TokenTree::Punct(end) if end.as_char() == ';' => Some(None),
            _ => None,
        });
        if let Some(Some(body)) = body {
            let lines = body.span_close().end().line - keyword.span().start().line + 1;
            if lines > LONGEST_FUNCTION {
                found.push(format!("{name}, {lines} lines"));
            }
        }
    }
}

#[test]
fn functions_keep_their_length() {
    let mut found = Vec::new();
    for folder in ["crates", "examples", "fuzz", "tests"] {
        for path in rust_files(&root().join(folder)) {
            let mut functions = Vec::new();
            long_functions(tokens(&path), &mut functions);
            found.extend(functions.iter().map(|function| format!("{}: {function}", shown(&path))));
        }
    }
    assert!(found.is_empty(), "functions over {LONGEST_FUNCTION} lines:\n{}", found.join("\n"));
}

/// The `src` folder of each crate.
fn sources() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("crates")).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path().join("src")).collect();
    found.sort();
    found
}

#[test]
fn no_circle_of_files() {
    let roots = sources().into_iter().flat_map(|source| ["lib.rs", "main.rs"].map(|name| source.join(name)));
    let circles: Vec<String> =
        roots.filter(|path| path.exists()).flat_map(|path| imports::circles(&path)).collect();
    assert!(circles.is_empty(), "files that import each other:\n{}", circles.join("\n"));
}

#[test]
fn no_type_calls_itself_across_many_files() {
    let circles: Vec<String> =
        sources().iter().flat_map(|source| methods::circles(source, LARGEST_TYPE)).collect();
    assert!(
        circles.is_empty(),
        "methods of one type call each other in a circle of more than {LARGEST_TYPE} files:\n{}",
        circles.join("\n")
    );
}

/// What counts as a circle, on a small crate.
#[test]
fn a_circle_is_seen() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("structure");
    let circles = |parent: &str, child: &str| {
        std::fs::create_dir_all(folder.join("parent")).unwrap();
        std::fs::write(folder.join("lib.rs"), "mod parent;").unwrap();
        std::fs::write(folder.join("parent/mod.rs"), format!("mod child; {parent}")).unwrap();
        std::fs::write(folder.join("parent/child.rs"), child).unwrap();
        imports::circles(&folder.join("lib.rs")).len()
    };
    let child = "use super::Item; pub struct Part(Item);";
    assert_eq!(circles("pub use child::Part; pub struct Item;", child), 0, "re-exported only");
    assert_eq!(circles("pub use child::Part; pub struct Item(Box<Part>);", child), 1);
    assert_eq!(circles("pub struct Item(Box<child::Part>);", child), 1);
    assert_eq!(circles("use child::*; pub struct Item(Box<Part>);", child), 1);
    assert_eq!(circles("use child as c; pub struct Item(Box<c::Part>);", child), 1);
    let through_root = "use crate::parent::{self as p, Item}; pub struct Part(Item);";
    assert_eq!(circles("use child::Part; pub struct Item(Box<Part>);", through_root), 1);
    let test = "pub struct Part; #[cfg(test)] mod tests { use super::super::Item; }";
    assert_eq!(circles("use child::Part; pub struct Item(Part);", test), 0, "tests apart");
}

/// What counts as a circle of methods, on a small crate.
#[test]
fn a_circle_of_methods_is_seen() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("methods");
    std::fs::create_dir_all(&folder).unwrap();
    let circles = |one: &str, two: &str| {
        std::fs::write(folder.join("one.rs"), one).unwrap();
        std::fs::write(folder.join("two.rs"), two).unwrap();
        methods::circles(&folder, 1).len()
    };
    let two = "impl<R: Fn() -> u8> super::World<R> { fn pong(&mut self) { if true { self.ping() } } }";
    assert_eq!(circles("impl World { fn ping(&self) { Self::pong(self) } }", two), 1);
    assert_eq!(circles("impl Other { fn ping(&self) { self.pong() } }", two), 0, "two types");
    assert_eq!(circles("impl World { fn ping(&self) {} }", two), 0, "one direction");
    assert_eq!(circles("#[cfg(test)] impl World { fn ping(&self) { self.pong() } }", two), 0, "tests apart");
}
