//! Processes and files of a demo, removed when it ends.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tidegate_control::units::{Span, Time};
use tidegate_net::{clock, os};

use crate::failure::Failure;
use crate::owned;
use crate::temporary::Temporary;

/// Timeout for a role to start or a network to be ready.
///
/// A network of stock tor takes 30 s, and 10 s longer for each vote that an authority misses on a loaded machine. A role
/// that ends is noticed at once.
pub const STARTING: Span = Span::from_secs(180);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(50);

/// Processes and files of a demo; dropping it kills and removes them.
pub struct Stage {
    processes: Vec<Child>,
    /// Folder of all files.
    pub directory: Temporary,
    stopped: Arc<AtomicBool>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.processes {
            // The process may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Stage {
    /// Creates a stage with a new folder; Ctrl-C and SIGTERM stop it.
    pub fn new(purpose: &str) -> Result<Stage, Failure> {
        let stage = Stage::unattended(purpose)?;
        let stop = stage.stopped.clone();
        ctrlc::set_handler(move || stop.store(true, Ordering::Relaxed)).map_err(Failure::other)?;
        Ok(stage)
    }

    /// Creates a stage with a new folder, for a command with its own Ctrl-C handler.
    pub fn unattended(purpose: &str) -> Result<Stage, Failure> {
        let directory = Temporary::new(purpose).map_err(Failure::other)?;
        Ok(Stage { processes: Vec::new(), directory, stopped: Arc::default() })
    }

    /// Whether the user asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Writes a file for a role.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.directory.join(name);
        let failed = |cause| Failure::Other(format!("{}: {cause}", path.display()));
        // Some files hold keys and tokens.
        let file = os::private_file()
            .and_then(|mut options| options.write(true).create(true).truncate(true).open(&path));
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)?;
        Ok(path)
    }

    /// Starts a subcommand as a role; returns its events.
    pub fn role(&mut self, arguments: &[&str]) -> Result<Events, Failure> {
        self.role_started_by(arguments, |mut command| command.spawn())
    }

    /// Like [`Stage::role`], but `start` spawns the process, for example in another network namespace.
    pub fn role_started_by(
        &mut self,
        arguments: &[&str],
        start: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Result<Events, Failure> {
        let mut command = owned::command().map_err(Failure::other)?;
        command.args(arguments).stdout(Stdio::piped());
        let failed = |cause| Failure::Other(format!("cannot start the {}: {cause}", arguments[0]));
        let mut child = start(command).map_err(failed)?;
        let output = child.stdout.take().expect("stdout is piped");
        let mut events = Events::new(arguments[0], output, self.stopped.clone());
        events.process = child.id();
        self.processes.push(child);
        Ok(events)
    }

    /// Kills a role (SIGKILL).
    pub fn kill(&mut self, process: u32) {
        if let Some(at) = self.processes.iter().position(|child| child.id() == process) {
            let mut child = self.processes.remove(at);
            // The process may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Runs `work` in a thread, which goes on if the user stops the stage.
    ///
    /// # Errors
    /// That of `work`, or [`Failure::Stopped`] at once when the user stops the stage.
    pub fn unless_stopped<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let working = thread::spawn(work);
        while !working.is_finished() {
            if self.is_stopped() {
                return Err(Failure::Stopped);
            }
            thread::sleep(LOOK);
        }
        working.join().expect("downloads do not panic")
    }

    /// Waits until `ready` returns a value; `what` names it in the error.
    pub fn wait_for<T>(&self, what: &str, mut ready: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let end = clock::now() + STARTING;
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            if self.is_stopped() {
                return Err(Failure::Stopped);
            }
            if clock::now() > end {
                return Err(Failure::Other(format!("timed out after {STARTING}: waited for {what}")));
            }
            thread::sleep(LOOK);
        }
    }
}

/// The log events of a role.
pub struct Events {
    role: String,
    /// Process id of the role.
    pub process: u32,
    events: mpsc::Receiver<Value>,
    stopped: Arc<AtomicBool>,
}

impl Events {
    /// Reads events from a role's standard output.
    pub fn new(role: &str, output: ChildStdout, stopped: Arc<AtomicBool>) -> Events {
        let (tell, events) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
                if tell.send(event).is_err() {
                    return;
                }
            }
        });
        Events { role: role.to_owned(), process: 0, events, stopped }
    }

    /// Waits for the next event of this kind.
    pub fn wait(&self, kind: &str) -> Result<Value, Failure> {
        let end = clock::now() + STARTING;
        let mut last = Value::Null;
        loop {
            // Before the event: a role that answers at once must not hide the user's wish.
            if self.stopped.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            match self.events.recv_timeout(LOOK) {
                Ok(event) if event["event"] == kind => return Ok(event),
                Ok(event) => last = event,
                Err(mpsc::RecvTimeoutError::Timeout) if clock::now() < end => {}
                Err(_) => {
                    let said =
                        if last.is_null() { String::new() } else { format!("; its last event is {last}") };
                    return Err(Failure::Other(format!("the {} did not log `{kind}`{said}", self.role)));
                }
            }
        }
    }

    /// Waits for the address that the role listens on.
    pub fn address(&self) -> Result<SocketAddr, Failure> {
        self.address_of("listening")
    }

    /// Waits for the address in an event of this kind.
    pub fn address_of(&self, kind: &str) -> Result<SocketAddr, Failure> {
        let event = self.wait(kind)?;
        let address = event["address"].as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| Failure::Other(format!("the {} logged an event without an address", self.role)))
    }

    /// Returns all events of this kind since the last call.
    pub fn said(&self, kind: &str) -> Vec<Value> {
        self.events.try_iter().filter(|event| event["event"] == kind).collect()
    }
}

/// Fetches a page of a role by HTTP.
pub fn page_of(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut tcp = TcpStream::connect(address)?;
    write!(tcp, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    tcp.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned())
}

/// Fetches the JSON status of a role.
pub fn status_of(address: SocketAddr) -> io::Result<Value> {
    serde_json::from_str(&page_of(address, "/status.json")?).map_err(io::Error::other)
}

/// Calls `now_and_then` every 10 s until the user stops the stage.
pub fn until_stopped(stage: &Stage, mut now_and_then: impl FnMut()) {
    let mut next = Time::ZERO;
    while !stage.is_stopped() {
        if clock::now() >= next {
            now_and_then();
            next = clock::now() + Span::from_secs(10);
        }
        thread::sleep(LOOK);
    }
}
