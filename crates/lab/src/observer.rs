//! The runner `observer`: what an observer of the packets between two relays can infer about circuits.
//!
//! The observer sees times, lengths, addresses and ports of packets from one relay to another, and the bytes that
//! arrive at each client.
//!
//! The relays are the middle and the guard of the first user. Quantities are `<scenario>.<system>.<quantity>`:
//! `circuits`, the number of circuits with traffic over both relays; `flows`, the number of distinguishable
//! connections. The following exist for single flows, and with the prefix `together.` for their sum, which is all that
//! a tunnel such as IPsec reveals. `laid_bare` is the share of these circuits that correlate with one flow by more
//! than 0.9; `correlation` is the mean of the best correlations; `confirmed_auc` is the probability that a circuit
//! over these relays correlates better than another circuit (0.5 equals guessing). Delays up to `lag` are tried.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::{Circuit, Host, Observation, Recorder, Seen, User};

use crate::confirmation::{auc, correlation, watch};
use crate::monitor::Monitor;
use crate::scenario::Scenario;
use crate::scoreboard::sweep::ScenarioEntry;
use crate::scoreboard::{Experiment, Measured, RunError, Scale};

/// Above this correlation, a flow reveals a circuit's rate.
const PLAIN: f64 = 0.9;

/// `[parameters]` of the runner.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ObserverExperiment {
    /// Scenario files by name; paths are relative to the experiment's folder.
    scenarios: BTreeMap<String, ScenarioEntry>,
    #[serde(default)]
    overrides: Vec<String>,
    seeds: u32,
    /// Interval over which bytes are counted.
    bin: Span,
    /// Longest delay from the relays to a client that the observer considers.
    lag: Span,
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
    let parameters: ObserverExperiment = experiment.parameters(scale)?;
    let lags = (parameters.lag.0 / parameters.bin.0.max(1)) as usize;
    let of = (&parameters.scenarios, &parameters.overrides[..], parameters.seeds);
    let begin =
        |scenario: &Scenario| PacketObserver::new(parameters.bin, scenario.warmup(), scenario.duration());
    watch(experiment, of, monitor, begin, |seen| seen.quantities(lags))
}

/// Bytes per bin after the warm-up.
type Series = Vec<f64>;

struct PacketObserver {
    bin: Span,
    from: Time,
    bins: usize,
    /// The observed middle and guard.
    between: Option<(Host, Host)>,
    /// Middle, guard and bytes at the client of each circuit.
    circuits: BTreeMap<Circuit, ((Host, Host), Series)>,
    flows: BTreeMap<u32, Series>,
}

impl PacketObserver {
    fn new(bin: Span, warmup: Span, duration: Span) -> PacketObserver {
        let bins = (duration.0.saturating_sub(warmup.0) / bin.0.max(1)) as usize;
        let (circuits, flows) = (BTreeMap::new(), BTreeMap::new());
        PacketObserver { bin, from: Time::ZERO + warmup, bins, between: None, circuits, flows }
    }

    fn bin(&self, at: Time) -> Option<usize> {
        let bin = (at >= self.from).then(|| (at.since(self.from).0 / self.bin.0.max(1)) as usize);
        bin.filter(|bin| *bin < self.bins)
    }

    fn quantities(&self, lags: usize) -> Vec<(String, f64)> {
        let used = |series: &Series| series.iter().any(|bytes| *bytes > 0.0);
        let circuits = self.circuits.values().filter(|(_, arrived)| used(arrived));
        let circuits: Vec<(bool, &Series)> =
            circuits.map(|(relays, arrived)| (Some(*relays) == self.between, arrived)).collect();
        let over = circuits.iter().filter(|(is_over, _)| *is_over).count();
        let apart: Vec<Series> = self.flows.values().cloned().collect();
        let sum = |bin| apart.iter().map(|flow| flow[bin]).sum();
        let together = [(0..self.bins).map(sum).collect()];
        let mut quantities =
            vec![("circuits".into(), over as f64), ("flows".into(), self.flows.len() as f64)];
        for (prefix, flows) in [("", &apart[..]), ("together.", &together)] {
            let scored = circuits.iter().map(|(is_over, arrived)| (best(flows, arrived, lags), *is_over));
            let scored: Vec<(f64, bool)> = scored.collect();
            let own = || scored.iter().filter(|(_, is_over)| *is_over).map(|(score, _)| *score);
            let mean = |sum: f64| sum / over.max(1) as f64;
            let bare = own().filter(|score| *score > PLAIN).count();
            quantities.push((format!("{prefix}laid_bare"), mean(bare as f64)));
            quantities.push((format!("{prefix}correlation"), mean(own().sum())));
            quantities.extend(auc(scored.clone()).map(|auc| (format!("{prefix}confirmed_auc"), auc)));
        }
        quantities
    }
}

