//! Results of all runs of a scenario: means over seeds, confidence intervals, ratios between systems.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tidegate_data::torperf::{Download, Measured, quantile};

use crate::metrics::Anatomy;
use crate::metrics::histogram::{Histogram, supported};
use crate::number::format_number;
use crate::runs::{Run, Runs};
use crate::scenario::Scenario;
use crate::score::{Score, score};
use crate::statistics::Estimate;

/// The tool's version, for manifests.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The quantiles of measured downloads that reports show.
const QUANTILES: [(&str, f64); 5] = [("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)];

/// Below this share of capacity in use a network is idle: cells hardly wait at relays. Tor uses 0.47 to 0.51 of its
/// advertised bandwidth.
const IDLE: f64 = 0.1;

/// The mean number of cells in a relay's circuit queues above which a network is not idle, whatever share of its capacity
/// is in use: losses, delays or a single full relay hold cells up. A circuit window of tor holds 1,000 cells.
const QUEUED: f64 = 10.0;

/// Whether cells hardly wait at relays, so that the choice of a scheduler has little effect.
pub(crate) fn is_idle(used: f64, queued_cells: f64) -> bool {
    used < IDLE && queued_cells < QUEUED
}

/// Results of all systems of a scenario.
pub struct Results<'a> {
    /// The scenario that was run.
    pub scenario: &'a Scenario,
    /// All runs.
    pub runs: &'a Runs,
    /// Systems with a finished run, in the scenario's order.
    pub systems: Vec<SystemResult<'a>>,
}

/// Results of one system.
pub struct SystemResult<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its finished runs, by seed.
    pub runs: Vec<&'a Run>,
    /// Mean of each number over seeds.
    pub mean: Value,
    /// Half width of each number's 95 % confidence interval; null with one seed.
    pub ci95: Value,
}

impl<'a> Results<'a> {
    /// Whether all seeds gave the same runs; needs two seeds.
    pub(crate) fn undrawn(&self) -> bool {
        !self.systems.is_empty() && self.systems.iter().all(SystemResult::is_fixed)
    }

    /// Whether a difference of systems is exact without a test: nothing is random, or all seeds gave the same runs.
    pub(crate) fn is_exact(&self) -> bool {
        self.undrawn() || !self.scenario.is_drawn()
    }

