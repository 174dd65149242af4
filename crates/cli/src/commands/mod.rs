//! The subcommands: a file or folder each.

mod archive;
mod client;
mod directory;
mod export;
mod fairness;
mod flashflow;
mod import;
mod keys;
mod manual;
pub mod more;
mod overlay;
pub mod predictor;
mod relay;
mod reproduce;
mod run;
mod runs;
mod score;
mod scoreboard;
mod stream;
mod sweep;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;
use crate::logs::Logs;

/// Traffic control for onion-routed overlays: simulate it, measure it, run it.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    logs: Logs,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Sweep(sweep::Arguments),
    Runs(runs::Arguments),
    Export(export::Arguments),
    Import(import::Arguments),
    More(more::Arguments),
    Score(score::Arguments),
    Reproduce(reproduce::Arguments),
    Scoreboard(scoreboard::Arguments),
    Flashflow(flashflow::Arguments),
    Overlay(overlay::Arguments),
    Relay(relay::Arguments),
    Client(client::Arguments),
    Directory(directory::Arguments),
    Predictor(predictor::Arguments),
    Fairness(fairness::Arguments),
    Keys(keys::Arguments),
    Stream(stream::Arguments),
    Archive(archive::Arguments),
    Manual(manual::Arguments),
}

impl Arguments {
    /// Runs the subcommand.
    pub fn run(self) -> Result<ExitCode, Failure> {
        self.logs.start();
        match self.command {
            Command::Run(arguments) => run::main(arguments),
            Command::Sweep(arguments) => sweep::main(arguments),
            Command::Runs(arguments) => runs::main(arguments),
            Command::Export(arguments) => export::main(arguments),
            Command::Import(arguments) => import::main(&arguments),
            Command::More(arguments) => more::main(arguments),
            Command::Score(arguments) => score::main(arguments),
            Command::Reproduce(arguments) => reproduce::main(arguments),
            Command::Scoreboard(arguments) => scoreboard::main(arguments),
            Command::Flashflow(arguments) => flashflow::main(arguments),
            Command::Overlay(arguments) => overlay::main(arguments),
            Command::Relay(arguments) => relay::main(&arguments),
            Command::Client(arguments) => client::main(&arguments),
            Command::Directory(arguments) => directory::main(&arguments),
            Command::Predictor(arguments) => predictor::main(arguments),
            Command::Fairness(arguments) => fairness::main(arguments),
            Command::Keys(arguments) => keys::main(arguments),
            Command::Stream(arguments) => stream::main(arguments),
            Command::Archive(arguments) => archive::main(arguments),
            Command::Manual(arguments) => {
                manual::main(&arguments, <Arguments as clap::CommandFactory>::command())
            }
        }
    }
}
