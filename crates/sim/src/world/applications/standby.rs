//! Circuits built ahead for others to switch to (form 2 of active circuit switching).
//!
//! A standby circuit has the guard and the exit of the circuit that it serves, and a middle of higher bandwidth. The
//! exit stays because streams' connections to servers end there, so bytes need not be requested again.

use tidegate_proto::cell::RelayId;
use tidegate_proto::node::CircuitKey;

use crate::plan::{Form, Route};

use super::state::Applications;
use crate::world::network::Network;

impl Applications {
    /// Begins a standby circuit for a circuit that has been built, if circuits switch that way.
    pub(super) fn build_standby(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let switches = net.ctx.system.switching.is_some_and(|rules| rules.form == Form::Circuit);
        // The circuit may have closed while its predecessor's standby was.
        let served = self.circuits[host as usize].get(&key).copied().filter(|_| switches);
        if let Some(served) = served
            && let Route::Drawn { onion_service: false, .. } = net.ctx.plan.users[served.user as usize].route
        {
            let mut draws = self.seed.fork("spares").fork_index(served.number.into()).random();
            let selector = self.choice(served.user).selector.as_ref();
            let selector = selector.expect("a selector is made if a user's route is drawn");
            if let Some(middle) = selector.better_middle(&mut draws, served.path.map(RelayId)) {
                let path = [served.path[0], middle.0, served.path[2]];
                self.begin_circuit(net, served.user, path, None, Some(key));
                net.drain(self, host);
            }
        }
    }

    /// A standby circuit is built: the client keeps it, or closes it if the served circuit is gone.
    pub(super) fn standby_built(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        standby: CircuitKey,
        served: CircuitKey,
    ) {
        if !net.nodes.client(host).keep_standby(served, standby) {
            self.close_circuit(net, host, standby);
        }
    }

    /// A circuit has moved. If it moved to its standby, the two have exchanged paths: closes the standby with the old
    /// path and builds the next.
    pub(super) fn circuit_switched(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let circuits = &self.circuits[host as usize];
        let standby = circuits.iter().find(|(_, circuit)| circuit.standby_for == Some(key));
        if let Some((standby, path)) = standby.map(|(standby, circuit)| (*standby, circuit.path)) {
            if let Some(circuit) = self.circuits[host as usize].get_mut(&key) {
                circuit.path = path;
            }
            self.close_circuit(net, host, standby);
            self.build_standby(net, host, key);
        }
    }

    /// Closes the standby circuits of a circuit that is gone.
    pub(super) fn close_standby(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let circuits = &self.circuits[host as usize];
        let standby = circuits.iter().filter(|(_, circuit)| circuit.standby_for == Some(key));
        for standby in standby.map(|(standby, _)| *standby).collect::<Vec<CircuitKey>>() {
            self.close_circuit(net, host, standby);
        }
    }
}
