//! The world as a model of [`crate::event_loop`]: the only file that knows all four owners.
//!
//! The first page of [`super`] has the table of owners and their calls.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;

use super::applications::Applications;
use super::connections::{
    Arrived, Attached, ConnectionMessage, Connections, EndId, Outbox, ProcessMessage, Wire,
};
use super::context::{Context, PROGRESS_EVERY, RunEnd};
use super::event::Event;
use super::measurement::Measurement;
use super::network::Network;
use super::nodes::{Nodes, other_clients};
use crate::division::Division;
use crate::event_loop::{Model, run_until};
use crate::faults;
use crate::observe::{Host, HostTotals, Observation, Recorder, RelaySample};
use crate::plan::{Plan, Role, System};
use crate::underlay::Packet;

/// A run in progress, or one process of a divided run.
pub(super) struct World<'a> {
    pub net: Network<'a>,
    applications: Applications,
    measurement: Measurement,
}

impl Model for World<'_> {
    type Event = Event;

    #[inline]
    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.net.connections.next_event(&mut self.net.ctx.queue, last)
    }

    #[inline]
    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        self.net.ctx.now = now;
        let World { net, applications, measurement } = self;
        match event {
            Event::Net(event) => {
                if let Some(packet) = net.connections.advance(&mut net.ctx.queue, event) {
                    self.packet(&packet);
                }
            }
            Event::Tcp(end) => self.tcp_timer(end),
            Event::Roomy(end) => self.lanes_roomy(end),
            Event::Pump(host) => self.pump(host),
            Event::Node(host) => net.node_timer(applications, host),
            Event::User(user) => applications.user_turn(net, user),
            Event::Timeout(transfer) => applications.transfer_failed(net, transfer),
            Event::CircuitTimeout(host, circuit) => applications.circuit_timeout(net, host, circuit),
            Event::Packet(transfer, from_server) => applications.markov_packets(net, transfer, from_server),
            Event::Sample => self.sample(),
            Event::OutOfBand(message) => net.out_of_band_arrives(applications, message),
            Event::Closed(connection) => {
                net.connections.forget_across(connection);
                net.close(applications, connection);
            }
            Event::HostDown(host) => net.host_down(applications, host),
            Event::Measurement(number) => measurement.due(net, applications, number),
        }
        ControlFlow::Continue(())
    }
}

/// A world with a recorder, which sees each event's observations at once.
pub(super) struct Recorded<'w, 'a, R> {
    pub world: &'w mut World<'a>,
    pub recorder: &'w mut R,
}

impl<R: Recorder> Model for Recorded<'_, '_, R> {
    type Event = Event;

    #[inline]
    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.world.next(last)
    }

    #[inline]
    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        // A constant of the recorder, so it costs nothing in runs without such a recorder.
        if R::WATCHES_EVENTS
            && let Some(host) = self.world.place(&event)
        {
            self.recorder.event(now, host);
        }
        self.world.handle(now, event)?;
        self.world.net.ctx.tell(self.recorder);
        ControlFlow::Continue(())
    }
}

/// A recorded run with an end, and a progress function that can stop it.
struct PlannedRun<'w, 'a, R> {
    recorded: Recorded<'w, 'a, R>,
    end: Time,
    progress: &'w mut dyn FnMut(Time) -> ControlFlow<()>,
    /// Events until the next call of the progress function.
    countdown: u32,
    stopped: bool,
}

impl<R: Recorder> Model for PlannedRun<'_, '_, R> {
    type Event = Event;

