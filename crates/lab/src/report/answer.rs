//! The first lines of a report: the load, and which system is better, by how much and with what confidence.

use super::page::Ratio;
use crate::metrics::RelayRow;
use crate::number::{format_number, rate_unit, size_unit};
use crate::results::{Results, SystemResult, flatten, is_idle, look_up};
use crate::runs::Run;
use crate::scoreboard::sequence::Sequence;
use crate::scoreboard::verdict::ALPHA;
use crate::statistics::Estimate;

/// Systems that differ by less than this share are equal in a report's words.
const TIE: f64 = 0.01;
/// Fewest downloads of a class, over all seeds, that a report calls a difference of: as for measured ones.
pub(super) const LEAST_DOWNLOADS: u64 = 20;

/// Most lines of comparison: two for each of three classes, throughput and fairness.
const LINES: usize = 8;

/// Fewest seeds for a verdict.
const SEEDS: usize = 3;

/// A quantity in which systems are compared.
pub(super) struct Aspect {
    /// Its name in reports.
    pub label: String,
    /// Its path in the summary.
    pub path: Vec<String>,
    /// Whether smaller is better.
    pub less: bool,
    /// Fewest transfers of a run behind a quantile of downloads.
    n: Option<u64>,
    /// Factor from the summary's unit to the displayed one.
    scale: f64,
    unit: &'static str,
}

impl Aspect {
    /// Its path as keys of the summary.
    pub(crate) fn keys(&self) -> Vec<&str> {
        self.path.iter().map(String::as_str).collect()
    }

    /// Its label with its unit and the number of transfers.
    pub(crate) fn title(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(", {}", self.unit) };
        let n = self.n.map(|n| format!(" (n ≥ {n})")).unwrap_or_default();
        format!("{}{unit}{n}", self.label)
    }

    /// A value in the displayed unit.
    pub(crate) fn shown(&self, value: f64) -> String {
        format_number(value * self.scale)
    }

    /// A system's value, with its confidence interval if `interval`, and with n if some of its runs lack it.
    pub(crate) fn text(&self, system: &SystemResult<'_>, interval: bool) -> Option<String> {
        let value = self.value(system)?;
        if !interval {
            return Some(self.shown(value) + &system.fewer(&self.keys()));
        }
        // Rounding errors give equal values a tiny interval.
        let tidy = |width: f64| if width < 1e-9 * value.abs() { 0.0 } else { width };
        let width = system.half_width(&self.keys()).map(|width| format!(" ± {}", self.shown(tidy(width))));
        Some(self.shown(value) + &width.unwrap_or_default() + &system.fewer(&self.keys()))
    }

    /// The fewest downloads behind a value, and the system that has them; `None` for other quantities. A repeated run
    /// does not add any.
    fn downloads<'r>(&self, results: &'r Results<'_>) -> Option<(u64, &'r str)> {
        let [time, class, _] = &self.path[..] else { return None };
        let first = time == "ttfb_s";
        let of = |system: &SystemResult<'_>| -> u64 {
            let classes = system.distinct().flat_map(|run| &run.metrics.transfers.classes);
            let classes = classes.filter(|known| known.name == *class);
            classes.map(|class| if first { class.first.total() } else { class.last.total() }).sum()
        };
        results.systems.iter().map(|system| (of(system), system.name)).min_by_key(|(count, _)| *count)
    }

    fn value(&self, system: &SystemResult<'_>) -> Option<f64> {
        system.number(&self.keys()).filter(|value| value.is_finite())
    }
}

