//! The table of connections: opens, finds and closes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slab::Slab;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{Cell, RelayId};
use tidegate_proto::onion::Clear;
use tidegate_proto::transport::Transport;

use super::borders::{Borders, ConnectionMessage, Opening, ProcessMessage};
use super::ends::{Across, Attached, Connection, ConnectionId, End, EndId, Spare, Wire};
use super::profile::{TcpProfile, parameters};
use crate::division::{Division, Local};
use crate::observe::{Host, HostTotals};
use crate::plan::{Plan, System};
use crate::tcp;
use crate::underlay::{HostTraffic, Underlay};
use crate::world::context::Context;

/// All connections of a process, and the links and paths that carry their packets.
pub(in crate::world) struct Connections {
    pub(super) underlay: Underlay<Wire>,
    pub(super) borders: Borders,
    /// Relays that are not upgraded to the system's transport.
    legacy: Arc<BTreeSet<RelayId>>,
    /// Numbers are never reused, so that a late packet or timer does not meet another connection.
    pub(super) all: Vec<Option<Box<Connection>>>,
    /// Open connections, and some that have closed since the last sample.
    open: Vec<ConnectionId>,
    /// Free memory for cells in flight.
    pub(super) spare: Spare,
    /// QUIC connections by their two hosts, the lower number first.
    pub(super) trunks: BTreeMap<(u32, u32), ConnectionId>,
    /// Whether some cells are followed.
    pub(super) traced: bool,
    /// Free memory for the lanes that a packet moves on.
    pub(super) moved: Vec<u32>,
    /// Messages in flight out of band, and their destinations.
    pub(super) out_of_band: Slab<(EndId, Cell<Clear>)>,
    /// TCP parameters by [`TcpProfile`].
    pub(super) parameters: [tcp::Config; 4],
    /// Per host: counts of its sockets.
    totals: Local<HostTotals>,
    /// Per host: sockets open now.
    descriptors: Local<u64>,
}

/// A connection that has just been closed, as its users need to know it.
pub(in crate::world) struct Closed {
    /// Ends at hosts of this process: the host, and what the end was attached to.
    pub ends: [Option<(u32, Attached)>; 2],
    /// The transfer that the accepting end served.
    pub transfer: Option<u32>,
    /// Lanes of a QUIC connection: they close with it.
    pub lanes: Vec<u32>,
}

impl Connections {
    /// No connection is open yet.
    pub(crate) fn new(
        (plan, system, seed): (&Plan, &System, Seed),
        legacy: Arc<BTreeSet<RelayId>>,
        (division, process): (&Arc<Division>, u32),
    ) -> Connections {
        Connections {
            underlay: Underlay::part(&plan.hosts, plan.paths.clone(), &plan.faults, seed, division, process),
            borders: Borders::new(division.processes),
            legacy,
            all: Vec::new(),
            open: Vec::new(),
            spare: Spare::default(),
            trunks: BTreeMap::new(),
            traced: plan.trace_one_in > 0,
            moved: Vec::new(),
            out_of_band: Slab::new(),
            parameters: parameters(system),
            totals: division.hosts.local(process, |_| HostTotals::default()),
            descriptors: division.hosts.local(process, |_| 0),
        }
    }

    /// A connection that is still open. `None` is normal: packets, timers and lanes outlive their connection.
    pub(super) fn live(&self, id: ConnectionId) -> Option<&Connection> {
        self.all[id.0 as usize].as_deref()
    }

