//! `tidegate import`: converts files of tornettools, Shadow and tgen into a scenario.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_lab::import::{Count, import};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::report::staged::replace;
use tidegate_lab::scenario::Scenario;

use crate::failure::Failure;

/// Convert a network of tornettools or Shadow, or models of tgen, into a scenario
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate import tornet-0.01 --out imported.toml")]
pub struct ImportArgs {
    /// Read these files or folders: the folder of a Shadow simulation, its YAML or XML configuration, relayinfo_staging_*.json, *.gml, *.graphml
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the scenario to this file, which must not exist
    #[arg(long)]
    out: PathBuf,
}

/// A line that compares the source with the scenario.
fn compared(count: &Count) -> String {
    let Count { what, source, scenario, why } = count;
    let why = why.as_ref().map_or(String::new(), |why| match source.checked_sub(*scenario) {
        Some(left @ 1..) => format!(", left out {left}: {why}"),
        _ => format!(": {why}"),
    });
    format!("{what}: source has {source}, scenario has {scenario}{why}")
}

/// Runs the subcommand.
pub fn main(arguments: &ImportArgs) -> Result<ExitCode, Failure> {
    let ImportArgs { files, out } = arguments;
    let place = out.display().to_string();
    if out.exists() {
        return Err(InputError::new(place, "exists already", "choose another name").into());
    }
    let imported = import(files)?;
    imported.taken.iter().for_each(|line| eprintln!("imported: {line}"));
    imported.left.iter().for_each(|line| eprintln!("ignored: {line}"));
    imported.counts.iter().for_each(|count| eprintln!("{}", compared(count)));
    // Check the scenario now, so that the error appears here and not in the next command. It is not written yet.
    let source = SourceFile { file: format!("the scenario for {place}"), text: imported.text.clone() };
    Scenario::parse(source, out.parent().unwrap_or(Path::new("")).to_owned(), &[])?;
    // A half-written scenario would exist already at the next try.
    replace(out, imported.text.as_bytes()).map_err(|cause| {
        let cure = "free some space, or choose another place";
        InputError::new(&place, format!("cannot be written: {cause}"), cure)
    })?;
    eprintln!("to run it: tidegate run {place}");
    Ok(ExitCode::SUCCESS)
}
