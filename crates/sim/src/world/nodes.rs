//! The nodes of the overlay: the protocol machines on hosts, and their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{Cell, Command, RelayId};
use tidegate_proto::client::Client;
use tidegate_proto::control::{Clock, Control, Spread, StreamFlow, Totals};
use tidegate_proto::ending::Endings;
use tidegate_proto::links::{self, ChannelId};
use tidegate_proto::node::{Node, StreamKey};
use tidegate_proto::onion::{Clear, Onion};
use tidegate_proto::relay::Relay;
use tidegate_proto::transport::Transport;

use super::connections::{CellRun, EndId};
use super::gate::Gate;
use crate::byzantine::Byzantine;
use crate::division::{Division, Local};
use crate::event_loop::Timer;
use crate::observe::{Host, RelaySample};
use crate::plan::{Plan, Role, Route, System, UserPlan};

/// A node of the overlay in simulation.
pub(super) type SimNode = dyn Node<Clear>;

/// All hosts of a process.
pub(super) struct Nodes {
    hosts: Local<HostState>,
    byzantine: Byzantine,
}

/// One host.
struct HostState {
    machine: Machine,
    /// The end of a connection that each of the node's channels uses.
    channels: Vec<Option<EndId>>,
    /// Exit: this host's end of the connection to each stream's server.
    streams: BTreeMap<StreamKey, EndId>,
    /// Exit: bytes for servers that the cells read just now had.
    to_servers: Vec<(EndId, u64)>,
    /// Limits on reading, writing and processor time; `None` without limits.
    gate: Option<Box<Gate>>,
    /// Channels to other hosts that speak QUIC are lanes of QUIC connections.
    speaks_quic: bool,
    /// When the node's pending timer event is due.
    timer: Timer,
    /// Levels and counts at the last sample.
    sampled: RelaySample,
}

/// The protocol machine of a host.
enum Machine {
    Relay(Box<Relay<Clear>>),
    /// Clients; servers are clients that never build a circuit.
    Client(Box<Client<Clear>>),
}

/// Hosts of a system's [`OtherClients`](crate::plan::OtherClients); metrics name their users' class after them. A larger
/// share adds hosts and removes none.
pub fn other_clients(plan: &Plan, system: &System, seed: Seed) -> BTreeSet<u32> {
    system.other_clients.as_ref().map_or_else(BTreeSet::new, |others| {
        let draws = seed.fork("old clients");
        let drawn = |index: u32| draws.fork_index(index.into()).random().unit() < others.share;
        let clients = (0..).zip(&plan.hosts).filter(|(_, host)| host.role == Role::Client);
        clients.map(|(index, _)| index).filter(|index| drawn(*index)).collect()
    })
}

/// Hosts with users that take a new guard for each circuit. In a small sample of relays they would often meet the guard
/// of an earlier circuit; among thousands, which the sample stands for, hardly ever. So their channels close with their
/// circuits.
fn fresh_guards(plan: &Plan) -> BTreeSet<u32> {
    let fresh = |user: &&UserPlan| matches!(user.route, Route::Drawn { keep_guard: false, .. });
    plan.users.iter().filter(fresh).map(|user| user.host).collect()
}

/// The clock of a host's controller.
fn clock(control: &dyn Control, seed: Seed, host: u32) -> Clock {
    let Spread { random_phases, drift } = control.spread();
    let mut random = seed.fork("controllers").fork_index(host.into()).random();
    let (phase, slow) = (random.unit(), random.uniform(-drift, drift));
    Clock { phase: if random_phases { phase } else { 0.0 }, slow }
}

impl HostState {
    /// `measured`: FlashFlow will measure it, which takes a gate. `other`: a client with other circuit ends.
    fn new(role: &Role, config: &links::Config, measured: bool, other: bool) -> HostState {
        let (machine, gate) = match role {
            Role::Relay(limits) => {
                let gated = measured || limits.bucket.is_some() || limits.cell_cost > Span::ZERO;
                let gate = gated.then(|| Box::new(Gate::new(limits)));
                (Machine::Relay(Box::new(Relay::new(Clear::default(), config.clone()))), gate)
            }
            Role::Client | Role::Server | Role::Measurer | Role::Coordinator => {
                // Linked circuits need congestion control, even if the system's control does without.
                let links = config.conflux.is_some() && config.control.window().is_none();
                let congestion_control = if other { Some(false) } else { links.then_some(true) };
                let onion = Clear { congestion_control };
                (Machine::Client(Box::new(Client::new(onion, config.clone()))), None)
            }
        };
        HostState {
            machine,
            channels: Vec::new(),
            streams: BTreeMap::new(),
            to_servers: Vec::new(),
            gate,
            speaks_quic: config.transport == Transport::Quic,
            timer: Timer::default(),
            sampled: RelaySample::default(),
        }
    }

