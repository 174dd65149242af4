//! Generates `docs/scoreboard.md`: every row of every experiment, with the published and the recorded value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::table::ours_text;
use crate::input::InputError;
use crate::number::format_number;
use crate::scoreboard::experiment::{Experiment, Published, PublishedRow, RowKind, joined};
use crate::scoreboard::record::{self, Recorded, RecordedRow};
use crate::scoreboard::verdict::Verdict;

/// Counts by verdict, in the order of [`Verdict::ALL`]; the last counts what is not recorded.
#[derive(Clone, Copy, Debug, Default)]
struct Tally([u32; 6]);

impl Tally {
    fn count(&mut self, verdict: Option<Verdict>) {
        let at = verdict.and_then(|verdict| Verdict::ALL.iter().position(|other| *other == verdict));
        self.0[at.unwrap_or(Verdict::ALL.len())] += 1;
    }

    fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    fn cells(&self) -> String {
        let counts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        format!("{} | {}", self.total(), counts.join(" | "))
    }
}

/// Verdicts on one claim: a published quantity under each preset.
type Claims = BTreeMap<(String, String), Vec<Option<Verdict>>>;

/// Verdicts by experiment and quantity.
type Verdicts = BTreeMap<(String, String), Option<Verdict>>;

/// An experiment with its record, and its rows with what the record says of them today.
struct Judged<'a> {
    experiment: &'a Experiment,
    recorded: Option<Recorded>,
    rows: Vec<(PublishedRow, Option<RecordedRow>)>,
}

impl Judged<'_> {
    fn of(experiment: &Experiment) -> Result<Judged<'_>, InputError> {
        let (rows, recorded) = (experiment.rows()?, record::read(&experiment.folder)?);
        let settled = record::settled(&rows, recorded.as_ref());
        Ok(Judged { experiment, recorded, rows: rows.into_iter().zip(settled).collect() })
    }
}

/// Everything counted on one paper's folder.
#[derive(Default)]
struct Paper {
    /// Published rows that differ, and those of them with a demonstrated cause.
    differ: u32,
    explained: u32,
    rows: BTreeMap<RowKind, Tally>,
    claims: Claims,
    fitted: usize,
}

/// The verdict on a claim: holds if it holds under every preset, differs if it differs under any.
fn joint(verdicts: &[Option<Verdict>]) -> Option<Verdict> {
    let first = *verdicts.first()?;
    match verdicts {
        _ if verdicts.iter().all(|verdict| *verdict == first) => first,
        _ if verdicts.contains(&Some(Verdict::Differs)) => Some(Verdict::Differs),
        _ => Some(Verdict::Undecided),
    }
}

impl Paper {
    /// The paper's row in the README; `None` without published claims.
    fn row(&self, name: &str) -> Option<String> {
        let mut tally = Tally::default();
        self.claims.values().for_each(|verdicts| tally.count(joint(verdicts)));
        let [holds, differs, undecided, none, cannot, unrecorded] = tally.0;
        let lacks = none + unrecorded;
        let fitted = self.fitted;
        let link = format!("[{name}](experiments/{name})");
        (tally.total() > 0)
            .then(|| format!("|{link}|{holds}|{differs}|{undecided}|{lacks}|{cannot}|{fitted}|"))
    }
}

/// The page, and its summary for the README.
pub struct ScoreboardPage {
    /// Markdown.
    pub text: String,
    /// A table with a row per paper: how many distinct published claims hold, differ and are undecided.
    pub summary: String,
    /// For other pages: each recorded experiment's rows as a table, by the name that `tidegate reproduce` takes.
    pub records: BTreeMap<String, String>,
}

/// Follows a commit that is not in this history.
const STRANGER: &str = " (not in this history)";

/// The commits that a generated page marks as not in its history.
pub fn marked(page: &str) -> BTreeSet<String> {
    let before = page.split(STRANGER);
    let commits = before.filter_map(|text| text.rsplit_once(" by ").map(|(_, commit)| commit.to_owned()));
    // The text after the last mark belongs to none.
    let count = page.matches(STRANGER).count();
    commits.take(count).collect()
}

