//! The plots of `tornettools plot` for a simulated Tor, with its tail axis and confidence bands.

use tidegate_data::torperf::quantile;

use super::page::{Band, Chart, HtmlTable, Section};
use crate::metrics::histogram::{Histogram, supported};
use crate::metrics::transfers::Class;
use crate::number::format_number;
use crate::results::{Results, SystemResult};
use crate::runs::Run;
use crate::scoreboard::{Curve, Figure};
use crate::statistics::Estimate;

/// The shares at which quantiles are drawn: every 0.01, and five above 0.99.
fn shares() -> impl Iterator<Item = f64> {
    (0..100).map(|percent| f64::from(percent) / 100.0).chain([0.992, 0.994, 0.996, 0.998, 0.999])
}

/// A run's quantiles at the first shares, up to the last one that its values support; `None` without values.
type Quantiles = Option<Vec<f64>>;

/// Whether a curve of `n` values reaches up to a share; its lower end is the smallest value.
fn drawn(n: u64, share: f64) -> bool {
    share <= 0.5 || supported(n, share)
}

/// Quantiles with right-censored times.
fn of_times(ended: &Histogram, censored: &Histogram) -> Quantiles {
    let n = ended.total() + censored.total();
    let reached = shares().take_while(|share| drawn(n, *share));
    let all: Vec<f64> = reached.map_while(|share| ended.quantile_censored(censored, share)).collect();
    (!all.is_empty()).then_some(all)
}

fn of_values(mut values: Vec<f64>) -> Quantiles {
    values.sort_by(f64::total_cmp);
    let reached = shares().take_while(|share| drawn(values.len() as u64, *share));
    reached.map(|share| quantile(&values, share)).collect()
}

/// The mean over runs of each quantile that all of them reach, and with two runs the band of its 95 % intervals.
fn curve(name: &str, runs: &[Vec<f64>]) -> (Curve, Vec<(f64, f64)>) {
    let reached = runs.iter().map(Vec::len).min().unwrap_or(0);
    let estimates: Vec<(Estimate, f64)> = shares()
        .take(reached)
        .enumerate()
        .map(|(at, share)| (Estimate::of(&runs.iter().map(|run| run[at]).collect::<Vec<f64>>()), share))
        .collect();
    let points = estimates.iter().map(|(estimate, share)| (estimate.mean, *share)).collect();
    let side = |sign: f64| {
        estimates.iter().filter_map(move |(estimate, share)| {
            Some(((estimate.mean + sign * estimate.ci95?).max(0.0), *share))
        })
    };
    let other: Vec<(f64, f64)> = side(1.0).collect();
    (Curve { name: name.to_owned(), points }, side(-1.0).chain(other.into_iter().rev()).collect())
}

/// Title and axes of a plot.
struct Plot<'a> {
    title: &'a str,
    x: &'a str,
    of: &'a str,
    tail: bool,
}

impl Plot<'_> {
    /// A chart with a curve per system, and the measured curve.
    fn chart(
        &self,
        results: &Results<'_>,
        measured: Option<Curve>,
        pick: &dyn Fn(&Run) -> Quantiles,
    ) -> Option<Chart> {
        let (mut curves, mut bands) = (Vec::new(), Vec::new());
        for system in &results.systems {
            let runs: Vec<Vec<f64>> = system.runs.iter().filter_map(|run| pick(run)).collect();
            // A system without values must not shift the indices of bands.
            if runs.is_empty() {
                continue;
            }
            let (curve, outline) = curve(system.name, &runs);
            if !outline.is_empty() {
                bands.push(Band { curve: curves.len(), outline });
            }
            curves.push(curve);
        }
        if curves.is_empty() {
            return None;
        }
        curves.extend(measured);
        Some(Chart {
            figure: Figure {
                title: self.title.into(),
                x: self.x.into(),
                y: format!("share of {}", self.of),
                curves,
            },
            bands,
            tail: self.tail,
            y_range: (!self.tail).then_some((0.0, 1.0)),
            mark: None,
            group: "none",
        })
    }
}

/// The sections on downloads by class, circuits, errors and relays.
pub(super) fn sections(results: &Results<'_>) -> Vec<Section> {
    let classes = classes(results);
    let mut all: Vec<Section> = classes.iter().filter_map(|class| downloads(results, class)).collect();
    all.extend(circuits(results));
    all.extend(errors(results, &classes));
    all.extend(relays(results));
    all
}

fn classes(results: &Results<'_>) -> Vec<String> {
    let mut all: Vec<String> = (results.systems.iter())
        .flat_map(|system| &system.runs)
        .flat_map(|run| run.metrics.transfers.classes.iter().map(|class| class.name.clone()))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn class_in<'a>(run: &'a Run, name: &str) -> Option<&'a Class> {
    run.metrics.transfers.classes.iter().find(|class| class.name == name)
}

