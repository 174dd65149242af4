//! `tidegate predictor`: one PredicTor controller's problem, open loop.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_control::predictor::{Kind, Problem, Solution, Solver};
use tidegate_lab::input::{InputError, Source};
use tidegate_lab::scoreboard::{Curve, Figure};

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
    let (problems, listed) = read(&source)?;
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
                drawing(&figure_3(problem, solution), problem.horizon)
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

/// The problems of a file, and whether it is a list of them.
pub fn read(source: &Source) -> Result<(Vec<Problem>, bool), Failure> {
    let (values, listed) = match read_json::<Input>(source)? {
        Input::Many(values) => (values, true),
        Input::One(value) => (vec![value], false),
    };
    let problem = |(index, value)| {
        serde_json::from_value(value)
            .map_err(|error| error.to_string())
            .and_then(problem_of)
            .map_err(|cause| wrong(source, listed.then_some(index), cause))
    };
    Ok((values.into_iter().enumerate().map(problem).collect::<Result<_, _>>()?, listed))
}

fn wrong(source: &Source, number: Option<usize>, cause: String) -> Failure {
    let place = number.map_or_else(String::new, |number| format!("problem {number}: "));
    let cure = "see examples/predictor for a problem that works";
    Failure::Input(InputError::new(source.file.clone(), format!("{place}{cause}"), cure))
}

/// Which optimal control problem a name means.
pub fn kind_named(name: &str) -> Result<Kind, String> {
    match name {
        "2020" | "predictor-2020" => Ok(Kind::Prototype),
        "journal" | "predictor" => Ok(Kind::Journal),
        other => Err(format!("`problem` is \"{other}\"; it is \"2020\" or \"journal\"")),
    }
}

fn problem_of(fields: Fields) -> Result<Problem, String> {
    let kind = kind_named(&fields.problem)?;
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

/// The paper's Figure 3: incoming and outgoing rates, and queues here and at the predecessor, step by step.
/// Rates hold for a step, queues are points joined by lines.
pub fn figure_3(problem: &Problem, solution: &Solution) -> Vec<Figure> {
    let steps = problem.horizon;
    let figure = |title: &str, points: &dyn Fn(usize) -> Vec<(f64, f64)>| Figure {
        title: title.to_owned(),
        x: "step".into(),
        y: title.to_owned(),
        curves: (0..problem.circuits().min(COLOURS.len()))
            .map(|circuit| Curve { name: format!("circuit {}", circuit + 1), points: points(circuit) })
            .collect(),
    };
    let rates = |title: &str, values: &[f64]| {
        figure(title, &|circuit| {
            let row = (0u32..).zip(&values[circuit * steps..][..steps]);
            // A chart has one value at a place, so a step ends just before the next begins.
            row.flat_map(|(k, rate)| [(f64::from(k), *rate), (f64::from(k + 1) - 1e-6, *rate)]).collect()
        })
    };
    let states = |title: &str, value: &dyn Fn(usize, usize) -> f64| {
        figure(title, &|circuit| (0..=steps).map(|k| (k as f64, value(circuit, k))).collect())
    };
    let mut figures = vec![
        rates("incoming rate, cells/s", &solution.v_in),
        rates("outgoing rate, cells/s", &solution.v_out),
        states("circuit queue, cells", &|circuit, k| solution.s[circuit * (steps + 1) + k]),
        states("predecessor's queue, cells", &|circuit, k| predecessor(problem, solution, circuit, k)),
    ];
    if problem.kind == Kind::Journal {
        figures.insert(2, rates("virtual outgoing rate, cells/s", &solution.vv_out));
    }
    figures
}

/// The predecessor's queue of a circuit as the controller expects it at a step (eq. 14a).
pub fn predecessor(problem: &Problem, solution: &Solution, circuit: usize, step: usize) -> f64 {
    let steps = problem.horizon;
    problem.ssrc[circuit * steps + step.min(steps - 1)] - solution.d[circuit * (steps + 1) + step]
}

/// Figures over `steps` steps, one below the other, as SVG.
fn drawing(figures: &[Figure], steps: usize) -> String {
    let (width, height, left, top) = (640.0, 150.0, 60.0, 30.0);
    let across = width / steps as f64;
    let total = top + figures.len() as f64 * (height + 40.0) + 20.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {total:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width + left + 130.0
    );
    let legend = figures.first().map_or(&[][..], |figure| &figure.curves);
    for (circuit, (curve, colour)) in legend.iter().zip(COLOURS).enumerate() {
        let y = top + 14.0 + circuit as f64 * 18.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{:.0}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
            y - 6.0,
            left + width + 40.0,
            curve.name,
            x = left + width + 20.0,
        );
    }
    for (index, Figure { title, curves, .. }) in figures.iter().enumerate() {
        let y0 = top + index as f64 * (height + 40.0);
        let largest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(1e-9, f64::max);
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
        for (circuit, (curve, colour)) in curves.iter().zip(COLOURS).enumerate() {
            let mut path = String::new();
            for (x, value) in &curve.points {
                let (x, y) = (left + x * across, y0 + height * (1.0 - value.max(0.0) / largest));
                let verb = if path.is_empty() { 'M' } else { 'L' };
                let _ = write!(path, "{verb}{x:.1} {y:.1}");
            }
            let dash = ["none", "6 3", "2 3"][circuit % 3];
            let _ = writeln!(
                svg,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>"
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
