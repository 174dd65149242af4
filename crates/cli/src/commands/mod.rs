//! The subcommands; each is a file or a folder.

mod archive;
mod client;
mod directory;
#[cfg(test)]
mod documented;
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

/// Simulate, measure and run traffic control for onion-routed overlays.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    logs: Logs,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Sweep(sweep::SweepArgs),
    Runs(runs::RunsArgs),
    Export(export::ExportArgs),
    Import(import::ImportArgs),
    More(more::MoreArgs),
    Score(score::ScoreArgs),
    Reproduce(reproduce::ReproduceArgs),
    Scoreboard(scoreboard::ScoreboardArgs),
    Flashflow(flashflow::Arguments),
    Overlay(overlay::OverlayArgs),
    Relay(relay::RelayArgs),
    Client(client::ClientArgs),
    Directory(directory::DirectoryArgs),
    Predictor(predictor::PredictorArgs),
    Fairness(fairness::FairnessArgs),
    Keys(keys::KeysArgs),
    Stream(stream::StreamArgs),
    Archive(archive::ArchiveArgs),
    Manual(manual::ManualArgs),
}

impl Cli {
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
            Command::Manual(arguments) => manual::main(&arguments, <Cli as clap::CommandFactory>::command()),
        }
    }
}
