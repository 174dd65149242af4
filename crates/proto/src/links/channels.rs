//! The channel table: the neighbours, and the circuit ids in use on each channel.

use slab::Slab;

use super::config::Config;
use crate::ids::{ChannelId, CircId, LegId, RelayId};
use crate::transport::{Sharing, Transport};

/// Inserts into a slab that starts by growing one item at a time: most nodes are clients, with one or two.
pub(crate) fn insert_few<T>(slab: &mut Slab<T>, item: T) -> usize {
    if slab.len() == slab.capacity() && slab.len() < 4 {
        slab.reserve_exact(1);
    }
    slab.insert(item)
}

/// One connection to a neighbour.
#[derive(Debug)]
pub(super) struct Channel {
    /// The relay at the other end. `None` for a client.
    pub peer: Option<RelayId>,
    /// This node opened the channel.
    pub ours: bool,
    /// The neighbour speaks Tor's protocol only.
    pub stock: bool,
    /// The neighbour does not speak the configured transport.
    shared: bool,
    /// Closes with its last circuit.
    transient: bool,
    /// Leads to another shard of this relay.
    pub between_shards: bool,
    next_circ: u32,
    /// Circuit id -> leg, ordered by id.
    circs: Vec<(CircId, LegId)>,
}

impl Channel {
    fn position(&self, circ: CircId) -> Result<usize, usize> {
        self.circs.binary_search_by_key(&circ, |(circ, _)| *circ)
    }

    /// The leg with a circuit id.
    pub(crate) fn leg(&self, circ: CircId) -> Option<LegId> {
        self.position(circ).ok().map(|at| self.circs[at].1)
    }

    /// Legs with a circuit id here, ordered by that id.
    pub(crate) fn legs(&self) -> impl Iterator<Item = LegId> {
        self.circs.iter().map(|(_, leg)| *leg)
    }

    /// Number of circuits.
    pub(crate) fn circuits(&self) -> usize {
        self.circs.len()
    }

    /// Whether the channel closes with its last circuit and is without circuits.
    pub(crate) fn is_spent(&self) -> bool {
        self.transient && self.circs.is_empty()
    }

    /// Whether the neighbour may begin a circuit with this id.
    pub(crate) fn accepts(&self, circ: CircId, limit: u32) -> bool {
        circ.is_given_by(!self.ours) && self.position(circ).is_err() && self.circs.len() < limit as usize
    }

    /// Gives a leg a circuit id.
    pub(crate) fn list(&mut self, circ: CircId, leg: LegId) {
        let at = self.circs.partition_point(|(other, _)| *other < circ);
        self.circs.insert(at, (circ, leg));
    }

    /// Frees a circuit id, if it is in use.
    pub(crate) fn unlist(&mut self, circ: CircId) {
        if let Ok(at) = self.position(circ) {
            self.circs.remove(at);
        }
    }

    /// A free circuit id that this node may give.
    pub(crate) fn fresh_circ(&mut self) -> CircId {
        loop {
            let circ = CircId::given_by(self.ours, self.next_circ);
            self.next_circ = CircId::given_by(false, self.next_circ + 1).0;
            if circ.is_given_by(self.ours) && self.position(circ).is_err() {
                return circ;
            }
        }
    }
}

/// How a new circuit gets its channel.
pub(super) enum Choice {
    /// It opens a new one.
    Open,
    /// It shares one of these.
    Share(Transport, Vec<ChannelId>),
}

/// All channels of a node.
#[derive(Debug, Default)]
pub(super) struct Channels {
    channels: Slab<Channel>,
    /// The last choice of [`Sharing::RoundRobin`].
    last_shared: Option<ChannelId>,
}

impl Channels {
    pub(crate) fn add(&mut self, config: &Config, peer: Option<RelayId>, ours: bool) -> ChannelId {
        let own = peer.is_some_and(|peer| self.transport_to(config, peer) != Transport::Vanilla);
        let channel = Channel {
            peer,
            ours,
            stock: false,
            shared: false,
            transient: ours && (own || config.close_unused),
            between_shards: false,
            next_circ: 1,
            circs: Vec::new(),
        };
        ChannelId(insert_few(&mut self.channels, channel) as u32)
    }

