//! The runner `scenario`: runs scenario files over seeds and offers every metric by its path.

use serde::Deserialize;

use super::{Experiment, Measured, RunError, Scale};
use crate::monitor::Monitor;

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Parameters {
    /// Scenario files by name: quantities are called `<name>.<system>.<metric>`.
    pub scenarios: std::collections::BTreeMap<String, String>,
    /// Overrides of every scenario, TOML text.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// Number of seeds.
    #[serde(default = "one")]
    pub seeds: u32,
}

fn one() -> u32 {
    1
}

/// Measures an experiment that is made of scenario files.
pub fn run(experiment: &Experiment, scale: Scale, _monitor: &dyn Monitor) -> Result<Measured, RunError> {
    let parameters: Parameters = experiment.parameters(scale)?;
    Err(RunError::Unavailable(format!("{} scenarios, no simulator yet", parameters.scenarios.len())))
}