    /// Aggregates the finished runs.
    pub fn new(scenario: &'a Scenario, runs: &'a Runs) -> Results<'a> {
        let systems = scenario.systems.iter().enumerate().filter_map(|(number, system)| {
            let runs: Vec<&Run> = runs.of(number).collect();
            if runs.is_empty() {
                return None;
            }
            let summaries: Vec<Value> = runs.iter().map(|run| whole_summary(run)).collect();
            let summaries: Vec<&Value> = summaries.iter().collect();
            Some(SystemResult {
                name: &system.name,
                mean: combine(&summaries, &|values| Some(Estimate::of(values).mean)),
                ci95: combine(&summaries, &|values| Estimate::of(values).ci95),
                runs,
            })
        });
        Results { scenario, runs, systems: systems.collect() }
    }

    /// Measured downloads in the form of a system's results: `ttfb_s` and `ttlb_s` by class.
    pub(crate) fn measured(&self) -> Option<Value> {
        let measured = self.scenario.inputs.compare.as_ref()?;
        let times = |pick: &dyn Fn(&Download) -> &Vec<f64>| -> Value {
            let of = measured.downloads.iter().filter(|download| !pick(download).is_empty());
            of.filter_map(|download| {
                let n = pick(download).len();
                let mut quantiles: Map<String, Value> = QUANTILES
                    .iter()
                    .filter(|(_, q)| supported(n as u64, *q))
                    .map(|(label, q)| ((*label).to_owned(), json!(quantile(pick(download), *q))))
                    .collect();
                quantiles.insert("count".into(), json!(n));
                Some((self.scenario.benchmark_class(download.bytes)?, Value::Object(quantiles)))
            })
            .collect()
        };
        Some(json!({ "ttfb_s": times(&|all| &all.ttfb_s), "ttlb_s": times(&|all| &all.ttlb_s) }))
    }

    /// Scores of a system against the measured downloads: of all of them, and of each half-year if known. The networks of
    /// all seeds are pooled.
    pub fn scores(&self, system: &SystemResult<'_>) -> Vec<(&'static str, Score)> {
        let pooled = |(part, measured)| (part, score(&system.runs, measured, self.scenario));
        self.measured_parts().into_iter().map(pooled).collect()
    }

    /// Scores of a system's single networks, in order of their seeds, for the parts of [`Results::scores`].
    ///
    /// Pooling cancels errors of opposite sign, so single networks have larger errors.
    pub fn scores_of_networks(&self, system: &SystemResult<'_>) -> Vec<(&'static str, Vec<Score>)> {
        let single =
            |measured| system.runs.iter().map(|run| score(&[*run], measured, self.scenario)).collect();
        self.measured_parts().into_iter().map(|(part, measured)| (part, single(measured))).collect()
    }

    /// The measured downloads: all of them, and each half-year if known.
    fn measured_parts(&self) -> Vec<(&'static str, &Measured)> {
        let inputs = &self.scenario.inputs;
        let Some(whole) = &inputs.compare else { return Vec::new() };
        let mut parts = vec![("all", whole)];
        if let Some([first, second]) = &inputs.compare_halves {
            parts.extend([("january-june", first), ("july-december", second)]);
        }
        parts
    }

    /// The largest value of a number over the systems, or zero.
    pub(crate) fn most(&self, path: &[&str]) -> f64 {
        self.systems.iter().filter_map(|system| system.number(path)).fold(0.0, f64::max)
    }

    /// One line with the load, scale, seeds and duration of a [tor] run. A warning follows if the network was idle, and the source of the measured downloads.
    pub fn conditions(&self) -> String {
        let Some(tor) = self.scenario.file.tor.as_ref().map(|tor| tor.get_ref()) else {
            return String::new();
        };
        let (busy, queue) =
            (self.most(&["utilisation", "network"]), self.most(&["queue_mean_cells_per_relay"]));
        let idle = if is_idle(busy, queue) {
            format!(
                "The network is nearly idle, so schedulers hardly matter (mean circuit queue: {} cells). ",
                format_number(queue)
            )
        } else {
            String::new()
        };
        let measured = &self.scenario.inputs.compare_source;
        let text = format!(
            "Load: relays use {:.0} % of their capacity at load factor {}; {} % of Tor, seeds {:?}, {} s. {idle}{measured}",
            100.0 * busy,
            format_number(tor.load),
            format_number(100.0 * tor.fraction),
            self.seeds(),
            self.scenario.duration().as_secs_f64()
        );
        text.trim_end().to_owned()
    }

    /// The `--json` document.
    pub fn document(&self) -> Value {
        let by_name = |pick: &dyn Fn(&SystemResult<'_>) -> Value| -> Value {
            self.systems.iter().map(|system| (system.name.to_owned(), pick(system))).collect()
        };
        let mut document = json!({
            "scenario": self.scenario.file.name,
            "version": VERSION,
            "duration_s": self.scenario.duration().as_secs_f64(),
            "warmup_s": self.scenario.warmup().as_secs_f64(),
            "seeds": self.seeds(),
            "systems": by_name(&|system| system.mean.clone()),
            "n": by_name(&|system| json!(system.runs.len())),
        });
        if self.seeds().len() > 1 {
            // Intervals and pairs need at least two seeds.
            document["ci95"] = by_name(&|system| system.ci95.clone());
            document["ratio_to_first_system"] = self.ratios();
            if self.systems.iter().any(|system| !system.lacking().is_empty()) {
                // These means are over fewer seeds than `n` says.
                document["n_of"] = by_name(&|system| Value::Object(system.lacking()));
            }
            document["per_seed"] = by_name(&|system| {
                system.runs.iter().map(|run| (run.seed.to_string(), whole_summary(run))).collect()
            });
        }
        if let Some(measured) = self.measured() {
            document["measured"] = measured;
        }
        if self.scenario.file.tor.is_some() {
            document["conditions"] = json!(self.conditions());
        }
        if !self.runs.missing.is_empty() {
            document["missing"] = self
                .runs
                .missing
                .iter()
                .map(|(system, seed)| json!({ "system": self.scenario.systems[*system].name, "seed": seed }))
                .collect();
        }
        document
    }

    /// The seeds with a finished run.
    pub fn seeds(&self) -> Vec<u64> {
        let mut seeds: Vec<u64> = self.runs.finished.iter().map(|run| run.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        seeds
    }

    /// Paired comparison: per seed, each system's numbers divided by the first system's on the same network.
    pub(crate) fn ratios(&self) -> Value {
        let Some((first, others)) = self.systems.split_first() else { return Value::Null };
        others
            .iter()
            .map(|system| {
                let ratios = flatten(&system.mean).into_keys().filter_map(|key| {
                    COMPARED.iter().any(|start| key.starts_with(start)).then_some(())?;
                    let path: Vec<&str> = key.split('.').collect();
                    let Estimate { n, mean, ci95 } = self.paired(system, first, &path)?;
                    Some((key.clone(), json!({ "mean": mean, "ci95": ci95, "n": n })))
                });
                (system.name.to_owned(), ratios.collect::<Value>())
            })
            .collect()
    }

    /// Mean ratio of a number between two systems, paired by network.
    ///
    /// `None` if the number is zero under `base` on one of the networks, unless both systems have zero there: a mean
    /// of the other networks' ratios would hide the largest difference.
    pub(crate) fn paired(
        &self,
        system: &SystemResult<'_>,
        base: &SystemResult<'_>,
        path: &[&str],
    ) -> Option<Estimate> {
        self.paired_ratios(system, base, path).map(|ratios| Estimate::of(&ratios))
    }

    /// The ratios of [`Results::paired`], one per network.
    pub(crate) fn paired_ratios(
        &self,
        system: &SystemResult<'_>,
        base: &SystemResult<'_>,
        path: &[&str],
    ) -> Option<Vec<f64>> {
        let ratios = self.pairs(system, base, path).map(|(value, other)| value / other);
        let ratios: Vec<f64> = ratios.filter(|ratio| !ratio.is_nan()).collect();
        let is_known = !ratios.is_empty() && ratios.iter().all(|ratio| ratio.is_finite());
        is_known.then_some(ratios)
    }

    /// Differences of a number between two systems, paired by network.
    pub(crate) fn differences(
        &self,
        system: &SystemResult<'_>,
        base: &SystemResult<'_>,
        path: &[&str],
    ) -> Vec<f64> {
        self.pairs(system, base, path).map(|(value, other)| value - other).collect()
    }

    /// A number of two systems on the same networks.
    fn pairs(
        &self,
        system: &SystemResult<'_>,
        base: &SystemResult<'_>,
        path: &[&str],
    ) -> impl Iterator<Item = (f64, f64)> {
        let by_seed: BTreeMap<u64, &Run> = base.runs.iter().map(|run| (run.seed, *run)).collect();
        system.runs.iter().filter_map(move |run| {
            let other = by_seed.get(&run.seed)?;
            let value = |run: &Run| look_up(&run.metrics.summary, path);
            Some((value(run)?, value(other)?))
        })
    }
}

