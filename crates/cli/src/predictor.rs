//! `tidegate predictor`: one PredicTor controller's problem, open loop.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_control::predictor::{Kind, Problem, Solution, Solver};
use tidegate_lab::input::{InputError, Source};

use crate::Failure;
use crate::fairness::read_json;

/// PredicTor's controller
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Solve the optimal control problem in a JSON file, open loop
    Solve(Solve),
}

#[derive(clap::Args)]
struct Solve {
    /// One problem, or a list of them
    file: PathBuf,
    /// Print JSON: an object for a problem, a list for a list
    #[arg(long)]
    json: bool,
    /// Draw the trajectories of the first problem's first 7 circuits (the paper's Figure 3) as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    Many(Vec<Value>),
    One(Value),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    problem: String,
    capacity: f64,
    s_max: f64,
    scaling: f64,
    horizon: usize,
    dt: f64,
    s0: Vec<f64>,
    vmax: Vec<Vec<f64>>,
    ssrc: Vec<Vec<f64>>,
    vsrc: Vec<Vec<f64>>,
    /// Virtual rates of the predecessor (eq. 21); no limit if not given.
    vvsrc: Option<Vec<Vec<f64>>>,
    first_hop: Vec<bool>,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Command::Solve(arguments) = arguments.command;
    let source = Source::read(&arguments.file).map_err(Failure::Input)?;
    let (values, listed) = match read_json::<Input>(&source)? {
        Input::Many(values) => (values, true),
        Input::One(value) => (vec![value], false),
    };
    let mut solver = Solver::new();
    let mut answers = Vec::new();
    for (index, value) in values.into_iter().enumerate() {
        let place = if listed { format!("problem {index}: ") } else { String::new() };
        let wrong = |cause: String| {
            let cure = "see examples/predictor for a problem that works";
            Failure::Input(InputError::new(source.file.clone(), format!("{place}{cause}"), cure))
        };
        let fields: Fields = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        let problem = problem_of(fields).map_err(wrong)?;
        let mut solution = Solution::default();
        #[expect(clippy::disallowed_methods, reason = "the tool's edge times the solve for the user")]
        let start = Instant::now();
        solver.solve(&problem, &mut solution).map_err(|refusal| wrong(refusal.to_string()))?;
        answers.push((problem, solution, start.elapsed().as_secs_f64()));
    }
    if let Some(place) = &arguments.plot {
        let drawing = match answers.first() {
            Some((problem, solution, _)) => {
                let (circuits, problems) = (problem.circuits(), answers.len());
                if circuits > COLOURS.len() {
                    eprintln!("the plot shows the first {} of {circuits} circuits", COLOURS.len());
                }
                if problems > 1 {
                    eprintln!("the plot shows the first of {problems} problems");
                }
                figure_3(problem, solution)
            }
            None => return Err(Failure::Other("there is no problem to draw".into())),
        };
        std::fs::write(place, drawing)
            .map_err(|error| Failure::Other(format!("{}: {error}", place.display())))?;
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

fn problem_of(fields: Fields) -> Result<Problem, String> {
    let kind = match fields.problem.as_str() {
        "2020" | "predictor-2020" => Kind::Prototype,
        "journal" | "predictor" => Kind::Journal,
        other => return Err(format!("`problem` is \"{other}\"; it is \"2020\" or \"journal\"")),
    };
    let (n, steps) = (fields.s0.len(), fields.horizon);
    let flat = |name: &str, rows: Vec<Vec<f64>>| {
        if rows.len() != n {
            return Err(format!("`{name}` has {} arrays, `s0` has {n} numbers", rows.len()));
        }
        for (circuit, row) in rows.iter().enumerate() {
            if row.len() != steps {
                return Err(format!("`{name}[{circuit}]` has {} numbers, `horizon` is {steps}", row.len()));
            }
        }
        Ok(rows.concat())
    };
    Ok(Problem {
        s_max: fields.s_max,
        scaling: fields.scaling,
        horizon: steps,
        dt: fields.dt,
        s0: fields.s0,
        vmax: flat("vmax", fields.vmax)?,
        ssrc: flat("ssrc", fields.ssrc)?,
        vsrc: flat("vsrc", fields.vsrc)?,
        vvsrc: match fields.vvsrc {
            Some(rows) => flat("vvsrc", rows)?,
            None if n.saturating_mul(steps) > 1 << 24 => return Err("is too large".into()),
            None => vec![f64::INFINITY; n * steps],
        },
        first_hop: fields.first_hop,
        ..Problem::new(kind, fields.capacity)
    })
}

fn object(problem: &Problem, solution: &Solution, seconds: f64) -> Value {
    let rates = |values: &[f64]| values.chunks(problem.horizon).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let states = |values: &[f64]| values.chunks(problem.horizon + 1).map(<[f64]>::to_vec).collect::<Vec<_>>();
    let mut answer = json!({
        "objective": solution.objective,
        "v_in": rates(&solution.v_in),
        "v_out": rates(&solution.v_out),
        "s": states(&solution.s),
        "d": states(&solution.d),
        "eps": states(&solution.eps),
        "iterations": solution.iterations,
        "residuals": {
            "dual": solution.residuals.dual,
            "complementarity": solution.residuals.complementarity,
        },
        "fallback": solution.fallback,
        "seconds": seconds,
    });
    if problem.kind == Kind::Journal {
        answer["vv_out"] = json!(rates(&solution.vv_out));
    }
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

/// Colours that differ to colour-blind eyes and in grey (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// A panel: its title, how many points a circuit has, and the value at (circuit, point).
type Panel<'a> = (&'static str, usize, Box<dyn Fn(usize, usize) -> f64 + 'a>);

/// The paper's Figure 3: incoming and outgoing rates, and queues here and at the predecessor, step by step.
fn figure_3(problem: &Problem, solution: &Solution) -> String {
    let steps = problem.horizon;
    let source = |circuit: usize, step: usize| {
        problem.ssrc[circuit * steps + step.min(steps - 1)] - solution.d[circuit * (steps + 1) + step]
    };
    let (rate, state) = (|i: usize, k: usize| i * steps + k, |i: usize, k: usize| i * (steps + 1) + k);
    let mut panels: Vec<Panel<'_>> = vec![
        ("incoming rate, cells/s", steps, Box::new(move |i, k| solution.v_in[rate(i, k)])),
        ("outgoing rate, cells/s", steps, Box::new(move |i, k| solution.v_out[rate(i, k)])),
        ("circuit queue, cells", steps + 1, Box::new(move |i, k| solution.s[state(i, k)])),
        ("predecessor's queue, cells", steps + 1, Box::new(source)),
    ];
    if problem.kind == Kind::Journal {
        let virtual_rate = move |i: usize, k: usize| solution.vv_out[rate(i, k)];
        panels.insert(2, ("virtual outgoing rate, cells/s", steps, Box::new(virtual_rate)));
    }
    let (width, height, left, top) = (640.0, 150.0, 60.0, 30.0);
    let total = top + panels.len() as f64 * (height + 40.0) + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {total:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width + left + 130.0
    );
    let shown = problem.circuits().min(COLOURS.len());
    for (circuit, colour) in COLOURS.iter().enumerate().take(shown) {
        let y = top + 14.0 + circuit as f64 * 18.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{:.0}\" width=\"14\" height=\"4\" fill=\"{}\"/>\
             <text x=\"{:.0}\" y=\"{y:.0}\">circuit {}</text>",
            y - 6.0,
            colour,
            left + width + 40.0,
            circuit + 1,
            x = left + width + 20.0,
        );
    }
    for (index, (title, points, value)) in panels.iter().enumerate() {
        let (y0, across) = (top + index as f64 * (height + 40.0), width / steps as f64);
        let largest = (0..shown)
            .flat_map(|i| (0..*points).map(move |k| (i, k)))
            .map(|(i, k)| value(i, k))
            .fold(1e-9, f64::max);
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{:.0}\">{title}</text>\
             <rect x=\"{left}\" y=\"{y0:.0}\" width=\"{width}\" height=\"{height}\" fill=\"none\" stroke=\"#888\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{largest:.1}</text>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">0</text>",
            y0 - 6.0,
            left - 4.0,
            y0 + 10.0,
            left - 4.0,
            y0 + height,
        );
        for k in 0..=steps {
            let x = left + k as f64 * across;
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{k}</text>",
                y0 + height + 14.0
            );
        }
        for circuit in 0..shown {
            let mut path = String::new();
            for k in 0..*points {
                let y = y0 + height * (1.0 - value(circuit, k).max(0.0) / largest);
                let x = left + k as f64 * across;
                let verb = if k == 0 { 'M' } else { 'L' };
                // Rates hold for a step, queues are points joined by lines.
                let _ = match *points == steps {
                    true => write!(path, "{verb}{x:.1} {y:.1}L{:.1} {y:.1}", x + across),
                    false => write!(path, "{verb}{x:.1} {y:.1}"),
                };
            }
            let dash = ["none", "6 3", "2 3"][circuit % 3];
            let _ = writeln!(
                svg,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
                COLOURS[circuit]
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
