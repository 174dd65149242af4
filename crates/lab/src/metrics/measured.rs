//! The metrics of one run of one system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_sim::observe::{HostTotals, RelaySample, Waits};

use super::histogram::Histogram;
use super::kept;
use super::known::RelayAbout;
use super::series::Series;
use super::transfers::Transfers;

/// The metrics of one run of one system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Metrics {
    /// Every number, as JSON with the unit in the key.
    pub summary: serde_json::Value,
    /// Latency from packaging, weighted by bytes.
    pub latency: Histogram,
    /// Latency from departure from the exit's circuit queue, weighted by bytes.
    pub latency_from_departure: Histogram,
    /// Times to build circuits.
    pub circuit_build: Histogram,
    /// Build times by class of the users, after the warm-up.
    pub circuit_builds: BTreeMap<String, Histogram>,
    /// Transfers and their times.
    pub transfers: Transfers,
    /// Bytes delivered over time.
    pub delivered: Series,
    /// Backlog over time, in bytes.
    pub backlog: Series,
    /// Mean waits of traced cells at exit, middle and guard.
    pub(crate) anatomy: [Anatomy; 3],
    /// Per user.
    pub(crate) users: Vec<UserRow>,
    /// Per relay.
    pub relays: Vec<RelayRow>,
    /// Cells that all relays forwarded or consumed: one curve with bins of a second.
    pub relayed_cells: Series,
}

/// Mean waits at one hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Anatomy {
    /// Number of traced cells.
    pub cells: u64,
    /// Sums of waits in nanoseconds, in the order of [`CAUSES`].
    pub(super) sums: [u64; 7],
}

/// Phases of a circuit's move, in the order of the fields of [`tidegate_sim::observe::MoveTimes`].
pub(super) const PARTS: [&str; 5] = ["detection", "word", "set_up", "first_cell", "drain"];

/// Causes of waiting at a hop.
pub(crate) const CAUSES: [&str; 7] = [
    "circuit_queue",
    "output_buffer",
    "send_buffer",
    "retransmission",
    "link_queue",
    "propagation",
    "head_of_line",
];

/// The hops of a data cell towards the client.
pub(crate) const HOPS: [&str; 3] = ["exit", "middle", "guard"];

impl Anatomy {
    pub(super) fn add(&mut self, waits: &Waits) {
        self.cells += 1;
        self.sums.iter_mut().zip(waits.spans()).for_each(|(sum, span)| *sum += span.0);
    }

    /// Adds the cells of another run.
    pub(crate) fn merge(&mut self, other: &Anatomy) {
        self.cells += other.cells;
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, more)| *sum += more);
    }

    /// Mean seconds by cause.
    pub(crate) fn means(&self) -> [f64; 7] {
        self.sums.map(|sum| sum as f64 / (self.cells.max(1) as f64 * 1e9))
    }
}

/// One user's row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UserRow {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Application bytes delivered.
    pub delivered_bytes: u64,
    /// Application bytes delivered per second.
    pub throughput_bytes_per_s: f64,
    /// Sum of the latencies of these bytes, in byte-nanoseconds.
    pub(super) latency_sum: u128,
    pub(super) departure_sum: u128,
    /// The max-min fair rate, if it is defined.
    pub max_min_bytes_per_s: Option<f64>,
}

impl UserRow {
    /// Mean latency per byte in seconds, if any byte arrived.
    pub(crate) fn latency_mean_s(&self) -> Option<f64> {
        self.mean(self.latency_sum)
    }

    /// Mean latency per byte from departure from the exit's circuit queue, in seconds.
    pub(crate) fn latency_from_departure_mean_s(&self) -> Option<f64> {
        self.mean(self.departure_sum)
    }

    fn mean(&self, sum: u128) -> Option<f64> {
        (self.delivered_bytes > 0).then(|| sum as f64 / (self.delivered_bytes as f64 * 1e9))
    }
}

/// One relay's row. Queues cover the time after the warm-up, totals the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayRow {
    /// Its name.
    pub name: String,
    /// Number of its host in the plan, which transfers refer to.
    pub host: u32,
    /// Its static properties.
    pub(crate) about: RelayAbout,
    pub(super) samples: u64,
    pub(super) queue_cells: u64,
    /// Most cells in circuit queues at a sample.
    pub queue_max_cells: u64,
    pub(super) output_buffer_bytes: u64,
    pub(super) tcp_unsent_bytes: u64,
    pub(super) uplink_queue_bytes: u64,
    pub(super) downlink_queue_bytes: u64,
    /// Cells forwarded or consumed after the warm-up.
    pub cells_processed: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    /// Rates of its up- and downlink, in bytes/s; `None` if unlimited.
    pub(super) link_bytes_per_s: [Option<f64>; 2],
    pub(super) sampled_s: f64,
    /// Totals of the whole run.
    #[serde(with = "kept::Totals")]
    pub totals: HostTotals,
}

impl RelayRow {
    pub(super) fn add(&mut self, sample: &RelaySample) {
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

    /// Means over samples: (name with unit, value).
    pub(crate) fn means(&self) -> [(&'static str, f64); 5] {
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
    pub(crate) fn sent_per_s(&self) -> f64 {
        self.sent_bytes as f64 / self.sampled_s
    }

    /// Used share of the uplink's and the downlink's rate; `None` for unlimited links.
    pub(crate) fn utilisation(&self) -> [Option<f64>; 2] {
        let share = |bytes: u64, rate: Option<f64>| rate.map(|rate| bytes as f64 / (rate * self.sampled_s));
        [
            share(self.sent_bytes, self.link_bytes_per_s[0]),
            share(self.received_bytes, self.link_bytes_per_s[1]),
        ]
    }

    /// The rate of the relay's token bucket, in bytes/s, if it is lower than those of the links.
    pub(crate) fn bucket_bytes_per_s(&self) -> Option<f64> {
        let slower = self.link_bytes_per_s.into_iter().flatten().fold(f64::INFINITY, f64::min);
        self.about.capacity_bytes_per_s.filter(|capacity| *capacity < slower)
    }

    /// Used share of what limits the relay, its links or its token bucket, in the busier direction; `None` if nothing
    /// does.
    pub(crate) fn load(&self) -> Option<f64> {
        let Some(bucket) = self.bucket_bytes_per_s() else {
            return self.utilisation().into_iter().flatten().reduce(f64::max);
        };
        let busier = self.sent_bytes.max(self.received_bytes) as f64;
        // Packets carry headers, which the bucket does not count.
        Some((busier / (bucket * self.sampled_s)).min(1.0))
    }
}