fn downloads(results: &Results<'_>, class: &str) -> Option<Section> {
    let plot = |title| Plot { title, x: "time, s", of: "transfers", tail: true };
    let times = |pick: fn(&Class) -> (&Histogram, Option<&Histogram>)| {
        move |run: &Run| {
            let (ended, censored) = pick(class_in(run, class)?);
            of_times(ended, censored.unwrap_or(&Histogram::default()))
        }
    };
    let goodput = |run: &Run| {
        // Records refer to classes by index, which differs between runs.
        let number = run.metrics.transfers.classes.iter().position(|one| one.name == class)?;
        let records = run.metrics.transfers.records.iter().filter(|record| record.class == number);
        of_values(records.filter_map(|record| Some(record.goodput_bytes_per_s[1]? / 1e3)).collect())
    };
    let measured = |last| measured(results, class, last);
    let rates = Plot { title: "goodput over the fifth MiB", x: "rate, kB/s", of: "transfers", tail: false };
    let charts = [
        plot("time to first byte").chart(
            results,
            measured(false),
            &times(|class| (&class.first, Some(&class.without_first))),
        ),
        plot("time to last byte").chart(
            results,
            measured(true),
            &times(|class| (&class.last, Some(&class.without_last))),
        ),
        plot("round trip over the circuit").chart(results, None, &times(|class| (&class.round_trip, None))),
        rates.chart(results, None, &goodput),
    ];
    let charts: Vec<Chart> = charts.into_iter().flatten().collect();
    (!charts.is_empty()).then(|| Section {
        title: format!("Transfers: {class}"),
        text: format!(
            "Share of the transfers that reached this point within the time{}; unfinished ones count as right-censored, \
             and a curve ends at the share 1 - 1/n. n is {}. The axis gives the slowest \
             10 % as much room as all others, the slowest 1 % as much as the rest of these, and so on.",
            bands(results),
            numbers(results, class)
        ),
        charts,
        ..Section::default()
    })
}

/// The number of transfers of a class, by system over all seeds.
fn numbers(results: &Results<'_>, class: &str) -> String {
    let of = |system: &SystemResult<'_>| {
        let begun = system.runs.iter().filter_map(|run| Some(class_in(run, class)?.begun));
        format!("{} for {}", begun.sum::<u64>(), system.name)
    };
    results.systems.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// Explains the bands if there are several seeds.
fn bands(results: &Results<'_>) -> &'static str {
    if results.seeds().len() > 1 { "; means over seeds, with bands of 95 % confidence" } else { "" }
}

fn circuits(results: &Results<'_>) -> Option<Section> {
    let plot = Plot { title: "time to build", x: "time, s", of: "circuits", tail: true };
    let chart =
        plot.chart(results, None, &|run| of_times(&run.metrics.circuit_build, &Histogram::default()))?;
    let text = format!("Time from the first cell to the last reply{}.", bands(results));
    Some(Section { title: "Circuits".into(), text, charts: vec![chart], ..Section::default() })
}

/// The table of transfers that timed out, by class.
fn errors(results: &Results<'_>, classes: &[String]) -> Option<Section> {
    let mut header = vec![String::new()];
    header.extend(results.systems.iter().map(|system| system.name.to_owned()));
    let cell = |system: &SystemResult<'_>, class: &str| {
        let number = |key: &str| system.number(&["transfers", class, key]);
        let width = system.half_width(&["transfers", class, "timed_out_share"]);
        let width = width.map(|width| format!(" ± {}", format_number(100.0 * width))).unwrap_or_default();
        let share = format_number(100.0 * number("timed_out_share")?);
        Some(format!("{share}{width} % of {}", format_number(number("begun")?)))
    };
    let row = |class: &String| {
        let mut row = vec![class.clone()];
        row.extend(results.systems.iter().map(|system| cell(system, class).unwrap_or_else(|| "–".into())));
        row
    };
    (!classes.is_empty()).then(|| Section {
        title: "Timeouts".into(),
        text: "Share of the transfers started after the warm-up that timed out (mean over seeds).".into(),
        table: Some(HtmlTable { title: String::new(), header, rows: classes.iter().map(row).collect() }),
        ..Section::default()
    })
}

fn relays(results: &Results<'_>) -> Option<Section> {
    let used = |run: &Run| {
        let relays = run.metrics.relays.iter();
        of_values(
            // A relay is as busy as the busier direction of its link.
            relays.filter_map(|relay| relay.utilisation().into_iter().flatten().reduce(f64::max)).collect(),
        )
    };
    let carried = |run: &Run| {
        let cells = &run.metrics.relayed_cells;
        let seconds = cells.full_bins(&cells.curves[0], results.scenario.warmup());
        of_values(seconds.map(|(_, cells)| cells as f64 * 514.0 * 8.0 / 1e6).collect())
    };
    let plot = |title, x, of| Plot { title, x, of, tail: false };
    let charts: Vec<Chart> = [
        plot("use of links", "share of the link's rate", "relays").chart(results, None, &used),
        plot("throughput", "Mbit/s through all relays", "seconds").chart(results, None, &carried),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!charts.is_empty()).then(|| Section {
        title: "Relays".into(),
        text: format!("Traffic of relays after the warm-up{}.", bands(results)),
        charts,
        ..Section::default()
    })
}

/// The distribution of the measured downloads of a class.
fn measured(results: &Results<'_>, class: &str, last: bool) -> Option<Curve> {
    let all = &results.scenario.inputs.compare.as_ref()?.downloads;
    let is_class = |bytes| results.scenario.benchmark_class(bytes).is_some_and(|name| name == class);
    let download = all.iter().find(|download| is_class(download.bytes))?;
    let times = if last { &download.ttlb_s } else { &download.ttfb_s };
    let reached = shares().take_while(|share| drawn(times.len() as u64, *share));
    let points = reached.filter_map(|share| Some((quantile(times, share)?, share)));
    let mut points: Vec<(f64, f64)> = points.collect();
    points.dedup_by(|next, last| next.0 <= last.0);
    (!points.is_empty()).then(|| Curve { name: "measured".into(), points })
}
