//! The answer about parts as text, and as a page with one picture.

use std::fmt::Write as _;

use comfy_table::{ContentArrangement, Table, presets};

use super::answer::forest_row;
use super::page::{Forest, HtmlTable, Page, Section, render};
use crate::answer::{Answer, BASE, BENEFITS, Comparison, PartAnswer, Paths, Verdict};
use crate::number::{format_number, rate_unit};
use crate::results::VERSION;
use crate::statistics::Estimate;

/// Fewest columns of the table; narrower terminals wrap its lines.
const LEAST_COLUMNS: usize = 110;

/// The answer in words, the table, and how it was made.
pub fn answer_text(answer: &Answer, columns: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(columns.max(LEAST_COLUMNS)).unwrap_or(u16::MAX));
    table.set_header(header());
    table.add_rows(rows(answer));
    let mut text = String::new();
    for line in words(answer) {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "{table}");
    for line in &answer.conditions {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The answer as a page: words, picture, table, conditions.
pub fn answer_page(answer: &Answer) -> String {
    let labels = BENEFITS.iter().enumerate();
    let ratios = labels.flat_map(|(at, benefit)| {
        let of = move |part: &PartAnswer| {
            let estimate = part.benefits[at].as_ref()?.estimate;
            forest_row(benefit.label, part.part.name, estimate, Some(benefit.less), false)
        };
        answer.parts.iter().filter_map(of)
    });
    let title = format!("Ratio to {BASE} on the same networks");
    let picture =
        "The picture shows each interval alone. Verdicts in the table are corrected for all comparisons.";
    let about = HtmlTable {
        title: "The parts".into(),
        header: ["part", "what it is", "who upgrades", "relays that upgrade", "source"]
            .map(str::to_owned)
            .into(),
        rows: answer.parts.iter().map(about).collect(),
    };
    render(&Page {
        title: "Which parts would help Tor's users".into(),
        subtitle: answer.conditions.first().cloned().unwrap_or_default(),
        version: VERSION,
        lead: Some(Section {
            title: "The answer".into(),
            text: words(answer).into_iter().chain([picture.to_owned()]).collect::<Vec<_>>().join("\n"),
            forests: vec![Forest { title, open: true, rows: ratios.collect() }],
            ..Section::default()
        }),
        tables: vec![
            HtmlTable { title: "Effects and prices".into(), header: header(), rows: rows(answer) },
            about,
        ],
        sections: vec![Section {
            title: "How it was made".into(),
            text: answer.conditions[1..].join("\n"),
            ..Section::default()
        }],
        appendix: answer.scenario.clone(),
    })
}

/// One line per quantity: the parts that help, harm, or change nothing, the undecided ones, and those without a value.
fn words(answer: &Answer) -> Vec<String> {
    let line = |(at, label): (usize, &str)| {
        let of = |wanted: Option<Verdict>| -> String {
            let with = answer.parts.iter().map(|part| (part.part.name, part.benefits[at].as_ref()));
            let named = with.filter(|(_, one)| one.map(|one| one.verdict) == wanted);
            let shown = named.map(|(name, one)| match one {
                Some(one) if matches!(one.verdict, Verdict::Helps | Verdict::Harms) => {
                    format!("{name} ({:.2})", one.estimate.mean)
                }
                _ => name.to_owned(),
            });
            shown.collect::<Vec<_>>().join(", ")
        };
        let verdicts = [
            ("helped by", Some(Verdict::Helps)),
            ("harmed by", Some(Verdict::Harms)),
            ("unchanged by", Some(Verdict::Same)),
            ("undecided for", Some(Verdict::Undecided)),
            ("too few downloads for", None),
        ];
        let parts = verdicts.map(|(words, verdict)| (words, of(verdict)));
        let parts = parts.iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<String> = parts.map(|(words, names)| format!("{words} {names}")).collect();
        format!("{label}: {}.", parts.join("; "))
    };
    BENEFITS.iter().map(|benefit| benefit.label).enumerate().map(line).collect()
}

fn header() -> Vec<String> {
    let labels = BENEFITS.iter().map(|benefit| benefit.label);
    let prices = ["streams seen", "flows matched", "packets per cell", "who upgrades"];
    std::iter::once("part").chain(labels).chain(prices).map(str::to_owned).collect()
}

/// The baseline's values, then the parts' ratios and differences.
fn rows(answer: &Answer) -> Vec<Vec<String>> {
    let base = &answer.base;
    let [first, download, rate] = base.benefits.map(|value| value.mean);
    let (scale, unit) = rate_unit(rate);
    let mut first_row = vec![BASE.to_owned()];
    first_row.extend([(first, 1.0, "s"), (download, 1.0, "s"), (rate, scale, unit)].map(
        |(value, scale, unit)| {
            if value.is_finite() {
                format!("{} {unit}", format_number(value * scale))
            } else {
                "-".to_owned()
            }
        },
    ));
    first_row.extend([
        format!("{:.2} %", 100.0 * base.streams.mean),
        format!("{:.0} %", 100.0 * base.matched.mean),
        format_number(base.packets.mean),
        "-".to_owned(),
    ]);
    std::iter::once(first_row).chain(answer.parts.iter().map(row)).collect()
}

fn row(answer: &PartAnswer) -> Vec<String> {
    let mut cells = vec![answer.part.name.to_owned()];
    let judged = |comparison: &Comparison| format!("{}\n{}", times(&comparison.estimate), comparison.verdict);
    cells.extend(answer.benefits.iter().map(|one| one.as_ref().map_or_else(|| "-".to_owned(), judged)));
    cells.push(match (&answer.streams, answer.part.paths) {
        (Some(ratio), _) => times(ratio),
        (None, Paths::Reweighed) => "by capacity".to_owned(),
        (None, _) => "same paths".to_owned(),
    });
    let Estimate { mean, ci95, .. } = answer.matched.estimate;
    let width = ci95.map(|width| format!(" ± {:.1}", 100.0 * width)).unwrap_or_default();
    cells.push(if mean.is_nan() {
        "-".to_owned()
    } else {
        format!("{:+.1}{width} points\n{}", 100.0 * mean, answer.matched.verdict)
    });
    let mut work = times(&answer.packets);
    for (count, what) in [(answer.solves, "solves per relay and s"), (answer.moves, "moves per run")] {
        if count > 0.0 {
            work += &format!("\nand {} {what}", format_number(count));
        }
    }
    cells.push(work);
    cells.push(answer.part.upgrade.text().to_owned());
    cells
}

/// A ratio with its interval.
fn times(ratio: &Estimate) -> String {
    match ratio.ci95 {
        _ if ratio.mean.is_nan() => "-".to_owned(),
        Some(width) => format!("{:.2} ± {width:.2}", ratio.mean),
        // Fewer networks than the rest have a value.
        None => format!("{:.2} (n = {})", ratio.mean, ratio.n),
    }
}

fn about(answer: &PartAnswer) -> Vec<String> {
    let part = answer.part;
    vec![
        part.name.to_owned(),
        part.about.to_owned(),
        part.upgrade.text().to_owned(),
        format!("{:.0} %", 100.0 * answer.upgraded),
        part.source.to_owned(),
    ]
}
