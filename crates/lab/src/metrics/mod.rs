//! Metrics as folds over a run's observations.
//!
//! [`Fold`] is a [`Recorder`]: it keeps what the figures need and forgets the rest, so that its memory
//! grows with users, relays and transfers, not with cells. Everything but the curves over time counts from
//! the end of the warm-up.
//!
//! *Latency* is per application byte, from the moment the exit packages it into a cell (it enters the
//! overlay) to the arrival of that cell at the client. `latency_from_departure` starts its clock when the
//! cell leaves the exit's circuit queue, as PredicTor's prototype did. *Backlog*: written and not yet delivered.

pub mod fairness;
pub mod histogram;
mod kept;
pub mod known;
pub mod series;
mod summary;
pub mod transfers;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_control::units::{Span, Time};
use tidegate_sim::observe::{Host, HostTotals, Observation, Parts, Recorder, RelaySample, Waits};
use tidegate_sim::plan::{Role, System};

use crate::network::Network;
use fairness::Fairness;
use histogram::Histogram;
use known::RelayAbout;
use series::Series;
use transfers::{On, Transfers};

/// Users up to this number have curves of their own.
const MAX_CURVES: usize = 12;
/// Bins of a curve, at most about.
const BINS: u64 = 500;

/// What one run of one system measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Metrics {
    /// Every number, as JSON with the unit in the key.
    pub summary: serde_json::Value,
    /// Latency from packaging, weighted by bytes.
    pub latency: Histogram,
    /// Latency from departure of the exit's circuit queue, weighted by bytes.
    pub latency_from_departure: Histogram,
    /// Times to build circuits.
    pub circuit_build: Histogram,
    /// The same by class of the users, after the warm-up.
    pub circuit_builds: BTreeMap<String, Histogram>,
    /// Transfers and their times.
    pub transfers: Transfers,
    /// Bytes delivered over time.
    pub delivered: Series,
    /// Backlog over time, in bytes.
    pub backlog: Series,
    /// Mean waits of followed cells: exit, middle, guard.
    pub anatomy: [Anatomy; 3],
    /// Per user.
    pub users: Vec<UserRow>,
    /// Per relay.
    pub relays: Vec<RelayRow>,
}

/// Mean waits at one hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Anatomy {
    /// Followed cells.
    pub cells: u64,
    /// Sums over them in nanoseconds, in the order of [`CAUSES`].
    sums: [u64; 7],
}

/// What the time of a circuit's move is made of ([`Parts`]), in the order of its fields.
const PARTS: [&str; 5] = ["detection", "word", "set_up", "first_cell", "drain"];

/// Why a cell waits at a hop.
pub const CAUSES: [&str; 7] = [
    "circuit_queue",
    "output_buffer",
    "send_buffer",
    "retransmission",
    "link_queue",
    "propagation",
    "head_of_line",
];

/// The hops of a data cell's way to the client.
pub const HOPS: [&str; 3] = ["exit", "middle", "guard"];

impl Anatomy {
    fn add(&mut self, waits: &Waits) {
        self.cells += 1;
        self.sums.iter_mut().zip(waits.spans()).for_each(|(sum, span)| *sum += span.0);
    }

    /// Adds the cells of another run.
    pub fn merge(&mut self, other: &Anatomy) {
        self.cells += other.cells;
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, more)| *sum += more);
    }

    /// Mean seconds by cause.
    pub fn means(&self) -> [f64; 7] {
        self.sums.map(|sum| sum as f64 / (self.cells.max(1) as f64 * 1e9))
    }
}

/// One user's row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserRow {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Application bytes delivered.
    pub delivered_bytes: u64,
    /// The same per second.
    pub throughput_bytes_per_s: f64,
    /// Latency of those bytes: sum of byte-nanoseconds.
    latency_sum: u128,
    departure_sum: u128,
    /// The max-min fair rate, where it is defined.
    pub max_min_bytes_per_s: Option<f64>,
}

impl UserRow {
    /// Mean latency per byte in seconds, if any byte arrived.
    pub fn latency_mean_s(&self) -> Option<f64> {
        self.mean(self.latency_sum)
    }

    /// The same from departure of the exit's circuit queue.
    pub fn latency_from_departure_mean_s(&self) -> Option<f64> {
        self.mean(self.departure_sum)
    }

    fn mean(&self, sum: u128) -> Option<f64> {
        (self.delivered_bytes > 0).then(|| sum as f64 / (self.delivered_bytes as f64 * 1e9))
    }
}

