//! `tidegate scoreboard`: writes the page of recorded results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use tidegate_lab::input::InputError;
use tidegate_lab::report::{effects, scoreboard, staged};
use tidegate_lab::scoreboard::{Experiment, experiment, record};

use super::reproduce::data_folder;
use crate::failure::Failure;

/// Write docs/scoreboard.md and the tables of other pages from the records in experiments/*/*/result.json
///
/// In a page beside it, and in a README.md of an experiment or a folder of experiments, the lines between
/// `<!-- record PAPER/FIGURE -->` and `<!-- /record -->` become the table of this experiment's rows.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate scoreboard --check")]
pub struct ScoreboardArgs {
    /// Read experiments from this folder
    #[arg(long, default_value = "experiments")]
    experiments: PathBuf,
    /// Write this page
    #[arg(long, default_value = "docs/scoreboard.md")]
    page: PathBuf,
    /// Update this page of effects, and its picture beside it [default: docs/effects.md, if it exists]
    #[arg(long)]
    effects: Option<PathBuf>,
    /// Update the summary between `<!-- scoreboard -->` and `<!-- /scoreboard -->` in this file [default: README.md, if
    /// it exists]
    #[arg(long)]
    readme: Option<PathBuf>,
    /// Write nothing; exit with code 1 if the page or the summary is out of date
    #[arg(long)]
    check: bool,
}

/// Begin of the marker before an experiment's table, and the marker after it.
const TABLE: [&str; 2] = ["<!-- record ", "<!-- /record -->"];

/// Start and end markers of the summary.
const MARKS: [&str; 2] = ["<!-- scoreboard -->\n", "<!-- /scoreboard -->"];