/// Generates the page from all experiments and their records; `strangers` are commits not in this history.
///
/// # Errors
/// If an experiment or a record is wrong.
pub fn page(experiments: &[Experiment], strangers: &BTreeSet<String>) -> Result<ScoreboardPage, InputError> {
    let mut sections = String::new();
    let mut papers: Vec<(&str, Paper)> = Vec::new();
    let all = experiments.iter().map(Judged::of).collect::<Result<Vec<_>, _>>()?;
    let (mut verdicts, mut records) = (Verdicts::new(), BTreeMap::new());
    for judged in &all {
        let id = format!("{}/{}", judged.experiment.paper, judged.experiment.figure);
        if let Some(recorded) = &judged.recorded {
            records.insert(id.clone(), record_table(recorded, &judged.rows));
        }
        for (row, found) in &judged.rows {
            let verdict = found.as_ref().map(|found| found.verdict);
            verdicts.insert((id.clone(), row.file.quantity.clone()), verdict);
        }
    }
    for judged in &all {
        let Judged { experiment, recorded, .. } = judged;
        // Experiments are sorted by paper, so a new paper starts a section.
        if papers.last().is_none_or(|(paper, _)| *paper != experiment.paper) {
            papers.push((&experiment.paper, Paper::default()));
            let _ = write!(sections, "\n## {}\n", experiment.paper);
        }
        let (_, paper) = papers.last_mut().expect("just pushed");
        let mark = recorded.as_ref().is_some_and(|recorded| strangers.contains(&recorded.commit));
        let mark = if mark { STRANGER } else { "" };
        section(&mut sections, judged, mark, (paper, &verdicts))?;
    }
    let mut overview = String::new();
    let mut all: BTreeMap<RowKind, Tally> = BTreeMap::new();
    for (name, paper) in &papers {
        for (kind, tally) in &paper.rows {
            let _ = writeln!(overview, "| {name} | {kind} | {} |", tally.cells());
            let sum = all.entry(*kind).or_default();
            sum.0.iter_mut().zip(tally.0).for_each(|(sum, count)| *sum += count);
        }
    }
    for (kind, tally) in &all {
        let _ = writeln!(overview, "| **all** | {kind} | {} |", tally.cells());
    }
    let head = "|source|hold|differ|undecided|no data|not comparable|fitted|\n|---|---|---|---|---|---|---|";
    let rows = papers.iter().filter_map(|(name, paper)| paper.row(name));
    let summary = std::iter::once(head.to_owned()).chain(rows).collect::<Vec<String>>().join("\n");
    // The page lies one folder below the README.
    let counts = summary.replace("](experiments/", "](../experiments/");
    let sum = |of: fn(&Paper) -> u32| papers.iter().map(|(_, paper)| of(paper)).sum::<u32>();
    let (differ, explained) = (sum(|paper| paper.differ), sum(|paper| paper.explained));
    let text = format!(
        "# Scoreboard\n\n<!-- Made by `tidegate scoreboard` from experiments/*/*/result.json. Do not edit. -->\n\n\
         {counts}\n\nA claim is a published quantity; measured under several presets, it is one claim, and it \
         holds only if it holds under each. [Reproduction](reproduction.md) defines the verdicts. Records from \
         before values per seed were stored show no n; a row of these is judged by its recorded interval if that \
         covers the comparison, and is undecided otherwise. Below, rows are counted. Of {differ} rows of papers that \
         differ, {explained} have a cause that another row demonstrates.\n\n\
         | paper | provenance | rows | hold | differ | undecided | no data | not comparable | not recorded |\n\
         |---|---|---|---|---|---|---|---|---|\n{overview}{sections}"
    );
    Ok(ScoreboardPage { text, summary, records })
}

/// The table of an experiment's rows for a page that explains them, with the command that repeats the record.
fn record_table(recorded: &Recorded, rows: &[(PublishedRow, Option<RecordedRow>)]) -> String {
    let mut text = String::from("| quantity | recorded | n | verdict | note |\n|---|---|---|---|---|\n");
    for (row, found) in rows {
        // The page says what the quantities are, so the cells leave out the provenance.
        let cells = cells(row, RowKind::Paper, found.as_ref(), None, None);
        let [quantity, _, ours, n, verdict, note] = cells.map(|cell| escaped(&cell));
        let _ = writeln!(text, "| {quantity} | {ours} | {n} | {verdict} | {note} |");
    }
    let _ = write!(text, "\nRecorded at commit {} by `{}`.\n", recorded.commit, recorded.command);
    text
}

/// A cell of a Markdown table.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

