//! QUIC: a connection per pair of nodes (the trunk) and a lane per channel on it. A lane is a [`Connection`] whose bytes
//! the trunk's packets carry; nodes do not see the difference to TCP connections.

use tidegate_control::units::Span;
use tidegate_proto::ids::ChannelId;

use super::ends::{Attached, Connection, ConnectionId, End, EndId, Over, TcpProfile, Trunk, Wire};
use super::state::World;
use crate::tcp;
use crate::underlay::Packet;

/// IPv4, UDP, and of QUIC's short header a type, a connection number of eight bytes and a packet number of two, and the
/// sixteen bytes that authenticate a packet (RFC 9000, 17.3; RFC 9001, 5.3).
const HEADERS: u32 = 20 + 8 + 1 + 8 + 2 + 16;
/// An acknowledgement waits no longer (RFC 9000, 18.2: `max_ack_delay`).
const MAX_ACK_DELAY: Span = Span::from_millis(25);

/// What carries QUIC's packets where TCP has these parameters: packets of the same size, without the kernel's bursts.
pub(super) fn packets(tcp: &tcp::Config) -> tcp::Config {
    tcp::Config {
        mss: tcp.mss + tcp.header_bytes - HEADERS,
        header_bytes: HEADERS,
        bursts: false,
        // Linux has them for TCP alone.
        small_queues: false,
        delayed_ack: tcp.delayed_ack.min(MAX_ACK_DELAY),
        ..tcp.clone()
    }
}

