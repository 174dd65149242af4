//! The sections of a report, in order.

use super::answer::{answer, every_ratio, ratios};
use super::distributions;
use super::page::{Bar, Bars, Chart, Forest, HtmlTable, Page, Section, render};
use super::table::ours_text;
use crate::metrics::series::Series;
use crate::metrics::{CAUSES, HOPS};
use crate::number::{format_number, rate_unit, size_unit};
use crate::results::{Results, SystemResult, VERSION};
use crate::scoreboard::experiment::Published;
use crate::scoreboard::verdict::{Outcome, count};
use crate::scoreboard::{Curve, Figure, Scale};

/// The HTML report of a scenario's results.
pub(crate) fn page(results: &Results<'_>) -> String {
    let scenario = results.scenario;
    let seeds = results.seeds().len();
    let title = if scenario.file.title.is_empty() { &scenario.file.name } else { &scenario.file.title };
    let runs = match seeds {
        1 => "one seed".to_owned(),
        _ if results.undrawn() => format!("{seeds} seeds, which all gave the same runs"),
        _ => format!("{seeds} seeds, mean ± 95 % confidence"),
    };
    let missing = match results.runs.missing.len() {
        0 => String::new(),
        n => format!("; {n} runs are missing because the user stopped them"),
    };
    let mut sections = vec![
        over_time(results, "Rates over time", "rate", rate_unit, "rates", |system| {
            let series = &system.runs[0].metrics.delivered;
            (series, series.curves.iter().map(|curve| series.rates(curve).collect()).collect())
        }),
        over_time(results, "Backlog over time", "backlog", size_unit, "backlog", |system| {
            let series = &system.runs[0].metrics.backlog;
            (series, series.curves.iter().map(|curve| series.samples(curve).collect()).collect())
        }),
        latency(results),
    ];
    sections[0].text =
        "Application bytes delivered to clients. The dashed line marks the end of the warm-up.".into();
    sections[1].text = "Bytes written by servers and not yet delivered to clients.".into();
    sections.extend(anatomy(results));
    sections.extend(distributions::sections(results));
    render(&Page {
        title: title.clone(),
        subtitle: format!(
            "{} s simulated, warm-up {} s; {runs}{missing}",
            format_number(scenario.duration().as_secs_f64()),
            format_number(scenario.warmup().as_secs_f64())
        ),
        version: VERSION,
        lead: Some(comparison(results)),
        tables: vec![summary(results)],
        sections,
        appendix: toml::to_string(&scenario.file).unwrap_or_default(),
    })
}

fn summary(results: &Results<'_>) -> HtmlTable {
    let mut header = vec![String::new()];
    header.extend(
        results.systems.iter().map(|system| format!("{} (n\u{a0}=\u{a0}{})", system.name, system.runs.len())),
    );
    let rows = [
        ("Latency, mean", "latency_mean_s", 1e3, "ms"),
        ("Latency, p50", "latency_p50_s", 1e3, "ms"),
        ("Latency, p95", "latency_p95_s", 1e3, "ms"),
        ("Latency from the exit's queue on, mean", "latency_from_departure_mean_s", 1e3, "ms"),
        ("Throughput, total", "throughput_total_bytes_per_s", 1e-3, "kB/s"),
        ("Fairness: share of traffic within the max-min fair rates", "fairness_index_by_rates", 1.0, ""),
        ("Fairness: share of the max-min fair rates reached", "fairness_index_by_max_min", 1.0, ""),
        ("Backlog, mean", "backlog_mean_bytes", 1e-3, "kB"),
        ("Cells in circuit queues, mean per relay", "queue_mean_cells_per_relay", 1.0, "cells"),
        ("Retransmissions", "retransmissions", 1.0, ""),
        ("Controllers' solves", "control.solves", 1.0, ""),
        ("Solves that fell back to safe rates", "control.fallbacks", 1.0, ""),
        ("Trajectories refused", "control.refused_trajectories", 1.0, ""),
        ("Controllers' messages", "control.message_bytes", 1e-3, "kB"),
        ("Cells delivered", "cells_delivered", 1.0, ""),
        ("Processor time of a run", "cpu_s", 1.0, "s"),
        ("Cells simulated per CPU-second", "cells_per_cpu_s", 1.0, ""),
    ];
    let rows = rows.into_iter().filter_map(|(label, key, scale, unit)| {
        let path: Vec<&str> = key.split('.').collect();
        let (scale, unit) = match unit {
            "kB/s" => rate_unit(results.most(&path)),
            "kB" => size_unit(results.most(&path)),
            _ => (scale, unit),
        };
        let cell = |system: &SystemResult<'_>| {
            let value = system.number(&path)?;
            let width = system.half_width(&path);
            let width = width.map(|width| format!(" ± {}", format_number(width * scale))).unwrap_or_default();
            let value = format!("{}{width} {unit}", format_number(value * scale));
            Some(value.trim_end().to_owned() + &system.fewer(&path))
        };
        let cells: Vec<Option<String>> = results.systems.iter().map(cell).collect();
        // Rows without any value are left out.
        cells.iter().any(Option::is_some).then(|| {
            let mut row = vec![label.to_owned()];
            row.extend(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into())));
            row
        })
    });
    HtmlTable { title: "Summary".into(), header, rows: rows.collect() }
}

