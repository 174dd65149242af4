//! Circuits built beforehand for others to switch to (form 2 of active circuit switching).
//!
//! A standby circuit has the guard and the exit of the circuit that it serves, and a middle of higher bandwidth. The
//! exit stays because streams' connections to servers end there: no byte of them need be asked for again.

use tidegate_proto::cell::RelayId;
use tidegate_proto::node::CircuitKey;

use crate::plan::{Form, Route};

use super::state::World;

impl World<'_> {
    /// Begins a standby circuit for a circuit that has been built, if circuits switch that way.
    pub(super) fn build_standby(&mut self, host: u32, key: CircuitKey) {
        if self.system.switching.is_none_or(|rules| rules.form != Form::Circuit) {
            return;
        }
        let Some(served) = self.users.circuits[host as usize].get(&key).copied() else { return };
        if !matches!(self.plan.users[served.user as usize].route, Route::Drawn { onion_service: false, .. }) {
            return;
        }
        let mut draws = self.users.seed.fork("spares").fork_index(served.number.into()).random();
        let Some(selector) = &self.users.choice(served.user).selector else { return };
        let Some(middle) = selector.better_middle(&mut draws, served.path.map(RelayId)) else { return };
        self.begin_circuit(served.user, [served.path[0], middle.0, served.path[2]], None, Some(key));
        self.drain(host);
    }

    pub(super) fn standby_built(&mut self, host: u32, standby: CircuitKey, served: CircuitKey) {
        if !self.client(host).keep_standby(served, standby) {
            self.close_circuit(host, standby);
        }
    }

    /// A circuit has moved. If it went over to its standby, that has the old way now, which nobody needs, and
    /// the next is built.
    pub(super) fn circuit_switched(&mut self, host: u32, key: CircuitKey) {
        let circuits = &self.users.circuits[host as usize];
        let standby = circuits.iter().find(|(_, circuit)| circuit.standby_for == Some(key));
        let Some((standby, path)) = standby.map(|(standby, circuit)| (*standby, circuit.path)) else {
            return;
        };
        if let Some(circuit) = self.users.circuits[host as usize].get_mut(&key) {
            circuit.path = path;
        }
        self.close_circuit(host, standby);
        self.build_standby(host, key);
    }

    /// Closes what stands by for a circuit that is gone.
    pub(super) fn close_standby(&mut self, host: u32, key: CircuitKey) {
        let circuits = &self.users.circuits[host as usize];
        let standby = circuits.iter().filter(|(_, circuit)| circuit.standby_for == Some(key));
        for standby in standby.map(|(standby, _)| *standby).collect::<Vec<CircuitKey>>() {
            self.close_circuit(host, standby);
        }
    }
}
