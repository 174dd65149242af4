//! `tidegate runs`: lists, shows, compares and merges studies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tidegate_lab::input::InputError;
use tidegate_lab::number::format_number;
use tidegate_lab::report::folder::{self, Contents};
use tidegate_lab::results::{brief, flatten, flatten_text};
use tidegate_lab::statistics::Estimate;
use tidegate_lab::store::{self, Record};
use tidegate_lab::sweep::in_a_line;

use crate::console::command_line;
use crate::failure::Failure;

/// List, show, compare and merge stored studies
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate runs ls\n  tidegate runs diff out/bottleneck/1 out/bottleneck/2 --metric latency"
)]
pub struct RunsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the studies in a folder and its subfolders
    #[command(after_help = "Example:\n  tidegate runs ls out")]
    Ls {
        /// Search this folder
        #[arg(default_value = "out")]
        folder: PathBuf,
    },
    /// Show the origin of a study, its runs and their processor time
    #[command(after_help = "Example:\n  tidegate runs show out/bottleneck/latest")]
    Show {
        /// Read the study from this folder
        study: PathBuf,
    },
    /// Compare the parameters and the metrics of two studies
    #[command(
        after_help = "Example:\n  tidegate runs diff out/bottleneck/1 out/bottleneck/2 --metric latency"
    )]
    Diff {
        /// Read the first study from this folder
        a: PathBuf,
        /// Read the second study from this folder
        b: PathBuf,
        /// Compare only metrics with this text in their name
        #[arg(long, default_value = "")]
        metric: String,
    },
    /// Write one table of all stored runs, for a study that ran in shards or was killed
    #[command(after_help = "Example:\n  tidegate runs merge out/study")]
    Merge {
        /// Read the study from this folder
        study: PathBuf,
    },
}

/// Runs the subcommand.
pub fn main(arguments: RunsArgs) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Ls { folder } => list(&folder)?,
        Command::Show { study } => show(&study)?,
        Command::Diff { a, b, metric } => diff(&a, &b, &metric)?,
        Command::Merge { study } => merge(&study)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The search for studies descends at most this many levels.
const DEPTH: u32 = 4;

fn list(folder: &Path) -> Result<(), InputError> {
    if !folder.is_dir() {
        let cure = "name a folder with results, or run a scenario first";
        return Err(InputError::new(folder.display().to_string(), "is not a directory", cure));
    }
    let mut found = Vec::new();
    search(folder, DEPTH, &mut found);
    for place in &found {
        let contents = folder::contents_of(place).expect("`search` returns only folders with contents");
        let count = store::count(place, &contents);
        let commit = contents.parameters["commit"].as_str().unwrap_or("-").to_owned();
        println!("{:<32} {:<24} {count:>6} runs  {commit}", place.display(), contents.name);
    }
    println!("{} studies", found.len());
    Ok(())
}

