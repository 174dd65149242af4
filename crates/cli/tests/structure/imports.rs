//! Which files of a crate import which, read from their tokens; tests apart.
//!
//! A file imports the file that defines what it names, however many modules re-export it on the way: a parent that only
//! declares and re-exports its children imports none of them. Methods are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Groups of files that import each other, with the names that tie them.
pub fn circles(root: &Path) -> Vec<String> {
    let mut tree = Tree::default();
    tree.open(root.to_owned(), None);
    let edges = tree.edges();
    let reached: Vec<BTreeSet<usize>> = (0..tree.files.len()).map(|file| reach(&edges, file)).collect();
    let mut found = Vec::new();
    for file in 0..tree.files.len() {
        let circle: Vec<usize> =
            (reached[file].iter().copied()).filter(|other| reached[*other].contains(&file)).collect();
        // Of one circle its first file speaks.
        if circle.first() == Some(&file) {
            found.push(tree.describe(&edges, &circle));
        }
    }
    found
}

/// From file to file: the names.
type Edges = BTreeMap<(usize, usize), BTreeSet<String>>;

fn reach(edges: &Edges, from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for (_, to) in edges.keys().filter(|(source, _)| *source == file) {
            if reached.insert(*to) {
                open.push(*to);
            }
        }
    }
    reached
}

#[derive(Default)]
struct Tree {
    files: Vec<PathBuf>,
    modules: Vec<Module>,
}

#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// `a::b` outside of imports.
    paths: BTreeSet<Vec<String>>,
    /// Single names outside of imports.
    names: BTreeSet<String>,
}

struct Import {
    /// What it is called here; none for `*`.
    name: Option<String>,
    path: Vec<String>,
    public: bool,
}

#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item that this file defines.
    Item(usize),
    /// Another crate's.
    Foreign,
}

impl Tree {
    fn open(&mut self, path: PathBuf, parent: Option<usize>) -> usize {
        let file = self.files.len();
        let tokens = crate::structure::tokens(&path);
        self.files.push(path);
        let module = self.module(file, parent);
        self.read(module, tokens, true);
        module
    }