/// Runs the subcommand.
pub fn main(arguments: ScoreboardArgs) -> Result<ExitCode, Failure> {
    let experiments = experiment::find(&arguments.experiments, &data_folder(), None)?;
    let page = read(&arguments.page)?.unwrap_or_default();
    if !page.is_empty() && !page.contains("Made by `tidegate scoreboard`") {
        let cause = "is not a page of `tidegate scoreboard`, so it is not replaced";
        return Err(InputError::new(arguments.page.display().to_string(), cause, "name another file").into());
    }
    let strangers = match strangers(&experiments)? {
        Some(found) => found,
        // Without the history, the marks of the old page stay.
        None => scoreboard::marked(&page),
    };
    let made = scoreboard::page(&experiments, &strangers)?;
    let (readme_at, readme) = update("--readme", arguments.readme, "README.md")?;
    let quoted = readme.as_ref().and_then(|text| quote(text, &made.summary));
    let effects = effects::page(&experiments)?;
    // Without a page of effects at its place, none is wanted.
    let (effects_at, shown) = update("--effects", arguments.effects, "docs/effects.md")?;
    let picture = effects_at.with_extension("svg");
    let drawn = shown.is_some().then(|| read(&picture)).transpose()?.map(Option::unwrap_or_default);
    let mut files = vec![
        (arguments.page.clone(), Some(page), Some(made.text)),
        (readme_at, readme, quoted),
        (effects_at, shown, Some(effects.text)),
        (picture, drawn, Some(effects.picture)),
    ];
    for path in pages(&arguments.page, &experiments) {
        let Some(old) = read(&path)? else { continue };
        let new = with_tables(&path, &old, &made.records)?;
        files.push((path, Some(old), Some(new)));
    }
    let mut stale = false;
    for (path, old, new) in files {
        let (Some(old), Some(new)) = (old, new) else { continue };
        if old == new {
            continue;
        }
        stale = true;
        if arguments.check {
            println!("{} is out of date:", path.display());
            differences(&old, &new).iter().for_each(|line| println!("{line}"));
        } else {
            staged::replace(&path, new.as_bytes())
                .map_err(|cause| InputError::new(path.display().to_string(), cause.to_string(), ""))?;
            println!("updated {}", path.display());
        }
    }
    if stale && arguments.check {
        println!("run `tidegate scoreboard`, check which rows changed, and commit the page with the records");
        return Ok(ExitCode::FAILURE);
    }
    println!("{}", made.summary);
    if !strangers.is_empty() {
        println!(
            "{} commits of records are not in this history; the page marks these records",
            strangers.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A file to update: the one named by this option, which must exist, or the default.
fn update(option: &str, named: Option<PathBuf>, default: &str) -> Result<(PathBuf, Option<String>), Failure> {
    let path = named.clone().unwrap_or_else(|| default.into());
    let text = read(&path)?;
    if named.is_some() && text.is_none() {
        let cause = format!("{} does not exist", path.display());
        return Err(InputError::new(option, cause, "name an existing file, or create it").into());
    }
    Ok((path, text))
}

/// Commits of records that are not in this history; `None` without a complete history.
fn strangers(experiments: &[Experiment]) -> Result<Option<BTreeSet<String>>, Failure> {
    let mut found = BTreeSet::new();
    let Some(first) = experiments.first() else { return Ok(Some(found)) };
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&first.folder).args(arguments).output().ok()?;
        Some((output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    };
    if git(&["rev-parse", "--is-shallow-repository"]) != Some((true, "false".into())) {
        return Ok(None);
    }
    for experiment in experiments {
        let Some(recorded) = record::read(&experiment.folder)? else { continue };
        let known = git(&["merge-base", "--is-ancestor", &recorded.commit, "HEAD"]);
        if known.is_some_and(|(ancestor, _)| !ancestor) {
            found.insert(recorded.commit);
        }
    }
    Ok(Some(found))
}

/// Reads a file; returns `None` if it does not exist.
fn read(path: &PathBuf) -> Result<Option<String>, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => {
            let cause = format!("cannot be read: {cause}");
            Err(InputError::new(path.display().to_string(), cause, "check its permissions").into())
        }
    }
}

/// Pages that may hold tables of records: those beside the scoreboard's, and the READMEs of experiments.
fn pages(scoreboard: &Path, experiments: &[Experiment]) -> BTreeSet<PathBuf> {
    let beside = scoreboard.parent().and_then(|folder| fs::read_dir(folder).ok());
    let mut pages: BTreeSet<PathBuf> =
        beside.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    pages.retain(|path| path != scoreboard && path.extension().is_some_and(|ending| ending == "md"));
    let folders = experiments.iter().flat_map(|one| [Some(one.folder.as_path()), one.folder.parent()]);
    pages.extend(folders.flatten().map(|folder| folder.join("README.md")));
    pages
}

/// Replaces the lines between the markers of each table.
fn with_tables(path: &Path, page: &str, records: &BTreeMap<String, String>) -> Result<String, InputError> {
    let wrong = |cause: String, cure: &str| InputError::new(path.display().to_string(), cause, cure);
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(TABLE[0]) {
        let Some((name, after)) = after.split_once(" -->\n") else {
            return Err(wrong(
                format!("`{}` without an end", TABLE[0]),
                "write `<!-- record PAPER/FIGURE -->`",
            ));
        };
        let Some((_, after)) = after.split_once(TABLE[1]) else {
            return Err(wrong(format!("no `{}` follows `{}{name} -->`", TABLE[1], TABLE[0]), "add it"));
        };
        let Some(table) = records.get(name) else {
            let cure = format!("run `tidegate reproduce {name} --record`, or remove the table");
            return Err(wrong(format!("`{name}` is not a recorded experiment"), &cure));
        };
        text += &format!("{before}{}{name} -->\n{table}{}", TABLE[0], TABLE[1]);
        rest = after;
    }
    Ok(text + rest)
}

/// Replaces the text between the markers; returns `None` if there are no markers.
fn quote(text: &str, summary: &str) -> Option<String> {
    let begin = text.find(MARKS[0])? + MARKS[0].len();
    let end = begin + text[begin..].find(MARKS[1])?;
    Some(format!("{}{summary}\n{}", &text[..begin], &text[end..]))
}

/// Lists up to 20 lines that only the old text has, and up to 20 that only the new one has.
fn differences(old: &str, new: &str) -> Vec<String> {
    let lacks = |text: &str, sign: &str, other: &str| -> Vec<String> {
        let known: BTreeSet<&str> = other.lines().collect();
        let lines = text.lines().filter(|line| !known.contains(line));
        lines.take(20).map(|line| format!("{sign} {line}")).collect()
    };
    [lacks(old, "-", new), lacks(new, "+", old)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_replaced_between_their_markers() {
        let records = BTreeMap::from([("a/b".to_owned(), "| new |\n".to_owned())]);
        let with_tables = |page: &str| with_tables(Path::new("x.md"), page, &records);
        let page = "one\n<!-- record a/b -->\nold\n<!-- /record -->\ntwo\n";
        let new = "one\n<!-- record a/b -->\n| new |\n<!-- /record -->\ntwo\n";
        assert_eq!(with_tables(page).unwrap(), new);
        assert_eq!(with_tables(new).unwrap(), new);
        assert_eq!(with_tables("no marks").unwrap(), "no marks");
        for wrong in ["<!-- record a/b", "<!-- record a/b -->\n", "<!-- record a/c -->\n<!-- /record -->"] {
            assert!(with_tables(wrong).unwrap_err().to_string().starts_with("x.md"), "{wrong}");
        }
    }

    #[test]
    fn the_summary_is_replaced_between_its_markers() {
        let text = "a\n<!-- scoreboard -->\nold\n<!-- /scoreboard -->\nb\n";
        let new = quote(text, "- one\n- two").unwrap();
        assert_eq!(new, "a\n<!-- scoreboard -->\n- one\n- two\n<!-- /scoreboard -->\nb\n");
        assert_eq!(quote("no marks", "x"), None);
    }
}
