//! TCP connections between hosts, and the cells and bytes written to and read from them.

use tidegate_control::units::Time;
use tidegate_proto::cell::{CELL_BYTES, DATA_BYTES, RelayId};
use tidegate_proto::links::ChannelId;
use tidegate_proto::node::StreamKey;
use tidegate_proto::onion::ClearBody;
use tidegate_proto::transport::Transport;

use crate::division::Local;
use crate::observe::{Circuit, Host, Observation, Seen};
use crate::plan::Role;
use crate::tcp;
use crate::underlay::Packet;

use super::ends::{Attached, Connection, ConnectionId, End, EndId, TcpProfile, Wire};
use super::measurement::session::Measuring;
use super::records::Records;
use super::sockets::Sockets;
use super::state::World;

impl World<'_> {
    pub(super) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections[id.0 as usize].as_deref_mut()
    }

    pub(super) fn end(&mut self, id: EndId) -> Option<&mut End> {
        self.connection(id.connection).map(|connection| &mut connection.ends[usize::from(id.side)])
    }

    /// The end's TCP and its parameters.
    pub(super) fn tcp(&mut self, id: EndId) -> Option<(&mut tcp::Endpoint, &tcp::Config)> {
        let connection = self.connections[id.connection.0 as usize].as_deref_mut()?;
        let config = &self.tcp_parameters[connection.profile as usize];
        Some((&mut connection.ends[usize::from(id.side)].tcp, config))
    }

    fn machine(&self, host: u32) -> u32 {
        self.plan.hosts[host as usize].colocated.unwrap_or(host)
    }

    /// Opens a connection and gives the opener's end.
    pub(super) fn open(&mut self, from: u32, to: u32, [opener, accepted]: [Attached; 2]) -> EndId {
        let secured = |host: u32| self.secured(host);
        let profile = if self.machine(from) == self.machine(to) {
            TcpProfile::Loopback
        } else if opener == Attached::Trunk {
            TcpProfile::Quic
        } else if secured(from) && secured(to) {
            TcpProfile::Ipsec
        } else {
            TcpProfile::Internet
        };
        let config = &self.tcp_parameters[profile as usize];
        let flights = match opener {
            Attached::Channel(_) => 2 * self.system.tls.round_trips,
            // The first round trip is TLS's as well.
            Attached::Trunk => 2 * self.system.tls.round_trips.saturating_sub(1),
            _ => 0,
        };
        let channel = matches!(opener, Attached::Channel(_) | Attached::Trunk);
        let (flights, [active, passive]) = if channel && self.standing(from, to) {
            (0, tcp::Endpoint::standing(config, self.now))
        } else {
            let mut active = tcp::Endpoint::active(config);
            active.connect(self.now);
            (flights, [active, tcp::Endpoint::passive(config)])
        };
        let stands = passive.state() == tcp::State::Established;
        let ends = [End::new(from, active, opener), End::new(to, passive, accepted)];
        let connection = self.add_connection(Connection::new(ends, profile, flights));
        self.hosts[from as usize].totals.connections += 1;
        if !self.is_here(to) {
            self.open_across(connection, stands);
        }
        let id = EndId { connection, side: 0 };
        self.transmit(id);
        id
    }

    /// Numbers a connection and counts its sockets.
    pub(super) fn add_connection(&mut self, connection: Connection) -> ConnectionId {
        let id = ConnectionId(self.connections.len() as u32);
        for host in connection.ends.each_ref().map(|end| end.host) {
            if self.is_here(host) {
                self.hosts[host as usize].descriptor_opened();
            }
        }
        self.connections.push(Some(Box::new(connection)));
        self.live.push(id);
        id
    }

    pub(super) fn is_relay(&self, host: u32) -> bool {
        matches!(self.plan.hosts[host as usize].role, Role::Relay(_))
    }

    /// Whether the host is a relay that speaks IPsec with others that do.
    fn secured(&self, host: u32) -> bool {
        let plain = matches!(self.system.transport, Transport::Vanilla | Transport::Quic);
        !plain && self.is_relay(host) && !self.legacy.contains(&RelayId(host))
    }

    pub(super) fn open_channel(&mut self, host: u32, channel: ChannelId, to: u32) {
        if [host, to].into_iter().all(|host| self.hosts[host as usize].speaks_quic) {
            return self.open_lane(host, to, channel);
        }
        let end = self.open(host, to, [Attached::Channel(channel), Attached::Pending]);
        self.hosts[host as usize].set_channel(channel, Some(end));
        if self.standing(host, to) {
            if self.is_here(to) {
                self.channel_opened(end.other());
            }
            self.channel_opened(end);
        }
    }

    /// Whether the channel between them has been there before a circuit asks for it.
    pub(super) fn standing(&self, from: u32, to: u32) -> bool {
        let shared = matches!(self.system.transport, Transport::Vanilla | Transport::Quic);
        self.system.tls.standing && shared && [from, to].iter().all(|end| self.is_relay(*end))
    }

    /// Closes a channel's connection once what was written has arrived.
    pub(super) fn close_channel(&mut self, host: u32, channel: ChannelId) {
        let Some(end) = self.hosts[host as usize].channel(channel) else { return };
        self.hosts[host as usize].set_channel(channel, None);
        if let Some(connection) = self.connection(end.connection) {
            connection.closing = true;
            connection.ends[usize::from(end.side)].attached = Attached::Pending;
        }
        self.close_if_flushed(end);
    }

    pub(super) fn close_if_flushed(&mut self, id: EndId) {
        let lane = self.lane_arrived(id);
        let Some(connection) = self.connection(id.connection) else { return };
        let end = &connection.ends[usize::from(id.side)];
        let flushed = lane.unwrap_or(end.tcp.acknowledged()) >= end.written;
        if connection.closing && end.attached == Attached::Pending && flushed {
            self.kill(id.connection);
        }
    }

    /// Exit: connects a stream to the server of its transfer.
    pub(super) fn connect_stream(&mut self, host: u32, stream: StreamKey, transfer: u32) {
        let Some(server) = self.users.transfers.get(transfer).map(|transfer| transfer.server) else {
            // Its client has given it up meanwhile.
            return self.hosts[host as usize].node().stream_ended(self.now, stream);
        };
        let end = self.open(host, server, [Attached::Stream(stream), Attached::Server(transfer)]);
        self.hosts[host as usize].streams.insert(stream, end);
        if let Some(transfer) = self.users.transfers.get(transfer) {
            transfer.exit = Some(end);
        }
    }

    /// Breaks a connection: both sides' machines are told.
    pub(super) fn kill(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections[id.0 as usize].take() else { return };
        if let Some(transfer) = connection.server_transfer() {
            self.users.transfers.forget(transfer);
        }
        self.close_across(&connection);
        if let Some(over) = connection.over {
            self.lane_closed(id, over);
        } else {
            for end in self.ends_here(&connection) {
                let host = &mut self.hosts[end.host as usize];
                end.add_tcp_totals(&self.system.tcp, &mut host.totals);
                host.descriptors -= 1;
            }
        }
        if connection.trunk.is_some() {
            self.trunk_closed(&connection);
        }
        let now = self.now;
        for end in self.ends_here(&connection) {
            let host = &mut self.hosts[end.host as usize];
            match end.attached {
                Attached::Channel(channel) => {
                    host.set_channel(channel, None);
                    host.node().channel_closed(now, channel);
                    self.drain(end.host);
                }
                Attached::Stream(stream) => {
                    host.streams.remove(&stream);
                    host.node().stream_ended(now, stream);
                    self.drain(end.host);
                }
                Attached::Server(_) | Attached::Echo(_) | Attached::Pending | Attached::Trunk => {}
            }
        }
    }

    /// A packet has arrived at a host.
    pub(super) fn packet(&mut self, packet: Packet<Wire>) {
        let now = self.now;
        let (to, segment) = (packet.payload.to(), packet.payload.segment());
        let id = EndId { connection: ConnectionId(packet.flow), side: to };
        let Some(connection) = self.connections[packet.flow as usize].as_deref_mut() else { return };
        if self.watches_packets {
            let [from, to] = [1 - to, to].map(|side| Host(connection.ends[usize::from(side)].host));
            let bytes = segment.wire_bytes(&self.tcp_parameters[connection.profile as usize]);
            self.seen = Some(Seen { from, to, flow: packet.flow, bytes });
        }
        if connection.trunk.is_some() {
            return self.trunk_packet(&packet);
        }
        let config = &self.tcp_parameters[connection.profile as usize];
        for follow in connection.follows.iter_mut().filter(|follow| follow.writer != to) {
            let (sent, queue, propagation) = (packet.sent, packet.link_queue, packet.propagation);
            follow.arrived(now, segment.seq, segment.len, sent, queue, propagation);
        }
        let end = &mut connection.ends[usize::from(to)];
        let arrival = end.tcp.on_segment(config, now, &segment);
        if let Attached::Echo(circuit) = end.attached {
            self.transmit(id);
            return self.echo_arrived(circuit, id.side, arrival);
        }
        let (wakes, closing) = (arrival.acked > 0 && end.tcp.writable(config), connection.closing);
        if arrival.established {
            self.established(id);
        }
        if arrival.received > 0 {
            self.readable(id);
        }
        if wakes {
            self.writable(id);
        }
        if closing && arrival.acked > 0 {
            self.close_if_flushed(id);
        }
        self.transmit(id);
    }

    /// A TCP timer event has come up; the timer may have moved since.
    pub(super) fn tcp_timer(&mut self, id: EndId) {
        let now = self.now;
        let Some(end) = self.end(id) else { return };
        // The timer was set earlier since: that event serves, and this one must not breed another.
        if end.armed != now {
            return;
        }
        end.armed = Time::NEVER;
        if end.tcp.next_timeout() <= now {
            let Some((tcp, config)) = self.tcp(id) else { return };
            tcp.on_timeout(config, now);
            if tcp.state() == tcp::State::Broken {
                self.echo_broke(id);
                return self.kill(id.connection);
            }
        }
        self.transmit(id);
    }

    /// Sends what TCP may send now, and arms its timer.
    pub(super) fn transmit(&mut self, id: EndId) {
        self.sockets().1.transmit(id);
    }

    /// The connections apart from those who use them.
    pub(super) fn sockets(&mut self) -> (&mut Measuring, Sockets<'_>) {
        let sockets = Sockets {
            now: self.now,
            connections: &mut self.connections,
            parameters: &self.tcp_parameters,
            underlay: &mut self.underlay,
            queue: &mut self.queue,
        };
        (&mut self.measuring, sockets)
    }

    fn established(&mut self, id: EndId) {
        let now = self.now;
        let Some(end) = self.end(id) else { return };
        let (host, attached) = (end.host, end.attached);
        match attached {
            Attached::Channel(_) => self.begin_link_handshake(id),
            Attached::Pending if id.side == 1 => self.begin_link_handshake(id),
            Attached::Stream(stream) => {
                self.hosts[host as usize].node().stream_connected(now, stream);
                self.drain(host);
            }
            Attached::Pending | Attached::Server(_) | Attached::Echo(_) | Attached::Trunk => {}
        }
    }

    /// TCP, or a lane, takes bytes again.
    pub(super) fn writable(&mut self, id: EndId) {
        let Some(end) = self.end(id) else { return };
        match end.attached {
            Attached::Channel(_) if end.wants_write => {
                let host = end.host;
                self.flush(id);
                self.drain(host);
            }
            Attached::Server(transfer) => self.server_write(transfer, id),
            Attached::Stream(_) if end.unwritten > 0 => self.stream_write(id, 0),
            _ => {}
        }
    }

    /// Bytes can be read.
    pub(super) fn readable(&mut self, id: EndId) {
        let Some(end) = self.end(id) else { return };
        let (host, attached) = (end.host, end.attached);
        match attached {
            Attached::Channel(_) | Attached::Pending if !self.link_handshake_over(id) => {}
            Attached::Channel(_) => match &mut self.hosts[host as usize].gate {
                Some(gate) => {
                    gate.wait_to_read(id);
                    self.pump(host);
                }
                None => {
                    while self.can_read(id) {
                        self.deliver_cell(id);
                    }
                    self.drain(host);
                }
            },
            Attached::Stream(stream) => {
                self.package(host, stream, u32::MAX);
                self.drain(host);
            }
            Attached::Server(transfer) => self.server_read(transfer, id),
            Attached::Echo(_) | Attached::Pending | Attached::Trunk => {}
        }
    }

    /// Whether the next cell has arrived whole (all of its TLS record).
    pub(super) fn can_read(&mut self, id: EndId) -> bool {
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref() else { return false };
        let Some((end, _)) = connection.cells[usize::from(1 - id.side)].front() else { return false };
        let tcp = &connection.ends[usize::from(id.side)].tcp;
        let lane = connection.over.and_then(|_| self.lane_arrived(id.other()));
        *end <= lane.unwrap_or_else(|| tcp.delivered_in_order())
    }

    /// Reads one cell on behalf of a gated host; gives its bytes, and the overhead of the record that it ends.
    /// What the host does about it waits for [`drain`](World::drain).
    pub(super) fn read_one(&mut self, id: EndId) -> (u64, u64) {
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref() else { return (0, 0) };
        let next = connection.cells[usize::from(1 - id.side)].front();
        let has_records = connection.over.is_none();
        let bytes = next.map_or(0, |(_, cell)| u64::from(cell.wire_bytes()));
        let record_done = self.deliver_cell(id);
        (bytes, if record_done && has_records { u64::from(self.system.tls.record_overhead) } else { 0 })
    }

    /// Hands the next cell to the node; true if its TLS record ends with it.
    fn deliver_cell(&mut self, id: EndId) -> bool {
        let now = self.now;
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() else { return true };
        let writer = 1 - id.side;
        let is_lane = connection.over.is_some();
        let read = connection.read_cell(writer, &mut self.spare);
        let Some((offset, cell, record_done)) = read else { return true };
        if let ClearBody::Data { stamp, .. } = &cell.body
            && stamp.trace != 0
            && let Some(at) = connection.follows.iter().position(|follow| follow.trace == stamp.trace)
        {
            let follow = connection.follows.swap_remove(at);
            let at = Host(connection.ends[usize::from(writer)].host);
            let (circuit, hop) = self.users.next_hop(follow.trace);
            let waits = follow.read(now);
            self.record(Observation::Waited { circuit: Circuit(circuit), hop, at, waits });
        }
        if is_lane {
            self.lane_read(id, cell.wire_bytes().into());
        } else if record_done && let Some((tcp, config)) = self.tcp(id) {
            let arrived = tcp.readable();
            let rest = tcp.delivered_in_order() - offset;
            tcp.read(config, now, arrived - rest);
        }
        let Some(end) = self.end(id) else { return true };
        let (host, attached) = (end.host, end.attached);
        if let Attached::Channel(channel) = attached {
            self.hand_over(id, (host, channel), cell);
        }
        record_done
    }

    /// Writes a channel's cells to TCP, in TLS records, as long as TCP and the host's bucket take them.
    pub(super) fn flush(&mut self, id: EndId) {
        let now = self.now;
        let mut trunk = self.take_trunk(id.connection);
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() else { return };
        let Connection { ends, cells, follows, over, .. } = connection;
        let over = *over;
        let end = &mut ends[usize::from(id.side)];
        let Attached::Channel(channel) = end.attached else { return self.stream_write(id, 0) };
        let index = end.host;
        let host = &mut self.hosts[index as usize];
        let mut gate = host.gate.take();
        end.wants_write = false;
        let share = gate.as_mut().map_or(u64::MAX, |gate| gate.write_share(now, CELL_BYTES.into()));
        let mut records = Records {
            now,
            system: self.system,
            side: id.side,
            end,
            cells: &mut cells[usize::from(id.side)],
            spare: &mut self.spare,
            follows,
            lane: trunk.as_deref_mut().zip(over).map(|(trunk, over)| {
                (&mut trunk.written_by[usize::from(over.side(id.side))], id.connection.0)
            }),
            gate: gate.as_deref_mut(),
            share,
            gated: false,
        };
        host.node().drain(now, channel, &mut records);
        let gated = records.gated;
        if gated && let Some(gate) = &mut gate {
            gate.wait_to_write(now, id);
        }
        host.gate = gate;
        if let Some(across) = connection.across {
            let cells = &mut connection.cells[usize::from(id.side)];
            self.borders.cells(across, id.side, cells);
            self.spare.take(cells);
        }
        if let Some((over, trunk)) = over.zip(trunk) {
            self.put_trunk(over.trunk, trunk);
        }
        if gated {
            self.pump_again(index);
        }
        self.transmit(id);
    }

    /// Exit: writes bytes from the client to the server, now or when TCP and the host's bucket take them.
    pub(super) fn stream_write(&mut self, id: EndId, bytes: u64) {
        let Some(end) = self.end(id) else { return };
        let (host, attached, before) = (end.host, end.attached, end.unwritten);
        let now = self.now;
        let mut gate = self.hosts[host as usize].gate.take();
        let held = gate.as_mut().filter(|gate| gate.holds_servers());
        let share = held.map_or(u64::MAX, |gate| gate.write_share(now, DATA_BYTES.into()));
        let Some(end) = self.end(id) else { return };
        let due = before + bytes;
        let written = end.tcp.write(due.min(share));
        let left = due - written;
        end.unwritten = left;
        if let Some(gate) = gate.as_mut().filter(|gate| gate.holds_servers()) {
            gate.wrote(written);
            if left > 0 && written == share {
                gate.wait_to_write(now, id);
            }
        }
        self.hosts[host as usize].gate = gate;
        if left > 0 && written == share {
            self.pump_again(host);
        }
        if let (Attached::Stream(stream), true) = (attached, before > 0 || left > 0) {
            self.hosts[host as usize].node().backlog(now, stream, left);
            self.drain(host);
        }
        self.transmit(id);
    }

    /// Per host: bytes written to TCP and never sent, and bytes that the kernel holds for its sockets
    /// (written and not acknowledged, received and not read).
    pub(super) fn socket_bytes(&mut self) -> Local<(u64, u64)> {
        let mut bytes = self.division.hosts.local(self.process, |_| (0, 0));
        self.live.retain(|id| self.connections[id.0 as usize].is_some());
        let live = self.live.iter().filter_map(|id| self.connections[id.0 as usize].as_deref());
        let process = |host: u32| self.division.hosts.process(host);
        for (side, end, connection) in live.flat_map(Connection::sides) {
            if process(end.host) != self.process {
                continue;
            }
            let (unsent, held) = &mut bytes[end.host as usize];
            let waiting = connection.trunk.as_ref().map_or(0, |trunk| trunk.written_by[side].unsent());
            *unsent += end.tcp.written() - end.tcp.transmitted() + waiting;
            *held += end.tcp.written() - end.tcp.acknowledged() + end.tcp.readable() + waiting;
        }
        bytes
    }
}
