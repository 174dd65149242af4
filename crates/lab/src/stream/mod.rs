//! The runner `q-stream`: live video through trees of viewers, in simulated time.

mod file;

use tidegate_control::random::Seed;
use tidegate_control::units::Time;
use tidegate_sim::stream::{Report, Second, world};

use crate::jobs::run_all;
use crate::monitor::Monitor;
use crate::scoreboard::{Curve, Experiment, Figure, Measured, RunError, Scale};
use file::{Job, StreamExperiment};

/// Measures an experiment: every case with every seed.
///
/// # Errors
/// [`RunError::Input`] for unknown names and parameters out of range.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: StreamExperiment = experiment.parameters(scale)?;
    let place = experiment.folder.join("experiment.toml").display().to_string();
    let jobs = parameters.jobs(&place)?;
    let reports: Vec<Report> = run_all(
        &jobs,
        monitor,
        |job| &job.name,
        |job, goes_on| {
            let goes_on = |now: Time| goes_on(now.as_secs_f64() / job.plan.duration.as_secs_f64());
            world::run(&job.plan, Seed::root(job.seed), &goes_on)
                .map_err(|error| RunError::Failed(format!("{}: {error}", job.name)))
        },
    )?;
    let mut measured = Measured::default();
    let mut depths = Vec::new();
    let mut viewers = Vec::new();
    for (job, report) in jobs.iter().zip(&reports) {
        for (name, value) in values(job, report) {
            measured.push(format!("{}.{name}", job.name), value);
        }
        // Figures and notes show only the first seed.
        if job.seed == 1 {
            depths.push(curve(job, report, |second| second.depth));
            viewers.push(curve(job, report, |second| second.viewers as f64));
            measured.notes.push(trees(job, report));
        }
    }
    let figure = |title: &str, y: &str, curves| Figure {
        title: title.into(),
        x: "time (s)".into(),
        y: y.into(),
        curves,
    };
    measured.figures.push(figure("Mean depth of viewers in the trees", "hops", depths));
    measured.figures.push(figure("Viewers in the trees", "viewers", viewers));
    Ok(measured)
}

fn curve(job: &Job, report: &Report, value: fn(&Second) -> f64) -> Curve {
    let points = report.seconds.iter().enumerate().map(|(at, second)| (at as f64 + 1.0, value(second)));
    Curve { name: job.name.clone(), points: points.collect() }
}

/// The edges of the first slice's tree as text, with nodes named as in figure 7.11.
fn trees(job: &Job, report: &Report) -> String {
    const MOST: usize = 30;
    let first = report.edges.iter().filter(|(slice, ..)| *slice == 0).take(MOST);
    let edges: Vec<String> = first.map(|(_, parent, child)| format!("{parent}-{child}")).collect();
    format!("{}: slice 0 at the end: {}.", job.name, edges.join(" "))
}

fn values(job: &Job, report: &Report) -> Vec<(&'static str, f64)> {
    let seconds = job.plan.duration.as_secs_f64();
    let came = report.viewers.len() as f64;
    let served = report.viewers.iter().filter(|viewer| viewer.start_up.is_some()).count() as f64;
    let last = report.seconds.last().copied().unwrap_or_default();
    // The first half of a run is the arrival of viewers.
    let settled = &report.seconds[report.seconds.len() / 2..];
    let mean =
        |value: fn(&Second) -> f64| settled.iter().map(value).sum::<f64>() / settled.len().max(1) as f64;
    let played: u64 = report.viewers.iter().map(|viewer| viewer.delivered).sum();
    let twice: u64 = report.viewers.iter().map(|viewer| viewer.duplicates).sum();
    let outages: usize = report.viewers.iter().map(|viewer| viewer.outages.len()).sum();
    let watched = mean(|second| second.viewers as f64).max(1.0);
    vec![
        ("continuity", report.continuity()),
        ("lag_p50_s", report.lag(0.5)),
        ("lag_p95_s", report.lag(0.95)),
        ("start_up_p95_s", report.start_up(0.95)),
        ("outage_p95_s", report.outage(0.95)),
        ("outages", outages as f64),
        ("overhead_share", report.overhead()),
        ("signature_share", report.signatures()),
        ("altered", report.altered as f64),
        (
            "egress_share",
            report.bytes.server_video as f64 * 8.0 / (seconds * job.plan.rate.0 as f64 * watched),
        ),
        ("duplicates_share", twice as f64 / played.max(1) as f64),
        ("depth", mean(|second| second.depth)),
        ("deepest", settled.iter().map(|second| second.deepest).max().unwrap_or(0) as f64),
        ("orphans", mean(|second| second.orphans as f64)),
        ("served_share", served / came),
        ("viewers", mean(|second| second.viewers as f64)),
        ("slices_sent", last.active as f64),
        ("redirected", report.server.redirected as f64),
        ("dead_found_s", report.found.iter().copied().fold(0.0, f64::max)),
        ("tree_latency_ms", report.tree_latency / 1e3),
        ("moves", report.server.moves as f64),
        ("events", report.events as f64),
    ]
}
