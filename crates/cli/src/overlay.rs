//! `tidegate overlay`: an overlay on this machine, of our own relays alone or among stock tor's. Here: what both share.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tidegate_control::units::{Bytes, Span, Time};
use tidegate_net::clock;
use tidegate_net::identity::{hex, random};

use crate::{Failure, flashflow, overlay_demo, overlay_tornet};

/// Run an overlay on this machine (see docs/live.md)
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    Demo(overlay_demo::Arguments),
    Tornet(overlay_tornet::Arguments),
}

/// Runs it.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.what {
        What::Demo(arguments) => overlay_demo::main(&arguments),
        What::Tornet(arguments) => overlay_tornet::main(&arguments),
    }
}

/// How long roles may take to start, and networks to be ready.
pub const STARTING: Span = Span::from_secs(60);
/// How often a state is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A role that was started with `--owned` ends when its parent does, however that ends.
pub fn die_with_parent(owned: bool) -> Result<(), Failure> {
    if owned { set_parent_process_death_signal(Some(Signal::KILL)).map_err(flashflow::other) } else { Ok(()) }
}

/// What ends with a demonstration: its processes, then its files.
pub struct Stage {
    processes: Vec<Child>,
    /// Of everything.
    pub directory: PathBuf,
    stopped: Arc<AtomicBool>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.processes {
            // One that has ended already needs nothing.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Stage {
    /// With a fresh directory. Ctrl-C and SIGTERM end it from now on.
    pub fn new(purpose: &str) -> Result<Stage, Failure> {
        let directory = std::env::temp_dir().join(format!("tidegate-{purpose}-{}", hex(&random::<6>())));
        fs::DirBuilder::new().mode(0o700).create(&directory).map_err(flashflow::other)?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        ctrlc::set_handler(move || stop.store(true, Ordering::Relaxed)).map_err(flashflow::other)?;
        Ok(Stage { processes: Vec::new(), directory, stopped })
    }

    /// Whether it was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Writes a file for a role.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.directory.join(name);
        let failed = |cause| Failure::Other(format!("{}: {cause}", path.display()));
        fs::write(&path, text).map_err(failed)?;
        Ok(path)
    }

    /// Starts a process that ends with the stage.
    pub fn spawn(&mut self, command: &mut Command) -> Result<Option<std::process::ChildStdout>, Failure> {
        let program = command.get_program().to_owned();
        let failed = |cause| Failure::Other(format!("cannot start {}: {cause}", program.display()));
        let mut child = command.stdin(Stdio::null()).spawn().map_err(failed)?;
        let output = child.stdout.take();
        self.processes.push(child);
        Ok(output)
    }

    /// Starts a role of ours; its events come out.
    pub fn role(&mut self, arguments: &[&str]) -> Result<Events, Failure> {
        let program = std::env::current_exe().map_err(flashflow::other)?;
        let mut command = Command::new(program);
        let output = self.spawn(command.args(arguments).arg("--owned").stdout(Stdio::piped()))?;
        let output = output.expect("it was asked for");
        let (tell, events) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
                if tell.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(Events { role: arguments[0].to_owned(), events, stopped: self.stopped.clone() })
    }

    /// Waits until `ready` has something.
    pub fn wait_for<T>(&self, what: &str, mut ready: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let end = clock::now() + STARTING;
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            if self.is_stopped() {
                return Err(Failure::Other("stopped".into()));
            }
            if clock::now() > end {
                return Err(Failure::Other(format!("{what}: not within {STARTING}")));
            }
            thread::sleep(LOOK);
        }
    }
}

/// What a role says.
pub struct Events {
    role: String,
    events: mpsc::Receiver<Value>,
    stopped: Arc<AtomicBool>,
}

impl Events {
    /// The next event of that kind.
    pub fn wait(&self, kind: &str) -> Result<Value, Failure> {
        let end = clock::now() + STARTING;
        let mut last = Value::Null;
        loop {
            match self.events.recv_timeout(LOOK) {
                Ok(event) if event["event"] == kind => return Ok(event),
                Ok(event) => last = event,
                Err(mpsc::RecvTimeoutError::Timeout) if clock::now() < end => {}
                Err(_) => {
                    let said = if last.is_null() { String::new() } else { format!("; it said {last}") };
                    return Err(Failure::Other(format!("the {} did not say `{kind}`{said}", self.role)));
                }
            }
            if self.stopped.load(Ordering::Relaxed) {
                return Err(Failure::Other("stopped".into()));
            }
        }
    }

    /// Where the role listens.
    pub fn address(&self) -> Result<SocketAddr, Failure> {
        let event = self.wait("listening")?;
        let address = event["address"].as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| Failure::Other(format!("the {} listens nowhere", self.role)))
    }

    /// What was said of that kind until now.
    pub fn said(&self, kind: &str) -> Vec<Value> {
        self.events.try_iter().filter(|event| event["event"] == kind).collect()
    }
}

