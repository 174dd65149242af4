//! Admission: peer numbers, guests (connected, not admitted) and the queue of joins.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use tidegate_control::shares::network;
use tidegate_control::units::{Span, Time};

use crate::Peer;
use crate::bucket::Bucket;
use crate::message::{Contact, Join, Refusal, VERSION};

/// How long a join waits for capacity before it is refused.
const WAIT: Span = Span::from_secs(4);
/// Joins per second from one host, and the largest burst.
const JOINS_PER_S: f64 = 2.0;
const JOINS_AT_ONCE: f64 = 64.0;
/// Number of hosts with a rate limit in memory.
const HOSTS: usize = 4096;
/// A guest must send its join within this time.
const JOIN_TIMEOUT: Span = Span::from_secs(5);
/// Of this many last numbers, a network has at most as many guests as it leaves numbers for others.
const LAST: usize = 16;

/// Decides which peers may connect and join.
pub(super) struct Admission {
    /// Maximum number of viewers.
    viewers: usize,
    token: [u8; 16],
    /// Time of connection and contact of the connected peers that are not admitted.
    guests: BTreeMap<Peer, (Time, Contact)>,
    /// Joins that wait for capacity, in order of arrival.
    waiting: VecDeque<(Time, Peer, Join)>,
    /// Unused numbers. The queue keeps a freed number unused as long as possible.
    free: VecDeque<Peer>,
    joins: BTreeMap<IpAddr, Bucket>,
}

/// The answer to a join.
pub(super) enum JoinAnswer {
    /// The join waits for capacity.
    Queued,
    Refused(Refusal),
    /// The sender is not a guest, or already waits.
    Unexpected,
}

/// A join at the head of the queue.
pub(super) struct Candidate {
    pub(super) peer: Peer,
    pub(super) join: Join,
    pub(super) contact: Contact,
    /// Whether it waited as long as it may.
    pub(super) expired: bool,
}

impl Admission {
    /// Manages the numbers from 1 to below `peers`.
    pub(super) fn new(peers: usize, viewers: usize, token: [u8; 16]) -> Admission {
        Admission {
            viewers,
            token,
            guests: BTreeMap::new(),
            waiting: VecDeque::new(),
            free: (1..peers as Peer).collect(),
            joins: BTreeMap::new(),
        }
    }

    /// Makes a new connection a guest and returns its number.
    pub(super) fn connect(&mut self, now: Time, contact: Contact) -> Result<Peer, Refusal> {
        if self.joins.len() >= HOSTS {
            // A full bucket equals a new one, so its host can be forgotten.
            self.joins.retain(|_, bucket| !bucket.take(now, JOINS_AT_ONCE, JOINS_PER_S, JOINS_AT_ONCE));
        }
        if self.joins.len() >= HOSTS {
            return Err(Refusal::TooOften);
        }
        let (of, host) = network(contact.address.ip());
        let bucket = self.joins.entry(host).or_insert(Bucket::FULL);
        if !bucket.take(now, 1.0, JOINS_PER_S, JOINS_AT_ONCE.max(self.viewers as f64)) {
            return Err(Refusal::TooOften);
        }
        if self.free.len() <= LAST && self.guests_of(of) >= self.free.len() {
            return Err(Refusal::TooOften);
        }
        let peer = self.free.pop_front().ok_or(Refusal::Full)?;
        self.guests.insert(peer, (now, contact));
        Ok(peer)
    }

    fn guests_of(&self, of: IpAddr) -> usize {
        self.guests.values().filter(|(_, contact)| network(contact.address.ip()).0 == of).count()
    }

    /// Checks a join and queues it. `has_room` says whether a viewer with this address could get a place.
    pub(super) fn join(
        &mut self,
        now: Time,
        from: Peer,
        join: Join,
        has_room: impl FnOnce(IpAddr) -> bool,
    ) -> JoinAnswer {
        let Some((_, contact)) = self.guests.get(&from).filter(|_| !self.is_waiting(from)) else {
            return JoinAnswer::Unexpected;
        };
        // Compares all bytes, so that the time does not reveal the first difference.
        let difference = join.token.iter().zip(&self.token).fold(0, |all, (a, b)| all | (a ^ b));
        if join.version != VERSION {
            JoinAnswer::Refused(Refusal::Version)
        } else if difference != 0 && self.token != [0; 16] {
            JoinAnswer::Refused(Refusal::Token)
        } else if !has_room(contact.address.ip()) {
            JoinAnswer::Refused(Refusal::Full)
        } else {
            self.waiting.push_back((now, from, join));
            JoinAnswer::Queued
        }
    }

    /// The first waiting join.
    pub(super) fn first(&self, now: Time) -> Option<Candidate> {
        let (since, peer, join) = self.waiting.front()?.clone();
        let (_, contact) = *self.guests.get(&peer).expect("a waiting peer is a guest");
        Some(Candidate { peer, join, contact, expired: now.since(since) >= WAIT })
    }

    /// Removes an admitted peer from queue and guests; it keeps its number.
    pub(super) fn admit(&mut self, peer: Peer) {
        self.waiting.retain(|(_, waiting, _)| *waiting != peer);
        self.guests.remove(&peer);
    }

    /// Removes a peer that leaves before it is admitted. Does nothing for a viewer.
    pub(super) fn drop_guest(&mut self, peer: Peer) {
        self.waiting.retain(|(_, waiting, _)| *waiting != peer);
        if self.guests.remove(&peer).is_some() {
            self.free.push_back(peer);
        }
    }

    /// Frees the number of a removed viewer.
    pub(super) fn free(&mut self, peer: Peer) {
        self.free.push_back(peer);
    }

    /// The guests that did not send a join in time.
    pub(super) fn silent_guests(&self, now: Time) -> Vec<Peer> {
        let late = self
            .guests
            .iter()
            .filter(|(peer, (since, _))| now.since(*since) > JOIN_TIMEOUT && !self.is_waiting(**peer));
        late.map(|(peer, _)| *peer).collect()
    }

    fn is_waiting(&self, peer: Peer) -> bool {
        self.waiting.iter().any(|(_, waiting, _)| *waiting == peer)
    }
}