fn search(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    if folder::contents_of(folder).is_some() {
        found.push(folder.to_owned());
        return;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    // Skip links such as `latest`, which lead to folders found anyway, and hidden folders, which are incomplete.
    let shown = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let folders = shown.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
    folders.sort_unstable();
    if depth > 0 {
        folders.iter().for_each(|inner| search(inner, depth - 1, found));
    }
}

/// Reads the contents and the records of a study.
fn open(place: &Path) -> Result<(Contents, Vec<Record>), InputError> {
    let contents = folder::contents_of(place).ok_or_else(|| {
        let cure = "`tidegate runs ls` lists the studies";
        InputError::new(place.display().to_string(), "does not contain results of tidegate", cure)
    })?;
    let records = store::records(place, &contents)?;
    Ok((contents, records))
}

fn show(place: &Path) -> Result<(), InputError> {
    let (contents, records) = open(place)?;
    println!("{}: {}", place.display(), contents.name);
    for key in ["version", "commit"] {
        println!("  {key}: {}", contents.parameters[key].as_str().unwrap_or("-"));
    }
    if records.is_empty() {
        println!("  no runs: only the folders of `tidegate run` and `tidegate sweep` list runs");
        return Ok(());
    }
    for (key, digest) in flatten_text(&contents.parameters["inputs"]) {
        println!("  input {key}: sha256 {digest}");
    }
    let cost: f64 = records.iter().map(|record| record.cpu_s).sum();
    println!("  {} runs, {cost:.1} CPU-seconds", records.len());
    for record in &records {
        println!(
            "  {:<24} seed {:<6} {} {:>8.2} s  {}",
            record.system,
            record.seed,
            record.digest,
            record.cpu_s,
            in_a_line(&record.point)
        );
    }
    Ok(())
}

/// Values by seed, by point and system, and by metric.
type Values = BTreeMap<(String, String), BTreeMap<u64, f64>>;

fn values(records: &[Record], wanted: &str) -> Values {
    let mut all = Values::new();
    for record in records {
        let who = [in_a_line(&record.point), record.system.clone()].join(" ").trim().to_owned();
        for (metric, value) in flatten(&record.metrics.summary) {
            if metric.contains(wanted) {
                all.entry((who.clone(), metric)).or_default().insert(record.seed, value);
            }
        }
    }
    all
}

/// Two means of a metric and their ratio. Seeds that both studies have are paired, and others are left out; without such
/// seeds, the means are over all. `None` if the values are equal.
fn difference(left: &BTreeMap<u64, f64>, right: &BTreeMap<u64, f64>) -> Option<String> {
    let pairs: Vec<(f64, f64)> =
        left.iter().filter_map(|(seed, value)| Some((*value, *right.get(seed)?))).collect();
    let shown = |values: &[f64]| {
        let Estimate { mean, ci95, .. } = Estimate::of(values);
        let width = ci95.map(|width| format!(" ± {}", format_number(width)));
        format_number(mean) + &width.unwrap_or_default()
    };
    if pairs.is_empty() {
        let (left, right): (Vec<f64>, Vec<f64>) =
            (left.values().copied().collect(), right.values().copied().collect());
        let (shown, n) = ([shown(&left), shown(&right)], [left.len(), right.len()]);
        return Some(format!("{} | {}  (no common seed, n = {} | {})", shown[0], shown[1], n[0], n[1]));
    }
    if pairs.iter().all(|(value, other)| value == other) {
        return None;
    }
    let (left, right): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let ratios: Vec<f64> = pairs.iter().map(|(value, other)| other / value).collect();
    // A ratio to zero does not exist.
    let ratio = match ratios.iter().all(|ratio| ratio.is_finite()) {
        true => format!("  x {}", shown(&ratios)),
        false => String::new(),
    };
    Some(format!("{} | {}{ratio}  (n = {})", shown(&left), shown(&right), pairs.len()))
}

/// Parameters by their dotted paths, as text.
type Texts = BTreeMap<String, String>;

fn diff(a: &Path, b: &Path, metric: &str) -> Result<(), InputError> {
    let ((one, of_one), (other, of_other)) = (open(a)?, open(b)?);
    let parameters = |contents: &Contents| {
        let mut texts = flatten_text(&contents.parameters);
        // Their numbers differ when a sweep has another value in between.
        texts.retain(|key, _| !key.starts_with("points."));
        texts
    };
    let (left, right) = (values(&of_one, metric), values(&of_other, metric));
    if !metric.is_empty() && left.is_empty() && right.is_empty() {
        let cause = format!("no metric of these studies has `{metric}` in its name");
        return Err(InputError::new("--metric", cause, "leave it out to compare all metrics"));
    }
    let mut lines = compare(&parameters(&one), &parameters(&other), [a, b]);
    lines.extend(points_of_one(&of_one, &of_other, a));
    lines.extend(points_of_one(&of_other, &of_one, b));
    if !lines.is_empty() {
        println!("{} | {}", a.display(), b.display());
    }
    lines.iter().for_each(|line| println!("{line}"));
    for ((who, metric), values) in &left {
        let others = right.get(&(who.clone(), metric.clone()));
        if let Some(line) = others.and_then(|others| difference(values, others)) {
            println!("{who}: {metric}: {line}");
        }
    }
    println!("{} | {} runs", of_one.len(), of_other.len());
    Ok(())
}

/// Points of a sweep that are listed.
const POINTS: usize = 20;

/// A line for each point of a sweep that the other one lacks.
fn points_of_one(records: &[Record], others: &[Record], place: &Path) -> Vec<String> {
    let known: BTreeSet<String> = others.iter().map(|record| in_a_line(&record.point)).collect();
    let mut lacking = BTreeMap::<String, usize>::new();
    let names = records.iter().map(|record| in_a_line(&record.point));
    for name in names.filter(|name| !known.contains(name)) {
        *lacking.entry(name).or_default() += 1;
    }
    // Two studies with one point each differ in parameters, which have lines already.
    lacking.retain(|name, _| !name.is_empty());
    let more = lacking.len().saturating_sub(POINTS);
    let line = |(name, runs)| format!("{name}: only in {} ({runs} runs)", place.display());
    let rest = (more > 0).then(|| format!("{more} further points only in {}", place.display()));
    lacking.into_iter().take(POINTS).map(line).chain(rest).collect()
}

/// A line for each parameter that differs, and one for each table that only one of the two has.
fn compare(left: &Texts, right: &Texts, places: [&Path; 2]) -> Vec<String> {
    let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let mut lines = Vec::new();
    for key in keys.into_iter().filter(|key| left.get(*key) != right.get(*key)) {
        let line = match (left.get(key), right.get(key)) {
            (Some(value), Some(other)) => format!("{key}: {} | {}", brief(value), brief(other)),
            (Some(value), None) => only(key, value, right, places[0]),
            (None, value) => only(key, value.map_or("", String::as_str), left, places[1]),
        };
        // All keys of a missing table give the same line.
        if lines.last() != Some(&line) {
            lines.push(line);
        }
    }
    lines
}

/// The line of a key that only `place` has: of its outermost table that the other lacks.
fn only(key: &str, value: &str, other: &Texts, place: &Path) -> String {
    let has = |table: &str| {
        other.keys().any(|known| known.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')))
    };
    let tables = key.match_indices('.').map(|(at, _)| &key[..at]);
    match tables.into_iter().find(|table| !has(table)) {
        Some(table) => format!("{table}: only in {}", place.display()),
        None => format!("{key}: only in {}: {}", place.display(), brief(value)),
    }
}

fn merge(place: &Path) -> Result<(), InputError> {
    let (contents, records) = open(place)?;
    // Writing a table replaces the files of the manifest.
    if folder::lists(place, "report.html") {
        let cure = "its metrics.csv and metrics.parquet contain all runs";
        return Err(InputError::new(place.display().to_string(), "is complete and has a report", cure));
    }
    let more = json!({ "command": command_line(), "runs": records.len() });
    folder::write(store::merged(&records), &contents, more, place)?;
    println!("wrote {}/metrics.csv and metrics.parquet with {} runs", place.display(), records.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_paired_by_seed() {
        let of = |values: &[(u64, f64)]| values.iter().copied().collect::<BTreeMap<u64, f64>>();
        let left = of(&[(1, 2.0), (2, 10.0), (3, 40.0)]);
        let right = of(&[(2, 20.0), (3, 80.0), (4, 5.0)]);
        // Both pairs have the ratio 2, although the values differ widely.
        let said = difference(&left, &right).unwrap();
        assert!(said.starts_with("25 ± ") && said.ends_with("  x 2 ± 0  (n = 2)"), "{said}");
        assert_eq!(difference(&left, &left), None);
        assert_eq!(difference(&of(&[(1, 2.0)]), &of(&[(1, 3.0)])).unwrap(), "2 | 3  x 1.5  (n = 1)");
        assert_eq!(difference(&of(&[(1, 0.0)]), &of(&[(1, 3.0)])).unwrap(), "0 | 3  (n = 1)");
        assert_eq!(
            difference(&of(&[(1, 2.0)]), &of(&[(2, 3.0)])).unwrap(),
            "2 | 3  (no common seed, n = 1 | 1)"
        );
    }

    #[test]
    fn a_table_that_one_study_lacks_is_one_line() {
        let texts = |pairs: &[(&str, &str)]| -> Texts {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let left = texts(&[
            ("s.duration", "5 s"),
            ("s.relay.a.link", "1"),
            ("s.relay.a.name", "a"),
            ("s.seed", "1"),
        ]);
        let right =
            texts(&[("s.duration", "9 s"), ("s.relay.b.link", "1"), ("s.seed", "1"), ("s.title", "t")]);
        let lines = compare(&left, &right, [Path::new("one"), Path::new("two")]);
        let expected = [
            "s.duration: 5 s | 9 s",
            "s.relay.a: only in one",
            "s.relay.b: only in two",
            "s.title: only in two: t",
        ];
        assert_eq!(lines, expected);
    }
}
