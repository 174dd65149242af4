//! `tidegate overlay demo --measured`: the loop closed. FlashFlow measures relays that carry users' streams, the
//! directory publishes the result, and clients select by it.
//!
//! Five relays of different bandwidth; the slowest says ten times its bandwidth, unless all are honest. Users download
//! before and after the measurement, and while it runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use tidegate_control::units::{Bytes, Rate, Span, Time};
use tidegate_net::clock;
use tidegate_net::identity::{Identity, hex, unhex};
use tidegate_net::live::directory::{self, Directory, Entry};

use super::download::{Download, fetch};
use super::own::{Network, RelaySetup};
use crate::commands::flashflow::local::{Processes, identity, measurer, spawn, write};
use crate::failure::Failure;
use crate::stage::{Events, Stage, page_of};

/// Bandwidths of the relays, the liar's first. A relay below 13 Mbit/s with users would be underestimated: proposal 316
/// lets it forward as much for users as beside 10 Mbit/s of measurement, and counts a third of the measurement.
const BANDWIDTHS: [Rate; 5] =
    [Rate(16_000_000), Rate(20_000_000), Rate(24_000_000), Rate(32_000_000), Rate(48_000_000)];
/// Factor by which the liar overstates itself.
const LIE: u64 = 10;
/// Size of each download, unless the user asks for another.
pub const MEASURED_LOAD: Bytes = Bytes(1_000_000);
/// Measurers, and the capacity that the coordinator assumes for each.
const MEASURERS: usize = 2;
const CAPACITY: Rate = Rate(1_000_000_000);
/// First guess of a relay's capacity: above all of them, so that one measurement is conclusive.
const FIRST_GUESS: &str = "64 Mbit/s";
/// Sockets to each relay, over all measurers.
const SOCKETS: u16 = 12;
/// How long users begin downloads before and after the measurement, one after the other.
pub const LOAD: Span = Span::from_secs(20);
/// Users that go on downloading during the measurement.
const BUSY: usize = 2;

/// Parameters of the demonstration.
pub struct Measurement {
    /// No relay overstates itself.
    pub honest: bool,
    /// Number of users; each is a client with its own guard.
    pub users: u16,
    /// Size of each download.
    pub bytes: Bytes,
    /// Length of a measurement.
    pub duration: Span,
    /// Print the result as one JSON object.
    pub json: bool,
}

/// One relay: its bandwidth, its own claim, and its weights.
struct Row {
    nickname: String,
    /// True bandwidth, bits per second.
    is: u64,
    /// Bandwidth that it publishes.
    says: u64,
    /// Published weights: before the measurement, and after.
    weights: [u64; 2],
}

/// A network in which FlashFlow measures relays and clients select by the published weights.
pub trait World {
    /// The relays by number: fingerprint in hexadecimal, and address.
    fn relays(&self) -> Result<Vec<(String, SocketAddr)>, Failure>;
    /// The published weights of the relays, in their order, in any unit.
    fn weights(&self) -> Result<Vec<u64>, Failure>;
    /// Waits until the weights of this bandwidth file are published.
    fn await_weights(&self, file: &Path) -> Result<(), Failure>;
    /// Starts a client, which has its own guard. Returns its SOCKS address.
    fn user(&mut self) -> Result<SocketAddr, Failure>;
    /// Ends all clients.
    fn end_users(&mut self);
    /// The server with the test file.
    fn file(&self) -> SocketAddr;
    /// The network's processes.
    fn stage(&self) -> &Stage;
}

/// FlashFlow's coordinator and the relays' certificates, in the folder of a network.
pub struct Team {
    folder: PathBuf,
    coordinator: String,
    identities: Vec<Identity>,
    roles: Processes,
}

impl Team {
    /// Generates the keys of all roles.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn new(folder: &Path) -> Result<Team, Failure> {
        let coordinator = hex(&identity(folder, "coordinator")?.fingerprint());
        let numbers = 0..BANDWIDTHS.len();
        let identities = numbers.map(|number| identity(folder, &format!("flashflow{number}")));
        let identities = identities.collect::<Result<_, _>>()?;
        Ok(Team { folder: folder.to_owned(), coordinator, identities, roles: Processes(Vec::new()) })
    }

    /// The bandwidth file.
    pub fn file(&self) -> PathBuf {
        self.folder.join("v3bw")
    }

    /// The configurations of the relays.
    pub fn setups(&self, asked: &Measurement) -> Vec<RelaySetup> {
        (0..BANDWIDTHS.len()).map(|number| setup(number, asked, &self.coordinator)).collect()
    }
}

