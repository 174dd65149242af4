//! The state of users, their circuits and their transfers.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::markov::Walk;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{RelayId, StreamId};
use tidegate_proto::node::{CircuitKey, StreamKey};
use tidegate_proto::paths::{BuildTimeout, BuildTimes, PathSelection, Selector};

use crate::division::{Division, Local};
use crate::plan::{Plan, Route, System};
use crate::world::connections::EndId;

use super::contest::Contest;
use super::requests::{TransferState, Transfers};

/// All users, their circuits and their transfers.
pub(in crate::world) struct Applications {
    pub(super) seed: Seed,
    pub(super) users: Local<UserState>,
    /// How paths are chosen: by the system's clients, and by the others if there are some.
    pub(super) choices: Vec<Choice>,
    /// The guards that onion services keep, by their host.
    pub(super) service_guards: BTreeMap<u32, Option<RelayId>>,
    pub(super) transfers: Transfers,
    /// Per host: the circuits that its users built.
    pub(super) circuits: Local<BTreeMap<CircuitKey, OwnCircuit>>,
    /// Per host: the transfer that a client's stream carries.
    pub(super) streams: Local<BTreeMap<StreamKey, u32>>,
    /// The number of the next circuit; processes number theirs in turn.
    pub(super) next_circuit: u32,
    /// Cells that exits have packaged for clients, to pick those that are followed.
    pub(super) packaged: u64,
    pub(super) cells_delivered: u64,
    /// By user: the circuits that its client compares now.
    pub(super) contests: BTreeMap<u32, Contest>,
}

/// How clients of a kind choose paths, and how long they wait for circuits.
pub(super) struct Choice {
    /// Draws paths, if any user wants some.
    pub selector: Option<Selector>,
    pub build_timeout: BuildTimeout,
    /// How long circuits took to build, by [`UserState::distance`]: of many users together, because in a run of minutes
    /// no user alone builds the hundred that a real client learns from.
    pub build_times: BTreeMap<u64, BuildTimes>,
}

pub(super) struct UserState {
    /// Index of its kind's choice.
    pub choice: usize,
    /// Its distance from the relays, in steps of [`STEP`]. Circuits of users at one distance take equally long to
    /// build.
    pub distance: u64,
    pub random: Random,
    pub guard: Option<RelayId>,
    /// Of second circuits that are linked with others.
    pub second_guard: Option<RelayId>,
    /// The circuit for new streams.
    pub circuit: Option<CircuitKey>,
    /// Transfers that wait for it to be built.
    pub waiting: Vec<u32>,
    /// The transfer after which a user who fetches one thing at a time pauses.
    pub fetching: Option<u32>,
    /// A user with a timetable: the next turn is for a new circuit.
    pub renews: bool,
    /// Where a Markov user's chain of streams is; none before it has begun.
    pub flow: Option<Walk>,
}

#[derive(Clone, Copy)]
pub(super) struct OwnCircuit {
    pub user: u32,
    pub number: u32,
    pub begun: Time,
    pub path: [u32; 3],
    pub built: bool,
    /// If it is not built by then, the client uses another.
    pub deadline: Time,
    /// Carries nothing until this circuit switches to it.
    pub standby_for: Option<CircuitKey>,
    /// It is the second leg of this circuit.
    pub leg_of: Option<CircuitKey>,
    pub legs: Legs,
    /// Does not get new streams and closes with its last one.
    pub retired: bool,
}

/// Whether a circuit's streams wait for other circuits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Legs {
    /// They wait for nothing but the circuit.
    Ready,
    /// The two are being built.
    Building(CircuitKey),
    /// They are being linked.
    Linking,
    /// The client compares the circuit with others.
    Comparing,
}

/// Clients learn the build timeout together if their round trips to relays differ by less.
const STEP: Span = Span::from_millis(50);