    #[inline]
    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.recorded.next(last)
    }

    #[inline]
    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        if now > self.end {
            return ControlFlow::Break(());
        }
        self.recorded.handle(now, event)?;
        self.countdown -= 1;
        if self.countdown == 0 {
            self.countdown = PROGRESS_EVERY;
            self.stopped = (self.progress)(now).is_break();
            if self.stopped {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// Relays that are not upgraded to the system's transport.
fn legacy_relays(plan: &Plan, system: &System, seed: Seed) -> BTreeSet<RelayId> {
    let draws = seed.fork("upgraded");
    let drawn = |index: u32| draws.fork_index(index.into()).random().unit() >= system.deployment.upgraded;
    let relays = (0..).zip(&plan.hosts).filter(|(_, host)| matches!(host.role, Role::Relay(_)));
    relays.map(|(index, _)| index).filter(|index| drawn(*index)).map(RelayId).collect()
}

impl<'a> World<'a> {
    /// A run in one process.
    pub(crate) fn undivided(run: (&'a Plan, &'a System, Seed)) -> World<'a> {
        let division = Division::whole(run.0.hosts.len() as u32, run.0.users.len() as u32);
        World::new(run, (&division, 0))
    }

    /// One process of a run.
    pub(crate) fn new(
        (plan, system, seed): (&'a Plan, &'a System, Seed),
        (division, process): (&Arc<Division>, u32),
    ) -> World<'a> {
        let legacy = Arc::new(legacy_relays(plan, system, seed));
        let others = other_clients(plan, system, seed);
        let net = Network {
            ctx: Context::new(plan, system, division, process),
            nodes: Nodes::new((plan, system, seed), &legacy, &others, (division, process)),
            connections: Connections::new((plan, system, seed), legacy, (division, process)),
        };
        World {
            net,
            applications: Applications::new(plan, system, &others, seed.fork("users"), (division, process)),
            measurement: Measurement::new(&plan.measurements, &plan.hosts, seed.fork("measurements")),
        }
    }

    /// Schedules the events with times known in advance.
    pub(crate) fn begin(&mut self) {
        let ctx = &mut self.net.ctx;
        for change in faults::transitions(&ctx.plan.faults).iter().filter(|change| !change.up) {
            ctx.queue.push(change.at, Event::HostDown(change.host.0));
        }
        if ctx.plan.sample_every > Span::ZERO {
            ctx.queue.push(Time::ZERO + ctx.plan.sample_every, Event::Sample);
        }
        self.applications.start_users(&mut self.net);
        for host in self.net.ctx.hosts().iter() {
            self.net.set_timer(*host);
        }
        self.measurement.start(&mut self.net);
    }

    /// Runs until the plan's end; returns whether the progress function has stopped it.
    pub(crate) fn run<R: Recorder>(
        &mut self,
        recorder: &mut R,
        progress: &mut dyn FnMut(Time) -> ControlFlow<()>,
    ) -> bool {
        let end = Time::ZERO + self.net.ctx.plan.duration;
        self.begin();
        self.net.ctx.tell(recorder);
        let recorded = Recorded { world: self, recorder };
        let mut planned = PlannedRun { recorded, end, progress, countdown: PROGRESS_EVERY, stopped: false };
        let _ = run_until(&mut planned, Time::NEVER);
        let stopped = planned.stopped;
        if !stopped {
            self.net.ctx.now = end;
        }
        stopped
    }

    /// Handles everything that is due by `last`: a process' part of a window.
    pub(crate) fn run_window(&mut self, last: Time) {
        let _ = run_until(self, last);
        self.net.ctx.now = last;
    }

    /// Records the last observations of an undivided run.
    pub(crate) fn finish(mut self, stopped: bool, recorder: &mut impl Recorder) -> RunEnd {
        self.record_totals();
        let ctx = &mut self.net.ctx;
        let (events, cells_delivered) = (ctx.queue.popped(), self.applications.cells_delivered());
        let peak_pending_events = ctx.queue.peak() as u64;
        ctx.record(Observation::RunTotals { events, cells_delivered, peak_pending_events });
        ctx.tell(recorder);
        RunEnd { reached: ctx.now, events, filings: ctx.queue.filed(), cells_delivered, stopped }
    }

    /// Data cells that arrived at clients of this process.
    pub(crate) fn cells_delivered(&self) -> u64 {
        self.applications.cells_delivered()
    }

    /// The host that an event concerns; `None` if it concerns all hosts, or its connection has closed.
    fn place(&self, event: &Event) -> Option<Host> {
        let plan = self.net.ctx.plan;
        match *event {
            Event::Net(_) | Event::Tcp(_) | Event::Roomy(_) => self.net.connections.place(event),
            Event::Pump(host)
            | Event::Node(host)
            | Event::CircuitTimeout(host, _)
            | Event::HostDown(host) => Some(Host(host)),
            Event::User(number) => Some(Host(plan.users[number as usize].host)),
            Event::Timeout(transfer) => {
                self.applications.hosts_of(plan, transfer).map(|hosts| Host(hosts[0]))
            }
            Event::Packet(transfer, from_server) => {
                let hosts = self.applications.hosts_of(plan, transfer);
                hosts.map(|hosts| Host(hosts[usize::from(from_server)]))
            }
            Event::Sample | Event::OutOfBand(_) | Event::Closed(_) | Event::Measurement(_) => None,
        }
    }

    /// A packet has arrived at a host. Packets of closed connections are dropped.
    fn packet(&mut self, packet: &Packet<Wire>) {
        let World { net, applications, measurement } = self;
        match net.connections.receive(&mut net.ctx, packet) {
            None => {}
            Some(Arrived::Lanes { id, host, arrival, moved }) => {
                if arrival.established {
                    net.established(applications, id, (host, Attached::Trunk));
                }
                if arrival.received > 0 {
                    net.link_handshake_over(applications, id);
                }
                for lane in &moved {
                    self.lane_readable(*lane, id);
                }
                self.net.connections.take_back(moved);
                // Last, so that acknowledgements and new data share a segment.
                self.net.transmit(id);
            }
            Some(Arrived::Segment { id, attached: Attached::Echo(circuit), arrival, .. }) => {
                net.transmit(id);
                measurement.echo_arrived(net, applications, (circuit, id.side), arrival);
            }
            Some(Arrived::Segment { id, host, attached, arrival, writable, closing }) => {
                if arrival.established {
                    net.established(applications, id, (host, attached));
                }
                if arrival.received > 0 {
                    self.readable(id);
                }
                if writable {
                    self.writable(id);
                }
                if closing && arrival.acked > 0 {
                    self.net.close_if_flushed(&mut self.applications, id);
                }
                self.net.transmit(id);
            }
        }
    }

    /// More of a lane has arrived at an end of its QUIC connection.
    fn lane_readable(&mut self, lane: u32, at: EndId) {
        if let Some((id, closing)) = self.net.connections.lane_at(lane, at) {
            let attachment = self.net.connections.attachment(id);
            if matches!(attachment, Some((_, Attached::Pending))) && !closing {
                self.net.channel_opened(&mut self.applications, id);
            }
            self.readable(id);
            if closing {
                self.net.close_if_flushed(&mut self.applications, id.other());
            }
        }
    }

    /// Lanes of a QUIC connection take bytes again from the host at this end.
    fn lanes_roomy(&mut self, id: EndId) {
        for lane in self.net.connections.take_roomy(id) {
            if let Some((lane, _)) = self.net.connections.lane_at(lane, id) {
                self.writable(lane);
            }
        }
    }

    /// A TCP timer event has come up.
    fn tcp_timer(&mut self, id: EndId) {
        let World { net, applications, measurement } = self;
        let broken = net.connections.timer(&mut net.ctx, id);
        if broken {
            if let Some((_, Attached::Echo(circuit))) = net.connections.attachment(id) {
                measurement.echo_broke(net, applications, circuit);
            }
            net.close(applications, id.connection);
        }
    }

    /// TCP, or a lane, takes bytes again.
    fn writable(&mut self, id: EndId) {
        let World { net, applications, .. } = self;
        match net.connections.attachment(id) {
            Some((host, Attached::Channel(_))) if net.connections.wants_write(id) => {
                net.flush(applications, id);
                net.drain(applications, host);
            }
            Some((_, Attached::Server(transfer))) => applications.server_write(net, transfer, id),
            Some((_, Attached::Stream(_))) if net.connections.unwritten(id) > 0 => {
                net.write_to_server(applications, id, 0);
            }
            // Nothing waits to be written, or reading has closed the connection.
            _ => {}
        }
    }

    /// Bytes can be read at an end.
    fn readable(&mut self, id: EndId) {
        let World { net, applications, .. } = self;
        match net.connections.attachment(id) {
            Some((host, Attached::Channel(_))) => {
                if net.link_handshake_over(applications, id) {
                    match net.nodes.gate(host) {
                        Some(gate) => {
                            gate.wait_to_read(id);
                            self.pump(host);
                        }
                        None => net.read_all(applications, host, id),
                    }
                }
            }
            Some((_, Attached::Pending)) => {
                net.link_handshake_over(applications, id);
            }
            Some((host, Attached::Stream(stream))) => {
                applications.package(net, host, stream, u32::MAX);
                net.drain(applications, host);
            }
            Some((_, Attached::Server(transfer))) => applications.server_read(net, transfer, id),
            // A measurement's, or closed by what happened since the bytes arrived.
            Some((_, Attached::Echo(_) | Attached::Trunk)) | None => {}
        }
    }

    /// Lets a gated host read and write: as its measurement allows, if it is being measured, or as its buckets do.
    fn pump(&mut self, host: u32) {
        let World { net, applications, measurement } = self;
        match net.nodes.gated(host).begin_pump(net.ctx.now) {
            Some(number) => measurement.pump(net, applications, host, number),
            None => net.pump(applications, host),
        }
    }

    /// Samples the queues of all hosts.
    fn sample(&mut self) {
        let Network { ctx, connections, nodes } = &mut self.net;
        let sockets = connections.socket_bytes(ctx);
        for index in ctx.hosts().iter().copied() {
            let role = &ctx.plan.hosts[index as usize].role;
            if ctx.system.conflux.is_some() && *role == Role::Client {
                let bytes = nodes.held_bytes(index);
                ctx.record(Observation::OutOfOrder { client: Host(index), bytes });
            }
            if matches!(role, Role::Relay(_)) {
                let net = connections.traffic(index, ctx.now);
                let levels = RelaySample {
                    tcp_unsent_bytes: sockets[index as usize].0,
                    uplink_queue_bytes: net.up.queued_bytes,
                    downlink_queue_bytes: net.down.queued_bytes,
                    sent_bytes: net.up.sent_bytes,
                    received_bytes: net.down.sent_bytes,
                    ..RelaySample::default()
                };
                let sample = nodes.sample(index, levels);
                ctx.record(Observation::RelaySample { relay: Host(index), sample });
            }
        }
        ctx.queue.push(ctx.now + ctx.plan.sample_every, Event::Sample);
    }

    /// Records every host's totals at the end of a run.
    pub(crate) fn record_totals(&mut self) {
        let Network { ctx, connections, nodes } = &mut self.net;
        connections.add_open_totals(ctx);
        for index in ctx.hosts().iter().copied() {
            let net = connections.traffic(index, ctx.now);
            let totals = HostTotals {
                cells_processed: nodes.cells_processed(index),
                sent_bytes: net.up.sent_bytes,
                received_bytes: net.down.sent_bytes,
                dropped_packets: net.up.dropped + net.down.dropped + net.lost,
                uplink_busy: net.up.busy,
                downlink_busy: net.down.busy,
                control: nodes.control_totals(index),
                endings: nodes.endings(index),
                ..connections.totals(index)
            };
            ctx.record(Observation::HostTotals { host: Host(index), totals: Box::new(totals) });
        }
    }

    /// Takes what another process has told, at the beginning of a window. Empties `told` and keeps its memory.
    pub(crate) fn hear(&mut self, from: u32, begins: Time, told: &mut Outbox) {
        let World { net, applications, .. } = self;
        for message in told.messages.drain(..) {
            match message {
                ProcessMessage::Open(opening) => {
                    let end = net.connections.opened_across(&net.ctx, begins, from, &opening);
                    if let Some((_, Attached::Server(transfer))) = net.connections.attachment(end) {
                        applications.exit_connected(transfer, end.other());
                    }
                    // A standing connection skips the handshake, which would open its channel.
                    if opening.stands {
                        net.channel_opened(applications, end);
                    }
                }
                ProcessMessage::About { number, from_opener, what } => {
                    let end = net.connections.told_about(from, number, from_opener);
                    match what {
                        ConnectionMessage::OutOfBand(at, cell) => {
                            let Network { ctx, connections, .. } = net;
                            connections.deliver_out_of_band(&mut ctx.queue, end, at.max(begins), *cell);
                        }
                        ConnectionMessage::Announced(bytes) => net.announced(end, bytes),
                        ConnectionMessage::Closed => {
                            net.ctx.queue.push(begins, Event::Closed(end.connection))
                        }
                    }
                }
                ProcessMessage::Begun(begun) => applications.learn(begun.0, begun.1),
                ProcessMessage::Over(transfer) => applications.over(transfer),
            }
        }
        net.connections.hear(&mut net.ctx.queue, from, told);
    }
}
