//! QUIC: a connection per pair of nodes (the trunk) and a lane per channel on it. A lane is a [`Connection`];
//! the trunk's packets carry its bytes. Nodes cannot tell lanes from TCP connections.

use tidegate_control::units::Time;
use tidegate_proto::ids::ChannelId;

use super::ends::{Attached, Connection, ConnectionId, End, EndId, Over, Trunk, Wire};
use super::profile::TcpProfile;
use super::segments::Arrived;
use super::table::Connections;
use crate::tcp;
use crate::underlay::Packet;
use crate::world::context::Context;

impl Connections {
    /// Finds or opens the QUIC connection between two hosts; true if it was opened now.
    pub(crate) fn trunk(&mut self, ctx: &mut Context<'_>, from: u32, to: u32) -> (ConnectionId, bool) {
        let pair = (from.min(to), from.max(to));
        if let Some(trunk) = self.trunks.get(&pair) {
            return (*trunk, false);
        }
        let trunk = self.open(ctx, from, to, [Attached::Trunk, Attached::Trunk]).connection;
        self.trunks.insert(pair, trunk);
        (trunk, true)
    }

    /// Opens a lane for a channel on a QUIC connection. Returns the opener's end, and whether cells may go now;
    /// otherwise the lane waits for the connection's handshake.
    pub(crate) fn open_lane(
        &mut self,
        trunk: ConnectionId,
        (from, to): (u32, u32),
        channel: ChannelId,
    ) -> (EndId, bool) {
        let id = EndId { connection: ConnectionId(self.all.len() as u32), side: 0 };
        let config = &self.parameters[TcpProfile::Quic as usize];
        let ends = [(from, Attached::Channel(channel)), (to, Attached::Pending)];
        let ends = ends.map(|(host, attached)| End::new(host, tcp::Endpoint::passive(config), attached));
        let mut lane = Connection::new(ends, TcpProfile::Quic, 0);
        let carrier = self.live_mut(trunk).expect("`trunks` has only open connections");
        let over = Over { trunk, flipped: carrier.ends[0].host != from };
        let lanes = carrier.trunk.as_mut().expect("a QUIC connection has lanes");
        lanes.written_by.iter_mut().for_each(|lanes| lanes.open(id.connection.0));
        let open = lanes.open[usize::from(over.side(0))];
        if !open {
            lanes.waiting.push(id);
        }
        lane.over = Some(over);
        self.all.push(Some(Box::new(lane)));
        (id, open)
    }

    /// An end of a QUIC connection may send from now on; returns the lanes that waited for it or for the other end.
    pub(crate) fn trunk_opened(&mut self, id: EndId) -> Vec<EndId> {
        let trunk = self.lanes_mut(id.connection).expect("the QUIC connection is open");
        trunk.open[usize::from(id.side)] = true;
        std::mem::take(&mut trunk.waiting)
    }

    /// A lane waits for the other end of its QUIC connection, if that is still open.
    pub(crate) fn keep_waiting(&mut self, trunk: ConnectionId, lane: EndId) {
        if let Some(trunk) = self.lanes_mut(trunk) {
            trunk.waiting.push(lane);
        }
    }

    fn lanes_mut(&mut self, trunk: ConnectionId) -> Option<&mut Trunk> {
        self.live_mut(trunk)?.trunk.as_deref_mut()
    }

    /// Offset up to which the bytes written at a lane's end have arrived; `None` if it is not a lane's end.
    pub(super) fn lane_arrived(&self, writer: EndId) -> Option<u64> {
        let over = self.live(writer.connection)?.over?;
        let trunk = self.live(over.trunk)?.trunk.as_ref()?;
        let lanes = &trunk.written_by[usize::from(over.side(writer.side))];
        Some(lanes.delivered_in_order(writer.connection.0))
    }

    /// Takes the lanes of a lane's QUIC connection out of it, until [`put_trunk`](Self::put_trunk).
    pub(super) fn take_trunk(&mut self, lane: ConnectionId) -> Option<Box<Trunk>> {
        let over = self.live(lane)?.over?;
        self.live_mut(over.trunk)?.trunk.take()
    }

    /// Puts the lanes back that [`take_trunk`](Self::take_trunk) took.
    pub(super) fn put_trunk(&mut self, trunk: ConnectionId, lanes: Box<Trunk>) {
        self.live_mut(trunk).expect("a lane's QUIC connection is open").trunk = Some(lanes);
    }

