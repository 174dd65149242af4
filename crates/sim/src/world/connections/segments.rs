//! Sends and receives TCP segments.

use tidegate_control::units::Time;

use super::ahead;
use super::burst::{Burst, sizes};
use super::ends::{Attached, Connection, ConnectionId, End, EndId, Trunk, Wire};
use super::table::Connections;
use crate::observe::{Host, Seen};
use crate::queue::Queue;
use crate::tcp::{self, Arrival, Segment};
use crate::underlay::{NetEvent, Packet};
use crate::world::context::Context;
use crate::world::event::Event;

/// A segment that has arrived at an end.
pub(in crate::world) enum Arrived {
    /// Over TCP.
    Segment {
        id: EndId,
        host: u32,
        attached: Attached,
        arrival: Arrival,
        /// TCP takes bytes again.
        writable: bool,
        /// The connection closes once everything has been acknowledged.
        closing: bool,
    },
    /// A packet of a QUIC connection: its end, and the lanes that have something to read.
    Lanes { id: EndId, host: u32, arrival: Arrival, moved: Vec<u32> },
}

impl Connections {
    /// The next event that is due by `last`; loads what the events after it need.
    pub(crate) fn next_event(&self, queue: &mut Queue<Event>, last: Time) -> Option<(Time, Event)> {
        queue.pop_until(last, |event| ahead::look(&self.underlay, &self.all, event))
    }

    /// Advances a packet by one event; returns it when it has arrived at its host.
    pub(crate) fn advance(&mut self, queue: &mut Queue<Event>, event: NetEvent) -> Option<Packet<Wire>> {
        let (all, parameters) = (&self.all, &self.parameters);
        self.underlay.handle_train(queue, event, &|flow, wire: &Wire, packets| {
            let connection = all[flow as usize].as_deref()?;
            Some(wire.cut(packets, &parameters[connection.profile as usize]))
        })
    }

    /// The host at which an event of the network happens.
    pub(crate) fn place(&self, event: &Event) -> Option<Host> {
        match *event {
            Event::Net(event) => self.underlay.place(event),
            Event::Tcp(id) | Event::Roomy(id) => self.end(id).map(|end| Host(end.host)),
            _ => None,
        }
    }

    /// Takes a packet that has arrived at a host; `None` if its connection has closed.
    pub(crate) fn receive(&mut self, ctx: &mut Context<'_>, packet: &Packet<Wire>) -> Option<Arrived> {
        let now = ctx.now;
        let (to, segment) = (packet.payload.to(), packet.payload.segment());
        let id = EndId { connection: ConnectionId(packet.flow), side: to };
        let connection = self.all[packet.flow as usize].as_deref_mut()?;
        let config = &self.parameters[connection.profile as usize];
        if ctx.watches_packets {
            let [from, to] = [1 - to, to].map(|side| Host(connection.ends[usize::from(side)].host));
            ctx.seen = Some(Seen { from, to, flow: packet.flow, bytes: segment.wire_bytes(config) });
        }
        if connection.trunk.is_some() {
            return Some(self.receive_quic(now, packet));
        }
        for follow in connection.follows.iter_mut().filter(|follow| follow.writer != to) {
            let (sent, queue, propagation) = (packet.sent, packet.link_queue, packet.propagation);
            follow.arrived(now, segment.seq, segment.len, sent, queue, propagation);
        }
        let end = &mut connection.ends[usize::from(to)];
        let arrival = end.tcp.on_segment(config, now, &segment);
        let writable = arrival.acked > 0 && end.tcp.writable(config);
        let (host, attached, closing) = (end.host, end.attached, connection.closing);
        Some(Arrived::Segment { id, host, attached, arrival, writable, closing })
    }

    /// Handles a TCP timer event; returns whether TCP has given the connection up.
    pub(crate) fn timer(&mut self, ctx: &mut Context<'_>, id: EndId) -> bool {
        let now = ctx.now;
        // An event that an earlier one has overtaken must not set another.
        let Some(end) = self.end_mut(id) else { return false };
        if !end.timer.fires(now) {
            return false;
        }
        if end.tcp.next_timeout() <= now {
            let (tcp, config) = self.tcp(id).expect("the connection is open");
            tcp.on_timeout(config, now);
            if tcp.state() == tcp::State::Broken {
                return true;
            }
        }
        self.transmit(now, &mut ctx.queue, id);
        false
    }

