//! Observations of a running network, as balance systems use them.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::balance::{Round, Seen};
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::CELL_BYTES;
use tidegate_proto::flashflow::Reason;

use crate::observe::{Host, Observation, Recorder};
use crate::plan::{Directory, Plan};

/// How often relays count what they carry.
pub(super) const SECOND: Span = Span::from_secs(1);
/// A relay reports its highest throughput over this many intervals (dir-spec, "observed bandwidth").
const WINDOW: usize = 10;

/// A download in progress or finished.
struct Download {
    user: u32,
    circuit: u32,
    bytes: u64,
    begun: Time,
}

/// Watches a round.
pub(super) struct Watch {
    /// Relay of the directory by host.
    relays: BTreeMap<u32, usize>,
    /// Users of the scanner, and the relay that each probes.
    probed: BTreeMap<u32, usize>,
    /// Relay of each measurement.
    measurements: Vec<Option<usize>>,
    carried: Vec<Vec<u64>>,
    paths: BTreeMap<u32, [u32; 3]>,
    scanned: BTreeSet<u32>,
    downloads: BTreeMap<u32, Download>,
    probes: Vec<Vec<f64>>,
    measured: Vec<Option<f64>>,
    /// Why measurements failed.
    pub failed: Vec<Reason>,
    seen: BTreeMap<(u32, u32), Seen>,
}

impl Watch {
    /// `probed`: the scanner's users.
    pub(crate) fn new(plan: &Plan, directory: &Directory, probed: Vec<(u32, usize)>) -> Watch {
        let relays: BTreeMap<u32, usize> =
            directory.relays.iter().enumerate().map(|(index, relay)| (relay.id.0, index)).collect();
        let measurements = plan.measurements.iter();
        let count = directory.relays.len();
        Watch {
            measurements: measurements.map(|m| relays.get(&m.relay).copied()).collect(),
            relays,
            probed: probed.into_iter().collect(),
            carried: vec![Vec::new(); count],
            paths: BTreeMap::new(),
            scanned: BTreeSet::new(),
            downloads: BTreeMap::new(),
            probes: vec![Vec::new(); count],
            measured: vec![None; count],
            failed: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    /// The observations of a run in which clients used these weights.
    pub(crate) fn round(self, weights: &[f64]) -> Round {
        let most = |carried: &Vec<u64>| {
            let windows = carried.windows(WINDOW.min(carried.len()).max(1));
            let cells = windows.map(|window| window.iter().sum::<u64>() as f64 / window.len() as f64);
            cells.fold(0.0, f64::max) * f64::from(CELL_BYTES)
        };
        Round {
            weights: weights.to_vec(),
            reports: self.carried.iter().map(most).collect(),
            probes: self.probes,
            measured: self.measured,
            seen: self.seen,
        }
    }

    /// Neighbours on a circuit, both ways, by their index.
    fn neighbours(&self, circuit: u32) -> Vec<(u32, u32)> {
        let Some(path) = self.paths.get(&circuit) else { return Vec::new() };
        let index = |host: u32| self.relays.get(&host).map(|index| *index as u32);
        let pairs = [(path[0], path[1]), (path[1], path[2])];
        let known = pairs.into_iter().filter_map(|(one, other)| Some((index(one)?, index(other)?)));
        known.flat_map(|(one, other)| [(one, other), (other, one)]).collect()
    }

    fn ended(&mut self, transfer: u32, bytes: u64, now: Time) {
        let Some(download) = self.downloads.remove(&transfer) else { return };
        let speed = bytes as f64 / now.since(download.begun).as_secs_f64().max(1e-6);
        if let Some(relay) = self.probed.get(&download.user) {
            self.probes[*relay].push(speed);
        } else {
            for pair in self.neighbours(download.circuit) {
                let seen = self.seen.entry(pair).or_default();
                seen.streams += 1.0;
                seen.speeds += speed;
            }
        }
    }
}

impl Recorder for Watch {
    fn record(&mut self, now: Time, observation: &Observation) {
        match observation {
            Observation::CircuitBegun { circuit, user, path } => {
                if self.probed.contains_key(&user.0) {
                    self.scanned.insert(circuit.0);
                }
                self.paths.insert(circuit.0, path.map(|host| host.0));
            }
            Observation::TransferBegun { transfer, user, circuit, bytes } => {
                let (user, circuit, bytes, begun) = (user.0, circuit.0, *bytes, now);
                self.downloads.insert(transfer.0, Download { user, circuit, bytes, begun });
            }
            Observation::LastByte { transfer, .. } => {
                let bytes = self.downloads.get(&transfer.0).map_or(0, |download| download.bytes);
                self.ended(transfer.0, bytes, now);
            }
            Observation::TransferTimedOut { transfer, received } => self.ended(transfer.0, *received, now),
            Observation::Delivered { circuit, bytes, .. } if !self.scanned.contains(&circuit.0) => {
                for pair in self.neighbours(circuit.0) {
                    self.seen.entry(pair).or_default().bytes += f64::from(*bytes);
                }
            }
            Observation::RelaySample { relay: Host(host), sample } => {
                if let Some(relay) = self.relays.get(host) {
                    self.carried[*relay].push(sample.cells_processed);
                }
            }
            Observation::Measured { measurement, result } => {
                let relay = self.measurements[*measurement as usize];
                match (relay, result.as_ref()) {
                    (Some(relay), Ok(outcome)) => {
                        self.measured[relay] = Some(outcome.estimate.as_bytes_per_s());
                    }
                    (_, Err(failure)) => self.failed.push(failure.reason),
                    (None, Ok(_)) => {}
                }
            }
            _ => {}
        }
    }
}
