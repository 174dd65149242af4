//! Method calls between the files of one type, read from tokens; tests apart.
//!
//! Imports do not show a type that is spread over many files: an `impl` in one file calls `self.method()` of an `impl` in
//! another without importing it. Here an edge leads from the file of the caller to the file that defines the method.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The inherent methods of a type in one file, and the `self` calls in their bodies.
#[derive(Default)]
struct Part {
    defines: BTreeSet<String>,
    calls: BTreeSet<String>,
}

/// Groups of files of one type that call each other's methods in a circle, if they are more than `most` files.
pub fn circles(source: &Path, most: usize) -> Vec<String> {
    let mut types: BTreeMap<String, BTreeMap<PathBuf, Part>> = BTreeMap::new();
    for path in crate::structure::rust_files(source) {
        read(crate::structure::tokens(&path), &path, &mut types);
    }
    let mut found = Vec::new();
    for (name, parts) in &types {
        for circle in components(parts).into_iter().filter(|circle| circle.len() > most) {
            let files: Vec<String> = circle.iter().map(|path| crate::structure::shown(path)).collect();
            found.push(format!("{name}: {} files\n  {}", files.len(), files.join("\n  ")));
        }
    }
    found
}

/// Notes each `impl Type` in `tokens`.
fn read(tokens: TokenStream, path: &Path, types: &mut BTreeMap<String, BTreeMap<PathBuf, Part>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            // An attribute such as `#[cfg(test)]` hides the item that follows it.
            TokenTree::Punct(hash) if hash.as_char() == '#' => {
                let test = matches!(tokens.get(at + 1), Some(TokenTree::Group(group)) if crate::structure::imports::is_for_tests(group));
                at += 2;
                if test {
                    at += crate::structure::imports::item_length(&tokens[at.min(tokens.len())..]);
                }
                continue;
            }
            TokenTree::Ident(word) if word == "impl" => {
                let Some(length) = tokens[at..].iter().position(is_body) else { return };
                let TokenTree::Group(body) = &tokens[at + length] else {
                    unreachable!("position finds a group")
                };
                if let Some(name) = implemented(&tokens[at + 1..at + length]) {
                    let part = types.entry(name).or_default().entry(path.to_owned()).or_default();
                    methods(body.stream(), part);
                }
                at += length + 1;
                continue;
            }
            // A module within the file.
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                read(group.stream(), path, types);
            }
            _ => {}
        }
        at += 1;
    }
}

fn is_body(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// The type's name in `<T> path::Type<T> where ...` or `Trait for Type`.
fn implemented(header: &[TokenTree]) -> Option<String> {
    let mut depth = 0_i32;
    let mut name = None;
    let mut dash = false;
    for token in header {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '<' => depth += 1,
            // The arrow of `Fn() -> T` closes nothing.
            TokenTree::Punct(mark) if mark.as_char() == '>' && !dash => depth -= 1,
            TokenTree::Ident(word) if depth == 0 && word == "where" => break,
            TokenTree::Ident(word) if depth == 0 && word == "for" => name = None,
            TokenTree::Ident(word) if depth == 0 => name = Some(word.to_string()),
            _ => {}
        }
        dash = matches!(token, TokenTree::Punct(mark) if mark.as_char() == '-');
    }
    name
}

/// Notes the methods that `body` defines and those that it calls on `self`.
fn methods(body: TokenStream, part: &mut Part) {
    let tokens: Vec<TokenTree> = body.into_iter().collect();
    for pair in tokens.windows(2) {
        if let [TokenTree::Ident(word), TokenTree::Ident(name)] = pair
            && word == "fn"
        {
            part.defines.insert(name.to_string());
        }
    }
    for token in tokens {
        if let TokenTree::Group(group) = token
            && group.delimiter() == Delimiter::Brace
        {
            calls(group.stream(), &mut part.calls);
        }
    }
}

/// Notes `self.name(...)` and `Self::name(...)` at any depth.
fn calls(body: TokenStream, found: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = body.into_iter().collect();
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => calls(group.stream(), found),
            TokenTree::Ident(word) if word == "self" || word == "Self" => {
                let method = tokens[index + 1..].iter().find(|token| !matches!(token, TokenTree::Punct(_)));
                if let Some(TokenTree::Ident(method)) = method {
                    found.insert(method.to_string());
                }
            }
            _ => {}
        }
    }
}

/// Files that reach each other by calls.
fn components(parts: &BTreeMap<PathBuf, Part>) -> Vec<Vec<&PathBuf>> {
    let calls = |from: &PathBuf, to: &PathBuf| {
        let (caller, callee) = (&parts[from], &parts[to]);
        // A method of the same name in the caller's own file comes first.
        from != to && caller.calls.intersection(&callee.defines).any(|name| !caller.defines.contains(name))
    };
    let reach = |from: &PathBuf| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(file) = open.pop() {
            for to in parts.keys().filter(|to| calls(&file, to)) {
                if reached.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
        parts.keys().map(|file| (file, reach(file))).collect();
    let mut found: Vec<Vec<&PathBuf>> = Vec::new();
    for file in parts.keys() {
        if found.iter().any(|circle| circle.contains(&file)) {
            continue;
        }
        let circle: Vec<&PathBuf> = parts
            .keys()
            .filter(|other| reached[file].contains(*other) && reached[other].contains(file))
            .collect();
        if !circle.is_empty() {
            found.push(circle);
        }
    }
    found
}
