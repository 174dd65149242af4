//! `tidegate run`: simulate a scenario.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_control::random::Seed;
use tidegate_lab::network;
use tidegate_lab::scenario::Scenario;

use crate::Failure;

/// Simulate a scenario: compare its systems on the same networks
#[derive(clap::Args)]
pub struct Arguments {
    /// The scenario file
    scenario: PathBuf,
    /// Replace a value of the scenario, as TOML: --set 'duration = "30 s"'
    #[arg(long = "set", value_name = "KEY = VALUE")]
    overrides: Vec<String>,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let scenario = Scenario::load(&arguments.scenario, &arguments.overrides)?;
    let network = network::build(&scenario, Seed::root(scenario.file.seed))?;
    println!("{} hosts, {} users", network.plan.hosts.len(), network.users.len());
    Ok(ExitCode::SUCCESS)
}
