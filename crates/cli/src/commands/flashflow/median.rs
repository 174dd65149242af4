//! `tidegate flashflow median`: combines several coordinators' files as directory authorities do.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use tidegate_control::flashflow::bandwidth_file::{LEAST_MEASURED, median, relay_name};
use tidegate_data::formats::BANDWIDTH_FILES;
use tidegate_lab::input::InputError;

use super::compare::named;
use crate::failure::Failure;

/// Print each relay's median weight in several coordinators' bandwidth files
///
/// Only relays that at least three of the files name have one: authorities take others as unmeasured. While fewer than half of
/// the coordinators lie about a relay, its median lies between two honest weights.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate flashflow median one-v3bw two-v3bw three-v3bw")]
pub struct Arguments {
    /// The files, one per coordinator
    #[arg(required = true, num_args = LEAST_MEASURED..)]
    files: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let read = |path: &PathBuf| named(path, BANDWIDTH_FILES.open(path).map_err(InputError::from)?);
    let files = arguments.files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let weights = median(&files);
    if weights.is_empty() {
        let cause = "no relay is in three of them";
        return Err(InputError::new("the files", cause, "give files of the same network").into());
    }
    if arguments.json {
        let relays: serde_json::Map<String, _> =
            weights.iter().map(|(id, weight)| (relay_name(id), json!(weight))).collect();
        println!("{}", json!({ "files": files.len(), "weights": relays }));
    } else {
        weights.iter().for_each(|(id, weight)| println!("node_id=${} bw={weight}", relay_name(id)));
    }
    Ok(ExitCode::SUCCESS)
}
