//! Queued bytes at relays over time.

use std::collections::BTreeMap;

use tidegate_control::units::Time;
use tidegate_sim::observe::{Observation, Recorder};

/// Bytes of a cell in a circuit queue.
const CELL: u64 = 514;

/// Samples of every relay: bytes in circuit queues; bytes in output buffers, sockets and the uplink's queue.
#[derive(Default)]
pub struct Samples(BTreeMap<u32, [Vec<u64>; 2]>);

impl Samples {
    /// The samples of a host.
    pub fn of(&self, host: u32) -> [&[u64]; 2] {
        self.0.get(&host).map_or([&[], &[]], |[queued, sending]| [queued, sending])
    }
}

impl Recorder for Samples {
    fn record(&mut self, _: Time, observation: &Observation) {
        if let Observation::RelaySample { relay, sample } = observation {
            let [queued, sending] = self.0.entry(relay.0).or_default();
            queued.push(sample.circuit_queue_cells * CELL);
            sending.push(sample.output_buffer_bytes + sample.tcp_unsent_bytes + sample.uplink_queue_bytes);
        }
    }
}
