//! The defences of a consensus at the relay: refused circuits, streams and queue lengths.

use tidegate_control::units::Time;

use super::Relay;
use crate::defence::{Defence, Refusals, StreamAction};
use crate::ids::{ChannelId, CircuitKey, LegId};
use crate::onion::Onion;

impl<O: Onion> Relay<O> {
    /// Obeys defences from now on. The driver counts connections with the same ones, and calls this again after each
    /// change of their parameters.
    pub fn defend_with(&mut self, defence: Defence) {
        self.table.links.limit_queues(defence.parameters().queues);
        self.defence = Some(defence);
    }

    /// Refusals of the defences so far.
    pub fn refusals(&self) -> Refusals {
        self.defence.as_ref().map(Defence::refusals).unwrap_or_default()
    }

    /// Counts a circuit that a channel begins. False if it is a client's that must be refused.
    pub(super) fn may_create(&mut self, now: Time, channel: ChannelId) -> bool {
        let (Some(defence), Some(watch)) = (&self.defence, &self.watch) else { return true };
        match watch.address(channel) {
            Some(from) if self.table.links.is_client(channel) => defence.may_create(now, from),
            _ => true,
        }
    }

    /// Notes that a queue of a client's circuit overflowed towards the exit.
    pub(super) fn note_overflow(&mut self, now: Time, key: CircuitKey, leg: LegId) {
        let circuit = self.table.circuit(key);
        let (prev, is_outward) = (circuit.prev, circuit.next == Some(leg));
        let channel = self.table.links.channel_of(prev);
        if let (Some(defence), Some(watch)) = (&self.defence, &self.watch)
            && is_outward
            && self.table.links.is_client(channel)
            && let Some(from) = watch.address(channel)
        {
            defence.queue_overflowed(now, from);
        }
    }

    /// Counts a stream, and says what the defences do with it.
    pub(super) fn defend_stream(&mut self, now: Time, key: CircuitKey, address: &O::Address) -> StreamAction {
        // Tor does not limit directory streams.
        match self.defence.as_ref().filter(|_| !O::is_directory(address)) {
            Some(defence) => defence.stream(now, &mut self.table.circuits[key.0 as usize].opened),
            None => StreamAction::Accept,
        }
    }
}
