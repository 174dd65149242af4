//! `tidegate reproduce`: compares published numbers with measured ones.

mod planned;
mod until;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tidegate_kernel::{peak_memory, process_cpu_s};
use tidegate_lab::input::InputError;
use tidegate_lab::monitor::Monitor;
use tidegate_lab::report::folder::{self, Contents};
use tidegate_lab::report::{IllustratedExperiment, outcome_table, page_of_outcomes, staged, svg};
use tidegate_lab::scoreboard::experiment::{self, KeptRuns};
use tidegate_lab::scoreboard::record::{self, Cost, Recorded};
use tidegate_lab::scoreboard::{
    Dependence, Experiment, Looks, Measured, Outcome, RunError, Scale, Verdict, verdict,
};

use super::artifact::Artifact;
use crate::console::{COMMIT, Console, check_results_place, command_line, terminal_width, write_results};
use crate::failure::Failure;
use planned::PlannedExperiment;

/// Measure what papers published and print both numbers side by side
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tidegate reproduce predictor/table-1\n  tidegate reproduce flashflow --scale medium --record\n  tidegate reproduce predictor/figure-8 --budget 600\n  tidegate reproduce --verify 3 --budget 60\n  tidegate reproduce predictor --artifact predictor.tar.gz"
)]
pub struct ReproduceArgs {
    /// Run only PAPER or PAPER/FIGURE, such as predictor/table-1 [default: everything]
    what: Option<String>,
    /// Choose the size of the experiments
    #[arg(long, value_enum, default_value = "smoke")]
    scale: ScaleName,
    /// Exit with code 1 if any row differs
    #[arg(long)]
    strict: bool,
    /// Add seeds (on sockets: runs) until every row is decided or an experiment has used this many CPU seconds (on sockets: seconds)
    #[arg(long, value_name = "CPU-S", value_parser = seconds, allow_negative_numbers = true)]
    budget: Option<f64>,
    /// Repeat N random records and compare digests; --budget limits their recorded cost
    #[arg(long, value_name = "N", conflicts_with_all = ["scale", "record", "strict", "json", "keep", "out", "force", "artifact"])]
    verify: Option<std::num::NonZeroUsize>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Use this many threads; 0 means one per core
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Store the measured values as result.json beside each experiment
    #[arg(long)]
    record: bool,
    /// Store finished runs in this folder and skip runs that it contains
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Read experiments from this folder
    #[arg(long, default_value = "experiments")]
    experiments: PathBuf,
    /// Write the report to this folder [default: out/reproduce/<number>, linked from out/reproduce/latest]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Also pack experiments, digests of inputs, results and pictures into this .tar.gz, for reviewers
    #[arg(long, value_name = "FILE")]
    artifact: Option<PathBuf>,
    /// Replace results in the folder; only files that its manifest lists are removed
    #[arg(long, requires = "out")]
    force: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ScaleName {
    /// Seconds per experiment; shows that it works and has the right shape
    Smoke,
    /// Large enough to compare; all experiments take 3.5 hours on two cores
    Medium,
    /// The size in the paper
    Full,
}

impl From<ScaleName> for Scale {
    fn from(name: ScaleName) -> Scale {
        match name {
            ScaleName::Smoke => Scale::Smoke,
            ScaleName::Medium => Scale::Medium,
            ScaleName::Full => Scale::Full,
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let given = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds > 0.0);
    given.ok_or_else(|| "a budget is a number of seconds above 0, such as 600".into())
}

/// Runs the subcommand.
pub fn main(arguments: ReproduceArgs) -> Result<ExitCode, Failure> {
    let scale = Scale::from(arguments.scale);
    let what = arguments.what.as_deref();
    let mut experiments = experiment::find(&arguments.experiments, &data_folder(), what)?;
    if let Some(place) = &arguments.keep {
        if !experiments.iter().any(|experiment| experiment.file.runner.get_ref() == "scenario") {
            let cause = "none of these experiments keeps runs: only the runner `scenario` does";
            return Err(InputError::new("--keep", cause, "drop the option").into());
        }
        let keep = KeptRuns { place: place.clone(), commit: COMMIT.into() };
        experiments.iter_mut().for_each(|experiment| experiment.keep = Some(keep.clone()));
    }
    let planned = planned::plan(experiments, arguments.record)?;
    if let Some(count) = arguments.verify {
        return verify::main(planned, count.get(), arguments.budget, arguments.jobs);
    }
    let contents = Contents {
        name: "reproduce".into(),
        parameters: json!({ "what": what, "scale": scale, "experiments": arguments.experiments, "budget": arguments.budget }),
    };
    let base = Path::new("out/reproduce");
    check_results_place(&contents, arguments.out.as_deref(), base, arguments.force)?;
    let inputs = || planned.iter().map(|planned| &planned.experiment).collect();
    let artifact = arguments.artifact.as_ref().map(|place| Artifact::prepare(place, inputs())).transpose()?;
    let mut board = Board::default();
    let mut measure =
        |(number, one)| board.measure(one, &format!("{number} of {}", planned.len()), scale, &arguments);
    let mistake = (1..).zip(&planned).try_for_each(&mut measure).err();
    let Board { outcomes, illustrated, mut files, stopped } = board;
    if outcomes.is_empty()
        && let Some(error) = mistake
    {
        return Err(error);
    }
    let page = page_of_outcomes(&outcomes, &illustrated, scale);
    let json = serde_json::to_string_pretty(&outcomes).map_err(|error| Failure::Other(error.to_string()))?;
    files.push(("report.html".to_owned(), page.into_bytes()));
    files.push(("scoreboard.json".to_owned(), format!("{json}\n").into_bytes()));
    let more = json!({ "command": command_line(), "commit": COMMIT });
    let place = write_results(files.clone(), &contents, more, arguments.out, base)?;
    if arguments.json {
        println!("{json}");
    } else {
        print_table(&outcomes);
    }
    eprintln!("results: {}/report.html, scoreboard.json", place.display());
    let summary = verdict::count(&outcomes);
    if arguments.json {
        eprintln!("{summary}");
    } else {
        println!("{}", scale.headline());
        println!("{summary}");
    }
    // The results before it are written.
    if let Some(error) = mistake {
        return Err(error);
    }
    match artifact {
        Some(_) if stopped => eprintln!("no archive was written, because the run was stopped"),
        Some(artifact) => artifact.write(&files, scale)?,
        None => {}
    }
    let differs = outcomes.iter().any(|outcome| outcome.verdict == Verdict::Differs);
    Ok(match (stopped, arguments.strict && differs) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    })
}

/// The error for a missing input. It names the input independently of the machine, because records keep it.
fn lacks(experiment: &Experiment, input: &Path) -> RunError {
    let input = input.strip_prefix(&experiment.data).unwrap_or(input);
    RunError::Unavailable(format!("needs {} in the data folder (TIDEGATE_DATA)", input.display()))
}

/// The description of the measurement in a stored result, besides the values.
struct Record {
    command: String,
    cost: Cost,
    extra_seeds: u32,
}

/// The command that repeats a measurement, without paths and options that do not change the values.
fn canonical_command(experiment: &str, scale: Scale, budget: Option<f64>) -> String {
    let budget = budget.map_or_else(String::new, |seconds| format!(" --budget {seconds}"));
    format!("tidegate reproduce {experiment} --scale {scale}{budget}")
}

/// Results of the experiments that have finished.
#[derive(Default)]
struct Board {
    outcomes: Vec<Outcome>,
    illustrated: Vec<IllustratedExperiment>,
    /// Drawings to write into the report folder.
    files: Vec<folder::ResultFile>,
    stopped: bool,
}

impl Board {
    /// Measures an experiment, unless the user has stopped the command, and takes the results.
    fn measure(
        &mut self,
        planned: &PlannedExperiment,
        position: &str,
        scale: Scale,
        arguments: &ReproduceArgs,
    ) -> Result<(), Failure> {
        let experiment = &planned.experiment;
        let console = Console::new(0, arguments.jobs);
        let name = format!("{}/{}", experiment.paper, experiment.figure);
        console.title(&format!("{name} ({position})"));
        let (wall, cpu) = (console.wall_s(), process_cpu_s());
        let found = match experiment.lacks() {
            _ if console.stopped() => Err(RunError::Stopped),
            Some(input) => Err(lacks(experiment, &input)),
            None => until::measure(planned, scale, arguments.budget, &console),
        };
        console.finish();
        self.stopped |= console.stopped();
        let (measured, extra_seeds) = match found {
            Ok((measured, extra_seeds)) => (Ok(measured), extra_seeds),
            Err(error) => (Err(error), 0),
        };
        let cost = Cost { wall_s: console.wall_s() - wall, cpu_s: process_cpu_s() - cpu };
        let megabytes = peak_memory() / 1_000_000;
        eprintln!("{name}: {:.1} s, {:.1} CPU-s, peak memory so far {megabytes} MB", cost.wall_s, cost.cpu_s);
        let command = canonical_command(&name, scale, arguments.budget);
        let record = arguments.record.then_some(Record { command, cost, extra_seeds });
        self.take(planned, measured, scale, record)
    }

