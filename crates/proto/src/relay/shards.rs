//! A relay on several threads. Each thread, a *shard*, has a [`Relay`] of its own with its own connections.
//!
//! A circuit lives on the shard of the connection that it came by. Circuits that meet others, at an introduction or
//! rendezvous point or as linked circuits (Conflux), meet on the shard that the name of their meeting selects. A shard
//! that gets the first such message of a circuit hands its end of the circuit over to that shard. Afterwards it passes
//! the circuit's cells on unread, over a channel between the two shards.

use tidegate_control::units::Time;

use super::Relay;
use super::handover::{Between, HandedOver, meeting};
use super::roles::Role;
use super::table::{Circuit, Switch};
use super::watch::AddressCounts;
use crate::cell::{DestroyReason, Message, Payload};
use crate::conflux::Linked;
use crate::ending::Ending;
use crate::ids::{CircuitKey, Side};
use crate::node::Output;
use crate::onion::Onion;

impl<O: Onion> Relay<O> {
    /// Makes this relay shard `own` of `count`, which share the counts per address. Returns its channels to each shard.
    ///
    /// The driver carries what [`next_handed_over`](Self::next_handed_over) and [`drain`](crate::node::Node::drain)
    /// return to the other shard, in order: to [`take_over`](Self::take_over), and to
    /// [`cell`](crate::node::Node::cell) on the channel to this shard.
    pub fn become_shard(
        &mut self,
        own: usize,
        count: usize,
        addresses: AddressCounts,
    ) -> Vec<Option<Between>> {
        if let Some(watch) = &mut self.watch {
            watch.count_with(addresses);
        }
        let links = &mut self.table.links;
        let between = (0..count).map(|other| {
            (other != own)
                .then(|| [false, true].map(|clients| links.add_between(other, clients, own < other)))
        });
        self.shards.own = own;
        self.shards.between = between.collect();
        self.shards.between.clone()
    }

    /// Whether other shards have circuits of this relay. The two circuits of a switch may be on two shards, so clients
    /// cannot switch.
    pub(super) fn is_shard(&self) -> bool {
        self.shards.between.len() > 1
    }

    /// Circuits of other shards that this one only passes on.
    pub(super) fn passed(&self) -> usize {
        self.shards.passed
    }

    /// The other shard on which a circuit with this message meets others.
    pub(super) fn elsewhere(&self, payload: &Payload<O>) -> Option<usize> {
        if !self.is_shard() {
            return None;
        }
        let count = self.shards.between.len() as u64;
        let home = (u64::from_le_bytes(meeting(payload)?) % count) as usize;
        (home != self.shards.own).then_some(home)
    }

    /// Hands the end of a circuit over to another shard, with the message that needs the other circuit.
    pub(super) fn hand_over(&mut self, now: Time, key: CircuitKey, to: usize, message: Message<O>) {
        let circuit = self.table.circuit(key);
        let is_fresh = circuit.next.is_none()
            && circuit.edge.is_none()
            && matches!(
                (&circuit.role, &circuit.switch, &circuit.linked),
                (Role::None, Switch::None, Linked::No)
            );
        if !is_fresh {
            let ending = if let Payload::Link(_) = message.payload {
                Ending::WrongLink
            } else {
                Ending::WrongRendezvous
            };
            return self.end(now, key, ending);
        }
        let prev = circuit.prev;
        let is_from_client = self.table.links.is_at_guard(prev);
        let channel = self.shards.between[to].expect("it is another shard")[usize::from(is_from_client)];
        let next = self.table.links.begin_leg(channel, key, Side::Next, is_from_client);
        let circ = self.table.links.circ_of(next);
        let circuit = self.table.circuit(key);
        circuit.next = Some(next);
        circuit.role = Role::Passed;
        self.shards.passed += 1;
        let handed = HandedOver {
            is_from_client,
            circ,
            owner: circuit.owner.take(),
            early: circuit.early,
            hop: std::mem::take(&mut circuit.hop),
            introduced: circuit.introduced,
            message,
        };
        self.shards.handed.push_back((to, handed));
        self.table.outputs.push_back(Output::Flush(channel));
    }

    /// The end of a circuit that another shard must take over, before it gets cells that
    /// [`drain`](crate::node::Node::drain) returns later.
    pub fn next_handed_over(&mut self, to: usize) -> Option<HandedOver<O>> {
        let at = self.shards.handed.iter().position(|(other, _)| *other == to)?;
        self.shards.handed.remove(at).map(|(_, handed)| handed)
    }

    /// Takes over the end of a circuit from another shard.
    pub fn take_over(&mut self, now: Time, from: usize, handed: HandedOver<O>) {
        let HandedOver { is_from_client, circ, owner, early, hop, introduced, message } = handed;
        self.make_room_for_circuit(now, owner);
        let channel = self.shards.between[from].expect("it is another shard")[usize::from(is_from_client)];
        let key = CircuitKey(self.table.circuits.vacant_key() as u32);
        let Some(prev) = self.table.links.accept_leg(channel, circ, key, Side::Prev) else {
            self.disown(owner);
            return self.table.links.refuse(now, channel, circ, DestroyReason::RESOURCE_LIMIT);
        };
        self.table.circuits.insert(Circuit {
            owner,
            used: now,
            prev,
            next: None,
            extending: None,
            early,
            hop,
            edge: None,
            switch: Switch::None,
            linked: Linked::No,
            role: Role::None,
            // Circuits are handed over before they open streams.
            opened: None,
            introduced,
        });
        self.hold(now, owner, key);
        self.message(now, key, message);
    }

    /// Notes that a circuit with this role ended. Whether it counts: the shard with its end counts the others.
    pub(super) fn is_counted(&mut self, role: &Role) -> bool {
        let is_passed = matches!(role, Role::Passed);
        self.shards.passed -= usize::from(is_passed);
        !is_passed
    }
}