/// One relay's row. Queues count from the warm-up, totals over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayRow {
    /// Its name.
    pub name: String,
    /// Its host's number in the plan, by which transfers name it.
    pub host: u32,
    /// What clients know of it.
    pub about: RelayAbout,
    samples: u64,
    queue_cells: u64,
    /// Most cells in circuit queues at a sample.
    pub queue_max_cells: u64,
    output_buffer_bytes: u64,
    tcp_unsent_bytes: u64,
    uplink_queue_bytes: u64,
    downlink_queue_bytes: u64,
    /// Cells forwarded or consumed after the warm-up.
    pub cells_processed: u64,
    sent_bytes: u64,
    received_bytes: u64,
    /// Rates of its links, in bytes/s; none: unlimited.
    link_bytes_per_s: [Option<f64>; 2],
    measured_s: f64,
    /// Totals of the whole run.
    #[serde(with = "kept::Totals")]
    pub totals: HostTotals,
}

impl RelayRow {
    fn add(&mut self, sample: &RelaySample) {
        self.samples += 1;
        self.queue_cells += sample.circuit_queue_cells;
        self.queue_max_cells = self.queue_max_cells.max(sample.circuit_queue_cells);
        self.output_buffer_bytes += sample.output_buffer_bytes;
        self.tcp_unsent_bytes += sample.tcp_unsent_bytes;
        self.uplink_queue_bytes += sample.uplink_queue_bytes;
        self.downlink_queue_bytes += sample.downlink_queue_bytes;
        self.cells_processed += sample.cells_processed;
        self.sent_bytes += sample.sent_bytes;
        self.received_bytes += sample.received_bytes;
    }

    /// Means over samples: (what with its unit, value).
    pub fn means(&self) -> [(&'static str, f64); 5] {
        let mean = |sum: u64| sum as f64 / self.samples.max(1) as f64;
        [
            ("queue_mean_cells", mean(self.queue_cells)),
            ("output_buffer_mean_bytes", mean(self.output_buffer_bytes)),
            ("tcp_unsent_mean_bytes", mean(self.tcp_unsent_bytes)),
            ("uplink_queue_mean_bytes", mean(self.uplink_queue_bytes)),
            ("downlink_queue_mean_bytes", mean(self.downlink_queue_bytes)),
        ]
    }

    /// Bytes per second that left on the uplink after the warm-up.
    pub fn sent_per_s(&self) -> f64 {
        self.sent_bytes as f64 / self.measured_s
    }

    /// Share of the uplink's and the downlink's rate that was used; none where there is no limit.
    pub fn utilisation(&self) -> [Option<f64>; 2] {
        let share = |bytes: u64, rate: Option<f64>| rate.map(|rate| bytes as f64 / (rate * self.measured_s));
        [
            share(self.sent_bytes, self.link_bytes_per_s[0]),
            share(self.received_bytes, self.link_bytes_per_s[1]),
        ]
    }
}

/// What is known of a circuit.
#[derive(Clone, Copy, Debug, Default)]
struct CircuitState {
    user: u32,
    path: [u32; 3],
    outstanding: u64,
}

/// The recorder: observations in, [`Metrics`] out.
pub struct Fold<'a> {
    network: &'a Network,
    system: &'a System,
    warmup: Time,
    measured_s: f64,
    circuits: BTreeMap<u32, CircuitState>,
    users: Vec<UserRow>,
    /// Curve of each user.
    curve_of: Vec<usize>,
    relays: BTreeMap<u32, RelayRow>,
    latency: Histogram,
    latency_from_departure: Histogram,
    circuit_build: Histogram,
    /// The same by class of the users.
    circuit_builds: BTreeMap<String, Histogram>,
    /// How long moves of circuits took.
    switched: Histogram,
    /// Its [`PARTS`].
    switched_parts: [Histogram; 5],
    circuits_built: u64,
    transfers: Transfers,
    delivered: Series,
    backlog: Series,
    backlog_now: Vec<u64>,
    backlog_sum: u128,
    backlog_max: u64,
    backlog_samples: u64,
    sample: Span,
    next_sample: Time,
    anatomy: [Anatomy; 3],
    totals: HostTotals,
    run: (u64, u64, u64),
}

