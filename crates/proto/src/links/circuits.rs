//! Circuits come to channels and leave them.

use tidegate_control::units::Time;

use super::state::{Leg, Links, Move, OPENER_BIT, insert_few};
use super::waiting::Waiting;
use crate::cell::{Cell, Command, DestroyReason};
use crate::ids::{ChannelId, CircId, CircuitKey, LegId, Side};
use crate::onion::Onion;
use crate::sink::Departure;
use crate::transport::DecayingCount;

impl<O: Onion> Links<O> {
    /// Adds a leg for a circuit that we begin on a channel; `at_guard`: as its guard.
    pub fn begin_leg(&mut self, id: ChannelId, circuit: CircuitKey, side: Side, at_guard: bool) -> LegId {
        let circ = self.fresh_circ(id);
        let leg = self.add_leg(id, circ, circuit, side);
        self.legs[leg.0 as usize].at_guard = at_guard;
        leg
    }

    /// A circuit id that is ours to give and free.
    pub(super) fn fresh_circ(&mut self, id: ChannelId) -> CircId {
        let channel = self.channel(id);
        let bit = if channel.ours { OPENER_BIT } else { 0 };
        loop {
            let circ = CircId(channel.next_circ | bit);
            channel.next_circ = (channel.next_circ + 1) & !OPENER_BIT;
            if circ.0 != bit && channel.circs.binary_search_by_key(&circ, |(circ, _)| *circ).is_err() {
                return circ;
            }
        }
    }

    /// Adds a leg for a circuit that the neighbour begins; `None` if the id is not the neighbour's to
    /// give, is taken, or there are too many.
    pub fn accept_leg(
        &mut self,
        id: ChannelId,
        circ: CircId,
        circuit: CircuitKey,
        side: Side,
    ) -> Option<LegId> {
        let limit = self.config.circuits_per_channel as usize;
        let channel = self.channel(id);
        let theirs = (circ.0 & OPENER_BIT != 0) != channel.ours && circ.0 & !OPENER_BIT != 0;
        let taken = channel.circs.binary_search_by_key(&circ, |(circ, _)| *circ).is_ok();
        (theirs && !taken && channel.circs.len() < limit).then(|| self.add_leg(id, circ, circuit, side))
    }

    pub(super) fn add_leg(&mut self, id: ChannelId, circ: CircId, circuit: CircuitKey, side: Side) -> LegId {
        let leg = Leg {
            channel: id,
            circ,
            key: 0,
            circuit,
            side,
            high: false,
            loudness: DecayingCount::default(),
            // A neighbour without a name is a client, and we are its circuits' guard.
            at_guard: self.channels[id.0 as usize].peer.is_none(),
            moved: Time::ZERO,
            moving: None,
            allowance: self.first_allowance(side),
            share: 0.0,
            cuts: false,
            cut: 0.0,
            buffered: 0,
            sent: 0,
            allowed: 0.0,
            queue: Waiting::default(),
        };
        let leg = LegId(insert_few(&mut self.legs, leg) as u32);
        let channel = &mut self.channels[id.0 as usize];
        let key = insert_few(&mut channel.keys, leg) as u32;
        channel.scheduler.forget(key);
        let at = channel.circs.partition_point(|(other, _)| *other < circ);
        channel.circs.insert(at, (circ, leg));
        self.legs[leg.0 as usize].key = key;
        leg
    }

    /// Whether this node is the guard of a leg's circuit.
    pub fn is_at_guard(&self, id: LegId) -> bool {
        self.legs[id.0 as usize].at_guard
    }

    /// Removes a leg, drops what waits in its queue, and tells the neighbour why if `destroy` says. Returns its
    /// channel.
    pub fn remove_leg(&mut self, now: Time, id: LegId, destroy: Option<DestroyReason>) -> ChannelId {
        let leg = self.legs.remove(id.0 as usize);
        self.queued_cells -= u64::from(leg.queue.len());
        let channel = &mut self.channels[leg.channel.0 as usize];
        channel.scheduler.forget(leg.key);
        channel.keys.remove(leg.key as usize);
        let at = channel.circs.binary_search_by_key(&leg.circ, |(circ, _)| *circ);
        channel.circs.remove(at.expect("a leg is listed on its channel"));
        self.abandon_move(now, id, &leg, None);
        if let Some(reason) = destroy
            && !matches!(leg.moving.as_deref(), Some(Move::Leaving { .. }))
        {
            self.refuse(now, leg.channel, leg.circ, reason);
        }
        leg.channel
    }

    /// Tells the neighbour that there is no such circuit here any more, or never will be.
    pub fn refuse(&mut self, now: Time, id: ChannelId, circ: CircId, reason: DestroyReason) {
        let cell = Cell { circ, command: Command::Destroy, body: O::destroy(reason) };
        let channel = &mut self.channels[id.0 as usize];
        channel.out.push_back(Departure { cell, queued: now, buffered: now });
        self.buffered_cells += 1;
        self.want_flush(id);
    }
}
