//! A tor client process, controlled over its control port (Tor's control-spec).
//!
//! It builds circuits over given paths and attaches streams to them.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tidegate_control::units::Span;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::clock;
use crate::identity::hex;
use crate::os::{self, LocalReadHalf, LocalStream, LocalWriteHalf};

/// Limit of lines in a reply and of queued events, as a precaution.
const MAX_LINES: usize = 10_000;
/// Interval between questions whether a starting tor is ready.
const ASK_EVERY: Span = Span::from_millis(200);

/// Options of every client: no circuits or streams of its own accord, and any given path.
const TORRC: &str = "CookieAuthentication 1\n__DisablePredictedCircuits 1\n__LeaveStreamsUnattached 1\n\
    ConfluxEnabled 0\nUseEntryGuards 0\nEnforceDistinctSubnets 0\nClientRejectInternalAddresses 0\n\
    LearnCircuitBuildTimeout 0\nCircuitBuildTimeout 20\nMaxCircuitDirtiness 3600\nClientOnly 1\nAvoidDiskWrites 1\n";

/// A tor process; it ends when this is dropped, or with our own process.
pub(crate) struct Tor {
    directory: PathBuf,
    // Kills the process on drop.
    _child: Child,
    control: Control,
}

struct Control {
    reader: BufReader<LocalReadHalf>,
    writer: LocalWriteHalf,
    events: VecDeque<String>,
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

impl Tor {
    /// Starts a client with its files in `directory`, which must exist and be private.
    ///
    /// `network` is appended to its configuration.
    ///
    /// # Errors
    /// If it does not start or does not answer.
    pub(crate) async fn start(program: &Path, directory: PathBuf, network: &str) -> io::Result<Tor> {
        let place = directory.display();
        let torrc = format!(
            "DataDirectory {place}/data\nSocksPort unix:\"{place}/socks\"\nControlSocket \"{place}/control\"\n\
             __OwningControllerProcess {}\nLog notice file {place}/log\n{TORRC}{network}\n",
            std::process::id()
        );
        let file = directory.join("torrc");
        std::fs::write(&file, torrc)?;
        let mut child = Command::new(program)
            .args(["--quiet", "--defaults-torrc", "/dev/null", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let stream = loop {
            match os::connect(&directory.join("control")).await {
                Ok(stream) => break stream,
                Err(_) => clock::until(clock::now() + ASK_EVERY).await,
            }
            if let Some(status) = child.try_wait()? {
                return Err(refused(format!("tor ended at once: {status}")));
            }
        };
        let (reader, writer) = stream.into_split();
        let mut control = Control { reader: BufReader::new(reader), writer, events: VecDeque::new() };
        // tor writes the cookie before the socket listens.
        let cookie = std::fs::read(directory.join("data/control_auth_cookie"))?;
        control.command(&format!("AUTHENTICATE {}", hex(&cookie))).await?;
        control.command("SETEVENTS CIRC STREAM").await?;
        Ok(Tor { directory, _child: child, control })
    }

    /// Waits until it knows enough of the network to build circuits.
    ///
    /// # Errors
    /// If the control connection breaks.
    pub(crate) async fn ready(&mut self) -> io::Result<()> {
        loop {
            let answer = self.control.command("GETINFO status/enough-dir-info").await?;
            if answer.iter().any(|line| line.ends_with("enough-dir-info=1")) {
                return Ok(());
            }
            clock::until(clock::now() + ASK_EVERY).await;
        }
    }

    /// Builds a circuit over these relays and returns its number.
    ///
    /// # Errors
    /// If the circuit cannot be built.
    pub(crate) async fn circuit(&mut self, path: &[[u8; 20]]) -> io::Result<u64> {
        let path: Vec<String> = path.iter().map(|id| format!("${}", hex(id).to_uppercase())).collect();
        let answer = self.control.command(&format!("EXTENDCIRCUIT 0 {}", path.join(","))).await?;
        let number = answer.last().and_then(|line| line.split(' ').nth(2));
        let number: u64 =
            number.and_then(|n| n.parse().ok()).ok_or_else(|| refused("EXTENDED without a number"))?;
        let event = self.control.event(|words| {
            words.first() == Some(&"CIRC")
                && words.get(1).and_then(|n| n.parse().ok()) == Some(number)
                && matches!(words.get(2), Some(&("BUILT" | "FAILED" | "CLOSED")))
        });
        let event = event.await?;
        if event.split(' ').nth(2) == Some("BUILT") { Ok(number) } else { Err(refused(event)) }
    }

    /// Opens a stream over a circuit.
    ///
    /// # Errors
    /// If the stream is refused.
    pub(crate) async fn stream(&mut self, circuit: u64, to: std::net::SocketAddr) -> io::Result<LocalStream> {
        let mut socks = os::connect(&self.directory.join("socks")).await?;
        socks.write_all(&[5, 1, 0]).await?;
        let mut method = [0; 2];
        socks.read_exact(&mut method).await?;
        // RFC 1928: CONNECT with the address as a name, which covers IPv4 and IPv6.
        let name = to.ip().to_string();
        let mut request = vec![5, 1, 0, 3, name.len() as u8];
        request.extend(name.as_bytes());
        request.extend(to.port().to_be_bytes());
        socks.write_all(&request).await?;
        let new =
            self.control.event(|words| words.first() == Some(&"STREAM") && words.get(2) == Some(&"NEW"));
        let new = new.await?;
        let stream = new.split(' ').nth(1).unwrap_or_default().to_owned();
        self.control.command(&format!("ATTACHSTREAM {stream} {circuit}")).await?;
        let mut reply = [0; 10];
        socks.read_exact(&mut reply).await?;
        if method != [5, 0] || reply[..2] != [5, 0] {
            return Err(refused(format!("SOCKS reply {}", reply[1])));
        }
        Ok(socks)
    }
}

impl Control {
    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Sends a command and returns its reply; events in between are queued for [`event`](Self::event).
    async fn command(&mut self, command: &str) -> io::Result<Vec<String>> {
        self.writer.write_all(format!("{command}\r\n").as_bytes()).await?;
        let mut reply = Vec::new();
        while reply.len() < MAX_LINES {
            let line = self.line().await?;
            if let Some(event) = line.strip_prefix("650 ") {
                self.keep(event);
            } else if line.starts_with("250 ") {
                reply.push(line);
                return Ok(reply);
            } else if line.starts_with("250") {
                reply.push(line);
            } else {
                let verb = command.split(' ').next().unwrap_or_default();
                return Err(refused(format!("{verb}: {line}")));
            }
        }
        Err(refused("a reply without an end"))
    }

    fn keep(&mut self, event: &str) {
        if self.events.len() == MAX_LINES {
            self.events.pop_front();
        }
        self.events.push_back(event.to_owned());
    }

    /// Waits for the next event that matches.
    async fn event(&mut self, wanted: impl Fn(&[&str]) -> bool) -> io::Result<String> {
        loop {
            while let Some(event) = self.events.pop_front() {
                let words: Vec<&str> = event.split(' ').collect();
                if wanted(&words) {
                    return Ok(event);
                }
            }
            let line = self.line().await?;
            if let Some(event) = line.strip_prefix("650 ") {
                self.keep(event);
            }
        }
    }
}
