//! The trajectories of a solution, drawn as the paper's Figure 3.

use std::fmt::Write as _;

use tidegate_control::predictor::{Formulation, Problem, Solution};
use tidegate_lab::scoreboard::{Curve, Figure};

/// Colours that remain distinct for colour-blind readers and in grey (Okabe and Ito).
pub const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

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
            // A chart has one value per x, so a step ends just before the next one begins.
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
    if problem.kind == Formulation::Journal {
        figures.insert(2, rates("virtual outgoing rate, cells/s", &solution.vv_out));
    }
    figures
}

/// A circuit's queue at the predecessor that the controller predicts for a step (eq. 14a).
pub fn predecessor(problem: &Problem, solution: &Solution, circuit: usize, step: usize) -> f64 {
    let steps = problem.horizon;
    problem.ssrc[circuit * steps + step.min(steps - 1)] - solution.d[circuit * (steps + 1) + step]
}

/// Draws figures over `steps` steps, one below the other, as SVG.
pub fn drawing(figures: &[Figure], steps: usize) -> String {
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