    fn cells_processed(&self) -> u64 {
        match &self.machine {
            Machine::Relay(relay) => relay.cells_processed(),
            Machine::Client(_) => 0,
        }
    }
}

impl Nodes {
    /// The hosts of a process. `legacy`: relays without the system's transport. `others`: hosts of the system's other
    /// clients.
    pub(crate) fn new(
        (plan, system, seed): (&Plan, &System, Seed),
        legacy: &Arc<BTreeSet<RelayId>>,
        others: &BTreeSet<u32>,
        (division, process): (&Division, u32),
    ) -> Nodes {
        let config = links::Config {
            transport: system.transport,
            legacy: Arc::clone(legacy),
            scheduler: Arc::clone(&system.scheduler),
            kist: system.kist,
            control: Arc::clone(&system.control),
            windows: system.windows,
            otherwise: system.other_clients.as_ref().map(|others| others.ends.clone()),
            stream_flow: StreamFlow::WITHOUT_RATES,
            output_buffer: system.output_buffer,
            queue_high: system.circuit_queue_high,
            queue_low: system.circuit_queue_low,
            switching: system.switching,
            conflux: system.conflux.clone(),
            ..links::Config::default()
        };
        // Relays that are not upgraded speak vanilla Tor, with the system's other parts.
        let old = links::Config { transport: Transport::Vanilla, ..config.clone() };
        let fresh = fresh_guards(plan);
        let host = |index: u32| {
            let host = &plan.hosts[index as usize];
            let of_kind = if legacy.contains(&RelayId(index)) { &old } else { &config };
            let nonces = seed.fork("nonces").fork_index(index.into());
            let bandwidth = host.capacity();
            let clock = clock(system.control.as_ref(), seed, index);
            let measured = plan.measurements.iter().any(|measurement| measurement.relay == index);
            let close_unused = fresh.contains(&index);
            let config = links::Config { nonces, bandwidth, clock, close_unused, ..of_kind.clone() };
            HostState::new(&host.role, &config, measured, others.contains(&index))
        };
        Nodes { hosts: division.hosts.local(process, host), byzantine: Byzantine::new(&plan.faults) }
    }

    fn host(&mut self, host: u32) -> &mut HostState {
        &mut self.hosts[host as usize]
    }

    /// The node on a host.
    pub(crate) fn node(&mut self, host: u32) -> &mut SimNode {
        match &mut self.hosts[host as usize].machine {
            Machine::Relay(relay) => relay.as_mut(),
            Machine::Client(client) => client.as_mut(),
        }
    }

    /// The client on a user's host.
    pub(crate) fn client(&mut self, host: u32) -> &mut Client<Clear> {
        match &mut self.hosts[host as usize].machine {
            Machine::Client(client) => client,
            Machine::Relay(_) => unreachable!("the lab checks that users sit at clients"),
        }
    }

    /// A host's limits, if it has any.
    pub(crate) fn gate(&mut self, host: u32) -> Option<&mut Gate> {
        self.host(host).gate.as_deref_mut()
    }

    /// The limits of a host that has some.
    pub(crate) fn gated(&mut self, host: u32) -> &mut Gate {
        self.gate(host).expect("only hosts with limits are pumped or measured")
    }

    /// Whether channels between two hosts are lanes of a QUIC connection.
    pub(crate) fn speak_quic(&self, hosts: [u32; 2]) -> bool {
        hosts.iter().all(|host| self.hosts[*host as usize].speaks_quic)
    }

    /// The end of a connection that a channel uses.
    pub(crate) fn channel(&self, host: u32, channel: ChannelId) -> Option<EndId> {
        self.hosts[host as usize].channels.get(channel.0 as usize).copied().flatten()
    }

    /// Gives a channel a connection, or takes it away.
    pub(crate) fn set_channel(&mut self, host: u32, channel: ChannelId, end: Option<EndId>) {
        let channels = &mut self.host(host).channels;
        let index = channel.0 as usize;
        if channels.len() <= index {
            channels.resize(index + 1, None);
        }
        channels[index] = end;
    }

    /// Exit: the end of the connection to a stream's server.
    pub(crate) fn server_end(&self, host: u32, stream: StreamKey) -> Option<EndId> {
        self.hosts[host as usize].streams.get(&stream).copied()
    }

    /// Exit: a stream has a connection to its server.
    pub(crate) fn add_server(&mut self, host: u32, stream: StreamKey, end: EndId) {
        self.host(host).streams.insert(stream, end);
    }

    /// Exit: a stream loses its connection to its server; returns that.
    pub(crate) fn remove_server(&mut self, host: u32, stream: StreamKey) -> Option<EndId> {
        self.host(host).streams.remove(&stream)
    }