/// The quantities to compare: downloads by class, latency of bytes, throughput, fairness, backlog.
pub(super) fn aspects(results: &Results<'_>) -> Vec<Aspect> {
    let mut all = Vec::new();
    let mut add = |label: String, path: &[&str], less: bool, scale: f64, unit: &'static str| {
        let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
        let n = fewest_transfers(results, &path);
        let aspect = Aspect { label, path, less, n, scale, unit };
        // A quantity that no system has would be an empty row.
        if results.systems.iter().any(|system| aspect.value(system).is_some()) {
            all.push(aspect);
        }
    };
    let classes = |key: &str| -> Vec<String> {
        let found = results.systems.iter().filter_map(|system| system.mean.get(key)?.as_object());
        let mut names: Vec<String> = found.flat_map(|object| object.keys().cloned()).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    for class in classes("ttlb_s") {
        add(format!("{class}: first byte, median"), &["ttfb_s", &class, "p50"], true, 1.0, "s");
        add(format!("{class}: download, median"), &["ttlb_s", &class, "p50"], true, 1.0, "s");
        add(format!("{class}: download, p95"), &["ttlb_s", &class, "p95"], true, 1.0, "s");
    }
    add("byte latency, mean".into(), &["latency_mean_s"], true, 1e3, "ms");
    add("byte latency, p95".into(), &["latency_p95_s"], true, 1e3, "ms");
    let total = ["throughput_total_bytes_per_s"];
    let (scale, unit) = rate_unit(results.most(&total));
    add("throughput".into(), &total, false, scale, unit);
    let by_class = classes("throughput_by_class_bytes_per_s");
    if by_class.len() > 1 {
        for class in by_class {
            let path = ["throughput_by_class_bytes_per_s", &class];
            let (scale, unit) = rate_unit(results.most(&path));
            add(format!("{class}: throughput"), &path, false, scale, unit);
        }
    }
    add("fairness (max-min)".into(), &["fairness_index_by_rates"], false, 1.0, "");
    let backlog = ["backlog_mean_bytes"];
    let (scale, unit) = size_unit(results.most(&backlog));
    add("backlog, mean".into(), &backlog, true, scale, unit);
    all
}

/// The smallest number of transfers of a class in any run, unfinished ones included.
fn fewest_transfers(results: &Results<'_>, path: &[String]) -> Option<u64> {
    let [key, class, _] = path else { return None };
    let runs = results.systems.iter().flat_map(|system| &system.runs);
    let of = |run: &&Run| {
        let number = |kind: &str| look_up(&run.metrics.summary, &[key, class, kind]);
        Some((number("count")? + number("censored").unwrap_or(0.0)) as u64)
    };
    runs.filter_map(of).min()
}

/// One line on the load of the network, and one line for each of the most important quantities.
pub(super) fn answer(results: &Results<'_>) -> Vec<String> {
    let conditions = results.conditions();
    let mut lines = vec![if conditions.is_empty() { load(results) } else { conditions }];
    if results.undrawn() {
        lines.push(
            "All seeds gave the same runs, because the scenario has no random parts; one seed is enough."
                .into(),
        );
    }
    let silent = silent(results);
    lines.extend(nothing_delivered(&silent));
    lines.extend(unmeasured(results));
    if results.systems.len() > 1 && silent.len() < results.systems.len() {
        let all = aspects(results);
        let telling = |aspect: &&Aspect| {
            let last = aspect.path.last().map(String::as_str);
            let is_class = ["ttfb_s", "ttlb_s"].contains(&&*aspect.path[0]) && last == Some("p50");
            let transfers = all.iter().any(|other| other.path[0] == "ttlb_s");
            is_class
                || aspect.path[0] == "throughput_total_bytes_per_s"
                || aspect.path[0] == "fairness_index_by_rates"
                || (!transfers && aspect.path[0] == "latency_mean_s")
        };
        lines.extend(all.iter().filter(telling).take(LINES).filter_map(|aspect| best(results, aspect)));
    }
    lines
}

/// The systems under which no byte is delivered after the warm-up.
fn silent<'r>(results: &Results<'r>) -> Vec<&'r str> {
    let is_silent =
        |system: &&SystemResult<'_>| system.number(&["throughput_total_bytes_per_s"]) == Some(0.0);
    results.systems.iter().filter(is_silent).map(|system| system.name).collect()
}

/// One line that names the systems without deliveries and says what to check.
fn nothing_delivered(silent: &[&str]) -> Option<String> {
    (!silent.is_empty()).then(|| {
        format!(
            "Nothing is delivered under {} after the warm-up. Check the users' `start` and `stop`, whether `duration` \
             leaves time to build circuits, [[fault]] tables, and `build-timeout`.",
            silent.join(", ")
        )
    })
}

/// Share of relays without a weight above which the weights say more about the survey than about the balance system.
const MOST_UNMEASURED: f64 = 0.05;