impl<'a> Fold<'a> {
    /// A fold over a run of `system` on `network`; metrics count from `warmup`.
    pub fn new(network: &'a Network, system: &'a System, warmup: Span) -> Fold<'a> {
        let plan = &network.plan;
        let users = network.users.iter().zip(&plan.users).map(|(name, user)| UserRow {
            name: name.clone(),
            class: user.class.clone(),
            ..UserRow::default()
        });
        let users: Vec<UserRow> = users.collect();
        let (names, curve_of) = curves(&users);
        let measured_s = (Span(plan.duration.0 - warmup.0)).as_secs_f64();
        let relays = (0..).zip(&plan.hosts).filter(|(_, host)| matches!(host.role, Role::Relay(_)));
        let relay_row = |number: u32, host: &tidegate_sim::plan::HostPlan| RelayRow {
            name: host.name.clone(),
            host: number,
            about: RelayAbout::of(plan, number),
            link_bytes_per_s: [host.up.rate, host.down.rate].map(|rate| {
                (rate != tidegate_control::units::Rate::UNLIMITED).then(|| rate.as_bytes_per_s())
            }),
            measured_s,
            ..RelayRow::default()
        };
        let sample = Span(plan.sample_every.0.max(1));
        // Rates in bins of whole samples, 100 ms at least; backlog at whole samples.
        let step = |floor: Span| Span(floor.0.max(plan.duration.0 / BINS).div_ceil(sample.0) * sample.0);
        Fold {
            network,
            system,
            warmup: Time::ZERO + warmup,
            measured_s,
            circuits: BTreeMap::new(),
            curve_of,
            relays: relays.map(|(number, host)| (number, relay_row(number, host))).collect(),
            latency: Histogram::default(),
            latency_from_departure: Histogram::default(),
            circuit_build: Histogram::default(),
            circuit_builds: BTreeMap::new(),
            switched: Histogram::default(),
            switched_parts: Default::default(),
            circuits_built: 0,
            transfers: Transfers::new(plan),
            delivered: Series::new(names.clone(), step(Span::from_millis(100)), plan.duration),
            backlog_now: vec![0; names.len()],
            backlog: Series::new(names, step(sample), plan.duration),
            backlog_sum: 0,
            backlog_max: 0,
            backlog_samples: 0,
            sample,
            next_sample: Time::ZERO + sample,
            anatomy: [Anatomy::default(); 3],
            totals: HostTotals::default(),
            run: (0, 0, 0),
            users,
        }
    }

    /// The finished metrics.
    pub fn finish(mut self) -> Metrics {
        self.sample_backlog(Time::ZERO + self.network.plan.duration);
        self.transfers.finish();
        for user in &mut self.users {
            user.throughput_bytes_per_s = user.delivered_bytes as f64 / self.measured_s;
        }
        let rates: Vec<f64> = self.users.iter().map(|user| user.throughput_bytes_per_s).collect();
        let on_wire = |host: u32, up: bool| {
            let relay = self.relays.get(&host)?;
            Some((if up { relay.sent_bytes } else { relay.received_bytes }) as f64 / self.measured_s)
        };
        let fairness = fairness::fairness(&self.network.plan, self.system, &rates, &on_wire);
        if let Some(Fairness { max_min, .. }) = &fairness {
            for (user, rate) in max_min {
                self.users[*user].max_min_bytes_per_s = Some(*rate);
            }
        }
        Metrics {
            summary: summary::summary(&self, fairness.as_ref()),
            latency: self.latency,
            latency_from_departure: self.latency_from_departure,
            circuit_build: self.circuit_build,
            circuit_builds: self.circuit_builds,
            transfers: self.transfers,
            delivered: self.delivered,
            backlog: self.backlog,
            anatomy: self.anatomy,
            users: self.users,
            relays: self.relays.into_values().collect(),
        }
    }

    /// Takes all samples of the backlog that are due before `now`.
    fn sample_backlog(&mut self, now: Time) {
        while self.next_sample <= now {
            let at = self.next_sample;
            if at > self.warmup {
                let total = self.backlog_now.iter().sum::<u64>();
                self.backlog_sum += u128::from(total);
                self.backlog_max = self.backlog_max.max(total);
                self.backlog_samples += 1;
            }
            // The sample that ends a bin stands for it.
            if at.0.is_multiple_of(self.backlog.step.0) {
                let bin = Time(at.0 - 1);
                for (curve, value) in self.backlog_now.iter().enumerate() {
                    self.backlog.add(bin, curve, *value);
                }
            }
            self.next_sample += self.sample;
        }
    }

    fn delivered(&mut self, now: Time, circuit: u32, bytes: u64, packaged: Time, departed: Time) {
        let Some(state) = self.circuits.get_mut(&circuit) else { return };
        state.outstanding = state.outstanding.saturating_sub(bytes);
        let user = state.user as usize;
        let curve = self.curve_of[user];
        self.backlog_now[curve] = self.backlog_now[curve].saturating_sub(bytes);
        self.delivered.add(now, curve, bytes);
        if now < self.warmup {
            return;
        }
        let (latency, from_departure) = (now.since(packaged), now.since(departed));
        self.latency.add(latency, bytes);
        self.latency_from_departure.add(from_departure, bytes);
        let row = &mut self.users[user];
        row.delivered_bytes += bytes;
        row.latency_sum += u128::from(latency.0) * u128::from(bytes);
        row.departure_sum += u128::from(from_departure.0) * u128::from(bytes);
    }

    fn add_totals(&mut self, host: Host, totals: &HostTotals) {
        if let Some(relay) = self.relays.get_mut(&host.0) {
            relay.totals = *totals;
        }
        let all = &mut self.totals;
        all.cells_processed += totals.cells_processed;
        all.sent_bytes += totals.sent_bytes;
        all.received_bytes += totals.received_bytes;
        all.dropped_packets += totals.dropped_packets;
        all.retransmissions += totals.retransmissions;
        all.timeouts += totals.timeouts;
        all.connections += totals.connections;
        if let Some(did) = totals.control {
            let all = all.control.get_or_insert_default();
            all.solves += did.solves;
            all.circuits += did.circuits;
            all.fallbacks += did.fallbacks;
            all.refused += did.refused;
            all.sent_bytes += did.sent_bytes;
        }
    }
}

