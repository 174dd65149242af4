//! `tidegate export`: writes stored runs in the formats of tornettools and OnionPerf.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_lab::export::{onionperf, tornettools};
use tidegate_lab::input::InputError;
use tidegate_lab::report::folder;
use tidegate_lab::report::staged::Staged;
use tidegate_lab::store::{self, Record, run_name};

use crate::failure::Failure;

/// Write stored runs in the format of another tool
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate export tornettools out/tor/latest plots")]
pub struct ExportArgs {
    /// Write files of this tool
    format: Format,
    /// Read runs from this result folder
    results: PathBuf,
    /// Write files to this folder, which must be new or empty
    out: PathBuf,
    /// Export the downloads of users of this class
    #[arg(long, default_value = "benchmark")]
    class: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// <system>/<seed>/tornet.plot.data/*.json, for `tornettools plot`
    Tornettools,
    /// <run>.onionperf.analysis.json
    Onionperf,
}

/// Runs the subcommand.
pub fn main(arguments: ExportArgs) -> Result<ExitCode, Failure> {
    let ExportArgs { format, results, out, class } = arguments;
    let Some(contents) = folder::contents_of(&results) else {
        let cure = "name a folder written by `tidegate run` or `tidegate sweep`";
        return Err(InputError::new(
            results.display().to_string(),
            "does not contain results of tidegate",
            cure,
        )
        .into());
    };
    if fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some()) {
        let error = InputError::new(out.display().to_string(), "is not empty", "name a new folder");
        return Err(error.into());
    }
    let records = store::records(&results, &contents)?;
    if records.is_empty() {
        let cure = "run it again with this version";
        return Err(
            InputError::new(results.display().to_string(), "does not contain stored runs", cure).into()
        );
    }
    let staged = Staged::new(&out).map_err(|cause| unwritable(&out, &cause))?;
    let write = |name: &Path, bytes: &[u8]| {
        staged.write(name, bytes).map_err(|cause| unwritable(&out.join(name), &cause))
    };
    for record in &records {
        match format {
            Format::Tornettools => {
                let place = Path::new(&system(record)).join(record.seed.to_string()).join("tornet.plot.data");
                for (name, bytes) in tornettools::files(record, &contents.parameters, &class)? {
                    write(&place.join(name), &bytes)?;
                }
            }
            Format::Onionperf => {
                let name = format!("{}.onionperf.analysis.json", run_name("", &system(record), record.seed));
                write(Path::new(&name), onionperf::analysis(record, &class)?.to_string().as_bytes())?;
            }
        }
    }
    staged.publish().map_err(|cause| unwritable(&out, &cause))?;
    eprintln!("wrote {} runs to {}", records.len(), out.display());
    if let Format::Tornettools = format {
        eprintln!("to plot them: tornettools plot --prefix {0} {0}/*/", out.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Names a run by its system and, in a sweep, by its point.
fn system(record: &Record) -> String {
    let point = record.point.iter().map(|(key, value)| format!("{key}={value}"));
    let whole = point.chain([record.system.clone()]).collect::<Vec<_>>().join(",");
    whole.replace('/', "-")
}

fn unwritable(path: &Path, cause: &std::io::Error) -> InputError {
    let cure = "free some space, or choose another folder";
    InputError::new(path.display().to_string(), format!("cannot be written: {cause}"), cure)
}
