//! `tidegate overlay tornet`: a private Tor network on this machine with stock tor as authority and client; some or all
//! relays are Tidegate.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tidegate_control::units::{Bytes, Span};
use tidegate_kernel::cpu_s_of;
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_net::identity::hex;
use tidegate_net::live::keys;
use tidegate_net::os;
use tidegate_net::private_tor::{self, Network};

use super::download::{fetch_over, report, serve_file};
use super::measured::{MEASURED_LOAD, Measurement};
use super::onion_service;
use super::own::{SHOWN, VANILLA, relay_file, system_table, systems};
use super::tor_client::{Hops, start_client};
use super::tornet_measured;
use super::tornet_soak::{self, Relays};
use crate::commands::relay;
use crate::failure::Failure;
use crate::roles::need_tor;
use crate::stage::{Stage, status_of, until_stopped};

/// Run a private Tor network on this machine, with stock tor as authority and client
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate overlay tornet --at guard,middle,exit --bytes \"10 MB\"")]
pub struct TornetArgs {
    /// Download this much, check it and exit [default: run until Ctrl-C]
    #[arg(long)]
    bytes: Option<Bytes>,
    /// Print one JSON object per place
    #[arg(long)]
    json: bool,
    /// Use Tidegate relays at these places of a path and stock tor elsewhere; one client per place
    #[arg(long, value_enum, default_value = "all", value_delimiter = ',')]
    at: Vec<Place>,
    /// Download this many times, each over a new stream, up to 32 at once [default: once per circuit]
    #[arg(long, requires = "bytes", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    streams: Option<u32>,
    /// Download over this many circuits at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=20))]
    circuits: u8,
    /// Download after the client has linked circuits in pairs (Conflux)
    #[arg(long, requires = "bytes", conflicts_with = "beside_stock")]
    linked: bool,
    /// Run this system on the Tidegate relays
    #[arg(long, default_value = VANILLA, value_parser = systems())]
    system: String,
    /// Run each Tidegate relay on this many threads
    #[arg(long, conflicts_with = "measured", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Compare a Tidegate relay with a stock relay at each place, in bytes forwarded per CPU second
    #[arg(long, requires = "bytes")]
    beside_stock: bool,
    /// Measure Tidegate relays with FlashFlow, let stock authorities read the bandwidth file, and download before and
    /// after; one relay overstates itself
    #[arg(long, conflicts_with_all = ["at", "streams", "circuits", "linked", "system", "beside_stock"])]
    measured: bool,
    /// No relay overstates itself
    #[arg(long, requires = "measured")]
    honest: bool,
    /// Length of each relay's measurement in whole seconds (the paper uses 30 s)
    #[arg(long, requires = "measured", default_value = "10 s")]
    duration: Span,
    /// Let this many users download, each with its own tor client
    #[arg(long, requires = "measured", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=100))]
    users: u16,
    /// Download from a stock onion service that meets the client over Tidegate relays alone
    #[arg(long, requires = "bytes", conflicts_with_all = ["beside_stock", "linked", "at", "measured"])]
    onion_service: bool,
    /// Load the relays with stock clients, an onion service and hostile connections until then, and check bytes, memory
    /// and tor's warnings
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["bytes", "at", "measured", "circuits"])]
    soak: Option<Span>,
    /// Use this tor program; `tor-gencert` must be beside it or on the path
    #[arg(long, default_value = "tor")]
    tor: PathBuf,
}

/// Places in a path.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Place {
    Guard,
    Middle,
    Exit,
    /// Every place
    All,
    /// Any place that tor chooses
    Any,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Guard => "guard",
            Place::Middle => "middle",
            Place::Exit => "exit",
            Place::All => "all",
            Place::Any => "any",
        }
    }

    /// Returns the relays for each hop: `there` in this place, `elsewhere` in others; `None` means any path.
    fn hops<'a>(self, there: &'a [String], elsewhere: &'a [String]) -> Option<Hops<'a>> {
        let hop = |hop| if self == Place::All || self == hop { there } else { elsewhere };
        (self != Place::Any).then(|| [Place::Guard, Place::Middle, Place::Exit].map(hop))
    }
}

/// Number of Tidegate relays, and of stock relays if they are needed.
const RELAYS: usize = 4;
/// Turns of each side of a comparison.
const TURNS: u64 = 5;

