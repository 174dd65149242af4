//! `tidegate flashflow`: measures relays' capacities. One subcommand per role; `demo` runs them all.

mod args;
mod compare;
mod cycle;
mod demo;
pub mod local;
mod median;
mod roles;
mod schedule;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use tidegate_control::flashflow::bandwidth_file::relay_name;
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_net::flashflow::{
    ConfigFile, CoordinatorConfig, Ledger, MeasurerConfig, Record, RelayConfig, delay, store,
};
use tidegate_net::identity::{Identity, hex};

use args::{PathArguments, read_config};
use roles::Liar;

use crate::failure::Failure;
use crate::roles::{cure_of_new_file, listen, on_this_thread};

/// Measure the capacity of relays with a team of measurers (FlashFlow)
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate flashflow demo")]
pub struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    Demo(demo::Arguments),
    /// Generate an identity: a certificate and an onion key
    #[command(after_help = "Example:\n  tidegate flashflow keygen relay.key")]
    Keygen {
        /// The file to write; it must not exist
        file: PathBuf,
    },
    /// Run a relay that can be measured
    #[command(after_help = "Example:\n  tidegate flashflow relay --config relay.toml")]
    Relay {
        #[command(flatten)]
        config: Config,
        /// Lie about the capacity, for demonstrations
        #[arg(long, hide = true)]
        liar: Option<Liar>,
    },
    /// Run a measurer
    #[command(after_help = "Example:\n  tidegate flashflow measurer --config measurer.toml")]
    Measurer(Config),
    /// Measure a measurer's capacity: UDP to and from all other measurers at once
    #[command(
        after_help = "Example:\n  tidegate flashflow measurer-capacity --config measurer.toml --rate '1 Gbit/s'"
    )]
    MeasurerCapacity {
        #[command(flatten)]
        config: Config,
        /// Sending rate of this measurer, and of each other measurer to it
        #[arg(long)]
        rate: Rate,
        /// Duration in whole seconds
        #[arg(long, default_value = "60 s")]
        duration: Span,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Send clients' traffic through a relay, for demonstrations
    #[command(hide = true)]
    Background(Config),
    /// Delay TCP connections: pass them on to an address, every byte later
    #[command(after_help = "Example:\n  tidegate flashflow delay --to 127.0.0.1:9001 --delay '40 ms'")]
    Delay {
        #[command(flatten)]
        path: PathArguments,
        /// Address to which connections are passed on
        #[arg(long)]
        to: SocketAddr,
        /// Listening address
        #[arg(long, default_value = "127.0.0.1:0")]
        listen: SocketAddr,
    },
    /// Run the coordinator: follow the schedule until stopped
    #[command(after_help = "Example:\n  tidegate flashflow coordinator --config coordinator.toml --once")]
    Coordinator {
        #[command(flatten)]
        config: Config,
        /// Measure every relay now, write the bandwidth file and exit
        #[arg(long)]
        once: bool,
    },
    Schedule(schedule::Arguments),
    /// Print the coordinator's records, one JSON object per line
    #[command(after_help = "Example:\n  tidegate flashflow export --config coordinator.toml")]
    Export(Config),
    /// Print the last bandwidth file, recomputed from the coordinator's records
    #[command(after_help = "Example:\n  tidegate flashflow bandwidth-file --config coordinator.toml")]
    BandwidthFile(Config),
    Compare(compare::Arguments),
    Cycle(cycle::Arguments),
    Median(median::Arguments),
    /// Check configuration files
    #[command(after_help = "Example:\n  tidegate flashflow check-config measurer measurer.toml")]
    CheckConfig {
        /// Role of the files
        role: ConfigRole,
        /// Configuration files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Recompute every result and the bandwidth file from the coordinator's records, and compare
    #[command(after_help = "Example:\n  tidegate flashflow verify --config coordinator.toml")]
    Verify(Config),
}

#[derive(clap::Args)]
struct Config {
    /// Configuration file
    #[arg(long)]
    config: PathBuf,
}

impl Config {
    fn read<C: ConfigFile>(&self) -> Result<C, Failure> {
        read_config(&self.config)
    }
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
        Role::Demo(arguments) => return demo::main(&arguments),
        Role::Compare(arguments) => return compare::main(&arguments),
        Role::Cycle(arguments) => return cycle::main(&arguments),
        Role::Median(arguments) => return median::main(&arguments),
        Role::Keygen { file } => keygen(&file)?,
        Role::Relay { config, liar } => roles::relay(&read_relay(&config.config)?, liar)?,
        Role::Measurer(config) => roles::measurer(config.read()?)?,
        Role::MeasurerCapacity { config, rate, duration, json } => {
            roles::measurer_capacity(&config.read()?, rate, duration, json)?
        }
        Role::Background(config) => roles::background(&config.read()?)?,
        Role::Delay { path: PathArguments { delay, jitter, seed }, to, listen: from } => {
            on_this_thread(async {
                let listener = listen(from).await?;
                delay::run(listener, to, delay::Path { delay, jitter }, Seed::root(seed)).await;
                Ok(())
            })
            .map(drop)?
        }
        Role::Coordinator { config, once } => roles::coordinator(config.read()?, once)?,
        Role::Schedule(arguments) => return schedule::main(&arguments),
        Role::BandwidthFile(config) => match replay(&config.read()?)?.last_file() {
            Some(text) => print!("{text}"),
            None => return Err(Failure::Other("no bandwidth file was written yet".into())),
        },
        Role::CheckConfig { role, files } => {
            for file in files {
                match role {
                    ConfigRole::Relay => drop(read_relay(&file)?),
                    ConfigRole::Measurer => drop(read_config::<MeasurerConfig>(&file)?),
                    ConfigRole::Coordinator => drop(read_config::<CoordinatorConfig>(&file)?),
                }
                println!("{}: fine", file.display());
            }
        }
        Role::Export(config) => {
            for record in store::read(&config.read::<CoordinatorConfig>()?.state).map_err(Failure::other)? {
                println!("{}", serde_json::to_string(&record).expect("records are JSON"));
            }
        }
        Role::Verify(config) => verify(&config.read()?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration of a relay that is only measured. A file of `tidegate relay` is told from one with mistakes.
fn read_relay(path: &Path) -> Result<RelayConfig, Failure> {
    let read = read_config(path);
    let table = || SourceFile::read(path).ok()?.text.parse::<toml::Table>().ok();
    if read.is_err() && table().is_some_and(|table| table.contains_key("nickname")) {
        let file = path.display().to_string();
        let cure = format!("check it with `tidegate relay --config {file} --check`");
        let cause = "is a configuration of `tidegate relay`, not of `tidegate flashflow relay`";
        return Err(InputError::new(file, cause, cure).into());
    }
    read
}

fn keygen(file: &Path) -> Result<(), Failure> {
    let identity = Identity::generate();
    identity.save(file).map_err(|error| {
        InputError::new(file.display().to_string(), error.why().to_owned(), cure_of_new_file(file))
    })?;
    let keys = identity.relay_public();
    println!("fingerprint = \"{}\"", hex(&identity.fingerprint()));
    println!("onion-key = \"{}\"", hex(&keys.onion));
    println!("# id of `tidegate flashflow relay` with this identity: {}", relay_name(&keys.identity));
    println!("# id of `tidegate relay`: the fingerprint that `tidegate relay --keygen` prints");
    Ok(())
}

fn replay(config: &CoordinatorConfig) -> Result<Ledger, Failure> {
    let mut ledger = Ledger::default();
    for (i, record) in store::read(&config.state).map_err(Failure::other)?.iter().enumerate() {
        ledger.apply(record).map_err(|cause| Failure::other(format!("record {}: {cause}", i + 1)))?;
    }
    Ok(ledger)
}

fn verify(config: &CoordinatorConfig) -> Result<(), Failure> {
    let records = store::read(&config.state).map_err(Failure::other)?;
    let results = records.iter().filter(|record| matches!(record, Record::Result { .. })).count();
    let ledger = replay(config)?;
    println!("{} records, {results} results follow from their seconds", records.len());
    let Some(text) = ledger.last_file() else { return Ok(()) };
    let path = &config.bandwidth_file;
    let on_disk = std::fs::read_to_string(path)
        .map_err(|cause| Failure::other(format!("{}: {cause}", path.display())))?;
    if on_disk != text {
        return Err(Failure::other(format!("{} differs from what the state gives", path.display())));
    }
    println!("{}: identical", path.display());
    Ok(())
}
