//! `tidegate run`: simulate a scenario.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_lab::runs;
use tidegate_lab::scenario::Scenario;

use crate::Failure;
use crate::console::Console;

/// Simulate a scenario: compare its systems on the same networks
#[derive(clap::Args)]
pub struct Arguments {
    /// The scenario file
    scenario: PathBuf,
    /// Replace a value of the scenario, as TOML: --set 'duration = "30 s"'
    #[arg(long = "set", value_name = "KEY = VALUE")]
    overrides: Vec<String>,
    /// Number of seeds
    #[arg(long, default_value_t = 1)]
    seeds: u32,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let scenario = Scenario::load(&arguments.scenario, &arguments.overrides)?;
    let console = Console::new(scenario.systems.len() * arguments.seeds as usize, 0);
    let runs = runs::run_all(&scenario, arguments.seeds, &console)?;
    console.finish();
    for run in &runs.finished {
        println!("{} {:#} {:x} {} {}", run.system, run.metrics.summary, run.digest, run.wall_s, run.cpu_s);
    }
    Ok(ExitCode::SUCCESS)
}
