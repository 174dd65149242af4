//! The archive of `tidegate reproduce --artifact`: experiments, digests of inputs, measured values and pictures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tidegate_control::text::hex;
use tidegate_lab::input::InputError;
use tidegate_lab::report::folder::ResultFile;
use tidegate_lab::report::staged;
use tidegate_lab::scoreboard::{Experiment, Scale};
use toml::Value;

use crate::console::{COMMIT, command_line};
use crate::failure::Failure;

/// Files of an archive by name.
type Files = BTreeMap<String, Vec<u8>>;

/// An archive to write after a run. Its inputs are read before it, because a run can take hours.
pub struct Artifact<'a> {
    place: PathBuf,
    experiments: Vec<&'a Experiment>,
    files: Files,
    /// SHA-256 of every input, by its name; `None` for measured data that are absent.
    digests: BTreeMap<String, Option<String>>,
}

impl<'a> Artifact<'a> {
    /// Reads the inputs. Fails if the archive could not be written to this place.
    pub fn prepare(place: &Path, experiments: Vec<&'a Experiment>) -> Result<Artifact<'a>, Failure> {
        File::create_new(place).and_then(|_| fs::remove_file(place)).map_err(|cause| {
            let name = place.display().to_string();
            match cause.kind() {
                ErrorKind::AlreadyExists => InputError::new(name, "exists already", "choose another name"),
                _ => unwritable(place, &cause),
            }
        })?;
        let (files, digests) = Default::default();
        let mut artifact = Artifact { place: place.to_owned(), experiments, files, digests };
        for experiment in artifact.experiments.clone() {
            artifact.take(experiment)?;
        }
        Ok(artifact)
    }

    /// Adds everything that an experiment reads.
    fn take(&mut self, experiment: &Experiment) -> Result<(), InputError> {
        // Scenarios that several experiments of a paper share are in the folder above.
        let above = experiment.folder.parent().unwrap_or(&experiment.folder);
        let root = above.parent().unwrap_or(above);
        let root = fs::canonicalize(root).map_err(|cause| unreadable(root, &cause))?;
        for folder in [above, &*experiment.folder] {
            for path in entries(folder)? {
                if path.is_file() && is_toml(&path) {
                    self.take_file(&root, &path)?;
                }
            }
        }
        for needed in &experiment.file.needs {
            self.digest_data(format!("data/{needed}"), &experiment.data.join(needed))?;
        }
        Ok(())
    }

    /// Adds an input below `root`, and the inputs that it names if it is a scenario or an experiment.
    fn take_file(&mut self, root: &Path, path: &Path) -> Result<(), InputError> {
        let Ok(path) = fs::canonicalize(path) else { return Ok(()) };
        // Measured data are outside; `needs` lists them.
        let Ok(below) = path.strip_prefix(root) else { return Ok(()) };
        let name = format!("experiments/{}", below.display());
        if self.files.contains_key(&name) {
            return Ok(());
        }
        let bytes = fs::read(&path).map_err(|cause| unreadable(&path, &cause))?;
        self.digests.insert(name.clone(), Some(hex(&Sha256::digest(&bytes))));
        let text = str::from_utf8(&bytes).ok().filter(|_| is_toml(&path));
        let named =
            text.and_then(|text| text.parse().ok()).map_or_else(Vec::new, |table| texts(Value::Table(table)));
        self.files.insert(name, bytes);
        let folder = path.parent().unwrap_or(root);
        for input in named.iter().map(|name| folder.join(name)).filter(|input| input.is_file()) {
            self.take_file(root, &input)?;
        }
        Ok(())
    }

    /// Notes the digests of measured data, a file or a folder. The data stay outside: they belong to others, and can be
    /// large.
    fn digest_data(&mut self, name: String, path: &Path) -> Result<(), InputError> {
        if path.is_dir() {
            for entry in entries(path)? {
                let file = entry.file_name().unwrap_or_default().to_string_lossy();
                self.digest_data(format!("{name}/{file}"), &entry)?;
            }
            return Ok(());
        }
        let digest = match fs::read(path) {
            Ok(bytes) => Some(hex(&Sha256::digest(bytes))),
            Err(cause) if cause.kind() == ErrorKind::NotFound => None,
            Err(cause) => return Err(unreadable(path, &cause)),
        };
        self.digests.insert(name, digest);
        Ok(())
    }

    /// Writes the archive with these results. It is the same for the same inputs, results and machine.
    pub fn write(mut self, results: &[ResultFile], scale: Scale) -> Result<(), Failure> {
        for experiment in &self.experiments {
            let record = experiment.folder.join("result.json");
            match fs::read(&record) {
                Ok(bytes) => {
                    let Experiment { paper, figure, .. } = experiment;
                    self.files.insert(format!("experiments/{paper}/{figure}/result.json"), bytes);
                }
                Err(cause) if cause.kind() == ErrorKind::NotFound => {}
                Err(cause) => return Err(unreadable(&record, &cause).into()),
            }
        }
        self.files.extend(results.iter().map(|(name, bytes)| (format!("results/{name}"), bytes.clone())));
        self.files.insert("inputs.sha256".into(), self.list_of_inputs().into_bytes());
        let environment = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "commit": COMMIT,
            "command": command_line(),
            "scale": scale,
            "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
        });
        self.files.insert("environment.json".into(), format!("{environment:#}\n").into_bytes());
        self.files.insert("README.md".into(), readme(&self.experiments, scale).into_bytes());
        pack(&self.place, &self.files).map_err(|cause| unwritable(&self.place, &cause))?;
        eprintln!("artifact: {}", self.place.display());
        Ok(())
    }

    /// The digests as `sha256sum --check` reads them; it skips the comments.
    fn list_of_inputs(&self) -> String {
        let line = |(name, digest): (&String, &Option<String>)| match digest {
            Some(digest) => format!("{digest}  {name}\n"),
            None => format!("# absent: {name}\n"),
        };
        self.digests.iter().map(line).collect()
    }
}