/// Prefixes of the metrics with reported ratios.
const COMPARED: [&str; 8] = [
    "throughput_total",
    "throughput_by_class",
    "latency_",
    "backlog_mean",
    "fairness_index",
    "connect_s",
    "ttfb_s",
    "ttlb_s",
];

impl SystemResult<'_> {
    /// The mean of a number over the runs that have it, by its path of keys.
    pub(crate) fn number(&self, path: &[&str]) -> Option<f64> {
        look_up(&self.mean, path)
    }

    /// Number of runs that have a number. A run in which all downloads failed lacks download times.
    fn n_of(&self, path: &[&str]) -> usize {
        let clocked = path.first().is_some_and(|key| CLOCKED.contains(key));
        self.runs.iter().filter(|run| clocked || look_up(&run.metrics.summary, path).is_some()).count()
    }

    /// ` (n = 3)` if only three runs have a number, and none if all have it: then the column's n holds.
    pub(crate) fn fewer(&self, path: &[&str]) -> String {
        match self.n_of(path) {
            n if n < self.runs.len() => format!(" (n = {n})"),
            _ => String::new(),
        }
    }

    /// The numbers that some runs lack, with the number of runs that have them.
    fn lacking(&self) -> Map<String, Value> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for run in &self.runs {
            flatten(&run.metrics.summary).into_keys().for_each(|key| *counts.entry(key).or_default() += 1);
        }
        counts.retain(|_, count| *count < self.runs.len());
        counts.into_iter().map(|(key, count)| (key, json!(count))).collect()
    }

    /// The runs without repetitions: several seeds of a scenario without randomness give one run.
    pub(crate) fn distinct(&self) -> impl Iterator<Item = &'_ Run> {
        let mut seen = BTreeSet::new();
        self.runs.iter().copied().filter(move |run| seen.insert(run.digest))
    }

    /// Half width of a number's confidence interval; `None` if all runs are the same one.
    pub(crate) fn half_width(&self, path: &[&str]) -> Option<f64> {
        if self.is_fixed() { None } else { look_up(&self.ci95, path) }
    }

    /// Whether several seeds gave the same run.
    fn is_fixed(&self) -> bool {
        self.runs.len() > 1 && self.runs.iter().all(|run| run.digest == self.runs[0].digest)
    }

    /// Merges a histogram over all seeds.
    pub(crate) fn merged(&self, pick: impl Fn(&Run) -> &Histogram) -> Histogram {
        let mut all = Histogram::default();
        self.runs.iter().for_each(|run| all.merge(pick(run)));
        all
    }

    /// Merges the waits at one hop over all seeds.
    pub(crate) fn anatomy(&self, hop: usize) -> Anatomy {
        let mut all = Anatomy::default();
        self.runs.iter().for_each(|run| all.merge(&run.metrics.anatomy[hop]));
        all
    }
}

