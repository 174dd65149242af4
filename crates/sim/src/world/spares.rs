//! Circuits built beforehand for others to switch to (form 2 of active circuit switching).
//!
//! A spare has the guard and the exit of the circuit that it serves, and a middle of higher bandwidth. The
//! exit stays because streams' connections to servers end there: no byte of them need be asked for again.

use tidegate_proto::cell::RelayId;
use tidegate_proto::node::CircuitKey;

use crate::observe::Recorder;
use crate::plan::{Form, Route};

use super::World;
use super::users::Users;

impl<R: Recorder> World<'_, R> {
    /// Begins a spare for a circuit that has been built, if circuits switch that way.
    pub(super) fn build_spare(&mut self, host: u32, key: CircuitKey) {
        if self.system.switching.is_none_or(|rules| rules.form != Form::Circuit) {
            return;
        }
        let Some(served) = self.users.circuits[host as usize].get(&key).copied() else { return };
        if !matches!(self.plan.users[served.user as usize].route, Route::Drawn { .. }) {
            return;
        }
        let mut draws = self.users.seed.fork("spares").fork_index(served.number.into()).random();
        let Users { selector: Some(selector), .. } = &self.users else { return };
        let Some(middle) = selector.better_middle(&mut draws, served.path.map(RelayId)) else { return };
        self.begin_circuit(served.user, [served.path[0], middle.0, served.path[2]], Some(key));
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
