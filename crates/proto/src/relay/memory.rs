//! Memory limit of a relay: above it, the circuits with the oldest waiting data end. This stops clients that never read
//! (Jansen, Tschorsch, Johnson, Scheuermann: "The Sniper Attack", NDSS 2014, section 5).

use tidegate_control::units::Time;

use super::Relay;
use super::table::{CELL_COST, Switch};
use crate::conflux::Linked;
use crate::ending::Ending;
use crate::ids::CircuitKey;
use crate::onion::Onion;

impl<O: Onion> Relay<O> {
    /// Bytes held for neighbours and for streams' local sides.
    pub fn memory(&self) -> u64 {
        self.table.links.cells() * CELL_COST + self.held
    }

    /// Number of circuits and channels closed to free memory.
    pub fn shed(&self) -> u64 {
        self.shed
    }

    /// Above the memory limit, ends circuits, those with the oldest data first, until 90 % of the limit is in use.
    pub(super) fn relieve_memory(&mut self, now: Time) {
        let Some(limit) = self.watch.as_ref().map(|watch| watch.limits.memory.0) else { return };
        if self.memory() <= limit {
            return;
        }
        let target = limit / 10 * 9;
        let circuits = self.table.circuits.iter().map(|(key, _)| CircuitKey(key as u32));
        let mut by_age: Vec<_> = circuits.filter_map(|key| Some((self.oldest(key)?, key))).collect();
        by_age.sort_unstable();
        for (_, key) in by_age {
            if self.memory() <= target {
                return;
            }
            self.end(now, key, Ending::Memory);
            self.shed += 1;
        }
        while self.memory() > target && self.table.links.drop_oldest_join() {}
        while self.memory() > target
            && let Some(unread) = self.table.links.oldest_unread()
        {
            self.close_channel(now, unread);
            self.shed += 1;
        }
    }

    /// When the oldest data of a circuit began to wait.
    fn oldest(&self, key: CircuitKey) -> Option<Time> {
        let circuit = &self.table.circuits[key.0 as usize];
        let prev = self.table.links.oldest(circuit.prev);
        let next = circuit.next.and_then(|next| self.table.links.oldest(next));
        let joined = match &circuit.switch {
            Switch::Joined(_, since, held) if !held.is_empty() => Some(*since),
            _ => None,
        };
        let held = circuit.edge.as_ref().and_then(|edge| edge.held_since());
        let early = if let Linked::First(set) = &circuit.linked { set.held_since() } else { None };
        [prev, next, joined, held, early].into_iter().flatten().min()
    }
}
