//! Runs of cells: consecutive RELAY cells of one circuit that a relay forwards to the client.
//!
//! All cells of a run are forwarded in the same way, which the relay looks up once.

use tidegate_control::units::Time;

use super::Relay;
use super::roles::Role;
use crate::cell::{Cell, CircId, Command};
use crate::ids::CircuitKey;
use crate::links::{ChannelId, LegId, Side};
use crate::node::Node as _;
use crate::onion::Onion;

/// The way of a run.
struct Run {
    circuit: CircuitKey,
    /// The leg to the client.
    leg: LegId,
    /// This relay adds a layer: no other shard has.
    adds_layer: bool,
    /// No other shard has counted the cells.
    counts: bool,
}

impl<O: Onion> Relay<O> {
    /// Handles cells that arrived together.
    pub(super) fn forward_runs(
        &mut self,
        now: Time,
        channel: ChannelId,
        cells: &mut dyn Iterator<Item = Cell<O>>,
    ) {
        // The circuit id of the last cell, and its run.
        let mut last: Option<(CircId, Option<Run>)> = None;
        for cell in cells {
            let (circ, run) = match last.take() {
                Some((circ, run)) if circ == cell.circ => (circ, run),
                _ => (cell.circ, self.run_of(channel, cell.circ)),
            };
            let goes_on = match &run {
                Some(run) if cell.command == Command::Relay => self.forward(now, channel, run, cell.body),
                Some(_) => {
                    self.cell(now, channel, cell);
                    false
                }
                None => {
                    self.cell(now, channel, cell);
                    true
                }
            };
            last = goes_on.then_some((circ, run));
        }
    }

    /// The run of RELAY cells with a circuit id; `None` unless this relay forwards them to a client.
    fn run_of(&self, channel: ChannelId, circ: CircId) -> Option<Run> {
        let links = &self.table.links;
        let counts = !links.is_between_shards(channel)?;
        let (key, side) = links.settled_circuit(channel, circ)?;
        // A flooded channel is closed with its next cell.
        if side == Side::Prev || (counts && links.is_flooded(channel)) {
            return None;
        }
        let circuit = &self.table.circuits[key.0 as usize];
        let adds_layer = !matches!(circuit.role, Role::Passed);
        let run = Run { circuit: key, leg: circuit.prev, adds_layer, counts };
        circuit.extending.is_none().then_some(run)
    }

    /// Forwards a cell to the client; false if circuits have ended with it.
    fn forward(&mut self, now: Time, channel: ChannelId, run: &Run, mut body: O::Body) -> bool {
        self.cells += u64::from(run.counts);
        if let Some(watch) = &mut self.watch {
            watch.active(now, channel);
        }
        let circuit = &mut self.table.circuits[run.circuit.0 as usize];
        circuit.used = now;
        if run.adds_layer {
            O::wrap(&mut circuit.hop, &mut body);
        }
        let shed = self.shed;
        let queued = self.try_push(now, run.circuit, run.leg, Command::Relay, body);
        // The DESTROY of a circuit that ended may flood the channel.
        if !queued && run.counts && self.table.links.is_flooded(channel) {
            self.close_channel(now, channel);
        }
        self.relieve_memory(now);
        queued && self.shed == shed
    }
}
