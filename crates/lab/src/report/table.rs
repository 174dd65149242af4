//! Tables for the terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use super::answer::{Aspect, answer, aspects};
use crate::number::{format_number, rate_unit, size_unit};
use crate::results::{Results, SystemResult, look_up};
use crate::scoreboard::experiment::Published;
use crate::scoreboard::verdict::Outcome;
use crate::statistics::Estimate;

/// Above this number of circuits, the table does not list them one by one.
const MAX_CIRCUITS: usize = 12;

/// Rows of the short table. With frame and a heading of two lines it has 20 lines.
const ROWS: usize = 15;

/// Assumed width of a terminal that does not report one.
pub const COLUMNS: usize = 80;

/// Levels of detail, widest first: (intervals of values, values of all systems, intervals of ratios).
const DETAILS: [(bool, bool, bool); 4] =
    [(true, true, true), (false, true, true), (false, false, true), (false, false, false)];

/// The answer in words, and a table of the most important numbers with ratios to the first system.
///
/// Uses the most detail that fits into `columns`; drops the last systems if even the least detail does not fit.
pub fn summary_table(results: &Results<'_>, columns: usize) -> String {
    let all = aspects(results);
    let count = results.systems.len();
    let fits = |table: &String| table.lines().next().is_some_and(|line| line.chars().count() <= columns);
    let drawn = !results.undrawn();
    let with = |count: usize, (intervals, values, ratios): (bool, bool, bool)| {
        comparison(results, &results.systems[..count], &all, (intervals && drawn, values, ratios && drawn))
    };
    let few = (1..count).rev().map(|count| (count, DETAILS[DETAILS.len() - 1]));
    let choices = DETAILS.map(|detail| (count, detail)).into_iter().chain(few);
    let mut shown = count;
    let mut tables = choices.map(|(count, detail)| {
        shown = count;
        with(count, detail)
    });
    let table = tables.find(fits).unwrap_or_else(|| with(1, DETAILS[DETAILS.len() - 1]));
    let lines: Vec<String> = answer(results).iter().map(|line| wrapped(line, columns)).collect();
    let mut text = lines.join("\n") + "\n" + &table;
    if shown < count {
        let (hidden, plural) = (count - shown, if count - shown > 1 { "s" } else { "" });
        text += &format!("\n--all shows all metrics, and {hidden} system{plural} more");
    } else if all.len() > ROWS {
        text += "\n--all shows all metrics";
    }
    text
}

/// Wraps a line between words.
fn wrapped(line: &str, columns: usize) -> String {
    let (mut text, mut used) = (String::new(), 0);
    for word in line.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > columns {
            text.push_str("\n  ");
            used = 2;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length;
    }
    text
}

fn comparison(
    results: &Results<'_>,
    systems: &[SystemResult<'_>],
    all: &[Aspect],
    (intervals, values, ratio_intervals): (bool, bool, bool),
) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec![Cell::new("")];
    let measured = results.measured();
    for (number, system) in systems.iter().enumerate() {
        if number == 0 || values {
            header.push(right(format!("{}\nn = {}", system.name, system.runs.len())));
        }
        // Without a column of values, the column of ratios carries the system's name.
        let ratio = if values { "ratio".to_owned() } else { format!("{}\nratio", system.name) };
        header.extend((number > 0).then(|| right(ratio)));
    }
    header.extend(measured.iter().map(|_| right("measured".into())));
    table.set_header(header);
    for aspect in all.iter().take(ROWS) {
        let path = aspect.keys();
        let mut cells = vec![Cell::new(aspect.title())];
        for (number, system) in systems.iter().enumerate() {
            if number == 0 || values {
                cells.push(right(aspect.text(system, intervals).unwrap_or_else(|| "-".into())));
            }
            cells.extend((number > 0).then(|| {
                let ratio = results.paired(system, &systems[0], &path);
                right(ratio.map_or_else(
                    // One of the two lacks the value, or the first system has zero for some seeds.
                    || "-".into(),
                    |ratio| {
                        let is_equal = ratio.mean == 1.0 && ratio.ci95.unwrap_or(0.0) == 0.0;
                        let text = if is_equal { "=".into() } else { ratio_text(ratio, ratio_intervals) };
                        // Some seeds lack a value of one of the two.
                        if ratio.n < system.runs.len() { format!("{text} (n = {})", ratio.n) } else { text }
                    },
                ))
            }));
        }
        cells.extend(measured.iter().map(|measured| {
            right(look_up(measured, &path).map_or_else(String::new, |value| aspect.shown(value)))
        }));
        table.add_row(cells);
    }
    table.to_string()
}

fn ratio_text(ratio: Estimate, interval: bool) -> String {
    match ratio.ci95.filter(|_| interval) {
        Some(width) => format!("{:.2} ± {width:.2}", ratio.mean),
        None => format!("{:.2}", ratio.mean),
    }
}

