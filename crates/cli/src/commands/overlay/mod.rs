//! `tidegate overlay`: an overlay on this machine, of our own relays alone or among stock tor's.

mod crowd;
mod demo;
mod download;
mod own;
mod soak;
mod tornet;

use std::process::ExitCode;

use crate::failure::Failure;

/// Run an overlay on this machine (see docs/live.md)
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Crowd(crowd::Arguments),
    Demo(demo::Arguments),
    Soak(soak::Arguments),
    Tornet(tornet::Arguments),
}

/// Runs it.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.what {
        What::Crowd(arguments) => crowd::main(&arguments),
        What::Demo(arguments) => demo::main(&arguments),
        What::Soak(arguments) => soak::main(&arguments),
        What::Tornet(arguments) => tornet::main(&arguments),
    }
}