/// One line that names the balance systems that left many relays without a weight.
fn unmeasured(results: &Results<'_>) -> Option<String> {
    let of = |system: &SystemResult<'_>| {
        let unweighed = |run: &&Run| look_up(&run.metrics.summary, &["balance", "unweighed_relays"]);
        let left: f64 = system.runs.iter().filter_map(unweighed).sum();
        let relays: usize = system.runs.iter().map(|run| run.metrics.relays.len()).sum();
        let is_much = left > MOST_UNMEASURED * relays as f64;
        is_much.then(|| format!("{} {left} of {relays}", system.name))
    };
    let named: Vec<String> = results.systems.iter().filter_map(of).collect();
    (!named.is_empty()).then(|| {
        format!(
            "Balance: over all seeds, the survey left relays without a weight (they weigh as an unmeasured relay of Tor): {}. \
             Raise `survey.duration` until few are left.",
            named.join(", ")
        )
    })
}

/// One line on the use of relays' capacity under the first system.
fn load(results: &Results<'_>) -> String {
    let Some(system) = results.systems.first() else { return String::new() };
    let relays = || system.runs.iter().flat_map(|run| &run.metrics.relays);
    let shares: Vec<f64> = relays().filter_map(RelayRow::load).collect();
    if shares.is_empty() {
        return "Load: unknown, because no relay has a limited link.".into();
    }
    let limits = if relays().any(|relay| relay.bucket_bytes_per_s().is_some()) {
        "capacity (links or token buckets)"
    } else {
        "links"
    };
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    let busiest = shares.iter().copied().fold(0.0, f64::max);
    let queued = results.most(&["queue_mean_cells_per_relay"]);
    let idle = if is_idle(mean, queued) && busiest < 0.9 {
        " The network is nearly idle, so schedulers hardly matter."
    } else {
        ""
    };
    format!(
        "Load: relays use {:.0} % of their {limits} under {}, the busiest {:.0} %.{idle}",
        100.0 * mean,
        system.name,
        100.0 * busiest
    )
}

/// One line that compares the best system with the first one, or the second best if the first is best.
///
/// Its ratio divides by the first system, as in tables and charts. A system is called best only if its lead is larger
/// than [`TIE`] and is not due to chance or to a few downloads.
fn best(results: &Results<'_>, aspect: &Aspect) -> Option<String> {
    let mut ranked: Vec<(&SystemResult<'_>, f64)> =
        results.systems.iter().filter_map(|system| Some((system, aspect.value(system)?))).collect();
    ranked.sort_by(|a, b| if aspect.less { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) });
    let (winner, value) = *ranked.first()?;
    let first = results.systems.first()?;
    let (second, others) = if winner.name == first.name {
        *ranked.get(1)?
    } else {
        *ranked.iter().find(|(system, _)| system.name == first.name)?
    };
    if aspect.path[0].starts_with("throughput") && value == 0.0 {
        // `nothing_delivered` says so.
        return None;
    }
    let unit = if aspect.unit.is_empty() { String::new() } else { format!(" {}", aspect.unit) };
    // A mean over fewer seeds than the other one's says so.
    let said = |system: &SystemResult<'_>, value| {
        format!("{}{unit}{}", aspect.shown(value), system.fewer(&aspect.keys()))
    };
    let (label, value, others) = (&aspect.label, said(winner, value), said(second, others));
    let both = format!("{label}: {} has {value}, {} has {others}", winner.name, second.name);
    if let Some((least, system)) = aspect.downloads(results).filter(|(least, _)| *least < LEAST_DOWNLOADS) {
        return Some(format!("{both}; {least} finished downloads under {system} are too few to compare."));
    }
    let compared = if winner.name == first.name { second } else { winner };
    let Some(ratio) = results.paired(compared, first, &aspect.keys()) else {
        let equal = aspect.value(winner) == aspect.value(second);
        let why =
            if equal { "equal".into() } else { format!("no ratio, because {} has 0 for a seed", first.name) };
        return Some(format!("{both}: {why}."));
    };
    if (ratio.mean - 1.0).abs() <= TIE {
        return Some(format!("{both}: equal within 1 %."));
    }
    let times = format!("{} times {}'s", format_number(ratio.mean), first.name);
    let is_best = beats_all(results, winner, aspect);
    let said = |why: String| match is_best {
        false => format!("{both}: {} has {times} ({why}).", compared.name),
        true if winner.name == first.name => {
            format!(
                "{label}: {} is best with {value}; {} has {others}, {times} ({why}).",
                winner.name, second.name
            )
        }
        true => format!("{label}: {} is best with {value}, {times} ({why}).", winner.name),
    };
    Some(match ratio.ci95 {
        None if !results.scenario.is_drawn() => said("nothing is random".to_owned()),
        Some(_) if results.undrawn() => said("equal for every seed".to_owned()),
        None => format!(
            "{both}: {} has {times} for one seed; --seeds 5 gives the confidence interval.",
            compared.name
        ),
        Some(width) => {
            // The interval of a ratio may reach below zero.
            let (low, high) = ((ratio.mean - width).max(0.0), ratio.mean + width);
            let judged = if is_significant(ratio.n, (low, high)) { "significant" } else { "not significant" };
            said(format!("{} to {}, {judged}, n = {}", format_number(low), format_number(high), ratio.n))
        }
    })
}