/// Users download, FlashFlow measures, the weights are published, and users download again.
///
/// The team ends before the world, because its coordinator writes to the world's folder.
///
/// # Errors
/// If a role does not start, or the measurement is incomplete.
pub fn compare(asked: &Measurement, mut team: Team, world: &mut dyn World) -> Result<ExitCode, Failure> {
    let before = world.weights()?;
    let users = users(world, asked)?;
    let first = download(users.clone(), world, asked)?;
    let config = coordinator_config(asked, world, &mut team)?;
    let busy = Busy::start(&users, world.file(), asked.bytes.0);
    let (events, quiet) = (spawn(&mut team.roles, "coordinator", &config, &["--once"])?, asked.json);
    let measured = world.stage().unless_stopped(move || follow(events, quiet));
    if matches!(measured, Err(Failure::Stopped)) {
        return Err(Failure::Stopped);
    }
    let meanwhile = busy.stop();
    world.end_users();
    let estimates = measured?;
    world.await_weights(&team.file())?;
    let after = world.weights()?;
    let second = download(self::users(world, asked)?, world, asked)?;
    world.end_users();
    let rows = (0..BANDWIDTHS.len()).map(|number| Row {
        nickname: format!("relay{number}"),
        is: BANDWIDTHS[number].0,
        says: said(number, asked).0,
        weights: [before[number], after[number]],
    });
    Ok(report(asked, &rows.collect::<Vec<_>>(), &estimates, [&first, &second], &meanwhile))
}

/// Runs the demonstration in an overlay of this project.
///
/// # Errors
/// As [`compare`].
pub fn main(asked: &Measurement) -> Result<ExitCode, Failure> {
    let stage = Stage::new("measured")?;
    let team = Team::new(&stage.directory)?;
    let file = team.file().display().to_string();
    let system = "[system]\nname = \"vanilla\"\n".to_owned();
    let network = Network::start(stage, &system, &team.setups(asked), &["--bandwidth-file", &file])?;
    compare(asked, team, &mut Overlay { network, clients: Vec::new() })
}

/// An overlay of this project.
struct Overlay {
    network: Network,
    clients: Vec<Events>,
}

impl World for Overlay {
    fn relays(&self) -> Result<Vec<(String, SocketAddr)>, Failure> {
        let directory = listed(&self.network)?;
        let relays = self.network.relays.iter().enumerate();
        let found =
            relays.map(|(number, relay)| Ok((hex(&entry(&directory, number)?.fingerprint), relay.address)));
        found.collect()
    }

    fn weights(&self) -> Result<Vec<u64>, Failure> {
        let directory = listed(&self.network)?;
        let numbers = 0..self.network.relays.len();
        numbers.map(|number| Ok(directory.weight(entry(&directory, number)?))).collect()
    }

    fn await_weights(&self, _: &Path) -> Result<(), Failure> {
        loop {
            let event = self.network.directory_events.wait("measured")?;
            if event["relays"].as_u64() == Some(BANDWIDTHS.len() as u64) {
                return Ok(());
            }
        }
    }

    fn user(&mut self) -> Result<SocketAddr, Failure> {
        let (events, socks) = self.network.client(SocketAddr::from(([127, 0, 0, 1], 0)), &[])?;
        self.clients.push(events);
        Ok(socks)
    }

    fn end_users(&mut self) {
        self.clients.drain(..).for_each(|client| self.network.stage.kill(client.process));
    }

    fn file(&self) -> SocketAddr {
        self.network.file
    }

    fn stage(&self) -> &Stage {
        &self.network.stage
    }
}

/// The entry of relay `number`.
fn entry(directory: &Directory, number: usize) -> Result<&Entry, Failure> {
    let name = format!("relay{number}");
    let found = directory.relays.iter().find(|entry| entry.nickname == name);
    found.ok_or_else(|| Failure::Other(format!("the directory does not list {name}")))
}