/// Runs the subcommand.
pub fn main(arguments: &TornetArgs) -> Result<ExitCode, Failure> {
    check_system(arguments)?;
    need_tor(&arguments.tor)?;
    if arguments.measured {
        let &TornetArgs { honest, users, duration, json, .. } = arguments;
        let bytes = arguments.bytes.unwrap_or(MEASURED_LOAD);
        return tornet_measured::main(&Measurement { honest, users, bytes, duration, json }, &arguments.tor);
    }
    if arguments.beside_stock && arguments.at.contains(&Place::Any) {
        let cause = "`any` cannot be combined with --beside-stock";
        return Err(Failure::Input(InputError::new("--at", cause, "name guard, middle, exit or all")));
    }
    let mut stage = Stage::new("tornet")?;
    let mut network =
        Network::new(&arguments.tor, &stage.directory.join("tor"), 1).map_err(Failure::other)?;
    let with_service = arguments.onion_service || arguments.soak.is_some();
    let count = if with_service { onion_service::RELAYS } else { RELAYS };
    let names: Vec<String> = (0..count).map(|number| format!("tide{number}")).collect();
    let options = with_service.then(|| onion_service::authority_options(&names));
    network.start(&options.unwrap_or_default()).map_err(Failure::other)?;
    let ours = start_relays(&mut stage, network.authority(), arguments, names)?;
    let mut stock = Vec::new();
    if arguments.beside_stock || arguments.at.iter().any(|place| *place != Place::All) {
        for number in 0..RELAYS {
            let relay = network.relay(&format!("stock{number}")).map_err(Failure::other)?;
            network.run_relay(&relay, private_tor::RELAY).map_err(Failure::other)?;
            stock.push(relay.name);
        }
    }
    let listed: Vec<String> =
        ours.iter().map(|relay| &relay.name).chain(&stock).map(|name| format!("\nr {name} ")).collect();
    stage.wait_for("a consensus that lists all relays", || network.lists(&listed).then_some(()))?;
    stage.wait_for("stock relays that have the consensus", || {
        stock.iter().all(|name| network.knows(name, &listed)).then_some(())
    })?;

    let mut tornet = Tornet { stage, network, ours, stock, file: serve_file()? };
    if let (true, Some(bytes)) = (arguments.onion_service, arguments.bytes) {
        return tornet.meet(bytes, arguments);
    }
    if let Some(duration) = arguments.soak {
        return tornet.soak(duration, arguments.json);
    }
    let mut wrong = false;
    for place in &arguments.at {
        wrong |= match arguments.bytes {
            Some(bytes) if arguments.beside_stock => tornet.compare(*place, bytes, arguments)?,
            Some(bytes) => tornet.download(*place, bytes, arguments)?,
            None => tornet.invite(*place)?,
        };
    }
    if arguments.bytes.is_none() {
        until_stopped(&tornet.stage, || {});
    }
    Ok(ExitCode::from(u8::from(wrong)))
}

/// A Tidegate relay.
struct TidegateRelay {
    name: String,
    process: u32,
    /// Address for other nodes.
    address: SocketAddr,
    /// Address of the status page.
    status: SocketAddr,
}

/// A running network.
struct Tornet {
    stage: Stage,
    network: Network,
    ours: Vec<TidegateRelay>,
    stock: Vec<String>,
    file: SocketAddr,
}

impl Tornet {
    fn invite(&mut self, place: Place) -> Result<bool, Failure> {
        let name = format!("client-{}", place.name());
        let ours = self.names();
        let hops = place.hops(&ours, &self.stock);
        let socks = start_client(&self.stage, &mut self.network, &name, hops, "")?;
        let file = self.file;
        println!(
            "stock tor's SOCKS port is {socks}; Tidegate relays in its paths: {}; Ctrl-C stops it",
            place.name()
        );
        println!("try: curl --socks5-hostname {socks} http://{file}/1000000 | sha256sum");
        Ok(false)
    }

    /// Downloads through Tidegate relays in that place; returns whether the file was wrong.
    fn download(&mut self, place: Place, bytes: Bytes, arguments: &TornetArgs) -> Result<bool, Failure> {
        let name = format!("client-{}", place.name());
        let ours = self.names();
        let hops = place.hops(&ours, &self.stock);
        let socks = start_client(&self.stage, &mut self.network, &name, hops, "")?;
        let files = self.network.files_of(&name);
        if arguments.linked {
            let is_linked = || circuits(&files).is_ok_and(|all| all.contains("PURPOSE=CONFLUX_LINKED"));
            self.stage.wait_for("linked circuits", || is_linked().then_some(()))?;
        }
        let streams = arguments.streams.unwrap_or(arguments.circuits.into());
        let download = fetch_over((arguments.circuits.into(), streams), socks, self.file, bytes.0)?;
        let (congestion_control, cgo) = (self.agreed("congestion_control")?, self.agreed("cgo")?);
        let linked = self.linked()?;
        let paths = built_paths(&circuits(&files).map_err(Failure::other)?, TO_EXITS);
        let warnings = self.network.warnings();
        if !arguments.json {
            warnings.iter().for_each(|line| println!("tor says  {line}"));
        }
        let facts = json!({ "at": place.name(), "relays": ours, "stock": self.stock, "warnings": warnings,
            "streams": streams, "congestion_control": congestion_control, "cgo": cgo, "linked_cells": linked });
        Ok(report(facts, bytes, &paths, &download, arguments.json) != ExitCode::SUCCESS)
    }

