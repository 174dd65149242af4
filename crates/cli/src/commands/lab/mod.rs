//! `tidegate lab`: experiments with other software on emulated hosts.

#[cfg(target_os = "linux")]
mod effect;
mod fragment;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod network;
mod predict;
mod real;
mod schedule;
mod topology;

use std::process::ExitCode;

pub use predict::{Model, simulate};
pub use schedule::METRICS;
pub use topology::Topology;

use crate::failure::Failure;

/// Measure what an option changes on stock tor in an emulated network (see docs/real-tor.md)
#[derive(clap::Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Real(real::RealArgs),
}

/// Runs the subcommand.
pub fn main(arguments: LabArgs) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Real(arguments) => real::main(&arguments),
    }
}
