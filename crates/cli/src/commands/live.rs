//! The subcommands that open sockets. A build without the feature `live` names them and says what it lacks.

use std::process::ExitCode;

use crate::failure::Failure;

#[cfg(feature = "live")]
pub use with_sockets::LiveCommand;
#[cfg(not(feature = "live"))]
pub use without_sockets::LiveCommand;

#[cfg(feature = "live")]
mod with_sockets {
    use super::{ExitCode, Failure};
    use crate::commands::{client, directory, flashflow, lab, more, overlay, relay, stream};

    #[derive(clap::Subcommand)]
    pub enum LiveCommand {
        More(more::MoreArgs),
        Flashflow(flashflow::Arguments),
        Overlay(overlay::OverlayArgs),
        Lab(lab::LabArgs),
        Relay(relay::RelayArgs),
        Client(client::ClientArgs),
        Directory(directory::DirectoryArgs),
        Stream(stream::StreamArgs),
    }

    impl LiveCommand {
        /// Runs the subcommand.
        pub fn run(self) -> Result<ExitCode, Failure> {
            match self {
                LiveCommand::More(arguments) => more::main(arguments),
                LiveCommand::Flashflow(arguments) => flashflow::main(arguments),
                LiveCommand::Overlay(arguments) => overlay::main(arguments),
                LiveCommand::Lab(arguments) => lab::main(arguments),
                LiveCommand::Relay(arguments) => relay::main(&arguments),
                LiveCommand::Client(arguments) => client::main(&arguments),
                LiveCommand::Directory(arguments) => directory::main(&arguments),
                LiveCommand::Stream(arguments) => stream::main(arguments),
            }
        }
    }
}

#[cfg(not(feature = "live"))]
mod without_sockets {
    use tidegate_lab::input::InputError;

    use super::{ExitCode, Failure};

    /// Takes any arguments, since it can only refuse.
    #[derive(clap::Args)]
    pub struct Absent {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    }

    #[derive(clap::Subcommand)]
    pub enum LiveCommand {
        /// Send data anonymously over random paths of relays (not in this build)
        More(Absent),
        /// Measure the capacity of relays (not in this build)
        Flashflow(Absent),
        /// Run a test overlay on this machine (not in this build)
        Overlay(Absent),
        /// Measure what an option changes on stock tor in an emulated network (not in this build)
        Lab(Absent),
        /// Run a relay of an overlay (not in this build)
        Relay(Absent),
        /// Run a proxy that carries connections through an overlay (not in this build)
        Client(Absent),
        /// Serve the signed relay list of a private overlay (not in this build)
        Directory(Absent),
        /// Stream live video through trees of viewers (not in this build)
        Stream(Absent),
    }

    impl LiveCommand {
        /// Refuses the subcommand.
        pub fn run(self) -> Result<ExitCode, Failure> {
            let cause = "lacks the subcommands that open sockets";
            Err(InputError::new(
                "this build of tidegate",
                cause,
                "build it again: cargo build --release --features live",
            )
            .into())
        }
    }
}