/// Names of the curves, and the curve of each user.
fn curves(users: &[UserRow]) -> (Vec<String>, Vec<usize>) {
    if users.len() <= MAX_CURVES {
        return (users.iter().map(|user| user.name.clone()).collect(), (0..users.len()).collect());
    }
    let mut names: Vec<String> = Vec::new();
    let curve_of = users.iter().map(|user| {
        names.iter().position(|name| *name == user.class).unwrap_or_else(|| {
            names.push(user.class.clone());
            names.len() - 1
        })
    });
    let curve_of = curve_of.collect();
    (names, curve_of)
}

impl Recorder for Fold<'_> {
    fn record(&mut self, now: Time, observation: &Observation) {
        if now > self.next_sample {
            // Samples before this instant see the state before it.
            self.sample_backlog(Time(now.0 - 1));
        }
        let measured = now >= self.warmup;
        match observation {
            Observation::CircuitBegun { circuit, user, path } => {
                let path = path.map(|host| host.0);
                self.circuits.insert(circuit.0, CircuitState { user: user.0, path, outstanding: 0 });
            }
            Observation::CircuitBuilt { circuit, took } => {
                self.circuits_built += 1;
                if let (true, Some(state)) = (measured, self.circuits.get(&circuit.0)) {
                    let class = self.users[state.user as usize].class.clone();
                    self.circuit_builds.entry(class).or_default().add(*took, 1);
                }
                self.circuit_build.add(*took, 1);
            }
            Observation::CircuitClosed { circuit } => {
                if let Some(state) = self.circuits.remove(&circuit.0) {
                    let backlog = &mut self.backlog_now[self.curve_of[state.user as usize]];
                    *backlog = backlog.saturating_sub(state.outstanding);
                }
            }
            Observation::TransferBegun { transfer, user, circuit, bytes } if measured => {
                let class = &self.users[user.0 as usize].class;
                let path = self.circuits.get(&circuit.0).map(|state| state.path).unwrap_or_default();
                let on = On { user: user.0, circuit: circuit.0, path };
                self.transfers.begin(now, *transfer, on, class, *bytes);
            }
            Observation::TransferBegun { .. } => {}
            Observation::TransferConnected { transfer } => self.transfers.connected(now, *transfer),
            Observation::FirstByte { transfer, took } => self.transfers.first_byte(*transfer, *took),
            Observation::LastByte { transfer, took } => self.transfers.last_byte(*transfer, *took),
            Observation::TransferTimedOut { transfer, .. } => self.transfers.timed_out(*transfer),
            Observation::Injected { circuit, bytes } => {
                if let Some(state) = self.circuits.get_mut(&circuit.0) {
                    state.outstanding += bytes;
                    self.backlog_now[self.curve_of[state.user as usize]] += bytes;
                }
            }
            Observation::Delivered { circuit, bytes, packaged, departed } => {
                self.delivered(now, circuit.0, u64::from(*bytes), *packaged, *departed);
            }
            Observation::Waited { hop, waits, .. } => {
                if let (true, Some(anatomy)) = (measured, self.anatomy.get_mut(usize::from(*hop))) {
                    anatomy.add(waits);
                }
            }
            Observation::Switched { parts, .. } if now >= self.warmup => {
                self.switched.add(parts.total(), 1);
                let Parts { detection, word, set_up, first, drain } = *parts;
                let parts = [detection, word, Some(set_up), first, Some(drain)];
                for (histogram, part) in self.switched_parts.iter_mut().zip(parts) {
                    part.into_iter().for_each(|part| histogram.add(part, 1));
                }
            }
            Observation::RelaySample { relay, sample } => {
                if let (true, Some(row)) = (now > self.warmup, self.relays.get_mut(&relay.0)) {
                    row.add(sample);
                }
            }
            Observation::HostTotals { host, totals } => self.add_totals(*host, totals),
            Observation::RunTotals { events, cells_delivered, peak_pending_events } => {
                self.run = (*events, *cells_delivered, *peak_pending_events);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
