//! `tidegate predictor`: solves the optimisation problem of one PredicTor controller.

pub mod figure;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use figure::{COLOURS, drawing, figure_3};
use serde_json::{Value, json};
use tidegate_control::predictor::{Problem, Solution, Solver};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::problems::{self, wrong};
use tidegate_lab::report::staged::replace;

use crate::failure::Failure;

/// Solve problems of PredicTor's controller
#[derive(clap::Args)]
pub struct PredictorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Solve the optimal control problem in a JSON file, without a network
    Solve(SolveArgs),
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tidegate predictor solve examples/predictor/figure-3.json --plot figure-3.svg"
)]
struct SolveArgs {
    /// Read one problem or a list of problems from this JSON file
    file: PathBuf,
    /// Print JSON: an object for one problem, a list for a list
    #[arg(long)]
    json: bool,
    /// Draw the first problem's trajectories (at most 7 circuits, as in Figure 3) to this SVG file, which may exist
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn main(arguments: PredictorArgs) -> Result<ExitCode, Failure> {
    let Command::Solve(arguments) = arguments.command;
    let source = SourceFile::read(&arguments.file).map_err(Failure::Input)?;
    let (problems, listed) = problems::control_problems(&source)?;
    let place = arguments.plot.as_deref();
    let same = |place: &Path| match (place.canonicalize(), arguments.file.canonicalize()) {
        (Ok(plot), Ok(file)) => plot == file,
        _ => false,
    };
    if place.is_some_and(same) {
        let cure = "name another file for the drawing";
        return Err(Failure::Input(InputError::new("--plot", "names the file of the problems", cure)));
    }
    if problems.is_empty() {
        return Err(Failure::Input(InputError::new(&source.file, "does not contain a problem", "add one")));
    }
    let mut solver = Solver::new();
    let mut answers = Vec::new();
    for (index, problem) in problems.into_iter().enumerate() {
        let mut solution = Solution::default();
        #[expect(clippy::disallowed_methods, reason = "the tool's edge times the solve for the user")]
        let start = Instant::now();
        solver
            .solve(&problem, &mut solution)
            .map_err(|refusal| wrong(&source, listed.then_some(index), refusal.to_string()))?;
        answers.push((problem, solution, start.elapsed().as_secs_f64()));
    }
    if let Some(place) = place {
        let (problem, solution, _) = &answers[0];
        let (circuits, problems) = (problem.circuits(), answers.len());
        if circuits > COLOURS.len() {
            eprintln!("the plot shows the first {} of {circuits} circuits", COLOURS.len());
        }
        if problems > 1 {
            eprintln!("the plot shows the first of {problems} problems");
        }
        let drawing = drawing(&figure_3(problem, solution), problem.horizon);
        replace(place, drawing.as_bytes()).map_err(|cause| {
            let cure = "free some space, or name another file with --plot, in a folder that exists";
            InputError::new(place.display().to_string(), format!("cannot be written: {cause}"), cure)
        })?;
    }
    if arguments.json {
        let mut objects: Vec<Value> =
            answers.iter().map(|(problem, solution, seconds)| object(problem, solution, *seconds)).collect();
        let answer = if listed { Value::Array(objects) } else { objects.remove(0) };
        println!("{answer}");
    } else {
        for (problem, solution, seconds) in &answers {
            print!("{}", table(problem, solution, *seconds));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn object(problem: &Problem, solution: &Solution, seconds: f64) -> Value {
    let mut answer = problems::solution(problem, solution);
    answer["seconds"] = json!(seconds);
    answer
}

fn table(problem: &Problem, solution: &Solution, seconds: f64) -> String {
    let steps = problem.horizon;
    let mut text = format!(
        "objective {:.6} in {} iterations, {:.3} ms{}\n{:>8} {:>8}",
        solution.objective,
        solution.iterations,
        seconds * 1e3,
        if solution.fallback { "; did not converge: safe rates" } else { "" },
        "circuit",
        ""
    );
    for step in 0..=steps {
        let _ = write!(text, " {step:>8}");
    }
    text.push('\n');
    for circuit in 0..problem.circuits() {
        let rows: [(&str, &[f64]); 3] = [
            ("v_in", &solution.v_in[circuit * steps..][..steps]),
            ("v_out", &solution.v_out[circuit * steps..][..steps]),
            ("s", &solution.s[circuit * (steps + 1)..][..steps + 1]),
        ];
        for (name, values) in rows {
            let _ = write!(text, "{circuit:>8} {name:>8}");
            for value in values {
                let _ = write!(text, " {value:>8.2}");
            }
            text.push('\n');
        }
    }
    text
}
