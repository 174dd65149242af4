//! Pages and comments refer to files that exist.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout")
}

/// Every file of the checkout whose name ends so; build folders and results left out.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the checkout") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "out", "node_modules"].contains(&name.as_str()) {
                files(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// What stands between each `](` and the next `)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut pages = Vec::new();
    files(&root(), &[".md"], &mut pages);
    assert!(pages.len() > 20, "the pages were not found");
    let mut dangling = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for link in links(&text) {
            let file = link.split('#').next().unwrap_or_default();
            let elsewhere = link.contains("://") || link.starts_with("mailto:");
            if !elsewhere && !file.is_empty() && !page.with_file_name(file).exists() {
                dangling.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(dangling.is_empty(), "links that lead nowhere:\n{}", dangling.join("\n"));
}

#[test]
fn essays_named_in_code_exist() {
    let mut sources = Vec::new();
    files(&root(), &[".rs", ".toml", ".md", ".py"], &mut sources);
    let mut dangling = Vec::new();
    for source in sources {
        let text = fs::read_to_string(&source).expect("a source");
        for rest in text.split("docs/").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
            let is_page = rest[end..].starts_with(".md");
            if is_page && !root().join("docs").join(&rest[..end]).with_extension("md").exists() {
                dangling.push(format!("{}: docs/{}.md", source.display(), &rest[..end]));
            }
        }
    }
    assert!(dangling.is_empty(), "pages that do not exist:\n{}", dangling.join("\n"));
}

/// Whether `proto::links::pacing` or an item in it is there: folders and files as far as they go, then a word in them.
fn is_there(path: &str) -> bool {
    let mut names = path.split("::");
    let mut place = root().join("crates").join(names.next().unwrap_or_default()).join("src");
    let mut names = names.peekable();
    while let Some(name) = names.peek() {
        let next = place.join(name);
        if !next.is_dir() && !next.with_extension("rs").exists() {
            break;
        }
        place = next;
        names.next();
    }
    let mut sources = vec![place.with_extension("rs")];
    if place.is_dir() {
        files(&place, &[".rs"], &mut sources);
    }
    let text: String = sources.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    names.all(|name| words.contains(&name))
}

#[test]
fn code_named_in_essays_exists() {
    assert!(is_there("control::predictor") && is_there("proto::control::Controller"));
    assert!(!is_there("proto::relay::steer") && !is_there("proto::control::predictor::telling"));
    let mut pages = Vec::new();
    files(&root().join("docs"), &[".md"], &mut pages);
    pages.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    let mut dangling = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for code in text.split('`').skip(1).step_by(2) {
            let is_path =
                code.contains("::") && code.chars().all(|c| c.is_alphanumeric() || "_:".contains(c));
            let krate = code.split("::").next().unwrap_or_default();
            if is_path && root().join("crates").join(krate).is_dir() && !is_there(code) {
                dangling.push(format!("{}: {code}", page.display()));
            }
        }
    }
    assert!(dangling.is_empty(), "code that does not exist:\n{}", dangling.join("\n"));
}

/// Bounds stand there as `crate::module::NAME` = `value`, in the code as a constant or a default.
#[test]
fn bounds_are_those_of_the_code() {
    let page = fs::read_to_string(root().join("docs/attacks.md")).expect("a page");
    let table = page.split("## ").find(|part| part.starts_with("Bounds")).expect("the table");
    let code: Vec<&str> = table.split('`').collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for bound in code.windows(3).skip(1).step_by(2).filter(|bound| bound[1] == " = ") {
        let (path, value) = (bound[0], bound[2]);
        let (module, name) = path.rsplit_once("::").expect("a path");
        let (krate, file) = module.split_once("::").expect("a module");
        let file = root().join("crates").join(krate).join("src").join(file.replace("::", "/"));
        let text = fs::read_to_string(file.with_extension("rs"));
        let text = text.or_else(|_| fs::read_to_string(file.join("mod.rs"))).unwrap_or_default();
        let says = |line: &str| {
            let (_, rest) = line.split_once(&format!("{name}: "))?;
            (rest.ends_with(&format!(" = {value};")) || rest == format!("{value},")).then_some(())
        };
        seen += 1;
        if !text.lines().any(|line| says(line).is_some()) {
            wrong.push(format!("{path} is not {value}"));
        }
    }
    assert!(wrong.is_empty() && seen > 30, "{seen} bounds, wrong are:\n{}", wrong.join("\n"));
}

#[test]
fn every_page_is_in_the_site() {
    let mut pages = Vec::new();
    files(&root().join("docs"), &[".md"], &mut pages);
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).expect("the summary");
    let listed: Vec<&str> = links(&summary).collect();
    for page in pages {
        let name = page.file_name().unwrap_or_default().to_string_lossy();
        assert!(name == "SUMMARY.md" || listed.contains(&&*name), "docs/SUMMARY.md lacks {name}");
    }
}
