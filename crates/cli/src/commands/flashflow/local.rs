//! FlashFlow roles as processes on this machine, for demonstrations.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::Value;
use tidegate_control::units::Rate;
use tidegate_net::identity::{Identity, hex};

use crate::failure::Failure;
use crate::owned;
use crate::temporary::{self, Temporary};

/// Child processes that are killed when this value is dropped.
pub struct Processes(pub Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Fails only if the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A directory that is deleted when the command ends, unless the user asked to keep it.
pub struct Scratch {
    pub path: PathBuf,
    _temporary: Option<Temporary>,
}

impl Scratch {
    /// Creates the directory to keep, which must not exist, or a temporary one. From now on, Ctrl-C and SIGTERM exit.
    pub fn new(kept: Option<&Path>) -> Result<Scratch, Failure> {
        ctrlc::set_handler(|| {
            temporary::remove_all();
            std::process::exit(130);
        })
        .map_err(Failure::other)?;
        if let Some(path) = kept {
            fs::create_dir(path).map_err(|cause| Failure::other(format!("{}: {cause}", path.display())))?;
            return Ok(Scratch { path: path.to_owned(), _temporary: None });
        }
        let temporary = Temporary::new("flashflow").map_err(Failure::other)?;
        Ok(Scratch { path: temporary.to_path_buf(), _temporary: Some(temporary) })
    }
}

/// Starts a role with a configuration file and returns its event stream.
pub fn spawn(processes: &mut Processes, role: &str, config: &Path, more: &[&str]) -> Result<Events, Failure> {
    let config = config.display().to_string();
    spawn_with(processes, role, &[&["--config", &config], more].concat())
}

/// Starts a role with the given arguments.
pub fn spawn_with(processes: &mut Processes, role: &str, arguments: &[&str]) -> Result<Events, Failure> {
    let mut command = owned::command().map_err(Failure::other)?;
    command.args(["flashflow", role]).args(arguments).stdout(Stdio::piped());
    owned::keep_from_terminal(&mut command);
    let mut child =
        command.spawn().map_err(|cause| Failure::other(format!("cannot start the {role}: {cause}")))?;
    let output = child.stdout.take().expect("it was asked for");
    processes.0.push(child);
    Ok(Events { role: role.to_owned(), lines: BufReader::new(output) })
}

/// Event stream of a role.
pub struct Events {
    role: String,
    lines: BufReader<ChildStdout>,
}

impl Iterator for Events {
    type Item = Value;
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        serde_json::from_str(&line).ok()
    }
}

impl Events {
    /// Waits for the role's listening address.
    pub fn address(&mut self) -> Result<String, Failure> {
        let event = self.find(|event| event["event"] == "listening");
        let address = event.and_then(|event| Some(event["address"].as_str()?.to_owned()));
        address.ok_or_else(|| Failure::other(format!("the {} did not start", self.role)))
    }
}

/// Starts measurer number `n` and returns its entry in the coordinator's configuration.
pub fn measurer(
    processes: &mut Processes,
    directory: &Path,
    n: usize,
    coordinator: &str,
    capacity: Rate,
) -> Result<String, Failure> {
    let name = format!("measurer{n}");
    let fingerprint = hex(&identity(directory, &name)?.fingerprint());
    let file = directory.join(format!("{name}.toml"));
    write(
        &file,
        &format!(
            "listen = \"127.0.0.1:0\"\nidentity = \"{name}.key\"\nworkers = 1\ncoordinators = [\"{coordinator}\"]\n"
        ),
    )?;
    let address = spawn(processes, "measurer", &file, &[])?.address()?;
    Ok(format!(
        "\n[[measurer]]\nname = \"{name}\"\naddress = \"{address}\"\nfingerprint = \"{fingerprint}\"\n\
         capacity = \"{capacity}\"\n"
    ))
}

/// Generates an identity and saves it as `NAME.key`.
pub fn identity(directory: &Path, name: &str) -> Result<Identity, Failure> {
    let identity = Identity::generate();
    identity.save(&directory.join(format!("{name}.key"))).map_err(Failure::other)?;
    Ok(identity)
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|cause| Failure::other(format!("{}: {cause}", path.display())))
}