fn unwritable(place: &Path, cause: &io::Error) -> InputError {
    let name = place.display().to_string();
    InputError::new(name, format!("cannot be written: {cause}"), "choose another place with --artifact")
}

fn unreadable(path: &Path, cause: &io::Error) -> InputError {
    let name = path.display().to_string();
    InputError::new(
        name,
        format!("cannot be read: {cause}"),
        "the archive lists every input; make it readable",
    )
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "toml")
}

/// The entries of a folder.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, InputError> {
    let read = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>();
    read().map_err(|cause| unreadable(folder, &cause))
}

/// Every text in a table.
fn texts(value: Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(values) => values.into_iter().flat_map(texts).collect(),
        Value::Table(table) => table.into_iter().flat_map(|(_, value)| texts(value)).collect(),
        _ => Vec::new(),
    }
}

fn readme(experiments: &[&Experiment], scale: Scale) -> String {
    let mut text = format!(
        "# Artifact of Tidegate {} ({COMMIT})\n\nMade by `{}`; {}.\n\n",
        env!("CARGO_PKG_VERSION"),
        command_line(),
        scale.headline()
    );
    text += "| file | contents |\n|---|---|\n\
        | `results/report.html` | every published number beside the measured one, with figures |\n\
        | `results/scoreboard.json` | the same as data |\n\
        | `results/*.svg` | published figures with the measured points, if the experiments have any |\n\
        | `experiments/` | the experiments and their recorded results |\n\
        | `inputs.sha256` | SHA-256 of every input; `data/` are measured data, which the archive does not contain |\n\
        | `environment.json` | version, commit, command, system |\n\n\
        To repeat it, check out the commit, build with `cargo build --release`, and run the command above, with the \
        environment variable `TIDEGATE_DATA` naming the folder of measured data. The same commit, seed and scale give the \
        same simulated numbers on any machine; measurements on sockets vary.\n\n\
        To check the inputs here, run `sha256sum --check --ignore-missing inputs.sha256`. To check the measured data too, \
        run `ln -s \"$TIDEGATE_DATA\" data` and leave out `--ignore-missing`.\n\n";
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
    staged::create(place, &packed)
}
