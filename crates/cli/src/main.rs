//! `tidegate`: simulate, measure and run traffic control for onion-routed overlays.
//!
//! One file per subcommand. Exit codes: 0 done, 1 failed, 2 the input is wrong, 130 stopped by Ctrl-C,
//! 141 when nobody reads standard output any more.

mod archive;
mod client;
mod console;
mod directory;
mod fairness;
mod flashflow;
mod flashflow_compare;
mod flashflow_demo;
mod flashflow_loopback;
mod flashflow_schedule;
mod keys;
mod more;
mod more_demo;
mod more_directory;
mod more_hidden;
mod more_live;
mod more_processes;
mod more_streams;
mod overlay;
mod overlay_demo;
mod overlay_tornet;
mod predictor;
mod predictor_open_loop;
mod relay;
mod reproduce;
mod run;
mod runs;
mod score;
mod scoreboard;
mod stream;
mod stream_demo;
mod sweep;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Traffic control for onion-routed overlays: simulate it, measure it, run it.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Arguments),
    Sweep(sweep::Arguments),
    Runs(runs::Arguments),
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
}

fn main() -> ExitCode {
    console::end_quietly_on_closed_pipe();
    let result = match Arguments::parse().command {
        Command::Run(arguments) => run::main(arguments),
        Command::Sweep(arguments) => sweep::main(arguments),
        Command::Runs(arguments) => runs::main(arguments),
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
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{} {failure}", console::red("error:"));
            ExitCode::from(failure.code())
        }
    }
}

/// Why a subcommand ended early.
#[derive(Debug)]
pub enum Failure {
    /// The user's input is wrong: exit code 2.
    Input(tidegate_lab::input::InputError),
    /// Something else went wrong: exit code 1.
    Other(String),
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Failure::Input(_) => 2,
            Failure::Other(_) => 1,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Input(error) => error.fmt(f),
            Failure::Other(message) => f.write_str(message),
        }
    }
}

impl From<tidegate_lab::input::InputError> for Failure {
    fn from(error: tidegate_lab::input::InputError) -> Failure {
        Failure::Input(error)
    }
}
