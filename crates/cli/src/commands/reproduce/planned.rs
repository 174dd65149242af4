//! Experiments with their checked rows and runners.

use tidegate_lab::scoreboard::experiment::PublishedRow;
use tidegate_lab::scoreboard::{Dependence, Experiment, Runner, record};

use crate::console::COMMIT;
use crate::failure::Failure;
use crate::runners;

/// An experiment that can be run.
pub struct PlannedExperiment {
    /// The experiment.
    pub experiment: Experiment,
    /// Its checked rows.
    pub rows: Vec<PublishedRow>,
    /// The inputs that its values depend on.
    pub dependence: Dependence,
    /// The runner that measures it.
    pub runner: Runner,
}

/// Checks every experiment before the first one runs, because a run can take hours.
pub fn plan(experiments: Vec<Experiment>, record: bool) -> Result<Vec<PlannedExperiment>, Failure> {
    let known: Vec<&str> = runners::all().map(|(name, ..)| *name).collect();
    let mut planned = Vec::new();
    for experiment in experiments {
        let name = experiment.file.runner.get_ref();
        let found = runners::all().find(|(known, ..)| known == name);
        let (_, dependence, runner) = *found.ok_or_else(|| experiment.unknown_runner(&known))?;
        if record && COMMIT == "unknown" {
            return Err(Failure::Other(
                "this build names no commit, and a record must; build in a git repository".into(),
            ));
        }
        if record {
            record::read(&experiment.folder)?;
        }
        let rows = experiment.rows()?;
        planned.push(PlannedExperiment { experiment, rows, dependence, runner });
    }
    Ok(planned)
}
