//! Second legs: circuits linked with a user's first one, to carry its streams together ([`tidegate_proto::conflux`]).
//!
//! A client begins both circuits together and links them when both are built; streams wait until then. If the second
//! fails or takes much longer, the first continues alone.

use tidegate_control::units::Span;
use tidegate_proto::cell::RelayId;
use tidegate_proto::node::CircuitKey;

use crate::plan::Route;

use super::state::Applications;
use super::state::Legs;
use crate::world::event::Event;
use crate::world::network::Network;

/// Limit of a second circuit's build time, as a multiple of the first's.
const PATIENCE: u64 = 4;

impl Applications {
    /// Begins the second of a user's circuit that was just begun, if its clients link two.
    pub(super) fn begin_second_leg(&mut self, net: &mut Network<'_>, user: u32, first: CircuitKey) {
        if net.ctx.system.conflux.is_none() {
            return;
        }
        let plan = &net.ctx.plan.users[user as usize];
        let circuit = self.circuits[plan.host as usize][&first];
        let path = match &plan.route {
            Route::Pinned(_) => plan.second_path,
            // Own random draws: linking must not change the paths that a user draws otherwise.
            Route::Drawn { onion_service: false, .. } => {
                let mut draws = self.seed.fork("legs").fork_index(circuit.number.into()).random();
                let state = &mut self.users[user as usize];
                let selector = self.choices[state.choice].selector.as_ref();
                selector.and_then(|selector| {
                    let path = circuit.path.map(RelayId);
                    Some(
                        selector.draw_second(&mut draws, path, &mut state.second_guard)?.map(|relay| relay.0),
                    )
                })
            }
            Route::Drawn { .. } | Route::Shared(_) => None,
        };
        if let Some(path) = path {
            let host = plan.host;
            let (second, _) = self.begin_circuit(net, user, path, None, None);
            let circuits = &mut self.circuits[host as usize];
            circuits.get_mut(&second).expect("it was begun").leg_of = Some(first);
            circuits.get_mut(&first).expect("so was it").legs = Legs::Building(second);
        }
    }

    /// Limits the second circuit's build time by that of the first.
    pub(super) fn limit_second(&mut self, net: &mut Network<'_>, host: u32, first: CircuitKey, took: Span) {
        let circuits = &mut self.circuits[host as usize];
        if let Some(Legs::Building(key)) = circuits.get(&first).map(|circuit| circuit.legs)
            && let Some(second) = circuits.get_mut(&key).filter(|second| !second.built)
        {
            let deadline = second.begun + took * PATIENCE;
            if deadline < second.deadline {
                second.deadline = deadline;
                net.ctx.queue.push(deadline, Event::CircuitTimeout(host, key));
            }
        }
    }

    /// Links two circuits once both are built. If the client cannot link them, the second closes.
    pub(super) fn link_legs(&mut self, net: &mut Network<'_>, host: u32, first: CircuitKey) {
        let (now, wish) = (net.ctx.now, net.ctx.system.conflux.as_ref().map(|split| split.wish()));
        let circuits = &mut self.circuits[host as usize];
        let is_built = |key: CircuitKey| circuits.get(&key).is_some_and(|circuit| circuit.built);
        if let Some(Legs::Building(second)) = circuits.get(&first).map(|circuit| circuit.legs)
            && is_built(first)
            && is_built(second)
        {
            if wish.is_some_and(|wish| net.nodes.client(host).link(now, &[first, second], wish)) {
                self.circuits[host as usize].get_mut(&first).expect("it is built").legs = Legs::Linking;
                net.drain(self, host);
            } else {
                self.close_circuit(net, host, second);
            }
        }
    }

    /// A circuit is linked with its second leg: streams can use both.
    pub(super) fn circuit_linked(&mut self, net: &mut Network<'_>, host: u32, first: CircuitKey) {
        if let Some(circuit) = self.circuits[host as usize].get_mut(&first) {
            circuit.legs = Legs::Ready;
            self.circuit_ready(net, host, first);
        }
    }

    /// A circuit has closed: closes its second leg too; a first leg that was not linked yet continues alone.
    pub(super) fn leg_closed(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        key: CircuitKey,
        leg_of: Option<CircuitKey>,
    ) {
        let circuits = &mut self.circuits[host as usize];
        let second = circuits.iter().find(|(_, circuit)| circuit.leg_of == Some(key)).map(|(key, _)| *key);
        if let Some(second) = second {
            self.close_circuit(net, host, second);
        }
        let circuits = &mut self.circuits[host as usize];
        if let Some(first) = leg_of
            && let Some(circuit) = circuits.get_mut(&first)
            && circuit.legs == Legs::Building(key)
        {
            circuit.legs = Legs::Ready;
            if circuit.built {
                self.circuit_ready(net, host, first);
            }
        }
    }
}
