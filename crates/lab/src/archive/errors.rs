//! Errors of capacities and weights (FlashFlow, equations 1 to 7), hour by hour.
//!
//! A(r, t) is the advertised bandwidth in the last descriptor of relay r until t, C(r, t, p) the largest one in the
//! period p before t, W(r, t) the relay's share of the consensus weight. An hour covers the relays of its consensus
//! that published a descriptor in the year before; sums and shares of the network are over these relays.

use std::collections::VecDeque;

/// A period to look back over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its name in tables.
    pub name: &'static str,
    /// Its length.
    pub seconds: u64,
}

/// A relay's advertised bandwidth at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Advertised {
    /// Time of publication, in seconds since 1970.
    pub time: u64,
    /// Index of the relay in the list of relays.
    pub relay: u32,
    /// Advertised bandwidth in bytes per second.
    pub bytes_per_s: u64,
}

/// Means over the hours in which a relay ran, per period; NaN without such hours.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RelayErrors {
    /// Hours in which it ran and had published a descriptor.
    pub hours: u64,
    /// Relay capacity error (equation 2).
    pub capacity: Vec<f64>,
    /// Relay weight error (equation 5); Figure 3 shows its logarithm to base 10.
    pub weight: Vec<f64>,
    /// Relative standard deviation of its advertised bandwidths (equation 7, Figure 10 a).
    pub advertised_rsd: Vec<f64>,
    /// Relative standard deviation of its weights (Figure 10 b).
    pub weight_rsd: Vec<f64>,
}

/// The whole network in one hour, with errors per period.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkErrors {
    /// Seconds since 1970.
    pub time: u64,
    /// Relays in the consensus.
    pub relays: u64,
    /// Relays in the consensus that had published a descriptor.
    pub known: u64,
    /// Sum of the advertised bandwidths in bytes per second.
    pub advertised_bytes_per_s: f64,
    /// Network capacity error (equation 3).
    pub capacity: Vec<f64>,
    /// Network weight error (equation 6).
    pub weight: Vec<f64>,
}

/// Total variation distance of shares of weight and shares of capacity (equation 6).
///
/// Half the sum of absolute differences, from 0 to 1; NaN if either sum is zero.
///
/// # Examples
///
/// ```
/// use tidegate_lab::archive::weight_error;
/// assert_eq!(weight_error(&[1.0, 1.0], &[30.0, 10.0]), 0.25);
/// ```
pub fn weight_error(weights: &[f64], capacities: &[f64]) -> f64 {
    let (weight, capacity): (f64, f64) = (weights.iter().sum(), capacities.iter().sum());
    if weight <= 0.0 || capacity <= 0.0 {
        return f64::NAN;
    }
    let gap = |(w, c): (&f64, &f64)| (w / weight - c / capacity).abs();
    weights.iter().zip(capacities).map(gap).sum::<f64>() / 2.0
}

/// The errors of all hours so far.
#[derive(Clone, Debug)]
pub struct Analysis {
    periods: Vec<Period>,
    relays: Vec<RelayHistory>,
    /// The network's errors, per hour.
    pub network: Vec<NetworkErrors>,
}

#[derive(Clone, Debug, Default)]
struct RelayHistory {
    advertised: History<u64>,
    weights: History<f64>,
    /// Per period, the windows over both histories.
    windows: Vec<(Window, Window)>,
    hours: u64,
    sums: Vec<[f64; 4]>,
}

/// Values by time, oldest first, over the longest period.
#[derive(Clone, Debug, Default)]
struct History<T> {
    values: VecDeque<(u32, T)>,
    /// Number of values dropped at the front.
    forgotten: u64,
}

impl<T: Copy> History<T> {
    fn get(&self, index: u64) -> Option<(u32, T)> {
        self.values.get(index.checked_sub(self.forgotten)? as usize).copied()
    }

    fn end(&self) -> u64 {
        self.forgotten + self.values.len() as u64
    }

    fn forget_until(&mut self, index: u64) {
        while self.forgotten < index {
            self.values.pop_front();
            self.forgotten += 1;
        }
    }
}

/// The last values of a history, from index `begin` to `end`.
#[derive(Clone, Debug, Default)]
struct Window {
    begin: u64,
    end: u64,
    sum: f64,
    squares: f64,
    /// Indices of the maximum, of the maximum after that, and so on.
    greatest: VecDeque<u64>,
}

impl Window {
    /// Adds new values and removes those up to `since`.
    fn slide<T: Copy>(&mut self, history: &History<T>, since: u64, number: impl Fn(T) -> f64) {
        while let Some((_, value)) = history.get(self.end) {
            let value = number(value);
            self.sum += value;
            self.squares += value * value;
            let at = |index: u64| history.get(index).map_or(f64::INFINITY, |(_, value)| number(value));
            while self.greatest.back().is_some_and(|last| at(*last) <= value) {
                self.greatest.pop_back();
            }
            self.greatest.push_back(self.end);
            self.end += 1;
        }
        while let Some((time, value)) = history.get(self.begin).filter(|_| self.begin < self.end) {
            if u64::from(time) > since {
                break;
            }
            let value = number(value);
            self.sum -= value;
            self.squares -= value * value;
            if self.greatest.front() == Some(&self.begin) {
                self.greatest.pop_front();
            }
            self.begin += 1;
        }
        if self.begin == self.end {
            // An empty window resets accumulated rounding errors.
            (self.sum, self.squares) = (0.0, 0.0);
        }
    }

