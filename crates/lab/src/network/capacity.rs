//! Capacities of relays, which differ from their weights, and normalisation of a sample.
//!
//! Bandwidth authorities scale weights by measurements, so a relay's weight is not its capacity. In January 2019 the
//! share of weight over the share of capacity was 0.58, 1.14 and 1.62 at the weighted 5th, 50th and 95th percentile.
//! Relays with much more weight than capacity make downloads slow.

use tidegate_control::positions::Class;
use tidegate_control::random::Seed;
use tidegate_data::consensus::{Consensus, RouterStatus};
use tidegate_data::relays::Capacity;
use tidegate_data::weights::{class_of, is_usable};

use super::inputs::Inputs;
use crate::scenario::tables::TorFile;

/// Weight and capacity of a relay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Quantities {
    /// Consensus weight in kB/s.
    pub weight: f64,
    /// Rate of its link in both directions, in bytes per second.
    pub link: f64,
    /// Its configured limit in bytes per second, if below its link.
    pub limit: Option<f64>,
}

impl Quantities {
    /// Capacity in bytes per second: the smaller of link and limit.
    pub(super) fn capacity(&self) -> f64 {
        self.limit.unwrap_or(self.link).min(self.link)
    }
}

/// Share of capacity over share of weight at [`QUANTILES`], per class (middle, guard, exit, both) and per fifth of its
/// relays by weight, lightest first.
///
/// Computed from the 7,789 relays of May 2024 that ran at least a quarter of the month. Capacity is the largest
/// observed bandwidth, capped at BandwidthRate.
#[expect(clippy::approx_constant, reason = "one of the measured ratios is close to pi")]
const RATIOS: [[[f64; 5]; 5]; 4] = [
    [
        [0.395, 2.58, 4.364, 8.318, 38.12],
        [0.775, 1.528, 1.91, 4.043, 9.576],
        [0.659, 1.074, 1.388, 2.301, 4.772],
        [0.487, 0.733, 0.973, 1.426, 1.994],
        [0.304, 0.459, 0.619, 0.888, 1.448],
    ],
    [
        [0.788, 1.026, 1.302, 1.897, 3.447],
        [0.711, 0.993, 1.298, 1.595, 2.064],
        [0.623, 0.902, 1.133, 1.363, 1.702],
        [0.548, 0.875, 1.052, 1.219, 1.54],
        [0.495, 0.764, 0.892, 1.054, 1.235],
    ],
    [
        [1.015, 1.841, 2.702, 4.222, 12.193],
        [0.905, 1.246, 1.51, 2.179, 3.843],
        [0.925, 1.064, 1.151, 1.269, 1.599],
        [0.868, 0.959, 1.042, 1.117, 1.261],
        [0.715, 0.846, 0.922, 1.024, 1.283],
    ],
    [
        [1.236, 1.644, 1.932, 2.26, 3.142],
        [0.91, 1.166, 1.327, 1.554, 2.259],
        [0.921, 1.057, 1.153, 1.277, 1.678],
        [0.849, 0.955, 1.049, 1.172, 1.556],
        [0.662, 0.871, 0.985, 1.105, 1.583],
    ],
];

/// Quantiles of the ratios; tails beyond them are cut off.
const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// The ratio at a quantile, interpolated linearly between the logarithms.
fn ratio(known: &[f64; 5], q: f64) -> f64 {
    let q = q.clamp(QUANTILES[0], QUANTILES[4]);
    let upper = QUANTILES.iter().position(|known| q <= *known).unwrap_or(4).max(1);
    let share = (q - QUANTILES[upper - 1]) / (QUANTILES[upper] - QUANTILES[upper - 1]);
    libm::exp(libm::log(known[upper - 1]) * (1.0 - share) + libm::log(known[upper]) * share)
}

/// Smallest capacity in bytes per second; slower relays would need minutes for a few cells.
pub(crate) const LEAST: f64 = 50_000.0;

