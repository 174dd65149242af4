//! Exploration (thesis section 3.2.3): measures viewers with packets over random chains.
//!
//! The acknowledgements show the bandwidth of the viewers and the latencies between them.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidegate_control::paths::{Feedback, Memo};
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::latency::Latencies;
use crate::member::{Member, Members};
use crate::packet::{Explore, MAX_CHAIN, WIRE};
use crate::{Peer, SERVER};

/// Configuration of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct ExplorationConfig {
    /// Share of the server's uplink for exploration.
    pub share: f64,
    /// Number of viewers in a chain.
    pub hops: usize,
}

impl Default for ExplorationConfig {
    fn default() -> ExplorationConfig {
        ExplorationConfig { share: 0.04, hops: 3 }
    }
}

/// Maximum number of packets in flight.
const MOST: usize = 4096;
/// Shortest timeout. A viewer may have to connect to the next one first.
const SHORTEST: Span = Span::from_millis(1500);
/// A chain prefers known contacts once a viewer has this many.
const CIRCLE: usize = 8;
/// Probability that a chain uses a new contact anyway.
const NEW_CONTACT: f64 = 0.01;

/// Sends exploration packets and learns from their acknowledgements.
#[derive(Debug)]
pub(crate) struct Explorer {
    config: ExplorationConfig,
    /// Tokens, in bytes.
    level: f64,
    at: Time,
    next: u32,
    flights: BTreeMap<u32, Flight>,
    deadlines: BTreeMap<(Time, u32), ()>,
    /// Counters since the start.
    pub counters: Counters,
}

/// Counters of the exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sent packets.
    pub sent: u64,
    /// Packets that were acknowledged in time.
    pub acked: u64,
    /// Packets that timed out.
    pub lost: u64,
    /// Acknowledgements that match no packet.
    pub strange: u64,
}

#[derive(Debug)]
struct Flight {
    sent: Time,
    deadline: Time,
    /// Viewers with their time of joining (numbers are reused) and their controller's memo.
    chain: Vec<(Peer, Time, Memo)>,
}

impl Explorer {
    /// An explorer without packets in flight.
    pub(crate) fn new(config: ExplorationConfig) -> Explorer {
        Explorer {
            config: ExplorationConfig { hops: config.hops.clamp(1, MAX_CHAIN), ..config },
            level: 0.0,
            at: Time::ZERO,
            next: 0,
            flights: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// Makes the next packet if the budget allows one.
    ///
    /// `uplink` is the uplink in bit/s that the share refers to. Neighbours in the chain must be introduced first.
    pub(crate) fn send(
        &mut self,
        now: Time,
        uplink: f64,
        cargo: &Bytes,
        all: &[Peer],
        members: &Members,
        random: &mut Random,
    ) -> Option<Explore> {
        let bytes = (cargo.len() + WIRE) as f64;
        let per_s = uplink / 8.0 * self.config.share;
        // At most four packets, or 200 ms of the rate, leave in one burst.
        self.level =
            (self.level + now.since(self.at).as_secs_f64() * per_s).min(4.0 * bytes.max(per_s / 20.0));
        self.at = self.at.max(now);
        if self.level < bytes || all.len() < 2 || self.flights.len() >= MOST {
            return None;
        }
        self.level -= bytes;
        let chain = draw(self.config.hops, all, members, random)?;
        let memo = |peer: &Peer| members.get(*peer).map(|m| (*peer, m.joined, m.memo()));
        let noted: Vec<(Peer, Time, Memo)> = chain.iter().filter_map(memo).collect();
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        let deadline = now + SHORTEST;
        self.flights.insert(id, Flight { sent: now, deadline, chain: noted });
        self.deadlines.insert((deadline, id), ());
        self.counters.sent += 1;
        Some(Explore { id, at: 0, chain, held: 0, stamps: Vec::new(), cargo: cargo.clone() })
    }

    /// Handles the acknowledgement from the last viewer of a chain.
    #[expect(
        clippy::too_many_arguments,
        reason = "an acknowledgement and the three things that learn from it"
    )]
    pub(crate) fn acked(
        &mut self,
        now: Time,
        from: Peer,
        id: u32,
        held: u32,
        stamps: &[u32],
        members: &mut Members,
        latencies: &mut Latencies,
        random: &mut Random,
    ) {
        let ends_here = |flight: &Flight| flight.chain.last().is_some_and(|(last, ..)| *last == from);
        if !self.flights.get(&id).is_some_and(ends_here) {
            self.counters.strange += 1;
            return;
        }
        let Some(flight) = self.flights.remove(&id) else { return };
        self.deadlines.remove(&(flight.deadline, id));
        self.counters.acked += 1;
        let seconds = now.since(flight.sent).as_secs_f64();
        for (at, (peer, joined, memo)) in flight.chain.iter().enumerate() {
            if let Some(member) = known(members, *peer, *joined) {
                let stamp = stamps.get(at).filter(|stamp| **stamp > 0).map(|kbit| f64::from(*kbit) * 125.0);
                member.feedback(now, *memo, Feedback::Acked { round_trip: seconds, stamp });
            }
        }
        // Pings measure the links from and to the server. Time spent on connecting is not latency.
        let all = now.since(flight.sent).0 as f64 / 1e3;
        let path: Vec<Peer> = flight.chain.iter().map(|(peer, ..)| *peer).collect();
        let (first, last) = (path[0], path[path.len() - 1]);
        let ends = f64::from(latencies.between(SERVER, first)) + f64::from(latencies.between(last, SERVER));
        let inner = all - ends - f64::from(held).min(all);
        if path.len() > 1 && inner > 0.0 {
            latencies.measured_along(&path, inner, random);
        }
    }

    /// Handles timeouts. Every viewer of the chain gets negative feedback.
    pub(crate) fn expire(&mut self, now: Time, members: &mut Members) {
        while let Some((&(deadline, id), ())) = self.deadlines.first_key_value() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let Some(flight) = self.flights.remove(&id) else { continue };
            self.counters.lost += 1;
            for (peer, joined, memo) in flight.chain {
                if let Some(member) = known(members, peer, joined) {
                    member.feedback(now, memo, Feedback::TimedOut);
                }
            }
        }
    }
}

fn known(members: &mut Members, peer: Peer, joined: Time) -> Option<&mut Member> {
    members.get_mut(peer).filter(|member| member.joined == joined)
}

/// Draws a chain of distinct viewers that forward, most of which know the next.
fn draw(hops: usize, all: &[Peer], members: &Members, random: &mut Random) -> Option<Vec<Peer>> {
    let forwards = |peer: Peer| members.get(peer).is_some_and(|member| member.claim > 0.0);
    let mut chain: Vec<Peer> = vec![all[random.below(all.len())]];
    while chain.len() < hops.min(all.len()) {
        let last = chain[chain.len() - 1];
        let met = &members.get(last)?.met;
        let new_contact = met.len() < CIRCLE || random.chance(NEW_CONTACT);
        let pool = if new_contact { all } else { &met[..] };
        let next = pool[random.below(pool.len())];
        if !forwards(next) || chain.contains(&next) {
            // A shorter chain measures as well.
            break;
        }
        chain.push(next);
    }
    (chain.len() > 1 && forwards(chain[0])).then_some(chain)
}
