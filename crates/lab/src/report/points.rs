//! The table of a sweep for the terminal: the most important quantities of each point and system.

use std::collections::BTreeSet;

use comfy_table::{ContentArrangement, Table, presets};

use super::answer::LEAST_DOWNLOADS;
use crate::number::{format_number, rate_unit};
use crate::results::flatten;
use crate::statistics::Estimate;
use crate::store::Record;

/// Rows of the table; longer ones are for files.
const ROWS: usize = 60;

/// At most this many classes have a column.
const CLASSES: usize = 3;

const THROUGHPUT: &str = "throughput_total_bytes_per_s";

/// A row per point and system with the number of runs, their total throughput and the median download of the first
/// classes, with 95 % intervals. Expects the records of a study, those of a point next to each other.
pub(crate) fn points_table(records: &[Record]) -> String {
    let summaries: Vec<_> = records.iter().map(|record| flatten(&record.metrics.summary)).collect();
    let mut keys: Vec<&String> = records.iter().flat_map(|record| record.point.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    // A column of its own names the system.
    keys.retain(|key| !["systems", "system"].contains(&key.as_str()));
    let most = summaries.iter().filter_map(|summary| summary.get(THROUGHPUT)).copied().fold(0.0, f64::max);
    let (scale, unit) = rate_unit(most);
    let mut metrics = vec![(THROUGHPUT.to_owned(), format!("throughput, {unit}"), scale)];
    let downloads = summaries.iter().flat_map(|summary| summary.keys());
    let mut classes: Vec<&str> =
        downloads.filter_map(|key| key.strip_prefix("ttlb_s.")?.strip_suffix(".p50")).collect();
    classes.sort_unstable();
    classes.dedup();
    metrics.extend(
        classes
            .into_iter()
            .take(CLASSES)
            .map(|class| (format!("ttlb_s.{class}.p50"), format!("{class}: download, median, s"), 1.0)),
    );

    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    let titles = metrics.iter().map(|(_, title, _)| title.clone());
    let fixed = ["system".to_owned(), "n".to_owned()];
    table.set_header(keys.iter().map(|key| (*key).clone()).chain(fixed).chain(titles));
    let mut groups: Vec<(&Record, Vec<usize>)> = Vec::new();
    for (number, record) in records.iter().enumerate() {
        let same = |(first, _): &&mut (&Record, Vec<usize>)| {
            first.point == record.point && first.system == record.system
        };
        match groups.iter_mut().rev().find(same) {
            Some((_, runs)) => runs.push(number),
            None => groups.push((record, vec![number])),
        }
    }
    // Values of few downloads say how many there were, and values that some runs lack say their n.
    let note = |found: &[f64], runs: &[usize], metric: &str| {
        let mut notes = Vec::new();
        if !found.is_empty() && found.len() < runs.len() {
            notes.push(format!("n = {}", found.len()));
        }
        if let Some(class) = metric.strip_suffix(".p50") {
            let mut seen = BTreeSet::new();
            let runs = runs.iter().filter(|run| seen.insert(records[**run].digest.clone()));
            let count = format!("{class}.count");
            let downloads: f64 = runs.filter_map(|run| summaries[*run].get(&count)).sum();
            if !found.is_empty() && downloads < LEAST_DOWNLOADS as f64 {
                notes.push(format!("{downloads} download{}", if downloads == 1.0 { "" } else { "s" }));
            }
        }
        if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
    };
    for (first, runs) in groups.iter().take(ROWS) {
        let point = keys.iter().map(|key| first.point.get(*key).cloned().unwrap_or_default());
        let values = metrics.iter().map(|(metric, _, scale)| {
            let found: Vec<f64> =
                runs.iter().filter_map(|run| Some(summaries[*run].get(metric)? * scale)).collect();
            mean(&found) + &note(&found, runs, metric)
        });
        let about = [first.system.clone(), runs.len().to_string()];
        table.add_row(point.chain(about).chain(values).collect::<Vec<String>>());
    }
    match groups.len().saturating_sub(ROWS) {
        0 => table.to_string(),
        more => format!("{table}\n{more} more rows: metrics.csv"),
    }
}

fn mean(values: &[f64]) -> String {
    if values.is_empty() {
        return "-".into();
    }
    let Estimate { mean, ci95, .. } = Estimate::of(values);
    let width = ci95.map(|width| format!(" ± {}", format_number(width)));
    format_number(mean) + &width.unwrap_or_default()
}
