//! State of a run's measurements: their machines and pending events.

use std::collections::VecDeque;

use slab::Slab;
use tidegate_control::flashflow::Percent;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::crypto::ntor::RelaySecret;
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::{self, Order, Peer, Timeouts};
use tidegate_proto::flashflow::relay::{self, Target};
use tidegate_proto::flashflow::{Fingerprint, Hold, MeasurerId, Open, Pace, Params};

use super::circuit::{self, Circuit};
use super::member::Member;
use crate::plan::{HostPlan, MeasurementPlan, Role};
use crate::world::connections::EndId;

/// The coordinator's certificate.
pub(in crate::world) const COORDINATOR: Fingerprint = [0xff; 32];

/// A measurer's certificate.
pub(in crate::world) fn measurer_fingerprint(host: u32) -> Fingerprint {
    let mut fingerprint = [0; 32];
    fingerprint[..4].copy_from_slice(&host.to_be_bytes());
    fingerprint
}

/// All measurements of a run.
pub(in crate::world) struct Measurement {
    pub(super) sessions: Vec<Session>,
    /// Measurement circuits, by the number in their connections' ends.
    pub(super) circuits: Vec<Circuit>,
    pub(super) due: Slab<Due>,
    pub(super) keys: Random,
    pub(super) scratch: Vec<u8>,
}

/// A pending event of the roles; the first number is the session's.
pub(in crate::world) enum Due {
    /// The coordinator connects to everyone.
    Begin(usize),
    Connected(usize, Peer),
    /// A message to or from the coordinator of a session.
    Said(usize, Peer, bool, Box<[u8; CELL]>),
    /// The peer closed its connection to the coordinator.
    Lost(usize, Peer),
    /// A member learns that the relay closed a circuit.
    CircuitGone(usize, usize),
    Wake(usize, TimerOwner),
    /// A second is over.
    Second,
}

#[derive(Clone, Copy)]
pub(in crate::world) enum TimerOwner {
    Coordinator,
    Relay,
    Member(usize),
    Load(usize),
}

/// A requester of a relay's permission to forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::world) enum Requester {
    Echo(u32),
    /// A channel, or an exit's connection to a server.
    Reader(EndId),
}

/// One measurement of a relay.
pub(in crate::world) struct Session {
    pub plan: MeasurementPlan,
    pub secret: RelaySecret,
    pub coordination: Option<coordinator::Measurement>,
    pub target: Target,
    pub pace: Pace<Requester>,
    pub cell_cost: Span,
    pub begun: Option<Time>,
    pub hold: Option<Hold>,
    pub members: Vec<Member>,
    pub circuits: VecDeque<u32>,
    /// Times of the wake-up events of the coordinator and the relay.
    pub wakes: [Time; 2],
    /// Measurement bytes forwarded in this second.
    pub echoed: u64,
}

impl Session {
    fn new(plan: &MeasurementPlan, hosts: &[HostPlan], keys: &mut Random) -> Session {
        let Role::Relay(limits) = &hosts[plan.relay as usize].role else {
            panic!("what is measured is a relay");
        };
        let mut identity = [0; 20];
        identity[..4].copy_from_slice(&plan.relay.to_be_bytes());
        let config = relay::Config {
            allowed: true,
            coordinators: vec![COORDINATOR],
            background: percent(plan),
            max_duration: Span::from_secs(u64::from(plan.seconds) + 15),
            ..relay::Config::default()
        };
        // The pace replaces the token bucket while the relay is measured.
        let limit = limits.bucket.map_or(Rate::UNLIMITED, |bucket| Rate(bucket.rate_bytes_per_s * 8));
        let members = plan.team.iter().filter(|(.., sockets)| *sockets > 0);
        Session {
            plan: plan.clone(),
            secret: RelaySecret::new(identity, circuit::bytes(keys)),
            coordination: None,
            target: Target::new(config),
            pace: if plan.holds { Pace::without_burst(limit) } else { Pace::new(limit) },
            cell_cost: limits.cell_cost,
            begun: None,
            hold: None,
            members: members.map(|(host, rate, sockets)| Member::new(*host, *rate, *sockets)).collect(),
            circuits: VecDeque::new(),
            wakes: [Time::NEVER; 2],
            echoed: 0,
        }
    }

    /// The order for the coordinator.
    pub(crate) fn order(&self, number: usize) -> Order {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
        let team = || self.plan.team.iter().filter(|(.., sockets)| *sockets > 0);
        let share = |(_, rate, sockets): &(u32, Rate, u16)| Open {
            token,
            seconds: self.plan.seconds,
            sockets: *sockets,
            rate: rate.0,
            check_one_in: self.plan.check_one_in,
            address: "127.0.0.1:9001".parse().expect("an address"),
            fingerprint: [0; 32],
            relay: *self.secret.public(),
        };
        let id = |(host, ..): &(u32, Rate, u16)| MeasurerId {
            fingerprint: measurer_fingerprint(*host),
            address: None,
        };
        let (seconds, background) = (self.plan.seconds, self.plan.background_percent);
        Order {
            params: Params { token, seconds, background, measurers: team().map(id).collect() },
            shares: team().map(share).collect(),
            ratio: percent(&self.plan),
            timeouts: Timeouts::default(),
        }
    }

    /// Processor time that cells cost the relay now.
    pub(crate) fn cost(&self, now: Time, cells: u64) -> Span {
        let second = self.begun.map_or(0.0, |begun| now.since(begun).as_secs_f64().floor());
        let slow = self.plan.slow;
        let slow = (slow * (second + 1.0)).floor() > (slow * second).floor();
        self.cell_cost * (cells * if slow { 2 } else { 1 })
    }

    /// The host of one of the coordinator's peers.
    pub(crate) fn host(&self, peer: Peer) -> u32 {
        match peer {
            Peer::Relay => self.plan.relay,
            Peer::Measurer(member) => self.members[member].host,
        }
    }
}

fn percent(plan: &MeasurementPlan) -> Percent {
    Percent::new(plan.background_percent).expect("the lab checks that it is below 100")
}

impl Measurement {
    /// The measurements of a plan, before they begin.
    pub(crate) fn new(measurements: &[MeasurementPlan], hosts: &[HostPlan], seed: Seed) -> Measurement {
        let mut keys = seed.fork("keys").random();
        let sessions = measurements.iter().map(|plan| Session::new(plan, hosts, &mut keys)).collect();
        Measurement { sessions, circuits: Vec::new(), due: Slab::new(), keys, scratch: Vec::new() }
    }
}