pub(crate) fn look_up(value: &Value, path: &[&str]) -> Option<f64> {
    path.iter().try_fold(value, |value, key| value.get(key))?.as_f64()
}

/// Keys of [`whole_summary`] that depend on clocks.
pub(crate) const CLOCKED: [&str; 3] = ["wall_s", "cpu_s", "cells_per_cpu_s"];

/// A run's summary, with its wall-clock time, processor time and digest.
pub(crate) fn whole_summary(run: &Run) -> Value {
    let mut summary = run.metrics.summary.clone();
    let cells = summary["cells_delivered"].as_f64().unwrap_or(0.0);
    summary["wall_s"] = json!(run.wall_s);
    summary["cpu_s"] = json!(run.cpu_s);
    summary["cells_per_cpu_s"] = json!(cells / run.cpu_s.max(1e-9));
    summary["digest"] = json!(format!("{:016x}", run.digest));
    summary
}

/// Combines values of the same structure.
///
/// Numbers go through `pick`, objects are combined key by key. Other values stay if all are equal, and become a list
/// if they differ.
pub(crate) fn combine(values: &[&Value], pick: &dyn Fn(&[f64]) -> Option<f64>) -> Value {
    let Some(first) = values.first() else { return Value::Null };
    match first {
        Value::Object(_) => {
            let mut keys: Vec<&String> =
                values.iter().filter_map(|value| value.as_object()).flat_map(Map::keys).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.into_iter()
                .map(|key| {
                    let inner: Vec<&Value> = values.iter().filter_map(|value| value.get(key)).collect();
                    (key.clone(), combine(&inner, pick))
                })
                .collect()
        }
        Value::Number(_) => {
            let numbers: Vec<f64> = values.iter().filter_map(|value| value.as_f64()).collect();
            // With one run, counts stay whole numbers.
            match (values.len(), pick(&numbers)) {
                (1, Some(_)) => (*first).clone(),
                (_, picked) => json!(picked),
            }
        }
        other if values.iter().all(|value| value == first) => (*other).clone(),
        _ => Value::Array(values.iter().map(|value| (*value).clone()).collect()),
    }
}

/// Every number of a value by its dotted path.
pub fn flatten(value: &Value) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    walk("", value, &mut |path, leaf| {
        if let Some(number) = leaf.as_f64() {
            all.insert(path.to_owned(), number);
        }
    });
    all
}

/// Every leaf of a value by its dotted path, as text. Entries of lists are addressed by their names, as in `--set`.
pub fn flatten_text(value: &Value) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    walk("", &by_name(value), &mut |path, leaf| {
        all.insert(path.to_owned(), leaf.as_str().map_or_else(|| leaf.to_string(), str::to_owned));
    });
    all
}

