//! Measures an experiment with free parameters: fits them to the baseline's numbers, then predicts the other rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::calibration::{CalibrateFile, Calibration, search};
use super::experiment::{Check, Experiment, ParameterTrial, PublishedRow, Scale};
use super::{Measured, RunError, Runner};
use crate::monitor::Monitor;
use crate::number::format_number;

/// Candidates at smoke scale, which only shows that the search runs.
const AT_SMOKE: usize = 2;

/// Runs the search and, at each of its points, the whole experiment; without `[calibrate]`, the experiment once.
///
/// # Errors
/// Those of the runner. [`RunError::Failed`] if no candidate gives every fitted quantity.
pub fn measure(
    experiment: &Experiment,
    scale: Scale,
    runner: Runner,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let Some(file) = experiment.file.calibrate.as_ref().map(|file| file.get_ref()) else {
        return runner(experiment, scale, monitor);
    };
    let mut calibration = fit(experiment, file, scale, runner, monitor)?;
    // Runs of seconds complete no download, and smoke scale only shows that the experiment runs.
    if scale == Scale::Smoke && calibration.points.is_empty() {
        calibration.points.push(calibration.trials[0].point.clone());
    }
    let mut points = Vec::new();
    for point in &calibration.points {
        let trial =
            ParameterTrial { values: named(&calibration.parameters, point), ..ParameterTrial::default() };
        points.push(runner(&Experiment { trial: Some(trial), ..experiment.clone() }, scale, monitor)?);
    }
    let mut points = points.into_iter();
    let Some(mut measured) = points.next() else {
        return Err(RunError::Failed("no candidate of [calibrate] gives every fitted quantity".into()));
    };
    for point in points {
        measured.deterministic &= point.deterministic;
        measured.elsewhere.push(point.values);
    }
    measured.notes.insert(0, sentence(&calibration));
    measured.calibration = Some(calibration);
    Ok(measured)
}

/// Searches for the parameters that reproduce the fitted rows.
fn fit(
    experiment: &Experiment,
    file: &CalibrateFile,
    scale: Scale,
    runner: Runner,
    monitor: &dyn Monitor,
) -> Result<Calibration, RunError> {
    let rows: Vec<PublishedRow> =
        experiment.rows()?.into_iter().filter(|row| file.fit.contains(&row.file.quantity)).collect();
    let quantities: Vec<String> =
        rows.iter().flat_map(|row| row.check.names()).map(ToOwned::to_owned).collect();
    let candidates = if scale == Scale::Smoke { AT_SMOKE.min(file.candidates) } else { file.candidates };
    search(&file.parameter, candidates, file.seed, |point: &[f64], seeds: u32| {
        let trial = ParameterTrial {
            values: named(file.parameter.iter().map(|parameter| &parameter.name), point),
            seeds: Some(seeds),
            system: Some(file.baseline.clone()),
            quantities: quantities.clone(),
        };
        let measured = runner(&Experiment { trial: Some(trial), ..experiment.clone() }, scale, monitor)?;
        let of_rows: Vec<Vec<f64>> = rows
            .iter()
            .map(|row| deviations(&row.check, &measured))
            .collect::<Result<_, _>>()
            .map_err(RunError::Failed)?;
        let of_seed = |seed: usize| of_rows.iter().map(|row| row[seed.min(row.len() - 1)]).collect();
        Ok((0..seeds as usize).map(of_seed).collect())
    })
}

/// Distance of a seed without a value, in tolerances.
const FARTHEST: f64 = 1e3;

