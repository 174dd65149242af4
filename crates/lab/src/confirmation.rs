//! The runner `confirmation`: what an observer of circuits' rates can infer.
//!
//! *Traffic confirmation*: an observer of the cells that an exit sends on a circuit, and of the bytes that arrive at
//! each client, attributes the circuit to the client with the highest correlation over any delay up to `lag`.
//! *Shared relays*: an observer of rates at clients guesses that circuits share a middle or exit if their mean rates
//! are close, or their rates correlate. PredicTor's paper (2022, section 4) discusses both and measures neither.
//!
//! Quantities are `<scenario>.<system>.matched.window-<s>` (share of circuits attributed correctly after this
//! observation time), `.chance`, `.shared_relay_auc.by_rate` and `.by_correlation` (0.5 equals guessing).

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::{Circuit, Host, Observation, Recorder};

use crate::monitor::Monitor;
use crate::runs;
use crate::scenario::Scenario;
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ConfirmationExperiment {
    /// Scenario files by name; paths are relative to the experiment's folder.
    scenarios: BTreeMap<String, ScenarioEntry>,
    #[serde(default)]
    overrides: Vec<String>,
    seeds: u32,
    /// Interval over which bytes are counted.
    bin: Span,
    /// Longest delay from exit to client that the observer considers.
    lag: Span,
    /// Observation times.
    windows: Vec<Span>,
}

/// Measures an experiment.
///
/// # Errors
/// [`RunError::Input`] for a scenario that cannot be read.
pub(crate) fn run(
    experiment: &Experiment,
    scale: Scale,
    monitor: &dyn Monitor,
) -> Result<Measured, RunError> {
    let parameters: ConfirmationExperiment = experiment.parameters(scale)?;
    let of = (&parameters.scenarios, &parameters.overrides[..], parameters.seeds);
    let begin =
        |scenario: &Scenario| CircuitFlows::new(parameters.bin, scenario.warmup(), scenario.duration());
    watch(experiment, of, monitor, begin, |seen| seen.quantities(&parameters))
}

/// Runs every system of the scenarios with `seeds` seeds, each with its own recorder, and returns the recorders'
/// quantities.
pub(crate) fn watch<R: Recorder>(
    experiment: &Experiment,
    (scenarios, overrides, seeds): (&BTreeMap<String, ScenarioEntry>, &[String], u32),
    monitor: &dyn Monitor,
    begin: impl Fn(&Scenario) -> R,
    quantities: impl Fn(&R) -> Vec<(String, f64)>,
) -> Result<Measured, RunError> {
    let mut measured = Measured::default();
    for (name, entry) in scenarios {
        let scenario = entry.load(experiment, overrides)?;
        for (system, part) in scenario.systems.iter().enumerate() {
            for seed in (1..).take(seeds as usize) {
                let mut watcher = begin(&scenario);
                if runs::run_with(&scenario, (system, seed), 1, monitor, &mut watcher)?.is_none() {
                    return Err(RunError::Stopped);
                }
                for (quantity, value) in quantities(&watcher) {
                    measured.push(format!("{name}.{}.{quantity}", part.name), value);
                }
            }
        }
    }
    Ok(measured)
}

/// Bytes of a circuit per bin: leaving the exit, and arriving at the client.
#[derive(Clone, Debug)]
struct Flow {
    path: [Host; 3],
    departed: Vec<f64>,
    arrived: Vec<f64>,
}

/// Observed flows of all circuits after the warm-up.
struct CircuitFlows {
    bin: Span,
    from: Time,
    bins: usize,
    flows: BTreeMap<Circuit, Flow>,
}

impl CircuitFlows {
    fn new(bin: Span, warmup: Span, duration: Span) -> CircuitFlows {
        let bins = (duration.0.saturating_sub(warmup.0) / bin.0) as usize;
        CircuitFlows { bin, from: Time::ZERO + warmup, bins, flows: BTreeMap::new() }
    }