/// Whether a system is better than every other one beyond the noise.
///
/// Paired differences are tested by [`Sequence`], at a level of 5 % divided by the number of other systems. Runs
/// without random parts need no test.
fn beats_all(results: &Results<'_>, winner: &SystemResult<'_>, aspect: &Aspect) -> bool {
    let others: Vec<_> = results.systems.iter().filter(|other| other.name != winner.name).collect();
    let better = |other: &&SystemResult<'_>| {
        let differences = results.differences(winner, other, &aspect.keys());
        let sequence = Sequence::of(&differences);
        let right_side = if aspect.less { sequence.mean < 0.0 } else { sequence.mean > 0.0 };
        let clear = || sequence.n >= SEEDS && sequence.p_value(0.0) <= ALPHA / others.len() as f64;
        right_side && (results.is_exact() || clear())
    };
    others.iter().all(better)
}

/// Rows of the forest plot: ratios of the compared quantities to the first system on the same networks.
pub(super) fn ratios(results: &Results<'_>) -> Vec<Ratio> {
    let rows = aspects(results).into_iter().flat_map(|aspect| {
        let path = aspect.keys();
        rows(results, &path, &aspect.label, Some(aspect.less))
    });
    rows.collect()
}

/// Ratios of all numbers to the first system on the same networks.
pub(super) fn every_ratio(results: &Results<'_>) -> Vec<Ratio> {
    let Some(first) = results.systems.first() else { return Vec::new() };
    let rows = flatten(&first.mean).into_keys().flat_map(|key| {
        let path: Vec<&str> = key.split('.').collect();
        rows(results, &path, &key, None)
    });
    rows.collect()
}

/// Whether the interval of a ratio from so many seeds shows a difference.
fn is_significant(seeds: usize, (low, high): (f64, f64)) -> bool {
    seeds >= SEEDS && (low > 1.0 || high < 1.0)
}

/// A row of a forest plot; `None` unless the ratio is positive. An exact one is not tested.
pub(super) fn forest_row(
    label: &str,
    system: &str,
    estimate: Estimate,
    less: Option<bool>,
    is_exact: bool,
) -> Option<Ratio> {
    let Estimate { n, mean, ci95 } = estimate;
    let ends = ci95.map(|width| (mean - width, mean + width));
    let clear = is_exact || ends.is_some_and(|ends| is_significant(n, ends));
    let sure = clear && (mean - 1.0).abs() > TIE;
    let (label, system) = (label.to_owned(), system.to_owned());
    (mean > 0.0).then_some(Ratio { label, system, mean, ends, sure, less })
}

fn rows(results: &Results<'_>, path: &[&str], label: &str, less: Option<bool>) -> Vec<Ratio> {
    let Some((first, others)) = results.systems.split_first() else { return Vec::new() };
    let row = |system: &SystemResult<'_>| {
        forest_row(label, system.name, results.paired(system, first, path)?, less, results.is_exact())
    };
    others.iter().filter_map(row).collect()
}
