//! The recorder that turns the observations of a run into metrics.

use std::collections::BTreeMap;

use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_sim::observe::{
    Circuit, Host, HostTotals, MoveTimes, Observation, Recorder, RelaySample, Transfer, Waits,
};
use tidegate_sim::plan::{HostPlan, Role, Route, System};
use tidegate_sim::world::other_clients;

use super::histogram::Histogram;
use super::known::RelayAbout;
use super::measured::{Anatomy, RelayRow, UserRow};
use super::series::Series;
use super::transfers::{FollowedTransfer, OpenedCircuit, TransferPlace, Transfers};
use crate::network::Network;

/// Largest number of users that have a curve each; more users share one curve per class.
const MAX_CURVES: usize = 12;
/// Approximate maximum number of bins of a curve.
const BINS: u64 = 500;

/// State of a circuit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CircuitState {
    user: u32,
    path: [u32; 3],
    begun: Time,
    built: Option<Time>,
    outstanding: u64,
    followed: FollowedTransfer,
}

/// The recorder: takes observations and returns [`super::Metrics`].
pub(crate) struct Fold<'a> {
    pub(super) network: &'a Network,
    pub(super) system: &'a System,
    pub(super) warmup: Time,
    pub(super) measured_s: f64,
    pub(super) circuits: BTreeMap<u32, CircuitState>,
    pub(super) users: Vec<UserRow>,
    /// Index of each user's curve.
    pub(super) curve_of: Vec<usize>,
    pub(super) relays: BTreeMap<u32, RelayRow>,
    pub(super) relayed_cells: Series,
    pub(super) latency: Histogram,
    pub(super) latency_from_departure: Histogram,
    pub(super) circuit_build: Histogram,
    /// Build times by class of the users, after the warm-up.
    pub(super) circuit_builds: BTreeMap<String, Histogram>,
    /// Durations of circuits' moves between connections.
    pub(super) switched: Histogram,
    /// Durations of the `PARTS` of these moves.
    pub(super) switched_parts: [Histogram; 5],
    pub(super) circuits_built: u64,
    pub(super) transfers: Transfers,
    pub(super) delivered: Series,
    pub(super) backlog: Series,
    pub(super) backlog_now: Vec<u64>,
    pub(super) backlog_sum: u128,
    pub(super) backlog_max: u64,
    pub(super) backlog_samples: u64,
    /// Out-of-order bytes at clients: sum over samples, maximum, number of samples.
    pub(super) out_of_order: (u64, u64, u64),
    pub(super) sample: Span,
    pub(super) next_sample: Time,
    pub(super) anatomy: [Anatomy; 3],
    pub(super) totals: HostTotals,
    pub(super) run: (u64, u64, u64),
}

