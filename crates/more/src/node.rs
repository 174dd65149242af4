//! The relay's side of one peer: opens datagrams, forwards what its limit allows, counts everything.

use std::collections::BTreeSet;

use tidegate_control::paths::explicit::FairShareParameters;
use tidegate_control::paths::relay::Relay;
use tidegate_control::units::{Span, Time};
use x25519_dalek::{PublicKey, StaticSecret};

use crate::onion::{self, Class, Memory, OpenError, Opened, PACKET, Stays};

/// One peer's keys, limit and memory.
pub struct Node {
    keys: Vec<EpochKey>,
    relay: Relay,
    stays: Stays,
    /// Acknowledgements it still passes for free; each data datagram passed adds one.
    credit: u32,
    counters: Counters,
}

/// Most acknowledgements that can be passed beyond those that data datagrams paid for.
const CREDIT: u32 = 4096;
/// Most replay tags kept per key: at 400 kB/s, two hours.
const TAGS: usize = 2_000_000;
/// Keys in use: the current epoch's and the one before.
const EPOCHS: usize = 2;

struct EpochKey {
    secret: StaticSecret,
    /// Tags of opened packets, which must not be opened again under this key.
    tags: BTreeSet<[u8; 16]>,
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
    /// Dropped: neither size nor kind fit (truncated, oversized, foreign).
    pub misshapen: u64,
    /// Dropped: the integrity check failed.
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
    /// A peer that forwards `limit` bytes of frames per second and offers rates to `peers` sources if
    /// `stamping` says how. Its seconds begin at `phase`.
    pub fn new(
        secret: [u8; 32],
        limit: f64,
        phase: Span,
        peers: usize,
        stamping: Option<FairShareParameters>,
    ) -> Node {
        let mut node = Node {
            keys: Vec::new(),
            relay: Relay::new(limit, phase, peers, stamping),
            stays: Stays::default(),
            credit: CREDIT,
            counters: Counters::default(),
        };
        node.rotate(secret);
        node
    }

    /// A new key epoch begins: the key before stays valid for packets on their way, older ones are
    /// forgotten with the replay tags that belong to them.
    pub fn rotate(&mut self, secret: [u8; 32]) {
        self.keys.insert(0, EpochKey { secret: StaticSecret::from(secret), tags: BTreeSet::new() });
        self.keys.truncate(EPOCHS);
    }

    /// The public key of the current epoch.
    pub fn key(&self) -> [u8; 32] {
        PublicKey::from(&self.keys[0].secret).to_bytes()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A datagram arrives. Gives what it asks for, if it is sound and within the limits; otherwise it is
    /// dropped and counted.
    pub fn handle(&mut self, now: Time, datagram: &[u8]) -> Option<Opened> {
        let Some(class) = onion::class(datagram) else {
            self.counters.misshapen += 1;
            return None;
        };
        // Limits come before the costly opening: whoever floods pays for it with others' room, not with
        // this machine's processor.
        let within = match class {
            Class::Data => self.relay.arrive(now, f64::from(PACKET)),
            Class::Ack | Class::Reply => self.credit > 0,
        };
        if !within {
            let counter = match class {
                Class::Data => &mut self.counters.over_limit,
                Class::Ack | Class::Reply => &mut self.counters.flooding,
            };
            *counter += 1;
            return None;
        }
        if class != Class::Data {
            self.credit -= 1;
        }
        let stamp = self.relay.stamp();
        let stays = &mut self.stays;
        let mut result = Err(OpenError::Forged);
        for key in &mut self.keys {
            if key.tags.len() >= TAGS {
                self.counters.memory_full += 1;
                return None;
            }
            let memory = Memory { stamp, tags: &mut key.tags, stays, now };
            result = onion::open(datagram, &key.secret, memory);
            if !matches!(result, Err(OpenError::Forged)) {
                break;
            }
        }
        match &result {
            Ok(Opened::Forward { .. }) if class == Class::Data => {
                self.counters.forwarded += 1;
                self.credit = (self.credit + 1).min(CREDIT);
            }
            Ok(Opened::Forward { .. }) => self.counters.acks_forwarded += 1,
            Ok(Opened::Data { .. }) => self.counters.delivered += 1,
            Ok(Opened::Letter { .. }) if class == Class::Data => self.counters.delivered += 1,
            Ok(Opened::Ack { .. } | Opened::Letter { .. }) => {
                self.counters.acks_received += 1;
                self.credit = (self.credit + 1).min(CREDIT);
            }
            Err(OpenError::Shape) => self.counters.misshapen += 1,
            Err(OpenError::Forged) => self.counters.forged += 1,
            Err(OpenError::Replayed) => self.counters.replayed += 1,
            Err(OpenError::Inside) => self.counters.senseless += 1,
        }
        result.ok()
    }
}
