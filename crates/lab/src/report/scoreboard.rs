//! Generates `docs/scoreboard.md`: every row of every experiment, with the published and the recorded value.

use std::fmt::Write as _;

use crate::input::InputError;
use crate::number::format_number;
use crate::scoreboard::experiment::{Experiment, Published, RowKind};
use crate::scoreboard::record::{self, Recorded};
use crate::scoreboard::verdict::Verdict;

/// Number of rows by verdict.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    by_verdict: [u32; 4],
    unrecorded: u32,
}

/// The verdicts in the order of [`Tally::by_verdict`].
const VERDICTS: [Verdict; 4] = [Verdict::Holds, Verdict::Differs, Verdict::NotComparable, Verdict::NoData];

impl Tally {
    fn count(&mut self, verdict: Option<Verdict>) {
        match verdict.and_then(|verdict| VERDICTS.iter().position(|other| *other == verdict)) {
            Some(at) => self.by_verdict[at] += 1,
            None => self.unrecorded += 1,
        }
    }

    fn add(&mut self, other: &Tally) {
        self.by_verdict.iter_mut().zip(other.by_verdict).for_each(|(mine, theirs)| *mine += theirs);
        self.unrecorded += other.unrecorded;
    }

    fn cells(&self) -> String {
        let [holds, differs, cannot, none] = self.by_verdict;
        let rows = self.by_verdict.iter().sum::<u32>() + self.unrecorded;
        format!("{rows} | {holds} | {differs} | {cannot} | {none} | {}", self.unrecorded)
    }
}

/// The page, and its summary sentence for the README.
pub struct ScoreboardPage {
    /// Markdown.
    pub text: String,
    /// The summary sentence: how many published numbers hold.
    pub sentence: String,
}

/// Generates the page from all experiments and their records.
///
/// # Errors
/// If an experiment or a record is wrong.
pub fn page(experiments: &[Experiment]) -> Result<ScoreboardPage, InputError> {
    let mut sections = String::new();
    let mut papers: Vec<(&str, [Tally; 2])> = Vec::new();
    for experiment in experiments {
        let recorded = record::read(&experiment.folder)?;
        // Experiments are sorted by paper, so a new paper starts a section.
        if papers.last().is_none_or(|(paper, _)| *paper != experiment.paper) {
            papers.push((&experiment.paper, Default::default()));
            let _ = write!(sections, "\n## {}\n", experiment.paper);
        }
        let tallies = section(&mut sections, experiment, recorded.as_ref())?;
        let (_, sums) = papers.last_mut().expect("just pushed");
        sums.iter_mut().zip(&tallies).for_each(|(sum, tally)| sum.add(tally));
    }
    let mut all: [Tally; 2] = Default::default();
    let mut overview = String::new();
    for (paper, tallies) in &papers {
        for ((kind, tally), sum) in ["published", "own goals"].iter().zip(tallies).zip(&mut all) {
            sum.add(tally);
            if tally.by_verdict.iter().sum::<u32>() + tally.unrecorded > 0 {
                let _ = writeln!(overview, "| {paper} | {kind} | {} |", tally.cells());
            }
        }
    }
    for (kind, tally) in ["published", "own goals"].iter().zip(&all) {
        let _ = writeln!(overview, "| **all** | {kind} | {} |", tally.cells());
    }
    let [holds, differs, cannot, none] = all[0].by_verdict;
    let sentence = format!(
        "Of the published numbers and statements {holds} hold as recorded, {differs} differ, {cannot} cannot be \
         compared, {none} have no data and {} are not recorded yet.",
        all[0].unrecorded
    );
    let text = format!(
        "# Scoreboard\n\n<!-- Made by `tidegate scoreboard` from experiments/*/*/result.json. Do not edit. -->\n\n\
         {sentence} A row holds if ours lies within the tolerance of theirs, or the statement is true here. What a \
         row speaks of and what never happened here differs. *Not recorded* are rows that nobody ran for the \
         record since they were written: `tidegate reproduce PAPER/FIGURE --scale medium --record` does it.\n\n\
         | paper | whose | rows | hold | differ | not comparable | no data | not recorded |\n\
         |---|---|---|---|---|---|---|---|\n{overview}{sections}"
    );
    Ok(ScoreboardPage { text, sentence })
}

/// Appends one experiment's table; returns the tallies of its published rows and of its own goals.
fn section(
    text: &mut String,
    experiment: &Experiment,
    recorded: Option<&Recorded>,
) -> Result<[Tally; 2], InputError> {
    let mut tallies: [Tally; 2] = Default::default();
    let _ = write!(
        text,
        "\n### {}/{}\n\n{}. {}.\n",
        experiment.paper, experiment.figure, experiment.file.title, experiment.file.source
    );
    let _ = match recorded {
        Some(recorded) => writeln!(
            text,
            "Recorded at {} scale by {} in {:.0} s of the processor.",
            recorded.scale, recorded.commit, recorded.cost.cpu_s
        ),
        None => writeln!(text, "Not recorded."),
    };
    for number in (1..).take_while(|number| experiment.folder.join(format!("figure-{number}.svg")).exists()) {
        let (paper, figure) = (&experiment.paper, &experiment.figure);
        let _ = writeln!(text, "![{figure}](../experiments/{paper}/{figure}/figure-{number}.svg)");
    }
    text.push_str("\n| quantity | published | ours | verdict | note |\n|---|---|---|---|---|\n");
    for row in experiment.rows()? {
        // A row counts as recorded only if its name and published value are unchanged.
        let found = recorded.and_then(|recorded| {
            recorded
                .rows
                .iter()
                .find(|old| old.quantity == row.file.quantity && old.published == row.published())
        });
        let kind = row.file.kind.unwrap_or(experiment.file.kind);
        tallies[usize::from(kind == RowKind::Own)].count(found.map(|found| found.verdict));
        let theirs = match row.published() {
            Published::Number(number) => {
                let tolerance = row.file.tolerance.map(|width| format!(" ± {width}")).unwrap_or_default();
                format!("{}{tolerance}", format_number(number))
            }
            Published::Statement(statement) => format!("`{statement}`"),
        };
        let ours = match found.map(|found| (found.ours, found.interval)) {
            Some((Some(ours), Some([low, high]))) => {
                format!("{} ({} to {})", format_number(ours), format_number(low), format_number(high))
            }
            Some((Some(ours), None)) => format_number(ours),
            _ => "–".into(),
        };
        let unit = if row.file.unit.is_empty() { String::new() } else { format!(", {}", row.file.unit) };
        let whose = if kind == RowKind::Own { "own goal: " } else { "" };
        let cells = [
            format!("{whose}{}{unit}", row.file.quantity),
            theirs,
            ours,
            found.map_or_else(|| "not recorded".into(), |found| bold(found.verdict)),
            found.map_or_else(|| row.file.note.clone(), |found| found.note.clone()),
        ];
        let _ = writeln!(
            text,
            "| {} |",
            cells.map(|cell| cell.replace('|', "\\|").replace('\n', " ")).join(" | ")
        );
    }
    Ok(tallies)
}

fn bold(verdict: Verdict) -> String {
    if verdict == Verdict::Differs { format!("**{verdict}**") } else { verdict.to_string() }
}