    /// Computes verdicts, draws the figures and, if there is a `record`, stores it.
    fn take(
        &mut self,
        PlannedExperiment { experiment, rows, dependence, .. }: &PlannedExperiment,
        measured: Result<Measured, RunError>,
        scale: Scale,
        record: Option<Record>,
    ) -> Result<(), Failure> {
        if let Err(RunError::Input(error)) = measured {
            return Err(error.into());
        }
        let judged = verdict::judge(experiment, rows, &measured, scale);
        let drawings =
            measured.as_ref().map_or_else(|_| Vec::new(), |measured| drawings(experiment, measured));
        let stopped = matches!(measured, Err(RunError::Stopped));
        if let Some(Record { command, cost, extra_seeds }) = record.filter(|_| !stopped) {
            let repeatable = *dependence != Dependence::Machine;
            let recorded = Recorded {
                scale,
                commit: COMMIT.into(),
                machine: machine(),
                command,
                extra_seeds,
                looks: measured.as_ref().map_or_else(|_| Looks::default(), |measured| measured.looks.clone()),
                digest: measured.as_ref().ok().filter(|_| repeatable).map(Measured::digest),
                calibration: measured.as_ref().ok().and_then(|measured| measured.calibration.clone()),
                cost,
                rows: judged.iter().map(record::RecordedRow::from).collect(),
            };
            let kept = record::write(&experiment.folder, &recorded)?;
            eprintln!("recorded {}", kept.display());
            if kept.ends_with(record::LARGEST) {
                for (drawing, number) in drawings.iter().zip(1..) {
                    let path = experiment.folder.join(format!("figure-{number}.svg"));
                    staged::replace(&path, drawing.as_bytes())
                        .map_err(|error| Failure::Other(error.to_string()))?;
                }
            }
        }
        self.outcomes.extend(judged);
        if let Ok(measured) = measured {
            let title = format!("{} ({}).", experiment.file.title, experiment.file.source);
            let text: Vec<String> = std::iter::once(title).chain(measured.notes).collect();
            let file = format!("{}-{}", experiment.paper, experiment.figure);
            let svg = |(drawing, number): (&String, u32)| {
                (format!("{file}-{number}.svg"), drawing.clone().into_bytes())
            };
            self.files.extend(drawings.iter().zip(1..).map(svg));
            self.illustrated.push(IllustratedExperiment {
                name: format!("{}/{}", experiment.paper, experiment.figure),
                text: text.join(" "),
                drawings,
                figures: measured.figures,
            });
        }
        Ok(())
    }
}

/// Architecture, operating system, processor and number of cores.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Only Linux on x86 names its processor in this file.
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or_else(|| "unknown processor".into(), |(_, name)| name.trim().to_owned());
    format!("{}-{}, {model}, {cores} cores", std::env::consts::ARCH, std::env::consts::OS)
}

/// Draws the published figures with the measured values.
fn drawings(experiment: &Experiment, measured: &Measured) -> Vec<String> {
    experiment.file.figure.iter().map(|figure| svg(&figure.get_ref().draw(measured))).collect()
}

fn print_table(outcomes: &[Outcome]) {
    println!("{}", outcome_table(outcomes, terminal_width()));
    for outcome in outcomes {
        let notes = outcome.notes();
        if !notes.is_empty() {
            println!("{}/{} {}: {notes}", outcome.paper, outcome.figure, outcome.quantity);
        }
    }
}

/// The folder of measured inputs, as an absolute path: scenarios resolve paths from their own folder.
pub fn data_folder() -> PathBuf {
    let told = std::env::var_os("TIDEGATE_DATA").unwrap_or_else(|| "../shared/data".into());
    std::path::absolute(&told).unwrap_or_else(|_| told.into())
}