/// An address on loopback that was free a moment ago.
pub fn free_address() -> Result<SocketAddr, Failure> {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(flashflow::other)
}

/// The bytes of a test file: a counter's SHA-256, block by block.
fn block(number: u64) -> [u8; 32] {
    Sha256::digest(number.to_be_bytes()).into()
}

/// Serves the test file over HTTP: `GET /1000` asks for 1000 bytes of it.
pub fn serve_file() -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(flashflow::other)?;
    let address = listener.local_addr().map_err(flashflow::other)?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // How a download ends its reader tells.
            thread::spawn(move || drop(send_file(stream)));
        }
    });
    Ok(address)
}

fn send_file(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).take(4096).lines();
    let line = lines.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let asked = line.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()?.parse::<usize>().ok());
    let Some(mut left) = asked else {
        return stream
            .write_all(b"HTTP/1.0 404 Not Found\r\n\r\nask for /1000, or how many bytes you like\n");
    };
    stream.write_all(format!("HTTP/1.0 200 OK\r\nContent-Length: {left}\r\n\r\n").as_bytes())?;
    let mut number = 0;
    while left > 0 {
        let blocks = left.div_ceil(32).min(2048) as u64;
        let bytes: Vec<u8> = (number..number + blocks).flat_map(block).take(left).collect();
        stream.write_all(&bytes)?;
        left -= bytes.len();
        number += blocks;
    }
    Ok(())
}

/// How a download went.
pub struct Download {
    /// Until the last byte.
    pub seconds: f64,
    /// SHA-256 of what came.
    pub digest: String,
    /// Whether it is the file.
    pub exact: bool,
}

/// Fetches so many bytes of the test file through a SOCKS5 proxy.
pub fn fetch(socks: SocketAddr, from: SocketAddr, bytes: u64) -> Result<Download, Failure> {
    let failed = |cause: std::io::Error| Failure::Other(format!("the download failed: {cause}"));
    let begun = clock::now();
    let mut stream = TcpStream::connect(socks).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(failed)?;
    let SocketAddr::V4(from) = from else { unreachable!("loopback of IPv4") };
    stream.write_all(&[5, 1, 0]).map_err(failed)?;
    let mut method = [0; 2];
    stream.read_exact(&mut method).map_err(failed)?;
    let request = [&[5, 1, 0, 1][..], &from.ip().octets(), &from.port().to_be_bytes()].concat();
    stream.write_all(&request).map_err(failed)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).map_err(failed)?;
    if (method, reply[1]) != ([5, 0], 0) {
        return Err(Failure::Other(format!("the proxy refused: SOCKS reply {}", reply[1])));
    }
    stream.write_all(format!("GET /{bytes} HTTP/1.0\r\n\r\n").as_bytes()).map_err(failed)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1024 {
        let mut byte = [0];
        stream.read_exact(&mut byte).map_err(failed)?;
        head.push(byte[0]);
    }
    let (mut hash, mut expected) = (Sha256::new(), Sha256::new());
    let (mut buffer, mut received, mut number) = (vec![0; 1 << 16], 0, 0);
    while received < bytes {
        let count = stream.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        hash.update(&buffer[..count]);
        received += count as u64;
    }
    let seconds = clock::now().since(begun).as_secs_f64();
    let mut left = bytes;
    while left > 0 {
        let take = left.min(32);
        expected.update(&block(number)[..take as usize]);
        (left, number) = (left - take, number + 1);
    }
    let digest = hash.finalize();
    Ok(Download { seconds, exact: received == bytes && digest == expected.finalize(), digest: hex(&digest) })
}

/// Prints how a download went, and whether it was right.
pub fn report(
    network: Value,
    bytes: Bytes,
    paths: &[Vec<String>],
    download: &Download,
    as_json: bool,
) -> ExitCode {
    if as_json {
        let mut document = json!({
            "bytes": bytes.0,
            "seconds": download.seconds,
            "bytes_per_s": bytes.0 as f64 / download.seconds,
            "sha256": download.digest,
            "exact": download.exact,
            "paths": paths,
        });
        if let (Some(document), Some(network)) = (document.as_object_mut(), network.as_object()) {
            document.extend(network.clone());
        }
        println!("{document}");
    } else {
        for path in paths {
            println!("path      {}", path.join(" -> "));
        }
        let rate = bytes.0 as f64 / download.seconds / 1e6;
        println!("fetched   {bytes} in {:.2} s ({rate:.2} MB/s)", download.seconds);
        println!(
            "SHA-256   {}, {}",
            download.digest,
            if download.exact { "as sent" } else { "NOT what was sent" }
        );
    }
    ExitCode::from(u8::from(!download.exact))
}

/// Waits until somebody stops the stage.
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

/// Whether a program of that name can be started.
pub fn is_installed(program: &Path) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}
