//! The relay part of a peer: opens datagrams, forwards within its limit, and counts.

use std::collections::VecDeque;

use tidegate_control::machine::Machine;
use tidegate_control::paths::relay::PolicingRelay;
use tidegate_control::paths::{FairShareParameters, Peer};
use tidegate_control::units::{Span, Time};
use x25519_dalek::StaticSecret;

use crate::keys::PeerKeys;
use crate::link::Links;
use crate::onion::{self, Left, Memory, Opened, TransitTimes};
use crate::replay::ReplayTags;
use crate::routes::{Passed, Routes, read_refusal};
use crate::wire::{self, Class, OpenError, PACKET, REFUSAL};

/// Keys, limit and memory of a peer.
pub struct Node {
    keys: PeerKeys,
    links: Links,
    /// The current epoch and its neighbours, for packets in flight and differing clocks.
    epochs: Vec<EpochKey>,
    relay: PolicingRelay,
    transit_times: TransitTimes,
    routes: Routes,
    /// Acknowledgements of each peer that it forwards outside its limit. They come back over the same relays, so each
    /// data datagram that it forwards to a peer adds one.
    credit: Vec<u32>,
    counters: Counters,
    outputs: VecDeque<Opened>,
}

/// Maximum of [`Node::credit`].
const CREDIT: u32 = 4096;

struct EpochKey {
    number: u32,
    secret: StaticSecret,
    /// Tags of the packets opened under this key, for replay defence.
    tags: ReplayTags,
}

/// Configuration of a peer.
pub struct NodeConfig<'a> {
    /// Its number.
    pub me: Peer,
    /// Its secrets.
    pub keys: PeerKeys,
    /// The static keys of all peers, by number.
    pub links: &'a [[u8; 32]],
    /// The first peer of each peer's network. The peers of a network share its places.
    pub networks: Vec<Peer>,
    /// The current key epoch.
    pub epoch: u32,
    /// Forwarding limit, bytes of frames per second.
    pub limit: f64,
    /// Offset of its seconds from the start.
    pub phase: Span,
    /// Parameters for offering rates to sources; `None` if it does not.
    pub stamping: Option<FairShareParameters>,
}

/// Counters of received datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Forwarded data.
    pub forwarded: u64,
    /// Data that ends at this peer.
    pub delivered: u64,
    /// Forwarded acknowledgements.
    pub acks_forwarded: u64,
    /// Acknowledgements that end at this peer.
    pub acks_received: u64,
    /// Sent and forwarded refusals.
    pub refusals: u64,
    /// Dropped: the sender was not authenticated.
    pub unauthenticated: u64,
    /// Dropped: wrong size or kind (truncated, oversized, foreign).
    pub misshapen: u64,
    /// Dropped: the key epoch is over or has not begun.
    pub stale: u64,
    /// Dropped: the integrity check failed, or the route is unknown.
    pub forged: u64,
    /// Dropped: replayed.
    pub replayed: u64,
    /// Dropped: malformed contents.
    pub senseless: u64,
    /// Dropped: over the limit of this second.
    pub over_limit: u64,
    /// Dropped: acknowledgements without credit.
    pub flooding: u64,
    /// Dropped: the memory for replay tags of this epoch is full.
    pub memory_full: u64,
}

impl Node {
    /// A peer before its first packet.
    pub fn new(config: NodeConfig) -> Node {
        let NodeConfig { me, keys, links, networks, epoch, limit, phase, stamping } = config;
        let mut node = Node {
            links: Links::new(me, keys.link(), links),
            keys,
            epochs: Vec::new(),
            relay: PolicingRelay::new(limit, phase, links.len(), stamping),
            transit_times: TransitTimes::default(),
            routes: Routes::new(networks),
            credit: vec![CREDIT; links.len()],
            counters: Counters::default(),
            outputs: VecDeque::new(),
        };
        node.set_epoch(epoch);
        node
    }

    /// Sets the epoch. The keys of this, the previous and the next epoch are valid; others are dropped with their
    /// replay tags.
    pub fn set_epoch(&mut self, epoch: u32) {
        let valid = epoch.saturating_sub(1)..=epoch.saturating_add(1);
        self.epochs.retain(|key| valid.contains(&key.number));
        for number in valid {
            if self.epochs.iter().all(|key| key.number != number) {
                let secret = self.keys.onion(number);
                self.epochs.push(EpochKey { number, secret, tags: ReplayTags::default() });
            }
        }
    }

    /// The replay tags of an epoch with a valid key.
    pub fn tags(&mut self, epoch: u32) -> Option<&mut ReplayTags> {
        self.epochs.iter_mut().find(|key| key.number == epoch).map(|key| &mut key.tags)
    }

    /// The epochs with valid keys.
    pub fn epochs(&self) -> Vec<u32> {
        self.epochs.iter().map(|key| key.number).collect()
    }

