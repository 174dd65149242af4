//! The runner `parallel-paths`: controllers on an overlay with per-packet random paths.
//!
//! An experiment names cases (a controller with its parameters) and optionally a sweep of one quantity; every
//! combination runs with every seed. Quantities have the name `<case>.<measure>`, in a sweep
//! `<case>.<over>-<value>.<measure>`, in snake case; `measure` lists the measures.

mod file;
mod measure;

use tidegate_control::random::Seed;
use tidegate_control::units::Time;
use tidegate_sim::parallel::{Report, world};

use crate::jobs::run_all;
use crate::monitor::Monitor;
use crate::scoreboard::{Curve, Experiment, Figure, Measured, RunError, Scale};
use file::ParallelPathsExperiment;

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for unknown names and parameters out of range.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: ParallelPathsExperiment = experiment.parameters(scale)?;
    let place = experiment.folder.join("experiment.toml").display().to_string();
    let mut jobs = parameters.jobs(&place)?;
    jobs.retain(|job| job.seed >= experiment.first_seed);
    let reports: Vec<Report> = run_all(
        &jobs,
        monitor,
        |job| &job.name,
        |job, goes_on| {
            let goes_on = |now: Time| goes_on(now.as_secs_f64() / job.plan.duration.as_secs_f64());
            world::run(&job.plan, &job.parameters, Seed::root(u64::from(job.seed) + 1), &goes_on)
                .map_err(|error| RunError::Failed(format!("{}: {error}", job.name)))
        },
    )?;
    let mut measured = Measured::default();
    let mut sweeps: Vec<Curve> = Vec::new();
    let mut curves: Vec<[Curve; 2]> = Vec::new();
    for (job, report) in jobs.iter().zip(&reports) {
        let values = measure::all(job, report);
        for (name, value) in &values {
            measured.push(format!("{}.{name}", job.name), *value);
        }
        // Figures show only the first seed.
        if job.seed > 0 {
            continue;
        }
        if let Some(at) = job.at {
            let throughput = values.iter().find(|(name, _)| *name == "throughput").map_or(0.0, |v| v.1);
            match sweeps.iter_mut().find(|curve| curve.name == job.case) {
                Some(curve) => curve.points.push((at, throughput)),
                None => sweeps.push(Curve { name: job.case.clone(), points: vec![(at, throughput)] }),
            }
        } else {
            curves.push(measure::curves(job, report));
        }
    }
    let figure = |title: &str, x: &str, y: &str, curves| Figure {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        curves,
    };
    if experiment.first_seed > 0 {
        return Ok(measured);
    }
    const THROUGHPUT: &str = "received per peer (B/s)";
    if let Some(sweep) = &parameters.sweep {
        measured.figures.push(figure("Throughput", &sweep.over, THROUGHPUT, sweeps));
    } else {
        let (throughput, drops) = curves.into_iter().map(|[a, b]| (a, b)).unzip();
        measured.figures.push(figure("Throughput over time", "time (s)", THROUGHPUT, throughput));
        measured.figures.push(figure("Drops over time", "time (s)", "drops (1/s)", drops));
    }
    let watched: Vec<Curve> =
        jobs.iter().zip(&reports).filter_map(|(job, report)| measure::watched(job, report)).collect();
    if !watched.is_empty() {
        measured.figures.push(figure("Rate from one peer to another", "time (s)", "rate (B/s)", watched));
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scoreboard::experiment::find;

    struct Unwatched;
    impl Monitor for Unwatched {}

    #[test]
    fn seeds_measured_apart_are_those_measured_together() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let found = find(&root, Path::new("no-data"), Some("parallel-paths/table-7-2")).unwrap();
        let mut experiment = found.into_iter().next().unwrap();
        let shorter = toml::toml! { duration = "20 s" from = "10 s" };
        experiment.file.smoke.extend(shorter);
        experiment.extra_seeds = 2;
        let together = run(&experiment, Scale::Smoke, &Unwatched).unwrap();
        experiment.extra_seeds = 0;
        let mut apart = run(&experiment, Scale::Smoke, &Unwatched).unwrap();
        (experiment.first_seed, experiment.extra_seeds) = (1, 2);
        apart.append(run(&experiment, Scale::Smoke, &Unwatched).unwrap());
        assert_eq!(apart.seeds(), 3);
        assert_eq!(apart.digest(), together.digest());
        assert_eq!(apart.figures.len(), together.figures.len());
    }
}
