//! Circuits built beforehand for others to switch to (form 2 of active circuit switching).
//!
//! A spare has the guard and the exit of the circuit that it serves, and a middle of higher bandwidth. The
//! exit stays because streams' connections to servers end there: no byte of them need be asked for again.

use tidegate_proto::node::CircuitKey;

use crate::observe::Recorder;
use crate::plan::{Form, PathSelection, Route};

use super::World;
use super::users::draw;

/// A middle with more weight than the path's, drawn by weight; `None` if there is none.
fn better_middle(
    selection: &PathSelection,
    path: [u32; 3],
    draws: &mut tidegate_control::random::Random,
) -> Option<u32> {
    let [guard, middle, exit] = path;
    let family = |host: u32| selection.families.get(host as usize).copied().unwrap_or(0);
    let clash = |a: u32, b: u32| a == b || (family(a) != 0 && family(a) == family(b));
    let least = selection.middles.iter().find(|(host, _)| *host == middle)?.1;
    let better: Vec<(u32, f64)> = (selection.middles.iter().copied())
        .filter(|(host, weight)| *weight > least && !clash(*host, guard) && !clash(*host, exit))
        .collect();
    (!better.is_empty()).then(|| better[draw(draws, better.iter().map(|(_, weight)| *weight))].0)
}

impl<R: Recorder> World<'_, R> {
    /// Begins a spare for a circuit that has been built, if circuits switch that way.
    pub(super) fn build_spare(&mut self, host: u32, key: CircuitKey) {
        let plan = self.plan;
        if self.system.switching.is_none_or(|rules| rules.form != Form::Circuit) {
            return;
        }
        let Some(served) = self.users.circuits[host as usize].get(&key).copied() else { return };
        let Route::Weighted(selection) = plan.users[served.user as usize].route else { return };
        let mut draws = self.users.seed.fork("spares").fork_index(served.number.into()).random();
        let selection = &plan.selections[selection as usize];
        let Some(middle) = better_middle(selection, served.path, &mut draws) else { return };
        self.begin_circuit(served.user, [served.path[0], middle, served.path[2]], Some(key));
        self.drain(host);
    }

    pub(super) fn spare_built(&mut self, host: u32, spare: CircuitKey, served: CircuitKey) {
        if !self.client(host).keep_spare(served, spare) {
            self.close_circuit(host, spare);
        }
    }

    /// A circuit has moved. If it went over to its spare, that has the old way now, which nobody needs, and
    /// the next is built.
    pub(super) fn circuit_switched(&mut self, host: u32, key: CircuitKey) {
        let circuits = &self.users.circuits[host as usize];
        let spare = circuits.iter().find(|(_, circuit)| circuit.spare_of == Some(key));
        let Some((spare, path)) = spare.map(|(spare, circuit)| (*spare, circuit.path)) else { return };
        if let Some(circuit) = self.users.circuits[host as usize].get_mut(&key) {
            circuit.path = path;
        }
        self.close_circuit(host, spare);
        self.build_spare(host, key);
    }

    /// Closes the spares of a circuit that is gone.
    pub(super) fn close_spares(&mut self, host: u32, key: CircuitKey) {
        let circuits = &self.users.circuits[host as usize];
        let spares = circuits.iter().filter(|(_, circuit)| circuit.spare_of == Some(key));
        for spare in spares.map(|(spare, _)| *spare).collect::<Vec<CircuitKey>>() {
            self.close_circuit(host, spare);
        }
    }
}
