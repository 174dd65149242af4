//! The runner `predictor-open-loop`: solves one controller's problem from a JSON file, without a network.
//!
//! Quantities are `<name>.objective` and, for each circuit (from 1) and step (from 0), values such as
//! `<name>.v_out.circuit1.step0` for `v_in`, `v_out`, `vv_out` (journal only), `s` and `predecessor` (the predicted queue
//! of the predecessor). `<name>.v_out.all.step0` is the sum over circuits.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::predictor::{Formulation, Problem, Solution, Solver};
use tidegate_lab::input::{InputError, SourceFile};
use tidegate_lab::monitor::Monitor;
use tidegate_lab::problems::{control_problems, kind_named};
use tidegate_lab::scoreboard::{Experiment, Measured, RunError, Scale};

use crate::commands::predictor::figure::{figure_3, predecessor};

/// `[parameters]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct OpenLoopExperiment {
    /// A problem file for `tidegate predictor solve`, relative to the experiment's folder.
    file: String,
    /// Formulations to solve, by name: `"prototype"` or `"journal"`.
    problems: BTreeMap<String, String>,
}

/// Measures an experiment.
pub fn run(experiment: &Experiment, scale: Scale, _: &dyn Monitor) -> Result<Measured, RunError> {
    let OpenLoopExperiment { file, problems } = experiment.parameters(scale)?;
    let source = SourceFile::read(&experiment.folder.join(file))?;
    let wrong =
        |cause: String| RunError::Input(InputError::new(&source.file, cause, "see examples/predictor"));
    let (instances, _) = control_problems(&source)?;
    let [instance] = &instances[..] else {
        return Err(wrong(format!("contains {} problems instead of one", instances.len())));
    };
    let mut measured = Measured::default();
    for (name, kind) in problems {
        let kind = kind_named(&kind).map_err(wrong)?;
        let weights = Problem::new(kind, instance.capacity).weights;
        let problem = Problem { kind, weights, ..instance.clone() };
        let mut solution = Solution::default();
        Solver::new().solve(&problem, &mut solution).map_err(|refusal| wrong(refusal.to_string()))?;
        measured.push(format!("{name}.objective"), solution.objective);
        let steps = problem.horizon;
        let state = |values: &[f64], i: usize, k: usize| values[i * (steps + 1) + k];
        let rate = |values: &[f64], i: usize, k: usize| values[i * steps + k];
        let virtual_rates = (problem.kind == Formulation::Journal).then_some(&solution.vv_out);
        let mut put = |what: &str, value: &dyn Fn(usize, usize) -> f64| {
            for k in 0..steps {
                let values = (0..problem.circuits()).map(|i| value(i, k));
                measured.push(format!("{name}.{what}.all.step{k}"), values.clone().sum());
                for (i, value) in values.enumerate() {
                    measured.push(format!("{name}.{what}.circuit{}.step{k}", i + 1), value);
                }
            }
        };
        put("v_in", &|i, k| rate(&solution.v_in, i, k));
        put("v_out", &|i, k| rate(&solution.v_out, i, k));
        if let Some(rates) = virtual_rates {
            put("vv_out", &|i, k| rate(rates, i, k));
        }
        put("s", &|i, k| state(&solution.s, i, k));
        put("predecessor", &|i, k| predecessor(&problem, &solution, i, k));
        measured.figures.extend(figure_3(&problem, &solution).into_iter().map(|mut figure| {
            figure.title = format!("{name}: {}", figure.title);
            figure
        }));
    }
    Ok(measured)
}
