//! `tidegate archive`: how well Tor's relays knew their capacities, from the archives of its directories.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_lab::archive::collect::Collected;
use tidegate_lab::archive::{PERIODS, analyse, drawings, tables};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::{folder, svg, table_files};

use crate::console::{self, Console};
use crate::failure::Failure;

/// Errors of relays' capacities and weights over time, from CollecTor's archives
#[derive(clap::Args)]
pub struct Arguments {
    /// Folders and files of server descriptors, extra-infos and consensuses: plain, .xz, .gz or .tar of them
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Working folder: what was read; a later run with it goes on where this one stopped, and takes in what is new
    #[arg(long, default_value = "out/archive-work")]
    work: PathBuf,
    /// Folder for the results, instead of out/archive
    #[arg(long)]
    out: Option<PathBuf>,
    /// Replace other results in that folder
    #[arg(long, requires = "out")]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let contents =
        folder::Contents { name: "archive".into(), parameters: json!({ "inputs": arguments.inputs }) };
    if let Some(place) = &arguments.out {
        folder::check_place(place, &contents, arguments.force)?;
    }
    let console = Console::new(2, 1);
    let mut collected = Collected::open(&arguments.work)?;
    let finished = collected.collect(&arguments.inputs, &console)?;
    let analysis = if finished { analyse(&collected, &console)? } else { None };
    console.finish();
    let Some(analysis) = analysis else {
        eprintln!("stopped; the same command goes on from {}", arguments.work.display());
        return Ok(ExitCode::from(130));
    };
    let mut summary = tables::summary(&collected, &analysis);
    summary["cpu_s"] = json!(console.cpu_s());
    let mut files: Vec<folder::ResultFile> =
        tables::all(&collected, &analysis).iter().flat_map(table_files).collect();
    files.push(("summary.json".into(), format!("{summary:#}\n").into_bytes()));
    let pictures = drawings::all(&analysis);
    files.extend(pictures.iter().map(|(name, drawing)| (format!("{name}.svg"), svg(drawing).into_bytes())));
    let problems: String = collected.problems().iter().map(|problem| format!("{problem}\n")).collect();
    files.push(("problems.txt".into(), problems.into_bytes()));
    let more = json!({ "command": console::command_line() });
    let place = console::write_results(files, &contents, more, arguments.out, &PathBuf::from("out/archive"))?;
    if arguments.json {
        println!("{summary:#}");
    } else {
        print!("{}", text(&summary));
    }
    let broken = collected.counts().broken;
    if broken > 0 {
        eprintln!("{broken} documents could not be read; problems.txt names them");
    }
    eprintln!(
        "{} holds relays and network (.csv, .parquet), figures (.svg) and summary.json",
        place.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// The medians, for people.
fn text(summary: &Value) -> String {
    let counts = &summary["counts"];
    let mut text = format!(
        "{} descriptors, {} extra-infos, {} consensuses; {} relays over {} hours\n\n{:<42}",
        counts["descriptors"],
        counts["extra_infos"],
        counts["consensuses"],
        summary["relays"],
        summary["hours"],
        "median, looking back a"
    );
    PERIODS.iter().for_each(|period| text += &format!("{:>9}", period.name));
    for (place, name, label) in [
        ("relay", "capacity_error", "relay capacity error (Figure 1)"),
        ("network", "capacity_error", "network capacity error (Figure 2)"),
        ("relay", "weight_error", "relay weight over capacity (Figure 3)"),
        ("network", "weight_error", "network weight error (Figure 4)"),
        ("relay", "advertised_rsd", "spread of advertised bandwidths (10 a)"),
        ("relay", "weight_rsd", "spread of weights (10 b)"),
    ] {
        text += &format!("\n{label:<42}");
        for period in PERIODS {
            text += &match summary[place][name][period.name]["p50"].as_f64() {
                Some(median) => format!("{median:>9.3}"),
                None => format!("{:>9}", "-"),
            };
        }
    }
    text + "\n"
}