    /// Sends what TCP may send now, and arms its timer. A lane's bytes leave with its QUIC connection.
    pub(crate) fn transmit(&mut self, now: Time, queue: &mut Queue<Event>, id: EndId) {
        let Some(connection) = self.all[id.connection.0 as usize].as_deref_mut() else { return };
        if let Some(over) = connection.over {
            let id = EndId { connection: over.trunk, side: over.side(id.side) };
            return self.transmit_grouped(now, queue, id);
        }
        if connection.trains || connection.trunk.is_some() {
            return self.transmit_grouped(now, queue, id);
        }
        let config = &self.parameters[connection.profile as usize];
        let to = connection.ends[1 - usize::from(id.side)].host;
        let Connection { ends, follows, .. } = connection;
        let end = &mut ends[usize::from(id.side)];
        let hosts = (Host(end.host), Host(to));
        while let Some(segment) = end.tcp.poll_transmit(config, now) {
            for follow in follows.iter_mut().filter(|follow| follow.writer == id.side) {
                follow.transmitted(now, segment.seq, segment.len);
            }
            let (bytes, wire) = (segment.wire_bytes(config), Wire::new(1 - id.side, &segment));
            let departs = self.underlay.send(queue, hosts, id.connection.0, bytes, wire);
            end.tcp.queued(departs, segment.len);
        }
        if let Some(due) = end.timer.arm(now, end.tcp.next_timeout()) {
            queue.push(due, Event::Tcp(id));
        }
    }

    /// As [`transmit`](Self::transmit), for a connection of which packets leave as trains or carry lanes.
    fn transmit_grouped(&mut self, now: Time, queue: &mut Queue<Event>, id: EndId) {
        if let Some(connection) = self.all[id.connection.0 as usize].as_deref_mut() {
            let config = &self.parameters[connection.profile as usize];
            let trains = connection.trains;
            let mut trunk = connection.trunk.take();
            let follows_lanes = trunk.is_some() && self.traced;
            let to = connection.ends[1 - usize::from(id.side)].host;
            let Connection { ends, follows, .. } = connection;
            let end = &mut ends[usize::from(id.side)];
            let mut sent = Vec::new();
            let mut next = |tcp: &mut tcp::Endpoint| {
                // QUIC decides per packet which lane's bytes go into it.
                if let Some(trunk) = &mut trunk {
                    trunk.written_by[usize::from(id.side)].fill(tcp, config);
                }
                tcp.poll_transmit(config, now)
            };
            let hosts = (Host(end.host), Host(to));
            let underlay = &mut self.underlay;
            let mut send = |end: &mut End, segment: &Segment| {
                let wire = Wire::new(1 - id.side, segment);
                let departs = if trains {
                    let (flow, train) =
                        ((id.connection.0, &mut end.train_due), (sizes(segment, config), wire));
                    underlay.send_train(queue, hosts, flow, train, &|_, wire: &Wire, packets| {
                        Some(wire.cut(packets, config))
                    })
                } else {
                    let bytes = segment.wire_bytes(config);
                    underlay.send(queue, hosts, id.connection.0, bytes, wire)
                };
                end.tcp.queued(departs, segment.len);
            };
            let mut burst = trains.then(|| Burst::new(end.tcp.burst_packets(config)));
            while let Some(segment) = next(&mut end.tcp) {
                for follow in follows.iter_mut().filter(|follow| follow.writer == id.side) {
                    follow.transmitted(now, segment.seq, segment.len);
                }
                if follows_lanes {
                    sent.push((segment.seq, segment.len));
                }
                match &mut burst {
                    None => send(end, &segment),
                    Some(burst) => {
                        let trains = burst.push(segment, config);
                        trains.iter().flatten().for_each(|train| send(end, train));
                    }
                }
            }
            if let Some(train) = burst.and_then(Burst::rest) {
                send(end, &train);
            }
            if let Some(due) = end.timer.arm(now, end.tcp.next_timeout()) {
                queue.push(due, Event::Tcp(id));
            }
            if let Some(trunk) = trunk {
                self.lanes_sent(now, queue, id, trunk, &sent);
            }
        }
    }

    /// Segments of a QUIC connection have left: follows their cells, and wakes writers that have room now.
    fn lanes_sent(
        &mut self,
        now: Time,
        queue: &mut Queue<Event>,
        id: EndId,
        mut trunk: Box<Trunk>,
        sent: &[(u64, u32)],
    ) {
        let side = usize::from(id.side);
        let lanes = &trunk.written_by[side];
        for (lane, from, upto) in sent.iter().flat_map(|(seq, len)| lanes.within(*seq, *len)) {
            let lane = self.live_mut(ConnectionId(lane));
            for follow in lane.into_iter().flat_map(|lane| lane.followed_by(id)) {
                follow.transmitted(now, from, (upto - from) as u32);
            }
        }
        if lanes.any_roomy() && !trunk.waking[side] {
            trunk.waking[side] = true;
            queue.push(now, Event::Roomy(id));
        }
        self.live_mut(id.connection).expect("the QUIC connection is open").trunk = Some(trunk);
    }
}
