//! The archive of `tidegate reproduce --artifact`: experiments, digests of inputs, measured values and pictures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tidegate_control::text::hex;
use tidegate_lab::input::InputError;
use tidegate_lab::report::folder::ResultFile;
use tidegate_lab::scoreboard::{Experiment, Scale};

use crate::console::{COMMIT, command_line};
use crate::failure::Failure;

/// Files of an archive by name.
type Files = BTreeMap<String, Vec<u8>>;

/// Fails if an archive could not be written to this place: a run can take hours.
pub fn check_place(place: &Path) -> Result<(), Failure> {
    if place.exists() {
        let name = place.display().to_string();
        return Err(InputError::new(name, "exists already", "choose another name").into());
    }
    Ok(())
}

/// Writes the archive. It is the same for the same inputs, results and machine.
pub fn write(
    place: &Path,
    results: &[ResultFile],
    experiments: &[&Experiment],
    scale: Scale,
) -> Result<(), Failure> {
    let fail = |cause: io::Error| {
        let name = place.display().to_string();
        InputError::new(name, format!("cannot be written: {cause}"), "choose another place")
    };
    let mut files = Files::new();
    for (name, bytes) in results {
        files.insert(format!("results/{name}"), bytes.clone());
    }
    let mut inputs = BTreeMap::new();
    for experiment in experiments {
        take_experiment(experiment, &mut files, &mut inputs).map_err(fail)?;
    }
    let digests: String = inputs.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
    files.insert("inputs.sha256".into(), digests.into_bytes());
    let environment = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": COMMIT,
        "command": command_line(),
        "scale": scale,
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
    });
    files.insert("environment.json".into(), format!("{environment:#}\n").into_bytes());
    files.insert("README.md".into(), readme(experiments, scale).into_bytes());
    pack(place, &files).map_err(fail)?;
    Ok(())
}

/// Adds the files of an experiment, and the digests of everything that it reads.
fn take_experiment(
    experiment: &Experiment,
    files: &mut Files,
    inputs: &mut BTreeMap<String, String>,
) -> io::Result<()> {
    // Scenarios that several experiments of a paper share are in the folder above.
    let above = experiment.folder.parent().unwrap_or(&experiment.folder);
    for (folder, name) in [
        (above, format!("experiments/{}", experiment.paper)),
        (&*experiment.folder, format!("experiments/{}/{}", experiment.paper, experiment.figure)),
    ] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let is_input = path.extension().is_some_and(|ending| ending == "toml");
            let is_record = path.file_name().is_some_and(|name| name == "result.json");
            if let (true, Some(file)) = (path.is_file() && (is_input || is_record), path.file_name()) {
                let name = format!("{name}/{}", file.to_string_lossy());
                let bytes = fs::read(&path)?;
                if is_input {
                    inputs.insert(name.clone(), digest(&bytes));
                }
                files.insert(name, bytes);
            }
        }
    }
    for needed in &experiment.file.needs {
        // Measured data stay outside: they belong to others, and can be large.
        let digest =
            fs::read(experiment.data.join(needed)).map_or_else(|_| "absent".into(), |bytes| digest(&bytes));
        inputs.insert(format!("data/{needed}"), digest);
    }
    Ok(())
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn readme(experiments: &[&Experiment], scale: Scale) -> String {
    let mut text = format!(
        "# Artifact of Tidegate {} ({COMMIT})\n\nMade by `{}`, at {scale} scale: {}.\n\n",
        env!("CARGO_PKG_VERSION"),
        command_line(),
        scale.headline()
    );
    text += "| file | contents |\n|---|---|\n\
        | `results/report.html` | every published number beside the measured one, with figures |\n\
        | `results/scoreboard.json` | the same as data |\n\
        | `results/*.svg` | published figures with the measured points |\n\
        | `experiments/` | the experiments and their recorded results |\n\
        | `inputs.sha256` | SHA-256 of every input; `data/` are measured data, which the archive does not contain |\n\
        | `environment.json` | version, commit, command, system |\n\n\
        To repeat it, check out the commit, build with `cargo build --release`, and run the command above. The same \
        commit, seed and scale give the same simulated numbers on any machine; measurements on sockets vary.\n\n";
    for experiment in experiments {
        let _ = writeln!(
            text,
            "- {}/{}: {} ({})",
            experiment.paper, experiment.figure, experiment.file.title, experiment.file.source
        );
    }
    text
}

/// Packs files as tar.gz, without times and owners.
fn pack(place: &Path, files: &Files) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("artifact/{name}"), &bytes[..])?;
    }
    let packed = archive.into_inner()?.finish()?;
    let mut file = fs::File::create_new(place)?;
    file.write_all(&packed)?;
    file.sync_all()
}
