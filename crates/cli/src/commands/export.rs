//! `tidegate export`: kept runs in the formats of other people's tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_lab::export::{onionperf, tornettools};
use tidegate_lab::input::InputError;
use tidegate_lab::report::folder;
use tidegate_lab::store::{self, Record, run_name};

use crate::failure::Failure;

/// Write kept runs as other tools read them
#[derive(clap::Args)]
pub struct Arguments {
    /// As which tool's files
    format: Format,
    /// A folder of results
    results: PathBuf,
    /// A new or empty folder for the files
    out: PathBuf,
    /// The users that measure, by class
    #[arg(long, default_value = "benchmark")]
    class: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// <system>/<seed>/tornet.plot.data/*.json, which `tornettools plot` draws
    Tornettools,
    /// <run>.onionperf.analysis.json
    Onionperf,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { format, results, out, class } = arguments;
    let Some(contents) = folder::contents_of(&results) else {
        let cure = "name a folder that `tidegate run` or `sweep` has written";
        return Err(
            InputError::new(results.display().to_string(), "holds no results of tidegate", cure).into()
        );
    };
    if fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some()) {
        let error = InputError::new(out.display().to_string(), "is not empty", "name a new folder");
        return Err(error.into());
    }
    let records = store::records(&results)?;
    if records.is_empty() {
        let cure = "run it again with this version";
        return Err(InputError::new(results.display().to_string(), "keeps no run", cure).into());
    }
    for record in &records {
        match format {
            Format::Tornettools => {
                let place = out.join(system(record)).join(record.seed.to_string()).join("tornet.plot.data");
                for (name, bytes) in tornettools::files(record, &contents.parameters, &class)? {
                    write(&place.join(name), &bytes)?;
                }
            }
            Format::Onionperf => {
                let name = format!("{}.onionperf.analysis.json", run_name("", &system(record), record.seed));
                write(&out.join(name), onionperf::analysis(record, &class)?.to_string().as_bytes())?;
            }
        }
    }
    eprintln!("{} runs are in {}", records.len(), out.display());
    if let Format::Tornettools = format {
        eprintln!("draw them with: tornettools plot --prefix {0} {0}/*/", out.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The system, and the point of a sweep if the run is one of it.
fn system(record: &Record) -> String {
    let point = record.point.iter().map(|(key, value)| format!("{key}={value}"));
    let whole = point.chain([record.system.clone()]).collect::<Vec<_>>().join(",");
    whole.replace('/', "-")
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), InputError> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, bytes));
    made.map_err(|cause| {
        InputError::new(
            path.display().to_string(),
            format!("cannot be written: {cause}"),
            "choose another folder",
        )
    })
}
