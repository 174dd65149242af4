//! `tidegate`: simulate, measure and run traffic control for onion-routed overlays.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong input or no place for the output, 130 stopped by Ctrl-C, 141 standard output was closed.

#![forbid(unsafe_code)]

mod commands;
mod console;
mod failure;
#[cfg(feature = "live")]
mod logs;
#[cfg(feature = "live")]
mod more_processes;
#[cfg(feature = "live")]
mod owned;
#[cfg(feature = "live")]
mod roles;
mod runners;
#[cfg(feature = "live")]
mod stage;
#[cfg(feature = "live")]
mod temporary;
#[cfg(all(feature = "live", target_os = "linux"))]
mod underlay;

use std::process::ExitCode;

fn main() -> ExitCode {
    console::end_when_output_fails();
    match commands::Cli::read().run() {
        Ok(code) => code,
        Err(failure) => {
            console::complain(&failure);
            ExitCode::from(failure.code())
        }
    }
}
