//! The subcommands; each is a file or a folder.

mod answer;
mod archive;
mod artifact;
#[cfg(feature = "live")]
mod client;
#[cfg(feature = "live")]
mod directory;
#[cfg(all(test, feature = "live"))]
mod documented;
mod export;
mod exposure;
mod fairness;
#[cfg(feature = "live")]
mod flashflow;
mod import;
mod keys;
#[cfg(feature = "live")]
pub mod lab;
mod live;
mod manual;
#[cfg(feature = "live")]
pub mod more;
#[cfg(feature = "live")]
pub mod overlay;
pub mod predictor;
#[cfg(feature = "live")]
mod relay;
mod reproduce;
mod run;
mod runs;
mod score;
mod scoreboard;
#[cfg(feature = "live")]
mod stream;
mod sweep;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::failure::Failure;
#[cfg(feature = "live")]
use crate::logs::Logs;
#[cfg(feature = "live")]
use crate::owned;

/// Simulate, measure and run traffic control for onion-routed overlays.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[cfg(feature = "live")]
    #[command(flatten)]
    logs: Logs,
    /// Exit when the parent process exits
    #[cfg(feature = "live")]
    #[arg(long, global = true, hide = true)]
    owned: bool,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Sweep(sweep::SweepArgs),
    Runs(runs::RunsArgs),
    Answer(answer::AnswerArgs),
    Export(export::ExportArgs),
    Exposure(exposure::ExposureArgs),
    Import(import::ImportArgs),
    #[command(flatten)]
    Live(live::LiveCommand),
    Score(score::ScoreArgs),
    Reproduce(reproduce::ReproduceArgs),
    Scoreboard(scoreboard::ScoreboardArgs),
    Predictor(predictor::PredictorArgs),
    Fairness(fairness::FairnessArgs),
    Keys(keys::KeysArgs),
    Archive(archive::ArchiveArgs),
    Manual(manual::ManualArgs),
}

/// Subcommands without roles on sockets. Their help does not show the options of logs.
#[cfg(feature = "live")]
const WITHOUT_LOGS: [&str; 15] = [
    "run",
    "sweep",
    "runs",
    "answer",
    "export",
    "exposure",
    "import",
    "score",
    "reproduce",
    "scoreboard",
    "predictor",
    "fairness",
    "keys",
    "archive",
    "manual",
];

impl Cli {
    /// Parses the command line; prints help or an error and exits where clap does.
    pub fn read() -> Cli {
        let matches = Cli::fitting().get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// The command line, with help that shows each subcommand the options that it uses.
    fn fitting() -> clap::Command {
        let root = Cli::command();
        #[cfg(feature = "live")]
        let root = {
            // A subcommand's own option takes the place of the global one of the same name.
            let logs: Vec<clap::Arg> = root
                .get_arguments()
                .filter(|option| option.is_global_set())
                .map(|option| option.clone().hide(true))
                .collect();
            root.mut_subcommands(|inner| {
                if WITHOUT_LOGS.contains(&inner.get_name()) { inner.args(logs.clone()) } else { inner }
            })
        };
        root
    }

    /// Runs the subcommand.
    pub fn run(self) -> Result<ExitCode, Failure> {
        #[cfg(feature = "live")]
        {
            self.logs.start();
            if self.owned {
                owned::end_with_parent();
            }
        }
        match self.command {
            Command::Run(arguments) => run::main(arguments),
            Command::Sweep(arguments) => sweep::main(arguments),
            Command::Runs(arguments) => runs::main(arguments),
            Command::Answer(arguments) => answer::main(arguments),
            Command::Export(arguments) => export::main(arguments),
            Command::Exposure(arguments) => exposure::main(arguments),
            Command::Import(arguments) => import::main(&arguments),
            Command::Live(command) => command.run(),
            Command::Score(arguments) => score::main(arguments),
            Command::Reproduce(arguments) => reproduce::main(arguments),
            Command::Scoreboard(arguments) => scoreboard::main(arguments),
            Command::Predictor(arguments) => predictor::main(arguments),
            Command::Fairness(arguments) => fairness::main(arguments),
            Command::Keys(arguments) => keys::main(arguments),
            Command::Archive(arguments) => archive::main(arguments),
            Command::Manual(arguments) => manual::main(&arguments, Cli::fitting()),
        }
    }
}