impl<'a> Fold<'a> {
    /// Creates the recorder of a run of `system` on `network`; metrics cover the time after `warmup`.
    pub(crate) fn new(network: &'a Network, system: &'a System, seed: Seed, warmup: Span) -> Fold<'a> {
        let plan = &network.plan;
        let others = other_clients(plan, system, seed);
        let users = network.users.iter().zip(&plan.users).map(|(name, user)| {
            let of_others = system.other_clients.as_ref().filter(|_| others.contains(&user.host));
            let suffix = of_others.map_or(String::new(), |others| format!("-{}", others.name));
            let (name, class) = (name.clone(), user.class.clone() + &suffix);
            UserRow { name, class, ..UserRow::default() }
        });
        let users: Vec<UserRow> = users.collect();
        let (names, curve_of) = curves(&users);
        let measured_s = (Span(plan.duration.0 - warmup.0)).as_secs_f64();
        let sample = Span(plan.sample_every.0.max(1));
        // A sample covers the interval before it. The last one may come before the end of the run.
        let sampled = |span: Span| span.0 / sample.0 * sample.0;
        let sampled_s = Span(sampled(plan.duration) - sampled(warmup)).as_secs_f64();
        let relays = (0..).zip(&plan.hosts).filter(|(_, host)| matches!(host.role, Role::Relay(_)));
        let relay_row = |number: u32, host: &HostPlan| RelayRow {
            name: host.name.clone(),
            host: number,
            about: RelayAbout::of(network, number),
            link_bytes_per_s: [host.up.rate, host.down.rate]
                .map(|rate| (rate != Rate::UNLIMITED).then(|| rate.as_bytes_per_s())),
            sampled_s,
            ..RelayRow::default()
        };
        // Bins are multiples of the sample interval: for rates at least 100 ms, for backlog at least one sample.
        let step = |floor: Span| Span(floor.0.max(plan.duration.0 / BINS).div_ceil(sample.0) * sample.0);
        Fold {
            network,
            system,
            warmup: Time::ZERO + warmup,
            measured_s,
            circuits: BTreeMap::new(),
            curve_of,
            relays: relays.map(|(number, host)| (number, relay_row(number, host))).collect(),
            relayed_cells: Series::new(vec!["all relays".into()], Span::from_secs(1), plan.duration),
            latency: Histogram::default(),
            latency_from_departure: Histogram::default(),
            circuit_build: Histogram::default(),
            circuit_builds: BTreeMap::new(),
            switched: Histogram::default(),
            switched_parts: Default::default(),
            circuits_built: 0,
            transfers: Transfers::new(plan),
            delivered: Series::new(names.clone(), step(Span::from_millis(100)), plan.duration),
            backlog_now: vec![0; names.len()],
            backlog: Series::new(names, step(sample), plan.duration),
            backlog_sum: 0,
            backlog_max: 0,
            backlog_samples: 0,
            out_of_order: (0, 0, 0),
            sample,
            next_sample: Time::ZERO + sample,
            anatomy: [Anatomy::default(); 3],
            totals: HostTotals::default(),
            run: (0, 0, 0),
            users,
        }
    }

    /// Takes all samples of the backlog that are due until `now`.
    pub(super) fn sample_backlog(&mut self, now: Time) {
        while self.next_sample <= now {
            let at = self.next_sample;
            if at > self.warmup {
                let total = self.backlog_now.iter().sum::<u64>();
                self.backlog_sum += u128::from(total);
                self.backlog_max = self.backlog_max.max(total);
                self.backlog_samples += 1;
            }
            // A bin's value is the sample at its end.
            if at.0.is_multiple_of(self.backlog.step.0) {
                let bin = Time(at.0 - 1);
                for (curve, value) in self.backlog_now.iter().enumerate() {
                    self.backlog.add(bin, curve, *value);
                }
            }
            self.next_sample += self.sample;
        }
    }

    fn delivered(&mut self, now: Time, circuit: u32, bytes: u64, packaged: Time, departed: Time) {
        let Some(state) = self.circuits.get_mut(&circuit) else { return };
        state.outstanding = state.outstanding.saturating_sub(bytes);
        self.transfers.received(now, &mut state.followed, bytes);
        let user = state.user as usize;
        let curve = self.curve_of[user];
        self.backlog_now[curve] = self.backlog_now[curve].saturating_sub(bytes);
        self.delivered.add(now, curve, bytes);
        if now < self.warmup {
            return;
        }
        let (latency, from_departure) = (now.since(packaged), now.since(departed));
        self.latency.add(latency, bytes);
        self.latency_from_departure.add(from_departure, bytes);
        let row = &mut self.users[user];
        row.delivered_bytes += bytes;
        row.latency_sum += u128::from(latency.0) * u128::from(bytes);
        row.departure_sum += u128::from(from_departure.0) * u128::from(bytes);
    }

    /// Records the waits of a traced cell at a hop. Circuits of onion services, with six hops, are skipped.
    fn waited(&mut self, now: Time, circuit: Circuit, hop: u8, waits: &Waits) {
        let user = self.circuits.get(&circuit.0).map(|state| &self.network.plan.users[state.user as usize]);
        let long = user.is_some_and(|user| matches!(user.route, Route::Drawn { onion_service: true, .. }));
        if let (true, false, Some(anatomy)) =
            (now >= self.warmup, long, self.anatomy.get_mut(usize::from(hop)))
        {
            anatomy.add(waits);
        }
    }

    fn last_byte(&mut self, transfer: Transfer, took: Span) {
        let circuit = self.transfers.last_byte(transfer, took);
        if let Some(state) = circuit.and_then(|circuit| self.circuits.get_mut(&circuit)) {
            state.followed.end(transfer);
        }
    }

    /// Adds the times of a switch.
    fn switched(&mut self, parts: &MoveTimes) {
        self.switched.add(parts.total(), 1);
        let MoveTimes { detection, notice, set_up, first, drain } = *parts;
        let parts = [detection, notice, Some(set_up), first, Some(drain)];
        for (histogram, part) in self.switched_parts.iter_mut().zip(parts) {
            part.into_iter().for_each(|part| histogram.add(part, 1));
        }
    }

    fn relay_sample(&mut self, now: Time, relay: Host, sample: &RelaySample) {
        // A sample counts what came before it, so it belongs to the bin that ends at `now`.
        self.relayed_cells.add(Time(now.0.saturating_sub(1)), 0, sample.cells_processed);
        if let (true, Some(row)) = (now > self.warmup, self.relays.get_mut(&relay.0)) {
            row.add(sample);
        }
    }

    fn add_totals(&mut self, host: Host, totals: &HostTotals) {
        if let Some(relay) = self.relays.get_mut(&host.0) {
            relay.totals = *totals;
        }
        self.totals += *totals;
    }
}