    /// Relative standard deviation (of the whole population, equation 7).
    fn rsd(&self) -> f64 {
        let count = (self.end - self.begin) as f64;
        let mean = self.sum / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        // Smaller values are rounding errors of the difference.
        if variance <= 1e-9 * mean * mean { 0.0 } else { variance.sqrt() / mean }
    }
}

impl Analysis {
    /// An analysis without data, for relays with indices below `relays`.
    pub(crate) fn new(periods: &[Period], relays: usize) -> Analysis {
        Analysis {
            periods: periods.to_vec(),
            relays: vec![RelayHistory::default(); relays],
            network: Vec::new(),
        }
    }

    /// Adds a descriptor. Calls must be in order of time.
    pub(crate) fn advertised(&mut self, said: &Advertised) {
        let relay = &mut self.relays[said.relay as usize];
        relay.advertised.values.push_back((said.time as u32, said.bytes_per_s));
    }

    /// Adds the consensus of an hour: relays and their weights.
    pub(crate) fn hour(&mut self, time: u64, weights: &[(u32, u32)]) {
        let periods = self.periods.len();
        let total: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut known: Vec<(u32, f64, f64)> = Vec::with_capacity(weights.len());
        for &(index, weight) in weights {
            let share = if total > 0.0 { f64::from(weight) / total } else { 0.0 };
            let relay = &mut self.relays[index as usize];
            relay.weights.values.push_back((time as u32, share));
            if let Some(advertised) = relay.slide(&self.periods, time) {
                known.push((index, share, advertised));
            }
        }
        let (mut capacity, mut weight) = (Vec::with_capacity(periods), Vec::with_capacity(periods));
        let shares: Vec<f64> = known.iter().map(|(_, share, _)| *share).collect();
        // The sum of no numbers would be -0.
        let advertised = known.iter().fold(0.0, |sum, (_, _, advertised)| sum + advertised);
        let share: f64 = shares.iter().sum();
        for period in 0..periods {
            // A relay without a descriptor in the period counts with its current bandwidth.
            let of = |index: u32| self.relays[index as usize].capacity(period);
            let capacities: Vec<f64> = known.iter().map(|(index, _, now)| of(*index).max(*now)).collect();
            let sum: f64 = capacities.iter().sum();
            capacity.push(1.0 - advertised / sum);
            weight.push(weight_error(&shares, &capacities));
            for ((index, mine, now), most) in known.iter().zip(&capacities) {
                let relay = &mut self.relays[*index as usize];
                relay.add(period, now / most, (mine / share) / (most / sum));
            }
        }
        known.iter().for_each(|(index, ..)| self.relays[*index as usize].hours += 1);
        let (relays, known) = (weights.len() as u64, known.len() as u64);
        let advertised_bytes_per_s = advertised;
        self.network.push(NetworkErrors { time, relays, known, advertised_bytes_per_s, capacity, weight });
    }

    /// The means of every relay, by index.
    pub(crate) fn relays(&self) -> impl Iterator<Item = RelayErrors> + '_ {
        self.relays.iter().map(|relay| {
            let mean = |which: usize| {
                let of = |period| relay.sums.get(period).map_or(f64::NAN, |sums: &[f64; 4]| sums[which]);
                (0..self.periods.len()).map(|period| of(period) / relay.hours as f64).collect()
            };
            RelayErrors {
                hours: relay.hours,
                capacity: mean(0),
                weight: mean(1),
                advertised_rsd: mean(2),
                weight_rsd: mean(3),
            }
        })
    }
}

impl RelayHistory {
    /// Moves all windows to `time`; returns the advertised bandwidth, if published within the longest period.
    fn slide(&mut self, periods: &[Period], time: u64) -> Option<f64> {
        self.windows.resize(periods.len(), <(Window, Window)>::default());
        self.sums.resize(periods.len(), [0.0; 4]);
        let (mut old, mut old_weights) = (self.advertised.end(), self.weights.end());
        for (period, (advertised, weights)) in periods.iter().zip(&mut self.windows) {
            let since = time.saturating_sub(period.seconds);
            advertised.slide(&self.advertised, since, |value| value as f64);
            weights.slide(&self.weights, since, |share| share);
            (old, old_weights) = (old.min(advertised.begin), old_weights.min(weights.begin));
        }
        self.advertised.forget_until(old);
        self.weights.forget_until(old_weights);
        self.advertised.values.back().map(|(_, value)| *value as f64)
    }

    /// C(r, t, p); 0 without a descriptor in the period.
    fn capacity(&self, period: usize) -> f64 {
        let front = self.windows[period].0.greatest.front();
        front.and_then(|index| self.advertised.get(*index)).map_or(0.0, |(_, value)| value as f64)
    }