    /// As [`live`](Self::live), to change it.
    pub(super) fn live_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.all[id.0 as usize].as_deref_mut()
    }

    /// An end of a connection that is still open.
    pub(super) fn end(&self, id: EndId) -> Option<&End> {
        self.live(id.connection).map(|connection| &connection.ends[usize::from(id.side)])
    }

    /// As [`end`](Self::end), to change it.
    pub(super) fn end_mut(&mut self, id: EndId) -> Option<&mut End> {
        self.live_mut(id.connection).map(|connection| &mut connection.ends[usize::from(id.side)])
    }

    /// An end's TCP and its parameters, while the connection is open.
    pub(super) fn tcp(&mut self, id: EndId) -> Option<(&mut tcp::Endpoint, &tcp::Config)> {
        let connection = self.all[id.connection.0 as usize].as_deref_mut()?;
        let config = &self.parameters[connection.profile as usize];
        Some((&mut connection.ends[usize::from(id.side)].tcp, config))
    }

    /// The state of an end's TCP; `None` for a lane, which shares its connection's window, and for a closed connection.
    pub(crate) fn tcp_info(&mut self, id: EndId) -> Option<tcp::Info> {
        let is_lane = self.lane_arrived(id).is_some();
        self.tcp(id).filter(|_| !is_lane).map(|(tcp, config)| tcp.info(config))
    }

    /// An end's host and its user, while the connection is open.
    pub(crate) fn attachment(&self, id: EndId) -> Option<(u32, Attached)> {
        self.end(id).map(|end| (end.host, end.attached))
    }

    /// Gives an end of an open connection to a user.
    pub(crate) fn attach(&mut self, id: EndId, attached: Attached) {
        self.end_mut(id).expect("only open connections get a user").attached = attached;
    }

    /// Whether a node has cells for an end that TCP did not take.
    pub(crate) fn wants_write(&self, id: EndId) -> bool {
        self.end(id).is_some_and(|end| end.wants_write)
    }

    /// Bytes for a server that TCP did not take; 0 if the connection has closed.
    pub(crate) fn unwritten(&self, id: EndId) -> u64 {
        self.end(id).map_or(0, |end| end.unwritten)
    }

    /// Cells written to a connection lately (0 once it has closed).
    pub(crate) fn loudness(&self, id: EndId, now: Time, half_life: Span) -> f64 {
        self.end(id).map_or(0.0, |end| end.loudness.value(now, half_life))
    }

    /// Whether the channel between two relays was open before the run began.
    pub(crate) fn standing(&self, ctx: &Context<'_>, from: u32, to: u32) -> bool {
        let shared = matches!(ctx.system.transport, Transport::Vanilla | Transport::Quic);
        ctx.system.tls.standing && shared && [from, to].iter().all(|end| ctx.is_relay(*end))
    }

    /// Whether the host is a relay that speaks IPsec with its equals.
    fn secured(&self, ctx: &Context<'_>, host: u32) -> bool {
        let plain = matches!(ctx.system.transport, Transport::Vanilla | Transport::Quic);
        !plain && ctx.is_relay(host) && !self.legacy.contains(&RelayId(host))
    }

    /// Opens a connection; returns the opener's end.
    pub(crate) fn open(
        &mut self,
        ctx: &mut Context<'_>,
        from: u32,
        to: u32,
        [opener, accepted]: [Attached; 2],
    ) -> EndId {
        let machine = |host: u32| ctx.plan.hosts[host as usize].colocated.unwrap_or(host);
        let profile = if machine(from) == machine(to) {
            TcpProfile::Loopback
        } else if opener == Attached::Trunk {
            TcpProfile::Quic
        } else if self.secured(ctx, from) && self.secured(ctx, to) {
            TcpProfile::Ipsec
        } else {
            TcpProfile::Internet
        };
        let config = &self.parameters[profile as usize];
        let flights = match opener {
            Attached::Channel(_) => 2 * ctx.system.tls.round_trips,
            // QUIC's first round trip is also TLS's.
            Attached::Trunk => 2 * ctx.system.tls.round_trips.saturating_sub(1),
            _ => 0,
        };
        let channel = matches!(opener, Attached::Channel(_) | Attached::Trunk);
        let (flights, [active, passive]) = if channel && self.standing(ctx, from, to) {
            (0, tcp::Endpoint::standing(config, ctx.now))
        } else {
            let mut active = tcp::Endpoint::active(config);
            active.connect(ctx.now);
            (flights, [active, tcp::Endpoint::passive(config)])
        };
        let stands = passive.state() == tcp::State::Established;
        let ends = [End::new(from, active, opener), End::new(to, passive, accepted)];
        let connection = self.add(ctx, Connection::new(ends, profile, flights));
        self.totals[from as usize].connections += 1;
        if !ctx.is_here(to) {
            self.open_across(ctx, connection, stands);
        }
        let id = EndId { connection, side: 0 };
        self.transmit(ctx.now, &mut ctx.queue, id);
        id
    }

    /// Numbers a connection and counts its sockets.
    pub(super) fn add(&mut self, ctx: &Context<'_>, mut connection: Connection) -> ConnectionId {
        let [from, to] = connection.ends.each_ref().map(|end| Host(end.host));
        // A recorder that watches packets sees each of them.
        connection.trains = ctx.system.tcp.fidelity == tcp::Fidelity::Train
            && !ctx.watches_packets
            && self.underlay.carries_trains(from, to);
        let id = ConnectionId(self.all.len() as u32);
        for host in connection.ends.each_ref().map(|end| end.host as usize) {
            if ctx.is_here(host as u32) {
                self.descriptors[host] += 1;
                let peak = &mut self.totals[host].peak_descriptors;
                *peak = (*peak).max(self.descriptors[host]);
            }
        }
        self.all.push(Some(Box::new(connection)));
        self.open.push(id);
        id
    }

    /// The opener wants a channel's connection closed once everything it wrote has arrived.
    pub(crate) fn close_once_flushed(&mut self, id: EndId) {
        if let Some(connection) = self.live_mut(id.connection) {
            connection.closing = true;
            connection.ends[usize::from(id.side)].attached = Attached::Pending;
        }
    }

    /// Whether an end waits to be closed and everything it wrote has arrived.
    pub(crate) fn is_flushed(&self, id: EndId) -> bool {
        self.live(id.connection).is_some_and(|connection| {
            let end = &connection.ends[usize::from(id.side)];
            let closing = connection.closing && end.attached == Attached::Pending;
            closing && self.lane_arrived(id).unwrap_or(end.tcp.acknowledged()) >= end.written
        })
    }

    /// Closes a connection; `None` if it is closed already.
    pub(crate) fn close(&mut self, ctx: &Context<'_>, id: ConnectionId) -> Option<Closed> {
        let connection = self.all[id.0 as usize].take()?;
        self.close_across(ctx, &connection);
        if let Some(over) = connection.over {
            self.lane_closed(id, over);
        } else {
            for end in ends_here(ctx, &connection) {
                end.add_tcp_totals(&ctx.system.tcp, &mut self.totals[end.host as usize]);
                self.descriptors[end.host as usize] -= 1;
            }
        }
        let lanes = if connection.trunk.is_some() { self.trunk_closed(&connection) } else { Vec::new() };
        let here = |end: &End| ctx.is_here(end.host).then_some((end.host, end.attached));
        let ends = connection.ends.each_ref().map(here);
        Some(Closed { ends, transfer: connection.server_transfer(), lanes })
    }

    /// The open connections of a host.
    pub(crate) fn of_host(&self, host: u32) -> Vec<ConnectionId> {
        let concerns = |connection: &Connection| connection.ends.iter().any(|end| end.host == host);
        let numbers = (0..).map(ConnectionId).zip(&self.all);
        let open = numbers.filter_map(|(id, connection)| Some((id, connection.as_deref()?)));
        open.filter(|(_, connection)| concerns(connection)).map(|(id, _)| id).collect()
    }

    /// Per host: bytes written to TCP and never sent, and bytes that the kernel holds for its sockets
    /// (written and not acknowledged, received and not read).
    pub(crate) fn socket_bytes(&mut self, ctx: &Context<'_>) -> Local<(u64, u64)> {
        let mut bytes = ctx.division.hosts.local(ctx.process, |_| (0, 0));
        self.open.retain(|id| self.all[id.0 as usize].is_some());
        let open = self.open.iter().filter_map(|id| self.live(*id));
        for (side, end, connection) in open.flat_map(Connection::sides) {
            if !ctx.is_here(end.host) {
                continue;
            }
            let (unsent, held) = &mut bytes[end.host as usize];
            let waiting = connection.trunk.as_ref().map_or(0, |trunk| trunk.written_by[side].unsent());
            *unsent += end.tcp.written() - end.tcp.transmitted() + waiting;
            *held += end.tcp.written() - end.tcp.acknowledged() + end.tcp.readable() + waiting;
        }
        for host in ctx.hosts().iter().map(|host| *host as usize) {
            let peak = &mut self.totals[host].peak_kernel_bytes;
            *peak = (*peak).max(bytes[host].1);
        }
        bytes
    }

    /// Adds what open connections count to the totals, at the end of a run.
    pub(crate) fn add_open_totals(&mut self, ctx: &Context<'_>) {
        for connection in self.all.iter().flatten() {
            for end in ends_here(ctx, connection) {
                end.add_tcp_totals(&ctx.system.tcp, &mut self.totals[end.host as usize]);
            }
        }
    }

    /// The counts of a host's sockets.
    pub(crate) fn totals(&self, host: u32) -> HostTotals {
        self.totals[host as usize]
    }

    /// Traffic on a host's links.
    pub(crate) fn traffic(&mut self, host: u32, now: Time) -> HostTraffic {
        self.underlay.traffic(Host(host), now)
    }

    /// Whether a fault has stopped a host.
    pub(crate) fn is_stopped(&mut self, host: u32, now: Time) -> bool {
        self.underlay.is_stopped(Host(host), now)
    }

    /// Tells the acceptor's process of a connection that was just opened.
    fn open_across(&mut self, ctx: &Context<'_>, number: ConnectionId, stands: bool) {
        let connection = self.all[number.0 as usize].as_deref_mut().expect("it was just opened");
        let process = ctx.division.hosts.process(connection.ends[1].host);
        let opened = &mut self.borders.opened[process as usize];
        connection.across = Some(Across { process, number: *opened });
        *opened += 1;
        let opening = Opening {
            number,
            hosts: connection.ends.each_ref().map(|end| end.host),
            attached: connection.ends.each_ref().map(|end| end.attached),
            profile: connection.profile,
            flights: connection.flights,
            stands,
        };
        self.borders.send(process, ProcessMessage::Open(Box::new(opening)));
    }

    /// Tells the other process of a connection, if there is one, that this end is closed.
    fn close_across(&mut self, ctx: &Context<'_>, connection: &Connection) {
        if let Some(across) = connection.across {
            let side = u8::from(!ctx.is_here(connection.ends[0].host));
            self.borders.tell(across, side, ConnectionMessage::Closed);
        }
    }
}

/// A connection's ends at hosts of this process.
pub(super) fn ends_here<'c>(ctx: &Context<'_>, connection: &'c Connection) -> impl Iterator<Item = &'c End> {
    let is_here = connection.ends.each_ref().map(|end| ctx.is_here(end.host));
    connection.ends.iter().zip(is_here).filter(|(_, is_here)| *is_here).map(|(end, _)| end)
}