    /// Adds a channel to another shard of this relay. It gets neither plans nor moves, and never closes.
    pub(crate) fn add_between(&mut self, peer: Option<RelayId>, ours: bool) -> ChannelId {
        let channel = Channel {
            peer,
            ours,
            stock: true,
            shared: false,
            transient: false,
            between_shards: true,
            next_circ: 1,
            circs: Vec::new(),
        };
        ChannelId(insert_few(&mut self.channels, channel) as u32)
    }

    pub(crate) fn remove(&mut self, id: ChannelId) -> Channel {
        self.channels.remove(id.index())
    }

    pub(crate) fn get(&self, id: ChannelId) -> Option<&Channel> {
        self.channels.get(id.index())
    }

    pub(crate) fn channel(&self, id: ChannelId) -> &Channel {
        &self.channels[id.index()]
    }

    pub(crate) fn channel_mut(&mut self, id: ChannelId) -> &mut Channel {
        &mut self.channels[id.index()]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ChannelId, &Channel)> {
        self.channels.iter().map(|(id, channel)| (ChannelId(id as u32), channel))
    }

    /// The neighbour does not speak the configured transport.
    pub(crate) fn set_shared(&mut self, id: ChannelId) {
        self.channels[id.index()].shared = true;
    }

    /// The transport between this node and a relay.
    fn transport_to(&self, config: &Config, peer: RelayId) -> Transport {
        let shares = |channel: &Channel| (channel.stock || channel.shared) && channel.peer == Some(peer);
        let legacy =
            config.legacy.contains(&peer) || self.channels.iter().any(|(_, channel)| shares(channel));
        if legacy { Transport::Vanilla } else { config.transport }
    }

    /// How a new circuit to `peer` gets its channel.
    pub(crate) fn choice(&self, config: &Config, peer: RelayId) -> Choice {
        let transport = self.transport_to(config, peer);
        let Some(limit) = transport.limit() else { return Choice::Open };
        let most = config.circuits_per_channel as usize;
        // A connection that the peer opened for one of its circuits closes with that circuit.
        let usable = |channel: &Channel| channel.ours || transport == Transport::Vanilla;
        let known = (self.iter())
            .filter(|(_, channel)| channel.peer == Some(peer) && usable(channel))
            .filter(|(_, channel)| channel.circs.len() < most)
            .map(|(id, _)| id);
        let known: Vec<ChannelId> = known.collect();
        if known.len() as u64 >= u64::from(limit) { Choice::Share(transport, known) } else { Choice::Open }
    }

    /// Which of these channels a new circuit shares. `loudness` is a leg's decayed cell count.
    pub(crate) fn share(
        &mut self,
        transport: Transport,
        known: &[ChannelId],
        loudness: impl Fn(LegId) -> f64,
    ) -> ChannelId {
        match transport {
            Transport::Threshold { beyond: Sharing::RoundRobin, .. } => {
                let next = known.iter().find(|id| self.last_shared.is_none_or(|last| **id > last));
                let next = *next.unwrap_or(&known[0]);
                self.last_shared = Some(next);
                next
            }
            Transport::Threshold { beyond: Sharing::ByClass, .. } => {
                let loudest = |id: &ChannelId| {
                    let channel = &self.channels[id.index()];
                    let most = channel.legs().map(&loudness).fold(0.0, f64::max);
                    (most, channel.circs.len())
                };
                // Equally loud connections differ by their number of circuits.
                let quieter = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
                let least = known.iter().min_by(|a, b| quieter(&loudest(a), &loudest(b)));
                *least.expect("a threshold is at least one connection")
            }
            Transport::Vanilla | Transport::PerCircuit | Transport::Quic => known[0],
        }
    }
}