    fn module(&mut self, file: usize, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Notes what `tokens` define, import and name; `items`: they are a module's, no function's.
    fn read(&mut self, module: usize, tokens: TokenStream, items: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let next = tokens.get(at + 1);
            match (&tokens[at], next) {
                (TokenTree::Punct(hash), Some(TokenTree::Group(attribute)))
                    if hash.as_char() == '#' && is_for_tests(attribute) =>
                {
                    at += 2 + item_length(&tokens[at + 2..]);
                }
                (TokenTree::Ident(word), Some(TokenTree::Ident(name))) if word == "mod" => {
                    self.child(module, &name.to_string(), tokens.get(at + 2));
                    at += 3;
                }
                (TokenTree::Ident(word), Some(TokenTree::Ident(_) | TokenTree::Group(_)))
                    if word == "use" =>
                {
                    let length = item_length(&tokens[at..]).max(until_semicolon(&tokens[at..]));
                    let public = at > 0 && is_visibility(&tokens[..at]);
                    self.import(module, &tokens[at + 1..at + length - 1], &[], public);
                    at += length;
                }
                (TokenTree::Ident(word), Some(TokenTree::Ident(name)))
                    if items && defines(&word.to_string()) =>
                {
                    self.modules[module].items.insert(name.to_string());
                    at += if defines(&name.to_string()) { 1 } else { 2 };
                }
                (TokenTree::Ident(_), _) => at += self.path(module, &tokens, at),
                (TokenTree::Group(group), _) => {
                    self.read(module, group.stream(), false);
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    fn child(&mut self, module: usize, name: &str, body: Option<&TokenTree>) {
        let child = if let Some(TokenTree::Group(body)) = body {
            let child = self.module(self.modules[module].file, Some(module));
            self.read(child, body.stream(), true);
            child
        } else {
            let path = &self.files[self.modules[module].file];
            let folder = match path.file_stem().unwrap().to_str().unwrap() {
                "lib" | "main" | "mod" => path.parent().unwrap().to_owned(),
                stem => path.with_file_name(stem),
            };
            let file = folder.join(format!("{name}.rs"));
            let path = if file.exists() { file } else { folder.join(name).join("mod.rs") };
            self.open(path, Some(module))
        };
        self.modules[module].children.insert(name.to_owned(), child);
    }

    /// One tree of a `use`, below `prefix`.
    fn import(&mut self, module: usize, tree: &[TokenTree], prefix: &[String], public: bool) {
        let mut path = prefix.to_vec();
        let mut name = None;
        let mut alias = false;
        for token in tree {
            match token {
                TokenTree::Ident(word) if word == "as" => alias = true,
                TokenTree::Ident(word) if alias => name = Some(word.to_string()),
                TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Punct(star) if star.as_char() == '*' => {
                    let import = Import { name: None, path, public };
                    return self.modules[module].imports.push(import);
                }
                TokenTree::Group(group) => {
                    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
                    let comma =
                        |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
                    for tree in trees.split(comma).filter(|tree| !tree.is_empty()) {
                        self.import(module, tree, &path, public);
                    }
                    return;
                }
                _ => {}
            }
        }
        let name = name.or_else(|| path.last().cloned());
        self.modules[module].imports.push(Import { name, path, public });
    }

    /// Notes the path or name that starts at `at`; how many tokens it has.
    fn path(&mut self, module: usize, tokens: &[TokenTree], at: usize) -> usize {
        let is = |index: usize, mark: char| matches!(tokens.get(index), Some(TokenTree::Punct(punct)) if punct.as_char() == mark);
        let mut path = vec![tokens[at].to_string()];
        let mut end = at + 1;
        while is(end, ':') && is(end + 1, ':') {
            let Some(TokenTree::Ident(word)) = tokens.get(end + 2) else { break };
            path.push(word.to_string());
            end += 3;
        }
        let field = at > 0 && is(at - 1, '.');
        match path.pop() {
            Some(name) if path.is_empty() && !field => {
                self.modules[module].names.insert(name);
            }
            Some(name) if !path.is_empty() => {
                path.push(name);
                self.modules[module].paths.insert(path);
            }
            _ => {}
        }
        end - at
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (index, module) in self.modules.iter().enumerate() {
            let used = |import: &&Import| {
                !import.public || (import.name.as_ref()).is_some_and(|name| module.names.contains(name))
            };
            let imports =
                module.imports.iter().filter(used).map(|import| (&import.path, import.name.is_none()));
            for (path, all) in imports.chain(module.paths.iter().map(|path| (path, false))) {
                let target = self.resolve(index, path, 0);
                let local = ["crate", "self", "super"].contains(&path[0].as_str());
                assert!(
                    target.is_some() || !local,
                    "{}: {path:?} leads nowhere",
                    self.files[module.file].display()
                );
                let to = match target {
                    Some(Target::Item(file)) => file,
                    Some(Target::Module(target)) if all => self.modules[target].file,
                    _ => continue,
                };
                if to != module.file {
                    let names = edges.entry((module.file, to)).or_default();
                    names.insert(path.join("::"));
                }
            }
        }
        edges
    }

    fn resolve(&self, module: usize, path: &[String], depth: usize) -> Option<Target> {
        // Names that import each other have no end.
        if depth > 16 {
            return None;
        }
        let mut at = None;
        for (index, name) in path.iter().enumerate() {
            let last = index + 1 == path.len();
            at = Some(match (at, name.as_str()) {
                (None, "crate") => Target::Module(0),
                (None, "self") => Target::Module(module),
                (None, "super") => Target::Module(self.modules[module].parent?),
                (None, name) => self.look_up(module, name, last, depth)?,
                (Some(Target::Module(target)), "super") => Target::Module(self.modules[target].parent?),
                // What a macro makes is not seen: it is where its module is.
                (Some(Target::Module(target)), name) => {
                    self.look_up(target, name, last, depth).unwrap_or(Target::Item(self.modules[target].file))
                }
                (Some(item), _) => item,
            });
        }
        at
    }

    fn look_up(&self, module: usize, name: &str, last: bool, depth: usize) -> Option<Target> {
        let here = &self.modules[module];
        let child = here.children.get(name).map(|child| Target::Module(*child));
        let item = here.items.contains(name).then_some(Target::Item(here.file));
        // A function may have a module's name.
        let own = if last { item.or(child) } else { child.or(item) };
        own.or_else(|| {
            let mut named = here.imports.iter().filter(|import| import.name.as_deref() == Some(name));
            let import = named.next()?;
            // `use bytes;` in a crate that has no such module.
            let own = import.path.len() == 1 && import.path[0] == name;
            let target = if own { None } else { self.resolve(module, &import.path, depth + 1) };
            Some(target.unwrap_or(Target::Foreign))
        })
        .or_else(|| {
            let all = here.imports.iter().filter(|import| import.name.is_none());
            all.filter_map(|import| self.resolve(module, &import.path, depth + 1)).find_map(|target| {
                match target {
                    Target::Module(target) if depth < 16 => self.look_up(target, name, last, depth + 1),
                    _ => None,
                }
            })
        })
    }

    fn describe(&self, edges: &Edges, circle: &[usize]) -> String {
        let inside = edges.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
        let shown = |file: usize| crate::structure::shown(&self.files[file]);
        let lines = inside.map(|((from, to), names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("  {} -> {}: {}\n", shown(*from), shown(*to), names.join(", "))
        });
        format!("{} files\n{}", circle.len(), lines.collect::<String>())
    }
}

fn defines(word: &str) -> bool {
    ["struct", "enum", "union", "trait", "fn", "const", "static", "type"].contains(&word)
}

pub fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string();
    text.starts_with("cfg") && text.contains("test") && !text.contains("not")
}

fn is_visibility(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(word), TokenTree::Group(group)] => {
            word == "pub" && group.delimiter() == Delimiter::Parenthesis
        }
        [.., TokenTree::Ident(word)] => word == "pub",
        _ => false,
    }
}

/// Up to the end of an item: its body, or a semicolon.
pub fn item_length(tokens: &[TokenTree]) -> usize {
    let end = tokens.iter().position(|token| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(mark) => mark.as_char() == ';',
        _ => false,
    });
    end.map_or(tokens.len(), |end| end + 1)
}

fn until_semicolon(tokens: &[TokenTree]) -> usize {
    let end =
        (tokens.iter()).position(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ';'));
    end.map_or(tokens.len(), |end| end + 1)
}