/// The table of all metrics, with a column per system.
pub fn full_table(results: &Results<'_>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec![Cell::new("")];
    let title = |system: &SystemResult<'_>| right(format!("{}\nn = {}", system.name, system.runs.len()));
    header.extend(results.systems.iter().map(title));
    let measured = results.measured();
    header.extend(measured.iter().map(|_| right("measured".into())));
    table.set_header(header);
    let mut row = |label: &str, path: &[&str], scale: f64| {
        let values: Vec<Option<String>> =
            results.systems.iter().map(|system| number(system, path, scale)).collect();
        // Rows without any value are left out.
        if values.iter().any(Option::is_some) {
            let mut cells = vec![Cell::new(label)];
            cells.extend(values.into_iter().map(|value| right(value.unwrap_or_else(|| "-".into()))));
            cells.extend(measured.iter().map(|measured| {
                right(look_up(measured, path).map_or(String::new(), |value| format_number(value * scale)))
            }));
            table.add_row(cells);
        }
    };
    for (label, key) in [("mean", "latency_mean_s"), ("p50", "latency_p50_s"), ("p95", "latency_p95_s")] {
        row(&format!("latency {label}, ms"), &[key], 1e3);
    }
    row("  from the exit's queue on, mean, ms", &["latency_from_departure_mean_s"], 1e3);
    // Parts have the unit of the total.
    let (scale, unit) = rate_unit(results.most(&["throughput_total_bytes_per_s"]));
    row(&format!("throughput, {unit}"), &["throughput_total_bytes_per_s"], scale);
    for name in keys(results, "throughput_bytes_per_s", MAX_CIRCUITS) {
        row(&format!("  {name}"), &["throughput_bytes_per_s", &name], scale);
    }
    let classes = keys(results, "throughput_by_class_bytes_per_s", MAX_CIRCUITS);
    if classes.len() > 1 {
        for name in classes {
            row(&format!("  all of {name}"), &["throughput_by_class_bytes_per_s", &name], scale);
        }
    }
    row("fairness, share of traffic (sum of rates)", &["fairness_index_by_rates"], 1.0);
    row("fairness, share of max-min rates", &["fairness_index_by_max_min"], 1.0);
    for (label, key) in [("connect", "connect_s"), ("first byte", "ttfb_s"), ("last byte", "ttlb_s")] {
        for class in keys(results, key, MAX_CIRCUITS) {
            for quantile in ["p50", "p95"] {
                row(&format!("{label} {quantile}, {class}, s"), &[key, &class, quantile], 1.0);
            }
            row(&format!("{label} n, {class}"), &[key, &class, "count"], 1.0);
        }
    }
    for class in keys(results, "transfers", MAX_CIRCUITS) {
        if results.systems.iter().any(|system| system.number(&["transfers", &class, "timed_out"]) > Some(0.0))
        {
            row(&format!("given up, share, {class}"), &["transfers", &class, "timed_out_share"], 1.0);
        }
    }
    for part in keys(results, "utilisation", MAX_CIRCUITS) {
        row(&format!("utilisation, {}", part.replace('_', " ")), &["utilisation", &part], 1.0);
    }
    let (scale, unit) = size_unit(results.most(&["backlog_mean_bytes"]));
    row(&format!("backlog mean, {unit}"), &["backlog_mean_bytes"], scale);
    row("cells in circuit queues, mean per relay", &["queue_mean_cells_per_relay"], 1.0);
    row("retransmissions", &["retransmissions"], 1.0);
    row("TCP timeouts", &["tcp_timeouts"], 1.0);
    row("controllers' solves", &["control", "solves"], 1.0);
    row("  that ended in safe rates", &["control", "fallbacks"], 1.0);
    row("  steps left to the windows", &["control", "left_to_windows"], 1.0);
    row("  circuits in each, mean", &["control", "circuits_per_solve"], 1.0);
    row("  trajectories refused", &["control", "refused_trajectories"], 1.0);
    row("  messages sent, kB", &["control", "message_bytes"], 1e-3);
    row("cells delivered", &["cells_delivered"], 1.0);
    row("cells per CPU-second", &["cells_per_cpu_s"], 1.0);
    let conditions = results.conditions();
    if conditions.is_empty() { table.to_string() } else { format!("{conditions}\n{table}") }
}

fn number(system: &SystemResult<'_>, path: &[&str], scale: f64) -> Option<String> {
    let value = format_number(system.number(path)? * scale);
    let width = system.half_width(path).map(|width| format!(" ± {}", format_number(width * scale)));
    Some(value + &width.unwrap_or_default() + &system.fewer(path))
}

/// The keys of an object over all systems; empty if there are more than `limit`.
fn keys(results: &Results<'_>, key: &str, limit: usize) -> Vec<String> {
    let mut all: Vec<String> = (results.systems.iter())
        .filter_map(|system| system.mean.get(key)?.as_object())
        .flat_map(|object| object.keys().cloned())
        .collect();
    all.sort_by_key(|name| {
        (name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(), name.len(), name.clone())
    });
    all.dedup();
    if all.len() > limit { Vec::new() } else { all }
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Our number with the interval that decides its row.
pub(super) fn ours_text(ours: Option<f64>, interval: Option<[f64; 2]>, published: &Published) -> String {
    let Some(ours) = ours else { return "–".into() };
    let of = if matches!(published, Published::Number(_)) { "" } else { "difference " };
    match interval {
        None => format_number(ours),
        Some([low, high]) => {
            format!("{} ({of}{} to {})", format_number(ours), format_number(low), format_number(high))
        }
    }
}

/// The scoreboard as a table for the terminal.
pub fn outcome_table(outcomes: &[Outcome], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    // Without a terminal, 160 columns keep most statements on one line.
    table.set_width(width.unwrap_or(160));
    table.set_header(["figure", "quantity", "unit", "published", "ours", "n", "tolerance", "verdict"]);
    for outcome in outcomes {
        let published = match &outcome.published {
            Published::Number(number) => format_number(*number),
            Published::Statement(text) => text.clone(),
        };
        let ours = ours_text(outcome.ours, outcome.interval, &outcome.published);
        table.add_row([
            Cell::new(format!("{}/{}", outcome.paper, outcome.figure)),
            Cell::new(&outcome.quantity),
            Cell::new(&outcome.unit),
            right(published),
            right(ours),
            right(outcome.n.to_string()),
            right(outcome.tolerance.clone().unwrap_or_default()),
            Cell::new(outcome.verdict),
        ]);
    }
    table.to_string()
}
