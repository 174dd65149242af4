//! The overlay of one system on hosts of an [`Underlay`]: a directory, relays, clients with fixed paths and endless
//! downloads. Bytes are counted where they enter and where they leave the overlay.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use tidegate_control::units::Span;
use tidegate_net::clock;
use tidegate_net::identity::{hex, random};
use tidegate_net::live::keys;

use super::plan::{Relay, User};
use crate::failure::Failure;
use crate::stage::{Events, Stage, status_of};
use crate::underlay::{Host, Underlay};

/// Ports of relays, of the directory, and on each host's loopback: of status pages, sources and the first client.
const RELAY: u16 = 9001;
const DIRECTORY: u16 = 9030;
const STATUS: u16 = 9100;
const SOURCE: u16 = 8000;
const SOCKS: u16 = 9200;
/// Sampling interval.
const SAMPLE: Span = Span::from_millis(20);
/// Timeout for data in flight to arrive after the sources stop.
const DRAIN: Span = Span::from_secs(15);

/// A user's counters at one moment.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    /// Time since the start of the downloads.
    pub at: Span,
    /// Cells that have left the exit's circuit queue.
    pub departed: u64,
    /// Payload bytes that the application has received.
    pub delivered: u64,
}

/// Processes, threads and files of a run; dropping it stops and removes them.
pub struct Overlay<'a> {
    underlay: &'a Underlay,
    relays: &'a [Relay],
    users: &'a [User],
    stage: Stage,
}

impl<'a> Overlay<'a> {
    /// Starts all roles; the directory runs on the last host. `system` is a `[system]` table.
    ///
    /// # Errors
    /// If a role does not start, with its last message.
    pub fn start(
        underlay: &'a Underlay,
        relays: &'a [Relay],
        users: &'a [User],
        system: &str,
    ) -> Result<Overlay<'a>, Failure> {
        let mut overlay = Overlay { underlay, relays, users, stage: Stage::unattended("live")? };
        let words = hex(&random::<16>());
        let token = overlay.write("token", &words)?;
        let at = SocketAddr::from((underlay.hosts[relays.len()].address, DIRECTORY)).to_string();
        let key = overlay.stage.directory.join("directory.key").display().to_string();
        let admits = ["--token-file", &token, "--allow-private-addresses"];
        let directory = [&["directory", "--listen", &at, "--key", &key], &admits[..]].concat();
        let directory = overlay.role(relays.len(), &directory)?;
        let authority = directory.wait("key")?["authority"].as_str().unwrap_or_default().to_owned();
        directory.address()?;
        let mut started = Vec::new();
        for (host, Relay { name, link }) in relays.iter().enumerate() {
            keys::create(&overlay.stage.directory.join(format!("{name}.keys"))).map_err(Failure::Other)?;
            let address = underlay.hosts[host].address;
            let config = format!(
                "nickname = \"{name}\"\nlisten = \"{address}:{RELAY}\"\nkeys = \"{name}.keys\"\n\
                 status = \"127.0.0.1:{STATUS}\"\nshow-circuits = true\nbandwidth = \"{} bit/s\"\n\
                 exit-policy = [\"accept 127.0.0.1:{SOURCE}\"]\nexit-to-private-addresses = true\nextend-to-private-addresses = true\n\n\
                 [directory]\naddress = \"{at}\"\ntoken = \"{words}\"\n\n{system}",
                link.0
            );
            let config = overlay.write(&format!("{name}.toml"), &config)?;
            started.push(overlay.role(host, &["relay", "--config", &config])?);
        }
        for relay in &started {
            relay.wait("announced")?;
        }
        let system = overlay.write("system.toml", system)?;
        for (number, user) in users.iter().enumerate() {
            let (host, path) = (overlay.host(&user.path[0]), user.path.join(","));
            let socks = SocketAddr::from((Ipv4Addr::LOCALHOST, SOCKS + number as u16)).to_string();
            let arguments = [
                "client",
                "--socks",
                &socks,
                "--directory",
                &at,
                "--authority",
                &authority,
                "--allow-private-addresses",
            ];
            let client =
                overlay.role(host, &[&arguments[..], &["--system", &system, "--path", &path]].concat())?;
            client.wait("directory")?;
        }
        Ok(overlay)
    }

    /// Returns the host of a relay.
    fn host(&self, relay: &str) -> usize {
        self.relays
            .iter()
            .position(|known| known.name == relay)
            .expect("the scenario was checked: paths name relays")
    }

    fn write(&self, name: &str, text: &str) -> Result<String, Failure> {
        Ok(self.stage.write(name, text)?.display().to_string())
    }

    /// Starts a role on a host.
    fn role(&mut self, host: usize, arguments: &[&str]) -> Result<Events, Failure> {
        let host = &self.underlay.hosts[host];
        self.stage.role_started_by(arguments, |mut command| {
            command.stderr(Stdio::null());
            host.run(move || command.spawn())
        })
    }

    /// Downloads for `duration`, waits for data in flight, and returns each user's samples.
    ///
    /// # Errors
    /// If a download does not start, or a relay's status cannot be read.
    pub fn load(&self, duration: Span, stopped: &dyn Fn() -> bool) -> Result<Vec<Vec<Sample>>, Failure> {
        let exits: Vec<usize> =
            self.users.iter().map(|user| self.host(&user.path[user.path.len() - 1])).collect();
        let over = Arc::new(AtomicBool::new(false));
        let mut counters: Vec<Exit> = Vec::new();
        for host in (0..self.relays.len()).filter(|host| exits.contains(host)) {
            let (over, asked) = (over.clone(), UsersByPort::default());
            let served = asked.clone();
            self.underlay.hosts[host].run(move || serve(over, served)).map_err(Failure::other)?;
            counters.push(Exit { host, asked, users: BTreeMap::new() });
        }
        let begun = clock::now();
        let mut downloads: Vec<Option<Download>> = self.users.iter().map(|_| None).collect();
        let mut samples = vec![Vec::new(); self.users.len()];
        let mut next = begun;
        let mut count = |downloads: &[Option<Download>], samples: &mut Vec<Vec<Sample>>| {
            for exit in &mut counters {
                for (user, departed) in exit.departed(&self.underlay.hosts[exit.host])? {
                    let delivered =
                        downloads[user].as_ref().map_or(0, |download| download.bytes.load(Ordering::Relaxed));
                    samples[user].push(Sample { at: clock::now().since(begun), departed, delivered });
                }
            }
            Ok::<_, Failure>(())
        };
        while clock::now().since(begun) < duration {
            if stopped() {
                return Err(Failure::Other("stopped".into()));
            }
            for (number, user) in self.users.iter().enumerate() {
                if downloads[number].is_none() && clock::now().since(begun) >= user.start {
                    let host = &self.underlay.hosts[self.host(&user.path[0])];
                    downloads[number] = Some(Download::begin(host, number)?);
                }
            }
            count(&downloads, &mut samples)?;
            next = (next + SAMPLE).max(clock::now());
            thread::sleep(Duration::from_nanos(next.since(clock::now()).0));
        }
        over.store(true, Ordering::Relaxed);
        let end = clock::now() + DRAIN;
        let is_over = |download: &Download| download.over.load(Ordering::Relaxed);
        while !downloads.iter().flatten().all(is_over) {
            if clock::now() > end {
                return Err(Failure::Other(format!("data in flight did not arrive within {DRAIN}")));
            }
            thread::sleep(Duration::from_nanos(SAMPLE.0));
        }
        count(&downloads, &mut samples)?;
        Ok(samples)
    }
}

