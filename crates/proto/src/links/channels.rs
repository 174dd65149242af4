//! Channels open and close, and circuits choose theirs.

use slab::Slab;
use tidegate_control::units::Time;

use super::state::{Channel, Links, insert_few};
use super::waiting::Waiting;
use crate::cell::CELL_BYTES;
use crate::ids::{ChannelId, CircuitKey, LegId, RelayId, Side};
use crate::onion::Onion;
use crate::transport::{LOUDNESS_HALF_LIFE, Sharing, Transport};

impl<O: Onion> Links<O> {
    pub(super) fn add_channel(&mut self, peer: Option<RelayId>, ours: bool) -> ChannelId {
        let own = peer.is_some_and(|peer| self.transport_to(peer) != Transport::Vanilla);
        let channel = Channel {
            peer,
            ours,
            stock: false,
            shared: false,
            transient: ours && (own || self.config.close_unused),
            open: !ours,
            filling: true,
            flushing: false,
            next_circ: 1,
            scheduler: self.config.scheduler.build(),
            keys: Slab::new(),
            circs: Vec::new(),
            out: Waiting::default(),
            news: Vec::new(),
            occupancy: None,
            awaited: Vec::new(),
            joins: Vec::new(),
        };
        ChannelId(insert_few(&mut self.channels, channel) as u32)
    }

    /// A neighbour connected to us.
    pub fn accept(&mut self, peer: Option<RelayId>) -> ChannelId {
        self.add_channel(peer, false)
    }

    /// The transport between us and a relay.
    pub(super) fn transport_to(&self, peer: RelayId) -> Transport {
        let shares = |channel: &Channel<O>| (channel.stock || channel.shared) && channel.peer == Some(peer);
        let legacy =
            self.config.legacy.contains(&peer) || self.channels.iter().any(|(_, channel)| shares(channel));
        if legacy { Transport::Vanilla } else { self.config.transport }
    }

    /// The neighbour understands nothing beyond Tor's protocol.
    pub fn set_stock(&mut self, id: ChannelId) {
        self.channel(id).stock = true;
    }

    /// The neighbour does not speak our transport.
    pub fn set_shared(&mut self, id: ChannelId) {
        self.channel(id).shared = true;
    }

    /// The channel that a leg is on.
    pub fn channel_of(&self, id: LegId) -> ChannelId {
        self.legs[id.0 as usize].channel
    }

    /// The relay on the other end of a leg's channel.
    pub fn peer(&self, id: LegId) -> Option<RelayId> {
        self.channels[self.legs[id.0 as usize].channel.0 as usize].peer
    }

    /// The channel for a new circuit to `peer`, and whether it must be opened first.
    pub fn channel_to(&mut self, now: Time, peer: RelayId) -> (ChannelId, bool) {
        let transport = self.transport_to(peer);
        if let Some(limit) = transport.limit() {
            let most = self.config.circuits_per_channel as usize;
            // A connection that the peer opened for a circuit of its own closes with that circuit.
            let usable = |channel: &Channel<O>| channel.ours || transport == Transport::Vanilla;
            let known = (self.channels.iter())
                .filter(|(_, channel)| channel.peer == Some(peer) && usable(channel))
                .filter(|(_, channel)| channel.circs.len() < most)
                .map(|(id, _)| ChannelId(id as u32));
            let known: Vec<ChannelId> = known.collect();
            if known.len() as u64 >= u64::from(limit) {
                return (self.shared(now, transport, &known), false);
            }
        }
        (self.add_channel(Some(peer), true), true)
    }

    /// Which of these channels a circuit shares.
    pub(super) fn shared(&mut self, now: Time, transport: Transport, known: &[ChannelId]) -> ChannelId {
        match transport {
            Transport::Threshold { beyond: Sharing::RoundRobin, .. } => {
                let next = known.iter().find(|id| self.last_shared.is_none_or(|last| **id > last));
                let next = *next.unwrap_or(&known[0]);
                self.last_shared = Some(next);
                next
            }
            Transport::Threshold { beyond: Sharing::ByClass, .. } => {
                let loudest = |id: &ChannelId| {
                    let channel = &self.channels[id.0 as usize];
                    let counts = channel.circs.iter().map(|(_, leg)| self.legs[leg.0 as usize].loudness);
                    let most = counts.map(|count| count.value(now, LOUDNESS_HALF_LIFE)).fold(0.0, f64::max);
                    (most, channel.circs.len())
                };
                let quieter = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
                let least = known.iter().min_by(|a, b| quieter(&loudest(a), &loudest(b)));
                *least.expect("a threshold is at least one connection")
            }
            Transport::Vanilla | Transport::PerCircuit | Transport::Quic => known[0],
        }
    }

    /// A channel we asked for is open: what waits may leave.
    pub fn opened(&mut self, now: Time, id: ChannelId) {
        self.channel(id).open = true;
        self.offer(now, id);
        self.move_awaiting(now, id);
    }

    /// Forgets a channel and its legs; returns the circuits that were on it.
    pub fn closed(&mut self, now: Time, id: ChannelId) -> Vec<(CircuitKey, Side)> {
        let channel = self.channels.remove(id.0 as usize);
        self.flushable.retain(|other| *other != id);
        self.runs.remove(id);
        self.buffered_cells -= u64::from(channel.out.len());
        self.abandon_moves_to(id, &channel);
        let mut orphans = Vec::new();
        for (_, leg_id) in channel.circs {
            let leg = self.legs.remove(leg_id.0 as usize);
            self.queued_cells -= u64::from(leg.queue.len());
            if leg.channel != id {
                let other = &mut self.channels[leg.channel.0 as usize];
                other.scheduler.forget(leg.key);
                other.keys.remove(leg.key as usize);
            }
            self.abandon_move(now, leg_id, &leg, Some(id));
            orphans.push((leg.circuit, leg.side));
        }
        self.run_if_known(now);
        orphans
    }

    /// Whether there is such a channel.
    pub fn has(&self, id: ChannelId) -> bool {
        self.channels.contains(id.0 as usize)
    }

    /// Whether a channel carries no circuit.
    pub fn is_bare(&self, id: ChannelId) -> bool {
        self.channels.get(id.0 as usize).is_some_and(|channel| channel.circs.is_empty())
    }

    /// The circuits whose client is in the direction of a channel.
    pub fn circuits_from(&self, id: ChannelId) -> impl Iterator<Item = CircuitKey> {
        let circs = self.channels.get(id.0 as usize).map_or(&[][..], |channel| &channel.circs);
        let legs = circs.iter().map(|(_, leg)| &self.legs[leg.0 as usize]);
        legs.filter(|leg| leg.side == Side::Prev).map(|leg| leg.circuit)
    }

    /// Whether the neighbour leaves more unread than it may.
    pub fn is_flooded(&self, id: ChannelId) -> bool {
        let full = self.config.output_buffer.high_bytes / CELL_BYTES;
        self.channels[id.0 as usize].out.len() > full + self.config.unread_limit
    }

    /// Whether a channel has no circuits left and nothing to write, and is of the kind that is closed then.
    pub fn is_spent(&self, id: ChannelId) -> bool {
        let channel = &self.channels[id.0 as usize];
        channel.transient && channel.circs.is_empty() && channel.out.is_empty()
    }
}
