//! `tidegate manual`: writes manual pages and shell completions.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap_complete::Shell;
use tidegate_lab::input::InputError;

use crate::failure::Failure;

/// Write manual pages and shell completions
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate manual target/manual")]
pub struct ManualArgs {
    /// Write man/*.1 and completions/* to this folder
    out: PathBuf,
}

/// Runs the subcommand; `command` describes the whole tool.
pub fn main(arguments: &ManualArgs, mut command: clap::Command) -> Result<ExitCode, Failure> {
    let (pages, completions) = (arguments.out.join("man"), arguments.out.join("completions"));
    let fail = |cause: std::io::Error| {
        let place = arguments.out.display().to_string();
        InputError::new(place, format!("cannot be written: {cause}"), "choose another folder")
    };
    fs::create_dir_all(&pages).and_then(|()| fs::create_dir_all(&completions)).map_err(fail)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "tidegate", &completions).map_err(fail)?;
    }
    clap_mangen::generate_to(command, &pages).map_err(fail)?;
    eprintln!("wrote {0}/man and {0}/completions", arguments.out.display());
    Ok(ExitCode::SUCCESS)
}