    fn bin(&self, at: Time) -> Option<usize> {
        let bin = (at >= self.from).then(|| (at.since(self.from).0 / self.bin.0) as usize);
        bin.filter(|bin| *bin < self.bins)
    }

    fn quantities(&self, parameters: &ConfirmationExperiment) -> Vec<(String, f64)> {
        // Circuits without traffic cannot be distinguished.
        let flows: Vec<&Flow> =
            self.flows.values().filter(|flow| flow.departed.iter().any(|bytes| *bytes > 0.0)).collect();
        if flows.is_empty() {
            return Vec::new();
        }
        let lags = (parameters.lag.0 / self.bin.0) as usize;
        let mut quantities = vec![("chance".into(), 1.0 / flows.len() as f64)];
        for window in &parameters.windows {
            let bins = (window.0 / self.bin.0) as usize;
            if let Some(share) = matched(&flows, bins, lags) {
                quantities.push((format!("matched.window-{}", window.as_secs_f64()), share));
            }
        }
        let pairs = || (0..flows.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let meet = |(a, b): &(usize, usize)| {
            let [_, middle, exit] = flows[*a].path;
            flows[*b].path[1..].iter().any(|relay| [middle, exit].contains(relay))
        };
        let rate: Vec<f64> =
            flows.iter().map(|flow| flow.arrived.iter().sum::<f64>().max(1.0).ln()).collect();
        let by_rate = |(a, b): (usize, usize)| -(rate[a] - rate[b]).abs();
        let by_correlation = |(a, b): (usize, usize)| correlation(&flows[a].arrived, &flows[b].arrived);
        let scored = |score: &dyn Fn((usize, usize)) -> f64| {
            auc(pairs().map(|pair| (score(pair), meet(&pair))).collect())
        };
        let aucs = [("by_rate", scored(&by_rate)), ("by_correlation", scored(&by_correlation))];
        let known =
            aucs.into_iter().filter_map(|(name, auc)| Some((format!("shared_relay_auc.{name}"), auc?)));
        quantities.extend(known);
        quantities
    }
}

impl Recorder for CircuitFlows {
    fn record(&mut self, now: Time, observation: &Observation) {
        match observation {
            Observation::CircuitBegun { circuit, path, .. } => {
                let [departed, arrived] = [vec![0.0; self.bins], vec![0.0; self.bins]];
                self.flows.insert(*circuit, Flow { path: *path, departed, arrived });
            }
            Observation::Delivered { circuit, bytes, departed, .. } => {
                let [left, came] = [self.bin(*departed), self.bin(now)];
                let Some(flow) = self.flows.get_mut(circuit) else { return };
                if let Some(bin) = left {
                    flow.departed[bin] += f64::from(*bytes);
                }
                if let Some(bin) = came {
                    flow.arrived[bin] += f64::from(*bytes);
                }
            }
            _ => {}
        }
    }
}

/// Share of the exits' flows that are attributed to the right client, over consecutive windows of `window` bins.
/// `None` if no window fits.
fn matched(flows: &[&Flow], window: usize, lags: usize) -> Option<f64> {
    let bins = flows.first()?.departed.len();
    let starts = (0..(bins + 1).saturating_sub(window + lags)).step_by(window.max(1));
    let (mut right, mut guesses) = (0.0, 0.0);
    for start in starts {
        for (own, exit) in flows.iter().enumerate() {
            let left = &exit.departed[start..start + window];
            if left.iter().all(|bytes| *bytes == 0.0) {
                continue;
            }
            let alike = |client: &Flow| {
                let shifted = (0..=lags).map(|lag| &client.arrived[start + lag..start + lag + window]);
                shifted.map(|came| correlation(left, came)).fold(f64::MIN, f64::max)
            };
            let scores: Vec<f64> = flows.iter().map(|client| alike(client)).collect();
            let best = scores.iter().copied().fold(f64::MIN, f64::max);
            // Between equal scores the observer guesses at random.
            let first = scores.iter().filter(|score| **score == best).count();
            right += if scores[own] == best { 1.0 / first as f64 } else { 0.0 };
            guesses += 1.0;
        }
    }
    (guesses > 0.0).then(|| right / guesses)
}

/// Pearson's correlation coefficient; 0 if either series is constant.
pub(crate) fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let (mut both, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        both += a * b;
        of_a += a * a;
        of_b += b * b;
    }
    if of_a == 0.0 || of_b == 0.0 { 0.0 } else { both / (of_a * of_b).sqrt() }
}

