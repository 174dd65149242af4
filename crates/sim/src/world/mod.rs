//! The world: pops an event, hands it to the machine it belongs to, and does what the machine asks.
//!
//! - here: the event loop, what nodes ask of their driver, faults and samples; [`state`]: what a run knows;
//! - [`connection`]: what is written to TCP connections (in [`records`]) and read from them, [`ends`] of which are at
//!   hosts;
//! - [`quic`]: lanes of QUIC connections, as channels use them;
//! - [`host`]: what runs on one; [`pump`]: what its token buckets and its processor let through;
//! - [`circuits`]: when [`users`] want something, over which circuits; [`transfers`]: what is sent for their [`requests`];
//! - [`standby`]: circuits built beforehand for others to switch to;
//! - [`second_leg`]: circuits that are linked with others;
//! - [`control`]: what only a simulation can do with relays' controllers;
//! - [`follow`]: where sampled cells wait;
//! - [`ahead`]: what the next events need is loaded before their turn;
//! - [`place`]: where events happen, for who counts them;
//! - [`measurement`]: FlashFlow's roles, over [`sockets`];
//! - [`steps`]: a run that somebody decides something in;
//! - [`windows`]: a run that is divided among processes; [`borders`], [`crossing`]: what they tell each other.

mod ahead;
mod borders;
mod circuits;
mod connection;
mod control;
mod crossing;
mod ends;
mod event;
mod follow;
mod host;
mod link_handshake;
mod measurement;
mod place;
mod pump;
mod quic;
mod records;
mod requests;
mod second_leg;
mod sockets;
mod standby;
mod state;
mod steps;
mod transfers;
mod users;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use slab::Slab;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::links;
use tidegate_proto::node::Output;

use crate::byzantine::Byzantine;
use crate::division::{Division, obstacle};
use crate::faults;
use crate::observe::{Host, HostTotals, Observation, Recorder, RelaySample};
use crate::plan::{Plan, Role, Route, System, Transport, UserPlan};
use crate::queue::Queue;
use crate::tcp;
use crate::underlay::Underlay;

use borders::Borders;
use ends::{Connection, ConnectionId, Spare};
use event::Event;
use host::HostState;
use measurement::session::Measuring;
pub use state::RunEnd;
use state::{PROGRESS_EVERY, World};
pub use steps::Steps;
use users::Users;
pub use windows::Threads;

