//! `tidegate archive`: computes capacity and weight errors of relays from Tor's directory archives.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_lab::archive::{Collected, PERIODS, analyse, drawings, tables};
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::{folder, svg, table_files};

use crate::console::{self, Console};
use crate::failure::Failure;

/// Compute capacity and weight errors of relays over time from CollecTor's archives
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tidegate archive collector/ --out out/archive-2019")]
pub struct ArchiveArgs {
    /// Read these files and folders: server descriptors, extra-infos, consensuses (plain, .xz, .gz, .tar)
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Cache what was read in this folder; a later run continues there and adds new files
    #[arg(long, default_value = "out/archive-work")]
    work: PathBuf,
    /// Write results to this folder [default: out/archive/<number>]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Replace results in the folder
    #[arg(long, requires = "out")]
    force: bool,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn main(arguments: ArchiveArgs) -> Result<ExitCode, Failure> {
    let contents =
        folder::Contents { name: "archive".into(), parameters: json!({ "inputs": arguments.inputs }) };
    let base = Path::new("out/archive");
    console::check_results_place(&contents, arguments.out.as_deref(), base, arguments.force)?;
    let console = Console::new(2, 1);
    let mut collected = Collected::open(&arguments.work)?;
    let finished = collected.collect(&arguments.inputs, &console)?;
    let analysis = if finished { analyse(&collected, &console)? } else { None };
    console.finish();
    let Some(analysis) = analysis else {
        eprintln!("stopped; repeat the command to continue from {}", arguments.work.display());
        return Ok(ExitCode::from(130));
    };
    let counts = collected.counts();
    if counts.descriptors + counts.extra_infos + counts.consensuses == 0 {
        let place = arguments.inputs[0].display().to_string();
        let cause = format!("does not contain a document of relays ({} could not be read)", counts.broken);
        return Err(
            InputError::new(place, cause, "give files of CollecTor's archives, or folders of them").into()
        );
    }
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
    let place = console::write_results(files, &contents, more, arguments.out, base)?;
    if arguments.json {
        println!("{summary:#}");
    } else {
        print!("{}", text(&summary));
    }
    if counts.foreign > 0 {
        eprintln!(
            "{} documents are of other kinds, such as those of bridges, and do not count",
            counts.foreign
        );
    }
    if counts.descriptors == 0 || counts.consensuses == 0 {
        eprintln!(
            "errors need server descriptors and consensuses of the same relays; add the files that are missing"
        );
    }
    eprintln!("counts include what earlier runs read into {}", arguments.work.display());
    let broken = counts.broken;
    if broken > 0 {
        eprintln!("{broken} documents could not be read; problems.txt lists them");
    }
    eprintln!(
        "results: {}/relays and network (.csv, .parquet), figures (.svg), summary.json",
        place.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Formats the medians as a table.
fn text(summary: &Value) -> String {
    let counts = &summary["counts"];
    let mut text = format!(
        "{} descriptors, {} extra-infos, {} consensuses; {} relays over {} hours\n\n{:<42}",
        counts["descriptors"],
        counts["extra_infos"],
        counts["consensuses"],
        summary["relays"],
        summary["hours"],
        "median, over the past"
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