/// Users of a source, by the source port of their connection.
type UsersByPort = Arc<Mutex<BTreeMap<u16, usize>>>;

/// An exit with the users of its circuits.
struct Exit {
    host: usize,
    asked: UsersByPort,
    /// Users by circuit id of the relay.
    users: BTreeMap<u64, usize>,
}

impl Exit {
    /// Reads how many cells each user's circuit has sent to the client.
    fn departed(&mut self, host: &Host) -> Result<Vec<(usize, u64)>, Failure> {
        let circuits = host.run(circuits).map_err(Failure::other)?;
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for Circuit { circuit, ports, sent_cells } in circuits {
            // The first stream identifies the user; the circuit stays theirs after the stream ends.
            if let Some(user) = ports.iter().find_map(|port| asked.get(port)) {
                self.users.insert(circuit, *user);
            }
            found.extend(self.users.get(&circuit).map(|user| (*user, sent_cells)));
        }
        Ok(found)
    }
}

/// Starts a source: each connection sends its user's number and then receives data until `over` is set.
fn serve(over: Arc<AtomicBool>, asked: UsersByPort) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, SOURCE))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (over, asked) = (over.clone(), asked.clone());
            // A small send buffer leaves little data in flight at the end.
            if rustix::net::sockopt::set_socket_send_buffer_size(&stream, 16 << 10).is_err() {
                return;
            }
            thread::spawn(move || {
                let mut user = [0; 2];
                stream.read_exact(&mut user)?;
                let port = stream.peer_addr()?.port();
                asked
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(port, u16::from_be_bytes(user).into());
                let bytes = vec![0; 16 << 10];
                while !over.load(Ordering::Relaxed) && stream.write_all(&bytes).is_ok() {}
                io::Result::Ok(())
            });
        }
    });
    Ok(())
}

/// A circuit in a relay's status.
#[derive(Deserialize)]
struct Circuit {
    circuit: u64,
    ports: Vec<u16>,
    sent_cells: u64,
}

/// Reads all circuits of the relay on this host.
fn circuits() -> io::Result<Vec<Circuit>> {
    let mut shown = status_of(SocketAddr::from((Ipv4Addr::LOCALHOST, STATUS)))?;
    serde_json::from_value(shown["circuit"].take()).map_err(io::Error::other)
}

/// A user's download.
struct Download {
    bytes: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
}

impl Download {
    /// Opens a download through the client with this number on a host, and reads in a new thread.
    fn begin(host: &Host, number: usize) -> Result<Download, Failure> {
        let (bytes, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ended) = (bytes.clone(), over.clone());
        let failed = |cause: io::Error| Failure::Other(format!("a download did not start: {cause}"));
        host.run(move || {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, SOCKS + number as u16))?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            stream.write_all(&[5, 1, 0])?;
            stream.read_exact(&mut [0; 2])?;
            stream.write_all(&[&[5, 1, 0, 1, 127, 0, 0, 1][..], &SOURCE.to_be_bytes()].concat())?;
            thread::spawn(move || {
                let (mut reply, mut buffer) = ([0; 10], vec![0; 64 << 10]);
                let who = (number as u16).to_be_bytes();
                if stream.read_exact(&mut reply).is_ok() && reply[1] == 0 && stream.write_all(&who).is_ok() {
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        counted.fetch_add(count as u64, Ordering::Relaxed);
                    }
                }
                ended.store(true, Ordering::Relaxed);
            });
            Ok(())
        })
        .map_err(failed)?;
        Ok(Download { bytes, over })
    }
}
