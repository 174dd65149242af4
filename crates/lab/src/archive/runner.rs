//! The scoreboard's runner `archive`: the figures of section 3 for an archive in the data folder.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::collect::Collected;
use super::{analyse, tables};
use crate::monitor::Monitor;
use crate::results::flatten;
use crate::scoreboard::experiment::{Experiment, Scale};
use crate::scoreboard::{Measured, RunError};

/// `[parameters]` of the runner.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ArchiveExperiment {
    /// Path of the archive, relative to the data folder.
    archive: PathBuf,
}

/// Analyses the archive; every number of `tidegate archive --json` is a quantity.
///
/// # Errors
/// If the archive cannot be read.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: ArchiveExperiment = experiment.parameters(scale).map_err(RunError::Input)?;
    let archive = experiment.data.join(parameters.archive);
    let work = std::env::temp_dir().join(format!("tidegate-archive-{}", std::process::id()));
    let measured = measure(&archive, &work, monitor);
    let _ = std::fs::remove_dir_all(&work);
    measured
}

fn measure(archive: &Path, work: &Path, monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let mut collected = Collected::open(work).map_err(RunError::Input)?;
    let finished = collected.collect(&[archive.to_owned()], monitor).map_err(RunError::Input)?;
    let analysis = if finished { analyse(&collected, monitor).map_err(RunError::Input)? } else { None };
    let analysis = analysis.ok_or(RunError::Stopped)?;
    let mut measured = Measured::default();
    for (name, value) in flatten(&tables::summary(&collected, &analysis)) {
        measured.push(name, value);
    }
    Ok(measured)
}