    /// Downloads from an onion service. The exit code is 1 if the file was wrong.
    fn meet(&mut self, bytes: Bytes, arguments: &TornetArgs) -> Result<ExitCode, Failure> {
        let ours = self.names();
        let onion = onion_service::start(&self.stage, &mut self.network, self.file)?;
        let options = onion_service::ONLY_OURS;
        let socks = start_client(&self.stage, &mut self.network, "client", None, options)?;
        let streams = arguments.streams.unwrap_or(arguments.circuits.into());
        let counts = (arguments.circuits.into(), streams);
        let download = onion_service::download(&self.stage, socks, &onion, counts, bytes.0)?;
        let [client, service] = ["client", onion_service::NAME].map(|name| self.network.files_of(name));
        let [client, service] = [circuits(&client), circuits(&service)];
        let (client, service) = (client.map_err(Failure::other)?, service.map_err(Failure::other)?);
        let paths = built_paths(&client, &["HS_CLIENT_REND"]);
        let service_paths = built_paths(&service, &["HS_SERVICE_REND"]);
        let introduction_paths = built_paths(&service, &["HS_SERVICE_INTRO"]);
        let facts = json!({ "at": "onion-service", "onion": onion, "relays": ours, "stock": self.stock,
            "service_paths": service_paths, "introduction_paths": introduction_paths, "streams": streams,
            "cgo": self.agreed("cgo")?, "warnings": self.network.warnings() });
        Ok(report(facts, bytes, &paths, &download, arguments.json))
    }

    /// Loads the Tidegate relays with everything at once.
    fn soak(&mut self, duration: Span, json: bool) -> Result<ExitCode, Failure> {
        let processes = self.ours.iter().map(|relay| relay.process).collect();
        let relays = Relays { processes, attacked: self.ours[0].address };
        tornet_soak::main(&self.stage, &mut self.network, &relays, self.file, (duration, json))
    }

    /// Compares Tidegate relays in that place with as many stock relays, in bytes forwarded per CPU second.
    fn compare(&mut self, place: Place, bytes: Bytes, arguments: &TornetArgs) -> Result<bool, Failure> {
        let count = match place {
            Place::All => 3,
            _ => 1,
        };
        let ours = self.names()[..count].to_vec();
        let (there, elsewhere) = self.stock.split_at(count);
        let mut sides = Vec::new();
        let once = (arguments.circuits.into(), arguments.circuits.into());
        for (who, there) in [("ours", &ours[..]), ("stock", there)] {
            let process = |name: &String| match self.ours.iter().find(|relay| relay.name == *name) {
                Some(relay) => Some(relay.process),
                None => self.network.process(name),
            };
            let processes: Vec<u32> = there.iter().filter_map(process).collect();
            let (name, hops) = (format!("client-{}-{who}", place.name()), place.hops(there, elsewhere));
            // Conflux would spread a stream over two relays of the same place.
            let socks = start_client(&self.stage, &mut self.network, &name, hops, "ConfluxEnabled 0\n")?;
            // Build the circuits before the measurement. A stock client that loses its first circuit waits for a minute
            // until it builds another.
            let prepare = || fetch_over(once, socks, self.file, 100_000);
            prepare()
                .or_else(|_| prepare())
                .map_err(|why| Failure::Other(format!("before the measurement, through {who}: {why}")))?;
            sides.push((who, processes, socks));
        }
        // A machine's speed changes within a minute, so the two take turns.
        let (mut spent, each) = ([0.0; 2], bytes.0.div_ceil(TURNS));
        for turn in 1..=TURNS {
            for ((who, processes, socks), spent) in sides.iter().zip(&mut spent) {
                let used = || processes.iter().filter_map(|process| cpu_s_of(*process)).sum::<f64>();
                let before = used();
                let fetched = fetch_over(once, *socks, self.file, each)
                    .map_err(|why| Failure::Other(format!("through {who}, turn {turn} of {TURNS}: {why}")))?;
                if !fetched.exact() {
                    return Err(Failure::Other(format!("the download through {who} is not what was sent")));
                }
                *spent += used() - before;
            }
        }
        let circuits = arguments.circuits;
        let [ours, stock] =
            spent.map(|spent| f64::from(circuits) * (each * TURNS) as f64 / f64::max(spent, 1e-9));
        if arguments.json {
            let said = json!({ "at": place.name(), "circuits": circuits, "ours_bytes_per_cpu_s": ours,
                "stock_bytes_per_cpu_s": stock, "ratio": ours / stock });
            println!("{said}");
        } else {
            let (name, times) = (place.name(), ours / stock);
            let [ours, stock] = [ours, stock].map(|rate| rate / 1e6);
            println!(
                "{name}, {circuits} circuits: ours {ours:.0}, stock {stock:.0} MB per CPU-second: {times:.2} times"
            );
        }
        Ok(false)
    }