/// Appends one experiment's table and counts its rows and claims.
fn section(
    text: &mut String,
    Judged { experiment, recorded, rows }: &Judged<'_>,
    mark: &str,
    (paper, verdicts): (&mut Paper, &Verdicts),
) -> Result<(), InputError> {
    let _ = write!(
        text,
        "\n### {}/{}\n\n{}. {}.\n",
        experiment.paper, experiment.figure, experiment.file.title, experiment.file.source
    );
    let _ = match recorded {
        Some(recorded) => {
            let machine = if recorded.machine.is_empty() { "" } else { " on " };
            writeln!(
                text,
                "Recorded at {} scale by {}{mark}{machine}{} in {:.0} s of the processor.",
                recorded.scale, recorded.commit, recorded.machine, recorded.cost.cpu_s
            )
        }
        None => writeln!(text, "Not recorded."),
    };
    for number in (1..).take_while(|number| experiment.folder.join(format!("figure-{number}.svg")).exists()) {
        let (folder, figure) = (&experiment.paper, &experiment.figure);
        let _ = writeln!(text, "![{figure}](../experiments/{folder}/{figure}/figure-{number}.svg)");
    }
    text.push_str("\n| quantity | published | ours | n | verdict | note |\n|---|---|---|---|---|---|\n");
    for (row, found) in rows {
        let kind = row.file.kind.unwrap_or(experiment.file.kind);
        let verdict = found.as_ref().map(|found| found.verdict);
        let (claim, preset) = experiment.claim(&row.file);
        let fitted = experiment.fitted(&row.file);
        paper.rows.entry(kind).or_default().count(verdict);
        if fitted.is_some() {
            paper.fitted += 1;
        } else if kind == RowKind::Paper {
            paper.claims.entry((experiment.figure.clone(), claim)).or_default().push(verdict);
        }
        let mut cells = cells(row, kind, found.as_ref(), preset, fitted.as_deref());
        let contradicts_paper = verdict == Some(Verdict::Differs) && kind == RowKind::Paper;
        paper.differ += u32::from(contradicts_paper);
        if let Some(cause) = &row.file.cause {
            let of = experiment.cause_of(cause);
            let Some(demonstrated) = verdicts.get(&of) else {
                return Err(experiment.unknown_cause(&row.file.quantity, cause));
            };
            if verdict == Some(Verdict::Differs) {
                paper.explained += u32::from(contradicts_paper && *demonstrated == Some(Verdict::Holds));
                let said = demonstrated.map_or_else(|| "not recorded".into(), |verdict| verdict.to_string());
                let cause = format!("cause: {} ({}: \"{}\" {said})", cause.why, of.0, of.1);
                cells[5] = joined([cells[5].as_str(), &cause]);
            }
        }
        let cells = cells.map(|cell| escaped(&cell));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    Ok(())
}

/// The cells of one row.
fn cells(
    row: &PublishedRow,
    kind: RowKind,
    found: Option<&RecordedRow>,
    preset: Option<&str>,
    fitted: Option<&str>,
) -> [String; 6] {
    let published = row.published();
    let theirs = match &published {
        Published::Number(number) => {
            let tolerance = row.file.tolerance.map(|width| format!(" ± {width}")).unwrap_or_default();
            format!("{}{tolerance}", format_number(*number))
        }
        Published::Statement(statement) => format!("`{statement}`"),
    };
    let unit = if row.file.unit.is_empty() { String::new() } else { format!(", {}", row.file.unit) };
    let whose = if kind == RowKind::Paper { String::new() } else { format!("{kind}: ") };
    let preset = preset.map(|preset| format!(" (preset {preset})")).unwrap_or_default();
    let fitted = fitted.map_or_else(String::new, |why| format!("fitted: {why}"));
    let remarks = found.map_or("", |found| found.remarks.as_str());
    [
        format!("{whose}{}{unit}{preset}", row.file.quantity),
        theirs,
        ours_text(found.and_then(|found| found.ours), found.and_then(|found| found.interval), &published),
        found.map(|found| found.n).filter(|n| *n > 0).map_or_else(|| "–".into(), |n| n.to_string()),
        found.map_or_else(|| "not recorded".into(), |found| bold(found.verdict)),
        joined([fitted.as_str(), &row.note(), remarks]),
    ]
}

fn bold(verdict: Verdict) -> String {
    if verdict == Verdict::Differs { format!("**{verdict}**") } else { verdict.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_commits_are_found_again() {
        let page = format!(
            "a\nRecorded at smoke scale by 12ab{STRANGER} on x in 1 s.\n\n\
                            Recorded at full scale by 99ff on y by z.\n"
        );
        assert_eq!(marked(&page), BTreeSet::from(["12ab".to_owned()]));
        assert_eq!(marked("none"), BTreeSet::new());
    }

    #[test]
    fn a_claim_under_presets_holds_only_under_all() {
        let (holds, differs) = (Some(Verdict::Holds), Some(Verdict::Differs));
        assert_eq!(joint(&[holds, holds]), holds);
        assert_eq!(joint(&[holds, differs]), differs);
        assert_eq!(joint(&[holds, Some(Verdict::NoData)]), Some(Verdict::Undecided));
        assert_eq!(joint(&[None]), None);
    }
}