    /// Takes a packet of an open QUIC connection.
    pub(super) fn receive_quic(&mut self, now: Time, packet: &Packet<Wire>) -> Arrived {
        let (to, segment) = (packet.payload.to(), packet.payload.segment());
        let id = EndId { connection: ConnectionId(packet.flow), side: to };
        let connection = self.all[packet.flow as usize].as_deref_mut().expect("it is open");
        let mut trunk = connection.trunk.take().expect("a QUIC connection has lanes");
        let config = &self.parameters[connection.profile as usize];
        let end = &mut connection.ends[usize::from(to)];
        let (host, arrival) = (end.host, end.tcp.on_segment(config, now, &segment));
        let [ours, theirs] = [to, 1 - to].map(usize::from);
        trunk.written_by[ours].acknowledged(end.tcp.acknowledged());
        let mut moved = std::mem::take(&mut self.moved);
        trunk.written_by[theirs].arrived(&end.tcp, segment.seq, segment.len, &mut moved);
        if connection.flights == 0 {
            trunk.written_by[theirs].read(&mut end.tcp, config, now, 0);
        }
        let len = if self.traced { segment.len } else { 0 };
        for (lane, from, upto) in trunk.written_by[theirs].within(segment.seq, len) {
            let lane = self.live_mut(ConnectionId(lane));
            for follow in lane.into_iter().flat_map(|lane| lane.followed_by(id.other())) {
                let (sent, queue, propagation) = (packet.sent, packet.link_queue, packet.propagation);
                follow.arrived(now, from, (upto - from) as u32, sent, queue, propagation);
            }
        }
        self.put_trunk(id.connection, trunk);
        Arrived::Lanes { id, host, arrival, moved }
    }

    /// Takes back the memory of [`Arrived::Lanes`].
    pub(crate) fn take_back(&mut self, mut moved: Vec<u32>) {
        moved.clear();
        self.moved = moved;
    }

    /// The end of a lane at an end of its QUIC connection, while it is open, and whether the lane waits to be closed.
    pub(crate) fn lane_at(&self, lane: u32, at: EndId) -> Option<(EndId, bool)> {
        let connection = self.live(ConnectionId(lane))?;
        let side = connection.over?.side(at.side);
        Some((EndId { connection: ConnectionId(lane), side }, connection.closing))
    }

    /// Cells of a lane were read.
    pub(super) fn lane_read(&mut self, now: Time, id: EndId, bytes: u64) {
        let over = self.live(id.connection).and_then(|lane| lane.over).expect("it is a lane");
        let side = over.side(id.side);
        let connection = self.all[over.trunk.0 as usize].as_deref_mut();
        let connection = connection.expect("a lane's QUIC connection is open");
        let config = &self.parameters[connection.profile as usize];
        let trunk = connection.trunk.as_mut().expect("a QUIC connection has lanes");
        let tcp = &mut connection.ends[usize::from(side)].tcp;
        trunk.written_by[usize::from(1 - side)].read(tcp, config, now, bytes);
    }

    /// Takes the lanes that have room again for what the host at an end of a QUIC connection writes.
    pub(crate) fn take_roomy(&mut self, id: EndId) -> Vec<u32> {
        self.lanes_mut(id.connection).map_or_else(Vec::new, |trunk| {
            trunk.waking[usize::from(id.side)] = false;
            trunk.written_by[usize::from(id.side)].take_roomy()
        })
    }

    /// A lane has closed.
    pub(super) fn lane_closed(&mut self, lane: ConnectionId, over: Over) {
        let trunk = self.lanes_mut(over.trunk);
        for lanes in trunk.into_iter().flat_map(|trunk| &mut trunk.written_by) {
            lanes.close(lane.0);
        }
    }

    /// A QUIC connection has closed; returns its lanes, which close with it.
    pub(super) fn trunk_closed(&mut self, connection: &Connection) -> Vec<u32> {
        let [a, b] = [0, 1].map(|side: usize| connection.ends[side].host);
        self.trunks.remove(&(a.min(b), a.max(b)));
        connection.trunk.iter().flat_map(|trunk| trunk.written_by[0].numbers()).collect()
    }
}
