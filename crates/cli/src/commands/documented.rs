//! Tests of the command lines in help texts and documentation: clap must accept them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _, Parser as _};

use super::Cli;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README, guides, and all pages of `docs` and `experiments`, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let mut folders = vec![root().join("docs"), root().join("experiments"), root().join("packaging")];
    let mut found: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder exists") {
            let path = entry.expect("the entry is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("pages are UTF-8"))).collect()
}

/// Splits a shell line into commands of words. Handles quotes, pipes, redirections and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '|' | '>' | ';' | '&') => {
                words.extend(word.take());
                if c != ' ' {
                    all.push(std::mem::take(&mut words));
                }
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    all.retain(|words| words.first().is_some_and(|word| word == "tidegate"));
    all
}

/// Lines of `sh` blocks and of indented code, with continued lines joined.
fn shell_lines(page: &str) -> Vec<String> {
    let (mut lines, mut fence, mut joined) = (Vec::new(), None, String::new());
    for line in page.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language) };
        } else if fence == Some("sh") || (fence.is_none() && line.starts_with("    ")) {
            joined.push_str(line.trim());
            match joined.strip_suffix('\\') {
                Some(begun) => joined = begun.to_owned(),
                None => lines.push(std::mem::take(&mut joined)),
            }
        }
    }
    lines
}

/// The page without fenced blocks.
fn without_blocks(page: &str) -> String {
    let mut fenced = false;
    let prose = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    });
    prose.collect::<Vec<_>>().join("\n")
}

/// What clap rejects in a complete command line; help and version are accepted.
fn rejected(words: &[String]) -> Option<ErrorKind> {
    let kind = Cli::try_parse_from(words).err()?.kind();
    (!matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)).then_some(kind)
}

/// What clap rejects in a command line that may be incomplete, such as `tidegate relay`, or have placeholders for values.
fn rejected_in_text(words: &[String]) -> Option<ErrorKind> {
    let is_placeholder = |word: &String| word.chars().any(char::is_uppercase);
    rejected(words).filter(|kind| match kind {
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => true,
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => !words.iter().any(is_placeholder),
        _ => false,
    })
}

#[test]
fn command_lines_in_documents_parse() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for (path, text) in pages() {
        for words in shell_lines(&text).iter().flat_map(|line| commands(line)) {
            seen += 1;
            wrong.extend(rejected(&words).map(|kind| (path.clone(), words.join(" "), kind)));
        }
        let prose = without_blocks(&text);
        let spans = prose.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " "));
        // Brackets and dots mark a description of the syntax rather than a command line.
        let spans = spans.filter(|span| !["[", "<", "..", "/*"].iter().any(|mark| span.contains(mark)));
        for words in spans.flat_map(|span| commands(&span)) {
            seen += 1;
            wrong.extend(rejected_in_text(&words).map(|kind| (path.clone(), words.join(" "), kind)));
        }
    }
    assert!(wrong.is_empty() && seen > 100, "{seen} command lines, of which clap rejects {wrong:#?}");
}

/// Leaf subcommands with their names and the text after their help.
fn leaves(command: &Command, name: &str, found: &mut Vec<(String, String)>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let inner = command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set());
    let before = found.len();
    inner.for_each(|inner| leaves(inner, &format!("{name} {}", inner.get_name()), found));
    if found.len() == before {
        found.push((name.to_owned(), help));
    }
}

#[test]
fn every_subcommand_has_an_example_that_parses() {
    let mut all = Vec::new();
    leaves(&Cli::command(), "tidegate", &mut all);
    assert!(all.len() > 30, "{} subcommands", all.len());
    let mut wrong = Vec::new();
    for (name, help) in all {
        let examples: Vec<Vec<String>> = help.lines().flat_map(|line| commands(line.trim())).collect();
        if examples.is_empty() {
            wrong.push(format!("{name}: no example"));
        }
        wrong.extend(examples.iter().filter_map(|words| Some(format!("{name}: {:?}", rejected(words)?))));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_roles_on_sockets_show_options_of_logs() {
    let shows = |words: [&str; 3]| {
        let Err(help) = Cli::fitting().try_get_matches_from(words) else {
            panic!("{words:?} prints its help")
        };
        help.to_string().contains("--log-format")
    };
    for (subcommand, expected) in [("run", false), ("keys", false), ("relay", true), ("overlay", true)] {
        assert_eq!(shows(["tidegate", subcommand, "--help"]), expected, "{subcommand}");
    }
    let parsed = Cli::fitting().try_get_matches_from(["tidegate", "keys", "--log", "debug"]);
    assert!(parsed.is_ok(), "hidden, and still accepted: {parsed:?}");
}

#[test]
fn the_page_of_subcommands_is_generated() {
    let recorded = fs::read_to_string(root().join("docs/commands.md")).expect("the page exists");
    let page = super::manual::page(&Cli::command());
    assert!(recorded == page, "docs/commands.md is old: `tidegate manual FOLDER` writes commands.md");
}