/// Per seed, the distance from the published number in tolerances. Positive numbers are compared by their logarithms,
/// so that half and double are equally far. The distance of a statement that holds is 0; its tolerance is a tenth. A seed
/// without a value is as far as can be.
fn deviations(check: &Check, measured: &Measured) -> Result<Vec<f64>, String> {
    let logarithmic = |ours: f64, wanted: f64, share: f64| libm::log(ours / wanted) / libm::log(1.0 + share);
    let finite = |distance: f64| if distance.is_nan() { FARTHEST } else { distance };
    match check {
        Check::Number { measure, published, tolerance } => {
            let width = tolerance.width(*published);
            let of = |ours: f64| {
                if *published > 0.0 {
                    logarithmic(ours, *published, width / published)
                } else {
                    (ours - published) / width
                }
            };
            Ok(measure.evaluate(&measured.values)?.into_iter().map(of).map(finite).collect())
        }
        Check::Statement(relation) => {
            let of = |[left, right]: [f64; 2]| {
                if relation.holds(left, right) { 0.0 } else { logarithmic(left, right, 0.1) }
            };
            Ok(relation.sides(&measured.values)?.into_iter().map(of).map(finite).collect())
        }
    }
}

fn named<'a>(names: impl IntoIterator<Item = &'a String>, point: &[f64]) -> BTreeMap<String, f64> {
    names.into_iter().cloned().zip(point.iter().copied()).collect()
}

