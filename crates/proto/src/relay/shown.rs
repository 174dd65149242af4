//! Statistics of a relay's circuits for its operator.

use super::Relay;
use super::roles::Role;
use crate::conflux::Linked;
use crate::ids::CircuitKey;
use crate::onion::Onion;

/// Statistics of one circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// The relay's key of the circuit, reused once it is closed.
    pub circuit: CircuitKey,
    /// This relay is the circuit's guard.
    pub guard: bool,
    /// This relay is the circuit's exit.
    pub exit: bool,
    /// The client and this exit have agreed on congestion control.
    pub congestion_control: bool,
    /// The client and this relay use Counter Galois Onion.
    pub cgo: bool,
    /// The first circuit of the set of linked circuits, if this one is linked.
    pub linked: Option<CircuitKey>,
    /// Cells to the client that wait.
    pub queued: u32,
    /// Cells sent to the client so far.
    pub sent: u64,
    /// Cells to the client that a controller has let go so far; zero without one.
    pub allowed: f64,
    /// Cells sent towards the exit so far.
    pub sent_on: u64,
}

impl<O: Onion> Relay<O> {
    /// Statistics of all circuits but those that this shard only passes on, in order of their keys.
    pub fn shown(&self) -> impl Iterator<Item = Shown> {
        let circuits = self.table.circuits.iter();
        circuits.filter(|(_, circuit)| !matches!(circuit.role, Role::Passed)).map(|(key, circuit)| {
            let links = &self.table.links;
            let (queued, sent, allowed) = links.traffic(circuit.prev);
            Shown {
                circuit: CircuitKey(key as u32),
                guard: links.is_at_guard(circuit.prev),
                exit: circuit.edge.is_some(),
                congestion_control: circuit.edge.as_ref().is_some_and(|edge| edge.has_congestion_control()),
                cgo: O::terms(&circuit.hop).cgo,
                linked: (!matches!(circuit.linked, Linked::No))
                    .then(|| self.table.first(CircuitKey(key as u32))),
                queued,
                sent,
                allowed,
                sent_on: circuit.next.map_or(0, |next| links.traffic(next).1),
            }
        })
    }
}