/// The configuration of relay `number`.
fn setup(number: usize, asked: &Measurement, coordinator: &str) -> RelaySetup {
    let says = said(number, asked);
    let seconds = (asked.duration.0.div_ceil(1_000_000_000) + 30).clamp(45, 120);
    RelaySetup {
        keys: format!("published-bandwidth = \"{says}\"\n"),
        tables: format!(
            "[measurement]\nidentity = \"flashflow{number}.key\"\nallowed = true\ncoordinators = [\"{coordinator}\"]\n\
             max-duration = \"{seconds} s\"\n\n"
        ),
        ..RelaySetup::new(&BANDWIDTHS[number].to_string())
    }
}

fn said(number: usize, asked: &Measurement) -> Rate {
    let lies = number == 0 && !asked.honest;
    Rate(BANDWIDTHS[number].0 * if lies { LIE } else { 1 })
}

/// Fetches and checks the directory.
fn listed(network: &Network) -> Result<Directory, Failure> {
    let failed = |cause: &dyn std::fmt::Display| Failure::Other(format!("the directory: {cause}"));
    let key = unhex(&network.authority).ok_or_else(|| failed(&"it printed no key"))?;
    let page = page_of(network.directory, "/directory").map_err(|cause| failed(&cause))?;
    directory::check(&page, &key, clock::unix(), 0).map_err(|cause| failed(&cause))
}

/// Starts the measurers. Returns the coordinator's configuration file.
fn coordinator_config(asked: &Measurement, world: &dyn World, team: &mut Team) -> Result<PathBuf, Failure> {
    let slot = asked.duration.0.div_ceil(1_000_000_000) + 15;
    let mut config = format!(
        "identity = \"coordinator.key\"\nstate = \"state\"\nbandwidth-file = \"v3bw\"\nslot = \"{slot} s\"\n\
         first-guess = \"{FIRST_GUESS}\"\n\n[parameters]\nduration = \"{}\"\nsockets = {SOCKETS}\n",
        asked.duration
    );
    for (number, ((id, address), identity)) in world.relays()?.iter().zip(&team.identities).enumerate() {
        config.push_str(&format!(
            "\n[[relay]]\nnickname = \"relay{number}\"\nid = \"{id}\"\naddress = \"{address}\"\n\
             fingerprint = \"{}\"\nonion-key = \"{}\"\n",
            hex(&identity.fingerprint()),
            hex(&identity.relay_public().onion),
        ));
    }
    for number in 0..MEASURERS {
        let entry = measurer(&mut team.roles, &team.folder, number, &team.coordinator, CAPACITY)?;
        config.push_str(&entry);
    }
    let path = team.folder.join("coordinator.toml");
    write(&path, &config)?;
    Ok(path)
}

/// Follows the coordinator. Returns each relay's last estimate, bits per second.
fn follow(events: impl Iterator<Item = Value>, quiet: bool) -> Result<BTreeMap<String, u64>, Failure> {
    let (mut estimates, mut failure) = (BTreeMap::new(), None);
    for event in events {
        let relay = event["relay"].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str() {
            Some("result") => {
                let estimate = event["estimate_bits_per_s"].as_u64().unwrap_or(0);
                if !quiet {
                    let verdict = if event["conclusive"] == true { "" } else { ", a lower bound" };
                    println!("measured  {relay}: {}{verdict}", Rate(estimate));
                }
                estimates.insert(relay, estimate);
            }
            Some("failure") => {
                failure = Some(format!("{relay}: {}", event["cause"].as_str().unwrap_or("failed")))
            }
            _ => {}
        }
    }
    if estimates.len() < BANDWIDTHS.len() {
        let why = failure.unwrap_or_else(|| "no measurement completed".into());
        return Err(Failure::Other(format!("FlashFlow measured {} of the relays; {why}", estimates.len())));
    }
    Ok(estimates)
}

type Downloads = Vec<Result<Download, Failure>>;

/// Starts the clients of all users.
fn users(world: &mut dyn World, asked: &Measurement) -> Result<Vec<SocketAddr>, Failure> {
    (0..asked.users).map(|_| world.user()).collect()
}

/// All users download for a while, each time over a new circuit.
fn download(users: Vec<SocketAddr>, world: &dyn World, asked: &Measurement) -> Result<Downloads, Failure> {
    let (file, bytes) = (world.file(), asked.bytes.0);
    world.stage().unless_stopped(move || Ok(download_until(clock::now() + LOAD, &users, file, bytes)))
}

