//! `tidegate scoreboard`: writes the page of recorded results.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_lab::input::InputError;
use tidegate_lab::report::scoreboard;
use tidegate_lab::scoreboard::{experiment, record};

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
    /// Update the summary between `<!-- scoreboard -->` and `<!-- /scoreboard -->` in this file
    #[arg(long, default_value = "README.md")]
    readme: PathBuf,
    /// Write nothing; exit with code 1 if the page or the summary is out of date
    #[arg(long)]
    check: bool,
}

/// Start and end markers of the summary.
const MARKS: [&str; 2] = ["<!-- scoreboard -->\n", "<!-- /scoreboard -->"];

/// Maximum width of a line of the summary.
const WIDTH: usize = 118;

/// Runs the subcommand.
pub fn main(arguments: ScoreboardArgs) -> Result<ExitCode, Failure> {
    let made = scoreboard::page(&experiment::find(&arguments.experiments, &data_folder(), None)?)?;
    let page = read(&arguments.page)?.unwrap_or_default();
    let readme = read(&arguments.readme)?;
    let quoted = readme.as_ref().and_then(|text| quote(text, &made.sentence));
    let files = [(&arguments.page, Some(page), Some(made.text)), (&arguments.readme, readme, quoted)];
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
    println!("{}", made.sentence);
    Ok(ExitCode::SUCCESS)
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
fn quote(text: &str, sentence: &str) -> Option<String> {
    let begin = text.find(MARKS[0])? + MARKS[0].len();
    let end = begin + text[begin..].find(MARKS[1])?;
    let mut lines = String::new();
    let mut width = 0;
    for word in sentence.split(' ') {
        let between = if width == 0 {
            ""
        } else if width + word.len() >= WIDTH {
            "\n"
        } else {
            " "
        };
        width = if between == " " { width + 1 + word.len() } else { word.len() };
        lines = format!("{lines}{between}{word}");
    }
    Some(format!("{}{lines}\n{}", &text[..begin], &text[end..]))
}

/// Lists up to 20 lines that only the old text has, and up to 20 that only the new one has.
fn differences(old: &str, new: &str) -> Vec<String> {
    let lacks = |text: &str, sign: &str, other: &str| -> Vec<String> {
        let known: std::collections::BTreeSet<&str> = other.lines().collect();
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
        let new = quote(text, &"word ".repeat(40)).unwrap();
        assert!(
            new.starts_with("a\n<!-- scoreboard -->\nword word")
                && new.ends_with("<!-- /scoreboard -->\nb\n")
        );
        assert!(new.lines().all(|line| line.len() < WIDTH + 2), "{new}");
        assert_eq!(quote("no marks", "x"), None);
    }
}