/// The quantities of every relay of a consensus, in order.
pub(super) fn quantities(table: &TorFile, inputs: &Inputs, seed: Seed) -> Vec<Quantities> {
    let consensus = inputs.consensus.as_ref().expect("a [tor] table has a consensus");
    let factor = table.bandwidth_factor;
    let as_weight = table.capacity.as_str() == "weight";
    let fifths = fifths(consensus);
    let draw = |(index, relay): (usize, &RouterStatus)| {
        let weight = f64::from(relay.bandwidth);
        let known = inputs.capacities.as_ref().and_then(|table| table.get(&relay.identity));
        let (link, limit) = match known {
            _ if as_weight => (weight * factor * 1000.0, None),
            Some(known) => measured(known, factor),
            None => {
                let class = class_of(relay);
                let ratios = &RATIOS[Class::ALL.iter().position(|other| *other == class).unwrap_or(0)];
                let q = seed.fork("capacity").fork_index(index as u64).random().unit();
                (weight * factor * 1000.0 * ratio(&ratios[fifths[index]], q), None)
            }
        };
        Quantities { weight, link: link.max(LEAST), limit: limit.map(|limit: f64| limit.max(LEAST)) }
    };
    consensus.relays.iter().enumerate().map(draw).collect()
}

/// (link, limit) of a relay in a table: the link is the largest observed bandwidth, the limit applies if lower.
fn measured(known: &Capacity, factor: f64) -> (f64, Option<f64>) {
    let (link, rate) = (known.capacity_bytes_per_s as f64, known.rate_bytes_per_s as f64);
    (link * factor, (rate < link).then_some(rate * factor))
}

/// The fifth of its class, by weight, that each relay belongs to.
fn fifths(consensus: &Consensus) -> Vec<usize> {
    let relays = &consensus.relays;
    let mut fifths = vec![0; relays.len()];
    for class in Class::ALL {
        let mut members: Vec<usize> =
            (0..relays.len()).filter(|index| class_of(&relays[*index]) == class).collect();
        members.sort_by_key(|index| (relays[*index].bandwidth, relays[*index].identity));
        for (rank, index) in members.iter().enumerate() {
            fifths[*index] = rank * 5 / members.len();
        }
    }
    fifths
}

/// Scales weights and capacities of a sample so that each class keeps its share of the whole network.
///
/// In a sample of 100 relays, these shares would vary by chance as much as the effects that a simulation studies.
/// `all` are the quantities of all `relays`, `chosen` the indices of the sample.
pub(super) fn normalise(
    relays: &[RouterStatus],
    all: &[Quantities],
    chosen: &[usize],
    fraction: f64,
) -> Vec<Quantities> {
    let total = |class: Class, members: &mut dyn Iterator<Item = usize>| -> (f64, f64) {
        let of_class =
            members.filter(|index| class_of(&relays[*index]) == class && is_usable(&relays[*index]));
        of_class.fold((0.0, 0.0), |(weight, carried), index| {
            (weight + all[index].weight, carried + all[index].capacity())
        })
    };
    let scales = Class::ALL.map(|class| {
        let whole = total(class, &mut (0..all.len()));
        let sample = total(class, &mut chosen.iter().copied());
        let scale = |whole: f64, sample: f64| if sample > 0.0 { fraction * whole / sample } else { 1.0 };
        (class, scale(whole.0, sample.0), scale(whole.1, sample.1))
    });
    let scaled = |index: &usize| {
        let relay = &all[*index];
        let class = class_of(&relays[*index]);
        let (_, weight, carried) =
            *scales.iter().find(|(other, ..)| *other == class).expect("every class has its scale");
        Quantities {
            weight: relay.weight * weight,
            link: relay.link * carried,
            limit: relay.limit.map(|limit| limit * carried),
        }
    };
    chosen.iter().map(scaled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_the_tables_at_its_quantiles() {
        for (q, expected) in QUANTILES.iter().zip(RATIOS[1][4]) {
            assert!((ratio(&RATIOS[1][4], *q) - expected).abs() < 1e-9);
        }
        assert_eq!(ratio(&RATIOS[0][0], 0.0), 0.395, "the tails end");
        assert_eq!(ratio(&RATIOS[0][0], 1.0), 38.12);
    }
}
