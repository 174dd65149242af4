//! Runs of cells: consecutive RELAY cells of one circuit that a relay forwards to the client.
//!
//! The relay looks up once how it forwards consecutive cells. Equal ones, as simulated cells often are, are one object.

use tidegate_control::units::Time;

use super::Relay;
use super::roles::Role;
use crate::cell::{Cell, CircId, Command};
use crate::ids::CircuitKey;
use crate::links::{ChannelId, LegId, Side};
use crate::node::Node as _;
use crate::onion::Onion;

/// How cells of a circuit go to its client.
struct Way {
    circuit: CircuitKey,
    /// The leg to the client.
    leg: LegId,
    /// This relay adds a layer: no other shard has.
    adds_layer: bool,
    /// No other shard has counted the cells.
    counts: bool,
}

impl<O: Onion> Relay<O> {
    /// Handles runs of equal cells that arrived together.
    pub(super) fn forward_runs(
        &mut self,
        now: Time,
        channel: ChannelId,
        runs: &mut dyn Iterator<Item = (Cell<O>, u32)>,
    ) {
        // The circuit id of the last cell, and its way.
        let mut last: Option<(CircId, Option<Way>)> = None;
        for (cell, count) in runs {
            let (circ, way) = match last.take() {
                Some((circ, way)) if circ == cell.circ => (circ, way),
                _ => (cell.circ, self.way_of(channel, cell.circ)),
            };
            let goes_on = match &way {
                Some(way) if cell.command == Command::Relay && self.takes(way, count) => {
                    self.forward(now, channel, way, cell.body, count)
                }
                _ => {
                    self.each_cell(now, channel, cell, count);
                    way.is_none()
                }
            };
            last = goes_on.then_some((circ, way));
        }
    }

    /// Whether the queue has a place for a run. The cell that overfills it ends the circuit, and those behind that cell
    /// are for none.
    fn takes(&self, way: &Way, count: u32) -> bool {
        count == 1 || self.table.links.has_place(way.leg, count)
    }

    /// The way of RELAY cells with a circuit id; `None` unless this relay forwards them to a client.
    fn way_of(&self, channel: ChannelId, circ: CircId) -> Option<Way> {
        let links = &self.table.links;
        let counts = !links.is_between_shards(channel)?;
        let (key, side) = links.settled_circuit(channel, circ)?;
        // A flooded channel is closed with its next cell.
        if side == Side::Prev || (counts && links.is_flooded(channel)) {
            return None;
        }
        let circuit = &self.table.circuits[key.0 as usize];
        let adds_layer = !matches!(circuit.role, Role::Passed);
        let way = Way { circuit: key, leg: circuit.prev, adds_layer, counts };
        circuit.extending.is_none().then_some(way)
    }

    /// Forwards a run of equal cells to the client; false if circuits have ended with it.
    fn forward(&mut self, now: Time, channel: ChannelId, way: &Way, mut body: O::Body, count: u32) -> bool {
        self.cells += if way.counts { count.into() } else { 0 };
        if let Some(watch) = &mut self.watch {
            watch.active(now, channel);
        }
        let circuit = &mut self.table.circuits[way.circuit.0 as usize];
        circuit.used = now;
        if way.adds_layer {
            O::wrap(&mut circuit.hop, &mut body);
        }
        let shed = self.shed;
        let queued = self.try_push(now, way.circuit, way.leg, (Command::Relay, body), count);
        // The DESTROY of a circuit that ended may flood the channel.
        if !queued && way.counts && self.table.links.is_flooded(channel) {
            self.close_channel(now, channel);
        }
        self.relieve_memory(now);
        queued && self.shed == shed
    }
}