    /// Exit: notes bytes for a server; false if the stream does not end at an exit.
    pub(crate) fn deliver_to_server(&mut self, host: u32, stream: StreamKey, bytes: u64) -> bool {
        let state = self.host(host);
        let end = state.streams.get(&stream).copied();
        if let Some(id) = end {
            match state.to_servers.iter_mut().find(|(other, _)| *other == id) {
                Some((_, due)) => *due += bytes,
                None => state.to_servers.push((id, bytes)),
            }
        }
        end.is_some()
    }

    /// Exit: takes bytes that wait to be written to a server.
    pub(crate) fn next_to_server(&mut self, host: u32) -> Option<(EndId, u64)> {
        self.host(host).to_servers.pop()
    }

    /// When to set a new timer event for a host's node, if it needs one.
    pub(crate) fn next_timer(&mut self, host: u32, now: Time) -> Option<Time> {
        let timeout = self.node(host).next_timeout()?;
        self.host(host).timer.arm(now, timeout)
    }

    /// A timer event has come up; returns whether it is the current one, and runs the node's timeout then.
    pub(crate) fn timeout(&mut self, host: u32, now: Time) -> bool {
        let is_current = self.hosts[host as usize].timer.fires(now);
        if is_current {
            self.node(host).timeout(now);
        }
        is_current
    }

    /// Hands runs of cells that arrived together to a node. `from` is the writer, `at` the end that they came to.
    pub(crate) fn cells(
        &mut self,
        (now, control): (Time, &dyn Control),
        (host, channel): (u32, ChannelId),
        (from, at): (u32, EndId),
        runs: &mut dyn Iterator<Item = CellRun>,
    ) {
        match self.byzantine.lies().then(|| control.message_step()).flatten() {
            None => self.node(host).cells_arrived(now, channel, runs),
            Some(step) => {
                let cells = runs.flat_map(|(cell, count)| std::iter::repeat_n(cell, count as usize));
                cells.for_each(|cell| self.perhaps_lie((now, step), (host, channel), (from, at), cell))
            }
        }
    }

    /// Hands a cell to a node. A lying relay's messages are replaced by its lies.
    fn perhaps_lie(
        &mut self,
        (now, step): (Time, Span),
        (host, channel): (u32, ChannelId),
        (from, at): (u32, EndId),
        cell: Cell<Clear>,
    ) {
        // Only messages between controllers can be lies.
        match self.byzantine.of(Host(from), now).filter(|_| cell.command == Command::Plan) {
            None => self.node(host).cell(now, channel, cell),
            Some(lie) => {
                let connection = (at.connection.0, at.side);
                let told = Clear::recycle(cell.body);
                for body in self.byzantine.instead(lie, (now, step), connection, told) {
                    let cell = Cell { body: Clear::from_plain(body), ..cell };
                    self.node(host).cell(now, channel, cell);
                }
            }
        }
    }

    /// Cells that a host has processed.
    pub(crate) fn cells_processed(&self, host: u32) -> u64 {
        self.hosts[host as usize].cells_processed()
    }

    /// Bytes that a client's linked circuits hold until earlier bytes arrive; 0 for a relay.
    pub(crate) fn held_bytes(&self, host: u32) -> u64 {
        match &self.hosts[host as usize].machine {
            Machine::Relay(_) => 0,
            Machine::Client(client) => client.held_bytes(),
        }
    }

    /// Totals of a relay's controller, if it has one.
    pub(crate) fn control_totals(&self, host: u32) -> Option<Totals> {
        match &self.hosts[host as usize].machine {
            Machine::Relay(relay) => relay.control_totals(),
            Machine::Client(_) => None,
        }
    }

    /// Circuits that a relay closed, by reason.
    pub(crate) fn endings(&self, host: u32) -> Endings {
        match &self.hosts[host as usize].machine {
            Machine::Relay(relay) => relay.endings(),
            Machine::Client(_) => Endings::default(),
        }
    }

    /// Samples a relay: fills in the node's levels, and turns counts since the start into counts since the last sample.
    pub(crate) fn sample(&mut self, host: u32, levels: RelaySample) -> RelaySample {
        let (circuit_queue_cells, output_buffer_bytes) = self.node(host).waiting();
        let state = self.host(host);
        let level = RelaySample {
            circuit_queue_cells,
            output_buffer_bytes,
            cells_processed: state.cells_processed(),
            ..levels
        };
        let before = std::mem::replace(&mut state.sampled, level);
        RelaySample {
            cells_processed: level.cells_processed - before.cells_processed,
            sent_bytes: level.sent_bytes - before.sent_bytes,
            received_bytes: level.received_bytes - before.received_bytes,
            ..level
        }
    }
}