/// "Calibrated on 16 candidates: factor 0.004 (0.002 to 0.008)."
fn sentence(calibration: &Calibration) -> String {
    let best = &calibration.trials[0];
    if calibration.range.is_empty() {
        return format!("None of {} candidates fits the baseline.", calibration.trials.len());
    }
    let parameters = calibration.parameters.iter().zip(&best.point).zip(&calibration.range);
    let parameters: Vec<String> = parameters
        .map(|((name, value), [low, high])| {
            let [value, low, high] = [*value, *low, *high].map(format_number);
            format!("{name} {value} ({low} to {high})")
        })
        .collect();
    let (count, loss) = (calibration.trials.len(), format_number(best.loss));
    let mut sentence = format!(
        "Calibrated on {count} candidates: {}; root mean square {loss} tolerances.",
        parameters.join(", ")
    );
    for (index, name) in calibration.parameters.iter().enumerate() {
        let others = || calibration.trials[1..].iter().map(|trial| trial.point[index]);
        let value = best.point[index];
        let edge = match () {
            () if others().all(|other| other > value) => "lowest",
            () if others().all(|other| other < value) => "highest",
            () => continue,
        };
        let _ = write!(sentence, " The best fit has the {edge} {name}: a wider range may fit better.");
    }
    sentence
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::verdict::{Verdict, judge};
    use super::*;

    struct Unwatched;

    impl Monitor for Unwatched {}

    const FILE: &str = r#"
        title = "t"
        source = "s"
        runner = "scenario"
        parameters = { overrides = ["load = {load}"] }
        [calibrate]
        baseline = "vanilla"
        fit = ["queue"]
        candidates = 32
        [[calibrate.parameter]]
        name = "load"
        range = [1, 10]
        source = "not stated"
        [[row]]
        quantity = "queue"
        measure = "vanilla.queue"
        published = 9
        tolerance = "20 %"
        [[row]]
        quantity = "gain"
        relation = "new.queue < 0.5 * vanilla.queue"
        [[row]]
        quantity = "gain at low load"
        relation = "new.queue < 0.3 * vanilla.queue"
    "#;

    fn experiment(name: &str, text: &str) -> Result<Experiment, crate::input::InputError> {
        let root = std::env::temp_dir().join(format!("tidegate-calibrated-{name}-{}", std::process::id()));
        let folder = root.join("paper").join("figure");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("experiment.toml"), text).unwrap();
        let experiment = Experiment::load(&root, Path::new("no-data"), "paper", "figure");
        std::fs::remove_dir_all(&root).unwrap();
        experiment
    }

    /// The baseline's queue is the square of the load, the new system's grows with the load.
    fn model(experiment: &Experiment, _: Scale, _: &dyn Monitor) -> Result<Measured, RunError> {
        let trial = experiment.trial.as_ref().expect("a trial");
        assert_eq!(experiment.substitute("load = {load}"), format!("load = {}", trial.values["load"]));
        let mut measured = Measured::default();
        for seed in 0..trial.seeds.unwrap_or(6) {
            let noise = 0.01 * f64::from(seed % 3);
            let load = trial.values["load"] + noise;
            measured.push("vanilla.queue", load * load);
            if trial.system.is_none() {
                measured.push("new.queue", load + noise);
            }
        }
        Ok(measured)
    }

    #[test]
    fn the_baseline_is_fitted_and_the_rest_predicted_over_the_range() {
        let experiment = experiment("fit", FILE).unwrap();
        let measured = measure(&experiment, Scale::Full, model, &Unwatched).unwrap();
        let calibration = measured.calibration.clone().unwrap();
        let [low, high] = calibration.range[0];
        assert!(2.7 < low && low < 3.0 && 3.0 < high && high < 3.3, "{:?}", calibration.range);
        assert!(measured.notes[0].starts_with("Calibrated on 32 candidates: load "), "{:?}", measured.notes);
        assert_eq!(measured.elsewhere.len() + 1, calibration.points.len());
        let rows = experiment.rows().unwrap();
        let outcomes = judge(&experiment, &rows, &Ok(measured), Scale::Full);
        let [queue, gain, low_load] = &outcomes[..] else { panic!("three rows") };
        assert_eq!(queue.fitted.as_deref(), Some("calibrated load"));
        assert_eq!((queue.elsewhere.len(), gain.elsewhere.len()), (0, calibration.points.len() - 1));
        assert_eq!(gain.verdict, Verdict::Holds, "{gain:?}");
        assert!(gain.remarks.contains("over the posterior range"), "{}", gain.remarks);
        // A third of the queue at a load of 3.3, more than that below: the range leaves it open.
        assert_eq!(low_load.verdict, Verdict::Differs, "{low_load:?}");
    }

    #[test]
    fn a_fit_at_the_edge_of_its_range_is_said() {
        let note = |range: &str| {
            let experiment = experiment("edge", &FILE.replace("[1, 10]", range)).unwrap();
            measure(&experiment, Scale::Full, model, &Unwatched).unwrap().notes[0].clone()
        };
        assert!(!note("[1, 10]").contains("wider range"));
        assert!(
            note("[3.5, 10]").ends_with("The best fit has the lowest load: a wider range may fit better.")
        );
        assert!(
            note("[1, 2.5]").ends_with("The best fit has the highest load: a wider range may fit better.")
        );
    }

    #[test]
    fn a_row_on_which_points_disagree_stays_undecided() {
        let text = FILE.replace("0.3 *", "0.333 *");
        let experiment = experiment("disagree", &text).unwrap();
        let measured = measure(&experiment, Scale::Full, model, &Unwatched);
        let outcomes = judge(&experiment, &experiment.rows().unwrap(), &measured, Scale::Full);
        assert_eq!(outcomes[2].verdict, Verdict::Undecided, "{:?}", outcomes[2]);
        assert_eq!(outcomes[2].p_value, Some(1.0));
    }

    #[test]
    fn a_calibration_that_could_cheat_is_refused() {
        let refused = |name: &str, from: &str, to: &str| {
            let text = FILE.replace(from, to);
            assert_ne!(text, FILE);
            experiment(name, &text).unwrap_err().to_string()
        };
        assert!(refused("a", "[\"queue\"]", "[\"gain\"]").contains("not the baseline's"));
        assert!(refused("b", "[\"queue\"]", "[\"queues\"]").contains("`queue`"));
        assert!(refused("c", "{load}", "2").contains("no override contains `{load}`"));
        assert!(refused("d", "[1, 10]", "[10, 1]").contains("is empty"));
        assert!(refused("e", "runner = \"scenario\"", "runner = \"flashflow\"").contains("only the runner"));
        assert!(refused("f", "candidates = 32", "candidates = 0").contains("needs a parameter"));
        assert!(refused("g", "candidates = 32", "predict = [\"queue\"]").contains("fitted and predicted"));
    }

    #[test]
    fn a_statement_that_holds_does_not_deviate() {
        let mut measured = Measured::default();
        [5.0, 20.0].into_iter().for_each(|value| measured.push("a", value));
        let check = Check::Statement("a < 10".parse().unwrap());
        let found = deviations(&check, &measured).unwrap();
        assert!(found[0] == 0.0 && (found[1] - libm::log(2.0) / libm::log(1.1)).abs() < 1e-9, "{found:?}");
    }
}
