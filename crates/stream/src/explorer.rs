//! Exploration (thesis section 3.2.3): packets over random chains of viewers, whose acknowledgements tell what
//! viewers carry and how far they are from each other.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidegate_control::paths::{Feedback, Memo};
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};

use crate::latency::Latencies;
use crate::member::Member;
use crate::packet::{Explore, MAX_CHAIN, WIRE};
use crate::{Peer, SERVER};

/// How the server explores.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The share of the server's uplink for it.
    pub share: f64,
    /// Viewers in one chain.
    pub hops: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { share: 0.04, hops: 3 }
    }
}

/// Packets on their way at once.
const MOST: usize = 4096;
/// The shortest timeout: a viewer may have to connect to the next.
const SHORTEST: Span = Span::from_millis(1500);
/// How many contacts a viewer is given before chains use those it has.
const CIRCLE: usize = 8;
/// How often a chain uses a contact that its viewer does not have.
const NEW_CONTACT: f64 = 0.01;

/// Exploration packets on their way.
#[derive(Debug)]
pub struct Explorer {
    settings: Settings,
    /// Bytes that may be sent.
    level: f64,
    at: Time,
    next: u32,
    flights: BTreeMap<u32, Flight>,
    deadlines: BTreeMap<(Time, u32), ()>,
    /// What happened.
    pub counters: Counters,
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent.
    pub sent: u64,
    /// Acknowledged in time.
    pub acked: u64,
    /// Not acknowledged in time.
    pub lost: u64,
    /// Acknowledgements that fit no packet.
    pub strange: u64,
}

#[derive(Debug)]
struct Flight {
    sent: Time,
    deadline: Time,
    /// Viewer, when it had joined (numbers are used again), memo.
    chain: Vec<(Peer, Time, Memo)>,
}

/// Viewers by number.
pub type Members = [Option<Member>];

impl Explorer {
    /// Nothing is explored yet.
    pub fn new(settings: Settings) -> Explorer {
        Explorer {
            settings: Settings { hops: settings.hops.clamp(1, MAX_CHAIN), ..settings },
            level: 0.0,
            at: Time::ZERO,
            next: 0,
            flights: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// A packet with `cargo`, if its turn has come at an uplink of `uplink` bit/s. Gives the chain's pairs that
    /// must meet first, and the packet.
    pub fn send(
        &mut self,
        now: Time,
        uplink: f64,
        cargo: &Bytes,
        all: &[Peer],
        members: &mut Members,
        random: &mut Random,
    ) -> Option<Explore> {
        let bytes = (cargo.len() + WIRE) as f64;
        let per_s = uplink / 8.0 * self.settings.share;
        self.level =
            (self.level + now.since(self.at).as_secs_f64() * per_s).min(4.0 * bytes.max(per_s / 20.0));
        self.at = self.at.max(now);
        if self.level < bytes || all.len() < 2 || self.flights.len() >= MOST {
            return None;
        }
        self.level -= bytes;
        let chain = draw(self.settings.hops, all, members, random)?;
        let memo = |peer: &Peer| members[usize::from(*peer)].as_ref().map(|m| (*peer, m.joined, m.memo()));
        let noted: Vec<(Peer, Time, Memo)> = chain.iter().filter_map(memo).collect();
        self.next = self.next.wrapping_add(1);
        let id = self.next;
        let deadline = now + SHORTEST;
        self.flights.insert(id, Flight { sent: now, deadline, chain: noted });
        self.deadlines.insert((deadline, id), ());
        self.counters.sent += 1;
        Some(Explore { id, at: 0, chain, held: 0, stamps: Vec::new(), cargo: cargo.clone() })
    }

    /// The last viewer of a chain says that the packet arrived.
    #[expect(
        clippy::too_many_arguments,
        reason = "an acknowledgement and the three things that learn from it"
    )]
    pub fn acked(
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
        // The ways from the server and back are known from pings; what was waited for is no latency.
        let all = now.since(flight.sent).0 as f64 / 1e3;
        let path: Vec<Peer> = flight.chain.iter().map(|(peer, ..)| *peer).collect();
        let (first, last) = (path[0], path[path.len() - 1]);
        let ends = f64::from(latencies.between(SERVER, first)) + f64::from(latencies.between(last, SERVER));
        let inner = all - ends - f64::from(held).min(all);
        if path.len() > 1 && inner > 0.0 {
            latencies.measured_along(&path, inner, random);
        }
    }

    /// Packets that are not acknowledged in time: any viewer of their chain may be why.
    pub fn expire(&mut self, now: Time, members: &mut Members) {
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
    members[usize::from(peer)].as_mut().filter(|member| member.joined == joined)
}

/// A chain of different viewers that forward, each of which mostly knows the next.
fn draw(hops: usize, all: &[Peer], members: &Members, random: &mut Random) -> Option<Vec<Peer>> {
    let forwards = |peer: Peer| members[usize::from(peer)].as_ref().is_some_and(|member| member.claim > 0.0);
    let mut chain: Vec<Peer> = vec![all[random.below(all.len())]];
    while chain.len() < hops.min(all.len()) {
        let last = chain[chain.len() - 1];
        let met = &members[usize::from(last)].as_ref()?.met;
        let new_contact = met.len() < CIRCLE || random.chance(NEW_CONTACT);
        let pool = if new_contact { all } else { &met[..] };
        let next = pool[random.below(pool.len())];
        if !forwards(next) || chain.contains(&next) {
            // A short chain is as good.
            break;
        }
        chain.push(next);
    }
    (chain.len() > 1 && forwards(chain[0])).then_some(chain)
}