/// Best correlation of the arrived bytes with any flow, over delays of 0 to `lags` bins.
fn best(flows: &[Series], arrived: &[f64], lags: usize) -> f64 {
    let lags = lags.min(arrived.len().saturating_sub(1));
    let fits = flows
        .iter()
        .flat_map(|flow| (0..=lags).map(|lag| correlation(&flow[..flow.len() - lag], &arrived[lag..])));
    fits.fold(0.0, f64::max)
}

impl Recorder for PacketObserver {
    const WATCHES_PACKETS: bool = true;

    fn packet(&mut self, now: Time, seen: Seen) {
        if self.between != Some((seen.from, seen.to)) {
            return;
        }
        if let Some(bin) = self.bin(now) {
            let flow = self.flows.entry(seen.flow).or_insert_with(|| vec![0.0; self.bins]);
            flow[bin] += f64::from(seen.bytes);
        }
    }

    fn record(&mut self, now: Time, observation: &Observation) {
        match observation {
            Observation::CircuitBegun { circuit, user, path: [guard, middle, _] } => {
                if *user == User(0) {
                    self.between.get_or_insert((*middle, *guard));
                }
                self.circuits.insert(*circuit, ((*middle, *guard), vec![0.0; self.bins]));
            }
            Observation::Delivered { circuit, bytes, .. } => {
                let bin = self.bin(now);
                if let Some((bin, (_, arrived))) = bin.zip(self.circuits.get_mut(circuit)) {
                    arrived[bin] += f64::from(*bytes);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_control::random::Seed;

    use super::*;

    /// Four circuits over the observed relays and four elsewhere, with independent bursts; `flow_of` assigns flows.
    fn watched(flow_of: impl Fn(u32) -> u32) -> BTreeMap<String, f64> {
        let mut watch = PacketObserver::new(Span::from_millis(100), Span::ZERO, Span::from_secs(20));
        let [middle, guard, other] = [0, 1, 2].map(Host);
        let mut random = Seed::root(7).random();
        for circuit in 0..8 {
            let guard = if circuit < 4 { guard } else { other };
            let path = [guard, middle, Host(9)];
            let begun = Observation::CircuitBegun { circuit: Circuit(circuit), user: User(circuit), path };
            watch.record(Time::ZERO, &begun);
            for bin in 0..200 {
                let at = Time::ZERO + Span::from_millis(100 * bin + 50);
                if random.chance(0.2) {
                    let flow = flow_of(circuit);
                    watch.packet(at, Seen { from: middle, to: guard, flow, bytes: 1500 });
                    let arrived = &mut watch.circuits.get_mut(&Circuit(circuit)).unwrap().1;
                    arrived[(bin as usize + 1).min(199)] += 1400.0;
                }
                // Packets in the other direction are ignored.
                watch.packet(at, Seen { from: guard, to: middle, flow: 77, bytes: 60 });
            }
        }
        watch.quantities(3).into_iter().collect()
    }

    #[test]
    fn flows_of_their_own_lay_circuits_bare_and_one_for_all_hides_them() {
        let apart = watched(|circuit| circuit);
        assert_eq!((apart["circuits"], apart["flows"]), (4.0, 4.0));
        assert_eq!((apart["laid_bare"], apart["together.laid_bare"]), (1.0, 0.0));
        let one = watched(|_| 5);
        assert_eq!((one["flows"], one["laid_bare"]), (1.0, 0.0));
        assert!(one["correlation"] < 0.7 && one["correlation"] == one["together.correlation"]);
    }
}
