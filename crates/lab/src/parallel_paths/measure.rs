//! The measures of the thesis' tables, computed from a run's intervals.

use tidegate_sim::parallel::{Counts, Report, normal_quantile};

use super::file::Job;
use crate::scoreboard::Curve;

/// Number of batch means for confidence intervals (section 7.3.1: about 35).
const BATCHES: usize = 35;
/// The 97.5 % quantile of Student's t with 34 degrees of freedom, to 1e-4. It is a constant because mathematical functions
/// round differently on other systems, and the digest of a record covers the intervals.
const T_OF_BATCHES: f64 = 2.032178292544379;
/// Window of the convergence criterion of Table 7.4, seconds.
const WINDOW_S: f64 = 100.0;
/// Time after the swap by which relays should use their new limits, in seconds.
const RECOVERY_S: f64 = 30.0;

/// All measures of one run.
///
/// Throughput is bytes per second received by destinations, per peer. Drops are a share of the arrivals at relays and
/// destinations (Table 7.4), or per second in the whole overlay (Table 7.6).
pub(crate) fn all(job: &Job, report: &Report) -> Vec<(&'static str, f64)> {
    let bin = job.plan.bin.as_secs_f64();
    let seconds = |bins: usize| bins as f64 * bin;
    let settled = report.total(job.first);
    // Bins before `first` belong to the warm-up.
    let measured_s = seconds(report.bins.len() - job.first.min(report.bins.len()));
    let throughput = rate(job, &settled, measured_s);
    let per_s = |count: u64| count as f64 / measured_s;
    let mut values = vec![
        ("throughput", throughput),
        ("drop_percent", 100.0 * report.total(0).drop_rate()),
        ("settled_drop_percent", 100.0 * settled.drop_rate()),
        ("drops_per_s", per_s(settled.drops)),
        ("late_per_s", per_s(settled.late)),
        ("timeouts_per_s", per_s(settled.timeouts)),
        ("sent_per_s_and_peer", per_s(settled.sent) / job.plan.peers.len() as f64),
        ("to_timeout_ms", 1e3 * settled.to_timeout / settled.acks.max(1) as f64),
    ];
    let all: Vec<f64> = report.bins.iter().map(|counts| rate(job, counts, bin)).collect();
    if let Some(window) = windows(&all, (WINDOW_S / bin) as usize).position(|mean| mean > 0.9 * throughput) {
        values.push(("converged_s", seconds(window)));
    }
    if let Some(at) = to_timeout_converged(report) {
        values.push(("to_timeout_converged_s", seconds(at)));
    }
    values.extend(batches(&all[job.first.min(all.len())..]));
    if let Some(swap) = job.swap {
        values.extend(around_swap(&all, report, swap, bin));
    }
    values
}

/// Bytes per second and peer.
fn rate(job: &Job, counts: &Counts, seconds: f64) -> f64 {
    counts.received as f64 * f64::from(job.plan.packet) / job.plan.peers.len() as f64 / seconds
}

/// Means of all windows of `length` values.
fn windows(values: &[f64], length: usize) -> impl Iterator<Item = f64> {
    let length = length.max(1);
    let mut sum = values.iter().take(length).sum::<f64>();
    let starts = (values.len() + 1).saturating_sub(length);
    (0..starts).map(move |start| {
        if start > 0 {
            sum += values[start + length - 1] - values[start - 1];
        }
        sum / length as f64
    })
}

/// Convergence (section 7.1.4): the first interval in which the mean time to the timeout changes by less than 1e-5 s.
fn to_timeout_converged(report: &Report) -> Option<usize> {
    let mean = |counts: &Counts| (counts.acks > 0).then(|| counts.to_timeout / counts.acks as f64);
    report.bins.windows(2).position(|pair| match (mean(&pair[0]), mean(&pair[1])) {
        (Some(before), Some(after)) => (after - before).abs() < 1e-5,
        _ => false,
    })
}

/// Batch means: confidence interval, correlation with normal quantiles (Figures A.1-A.4, top right) and
/// autocorrelation at lag one (bottom left).
fn batches(values: &[f64]) -> Vec<(&'static str, f64)> {
    let length = values.len() / BATCHES;
    if length == 0 {
        return Vec::new();
    }
    let mut means: Vec<f64> = values
        .chunks_exact(length)
        .take(BATCHES)
        .map(|chunk| chunk.iter().sum::<f64>() / length as f64)
        .collect();
    let all = means.iter().sum::<f64>() / BATCHES as f64;
    let deviations: Vec<f64> = means.iter().map(|mean| mean - all).collect();
    let variance: f64 = deviations.iter().map(|d| d * d).sum();
    let lagged: f64 = deviations.windows(2).map(|pair| pair[0] * pair[1]).sum();
    means.sort_by(f64::total_cmp);
    // Blom's plotting positions.
    let quantile = |i: usize| normal_quantile((i as f64 + 0.625) / (BATCHES as f64 + 0.25));
    let quantiles: Vec<f64> = (0..BATCHES).map(quantile).collect();
    let squares: f64 = quantiles.iter().map(|q| q * q).sum();
    let product: f64 = means.iter().zip(&quantiles).map(|(mean, q)| (mean - all) * q).sum();
    let deviation = (variance / (BATCHES - 1) as f64 / BATCHES as f64).sqrt();
    let mut measures = vec![("batch_ci95", T_OF_BATCHES * deviation)];
    if variance > 0.0 {
        measures.push(("autocorrelation", lagged / variance));
        measures.push(("normal_correlation", product / (variance * squares).sqrt()));
    }
    measures
}