impl World<'_> {
    /// Opens a lane for a channel between two nodes that speak QUIC, and first their connection if there is none.
    pub(super) fn open_lane(&mut self, from: u32, to: u32, channel: ChannelId) {
        let pair = (from.min(to), from.max(to));
        let trunk = match self.trunks.get(&pair) {
            Some(trunk) => *trunk,
            None => {
                let trunk = self.open(from, to, [Attached::Trunk, Attached::Trunk]).connection;
                self.trunks.insert(pair, trunk);
                if self.standing(from, to) {
                    [0, 1].into_iter().for_each(|side| self.trunk_opened(EndId { connection: trunk, side }));
                }
                trunk
            }
        };
        let id = EndId { connection: ConnectionId(self.connections.len() as u32), side: 0 };
        let config = &self.tcp_parameters[TcpProfile::Quic as usize];
        let ends = [(from, Attached::Channel(channel)), (to, Attached::Pending)];
        let ends = ends.map(|(host, attached)| End::new(host, tcp::Endpoint::passive(config), attached));
        let mut lane = Connection::new(ends, TcpProfile::Quic, 0);
        let carrier = self.connection(trunk).expect("trunks are forgotten when they close");
        let over = Over { trunk, flipped: carrier.ends[0].host != from };
        let lanes = carrier.trunk.as_mut().expect("a trunk has lanes");
        lanes.written_by.iter_mut().for_each(|lanes| lanes.open(id.connection.0));
        let open = lanes.open[usize::from(over.side(0))];
        if !open {
            lanes.waiting.push(id);
        }
        lane.over = Some(over);
        self.connections.push(Some(Box::new(lane)));
        self.hosts[from as usize].set_channel(channel, Some(id));
        if open {
            let now = self.now;
            self.hosts[from as usize].node().channel_opened(now, channel);
        }
    }

    /// An end of a trunk may send: lanes that its host has opened are open.
    pub(super) fn trunk_opened(&mut self, id: EndId) {
        let Some(connection) = self.connection(id.connection) else { return };
        let host = connection.ends[usize::from(id.side)].host;
        let Some(trunk) = &mut connection.trunk else { return };
        trunk.open[usize::from(id.side)] = true;
        for lane in std::mem::take(&mut trunk.waiting) {
            if self.end(lane).is_some_and(|end| end.host == host) {
                self.channel_opened(lane);
            } else if let Some(trunk) = self.connection(id.connection).and_then(|all| all.trunk.as_mut()) {
                trunk.waiting.push(lane);
            }
        }
    }

    /// Offset up to which what was written at a lane's end has arrived; `None` if it is no lane's.
    pub(super) fn lane_arrived(&self, writer: EndId) -> Option<u64> {
        let over = self.connections[writer.connection.0 as usize].as_deref()?.over?;
        let trunk = self.connections[over.trunk.0 as usize].as_deref()?.trunk.as_ref()?;
        let lanes = &trunk.written_by[usize::from(over.side(writer.side))];
        Some(lanes.delivered_in_order(writer.connection.0))
    }

    /// The lanes of a lane's trunk, apart from the connections; to be [put back](Self::put_trunk).
    pub(super) fn take_trunk(&mut self, lane: ConnectionId) -> Option<Box<Trunk>> {
        let over = self.connection(lane)?.over?;
        self.connection(over.trunk)?.trunk.take()
    }

    /// See [`take_trunk`](Self::take_trunk).
    pub(super) fn put_trunk(&mut self, trunk: ConnectionId, lanes: Box<Trunk>) {
        if let Some(connection) = self.connection(trunk) {
            connection.trunk = Some(lanes);
        }
    }

    /// A packet of a QUIC connection has arrived.
    pub(super) fn trunk_packet(&mut self, packet: &Packet<Wire>) {
        let now = self.now;
        let (to, segment) = (packet.payload.to(), packet.payload.segment());
        let id = EndId { connection: ConnectionId(packet.flow), side: to };
        let Some(connection) = self.connections[packet.flow as usize].as_deref_mut() else { return };
        let Some(mut trunk) = connection.trunk.take() else { return };
        let config = &self.tcp_parameters[connection.profile as usize];
        let end = &mut connection.ends[usize::from(to)];
        let arrival = end.tcp.on_segment(config, now, &segment);
        let [ours, theirs] = [to, 1 - to].map(usize::from);
        trunk.written_by[ours].acknowledged(end.tcp.acknowledged());
        let moved = trunk.written_by[theirs].arrived(&end.tcp, segment.seq, segment.len);
        if connection.flights == 0 {
            trunk.written_by[theirs].read(&mut end.tcp, config, now, 0);
        }
        for (lane, from, upto) in trunk.written_by[theirs].within(segment.seq, segment.len) {
            let lane = self.connections[lane as usize].as_deref_mut();
            for follow in lane.into_iter().flat_map(|lane| lane.followed_by(id.other())) {
                let (sent, queue, propagation) = (packet.sent, packet.link_queue, packet.propagation);
                follow.arrived(now, from, (upto - from) as u32, sent, queue, propagation);
            }
        }
        self.put_trunk(id.connection, trunk);
        if arrival.established {
            self.begin_link_handshake(id);
        }
        if arrival.received > 0 {
            self.link_handshake_over(id);
        }
        for lane in moved {
            self.lane_readable(ConnectionId(lane), id);
        }
        self.transmit(id);
    }

    /// More of a lane has arrived at an end of its trunk.
    fn lane_readable(&mut self, lane: ConnectionId, at: EndId) {
        let Some(connection) = self.connection(lane) else { return };
        let Some(over) = connection.over else { return };
        let id = EndId { connection: lane, side: over.side(at.side) };
        let closing = connection.closing;
        if connection.ends[usize::from(id.side)].attached == Attached::Pending && !closing {
            self.channel_opened(id);
        }
        self.readable(id);
        if closing {
            self.close_if_flushed(id.other());
        }
    }

    /// A lane's cell was read.
    pub(super) fn lane_read(&mut self, id: EndId, bytes: u64) {
        let now = self.now;
        let Some(over) = self.connection(id.connection).and_then(|lane| lane.over) else { return };
        let side = over.side(id.side);
        let Some(connection) = self.connections[over.trunk.0 as usize].as_deref_mut() else { return };
        let config = &self.tcp_parameters[connection.profile as usize];
        if let Some(trunk) = &mut connection.trunk {
            let tcp = &mut connection.ends[usize::from(side)].tcp;
            trunk.written_by[usize::from(1 - side)].read(tcp, config, now, bytes);
        }
    }

    /// Lanes of a trunk take bytes again from the host at this end.
    pub(super) fn lanes_roomy(&mut self, id: EndId) {
        let Some(connection) = self.connection(id.connection) else { return };
        let Some(trunk) = &mut connection.trunk else { return };
        trunk.waking[usize::from(id.side)] = false;
        for lane in trunk.written_by[usize::from(id.side)].take_roomy() {
            let over = self.connection(ConnectionId(lane)).and_then(|lane| lane.over);
            if let Some(over) = over {
                self.writable(EndId { connection: ConnectionId(lane), side: over.side(id.side) });
            }
        }
    }

    /// A lane is no more.
    pub(super) fn lane_closed(&mut self, lane: ConnectionId, over: Over) {
        let trunk = self.connection(over.trunk).and_then(|connection| connection.trunk.as_mut());
        for lanes in trunk.into_iter().flat_map(|trunk| &mut trunk.written_by) {
            lanes.close(lane.0);
        }
    }

    /// A QUIC connection is no more, nor are its lanes.
    pub(super) fn trunk_closed(&mut self, connection: &Connection) {
        let [a, b] = [0, 1].map(|side: usize| connection.ends[side].host);
        self.trunks.remove(&(a.min(b), a.max(b)));
        let lanes: Vec<u32> =
            connection.trunk.iter().flat_map(|trunk| trunk.written_by[0].numbers()).collect();
        for lane in lanes {
            self.kill(ConnectionId(lane));
        }
    }
}