/// Runs a plan under a system. The result depends on nothing but the first three arguments.
///
/// `progress` is called now and then with the simulated time; it can stop the run.
///
/// # Panics
/// If the plan is inconsistent (indices out of range); the lab checks that before.
pub fn run<R: Recorder>(
    plan: &Plan,
    system: &System,
    seed: Seed,
    recorder: &mut R,
    progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> RunEnd {
    run_on(&Threads::ONE, plan, system, seed, recorder, progress)
}

/// As [`run`], on so many threads, of which nothing depends but the time that it takes. One thread is used if the run is
/// not divided ([`Plan::processes`]), or cannot be ([`obstacle`]).
///
/// # Panics
/// As [`run`].
pub fn run_on<R: Recorder>(
    threads: &Threads<'_>,
    plan: &Plan,
    system: &System,
    seed: Seed,
    recorder: &mut R,
    progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
) -> RunEnd {
    let watched = R::WATCHES_PACKETS || R::WATCHES_EVENTS;
    if plan.processes > 1 && !watched && obstacle(plan, system).is_none() {
        let division = Division::new(plan);
        return windows::run((plan, system, seed), &division, threads, recorder, progress);
    }
    let mut world = World::undivided((plan, system, seed));
    world.watches_packets = R::WATCHES_PACKETS;
    let stopped = world.run(recorder, progress);
    world.finish(stopped, recorder)
}

/// Relays that are not upgraded to the system's transport.
fn legacy_relays(plan: &Plan, system: &System, seed: Seed) -> BTreeSet<RelayId> {
    let draws = seed.fork("upgraded");
    let drawn = |index: u32| draws.fork_index(index.into()).random().unit() >= system.deployment.upgraded;
    let relays = (0..).zip(&plan.hosts).filter(|(_, host)| matches!(host.role, Role::Relay(_)));
    relays.map(|(index, _)| index).filter(|index| drawn(*index)).map(RelayId).collect()
}

/// Hosts of a system's [`OtherClients`](crate::plan::OtherClients). With a larger share the same are among them, and more.
pub fn other_clients(plan: &Plan, system: &System, seed: Seed) -> BTreeSet<u32> {
    let Some(others) = &system.other_clients else { return BTreeSet::new() };
    let draws = seed.fork("old clients");
    let drawn = |index: u32| draws.fork_index(index.into()).random().unit() < others.share;
    let clients = (0..).zip(&plan.hosts).filter(|(_, host)| host.role == Role::Client);
    clients.map(|(index, _)| index).filter(|index| drawn(*index)).collect()
}

/// Hosts whose circuits have a guard each. In a sample of relays they would often meet one that they had; among
/// thousands, for which these stand, hardly ever: so their channels go with their circuits.
fn fresh_guards(plan: &Plan) -> BTreeSet<u32> {
    let fresh = |user: &&UserPlan| matches!(user.route, Route::Drawn { keep_guard: false, .. });
    plan.users.iter().filter(fresh).map(|user| user.host).collect()
}

impl<'a> World<'a> {
    fn undivided(run: (&'a Plan, &'a System, Seed)) -> World<'a> {
        let division = Division::whole(run.0.hosts.len() as u32, run.0.users.len() as u32);
        World::new(run, (&division, 0))
    }

    /// One process of a run.
    fn new(
        (plan, system, seed): (&'a Plan, &'a System, Seed),
        (division, process): (&Arc<Division>, u32),
    ) -> World<'a> {
        let legacy = Arc::new(legacy_relays(plan, system, seed));
        let config = links::Config {
            transport: system.transport,
            legacy: Arc::clone(&legacy),
            scheduler: Arc::clone(&system.scheduler),
            kist: system.kist,
            control: Arc::clone(&system.control),
            windows: system.windows,
            otherwise: system.other_clients.as_ref().map(|others| others.ends.clone()),
            output_buffer: system.output_buffer,
            queue_high: system.circuit_queue_high,
            queue_low: system.circuit_queue_low,
            switching: system.switching,
            conflux: system.conflux.clone(),
            ..links::Config::default()
        };
        let old = links::Config { transport: Transport::Vanilla, ..config.clone() };
        let others = other_clients(plan, system, seed);
        let fickle = fresh_guards(plan);
        let host = |index: u32| {
            let host = &plan.hosts[index as usize];
            let of_kind = if legacy.contains(&RelayId(index)) { &old } else { &config };
            let nonces = seed.fork("nonces").fork_index(index.into());
            let bandwidth = host.capacity();
            let clock = control::clock(system.control.as_ref(), &seed, index);
            let measured = plan.measurements.iter().any(|measurement| measurement.relay == index);
            let close_unused = fickle.contains(&index);
            let config = links::Config { nonces, bandwidth, clock, close_unused, ..of_kind.clone() };
            HostState::new(&host.role, &config, measured, others.contains(&index))
        };
        let hosts = division.hosts.local(process, host);
        let first_window = match system.tcp.receive_buffer {
            tcp::Buffer::Fixed(bytes) => bytes,
            tcp::Buffer::Auto { initial, max } => initial.min(max),
        };
        let loopback = tcp::Config {
            // Segments are no longer than half of the peer's window (Linux: tcp_bound_to_half_wnd). Else a window of
            // one segment opens again only when all of that is read.
            mss: 65_483.min((first_window / 2).max(1)),
            congestion: tcp::Congestion::None,
            delayed_ack: Span::ZERO,
            ..system.tcp.clone()
        };
        let esp = system.deployment.esp_overhead.min(system.tcp.mss - 1);
        let ipsec = tcp::Config {
            mss: system.tcp.mss - esp,
            header_bytes: system.tcp.header_bytes + esp,
            ..system.tcp.clone()
        };
        World {
            plan,
            system,
            observed: Vec::new(),
            seen: None,
            watches_packets: false,
            now: Time::ZERO,
            queue: Queue::share_of(division.processes),
            underlay: Underlay::part(&plan.hosts, plan.paths.clone(), &plan.faults, seed, division, process),
            hosts,
            division: Arc::clone(division),
            process,
            borders: Borders::new(division.processes),
            legacy,
            connections: Vec::new(),
            spare: Spare::default(),
            out_of_band: Slab::new(),
            live: Vec::new(),
            trunks: BTreeMap::new(),
            tcp_parameters: [system.tcp.clone(), loopback, ipsec, quic::packets(&system.tcp)],
            users: Users::new(plan, system, &others, seed.fork("users"), (division, process)),
            byzantine: Byzantine::new(&plan.faults),
            measuring: Measuring::new(&plan.measurements, &plan.hosts, seed.fork("measurements")),
            packaged: 0,
            cells_delivered: 0,
        }
    }

    /// Whatever happens at the beginning, or at a time that is known beforehand.
    fn begin(&mut self) {
        for change in faults::transitions(&self.plan.faults).iter().filter(|change| !change.up) {
            self.queue.push(change.at, Event::HostDown(change.host.0));
        }
        if self.plan.sample_every > Span::ZERO {
            self.queue.push(Time::ZERO + self.plan.sample_every, Event::Sample);
        }
        self.start_users();
        self.start_timers();
        self.start_measurements();
    }

    fn run<R: Recorder>(
        &mut self,
        recorder: &mut R,
        progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
    ) -> bool {
        let end = Time::ZERO + self.plan.duration;
        self.begin();
        let mut countdown = PROGRESS_EVERY;
        self.tell(recorder);
        while let Some((now, event)) = self.next_event(Time::NEVER) {
            if now > end {
                break;
            }
            self.now = now;
            if R::WATCHES_EVENTS
                && let Some(host) = self.place(&event)
            {
                recorder.event(now, host);
            }
            self.handle(event);
            self.tell(recorder);
            countdown -= 1;
            if countdown == 0 {
                countdown = PROGRESS_EVERY;
                if progress(now).is_break() {
                    return true;
                }
            }
        }
        self.now = end;
        false
    }

    /// The next event that is due by then.
    fn next_event(&mut self, last: Time) -> Option<(Time, Event)> {
        self.queue.pop_until(last, |event| ahead::look(&self.underlay, &self.connections, event))
    }

    /// A process' part of a run: everything that is due by then.
    fn run_until(&mut self, last: Time) {
        while let Some((now, event)) = self.next_event(last) {
            self.now = now;
            self.handle(event);
        }
        self.now = last;
    }

    fn host_totals(&mut self) {
        for connection in self.connections.iter().flatten() {
            for end in self.ends_here(connection) {
                end.add_tcp_totals(&self.system.tcp, &mut self.hosts[end.host as usize].totals);
            }
        }
        for index in self.division.hosts.of(self.process).iter().copied() {
            let net = self.underlay.traffic(Host(index), self.now);
            let host = &self.hosts[index as usize];
            let totals = HostTotals {
                cells_processed: host.cells_processed(),
                sent_bytes: net.up.sent_bytes,
                received_bytes: net.down.sent_bytes,
                dropped_packets: net.up.dropped + net.down.dropped + net.lost,
                uplink_busy: net.up.busy,
                downlink_busy: net.down.busy,
                control: host.control_totals(),
                ..host.totals
            };
            self.record(Observation::HostTotals { host: Host(index), totals });
        }
    }

    fn finish(mut self, stopped: bool, recorder: &mut impl Recorder) -> RunEnd {
        self.host_totals();
        let (events, cells_delivered) = (self.queue.popped(), self.cells_delivered);
        let peak_pending_events = self.queue.peak() as u64;
        self.record(Observation::RunTotals { events, cells_delivered, peak_pending_events });
        self.tell(recorder);
        RunEnd { reached: self.now, events, cells_delivered, stopped }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Net(event) => {
                if let Some(packet) = self.underlay.handle(&mut self.queue, event) {
                    self.packet(packet);
                }
            }
            Event::Tcp(end) => self.tcp_timer(end),
            Event::Roomy(end) => self.lanes_roomy(end),
            Event::Pump(host) => self.pump(host),
            Event::Node(host) => self.node_timer(host),
            Event::User(user) => self.user_turn(user),
            Event::Timeout(transfer) => self.transfer_failed(transfer),
            Event::CircuitTimeout(host, circuit) => self.circuit_timeout(host, circuit),
            Event::Packet(transfer, from_server) => self.markov_packets(transfer, from_server),
            Event::Sample => self.sample(),
            Event::OutOfBand(message) => self.out_of_band_arrives(message as usize),
            Event::Closed(connection) => self.closed_across(connection),
            Event::HostDown(host) => self.host_down(host),
            Event::Measurement(number) => self.measurement_due(number),
        }
    }

    /// Does what the node on a host asks until it asks no more, and sets its timer.
    pub(super) fn drain(&mut self, host: u32) {
        loop {
            let output = self.hosts[host as usize].node().poll();
            // What cells of one read have for a server is written at once, as by tor.
            if !matches!(output, Some(Output::Deliver(..))) && self.write_to_servers(host) && output.is_none()
            {
                continue;
            }
            // A timeout that is due now comes before what is written now.
            if matches!(output, None | Some(Output::Flush(_))) {
                self.set_timer(host);
            }
            let Some(output) = output else { break };
            match output {
                Output::OpenChannel(channel, RelayId(to)) => self.open_channel(host, channel, to),
                Output::CloseChannel(channel) => self.close_channel(host, channel),
                Output::OutOfBand(channel, cell, delay) => {
                    self.send_out_of_band(host, channel, cell, delay);
                }
                Output::Flush(channel) => {
                    if let Some(end) = self.hosts[host as usize].channel(channel) {
                        self.flush(end);
                    }
                }
                Output::Inspect(channel) => self.inspect(host, channel),
                Output::Connect(stream, transfer) => self.connect_stream(host, stream, transfer as u32),
                Output::Deliver(stream, bytes, stamp) => self.deliver(host, stream, bytes, stamp),
                Output::Package(stream, cells) => self.package(host, stream, cells),
                Output::StreamClosed(stream, _) => self.stream_closed(host, stream),
                Output::CircuitBuilt(circuit) => self.circuit_built(host, circuit),
                Output::Linked(circuit) => self.circuit_linked(host, circuit),
                Output::StreamConnected(stream) => self.stream_connected(host, stream),
                Output::CircuitClosed(circuit) => self.circuit_closed(host, circuit),
                Output::Switched(circuit, parts) => {
                    self.record(Observation::Switched { at: Host(host), parts });
                    self.circuit_switched(host, circuit);
                }
            }
        }
    }

    fn start_timers(&mut self) {
        for host in self.division.hosts.of(self.process).iter().copied() {
            self.set_timer(host);
        }
    }

    fn set_timer(&mut self, host: u32) {
        let state = &mut self.hosts[host as usize];
        if let Some(due) = state.node().next_timeout()
            && due < state.timer
        {
            state.timer = due.max(self.now);
            self.queue.push(state.timer, Event::Node(host));
        }
    }

    /// A timeout of a node has come up; it may have been set earlier since, and done.
    fn node_timer(&mut self, host: u32) {
        let now = self.now;
        let state = &mut self.hosts[host as usize];
        if state.timer == now {
            state.timer = Time::NEVER;
            state.node().timeout(now);
            self.drain(host);
        }
    }

    fn sample(&mut self) {
        let sockets = self.socket_bytes();
        for index in self.division.hosts.of(self.process).iter().map(|host| *host as usize) {
            let (tcp_unsent_bytes, kernel_bytes) = sockets[index];
            let totals = &mut self.hosts[index].totals;
            totals.peak_kernel_bytes = totals.peak_kernel_bytes.max(kernel_bytes);
            if self.system.conflux.is_some() && self.plan.hosts[index].role == Role::Client {
                let bytes = self.hosts[index].held_bytes().unwrap_or(0);
                self.record(Observation::OutOfOrder { client: Host(index as u32), bytes });
            }
            if !matches!(self.plan.hosts[index].role, Role::Relay(_)) {
                continue;
            }
            let net = self.underlay.traffic(Host(index as u32), self.now);
            let host = &mut self.hosts[index];
            let (circuit_queue_cells, output_buffer_bytes) = host.node().waiting();
            let level = RelaySample {
                circuit_queue_cells,
                output_buffer_bytes,
                tcp_unsent_bytes,
                uplink_queue_bytes: net.up.queued_bytes,
                downlink_queue_bytes: net.down.queued_bytes,
                cells_processed: host.cells_processed(),
                sent_bytes: net.up.sent_bytes,
                received_bytes: net.down.sent_bytes,
            };
            let before = std::mem::replace(&mut host.sampled, level);
            let sample = RelaySample {
                cells_processed: level.cells_processed - before.cells_processed,
                sent_bytes: level.sent_bytes - before.sent_bytes,
                received_bytes: level.received_bytes - before.received_bytes,
                ..level
            };
            self.record(Observation::RelaySample { relay: Host(index as u32), sample });
        }
        self.queue.push(self.now + self.plan.sample_every, Event::Sample);
    }

    fn host_down(&mut self, host: u32) {
        for index in 0..self.connections.len() {
            let concerns = |connection: &Connection| connection.ends.iter().any(|end| end.host == host);
            if self.connections[index].as_deref().is_some_and(concerns) {
                self.kill(ConnectionId(index as u32));
            }
        }
        self.drain(host);
    }
}
