//! Which circuits a draining relay waits for.

use std::collections::BTreeMap;

use tidegate_control::units::{Span, Time};

use super::table::Table;
use crate::ids::{CircuitKey, LegId};
use crate::onion::Onion;

/// A circuit without a stream at this relay counts as in use until it was silent for this long.
const SILENCE: Span = Span::from_secs(2);

/// When each circuit of a draining relay last carried a cell, as far as [`Draining::is_drained`] has seen.
#[derive(Debug, Default)]
pub(super) struct Draining {
    seen: BTreeMap<CircuitKey, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Cells sent over both legs.
    cells: u64,
    since: Time,
}

impl Draining {
    /// Whether no circuit is in use.
    pub(super) fn is_drained<O: Onion>(&mut self, now: Time, table: &Table<O>) -> bool {
        let mut seen = BTreeMap::new();
        let mut in_use = false;
        for (key, circuit) in &table.circuits {
            let key = CircuitKey(key as u32);
            let traffic = |leg: LegId| table.links.traffic(leg);
            let legs = [Some(circuit.prev), circuit.next].map(|leg| leg.map_or((0, 0, 0.0), traffic));
            let cells = legs.iter().map(|(_, sent, _)| sent).sum();
            let before = self.seen.get(&key).filter(|before| before.cells == cells);
            let since = before.map_or(now, |before| before.since);
            let has_stream = circuit.edge.as_ref().is_some_and(|edge| edge.ids().next().is_some());
            let waits = legs.iter().any(|(queued, ..)| *queued > 0);
            in_use |= has_stream || waits || now.since(since) < SILENCE;
            seen.insert(key, Seen { cells, since });
        }
        self.seen = seen;
        !in_use
    }
}
