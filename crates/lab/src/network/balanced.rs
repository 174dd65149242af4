//! Draws several samples of a network and keeps the one that is nearest to the whole.

use std::collections::BTreeMap;

use tidegate_control::positions::PositionWeights;
use tidegate_control::random::Seed;
use tidegate_data::consensus::RouterStatus;
use tidegate_data::country::Country;
use tidegate_data::sample::{Representative, sample};
use tidegate_data::weights::{class_of, is_usable};

use super::capacity::Quantities;
use super::demand::{Candidate, Demand};

/// Number of samples to choose from. The spread falls slowly beyond: `experiments/truth/samples` has the figures of 8.
const DRAWN: u64 = 8;

/// Share of the network's capacity that clients request. Tor Metrics gives 0.467 (2018) to 0.506 (2024).
const LOAD: f64 = 0.5;

/// The network that samples are taken from.
pub(super) struct Whole<'a> {
    /// Its relays.
    pub relays: &'a [RouterStatus],
    /// The countries of relays that are known.
    pub countries: &'a dyn Fn(usize) -> Option<Country>,
    /// Weights of the positions.
    pub positions: PositionWeights,
    /// Weights and capacities of these relays, as a network of them would have.
    pub quantities: &'a dyn Fn(&[usize]) -> Vec<Quantities>,
}

/// Properties that a sample should share with the whole network.
struct Profile {
    /// Share of the traffic of the guard, middle and exit position that relays carry.
    carried: [f64; 3],
    /// Share of the weight of each known country.
    countries: BTreeMap<Country, f64>,
}

impl Whole<'_> {
    /// The indices of the nearest of [`DRAWN`] samples, ascending.
    pub(super) fn nearest(&self, all: &[Quantities], fraction: f64, seed: Seed) -> Vec<usize> {
        let everything: Vec<usize> = (0..self.relays.len()).collect();
        let whole = self.profile(&everything, all);
        let samples = (0..DRAWN).map(|number| {
            let chosen = sample(self.relays, fraction, Representative::Drawn(seed.fork_index(number)));
            let profile = self.profile(&chosen, &(self.quantities)(&chosen));
            (chosen, whole.distances(&profile))
        });
        let samples: Vec<(Vec<usize>, [f64; 2])> = samples.collect();
        // The two distances have different units, so each counts in parts of its mean over the samples.
        let means = [0, 1].map(|at| samples.iter().map(|(_, far)| far[at]).sum::<f64>() / DRAWN as f64);
        let far = |far: &[f64; 2]| -> f64 {
            far.iter().zip(means).map(|(far, mean)| if mean > 0.0 { far / mean } else { 0.0 }).sum()
        };
        let nearest = samples.into_iter().min_by(|(_, a), (_, b)| far(a).total_cmp(&far(b)));
        nearest.expect("several samples are drawn").0
    }

    fn profile(&self, members: &[usize], quantities: &[Quantities]) -> Profile {
        let candidate = |(index, of): (&usize, &Quantities)| {
            let relay = &self.relays[*index];
            let weight = if is_usable(relay) { of.weight } else { 0.0 };
            Candidate { class: class_of(relay), weight, capacity: of.capacity() }
        };
        let candidates: Vec<Candidate> = members.iter().zip(quantities).map(candidate).collect();
        let total: f64 = candidates.iter().map(|relay| relay.weight).sum();
        let mut countries = BTreeMap::new();
        for (index, relay) in members.iter().zip(&candidates) {
            if let Some(country) = (self.countries)(*index) {
                *countries.entry(country).or_default() += relay.weight / total;
            }
        }
        Profile { carried: Demand::of(&candidates, &self.positions, LOAD).carried, countries }
    }
}

impl Profile {
    /// Distances of a sample: of the carried traffic, and of the countries' shares.
    fn distances(&self, sample: &Profile) -> [f64; 2] {
        let carried = self.carried.iter().zip(sample.carried).map(|(a, b)| (a - b).abs()).sum();
        let of = |shares: &BTreeMap<Country, f64>, country| shares.get(country).copied().unwrap_or(0.0);
        let all =
            self.countries.keys().chain(sample.countries.keys().filter(|c| !self.countries.contains_key(c)));
        let countries = all.map(|c| (of(&self.countries, c) - of(&sample.countries, c)).abs()).sum();
        [carried, countries]
    }
}
