//! Tests of the documentation: links, names of code, bounds and snippets are valid.

use crate::skipped;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_lab::input::SourceFile;
use tidegate_lab::scenario::Scenario;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout")
}

/// Finds files with these endings, except in build and result folders.
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

/// Targets of Markdown links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

#[test]
fn links_of_pages_lead_to_files() {
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
    assert!(dangling.is_empty(), "links to missing files:\n{}", dangling.join("\n"));
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

/// Whether a path such as `proto::links::pacing` exists: as folders and files, then as items that are defined in them.
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
    // A field follows `pub`.
    let before = ["pub", "fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
    names.all(|name| words.windows(2).any(|pair| before.contains(&pair[0]) && pair[1] == name))
}

#[test]
fn code_named_in_essays_exists() {
    assert!(is_there("control::predictor") && is_there("proto::control::Controller"));
    assert!(!is_there("proto::relay::steer") && !is_there("sim::world::control"));
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

/// The page writes a bound as `crate::module::NAME` = `value`; the code has it as a constant or a default.
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

/// Fenced blocks of a page: language and text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let (mut found, mut open) = (Vec::new(), None::<(String, String)>);
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => found.push(block),
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (None, Some((language, text))) => open = Some((language, format!("{text}{line}\n"))),
            (None, None) => {}
        }
    }
    found
}

/// Blocks in this language of README.md, CONTRIBUTING.md and docs/*.md, with their pages.
fn snippets(language: &str) -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    files(&root().join("docs"), &[".md"], &mut pages);
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    let of_page = |page: PathBuf| {
        let text = fs::read_to_string(&page).expect("a page");
        let wanted = blocks(&text).into_iter().filter(|(found, _)| found == language);
        wanted.map(move |(_, text)| (page.clone(), text)).collect::<Vec<_>>()
    };
    pages.into_iter().flat_map(of_page).collect()
}

/// All TOML blocks parse; a block with `duration` and `system` is a complete scenario and passes the checks of `run`.
#[test]
fn toml_in_pages_is_valid() {
    let mut scenarios = 0;
    for (page, text) in snippets("toml") {
        let table: toml::Table =
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        if table.contains_key("duration") && table.contains_key("system") {
            let source = SourceFile { file: page.display().to_string(), text };
            Scenario::parse(source, root(), &[]).unwrap_or_else(|error| panic!("{error}"));
            scenarios += 1;
        }
    }
    assert!(scenarios > 0, "the README has a scenario");
}

/// TOML blocks with `vary` are studies; `sweep --list` reads each, with the scenario at every point.
#[cfg(unix)]
#[test]
fn studies_in_pages_list_their_points() {
    let folder = std::env::temp_dir().join(format!("tidegate-studies-{}", std::process::id()));
    fs::create_dir_all(folder.join("studies")).expect("a folder");
    std::os::unix::fs::symlink(root().join("scenarios"), folder.join("scenarios")).expect("a link");
    let mut studies = 0;
    for (page, text) in snippets("toml") {
        let table: toml::Table = toml::from_str(&text).expect("a TOML block");
        if table.contains_key("vary") {
            let file = folder.join("studies/STUDY.toml");
            fs::write(&file, &text).expect("a study");
            let sweep =
                Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("sweep").arg(&file).arg("--list").output();
            let sweep = sweep.expect("the tool starts");
            let said = String::from_utf8_lossy(&sweep.stderr);
            assert!(sweep.status.success(), "{}: {said}", page.display());
            assert!(String::from_utf8_lossy(&sweep.stdout).contains(" points, "), "{}", page.display());
            studies += 1;
        }
    }
    let _ = fs::remove_dir_all(&folder);
    assert!(studies > 0, "docs/studies.md has a study");
}

/// `make` and `cargo` lines name targets, packages and tests that exist. `tidegate` lines are parsed by clap in
/// `src/commands/documented.rs`.
#[test]
fn shell_lines_name_targets_that_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(targets, _)| targets.split_whitespace())
        .collect();
    let is_target = |name: &str| targets.contains(&name);
    let mut wrong = Vec::new();
    let mut lines: Vec<String> = snippets("sh")
        .iter()
        .flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    for page in ["README.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root().join(page)).expect("a page");
        lines.extend(text.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    for line in &lines {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        match &words[..] {
            ["make", target, ..] if !is_target(target) => wrong.push(line),
            ["cargo", rest @ ..] => {
                let package = rest.windows(2).find(|pair| pair[0] == "-p").map(|pair| pair[1]);
                let folder = package.map(|name| match name {
                    "tidegate" => root().join("crates/cli"),
                    other => root().join("crates").join(other.trim_start_matches("tidegate-")),
                });
                if folder.is_some_and(|folder| !folder.is_dir()) {
                    wrong.push(line);
                }
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "targets that do not exist: {wrong:#?}");
}

/// Python blocks compile. Rust blocks stand only in CONTRIBUTING.md, which the doctests of `proto` compile.
#[test]
fn python_and_rust_in_pages_compile() {
    let rust = snippets("rust");
    let elsewhere: Vec<_> = rust.iter().filter(|(page, _)| !page.ends_with("CONTRIBUTING.md")).collect();
    assert!(elsewhere.is_empty(), "doctests do not compile the Rust blocks of {elsewhere:#?}");
    for (page, text) in snippets("python") {
        let compiled =
            Command::new("python3").args(["-c", "import ast, sys; ast.parse(sys.argv[1])", &text]).output();
        match compiled {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {said}", page.display());
            }
            Err(_) => return skipped::skipped("Python in pages", "python3"),
        }
    }
}

/// Command lines in the README and in `sh` blocks are run if they finish in seconds and need only files of the repository:
/// `keys`, `fairness`, `predictor`, `overlay demo --bytes`, and `run` of the bottleneck scenario.
#[cfg(unix)]
#[test]
fn short_command_lines_run() {
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    let mut lines: Vec<String> = readme.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    lines.extend(
        snippets("sh").iter().flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>()),
    );
    let is_short = |line: &&String| {
        let short = ["keys kist", "fairness ", "predictor ", "run scenarios/bottleneck.toml"];
        let begins = short.iter().any(|short| line.starts_with(&format!("tidegate {short}")));
        (begins || line.starts_with("tidegate overlay demo --bytes"))
            && !line.contains(['#', '>', '|'])
            && !line.contains("FILE")
    };
    let folder = std::env::temp_dir().join(format!("tidegate-documents-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    for name in ["scenarios", "examples"] {
        std::os::unix::fs::symlink(root().join(name), folder.join(name)).expect("a link");
    }
    let mut run = 0;
    for line in lines.iter().filter(is_short) {
        // Quotes surround the last value only: `--bytes "1 MB"`.
        let mut parts = line.splitn(2, '"');
        let mut words: Vec<&str> = parts.next().unwrap_or_default().split_whitespace().skip(1).collect();
        words.extend(parts.next().map(|value| value.trim_end_matches('"')));
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(&words).current_dir(&folder).output();
        let output = output.expect("the tool starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        run += 1;
    }
    let _ = fs::remove_dir_all(&folder);
    assert!(run >= 2, "{run} command lines were run");
}