/// Names of the curves, and the index of each user's curve.
fn curves(users: &[UserRow]) -> (Vec<String>, Vec<usize>) {
    if users.len() <= MAX_CURVES {
        return (users.iter().map(|user| user.name.clone()).collect(), (0..users.len()).collect());
    }
    let mut names: Vec<String> = Vec::new();
    let curve_of = users.iter().map(|user| {
        names.iter().position(|name| *name == user.class).unwrap_or_else(|| {
            names.push(user.class.clone());
            names.len() - 1
        })
    });
    let curve_of = curve_of.collect();
    (names, curve_of)
}

impl Recorder for Fold<'_> {
    fn record(&mut self, now: Time, observation: &Observation) {
        if now > self.next_sample {
            // Samples that are due before this instant must see the state before it.
            self.sample_backlog(Time(now.0 - 1));
        }
        let measured = now >= self.warmup;
        match observation {
            Observation::CircuitBegun { circuit, user, path } => {
                let path = path.map(|host| host.0);
                let state = CircuitState { user: user.0, path, begun: now, ..CircuitState::default() };
                self.circuits.insert(circuit.0, state);
            }
            Observation::CircuitBuilt { circuit, took } => {
                self.circuits_built += 1;
                if let Some(state) = self.circuits.get_mut(&circuit.0) {
                    state.built = Some(now);
                }
                if let (true, Some(state)) = (measured, self.circuits.get(&circuit.0)) {
                    let class = self.users[state.user as usize].class.clone();
                    self.circuit_builds.entry(class).or_default().add(*took, 1);
                }
                self.circuit_build.add(*took, 1);
            }
            Observation::CircuitClosed { circuit } => {
                if let Some(state) = self.circuits.remove(&circuit.0) {
                    let backlog = &mut self.backlog_now[self.curve_of[state.user as usize]];
                    *backlog = backlog.saturating_sub(state.outstanding);
                }
            }
            Observation::TransferBegun { transfer, user, circuit, bytes } if measured => {
                let state = self.circuits.entry(circuit.0).or_default();
                state.followed.begin(*transfer);
                let on = TransferPlace { user: user.0, circuit: circuit.0, path: state.path };
                self.transfers.begin(now, *transfer, on, &self.users[user.0 as usize].class, *bytes);
            }
            Observation::TransferBegun { circuit, .. } => {
                self.circuits.entry(circuit.0).or_default().followed = FollowedTransfer::Several;
            }
            Observation::StreamOpened { transfer, circuit } => {
                if let Some(state) = self.circuits.get(&circuit.0) {
                    let over = OpenedCircuit {
                        circuit: circuit.0,
                        path: state.path,
                        begun: state.begun,
                        built: state.built,
                    };
                    self.transfers.opened(now, *transfer, over);
                }
            }
            Observation::TransferConnected { transfer } => self.transfers.connected(now, *transfer),
            Observation::FirstByte { transfer, took } => self.transfers.first_byte(*transfer, *took),
            Observation::LastByte { transfer, took } => self.last_byte(*transfer, *took),
            Observation::TransferTimedOut { transfer, .. } => self.transfers.timed_out(now, *transfer),
            Observation::Injected { circuit, bytes } => {
                if let Some(state) = self.circuits.get_mut(&circuit.0) {
                    state.outstanding += bytes;
                    self.backlog_now[self.curve_of[state.user as usize]] += bytes;
                }
            }
            Observation::Delivered { circuit, bytes, packaged, departed } => {
                self.delivered(now, circuit.0, u64::from(*bytes), *packaged, *departed);
            }
            Observation::Waited { circuit, hop, waits, .. } => self.waited(now, *circuit, *hop, waits),
            Observation::Switched { parts, .. } if measured => self.switched(parts),
            Observation::RelaySample { relay, sample } => self.relay_sample(now, *relay, sample),
            Observation::OutOfOrder { bytes, .. } if now > self.warmup => {
                let (sum, most, samples) = self.out_of_order;
                self.out_of_order = (sum + bytes, most.max(*bytes), samples + 1);
            }
            Observation::HostTotals { host, totals } => self.add_totals(*host, totals),
            Observation::RunTotals { events, cells_delivered, peak_pending_events } => {
                self.run = (*events, *cells_delivered, *peak_pending_events);
            }
            _ => {}
        }
    }
}
