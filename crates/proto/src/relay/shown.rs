//! What a relay shows of its circuits to whoever runs it.

use super::Relay;
use crate::conflux::Linked;
use crate::ids::CircuitKey;
use crate::onion::Onion;

/// A circuit as its relay sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// Its number here, used again once it is closed.
    pub circuit: CircuitKey,
    /// The relay is its guard.
    pub guard: bool,
    /// Streams leave it here.
    pub exit: bool,
    /// And the client and this exit have agreed on congestion control.
    pub congestion_control: bool,
    /// And the circuit under which the streams are known that go over this and others.
    pub linked: Option<CircuitKey>,
    /// Cells to the client: waiting, sent so far,
    pub queued: u32,
    /// see `queued`,
    pub sent: u64,
    /// and let go by a controller so far; zero without one.
    pub allowed: f64,
    /// Cells towards the exit, sent so far.
    pub sent_on: u64,
}

impl<O: Onion> Relay<O> {
    /// All circuits, in order.
    pub fn shown(&self) -> impl Iterator<Item = Shown> {
        self.table.circuits.iter().map(|(key, circuit)| {
            let links = &self.table.links;
            let (queued, sent, allowed) = links.traffic(circuit.prev);
            Shown {
                circuit: CircuitKey(key as u32),
                guard: links.is_at_guard(circuit.prev),
                exit: circuit.edge.is_some(),
                congestion_control: circuit.edge.as_ref().is_some_and(|edge| edge.has_congestion_control()),
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