/// By location with clients: weighted mean of the round trip to the relays, in steps.
fn distances(plan: &Plan) -> BTreeMap<u32, u64> {
    let round_trip = |place: u32| {
        let (mut sum, mut weights) = (0.0, 0.0);
        for relay in &plan.directory.relays {
            let at = plan.hosts[relay.id.0 as usize].location;
            let delay = plan.paths.get(place, at).delay + plan.paths.get(at, place).delay;
            sum += relay.weight * delay.as_secs_f64();
            weights += relay.weight;
        }
        if weights > 0.0 { sum / weights } else { 0.0 }
    };
    let places: BTreeSet<u32> =
        plan.users.iter().map(|user| plan.hosts[user.host as usize].location).collect();
    places.into_iter().map(|place| (place, (round_trip(place) / STEP.as_secs_f64()) as u64)).collect()
}

impl Applications {
    /// `others`: hosts of the system's other clients.
    pub(crate) fn new(
        plan: &Plan,
        system: &System,
        others: &BTreeSet<u32>,
        seed: Seed,
        (division, process): (&Division, u32),
    ) -> Applications {
        let distances = distances(plan);
        let state = |index: u32| UserState {
            choice: usize::from(others.contains(&plan.users[index as usize].host)),
            distance: distances[&plan.hosts[plan.users[index as usize].host as usize].location],
            random: seed.fork_index(index.into()).random(),
            guard: None,
            second_guard: None,
            circuit: None,
            waiting: Vec::new(),
            fetching: None,
            renews: false,
            flow: None,
        };
        // A selector indexes all relays: not worth it if every path is pinned.
        let drawn = plan.users.iter().any(|user| matches!(user.route, Route::Drawn { .. }));
        let choice = |paths: &PathSelection| {
            let selector =
                || Selector::new(&plan.directory, paths).expect("the lab checks who can be chosen");
            let (selector, build_timeout) = (drawn.then(selector), paths.build_timeout);
            Choice { selector, build_timeout, build_times: BTreeMap::new() }
        };
        let other_paths = system.other_clients.as_ref().map(|others| &others.paths);
        Applications {
            choices: std::iter::once(&system.paths).chain(other_paths).map(choice).collect(),
            service_guards: BTreeMap::new(),
            seed,
            users: division.users.local(process, state),
            transfers: Transfers::new(process, division.processes),
            packaged: 0,
            cells_delivered: 0,
            contests: BTreeMap::new(),
            circuits: division.hosts.local(process, |_| BTreeMap::new()),
            streams: division.hosts.local(process, |_| BTreeMap::new()),
            next_circuit: process,
        }
    }

    /// How a user's kind of clients chooses paths.
    pub(super) fn choice(&mut self, user: u32) -> &mut Choice {
        &mut self.choices[self.users[user as usize].choice]
    }

    /// Build times of all users that are as far from the relays as this one.
    pub(super) fn build_times(&mut self, user: u32) -> &mut BuildTimes {
        let UserState { choice, distance, .. } = self.users[user as usize];
        self.choices[choice].build_times.entry(distance).or_default()
    }

    /// A transfer of a client of another process has begun.
    pub(crate) fn learn(&mut self, number: u32, transfer: TransferState) {
        self.transfers.learn(number, transfer);
    }

    /// A transfer of a client of another process is over.
    pub(crate) fn over(&mut self, number: u32) {
        self.transfers.over(number);
    }

    /// An exit of another process has opened the connection for a transfer.
    pub(crate) fn exit_connected(&mut self, transfer: u32, exit: EndId) {
        if let Some(transfer) = self.transfers.get(transfer) {
            transfer.exit = Some(exit);
        }
    }

    /// The host of a transfer's client, and of its server; `None` once it has ended at both.
    pub(crate) fn hosts_of(&self, plan: &Plan, transfer: u32) -> Option<[u32; 2]> {
        let transfer = self.transfers.look(transfer)?;
        Some([plan.users[transfer.user as usize].host, transfer.server])
    }

    /// Data cells that arrived at clients.
    pub(crate) fn cells_delivered(&self) -> u64 {
        self.cells_delivered
    }

    /// Whether a circuit carries streams.
    pub(super) fn has_streams(&self, host: u32, circuit: CircuitKey) -> bool {
        let from = StreamKey { circuit, stream: StreamId(0) };
        let to = StreamKey { circuit, stream: StreamId(u16::MAX) };
        self.streams[host as usize].range(from..=to).next().is_some()
    }
}