/// The section with the answer in words, and ratios to the first system with their intervals.
fn comparison(results: &Results<'_>) -> Section {
    let first = results.systems.first().map_or("", |system| system.name);
    let forests = [
        (format!("Ratio to {first} on the same networks"), true, ratios(results)),
        ("Every metric".to_owned(), false, every_ratio(results)),
    ];
    let forests = forests.into_iter().filter(|(_, _, rows)| !rows.is_empty());
    Section {
        title: if results.systems.len() > 1 { "Which system is better" } else { "Load" }.into(),
        text: answer(results).join("\n"),
        forests: forests.map(|(title, open, rows)| Forest { title, open, rows }).collect(),
        ..Section::default()
    }
}

/// The data of a system's chart over time: the sampled times, and curves of time in seconds and value.
type OverTime<'a> = (&'a Series, Vec<Vec<(f64, f64)>>);

/// A section with one chart over time per system, on common axes.
fn over_time(
    results: &Results<'_>,
    title: &str,
    quantity: &str,
    unit_of: impl Fn(f64) -> (f64, &'static str),
    group: &'static str,
    pick: impl for<'a> Fn(&'a SystemResult<'_>) -> OverTime<'a>,
) -> Section {
    let picked: Vec<_> = results.systems.iter().map(&pick).collect();
    // Common axes and units make the charts of systems comparable.
    let values = picked.iter().flat_map(|(_, curves)| curves).flatten();
    let top = values.fold(0.0f64, |top, (_, y)| top.max(*y));
    let (scale, unit) = unit_of(top);
    let charts = results.systems.iter().zip(picked).map(|(system, (series, curves))| {
        let curves = series.names.iter().zip(curves).map(|(name, points)| Curve {
            name: name.clone(),
            points: points.into_iter().map(|(until, bytes)| (until, bytes * scale)).collect(),
        });
        let seed =
            if system.runs.len() > 1 { format!(" (seed {})", system.runs[0].seed) } else { String::new() };
        let figure = Figure {
            title: format!("{}{seed}", system.name),
            x: "time, s".into(),
            y: format!("{quantity}, {unit}"),
            curves: curves.collect(),
        };
        let mark = Some(results.scenario.warmup().as_secs_f64()).filter(|mark| *mark > 0.0);
        let y_range = Some((0.0, top * scale * 1.05));
        Chart { figure, bands: Vec::new(), tail: false, y_range, mark, group }
    });
    Section { title: title.into(), charts: charts.collect(), ..Section::default() }
}

fn latency(results: &Results<'_>) -> Section {
    let chart = |title: &str, from_departure: bool| {
        let curves = results.systems.iter().map(|system| {
            let all = system.merged(|run| {
                if from_departure { &run.metrics.latency_from_departure } else { &run.metrics.latency }
            });
            let points = all.distribution(300).into_iter().map(|(s, share)| (s * 1e3, share)).collect();
            Curve { name: system.name.to_owned(), points }
        });
        Chart {
            figure: Figure {
                title: title.into(),
                x: "latency, ms".into(),
                y: "share of bytes".into(),
                curves: curves.collect(),
            },
            bands: Vec::new(),
            tail: false,
            y_range: Some((0.0, 1.0)),
            mark: None,
            group: "latency",
        }
    };
    Section {
        title: "Latency per byte".into(),
        text:
            "Share of application bytes with at most this latency. Left: from packaging into a cell at \
            the exit to arrival at the client. Right: from the cell's departure from the exit's circuit queue."
                .into(),
        charts: vec![chart("from packaging", false), chart("from the exit's circuit queue on", true)],
        ..Section::default()
    }
}

fn anatomy(results: &Results<'_>) -> Option<Section> {
    let mut rows = Vec::new();
    for (number, hop) in HOPS.iter().enumerate() {
        for system in &results.systems {
            let anatomy = system.anatomy(number);
            if anatomy.cells > 0 {
                let values = anatomy.means().iter().map(|mean| mean * 1e3).collect();
                rows.push(Bar { group: format!("at the {hop}"), name: system.name.to_owned(), values });
            }
        }
    }
    let label = |cause: &&str| match *cause {
        "head_of_line" => "unread".into(),
        cause => cause.replace('_', " "),
    };
    let parts = CAUSES.iter().map(label).collect();
    (!rows.is_empty()).then(|| Section {
        title: "Anatomy of latency".into(),
        text: "Where traced cells waited on their way from exit to client, on average. \
            Each bar is one hop, from entering its circuit queue to entering the next one. A cell is unread at the receiver \
            while earlier bytes are missing, or while the relay's token bucket or processor is busy."
            .into(),
        bars: Some(Bars { unit: "ms".into(), parts, rows }),
        ..Section::default()
    })
}

/// An experiment in the scoreboard's report.
pub struct IllustratedExperiment {
    /// `paper/figure`.
    pub name: String,
    /// Title, source and notes.
    pub text: String,
    /// The published figures with our points, as SVG.
    pub drawings: Vec<String>,
    /// Other figures.
    pub figures: Vec<Figure>,
}

/// The HTML report of the scoreboard: the rows and the figures of each experiment.
pub fn page_of_outcomes(outcomes: &[Outcome], experiments: &[IllustratedExperiment], scale: Scale) -> String {
    let of_one = |one: &Outcome, next: &Outcome| (&one.paper, &one.figure) == (&next.paper, &next.figure);
    let section = |rows: &[Outcome]| {
        let name = format!("{}/{}", rows[0].paper, rows[0].figure);
        let drawn = experiments.iter().find(|one| one.name == name);
        let chart = |figure: &Figure| Chart {
            figure: figure.clone(),
            bands: Vec::new(),
            tail: false,
            y_range: None,
            mark: None,
            group: "none",
        };
        Section {
            title: name.clone(),
            text: drawn.map_or_else(String::new, |one| one.text.clone()),
            table: Some(table_of_outcomes(rows)),
            svgs: drawn.map_or_else(Vec::new, |one| one.drawings.clone()),
            charts: drawn.iter().flat_map(|one| &one.figures).map(chart).collect(),
            ..Section::default()
        }
    };
    render(&Page {
        title: "Scoreboard: published numbers and ours".into(),
        subtitle: format!("{}. {}", scale.headline(), count(outcomes)),
        version: VERSION,
        lead: None,
        tables: Vec::new(),
        sections: outcomes.chunk_by(of_one).map(section).collect(),
        appendix: String::new(),
    })
}

/// The rows of one experiment, without columns that are empty in all of them.
fn table_of_outcomes(outcomes: &[Outcome]) -> HtmlTable {
    let header = ["quantity", "unit", "published", "ours", "n", "tolerance", "verdict", "note"];
    let row = |outcome: &Outcome| {
        let published = match &outcome.published {
            Published::Number(number) => format_number(*number),
            Published::Statement(text) => text.clone(),
        };
        [
            outcome.quantity.clone(),
            outcome.unit.clone(),
            published,
            ours_text(outcome.ours, outcome.interval, &outcome.published),
            outcome.n.to_string(),
            outcome.tolerance.clone().unwrap_or_default(),
            outcome.verdict.to_string(),
            outcome.notes(),
        ]
    };
    let rows: Vec<_> = outcomes.iter().map(row).collect();
    let filled = [0, 1, 2, 3, 4, 5, 6, 7].map(|column| rows.iter().any(|row| !row[column].is_empty()));
    let keep = |row: [String; 8]| {
        row.into_iter().zip(filled).filter_map(|(text, kept)| kept.then_some(text)).collect()
    };
    HtmlTable {
        title: String::new(),
        header: keep(header.map(str::to_owned)),
        rows: rows.into_iter().map(keep).collect(),
    }
}
