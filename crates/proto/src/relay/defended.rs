//! The defences of a consensus at the relay: refused circuits, streams and queue lengths.

use tidegate_control::units::Time;

use super::Relay;
use crate::cell::{EndReason, Payload};
use crate::defence::{Defence, StreamAction};
use crate::ending::Ending;
use crate::ids::{ChannelId, CircuitKey, LegId, StreamKey};
use crate::onion::Onion;

/// The answer to a refused RESOLVE: a transient error, without a text, with a lifetime of 0 (tor-spec, "Remote hostname
/// lookup").
const TRY_AGAIN: [u8; 6] = [0xf0, 0, 0, 0, 0, 0];

impl<O: Onion> Relay<O> {
    /// Obeys defences from now on. The driver counts connections with the same ones.
    pub fn defend_with(&mut self, defence: Defence) {
        self.table.links.limit_queues(defence.parameters().queues);
        self.defence = Some(defence);
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

    /// Counts a stream. If its circuit opens too many, refuses it and returns true.
    pub(super) fn refuses_stream(&mut self, now: Time, stream: StreamKey, address: &O::Address) -> bool {
        // Tor does not limit directory streams.
        let Some(defence) = self.defence.as_ref().filter(|_| !O::is_directory(address)) else { return false };
        let key = stream.circuit;
        match defence.stream(now, &mut self.table.circuits[key.0 as usize].opened) {
            StreamAction::Accept => return false,
            StreamAction::EndCircuit => self.end(now, key, Ending::Streams),
            StreamAction::EndStream if O::is_lookup(address) => {
                self.say(now, key, stream.stream, Payload::Resolved(TRY_AGAIN.into()));
            }
            // RESOURCE_LIMIT would let clients avoid this exit until the next consensus.
            StreamAction::EndStream => {
                self.say(now, key, stream.stream, Payload::End(EndReason::MISC));
            }
        }
        true
    }
}