/// Area under the ROC curve: the probability that a positive scores above a negative. `None` if all are positive or
/// all are negative.
pub(crate) fn auc(mut scored: Vec<(f64, bool)>) -> Option<f64> {
    scored.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let are = scored.iter().filter(|(_, is)| *is).count() as f64;
    let are_not = scored.len() as f64 - are;
    let (mut below, mut wins) = (0.0, 0.0);
    for same in scored.chunk_by(|(a, _), (b, _)| a == b) {
        let is = same.iter().filter(|(_, is)| *is).count() as f64;
        let is_not = same.len() as f64 - is;
        wins += is * (below + is_not / 2.0);
        below += is_not;
    }
    (are > 0.0 && are_not > 0.0).then(|| wins / (are * are_not))
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    /// A flow with random bursts, which arrive at the client two bins later.
    fn flow(own: u64, relays: [u32; 3]) -> Flow {
        let mut random = Seed::root(own).random();
        let departed: Vec<f64> = (0..40).map(|_| if random.chance(0.4) { 900.0 } else { 10.0 }).collect();
        let mut arrived = vec![0.0; 2];
        arrived.extend(&departed[..38]);
        Flow { path: relays.map(Host), departed, arrived }
    }

    #[test]
    fn flows_are_matched_by_their_bursts_and_steady_ones_by_chance() {
        let flows = [0, 1, 2].map(|own| flow(own, [0, 1, 2]));
        assert_eq!(matched(&flows.each_ref(), 10, 4), Some(1.0));
        let steady = Flow { departed: vec![5.0; 40], arrived: vec![5.0; 40], path: [0, 1, 2].map(Host) };
        let steady = [steady.clone(), steady.clone(), steady.clone(), steady];
        assert_eq!(matched(&steady.each_ref(), 10, 4), Some(0.25));
        assert_eq!(matched(&steady.each_ref(), 100, 4), None, "no window fits");
    }

    #[test]
    fn an_area_is_one_half_for_a_coin_and_one_for_an_oracle() {
        assert_eq!(auc(vec![(0.0, false), (1.0, true), (0.5, false)]), Some(1.0));
        assert_eq!(auc(vec![(1.0, false), (1.0, true), (1.0, true)]), Some(0.5));
        assert_eq!(auc(vec![(1.0, true)]), None);
    }

    #[test]
    fn circuits_that_meet_are_those_with_a_middle_or_exit_in_common() {
        let mut seen = CircuitFlows::new(Span::from_millis(100), Span::ZERO, Span::from_secs(4));
        for (number, relays) in (0..).zip([[0, 1, 2], [3, 2, 4], [0, 5, 6]]) {
            // The first two have the same rate, the third has half of it.
            let mut flow = flow(0, relays);
            let scale = if number == 2 { 0.5 } else { 1.0 };
            flow.arrived.iter_mut().for_each(|bytes| *bytes *= scale);
            seen.flows.insert(Circuit(number), flow);
        }
        let parameters = ConfirmationExperiment {
            scenarios: BTreeMap::new(),
            overrides: Vec::new(),
            seeds: 1,
            bin: Span::from_millis(100),
            lag: Span::from_millis(400),
            windows: vec![Span::from_secs(1)],
        };
        let quantities: BTreeMap<String, f64> = seen.quantities(&parameters).into_iter().collect();
        assert_eq!(quantities["shared_relay_auc.by_rate"], 1.0);
        assert_eq!(quantities["shared_relay_auc.by_correlation"], 0.5, "all three vary alike");
        assert!((quantities["chance"] - 1.0 / 3.0).abs() < 1e-12);
    }
}
