//! Errors of subcommands and their exit codes.

use std::fmt;

use tidegate_lab::input::InputError;

/// The error of a subcommand.
#[derive(Debug)]
pub enum Failure {
    /// Wrong input; exit code 2.
    Input(InputError),
    /// Any other error; exit code 1.
    Other(String),
    /// The user stopped it; exit code 130.
    #[cfg(feature = "live")]
    Stopped,
}

impl Failure {
    /// Makes an error that is not about the input.
    #[cfg(feature = "live")]
    pub fn other(error: impl fmt::Display) -> Failure {
        Failure::Other(error.to_string())
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Input(_) => 2,
            Failure::Other(_) => 1,
            #[cfg(feature = "live")]
            Failure::Stopped => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(error) => error.fmt(f),
            Failure::Other(message) => f.write_str(message),
            #[cfg(feature = "live")]
            Failure::Stopped => f.write_str("stopped"),
        }
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Failure {
        Failure::Input(error)
    }
}
