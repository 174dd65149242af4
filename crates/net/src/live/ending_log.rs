//! The log of circuits that a relay closes by itself.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};
use tidegate_proto::ending::Ending;
use tidegate_proto::node::CircuitKey;

/// Circuits with a line of their own per [`PERIOD`]. Strangers can make a relay close thousands a second.
const LINES: u32 = 20;
/// See [`LINES`].
const PERIOD: Span = Span::from_secs(60);

/// Logs each closed circuit, and only their number by reason where there are many.
#[derive(Debug, Default)]
pub(crate) struct EndingLog {
    /// Number of the shard, if there are several.
    shard: Option<usize>,
    /// The start of the period, and its lines.
    begun: Time,
    lines: u32,
    /// Closed circuits of the period without a line of their own.
    counted: BTreeMap<&'static str, u64>,
}

impl EndingLog {
    /// The log of a shard; it has a number if there are several.
    pub(crate) fn new(shard: Option<usize>) -> EndingLog {
        EndingLog { shard, ..EndingLog::default() }
    }

    /// Logs a closed circuit: at debug level if a neighbour closed it, as happens to every circuit.
    pub(crate) fn add(&mut self, now: Time, circuit: CircuitKey, ending: Ending) {
        let (circuit, reason, shard) = (circuit.0, ending.about(), self.shard);
        if ending.is_passed_on() {
            return tracing::debug!(circuit, shard, reason, "circuit closed");
        }
        self.sum_up(now);
        if self.lines < LINES {
            self.lines += 1;
            tracing::info!(circuit, shard, reason, "circuit closed");
        } else {
            *self.counted.entry(reason).or_default() += 1;
            tracing::debug!(circuit, shard, reason, "circuit closed");
        }
    }

    /// Logs the counts of a period that is over.
    pub(crate) fn sum_up(&mut self, now: Time) {
        if now.since(self.begun) < PERIOD {
            return;
        }
        for (reason, circuits) in std::mem::take(&mut self.counted) {
            tracing::info!(circuits, shard = self.shard, reason, "further circuits closed");
        }
        (self.begun, self.lines) = (now, 0);
    }
}