    fn names(&self) -> Vec<String> {
        self.ours.iter().map(|relay| relay.name.clone()).collect()
    }

    /// Cells that Tidegate exits have sent on each linked circuit (Conflux).
    fn linked(&self) -> Result<Vec<u64>, Failure> {
        let mut cells = Vec::new();
        for relay in &self.ours {
            let shown = status_of(relay.status).map_err(Failure::other)?;
            let circuits = shown["circuit"].as_array().into_iter().flatten();
            let linked = circuits.filter(|circuit| circuit["linked"].is_u64());
            cells.extend(linked.filter_map(|circuit| circuit["sent_cells"].as_u64()));
        }
        Ok(cells)
    }

    /// Counts circuits on which the client and a Tidegate relay have agreed on something.
    fn agreed(&self, on: &str) -> Result<usize, Failure> {
        let mut agreed = 0;
        for relay in &self.ours {
            let shown = status_of(relay.status).map_err(Failure::other)?;
            let circuits = shown["circuit"].as_array().into_iter().flatten();
            agreed += circuits.filter(|circuit| circuit[on] == true).count();
        }
        Ok(agreed)
    }
}

/// The configuration file of a relay.
fn config(name: &str, authority: SocketAddr, arguments: &TornetArgs) -> String {
    // What a relay's test of itself observes is in its second descriptor. Until then it would have no weight, and clients few
    // relays to choose from.
    let rates = "bandwidth = \"10 Gbit/s\"\npublished-bandwidth = \"10 Gbit/s\"\n";
    let keys = format!("{SHOWN}{rates}threads = {}\n", arguments.threads);
    let tables = format!("[tor]\nauthority = \"{authority}\"\n\n{}", system_table(&arguments.system));
    relay_file(name, "*:*", &keys, &tables)
}

/// Refuses a system that relays of a Tor network cannot run, before a network starts.
fn check_system(arguments: &TornetArgs) -> Result<(), InputError> {
    let any = SocketAddr::from(([127, 0, 0, 1], 1));
    let source = SourceFile { file: "relay.toml".into(), text: config("tide0", any, arguments) };
    relay::check_without_keys(&source).map_err(|why| {
        let cause = format!("{}: {}", arguments.system, why.cause);
        InputError::new("--system", cause, "choose another system, or other --threads")
    })
}

/// Starts the Tidegate relays.
fn start_relays(
    stage: &mut Stage,
    authority: SocketAddr,
    arguments: &TornetArgs,
    names: Vec<String>,
) -> Result<Vec<TidegateRelay>, Failure> {
    let mut started = Vec::new();
    for name in names {
        keys::create(&stage.directory.join(format!("{name}.keys"))).map_err(Failure::Other)?;
        let config = stage.write(&format!("{name}.toml"), &config(&name, authority, arguments))?;
        started.push((name, stage.role(&["relay", "--config", &config.display().to_string()])?));
    }
    let mut relays = Vec::new();
    for (name, events) in started {
        let (address, status) = (events.address()?, events.address_of("status")?);
        events.wait("announced")?;
        relays.push(TidegateRelay { name, process: events.process, address, status });
    }
    Ok(relays)
}

/// Reads the circuit list of a client from its control port.
fn circuits(client: &Path) -> std::io::Result<String> {
    let mut control = os::connect_and_block(&client.join("control"))?;
    let cookie = fs::read(client.join("control_auth_cookie"))?;
    write!(control, "AUTHENTICATE {}\r\nGETINFO circuit-status\r\nQUIT\r\n", hex(&cookie))?;
    let mut told = String::new();
    control.read_to_string(&mut told)?;
    Ok(told)
}

/// Purposes of circuits with exit streams. Clients with Conflux send over linked circuits.
const TO_EXITS: &[&str] = &["GENERAL", "CONFLUX_LINKED"];

/// Extracts the paths of built circuits with these purposes, as nicknames.
fn built_paths(circuits: &str, purposes: &[&str]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for line in circuits.lines() {
        let words: Vec<&str> = line.trim_start_matches("250+circuit-status=").split(' ').collect();
        if let [_, "BUILT", path, rest @ ..] = &words[..]
            && let Some(purpose) = rest.iter().find_map(|word| word.strip_prefix("PURPOSE="))
            && purposes.contains(&purpose)
        {
            let name = |hop: &str| hop.split_once('~').map_or(hop, |(_, name)| name).to_owned();
            paths.push(path.split(',').map(name).collect());
        }
    }
    paths
}