/// Experiment 7.3.3: throughput before and after the swap of limits, and the time to recover.
fn around_swap(all: &[f64], report: &Report, swap: usize, bin: f64) -> Vec<(&'static str, f64)> {
    let bins = |seconds: f64| (seconds / bin) as usize;
    let mean = |from: usize, to: usize| {
        let part = &all[from.min(all.len())..to.min(all.len())];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    let before = mean(swap / 2, swap);
    let settled = swap + bins(RECOVERY_S);
    let mut lost = Counts::default();
    report.bins[swap / 2..swap].iter().for_each(|counts| lost.add(counts));
    let back = windows(&all[swap..], bins(10.0)).position(|mean| mean >= 0.95 * before);
    let mut measures = vec![
        ("before", before),
        ("before_drop_percent", 100.0 * lost.drop_rate()),
        ("dip", mean(swap, swap + bins(10.0))),
        ("after_30_s", mean(settled.saturating_sub(bins(10.0)), settled)),
        ("after", mean(all.len() - (all.len() - swap) / 4, all.len())),
    ];
    if let Some(windows) = back {
        measures.push(("recovered_s", (windows as f64) * bin + 10.0));
    }
    // Figure 7.10: the time until drops return to their previous level.
    let drops: Vec<f64> = report.bins.iter().map(|counts| counts.drops as f64).collect();
    let usual = lost.drops as f64 / (swap - swap / 2).max(1) as f64;
    if let Some(window) = windows(&drops[swap..], bins(10.0)).position(|mean| mean <= usual) {
        measures.push(("drops_recovered_s", window as f64 * bin + 10.0));
    }
    measures
}

/// Throughput and drops over time, at most 500 points each.
pub(crate) fn curves(job: &Job, report: &Report) -> [Curve; 2] {
    let bin = job.plan.bin.as_secs_f64();
    let step = report.bins.len().div_ceil(500).max(1);
    let (mut throughput, mut drops) = (Vec::new(), Vec::new());
    for (index, chunk) in report.bins.chunks(step).enumerate() {
        let mut sum = Counts::default();
        chunk.iter().for_each(|counts| sum.add(counts));
        let (at, seconds) = ((index * step) as f64 * bin, chunk.len() as f64 * bin);
        throughput.push((at, rate(job, &sum, seconds)));
        drops.push((at, sum.drops as f64 / seconds));
    }
    [throughput, drops].map(|points| Curve { name: job.name.clone(), points })
}

/// The recorded rate over time, if one was recorded.
pub(crate) fn watched(job: &Job, report: &Report) -> Option<Curve> {
    let bin = job.plan.bin.as_secs_f64();
    let step = report.watched.len().div_ceil(1000).max(1);
    let at = |index: usize| (index as f64 + 1.0) * bin;
    let points: Vec<(f64, f64)> =
        report.watched.iter().enumerate().step_by(step).map(|(i, rate)| (at(i), f64::from(*rate))).collect();
    (job.seed == 0 && !points.is_empty()).then(|| Curve { name: job.name.clone(), points })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_means() {
        let means: Vec<f64> = windows(&[1.0, 2.0, 3.0, 6.0], 3).collect();
        assert_eq!(means.len(), 2);
        assert!((means[0] - 2.0).abs() < 1e-12 && (means[1] - 11.0 / 3.0).abs() < 1e-12);
        assert_eq!(windows(&[1.0], 3).count(), 0);
    }

    #[test]
    fn batches_tell_normal_from_skewed_and_dependent() {
        let normal: Vec<f64> =
            (0..35).map(|i| 5.0 + normal_quantile((f64::from(i * 12 % 35) + 0.5) / 35.0)).collect();
        let skewed: Vec<f64> = (0..35).map(|i| f64::from(i * 12 % 35).powi(6)).collect();
        let trend: Vec<f64> = (0..35).map(f64::from).collect();
        let get = |values: &[f64], name: &str| {
            batches(values).into_iter().find(|(n, _)| *n == name).map(|(_, value)| value).expect(name)
        };
        let width = crate::statistics::Estimate::of(&normal).ci95.unwrap();
        assert!((get(&normal, "batch_ci95") / width - 1.0).abs() < 1e-4);
        assert!(get(&normal, "normal_correlation") > 0.99);
        assert!(get(&skewed, "normal_correlation") < 0.9);
        assert!(get(&normal, "autocorrelation").abs() < 0.35);
        assert!(get(&trend, "autocorrelation") > 0.8);
    }
}
