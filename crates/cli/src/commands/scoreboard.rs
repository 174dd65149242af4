//! `tidegate scoreboard`: writes the page of recorded results.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use tidegate_lab::input::InputError;
use tidegate_lab::report::{effects, scoreboard};
use tidegate_lab::scoreboard::{Experiment, experiment, record};

use super::reproduce::data_folder;
use crate::failure::Failure;

/// Write docs/scoreboard.md from the recorded results in experiments/*/*/result.json
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate scoreboard --check")]
pub struct ScoreboardArgs {
    /// Read experiments from this folder
    #[arg(long, default_value = "experiments")]
    experiments: PathBuf,
    /// Write this page
    #[arg(long, default_value = "docs/scoreboard.md")]
    page: PathBuf,
    /// Write this page of effects, and its picture beside it
    #[arg(long, default_value = "docs/effects.md")]
    effects: PathBuf,
    /// Update the summary between `<!-- scoreboard -->` and `<!-- /scoreboard -->` in this file
    #[arg(long, default_value = "README.md")]
    readme: PathBuf,
    /// Write nothing; exit with code 1 if the page or the summary is out of date
    #[arg(long)]
    check: bool,
}

/// Start and end markers of the summary.
const MARKS: [&str; 2] = ["<!-- scoreboard -->\n", "<!-- /scoreboard -->"];

/// Runs the subcommand.
pub fn main(arguments: ScoreboardArgs) -> Result<ExitCode, Failure> {
    let experiments = experiment::find(&arguments.experiments, &data_folder(), None)?;
    let page = read(&arguments.page)?.unwrap_or_default();
    let strangers = match strangers(&experiments)? {
        Some(found) => found,
        // Without the history, the marks of the old page stay.
        None => scoreboard::marked(&page),
    };
    let made = scoreboard::page(&experiments, &strangers)?;
    let readme = read(&arguments.readme)?;
    let quoted = readme.as_ref().and_then(|text| quote(text, &made.summary));
    let effects = effects::page(&experiments)?;
    let picture = arguments.effects.with_extension("svg");
    // Without a page of effects at its place, none is wanted.
    let shown = read(&arguments.effects)?;
    let drawn = shown.is_some().then(|| read(&picture)).transpose()?.map(Option::unwrap_or_default);
    let files = [
        (&arguments.page, Some(page), Some(made.text)),
        (&arguments.readme, readme, quoted),
        (&arguments.effects, shown, Some(effects.text)),
        (&picture, drawn, Some(effects.picture)),
    ];
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
            record::replace(path, &new)
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
    fn the_summary_is_replaced_between_its_markers() {
        let text = "a\n<!-- scoreboard -->\nold\n<!-- /scoreboard -->\nb\n";
        let new = quote(text, "- one\n- two").unwrap();
        assert_eq!(new, "a\n<!-- scoreboard -->\n- one\n- two\n<!-- /scoreboard -->\nb\n");
        assert_eq!(quote("no marks", "x"), None);
    }
}