    /// Adds an hour to the means of a period: A/C, and W over the share of capacity.
    fn add(&mut self, period: usize, reached: f64, weight: f64) {
        // A relay without traffic advertises 0 and has the capacity 0: no error.
        let error = if reached.is_nan() { 0.0 } else { 1.0 - reached };
        let (advertised, weights) = &self.windows[period];
        let rsd = |window: &Window| if window.sum > 0.0 { window.rsd() } else { 0.0 };
        let more = [error, if weight.is_finite() { weight } else { 0.0 }, rsd(advertised), rsd(weights)];
        self.sums[period].iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;
    const PERIODS: [Period; 2] =
        [Period { name: "two hours", seconds: 2 * HOUR }, Period { name: "ten", seconds: 10 * HOUR }];

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    /// Relay 0 advertises 100, then 50 from hour 3 on; relay 1 always 100. Both have the same weight.
    fn two_relays() -> Analysis {
        let mut analysis = Analysis::new(&PERIODS, 2);
        for hour in 1..=6 {
            for (relay, bytes_per_s) in [(0, if hour < 3 { 100 } else { 50 }), (1, 100)] {
                analysis.advertised(&Advertised { time: hour * HOUR, relay, bytes_per_s });
            }
            analysis.hour(hour * HOUR, &[(0, 7), (1, 7)]);
        }
        analysis
    }

    #[test]
    fn errors_are_those_computed_by_hand() {
        let analysis = two_relays();
        // Hour 3, two hours: A = 50, C = max(100, 50) = 100 of relay 0; network: 1 - 150/200.
        let third = &analysis.network[2];
        assert!(close(third.capacity[0], 0.25) && close(third.weight[0], 0.0));
        // Hour 4: the 100 is out of the short period, not of the long one.
        let fourth = &analysis.network[3];
        assert!(close(fourth.capacity[0], 0.0) && close(fourth.capacity[1], 0.25));
        // Shares of capacity 1/3 and 2/3 against weights of 1/2 each.
        assert!(close(fourth.weight[0], 1.0 / 6.0) && close(fourth.weight[1], 0.0));
        let relays: Vec<RelayErrors> = analysis.relays().collect();
        assert!(close(relays[0].capacity[0], 0.5 / 6.0) && close(relays[0].capacity[1], 4.0 * 0.5 / 6.0));
        assert!(close(relays[1].capacity[1], 0.0));
        // Hours 4 to 6: W over share of capacity is 1/2 over 1/3.
        assert!(close(relays[0].weight[0], (3.0 + 3.0 * 1.5) / 6.0));
        // In hour 3 the short period holds 100 and 50: deviation 25, mean 75.
        assert!(close(relays[0].advertised_rsd[0], (25.0 / 75.0) / 6.0));
        assert_eq!((relays[1].advertised_rsd[1], relays[1].weight_rsd[1]), (0.0, 0.0));
    }

    #[test]
    fn only_relays_that_published_count() {
        let mut analysis = Analysis::new(&PERIODS, 3);
        analysis.advertised(&Advertised { time: HOUR, relay: 0, bytes_per_s: 10 });
        analysis.hour(HOUR, &[(0, 1), (1, 5)]);
        analysis.hour(12 * HOUR, &[(0, 1), (1, 5)]);
        let [first, last] = analysis.network.as_slice() else { panic!("two hours") };
        assert_eq!((first.relays, first.known), (2, 1));
        assert!(close(first.weight[0], 0.0));
        assert_eq!((last.relays, last.known), (2, 0));
        assert!(last.weight[0].is_nan() && last.capacity[0].is_nan());
        let hours: Vec<u64> = analysis.relays().map(|relay| relay.hours).collect();
        assert_eq!(hours, [1, 0, 0]);
    }

    #[test]
    fn windows_agree_with_looking_at_everything() {
        let mut analysis = Analysis::new(&PERIODS, 1);
        let value = |i: u64| (i * 7919 + 13) % 101;
        for i in 1..200u64 {
            analysis.advertised(&Advertised { time: i * 1000, relay: 0, bytes_per_s: value(i) });
            analysis.hour(i * 1000, &[(0, 3)]);
            for (period, window) in PERIODS.iter().zip(&analysis.relays[0].windows) {
                let inside: Vec<f64> = (1..=i)
                    .filter(|j| j * 1000 > (i * 1000).saturating_sub(period.seconds))
                    .map(|j| value(j) as f64)
                    .collect();
                let most = inside.iter().copied().fold(0.0, f64::max);
                let mean = inside.iter().sum::<f64>() / inside.len() as f64;
                let variance =
                    inside.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / inside.len() as f64;
                let index = PERIODS.iter().position(|other| other == period).unwrap();
                assert_eq!(analysis.relays[0].capacity(index), most);
                assert!((window.0.rsd() - variance.sqrt() / mean).abs() < 1e-6);
            }
        }
        assert!(analysis.relays[0].advertised.values.len() < 40, "old numbers are forgotten");
    }
}