    /// The rate that it offers to sources, bytes/s; zero if none.
    pub fn stamp(&self) -> f32 {
        self.relay.stamp()
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Adds the link header for `to`; `None` if the directory lacks this peer.
    pub fn seal(&mut self, to: Peer, datagram: &[u8]) -> Option<Vec<u8>> {
        self.links.seal(to, datagram)
    }

    /// Handles a received datagram.
    ///
    /// A valid one within the limits leads to an output; others are dropped and counted. Forwarded datagrams are
    /// already sealed.
    pub fn handle(&mut self, now: Time, wire: &[u8]) {
        // The cheap checks come first: the link's tag, then size and kind, then limits, then the Sphinx packet.
        let Some((from, datagram)) = self.links.open(wire) else {
            self.counters.unauthenticated += 1;
            return;
        };
        let Some((class, epoch)) = wire::class(datagram) else {
            self.counters.misshapen += 1;
            return;
        };
        let opened = match class {
            Class::Data | Class::Ack | Class::Reply => self.onion(now, from, class, epoch, datagram),
            Class::Cell | Class::ReplyCell => self.cell(now, from, class, datagram),
            Class::Refusal => self.refusal(now, from, datagram),
        };
        match opened {
            Ok(Opened::Forward { to, datagram }) => {
                if let Some(datagram) = self.links.seal(to, &datagram) {
                    self.outputs.push_back(Opened::Forward { to, datagram });
                }
            }
            Ok(opened) => self.outputs.push_back(opened),
            Err(error) => {
                *match error {
                    Dropped::OverLimit => &mut self.counters.over_limit,
                    Dropped::Flooding => &mut self.counters.flooding,
                    Dropped::Stale => &mut self.counters.stale,
                    Dropped::Opening(OpenError::Shape) => &mut self.counters.misshapen,
                    Dropped::Opening(OpenError::Forged) => &mut self.counters.forged,
                    Dropped::Opening(OpenError::Replayed) => &mut self.counters.replayed,
                    Dropped::Opening(OpenError::Inside) => &mut self.counters.senseless,
                    Dropped::Opening(OpenError::Full) => &mut self.counters.memory_full,
                } += 1;
            }
        }
    }

    /// Checks the limits. Runs before the expensive opening, so floods cost little.
    fn within(&mut self, now: Time, from: Peer, class: Class) -> Result<(), Dropped> {
        match class {
            Class::Data | Class::Cell => {
                self.relay.arrive(now, f64::from(PACKET)).then_some(()).ok_or(Dropped::OverLimit)
            }
            _ => {
                let credit = self.credit.get_mut(usize::from(from)).ok_or(Dropped::Flooding)?;
                *credit = credit.checked_sub(1).ok_or(Dropped::Flooding)?;
                Ok(())
            }
        }
    }

    fn onion(
        &mut self,
        now: Time,
        from: Peer,
        class: Class,
        epoch: u8,
        datagram: &[u8],
    ) -> Result<Opened, Dropped> {
        self.within(now, from, class)?;
        let network = self.routes.network(from);
        let current = |key: &&mut EpochKey| key.number % 16 == u32::from(epoch);
        let key = self.epochs.iter_mut().find(current).ok_or(Dropped::Stale)?;
        // A packet that cannot be remembered could be replayed, so it is refused.
        if key.tags.full(network) {
            return Err(Dropped::Opening(OpenError::Full));
        }
        let memory = Memory {
            stamp: self.relay.stamp(),
            tags: &mut key.tags,
            network,
            transit_times: &mut self.transit_times,
            now,
        };
        let (opened, left): (Opened, Left) =
            onion::open(datagram, &key.secret, memory).map_err(Dropped::Opening)?;
        if let Some((seed, onward)) = left {
            self.routes.establish(now, from, &seed, onward);
        }
        self.count(from, &opened, class == Class::Data);
        Ok(opened)
    }

    fn cell(&mut self, now: Time, from: Peer, class: Class, datagram: &[u8]) -> Result<Opened, Dropped> {
        self.routes.check(now, from, datagram).map_err(Dropped::Opening)?;
        if let Err(dropped) = self.within(now, from, class) {
            if class != Class::Cell {
                return Err(dropped);
            }
            self.counters.over_limit += 1;
            let refused = self.routes.refuse(now, from, datagram, REFUSAL, self.relay.stamp());
            let (to, datagram) = refused.ok_or(Dropped::Opening(OpenError::Forged))?;
            self.counters.refusals += 1;
            return Ok(Opened::Forward { to, datagram });
        }
        let passed = self.routes.pass(now, from, datagram, self.relay.stamp()).map_err(Dropped::Opening)?;
        let opened = match passed {
            Passed::Forward(to, datagram) => Opened::Forward { to, datagram },
            Passed::End { id, annex, payload } => Opened::Cell { id, annex, payload },
        };
        self.count(from, &opened, class == Class::Cell);
        Ok(opened)
    }

    fn refusal(&mut self, now: Time, from: Peer, datagram: &[u8]) -> Result<Opened, Dropped> {
        if let Some((to, datagram)) = self.routes.pass_back(now, from, datagram) {
            self.counters.refusals += 1;
            return Ok(Opened::Forward { to, datagram });
        }
        let (label, block) = read_refusal(datagram).ok_or(Dropped::Opening(OpenError::Shape))?;
        Ok(Opened::Refused { first: from, label, block })
    }

    fn count(&mut self, from: Peer, opened: &Opened, data: bool) {
        let counters = &mut self.counters;
        // Forwarded data pays for its acknowledgement; datagrams that end here are free.
        let paid = match opened {
            Opened::Forward { to, .. } if data => {
                counters.forwarded += 1;
                *to
            }
            Opened::Forward { .. } => {
                counters.acks_forwarded += 1;
                return;
            }
            Opened::Data { .. } | Opened::Message { .. } | Opened::Cell { .. } if data => {
                counters.delivered += 1;
                return;
            }
            _ => {
                counters.acks_received += 1;
                from
            }
        };
        if let Some(credit) = self.credit.get_mut(usize::from(paid)) {
            *credit = (*credit + 1).min(CREDIT);
        }
    }
}

impl Machine for Node {
    type Output = Opened;

    fn poll(&mut self) -> Option<Opened> {
        self.outputs.pop_front()
    }

    /// A relay acts only on datagrams.
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    fn timeout(&mut self, _: Time) {}
}

enum Dropped {
    OverLimit,
    Flooding,
    Stale,
    Opening(OpenError),
}
