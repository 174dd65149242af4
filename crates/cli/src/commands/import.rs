//! `tidegate import`: a scenario of other people's files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_lab::import::import;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::scenario::Scenario;

use crate::failure::Failure;

/// Make a scenario of what tornettools has staged or generated for Shadow, of tgen's models and action graphs
#[derive(clap::Args)]
pub struct Arguments {
    /// Files, or folders of files: relayinfo_staging_*.json, server descriptors, a folder with shadow.config.yaml or .xml, *.gml, *.graphml
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The scenario file to write, which must not exist
    #[arg(long)]
    out: PathBuf,
}

/// Runs the subcommand.
pub fn main(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { files, out } = arguments;
    let place = out.display().to_string();
    if out.exists() {
        return Err(InputError::new(place, "is there already", "choose another name").into());
    }
    let imported = import(files)?;
    imported.taken.iter().for_each(|line| eprintln!("taken: {line}"));
    imported.left.iter().for_each(|line| eprintln!("left out: {line}"));
    // Better refused now than by the next command.
    let source = SourceFile { file: place.clone(), text: imported.text.clone() };
    Scenario::parse(source, out.parent().unwrap_or(Path::new("")).to_owned(), &[])?;
    fs::write(out, imported.text).map_err(|cause| {
        InputError::new(&place, format!("cannot be written: {cause}"), "choose another place")
    })?;
    eprintln!("run it with: tidegate run {place}");
    Ok(ExitCode::SUCCESS)
}
