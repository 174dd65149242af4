//! `tidegate answer`: benefits and prices of the published parts in the Tor of a consensus.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tidegate_control::units::Span;
use tidegate_lab::answer::{self, AnswerSettings};
use tidegate_lab::report::folder::Contents;
use tidegate_lab::report::{COLUMNS, answer_page, answer_text};
use tidegate_lab::scoreboard::RunError;

use crate::console::{self, COMMIT, Console};
use crate::failure::Failure;

/// Compare the published parts in the Tor of a consensus: benefits, confidence, cost (see docs/answer.md)
///
/// Adds each part to vanilla Tor alone, on the same sampled networks. Without a consensus it uses the built-in model of
/// 2024. The defaults take about five minutes on one core.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate answer --relays 20 --seeds 3 --duration '30 s'")]
pub struct AnswerArgs {
    /// Read the network from this consensus (full or microdescriptor flavour, plain, .xz or .gz)
    consensus: Option<PathBuf>,
    /// Sample this many relays for each network
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(6..=10_000))]
    relays: u32,
    /// Give relays this share of their bandwidth; simulating the whole bandwidth takes ten times as long
    #[arg(long, value_name = "FACTOR", default_value_t = 0.1)]
    bandwidth_factor: f64,
    /// Add users until relays of the first network carry this share of their capacity under vanilla Tor [Tor Metrics, May 2024: 0.506]
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    utilisation: f64,
    /// Simulate this long; the first quarter is the warm-up
    #[arg(long, default_value = "60 s")]
    duration: Span,
    /// Simulate this many networks
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Start with this seed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    /// Give the adversary this share of all consensus weight
    #[arg(long, default_value_t = 0.1)]
    share: f64,
    /// Use this many threads; 0 means one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Write the page to this folder [default: out/answer/<number>, linked from out/answer/latest]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Replace results in the folder; only files that its manifest lists are removed
    #[arg(long, requires = "out")]
    force: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Clients and days of the path simulator, for each seed.
const CLIENTS: u32 = 500;
const DAYS: u32 = 30;

/// Runs the subcommand.
pub fn main(arguments: AnswerArgs) -> Result<ExitCode, Failure> {
    let consensus = arguments.consensus.as_ref().map(std::path::absolute).transpose();
    let settings = AnswerSettings {
        consensus: consensus.map_err(|error| Failure::Other(error.to_string()))?,
        relays: arguments.relays,
        bandwidth_factor: arguments.bandwidth_factor,
        utilisation: arguments.utilisation,
        duration: arguments.duration,
        seeds: arguments.seeds,
        seed: arguments.seed,
        share: arguments.share,
        clients: CLIENTS,
        days: DAYS,
    };
    let contents = Contents { name: "answer".to_owned(), parameters: parameters(&settings) };
    let base = Path::new("out/answer");
    console::check_results_place(&contents, arguments.out.as_deref(), base, arguments.force)?;
    let systems = answer::PARTS.len() + 1;
    // Two pieces more: the simulation of paths, and the runs that fit the load.
    let console = Console::new(systems * settings.seeds as usize + 2, arguments.jobs);
    let answer = answer::run(&settings, &console);
    console.finish();
    let answer = match answer {
        Ok(answer) => answer,
        Err(RunError::Stopped) => {
            eprintln!("stopped before the last network finished; no results were written");
            return Ok(ExitCode::from(130));
        }
        Err(RunError::Input(error)) => return Err(error.into()),
        Err(RunError::Unavailable(cause) | RunError::Failed(cause)) => return Err(Failure::Other(cause)),
    };
    let document = answer.document();
    let files = vec![
        ("report.html".to_owned(), answer_page(&answer).into_bytes()),
        ("answer.json".to_owned(), format!("{document:#}\n").into_bytes()),
    ];
    let more = json!({ "command": console::command_line() });
    let place = console::write_results(files, &contents, more, arguments.out, base)?;
    if arguments.json {
        println!("{document:#}");
    } else {
        print!("{}", answer_text(&answer, console::terminal_width().map_or(COLUMNS, usize::from)));
    }
    eprintln!("results: {}/report.html, answer.json, manifest.json", place.display());
    Ok(ExitCode::SUCCESS)
}

/// Everything that the results depend on.
fn parameters(settings: &AnswerSettings) -> serde_json::Value {
    let AnswerSettings {
        consensus, relays, bandwidth_factor, utilisation, duration, seeds, seed, share, ..
    } = settings;
    json!({
        "consensus": consensus,
        "relays": relays,
        "bandwidth_factor": bandwidth_factor,
        "utilisation": utilisation,
        "duration": duration.to_string(),
        "seeds": seeds,
        "seed": seed,
        "share": share,
        "version": tidegate_lab::results::VERSION,
        "commit": COMMIT,
    })
}
