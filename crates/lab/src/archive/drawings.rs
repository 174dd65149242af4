//! Figures 1 to 5 and 10 of FlashFlow's paper for any archive.

use std::collections::BTreeMap;

use super::PERIODS;
use super::errors::{Analysis, NetworkErrors, RelayErrors};
use crate::scoreboard::drawing::{Banded, Drawing, FigureFile};

/// Maximum number of points per curve; longer curves are thinned out evenly.
const POINTS: usize = 400;
const DAY_S: f64 = 86_400.0;

/// The figures, by name of their file.
pub fn all(analysis: &Analysis) -> Vec<(&'static str, Drawing)> {
    let relays: Vec<RelayErrors> = analysis.relays().filter(|relay| relay.hours > 0).collect();
    let shares = |of: &dyn Fn(&RelayErrors, usize) -> f64| {
        periods(|index| distribution(relays.iter().map(|relay| of(relay, index)).collect()))
    };
    let first = analysis.network.first().map_or(0, |hour| hour.time);
    let days = |of: &dyn Fn(&NetworkErrors) -> f64| {
        thin(analysis.network.iter().map(|hour| ((hour.time - first) as f64 / DAY_S, of(hour))).collect())
    };
    let over_time = |of: &dyn Fn(&NetworkErrors, usize) -> f64| {
        periods(|index| days(&|hour: &NetworkErrors| of(hour, index)))
    };
    let (share, time) = ("share of relays", "days since the first consensus");
    let gbit = days(&|hour| hour.advertised_bytes_per_s * 8e-9);
    vec![
        (
            "figure-1",
            drawing(
                "Figure 1: mean error of a relay's capacity",
                "error",
                share,
                shares(&|relay, index| relay.capacity[index]),
            ),
        ),
        (
            "figure-2",
            drawing(
                "Figure 2: error of the network's capacity",
                time,
                "error",
                over_time(&|hour, index| hour.capacity[index]),
            ),
        ),
        (
            "figure-3",
            drawing(
                "Figure 3: mean error of a relay's weight",
                "logarithm to base 10 of share of weight over share of capacity",
                share,
                shares(&|relay, index| relay.weight[index].log10()),
            ),
        ),
        (
            "figure-4",
            drawing(
                "Figure 4: error of the network's weights",
                time,
                "error",
                over_time(&|hour, index| hour.weight[index]),
            ),
        ),
        (
            "figure-5",
            drawing("Figure 5: sum of advertised bandwidths", time, "Gbit/s", vec![("network", gbit)]),
        ),
        (
            "figure-10-a",
            drawing(
                "Figure 10 (a): spread of advertised bandwidths",
                "standard deviation over mean",
                share,
                shares(&|relay, index| relay.advertised_rsd[index]),
            ),
        ),
        (
            "figure-10-b",
            drawing(
                "Figure 10 (b): spread of weights",
                "standard deviation over mean",
                share,
                shares(&|relay, index| relay.weight_rsd[index]),
            ),
        ),
    ]
}

/// A curve's name and points.
type Named = (&'static str, Vec<(f64, f64)>);

fn periods(points: impl Fn(usize) -> Vec<(f64, f64)>) -> Vec<Named> {
    PERIODS.iter().enumerate().map(|(index, period)| (period.name, points(index))).collect()
}

/// The distribution function of the values.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len() as f64;
    thin((1..).zip(values).map(|(rank, value)| (value, f64::from(rank) / count)).collect())
}

/// Every n-th point, and the last.
fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let (step, last) = (points.len().div_ceil(POINTS).max(1), points.len().saturating_sub(1));
    let known = points.into_iter().enumerate().filter(|(_, point)| point.1.is_finite());
    known.filter(|(index, _)| index % step == 0 || *index == last).map(|(_, point)| point).collect()
}

fn drawing(title: &str, x: &str, y: &str, curves: Vec<Named>) -> Drawing {
    let file = FigureFile {
        title: title.into(),
        x: x.into(),
        y: y.into(),
        log_x: false,
        log_y: false,
        note: String::new(),
        published: BTreeMap::new(),
        ours: BTreeMap::new(),
        across: BTreeMap::new(),
    };
    let banded = |(name, points): Named| Banded {
        name: name.into(),
        across: false,
        points: points.into_iter().map(|(x, y)| (x, y, [y, y])).collect(),
    };
    Drawing { file, ours: curves.into_iter().map(banded).filter(|curve| !curve.points.is_empty()).collect() }
}