fn download_until(end: Time, users: &[SocketAddr], file: SocketAddr, bytes: u64) -> Downloads {
    let work = |socks: SocketAddr| {
        let rounds = (0..u16::MAX).take_while(move |_| clock::now() < end);
        thread::spawn(move || rounds.map(|round| fetch(round, socks, file, bytes)).collect::<Vec<_>>())
    };
    let working: Vec<_> = users.iter().map(|socks| work(*socks)).collect();
    working.into_iter().flat_map(|user| user.join().expect("download threads do not panic")).collect()
}

/// Users that download without pause.
struct Busy {
    stop: Arc<AtomicBool>,
    users: Vec<thread::JoinHandle<Downloads>>,
}

impl Busy {
    /// Some of the users download until they are stopped.
    fn start(users: &[SocketAddr], file: SocketAddr, bytes: u64) -> Busy {
        let stop = Arc::<AtomicBool>::default();
        let work = |socks: SocketAddr| {
            let stop = stop.clone();
            thread::spawn(move || {
                let mut done = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    done.push(fetch(0, socks, file, bytes));
                }
                done
            })
        };
        let users = users.iter().take(BUSY).map(|socks| work(*socks)).collect();
        Busy { stop, users }
    }

    fn stop(self) -> Downloads {
        self.stop.store(true, Ordering::Relaxed);
        let users = self.users.into_iter();
        users.flat_map(|user| user.join().expect("download threads do not panic")).collect()
    }
}

/// The median of the times of exact downloads, in seconds.
fn median(downloads: &[Result<Download, Failure>]) -> Option<f64> {
    let exact = downloads.iter().flatten().filter(|download| download.exact());
    tidegate_lab::statistics::median(exact.map(|download| download.seconds).collect())
}

/// Prints the result. The exit code is 1 if a download was not exact.
fn report(
    asked: &Measurement,
    rows: &[Row],
    estimates: &BTreeMap<String, u64>,
    phases: [&[Result<Download, Failure>]; 2],
    meanwhile: &[Result<Download, Failure>],
) -> ExitCode {
    let exact = |all: &[Result<Download, Failure>]| all.iter().flatten().filter(|one| one.exact()).count();
    let wrong = phases.iter().chain([&meanwhile]).any(|all| exact(all) < all.len());
    let total = |at: usize| rows.iter().map(|row| row.weights[at]).sum::<u64>() as f64;
    let share = |row: &Row, at: usize| row.weights[at] as f64 / total(at);
    if asked.json {
        let relays = rows.iter().map(|row| {
            json!({ "nickname": row.nickname, "bits_per_s": row.is, "says_bits_per_s": row.says,
                "estimate_bits_per_s": estimates.get(&row.nickname), "weight_before": share(row, 0),
                "weight_after": share(row, 1) })
        });
        let phase = |all: &[Result<Download, Failure>]| {
            json!({ "downloads": all.len(), "exact": exact(all), "median_s": median(all),
                "seconds": all.iter().flatten().map(|one| one.seconds).collect::<Vec<_>>() })
        };
        let said = json!({ "honest": asked.honest, "users": asked.users, "bytes": asked.bytes.0,
            "relay": relays.collect::<Vec<_>>(), "before": phase(phases[0]), "after": phase(phases[1]),
            "meanwhile": phase(meanwhile) });
        println!("{said}");
    } else {
        for row in rows {
            println!(
                "{}    {:>12} says {:>12}: selected with {:>3.0} % before, {:>3.0} % after",
                row.nickname,
                Rate(row.is).to_string(),
                Rate(row.says).to_string(),
                100.0 * share(row, 0),
                100.0 * share(row, 1)
            );
        }
        for (name, all) in ["before", "after "].into_iter().zip(phases).chain([("during", meanwhile)]) {
            let seconds = median(all).map_or("none exact".into(), |seconds| format!("median {seconds:.1} s"));
            println!(
                "{name}    {} of {} downloads of {} exact, {seconds}",
                exact(all),
                all.len(),
                asked.bytes
            );
        }
    }
    ExitCode::from(u8::from(wrong))
}
