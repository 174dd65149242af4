//! `tidegate exposure`: what relays of an adversary see of Tor's users over months.

use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_data::formats::CONSENSUSES;
use tidegate_data::{microdescriptor, open};
use tidegate_lab::exposure::{self, Adversary, ExposureSettings, StreamPaths, UserModel};
use tidegate_lab::input::InputError;

use crate::console::{Console, notice};
use crate::failure::Failure;

/// Simulate Tor's path selection over months, and what an adversary's relays see of clients (see docs/anonymity.md)
///
/// A path simulator in the manner of TorPS: guards as in tor 0.4.8, no packets. Without a consensus it uses the built-in
/// model of 2024.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate exposure --share 0.05 --samples 200 --days 90")]
pub struct ExposureArgs {
    /// Read the network from these consensuses; between two, relays change one by one
    #[arg(value_name = "CONSENSUS")]
    consensuses: Vec<PathBuf>,
    /// Read families from this file of microdescriptors (tor's cached-microdescs)
    #[arg(long, value_name = "FILE", requires = "consensuses")]
    microdescriptors: Option<PathBuf>,
    /// Give the adversary this share of all consensus weight
    #[arg(long, default_value_t = 0.1)]
    share: f64,
    /// Put this part of the adversary's weight on guards, and the rest on exits [default: 5/6, as TorPS]
    #[arg(long, value_name = "PART")]
    on_guards: Option<f64>,
    /// Let the adversary run this many guards and this many exits
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    adversary_relays: u16,
    /// Simulate this user: `typical` (376 streams a day in five sessions) or `simple` (a stream every 10 min)
    #[arg(long, default_value = "typical", value_parser = user)]
    user: UserModel,
    /// Use this many guards in turn [default: the consensus's guard-n-primary-guards-to-use, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=20))]
    guards: Option<u8>,
    /// Send streams over two linked circuits with different guards (Conflux)
    #[arg(long)]
    conflux: bool,
    /// Move each circuit this often to another middle, as `switching = "circuit"` does
    #[arg(long, value_name = "N", conflicts_with = "conflux", value_parser = clap::value_parser!(u8).range(1..=100))]
    moves: Option<u8>,
    /// Let the packets of each stream take N paths, each with its own entry, middle and exit (no guards)
    #[arg(long, value_name = "N", conflicts_with_all = ["conflux", "moves", "guards"],
        value_parser = clap::value_parser!(u8).range(1..=100))]
    packet_paths: Option<u8>,
    /// Simulate this many days
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    days: u32,
    /// Simulate this many clients
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    samples: u32,
    /// Draw from this seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use this many threads; 0 means one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn user(name: &str) -> Result<UserModel, String> {
    let found = UserModel::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, user)| *user).ok_or_else(|| "give `typical` or `simple`".to_owned())
}

/// Runs the subcommand.
pub fn main(arguments: ExposureArgs) -> Result<ExitCode, Failure> {
    let settings = settings(&arguments)?;
    let console = Console::new(arguments.samples as usize, arguments.jobs);
    let exposure = exposure::run(&settings, &console)?;
    console.finish();
    let Some(exposure) = exposure else {
        eprintln!("stopped before the last client finished");
        return Ok(ExitCode::from(130));
    };
    if arguments.json {
        println!("{:#}", exposure.document());
    } else {
        print!("{}", exposure.text());
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(arguments: &ExposureArgs) -> Result<ExposureSettings, InputError> {
    let read = arguments.consensuses.iter().map(|path| Ok(CONSENSUSES.open(path)?));
    let mut consensuses = read.collect::<Result<Vec<_>, InputError>>()?;
    if consensuses.is_empty() {
        consensuses.push(exposure::builtin_consensus());
    }
    let mut settings = ExposureSettings::new(consensuses)?;
    if let Some(path) = &arguments.microdescriptors {
        let document = open::open(path)?;
        let relays =
            settings.consensuses.iter().flat_map(|one| one.relays.iter().cloned()).collect::<Vec<_>>();
        let (_, families) = microdescriptor::families(&document, &relays)?;
        if families.missing > 0 {
            let (missing, all) = (families.missing, relays.len());
            notice(&format!(
                "{}: lacks {missing} of {all} relays, so their families are unknown",
                document.name()
            ));
        }
        settings.families = families.relatives;
    }
    settings.adversary = Adversary {
        share: arguments.share,
        on_guards: arguments.on_guards.unwrap_or(settings.adversary.on_guards),
        relays: arguments.adversary_relays,
    };
    settings.use_guards(arguments.guards.map(usize::from));
    settings.user = arguments.user;
    settings.paths = match (arguments.conflux, arguments.moves, arguments.packet_paths) {
        (true, ..) => StreamPaths::Conflux,
        (_, Some(moves), _) => StreamPaths::Moving(moves),
        (_, _, Some(paths)) => StreamPaths::PerPacket(paths),
        _ => StreamPaths::Circuit,
    };
    settings.days = arguments.days;
    settings.samples = arguments.samples;
    settings.seed = arguments.seed;
    Ok(settings)
}