/// Replaces lists of tables that have names by tables with these names as keys.
fn by_name(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, inner)| (key.clone(), by_name(inner))).collect(),
        Value::Array(list) => {
            let name = |entry: &Value| entry.get("name").and_then(Value::as_str).map(str::to_owned);
            let named: Option<Map<String, Value>> =
                list.iter().map(|entry| Some((name(entry)?, by_name(entry)))).collect();
            // A list stays a list if names repeat or are missing.
            match named.filter(|named| !list.is_empty() && named.len() == list.len()) {
                Some(named) => Value::Object(named),
                None => value.clone(),
            }
        }
        other => other.clone(),
    }
}

/// A difference of two values in a line: long values are cut.
pub fn brief(value: &str) -> String {
    const MOST: usize = 60;
    match value.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}...", &value[..at]),
        None => value.to_owned(),
    }
}

/// Calls `leaf` with the path and value of everything that is not an object.
fn walk(prefix: &str, value: &Value, leaf: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                walk(&path, inner, leaf);
            }
        }
        other => leaf(prefix, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_combined_where_they_are() {
        let (a, b) = (json!({"x": 1, "y": {"z": 2.0}, "d": "aa"}), json!({"x": 3, "y": {"w": 5}, "d": "bb"}));
        let mean = combine(&[&a, &b], &|values| Some(Estimate::of(values).mean));
        assert_eq!(mean, json!({"x": 2.0, "y": {"z": 2.0, "w": 5}, "d": ["aa", "bb"]}));
        let one = combine(&[&a], &|values| Estimate::of(values).ci95);
        assert_eq!(one["x"], Value::Null);
        assert_eq!(flatten(&a), [("x".to_owned(), 1.0), ("y.z".to_owned(), 2.0)].into());
    }

    #[test]
    fn single_networks_have_a_score_each_and_an_interval_between_them() {
        struct Unwatched;
        impl crate::monitor::Monitor for Unwatched {}
        let text = "duration = \"60 s\"\nwarmup = \"1 s\"\nsystem = [{ name = \"vanilla\" }]\nrelay = [\n\
            { name = \"guard\", link = \"50 Mbit/s\" },\n{ name = \"middle\", link = \"50 Mbit/s\" },\n\
            { name = \"exit\", link = \"50 Mbit/s\" } ]\n[[user]]\nname = \"benchmark\"\ncount = 40\n\
            traffic = \"benchmark\"\nstart = [\"1 s\", \"40 s\"]\npath = [\"guard\", \"middle\", \"exit\"]\n";
        let source = crate::input::SourceFile { file: "x.toml".into(), text: text.into() };
        let mut scenario = Scenario::parse(source, Default::default(), &[]).unwrap();
        let ttlb_s = (1..=40).map(|value| f64::from(value) / 20.0).collect();
        let downloads = vec![Download { bytes: 50 << 10, ttfb_s: Vec::new(), ttlb_s }];
        let measured = Measured { downloads, ..Measured::default() };
        scenario.inputs.compare = Some(measured.clone());
        let runs = crate::runs::run_all(&scenario, 3, &Unwatched).unwrap();
        let results = Results::new(&scenario, &runs);
        let system = &results.systems[0];
        let (part, networks) = results.scores_of_networks(system).swap_remove(0);
        let [all, downloads] = Score::errors(&networks);
        let errors = system.runs.iter().map(|run| score(&[*run], &measured, &scenario).error().unwrap());
        assert_eq!((part, all, downloads), ("all", Estimate::of(&errors.collect::<Vec<_>>()), all));
        assert!(all.n == 3 && all.ci95.unwrap() > 0.0, "{all:?}");
        let pooled = results.scores(system)[0].1.error().unwrap();
        assert!(pooled <= all.mean + 1e-9, "pooling cancels errors: {pooled} against {all:?}");
        let own =
            format!("{text}[traffic.benchmark]\nrequests = [{{ size = \"50 KiB\" }}]\npause = \"1 s\"\n");
        let source = crate::input::SourceFile { file: "x.toml".into(), text: own };
        let mut scenario = Scenario::parse(source, Default::default(), &[]).unwrap();
        scenario.inputs.compare = Some(measured);
        let runs = crate::runs::run_all(&scenario, 1, &Unwatched).unwrap();
        let results = Results::new(&scenario, &runs);
        let score = &results.scores(&results.systems[0])[0].1;
        assert_eq!(score.compared.first().map(|found| found.name), Some("50KiB"), "a class with one size");
    }
}
