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

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::metrics::RelayRow;
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
pub fn run(experiment: &Experiment, scale: Scale, monitor: &dyn Monitor) -> Result<Measured, RunError> {
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
        }
    }
    Ok(measured)
}

/// The quantities of a run.
fn busy(run: &Run) -> [(&'static str, f64); 6] {
    let rows = &run.metrics.relays;
    let capacity = |row: &RelayRow| row.about.capacity_bytes_per_s.unwrap_or(f64::INFINITY);
    let busy: Vec<&RelayRow> = rows.iter().filter(|row| row.sent_per_s() > BUSY * capacity(row)).collect();
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::input::SourceFile;
    use crate::runs::run_once;
    use crate::scenario::Scenario;

    #[test]
    fn the_bottleneck_is_the_busy_relay() {
        struct Unwatched;
        impl Monitor for Unwatched {}
        let run = |middle: &str| {
            let text = format!(
                "duration = \"20 s\"\nwarmup = \"5 s\"\nsystem = [{{ name = \"vanilla\" }}]\nrelay = [\n\
                 {{ name = \"guard\", link = \"20 Mbit/s\" }},\n{{ name = \"middle\", link = \"{middle}\" }},\n\
                 {{ name = \"exit\", link = \"20 Mbit/s\" }} ]\n[[user]]\nname = \"bulk\"\ncount = 3\n\
                 traffic = \"bulk\"\npath = [\"guard\", \"middle\", \"exit\"]\n"
            );
            let source = SourceFile { file: "x.toml".into(), text };
            let scenario = Scenario::parse(source, PathBuf::new(), &[]).unwrap();
            BTreeMap::from(busy(&run_once(&scenario, 0, 1, &Unwatched).unwrap().unwrap()))
        };
        let found = run("2 Mbit/s");
        assert_eq!((found["relays"], found["weight"]), (1.0, 1.0 / 3.0), "all have the same weight");
        assert!((found["capacity"] - 2.0 / 42.0).abs() < 1e-9 && (found["ratio"] - 7.0).abs() < 1e-9);
        assert!((0.0..=1.0).contains(&found["queued"]) && found["queue_cells"] >= 0.0, "{found:?}");
        let idle = run("100 kbit/s\", up = \"20 Mbit/s");
        assert_eq!((idle["relays"], idle["weight"]), (0.0, 0.0), "a slow downlink leaves the uplinks idle");
        assert!(idle["ratio"].is_nan());
    }
}
