//! One relay and its measurement, and the machines of a run, made from the plan.

use tidegate_control::flashflow::Percent;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::crypto::ntor::RelaySecret;
use tidegate_proto::flashflow::coordinator::{self, Measurement, Order, Timeouts};
use tidegate_proto::flashflow::hold::Hold;
use tidegate_proto::flashflow::message::{Fingerprint, MeasurerId, Open, Params, Reason};
use tidegate_proto::flashflow::pace::Pace;
use tidegate_proto::flashflow::relay::{self, Target};

use super::circuit::{Circuit, Pipe};
use super::member::Member;
use super::wires::ConnId;
use super::{Plan, RelayReport};
use crate::plan::{HostPlan, LinkPlan, Path, PathTable, QueuePlan, Role};

/// Clients and exits are this far from the relay.
const BACKGROUND_DELAY: Span = Span::from_millis(20);
/// The coordinator's certificate; measurers' are numbered from 1 on.
pub(super) const COORDINATOR: Fingerprint = [0xff; 32];

/// A measurer's certificate.
pub(super) fn measurer_fingerprint(n: usize) -> Fingerprint {
    [n as u8 + 1; 32]
}

/// What a connection is for.
pub(super) enum Use {
    Circuit(Box<Circuit>),
    /// From an exit: its bytes go on through a pipe.
    FromExit(Box<Pipe>, usize),
    /// To a client: the pipe that begins at that connection ends here.
    ToClient(ConnId),
}

impl Use {
    /// The pipe through the relay that begins at the connection.
    pub fn pipe(&mut self) -> Option<&mut Pipe> {
        match self {
            Use::Circuit(circuit) => Some(&mut circuit.pipe),
            Use::FromExit(pipe, _) => Some(pipe),
            Use::ToClient(_) => None,
        }
    }
}

/// One relay and its measurement.
pub(super) struct Session {
    pub secret: RelaySecret,
    pub coordination: Measurement,
    pub target: Target,
    pub pace: Pace<ConnId>,
    pub busy_until: Time,
    pub cell_cost: Span,
    /// The share of seconds in which a cell costs twice as much.
    pub slow: f64,
    pub hold: Option<Hold>,
    pub members: Vec<Member>,
    pub circuits: Vec<ConnId>,
    pub exits: Exits,
    /// When the coordinator's, the relay's wake-up is due.
    pub wakes: [Time; 2],
    pub counted: (u64, u64),
    pub report: RelayReport,
    pub over: bool,
}

impl Session {
    /// What cells cost the relay's processor now.
    pub fn cost(&self, now: Time, cells: u64) -> Span {
        let second = self.report.measured.0.map_or(0.0, |begun| now.since(begun).as_secs_f64().floor());
        let slow = (self.slow * (second + 1.0)).floor() > (self.slow * second).floor();
        self.cell_cost * (cells * if slow { 2 } else { 1 })
    }
}

/// Who sends background.
pub(super) struct Exits {
    /// Per circuit the connection to the relay, and bytes sent that its client has not got.
    pub circuits: Vec<(ConnId, u64)>,
    pub random: Random,
    pub steps: u64,
    pub factor: f64,
    /// Bytes that wait to be sent.
    pub due: u64,
}

/// The machines: the relays', measurers', and where background comes from and goes to.
pub(super) fn hosts(plan: &Plan) -> Vec<HostPlan> {
    let unlimited = LinkPlan { rate: Rate::UNLIMITED, queue: QueuePlan::Shadow };
    let links = std::iter::once(plan.link).chain(plan.measurers.iter().map(|m| m.link)).chain([unlimited; 2]);
    links
        .enumerate()
        .map(|(n, link)| HostPlan {
            name: n.to_string(),
            role: Role::Client,
            location: n as u32,
            colocated: None,
            up: link,
            down: link,
        })
        .collect()
}

/// The paths between them.
pub(super) fn paths(plan: &Plan) -> PathTable {
    let last = plan.measurers.len() as u32;
    PathTable::from_fn(last + 3, |from, to| match from.max(to) {
        n if n > 0 && n <= last => {
            let m = &plan.measurers[n as usize - 1];
            Path { delay: m.delay, jitter: m.jitter, loss: m.loss }
        }
        _ => Path { delay: BACKGROUND_DELAY, ..Path::default() },
    })
}

/// What the coordinator of a relay's measurement is told.
pub(super) fn order(plan: &Plan, i: usize, secret: &RelaySecret) -> Order {
    let mut token = [0; 16];
    token[..8].copy_from_slice(&(i as u64 + 1).to_be_bytes());
    let team = || plan.relays[i].shares.iter().enumerate().filter(|(_, (_, sockets))| *sockets > 0);
    let share = |(_, (rate, sockets)): (usize, &(Rate, u16))| Open {
        token,
        seconds: plan.seconds,
        sockets: *sockets,
        rate: rate.0,
        check_one_in: plan.check_one_in,
        address: "127.0.0.1:9001".parse().expect("an address"),
        fingerprint: [0; 32],
        relay: *secret.public(),
    };
    let measurers =
        team().map(|(n, _)| MeasurerId { fingerprint: measurer_fingerprint(n), address: None }).collect();
    Order {
        params: Params { token, seconds: plan.seconds, background: plan.background_percent, measurers },
        shares: team().map(share).collect(),
        ratio: Percent::new(plan.background_percent).expect("below 100"),
        timeouts: Timeouts::default(),
    }
}

/// A relay and its measurement before it begins.
pub(super) fn session(plan: &Plan, i: usize, keys: &mut Random, seed: Seed) -> Session {
    let relay = &plan.relays[i];
    assert_eq!(relay.shares.len(), plan.measurers.len(), "a share for each measurer");
    let secret = RelaySecret::new([i as u8; 20], super::circuit::bytes(keys));
    let config = relay::Config {
        allowed: true,
        coordinators: vec![COORDINATOR],
        background: Percent::new(plan.background_percent).expect("below 100"),
        max_duration: Span::from_secs(u64::from(plan.seconds) + 15),
        ..relay::Config::default()
    };
    let coordination = Measurement::new(Time::ZERO, order(plan, i, &secret));
    let taking_part = relay.shares.iter().enumerate().filter(|(_, (_, sockets))| *sockets > 0);
    Session {
        secret,
        target: Target::new(config),
        pace: if relay.holds { Pace::without_burst(relay.rate) } else { Pace::new(relay.rate) },
        busy_until: Time::ZERO,
        cell_cost: relay.cell_cost,
        slow: relay.slow,
        hold: None,
        members: taking_part.map(|(host, (rate, sockets))| Member::new(host, *rate, *sockets)).collect(),
        circuits: Vec::new(),
        exits: Exits {
            circuits: Vec::new(),
            random: seed.fork("background").fork_index(i as u64).random(),
            steps: 0,
            factor: 1.0,
            due: 0,
        },
        wakes: [Time::NEVER; 2],
        counted: (0, 0),
        report: RelayReport {
            result: Err(coordinator::Failure { reason: Reason::Timeout, by: None }),
            forwarded: Vec::new(),
            measured: (None, None),
        },
        over: false,
        coordination,
    }
}
