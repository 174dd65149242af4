//! `tidegate overlay`: test overlays on this machine, of Tidegate relays or mixed with stock tor.

mod crowd;
mod demo;
mod download;
mod matrix;
pub mod measured;
mod onion_service;
mod own;
mod soak;
mod threads;
mod tor_client;
mod tornet;
mod tornet_measured;
mod tornet_soak;

use std::process::ExitCode;

pub use download::{Origin, connect_over, read_on};
pub use tor_client::start_client;

use crate::failure::Failure;

/// Run a test overlay on this machine (see docs/live.md)
#[derive(clap::Args)]
pub struct OverlayArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Crowd(crowd::CrowdArgs),
    Demo(demo::OverlayDemoArgs),
    Matrix(matrix::MatrixArgs),
    Soak(soak::SoakArgs),
    Threads(threads::ThreadsArgs),
    Tornet(tornet::TornetArgs),
}

/// Runs the subcommand.
pub fn main(arguments: OverlayArgs) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Crowd(arguments) => crowd::main(&arguments),
        Command::Demo(arguments) => demo::main(&arguments),
        Command::Matrix(arguments) => matrix::main(&arguments),
        Command::Soak(arguments) => soak::main(&arguments),
        Command::Threads(arguments) => threads::main(&arguments),
        Command::Tornet(arguments) => tornet::main(&arguments),
    }
}
