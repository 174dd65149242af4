//! `tidegate flashflow`: measure relays' capacities. One role per subcommand; `demo` runs them all.

use std::cell::Cell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use clap::Subcommand;
use serde_json::{Value, json};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::InputError;
use tidegate_net::clock;
use tidegate_net::flashflow::config::{
    BackgroundConfig, ConfigError, CoordinatorConfig, MeasurerConfig, RelayConfig,
};
use tidegate_net::flashflow::daemon::Daemon;
use tidegate_net::flashflow::ledger::Ledger;
use tidegate_net::flashflow::record::{Record, relay_name};
use tidegate_net::flashflow::relay::{Limits, Relay};
use tidegate_net::flashflow::{background, capacity, delay, measurer, status, store};
use tidegate_net::identity::{Identity, hex};
use tokio::net::{TcpListener, TcpSocket, UdpSocket};

use crate::{Failure, flashflow_compare, flashflow_demo, flashflow_schedule};

/// Measure the capacity of relays with a team of measurers (FlashFlow)
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    Demo(flashflow_demo::Arguments),
    /// Make an identity: a certificate, and a relay's onion key
    Keygen {
        /// The file to write; it must not exist
        file: PathBuf,
    },
    /// Run a relay that can be measured
    Relay {
        #[command(flatten)]
        config: Config,
        /// Lie about its capacity, for demonstrations
        #[arg(long, hide = true)]
        liar: Option<Liar>,
    },
    /// Run a measurer
    Measurer(Config),
    /// Find out how much a measurer can send and receive: UDP to and from all others at once
    MeasurerCapacity {
        #[command(flatten)]
        config: Config,
        /// What it sends at most, and each of the others to it
        #[arg(long)]
        rate: Rate,
        /// How long, in whole seconds
        #[arg(long, default_value = "60 s")]
        duration: Span,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Send clients' traffic through a relay, for demonstrations
    #[command(hide = true)]
    Background(Config),
    /// Be a path of a given delay: pass connections to it on, every byte later
    Delay {
        #[command(flatten)]
        path: PathArguments,
        /// Where the path leads
        #[arg(long)]
        to: SocketAddr,
        /// Where it begins
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// Run the coordinator: follow the schedule until stopped
    Coordinator {
        #[command(flatten)]
        config: Config,
        /// Measure every relay now instead, write the bandwidth file, and end
        #[arg(long)]
        once: bool,
    },
    Schedule(flashflow_schedule::Arguments),
    /// Print the coordinator's records, a JSON object a line
    Export(Config),
    /// Print the bandwidth file that follows from the coordinator's state
    BandwidthFile(Config),
    Compare(flashflow_compare::Arguments),
    /// Check configuration files of any role
    CheckConfig {
        /// Of which role
        role: ConfigRole,
        /// The files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Replay the coordinator's state: every result from its seconds, and the bandwidth file byte for byte
    Verify(Config),
}

#[derive(clap::Args)]
struct Config {
    /// The configuration file
    #[arg(long)]
    config: PathBuf,
}

/// How a relay lies about its capacity.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Liar {
    /// It holds cells back in just under half of the seconds, and claims background that it has not
    Hold,
}

/// How far apart two roles are.
#[derive(clap::Args)]
pub struct PathArguments {
    /// How far measurers and relay are apart, one way: at most 10 s
    #[arg(long, default_value = "0 s", value_parser = way)]
    pub delay: Span,
    /// What is added to it, differently for every piece read: the positive half of a normal distribution of this
    /// standard deviation; nothing overtakes
    #[arg(long, default_value = "0 s", value_parser = way)]
    pub jitter: Span,
    /// Of the jitter
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

fn way(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error: tidegate_control::units::UnitError| error.to_string())?;
    if span > delay::LONGEST { Err(format!("give at most {}", delay::LONGEST)) } else { Ok(span) }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ConfigRole {
    Relay,
    Measurer,
    Coordinator,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.role {
        Role::Demo(arguments) => return flashflow_demo::main(&arguments),
        Role::Compare(arguments) => return flashflow_compare::main(&arguments),
        Role::Keygen { file } => keygen(&file)?,
        Role::Relay { config, liar } => relay(&RelayConfig::load(&config.config).map_err(input)?, liar)?,
        Role::Measurer(Config { config }) => run_measurer(MeasurerConfig::load(&config).map_err(input)?)?,
        Role::MeasurerCapacity { config, rate, duration, json } => {
            measurer_capacity(&MeasurerConfig::load(&config.config).map_err(input)?, rate, duration, json)?
        }
        Role::Background(Config { config }) => {
            run_background(BackgroundConfig::load(&config).map_err(input)?)?
        }
        Role::Delay { path: PathArguments { delay, jitter, seed }, to, listen: from } => {
            on_this_thread(async {
                let listener = listen(from).await?;
                delay::run(listener, to, delay::Path { delay, jitter }, Seed::root(seed)).await;
                Ok(())
            })
            .map(drop)?
        }
        Role::Coordinator { config, once } => coordinator(coordinator_config(&config)?, once)?,
        Role::Schedule(arguments) => return flashflow_schedule::main(&arguments),
        Role::BandwidthFile(config) => {
            let config = coordinator_config(&config)?;
            match replay(&config)?.last_file() {
                Some(text) => print!("{text}"),
                None => return Err(Failure::Other("no bandwidth file was written yet".into())),
            }
        }
        Role::CheckConfig { role, files } => {
            for file in files {
                match role {
                    ConfigRole::Relay => RelayConfig::load(&file).map(drop),
                    ConfigRole::Measurer => MeasurerConfig::load(&file).map(drop),
                    ConfigRole::Coordinator => CoordinatorConfig::load(&file).map(drop),
                }
                .map_err(input)?;
                println!("{}: fine", file.display());
            }
        }
        Role::Export(config) => {
            store::export(&coordinator_config(&config)?.state, std::io::stdout().lock()).map_err(other)?;
        }
        Role::Verify(config) => verify(&coordinator_config(&config)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn input(error: ConfigError) -> Failure {
    Failure::Input(InputError::new(error.path.display().to_string(), error.cause, ""))
}

pub(crate) fn other(error: impl std::fmt::Display) -> Failure {
    Failure::Other(error.to_string())
}

fn coordinator_config(config: &Config) -> Result<CoordinatorConfig, Failure> {
    CoordinatorConfig::load(&config.config).map_err(input)
}

/// Prints an event as a line of JSON. Whoever stopped reading it does not stop the role.
pub(crate) fn log(event: &Value) {
    let mut line = json!({ "unix": clock::unix() });
    if let (Some(line), Some(event)) = (line.as_object_mut(), event.as_object()) {
        line.extend(event.clone());
    }
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Runs a role on this thread until it ends or the process is told to.
pub(crate) fn on_this_thread<T>(
    role: impl Future<Output = Result<T, Failure>>,
) -> Result<Option<T>, Failure> {
    // Fewer than we could have do as well, for as long as they last.
    let _ = tidegate_net::descriptors::raise();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(other)?;
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(async {
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(other)?;
        tokio::select! {
            result = role => result.map(Some),
            _ = terminate.recv() => Ok(None),
            _ = tokio::signal::ctrl_c() => Ok(None),
        }
    }))
}

/// Connections that wait to be accepted: a crowd that comes at once fits.
const BACKLOG: u32 = 4096;

pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let listener = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    });
    let listener = listener.map_err(|cause| other(format!("cannot listen on {address}: {cause}")))?;
    let address = listener.local_addr().map_err(other)?;
    log(&json!({ "event": "listening", "address": address.to_string() }));
    Ok(listener)
}

fn keygen(file: &Path) -> Result<(), Failure> {
    let identity = Identity::generate();
    identity.save(file).map_err(other)?;
    let keys = identity.relay_public();
    println!("fingerprint = \"{}\"", hex(&identity.fingerprint()));
    println!("onion_key = \"{}\"", hex(&keys.onion));
    println!("# id of a relay with this identity: {}", relay_name(&keys.identity));
    Ok(())
}

fn relay(config: &RelayConfig, liar: Option<Liar>) -> Result<(), Failure> {
    let identity = Arc::new(Identity::load(&config.identity).map_err(other)?);
    let (measurement, neighbours) = (config.measurement.clone(), config.neighbours.clone());
    let relay =
        Relay::new(identity, config.rate, measurement, Limits::default(), neighbours).map_err(other)?;
    if let Some(Liar::Hold) = liar {
        relay.hold_back(config.rate);
    }
    on_this_thread(async {
        let listener = listen(config.listen).await?;
        let report = async {
            let (mut before, mut was_idle, mut connected) = (relay.forwarded(), false, 0);
            let mut next = clock::now();
            loop {
                next += Span::from_secs(1);
                clock::until(next).await;
                let now = relay.forwarded();
                let connections = relay.connections();
                let idle = now == before && !relay.is_busy() && connections == connected;
                // The first idle second is said, as the end of what was before.
                if !(idle && was_idle) {
                    log(&json!({
                        "event": "second",
                        "measurement_bits_per_s": (now.measurement - before.measurement) * 8,
                        "background_bits_per_s": (now.background - before.background) * 8,
                        "connections": connections,
                        "measured": relay.is_busy(),
                    }));
                }
                (was_idle, connected) = (idle, connections);
                before = now;
            }
        };
        tokio::select! {
            () = relay.clone().serve(listener) => {}
            () = report => {}
        }
        Ok(())
    })
    .map(drop)
}

fn run_measurer(config: MeasurerConfig) -> Result<(), Failure> {
    let identity = Arc::new(Identity::load(&config.identity).map_err(other)?);
    on_this_thread(async {
        let listener = listen(config.listen).await?;
        let (capacity, rate) = (config.capacity, config.settings.rate);
        let probes = async {
            match &capacity {
                Some((address, peers)) => {
                    let socket = UdpSocket::bind(address).await;
                    let socket =
                        socket.map_err(|cause| other(format!("cannot listen on udp {address}: {cause}")))?;
                    capacity::serve(socket, &identity, peers, rate).await.map_err(other)
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = measurer::serve(listener, identity.clone(), config.settings) => result.map_err(other),
            result = probes => result,
        }
    })
    .map(drop)
}

fn measurer_capacity(config: &MeasurerConfig, rate: Rate, span: Span, json: bool) -> Result<(), Failure> {
    let seconds = span.0 / 1_000_000_000;
    let Some((listen, peers)) = &config.capacity else {
        return Err(other("the configuration has no [capacity] with the other measurers"));
    };
    if !(1..=capacity::MAX_SECONDS).contains(&seconds) || Span::from_secs(seconds) != span || rate.0 == 0 {
        return Err(other("give a rate above zero and a duration of 1 s to 120 s in whole seconds"));
    }
    let identity = Identity::load(&config.identity).map_err(other)?;
    // The measurer itself may be running and have the port; the others know us by our key.
    let ours = SocketAddr::new(listen.ip(), 0);
    let rate = Rate(rate.0.min(config.settings.rate));
    let capacity = on_this_thread(async {
        let socket = UdpSocket::bind(ours).await.map_err(other)?;
        capacity::probe(socket, &identity, peers, rate, seconds).await.map_err(other)
    })?;
    let Some(capacity) = capacity else { return Ok(()) };
    if json {
        let bits = |(received, sent): &(u64, u64)| json!({ "received": received * 8, "sent": sent * 8 });
        println!(
            "{}",
            json!({ "capacity_bits_per_s": capacity.rate.0, "incomplete_seconds": capacity.incomplete,
                "per_second_bits": capacity.seconds.iter().map(bits).collect::<Vec<_>>() })
        );
    } else {
        let (whole, lost) = (capacity.seconds.len(), capacity.incomplete);
        println!("# {whole} seconds with {} other measurers, {lost} incomplete", peers.len());
        println!("capacity = \"{}\"", capacity.rate);
    }
    Ok(())
}

fn run_background(config: BackgroundConfig) -> Result<(), Failure> {
    let identity = Arc::new(Identity::load(&config.identity).map_err(other)?);
    on_this_thread(async {
        let listener = listen(config.listen).await?;
        let delivered = Rc::new(Cell::new(0));
        let report = async {
            let mut next = clock::now();
            loop {
                next += Span::from_secs(1);
                clock::until(next).await;
                log(&json!({ "event": "second", "delivered_bits_per_s": delivered.take() * 8 }));
            }
        };
        let (target, circuits, rate) = (config.target, config.circuits, config.rate);
        tokio::select! {
            result = background::run(listener, identity, target, circuits, rate, delivered.clone()) => {
                result.map_err(other)
            }
            () = report => Ok(()),
        }
    })
    .map(drop)
}

fn coordinator(config: CoordinatorConfig, once: bool) -> Result<(), Failure> {
    on_this_thread(async {
        let address = config.status;
        let daemon = Daemon::open(config, log).map_err(other)?;
        let status = async {
            match address {
                Some(address) => status::serve(address, daemon.shared()).await.map_err(|cause| {
                    other(format!("the status page cannot be served on {address}: {cause}"))
                }),
                None => std::future::pending().await,
            }
        };
        let work = async {
            if !once {
                return daemon.run().await.map_err(other);
            }
            match daemon.run_once().await.map_err(other)?.as_slice() {
                [] => Ok(()),
                missing => Err(other(format!("no measurement was complete of {}", missing.join(", ")))),
            }
        };
        tokio::select! {
            result = work => result,
            result = status => result,
        }
    })
    .map(drop)
}

fn replay(config: &CoordinatorConfig) -> Result<Ledger, Failure> {
    let mut ledger = Ledger::default();
    for (i, record) in store::read(&config.state).map_err(other)?.iter().enumerate() {
        ledger.apply(record).map_err(|cause| other(format!("record {}: {cause}", i + 1)))?;
    }
    Ok(ledger)
}

fn verify(config: &CoordinatorConfig) -> Result<(), Failure> {
    let records = store::read(&config.state).map_err(other)?;
    let results = records.iter().filter(|record| matches!(record, Record::Result { .. })).count();
    let ledger = replay(config)?;
    println!("{} records, {results} results follow from their seconds", records.len());
    let Some(text) = ledger.last_file() else { return Ok(()) };
    let path = &config.bandwidth_file;
    let on_disk =
        std::fs::read_to_string(path).map_err(|cause| other(format!("{}: {cause}", path.display())))?;
    if on_disk != text {
        return Err(other(format!("{} differs from what the state gives", path.display())));
    }
    println!("{}: identical", path.display());
    Ok(())
}
