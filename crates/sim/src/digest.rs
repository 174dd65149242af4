//! One number for a whole run: runs with equal observations have equal digests, on any machine.

use tidegate_control::random::mix;
use tidegate_control::units::Time;

use crate::observe::{MoveTimes, Observation, Recorder};

/// Folds every observation and its time into 64 bits (a chain of SplitMix64 finalisers, not cryptographic).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    /// The digest of everything recorded so far.
    pub fn value(self) -> u64 {
        self.0
    }

    fn word(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
    }

    fn words(&mut self, words: &[u64]) {
        for word in words {
            self.word(*word);
        }
    }
}

/// Leaves out opened streams and reorder buffers, so that digests from before their introduction stay valid. Later
/// observations reflect them.
impl Recorder for Digest {
    fn record(&mut self, now: Time, observation: &Observation) {
        if !matches!(observation, Observation::StreamOpened { .. } | Observation::OutOfOrder { .. }) {
            self.word(now.0);
        }
        match observation {
            Observation::CircuitBegun { circuit, user, path } => {
                self.words(&[1, circuit.0.into(), user.0.into()]);
                path.iter().for_each(|host| self.word(host.0.into()));
            }
            Observation::CircuitBuilt { circuit, took } => self.words(&[2, circuit.0.into(), took.0]),
            Observation::CircuitClosed { circuit } => self.words(&[3, circuit.0.into()]),
            Observation::TransferBegun { transfer, user, circuit, bytes } => {
                self.words(&[4, transfer.0.into(), user.0.into(), circuit.0.into(), *bytes]);
            }
            Observation::StreamOpened { .. } | Observation::OutOfOrder { .. } => {}
            Observation::TransferConnected { transfer } => self.words(&[5, transfer.0.into()]),
            Observation::FirstByte { transfer, took } => self.words(&[6, transfer.0.into(), took.0]),
            Observation::LastByte { transfer, took } => self.words(&[7, transfer.0.into(), took.0]),
            Observation::TransferTimedOut { transfer, received } => {
                self.words(&[8, transfer.0.into(), *received]);
            }
            Observation::Switched { at, parts } => {
                let MoveTimes { detection, notice, set_up, first, drain } = *parts;
                let unknown = [detection, notice, first].map(|span| span.map_or(u64::MAX, |span| span.0));
                self.words(&[15, at.0.into(), set_up.0, drain.0, unknown[0], unknown[1], unknown[2]]);
            }
            Observation::Injected { circuit, bytes } => self.words(&[9, circuit.0.into(), *bytes]),
            Observation::Delivered { circuit, bytes, packaged, departed } => {
                self.words(&[10, circuit.0.into(), (*bytes).into(), packaged.0, departed.0]);
            }
            Observation::Waited { circuit, hop, at, waits } => {
                self.words(&[11, circuit.0.into(), (*hop).into(), at.0.into()]);
                waits.spans().iter().for_each(|span| self.word(span.0));
            }
            Observation::RelaySample { relay, sample } => self.words(&[
                12,
                relay.0.into(),
                sample.circuit_queue_cells,
                sample.output_buffer_bytes,
                sample.tcp_unsent_bytes,
                sample.uplink_queue_bytes,
                sample.downlink_queue_bytes,
                sample.cells_processed,
                sample.sent_bytes,
                sample.received_bytes,
            ]),
            Observation::HostTotals { host, totals } => {
                self.words(&[
                    13,
                    host.0.into(),
                    totals.cells_processed,
                    totals.sent_bytes,
                    totals.received_bytes,
                    totals.dropped_packets,
                    totals.retransmissions,
                    totals.timeouts,
                    totals.connections,
                    totals.uplink_busy.0,
                    totals.downlink_busy.0,
                ]);
                if let Some(did) = totals.control {
                    self.words(&[did.solves, did.circuits, did.fallbacks, did.refused, did.sent_bytes]);
                }
            }
            Observation::MeasurementFlows { measurement, flows } => {
                self.words(&[16, (*measurement).into(), (*flows).into()]);
            }
            Observation::Echoed { relay, bytes } => self.words(&[17, relay.0.into(), *bytes]),
            Observation::Measured { measurement, result } => {
                self.words(&[18, (*measurement).into()]);
                match result.as_ref() {
                    Ok(outcome) => self.words(&[outcome.estimate.0, outcome.checked]),
                    Err(failure) => self.word(failure.reason as u64),
                }
            }
            Observation::RunTotals { events, cells_delivered, peak_pending_events } => {
                self.words(&[14, *events, *cells_delivered, *peak_pending_events]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{Circuit, Transfer};

    #[test]
    fn order_time_and_content_count() {
        let digest = |list: &[(u64, Observation)]| {
            let mut digest = Digest::default();
            list.iter().for_each(|(at, observation)| digest.record(Time(*at), observation));
            digest.value()
        };
        let closed = |circuit| Observation::CircuitClosed { circuit: Circuit(circuit) };
        let connected = Observation::TransferConnected { transfer: Transfer(1) };
        let all = [
            digest(&[]),
            digest(&[(1, closed(1))]),
            digest(&[(2, closed(1))]),
            digest(&[(1, closed(2))]),
            digest(&[(1, connected.clone())]),
            digest(&[(1, closed(1)), (1, connected.clone())]),
            digest(&[(1, connected), (1, closed(1))]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{i}");
        }
        assert_eq!(digest(&[(1, closed(1))]), 7_427_600_023_522_335_032, "the same number on any machine");
    }
}
