//! The relay's side of one peer: opens datagrams, forwards what its limit allows, counts everything.

use std::collections::VecDeque;

use tidegate_control::machine::Machine;
use tidegate_control::paths::Peer;
use tidegate_control::paths::explicit::FairShareParameters;
use tidegate_control::paths::relay::PolicingRelay;
use tidegate_control::units::{Span, Time};
use x25519_dalek::StaticSecret;

use crate::keys::PeerKeys;
use crate::link::Links;
use crate::onion::{self, Left, Memory, Opened, TransitTimes};
use crate::replay::ReplayTags;
use crate::routes::{Passed, Routes, read_refusal};
use crate::wire::{self, Class, OpenError, PACKET, REFUSAL};

/// One peer's keys, limit and memory.
pub struct Node {
    keys: PeerKeys,
    links: Links,
    /// Of the current epoch and its neighbours: packets on their way and clocks that differ.
    epochs: Vec<EpochKey>,
    relay: PolicingRelay,
    transit_times: TransitTimes,
    routes: Routes,
    /// Acknowledgements it still passes for free; each data datagram passed adds one.
    credit: u32,
    counters: Counters,
    outputs: VecDeque<Opened>,
}

/// Most acknowledgements that can be passed beyond those that data datagrams paid for.
const CREDIT: u32 = 4096;

struct EpochKey {
    number: u32,
    secret: StaticSecret,
    /// Tags of opened packets, which must not be opened again under this key.
    tags: ReplayTags,
}

/// What a peer is.
pub struct NodeSettings<'a> {
    /// Its number.
    pub me: Peer,
    /// Its secrets.
    pub keys: PeerKeys,
    /// All peers' static keys by number.
    pub links: &'a [[u8; 32]],
    /// The key epoch that it is.
    pub epoch: u32,
    /// Bytes of frames per second that it forwards.
    pub limit: f64,
    /// Its seconds begin so long after the start.
    pub phase: Span,
    /// How it offers rates to sources, if it does.
    pub stamping: Option<FairShareParameters>,
}

/// What became of the datagrams that reached a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data passed on.
    pub forwarded: u64,
    /// Data for this peer.
    pub delivered: u64,
    /// Acknowledgements passed on.
    pub acks_forwarded: u64,
    /// Acknowledgements for this peer.
    pub acks_received: u64,
    /// Refusals sent and passed back.
    pub refusals: u64,
    /// Dropped: no peer of the directory proved to have sent it.
    pub unauthenticated: u64,
    /// Dropped: neither size nor kind fit (truncated, oversized, foreign).
    pub misshapen: u64,
    /// Dropped: of a key epoch that is over or has not begun.
    pub stale: u64,
    /// Dropped: the integrity check failed, or no such route is known.
    pub forged: u64,
    /// Dropped: opened before.
    pub replayed: u64,
    /// Dropped: senseless inside.
    pub senseless: u64,
    /// Dropped: over this second's limit.
    pub over_limit: u64,
    /// Dropped: acknowledgements that no data paid for.
    pub flooding: u64,
    /// Dropped: no more replay tags can be remembered in this epoch.
    pub memory_full: u64,
}

impl Node {
    /// A peer that has seen no packet.
    pub fn new(settings: NodeSettings) -> Node {
        let NodeSettings { me, keys, links, epoch, limit, phase, stamping } = settings;
        let mut node = Node {
            links: Links::new(me, keys.link(), links),
            keys,
            epochs: Vec::new(),
            relay: PolicingRelay::new(limit, phase, links.len(), stamping),
            transit_times: TransitTimes::default(),
            routes: Routes::default(),
            credit: CREDIT,
            counters: Counters::default(),
            outputs: VecDeque::new(),
        };
        node.set_epoch(epoch);
        node
    }

    /// It is `epoch` now: the keys of this one, of the one before and of the next are valid. Others are forgotten
    /// with the replay tags that belong to them.
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

    /// The memory of an epoch whose key is valid.
    pub fn tags(&mut self, epoch: u32) -> Option<&mut ReplayTags> {
        self.epochs.iter_mut().find(|key| key.number == epoch).map(|key| &mut key.tags)
    }

    /// The epochs whose keys are valid.
    pub fn epochs(&self) -> Vec<u32> {
        self.epochs.iter().map(|key| key.number).collect()
    }

    /// The rate it offers to sources, bytes/s; zero if it offers none.
    pub fn stamp(&self) -> f32 {
        self.relay.stamp()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A datagram of this peer as it goes to `to`; none if there is no such peer.
    pub fn seal(&mut self, to: Peer, datagram: &[u8]) -> Option<Vec<u8>> {
        self.links.seal(to, datagram)
    }

    /// Something arrives. What it asks for is an output if it is sound and within the limits; otherwise it is dropped
    /// and counted. What is to be forwarded is sealed already.
    pub fn handle(&mut self, now: Time, wire: &[u8]) {
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

    /// Limits come before the costly opening: whoever floods pays for it with others' room, not with this
    /// machine's processor.
    fn within(&mut self, now: Time, class: Class) -> Result<(), Dropped> {
        match class {
            Class::Data | Class::Cell => {
                self.relay.arrive(now, f64::from(PACKET)).then_some(()).ok_or(Dropped::OverLimit)
            }
            _ => {
                self.credit = self.credit.checked_sub(1).ok_or(Dropped::Flooding)?;
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
        self.within(now, class)?;
        let current = |key: &&mut EpochKey| key.number % 16 == u32::from(epoch);
        let key = self.epochs.iter_mut().find(current).ok_or(Dropped::Stale)?;
        if key.tags.full() {
            return Err(Dropped::Opening(OpenError::Full));
        }
        let memory = Memory {
            stamp: self.relay.stamp(),
            tags: &mut key.tags,
            transit_times: &mut self.transit_times,
            now,
        };
        let (opened, left): (Opened, Left) =
            onion::open(datagram, &key.secret, memory).map_err(Dropped::Opening)?;
        if let Some((seed, onward)) = left {
            self.routes.establish(now, from, &seed, onward);
        }
        self.count(&opened, class == Class::Data);
        Ok(opened)
    }

    fn cell(&mut self, now: Time, from: Peer, class: Class, datagram: &[u8]) -> Result<Opened, Dropped> {
        self.routes.check(now, from, datagram).map_err(Dropped::Opening)?;
        if let Err(dropped) = self.within(now, class) {
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
        self.count(&opened, class == Class::Cell);
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

    fn count(&mut self, opened: &Opened, data: bool) {
        let counters = &mut self.counters;
        match opened {
            Opened::Forward { .. } if data => counters.forwarded += 1,
            Opened::Forward { .. } => counters.acks_forwarded += 1,
            Opened::Data { .. } | Opened::Message { .. } | Opened::Cell { .. } if data => {
                counters.delivered += 1;
                return;
            }
            _ => counters.acks_received += 1,
        }
        // Data that was passed on pays for its acknowledgement, and one that arrived is no flood.
        if data || !matches!(opened, Opened::Forward { .. }) {
            self.credit = (self.credit + 1).min(CREDIT);
        }
    }
}

impl Machine for Node {
    type Output = Opened;

    fn poll(&mut self) -> Option<Opened> {
        self.outputs.pop_front()
    }

    /// Relays do nothing of their own accord.
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
