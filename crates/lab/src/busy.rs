//! The runner `busy-relays`: how much weight the relays hold that are busy almost all the time.
//!
//! ```toml
//! runner = "busy-relays"
//! [parameters]
//! seeds = 3
//! [parameters.scenarios]
//! network = "network.toml"
//! ```
//!
//! Quantities of each run: `<scenario>.<system>.relays` is the number of relays that send more than 90 % of their capacity
//! after the warm-up, `weight` their share of the weight by which clients select, `capacity` their share of the
//! capacity, `queue_cells` the mean number of cells in the circuit queues of one of them, `queued` their share of the
//! queued cells of all relays, and `ratio` their share of the weight over their share of the capacity.
//! `queue_cells` and `ratio` are missing in runs without busy relays.
//!
//! `slow.<class>` is the share of the slowest tenth of a class of downloads with a busy relay on the path, `other.<class>` that
//! of the remaining ones. Classes with fewer than 20 downloads that ended are left out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::metrics::RelayRow;
use crate::metrics::transfers::Record;
use crate::monitor::Monitor;
use crate::runs::{Run, run_tasks, tasks};
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BusyExperiment {
    scenarios: BTreeMap<String, ScenarioEntry>,
    #[serde(default)]
    overrides: Vec<String>,
    /// Number of seeds.
    seeds: u32,
}

/// Share of its capacity that a busy relay sends at least.
const BUSY: f64 = 0.9;

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for scenarios that cannot be run; [`RunError::Stopped`] if the user stopped.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: BusyExperiment = experiment.parameters(scale)?;
    let mut measured = Measured::default();
    for (name, entry) in &parameters.scenarios {
        let scenario = entry.load(experiment, &parameters.overrides)?;
        scenario.inputs.notices.iter().for_each(|notice| monitor.notice(notice));
        let runs = run_tasks(&scenario, tasks(&scenario, parameters.seeds), monitor, &|_| Ok(()))?;
        if !runs.missing.is_empty() {
            return Err(RunError::Stopped);
        }
        for run in &runs.finished {
            let system = &scenario.systems[run.system].name;
            for (quantity, value) in busy(run) {
                measured.push(format!("{name}.{system}.{quantity}"), value);
            }
            for (quantity, value) in paths(run) {
                measured.push(format!("{name}.{system}.{quantity}"), value);
            }
        }
    }
    Ok(measured)
}

/// Smallest number of downloads with a meaningful slowest tenth.
const LEAST: usize = 20;

fn capacity(row: &RelayRow) -> f64 {
    row.about.capacity_bytes_per_s.unwrap_or(f64::INFINITY)
}

fn is_busy(row: &&RelayRow) -> bool {
    row.sent_per_s() > BUSY * capacity(row)
}

/// The quantities of a run that describe its busy relays.
fn busy(run: &Run) -> [(&'static str, f64); 6] {
    let rows = &run.metrics.relays;
    let busy: Vec<&RelayRow> = rows.iter().filter(is_busy).collect();
    let share = |of: &dyn Fn(&RelayRow) -> f64| {
        busy.iter().map(|row| of(row)).sum::<f64>() / rows.iter().map(of).sum::<f64>()
    };
    let queue = |row: &RelayRow| row.means()[0].1;
    let (weight, capacity) = (share(&|row| row.about.weight), share(&capacity));
    [
        ("relays", busy.len() as f64),
        ("weight", weight),
        ("capacity", capacity),
        ("queue_cells", busy.iter().map(|row| queue(row)).sum::<f64>() / busy.len() as f64),
        ("queued", share(&queue)),
        ("ratio", weight / capacity),
    ]
}

/// The shares of slow and of other downloads with a busy relay on the path, by class.
fn paths(run: &Run) -> Vec<(String, f64)> {
    let busy: BTreeSet<u32> = run.metrics.relays.iter().filter(is_busy).map(|row| row.host).collect();
    let share = |records: &[&Record]| {
        let through = |record: &&&Record| record.path.iter().any(|relay| busy.contains(relay));
        records.iter().filter(through).count() as f64 / records.len() as f64
    };
    let transfers = &run.metrics.transfers;
    let mut all = Vec::new();
    for (number, class) in transfers.classes.iter().enumerate() {
        let ended = transfers.records.iter().filter(|record| record.class == number && record.last.is_some());
        let mut ended: Vec<&Record> = ended.collect();
        if ended.len() >= LEAST {
            ended.sort_by_key(|record| record.last);
            let (other, slow) = ended.split_at(ended.len() - ended.len() / 10);
            all.push((format!("slow.{}", class.name), share(slow)));
            all.push((format!("other.{}", class.name), share(other)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::input::SourceFile;
    use crate::runs::run_once;
    use crate::scenario::Scenario;

    struct Unwatched;
    impl Monitor for Unwatched {}

    /// A run of 60 s over three relays, with 20 Mbit/s at the guard and the exit.
    fn run(middle: &str, users: &str) -> Run {
        let text = format!(
            "duration = \"60 s\"\nwarmup = \"5 s\"\nsystem = [{{ name = \"vanilla\" }}]\nrelay = [\n\
             {{ name = \"guard\", link = \"20 Mbit/s\" }},\n{{ name = \"middle\", link = \"{middle}\" }},\n\
             {{ name = \"other\", link = \"20 Mbit/s\" }},\n{{ name = \"exit\", link = \"20 Mbit/s\" }} ]\n\
             {users}"
        );
        let source = SourceFile { file: "x.toml".into(), text };
        let scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
        run_once(&scenario, 0, 1, &Unwatched).unwrap().unwrap()
    }

    fn users(name: &str, traffic: &str, count: u32, middle: &str) -> String {
        format!(
            "[[user]]\nname = \"{name}\"\ncount = {count}\ntraffic = \"{traffic}\"\n\
             path = [\"guard\", \"{middle}\", \"exit\"]\n"
        )
    }

    #[test]
    fn the_bottleneck_is_the_busy_relay() {
        let found = BTreeMap::from(busy(&run("2 Mbit/s", &users("bulk", "bulk", 3, "middle"))));
        assert_eq!((found["relays"], found["weight"]), (1.0, 0.25), "all have the same weight");
        assert!((found["capacity"] - 2.0 / 62.0).abs() < 1e-9 && (found["ratio"] - 7.75).abs() < 1e-9);
        assert!((0.0..=1.0).contains(&found["queued"]) && found["queue_cells"] >= 0.0, "{found:?}");
        let downlink = "500 kbit/s\", up = \"20 Mbit/s";
        let same = BTreeMap::from(busy(&run(downlink, &users("bulk", "bulk", 3, "middle"))));
        assert_eq!(same["relays"], 1.0, "the capacity of a relay is that of its slower direction");
        let idle = BTreeMap::from(busy(&run("20 Mbit/s", &users("web", "web", 1, "middle"))));
        assert_eq!((idle["relays"], idle["weight"]), (0.0, 0.0));
        assert!(idle["ratio"].is_nan());
    }

    #[test]
    fn slow_downloads_pass_the_busy_relay() {
        let bulk = users("bulk", "bulk", 3, "middle");
        let web = users("web", "web", 2, "middle") + &users("quick", "web", 30, "other");
        let found: BTreeMap<String, f64> = paths(&run("2 Mbit/s", &(bulk + &web))).into_iter().collect();
        assert!(found["slow.web"] > found["other.web"], "{found:?}");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["other.web", "slow.web"], "bulk downloads do not end");
    }
}
