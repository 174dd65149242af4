//! Nodes on their connections: moves cells and bytes between machines and TCP.
//!
//! [`Network`] owns [`Connections`] and [`Nodes`] and does not know the applications: it reports to them through
//! [`NodeEvents`].

use tidegate_control::units::Span;
use tidegate_proto::cell::{CELL_BYTES, Cell, DATA_BYTES, RelayId};
use tidegate_proto::ids::{ChannelId, CircuitKey, StreamKey};
use tidegate_proto::node::{Output, Socket};
use tidegate_proto::onion::{Clear, Stamp};

use super::connections::{Attached, ConnectionId, Connections, EndId, Handshake, Reading, Sockets};
use super::context::Context;
use super::event::Event;
use super::nodes::Nodes;
use crate::observe::{Host, Observation};

/// An event of a node for the applications on its host.
pub(super) enum NodeEvent {
    /// Exit: connect a stream to the server of its transfer.
    Connect(StreamKey, u32),
    /// Client: bytes came out of a stream, in so many equal cells.
    Delivered(StreamKey, u16, Stamp, u32),
    /// A stream may package bytes into at most this many cells.
    Package(StreamKey, u32),
    /// Client: the exit has connected a stream.
    StreamConnected(StreamKey),
    /// Client: a stream is over.
    StreamClosed(StreamKey),
    /// Client: a circuit carries streams from now on.
    CircuitBuilt(CircuitKey),
    /// Client: a circuit's second leg is linked.
    Linked(CircuitKey),
    /// A circuit has moved to another connection or to its standby circuit.
    Switched(CircuitKey),
    /// Client: a circuit is gone.
    CircuitClosed(CircuitKey),
}

/// The applications above the nodes.
pub(super) trait NodeEvents {
    /// Handles an event of the node on a host.
    fn node_event(&mut self, net: &mut Network<'_>, host: u32, event: NodeEvent);

    /// Exit: packages at most `cells` cells of what a stream's server has sent to `end`; returns their bytes.
    fn read_from_server(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        stream: StreamKey,
        end: EndId,
        cells: u32,
    ) -> u64;

    /// The connection between the exit and the server of a transfer has closed.
    fn server_closed(&mut self, transfer: u32);
}

/// The nodes of a process and their connections.
pub(super) struct Network<'a> {
    pub ctx: Context<'a>,
    pub connections: Connections,
    pub nodes: Nodes,
}

impl Network<'_> {
    /// Does what the node on a host asks until it asks nothing more, and sets its timer.
    pub(crate) fn drain(&mut self, apps: &mut impl NodeEvents, host: u32) {
        loop {
            let output = self.nodes.node(host).poll();
            // Bytes for a server from cells of one read are written together, as tor does.
            if !matches!(output, Some(Output::Deliver(..)))
                && self.write_to_servers(apps, host)
                && output.is_none()
            {
                continue;
            }
            // A timeout that is due now comes before anything written now.
            if matches!(output, None | Some(Output::Flush(_))) {
                self.set_timer(host);
            }
            let Some(output) = output else { break };
            match output {
                Output::OpenChannel(channel, RelayId(to)) => self.open_channel(apps, host, channel, to),
                Output::CloseChannel(channel) => self.close_channel(apps, host, channel),
                Output::OutOfBand(channel, cell, delay) => self.send_out_of_band(host, channel, cell, delay),
                Output::Flush(channel) => {
                    if let Some(end) = self.nodes.channel(host, channel) {
                        self.flush(apps, end);
                    }
                }
                Output::Inspect(channel) => self.inspect(host, channel),
                Output::Deliver(stream, bytes, stamp, cells) => {
                    if !self.nodes.deliver_to_server(host, stream, u64::from(bytes) * u64::from(cells)) {
                        apps.node_event(self, host, NodeEvent::Delivered(stream, bytes, stamp, cells));
                    }
                }
                Output::StreamClosed(stream, _) => match self.nodes.remove_server(host, stream) {
                    Some(end) => self.close(apps, end.connection),
                    None => apps.node_event(self, host, NodeEvent::StreamClosed(stream)),
                },
                Output::Connect(stream, transfer) => {
                    apps.node_event(self, host, NodeEvent::Connect(stream, transfer as u32));
                }
                Output::Package(stream, cells) => {
                    apps.node_event(self, host, NodeEvent::Package(stream, cells));
                }
                Output::CircuitBuilt(circuit) => {
                    apps.node_event(self, host, NodeEvent::CircuitBuilt(circuit));
                }
                Output::Linked(circuit) => apps.node_event(self, host, NodeEvent::Linked(circuit)),
                Output::StreamConnected(stream) => {
                    apps.node_event(self, host, NodeEvent::StreamConnected(stream));
                }
                Output::Resolved(..) => unreachable!("simulated clients connect by address"),
                Output::CircuitClosed(circuit) => {
                    apps.node_event(self, host, NodeEvent::CircuitClosed(circuit));
                }
                // The relay counts them itself.
                Output::CircuitEnded(..) => {}
                Output::Switched(circuit, parts) => {
                    self.ctx.record(Observation::Switched { at: Host(host), parts });
                    apps.node_event(self, host, NodeEvent::Switched(circuit));
                }
            }
        }
    }

    /// Sets a timer event for a host's node, if it needs an earlier one.
    pub(crate) fn set_timer(&mut self, host: u32) {
        if let Some(due) = self.nodes.next_timer(host, self.ctx.now) {
            self.ctx.queue.push(due, Event::Node(host));
        }
    }

    /// A timer event of a node has come up.
    pub(crate) fn node_timer(&mut self, apps: &mut impl NodeEvents, host: u32) {
        if self.nodes.timeout(host, self.ctx.now) {
            self.drain(apps, host);
        }
    }

    /// Sends what TCP may send now.
    pub(crate) fn transmit(&mut self, id: EndId) {
        self.connections.transmit(self.ctx.now, &mut self.ctx.queue, id);
    }

    /// The sockets of the process, for FlashFlow's roles.
    pub(crate) fn sockets(&mut self) -> Sockets<'_> {
        let Network { ctx, connections, .. } = self;
        Sockets { now: ctx.now, connections, queue: &mut ctx.queue }
    }

    /// Opens a connection; returns the opener's end.
    pub(crate) fn open(&mut self, from: u32, to: u32, attached: [Attached; 2]) -> EndId {
        self.connections.open(&mut self.ctx, from, to, attached)
    }

    fn open_channel(&mut self, apps: &mut impl NodeEvents, host: u32, channel: ChannelId, to: u32) {
        if self.nodes.speak_quic([host, to]) {
            return self.open_lane(apps, host, to, channel);
        }
        let end = self.open(host, to, [Attached::Channel(channel), Attached::Pending]);
        self.nodes.set_channel(host, channel, Some(end));
        if self.connections.standing(&self.ctx, host, to) {
            if self.ctx.is_here(to) {
                self.channel_opened(apps, end.other());
            }
            self.channel_opened(apps, end);
        }
    }

    /// Opens a lane for a channel between two nodes that speak QUIC, and their connection if they have none.
    fn open_lane(&mut self, apps: &mut impl NodeEvents, from: u32, to: u32, channel: ChannelId) {
        let (trunk, is_new) = self.connections.trunk(&mut self.ctx, from, to);
        if is_new && self.connections.standing(&self.ctx, from, to) {
            for side in [0, 1] {
                self.trunk_opened(apps, EndId { connection: trunk, side }, [from, to][usize::from(side)]);
            }
        }
        let (id, open) = self.connections.open_lane(trunk, (from, to), channel);
        self.nodes.set_channel(from, channel, Some(id));
        if open {
            self.nodes.node(from).channel_opened(self.ctx.now, channel);
        }
    }

    /// An end of a QUIC connection may send: the lanes that its host has opened are open.
    fn trunk_opened(&mut self, apps: &mut impl NodeEvents, id: EndId, host: u32) {
        for lane in self.connections.trunk_opened(id) {
            match self.connections.attachment(lane) {
                Some((opener, _)) if opener == host => self.channel_opened(apps, lane),
                _ => self.connections.keep_waiting(id.connection, lane),
            }
        }
    }

    /// TCP's handshake has just ended at an end.
    pub(crate) fn established(
        &mut self,
        apps: &mut impl NodeEvents,
        id: EndId,
        (host, attached): (u32, Attached),
    ) {
        match attached {
            Attached::Stream(stream) => {
                self.nodes.node(host).stream_connected(self.ctx.now, stream);
                self.drain(apps, host);
            }
            Attached::Pending if id.side == 0 => {}
            Attached::Channel(_) | Attached::Pending | Attached::Trunk => {
                if self.connections.begin_handshake(self.ctx.now, &mut self.ctx.queue, id) {
                    self.channel_opened(apps, id);
                }
            }
            Attached::Server(_) | Attached::Echo(_) => {}
        }
    }

    /// Reads what belongs to the handshake of TLS and the link protocol; true once cells may be read.
    pub(crate) fn link_handshake_over(&mut self, apps: &mut impl NodeEvents, id: EndId) -> bool {
        let handshake = self.connections.continue_handshake(self.ctx.now, &mut self.ctx.queue, id);
        if matches!(handshake, Handshake::Answered | Handshake::Ended) {
            self.channel_opened(apps, id);
        }
        matches!(handshake, Handshake::Ended | Handshake::Over)
    }

    /// An end's node may use the channel.
    pub(crate) fn channel_opened(&mut self, apps: &mut impl NodeEvents, id: EndId) {
        match self.connections.attachment(id) {
            Some((host, Attached::Channel(channel))) => {
                self.nodes.node(host).channel_opened(self.ctx.now, channel);
                self.drain(apps, host);
            }
            Some((host, Attached::Pending)) if id.side == 1 => {
                let (from, _) = self.connections.attachment(id.other()).expect("both ends are open");
                let peer = self.ctx.is_relay(from).then_some(RelayId(from));
                let channel = self.nodes.node(host).channel_accepted(peer);
                self.nodes.set_channel(host, channel, Some(id));
                self.connections.attach(id, Attached::Channel(channel));
            }
            Some((host, Attached::Trunk)) => self.trunk_opened(apps, id, host),
            // Closed by what happened since, or waiting to be closed.
            _ => {}
        }
    }

    /// Closes a channel's connection once what was written has arrived.
    fn close_channel(&mut self, apps: &mut impl NodeEvents, host: u32, channel: ChannelId) {
        if let Some(end) = self.nodes.channel(host, channel) {
            self.nodes.set_channel(host, channel, None);
            self.connections.close_once_flushed(end);
            self.close_if_flushed(apps, end);
        }
    }

    /// Closes a connection if its end waits for that and has delivered everything.
    pub(crate) fn close_if_flushed(&mut self, apps: &mut impl NodeEvents, id: EndId) {
        if self.connections.is_flushed(id) {
            self.close(apps, id.connection);
        }
    }

    /// Closes a connection, unless it is closed already, and tells the users of both ends.
    pub(crate) fn close(&mut self, apps: &mut impl NodeEvents, id: ConnectionId) {
        if let Some(closed) = self.connections.close(&self.ctx, id) {
            if let Some(transfer) = closed.transfer {
                apps.server_closed(transfer);
            }
            for lane in closed.lanes {
                self.close(apps, ConnectionId(lane));
            }
            for (host, attached) in closed.ends.into_iter().flatten() {
                match attached {
                    Attached::Channel(channel) => {
                        self.nodes.set_channel(host, channel, None);
                        self.nodes.node(host).channel_closed(self.ctx.now, channel);
                        self.drain(apps, host);
                    }
                    // The exit reports the end of the stream to its client.
                    Attached::Stream(stream) => {
                        self.nodes.remove_server(host, stream);
                        self.nodes.node(host).stream_ended(self.ctx.now, stream);
                        self.drain(apps, host);
                    }
                    Attached::Server(_) | Attached::Echo(_) | Attached::Pending | Attached::Trunk => {}
                }
            }
        }
    }

    /// A host goes down: all of its connections break.
    pub(crate) fn host_down(&mut self, apps: &mut impl NodeEvents, host: u32) {
        for connection in self.connections.of_host(host) {
            self.close(apps, connection);
        }
        self.drain(apps, host);
    }

    /// Tells a host's node the state of a channel's socket.
    fn inspect(&mut self, host: u32, channel: ChannelId) {
        if let Some(end) = self.nodes.channel(host, channel) {
            let socket = self.connections.tcp_info(end).map(|info| Socket {
                window: info.cwnd,
                unacknowledged: info.unacked,
                unsent_bytes: info.not_sent,
                segment_bytes: info.mss,
            });
            self.nodes.node(host).socket(self.ctx.now, channel, socket);
        }
    }

    /// Reads the cells that have arrived at an end and hands them to its node, until they have `share` bytes or more. Returns
    /// the bytes read, TLS included. The node's reaction waits for [`drain`](Self::drain).
    pub(crate) fn read_cells(&mut self, id: EndId, share: u64) -> u64 {
        let Network { ctx, connections, nodes } = self;
        let (now, system) = (ctx.now, ctx.system);
        connections.read_cells(ctx, id, share, |Reading { host, attached, from }, runs| match attached {
            Attached::Channel(channel) => {
                nodes.cells((now, system.control.as_ref()), (host, channel), (from, id), runs);
            }
            _ => runs.for_each(drop),
        })
    }

    /// Reads all cells that have arrived at an end of a host without limits.
    pub(crate) fn read_all(&mut self, apps: &mut impl NodeEvents, host: u32, id: EndId) {
        self.read_cells(id, u64::MAX);
        self.drain(apps, host);
    }

    fn send_out_of_band(&mut self, host: u32, channel: ChannelId, cell: Cell<Clear>, delay: Span) {
        if let Some(end) = self.nodes.channel(host, channel) {
            let at = self.ctx.now + delay;
            self.connections.send_out_of_band(&mut self.ctx.queue, end, at, cell);
        }
    }

    /// A cell arrives out of band; if its channel has closed meanwhile, it is lost.
    pub(crate) fn out_of_band_arrives(&mut self, apps: &mut impl NodeEvents, message: u32) {
        let (id, cell) = self.connections.take_out_of_band(message);
        if let Some((host, Attached::Channel(channel))) = self.connections.attachment(id) {
            let (from, _) = self.connections.attachment(id.other()).expect("both ends are open");
            let at = (self.ctx.now, self.ctx.system.control.as_ref());
            self.nodes.cells(at, (host, channel), (from, id), &mut std::iter::once((cell, 1)));
            self.drain(apps, host);
        }
    }

    /// Writes a channel's cells to TCP as long as TCP and the host's bucket take them, or an exit's bytes for a server.
    pub(crate) fn flush(&mut self, apps: &mut impl NodeEvents, id: EndId) {
        match self.connections.attachment(id) {
            Some((host, Attached::Channel(channel))) => self.flush_channel(host, channel, id),
            Some(_) => self.write_to_server(apps, id, 0),
            // It closed while it waited for its turn.
            None => {}
        }
    }

    fn flush_channel(&mut self, host: u32, channel: ChannelId, id: EndId) {
        let now = self.ctx.now;
        let gate = self.nodes.gate(host);
        let share = gate.map_or(u64::MAX, |gate| gate.write_share(now, CELL_BYTES.into()));
        let node = self.nodes.node(host);
        let (written, gated) = self.connections.write_cells((now, self.ctx.system), id, share, |sink| {
            node.drain(now, channel, sink);
        });
        if let Some(gate) = self.nodes.gate(host) {
            gate.wrote(written);
            if gated {
                gate.wait_to_write(now, id);
                self.pump_again(host);
            }
        }
        self.transmit(id);
    }

    /// Exit: writes bytes from the client to the server, now or when TCP and the host's bucket take them. Bytes for a
    /// closed connection are dropped.
    pub(crate) fn write_to_server(&mut self, apps: &mut impl NodeEvents, id: EndId, bytes: u64) {
        if let Some((host, attached)) = self.connections.attachment(id) {
            let now = self.ctx.now;
            let gate = self.nodes.gate(host).filter(|gate| gate.holds_servers());
            let share = gate.map_or(u64::MAX, |gate| gate.write_share(now, DATA_BYTES.into()));
            let (written, before, left) = self.connections.write_to_server(id, bytes, share);
            let gated = left > 0 && written == share;
            if let Some(gate) = self.nodes.gate(host).filter(|gate| gate.holds_servers()) {
                gate.wrote(written);
                if gated {
                    gate.wait_to_write(now, id);
                    self.pump_again(host);
                }
            }
            if let Attached::Stream(stream) = attached
                && (before > 0 || left > 0)
            {
                self.nodes.node(host).backlog(now, stream, left, left);
                self.drain(apps, host);
            }
            self.transmit(id);
        }
    }

    /// Exit: writes the bytes for servers from the cells read just now; false if there were none.
    fn write_to_servers(&mut self, apps: &mut impl NodeEvents, host: u32) -> bool {
        let mut any = false;
        while let Some((id, bytes)) = self.nodes.next_to_server(host) {
            self.write_to_server(apps, id, bytes);
            any = true;
        }
        any
    }

    /// Server: tells an exit how many bytes are still to come from the server.
    pub(crate) fn announce(&mut self, exit: EndId, bytes: u64) {
        if !self.connections.announce_across(exit, bytes) {
            self.announced(exit, bytes);
        }
    }

    /// Exit: the server will write this many bytes.
    pub(crate) fn announced(&mut self, exit: EndId, bytes: u64) {
        if let Some((host, Attached::Stream(stream))) = self.connections.attachment(exit) {
            self.nodes.node(host).announced(stream, bytes);
        }
    }

    /// Lets a gated host read and write what its buckets and its processor allow now.
    pub(crate) fn pump(&mut self, apps: &mut impl NodeEvents, host: u32) {
        self.nodes.gated(host).retry(self.ctx.now);
        let mut busy = false;
        while !busy {
            let gate = self.nodes.gated(host);
            let (readers, writers) = (gate.readers.len(), gate.writers.len());
            for _ in 0..readers {
                busy |= !self.reading_turn(apps, host);
            }
            for _ in 0..writers {
                let Some(end) = self.next_writer(host) else { break };
                self.flush(apps, end);
                self.drain(apps, host);
            }
            busy |= readers + writers == 0;
        }
        self.pump_again(host);
    }

    /// The next end in turn reads its share, and then the host writes the results, as tor does once per read
    /// event (`connection_handle_read`). False if the processor is busy.
    fn reading_turn(&mut self, apps: &mut impl NodeEvents, host: u32) -> bool {
        let now = self.ctx.now;
        let gate = self.nodes.gated(host);
        if gate.busy_until > now {
            return false;
        }
        let Some(end) = gate.readers.pop_front() else { return true };
        let spent = match self.connections.attachment(end) {
            // A measurement held it, and is over.
            Some((_, Attached::Stream(stream))) if !gate.holds_servers() => {
                apps.node_event(self, host, NodeEvent::Package(stream, u32::MAX));
                self.drain(apps, host);
                return true;
            }
            Some((_, Attached::Stream(stream))) => {
                let share = gate.read_share(now, DATA_BYTES.into());
                let most = if gate.cell_cost > Span::ZERO { 1 } else { u64::MAX };
                let cells = share.div_ceil(DATA_BYTES.into()).min(most);
                let cells = u32::try_from(cells).unwrap_or(u32::MAX);
                let read = apps.read_from_server(self, host, stream, end, cells);
                // Windows or queues stop the stream: it waits for the node, not for another turn.
                if read == 0 && cells > 0 {
                    return true;
                }
                read
            }
            _ if !self.connections.can_read(end) => return true,
            _ => self.read_share(host, end),
        };
        self.drain(apps, host);
        self.transmit(end);
        self.nodes.gated(host).has_read(now, end, spent);
        true
    }

    /// Reads a channel's share, or one cell where cells cost time; returns the bytes to take from the bucket.
    fn read_share(&mut self, host: u32, end: EndId) -> u64 {
        let gate = self.nodes.gated(host);
        // The share counts cells; the bucket also counts what TLS adds.
        let (share, cell_cost) = (gate.read_share(self.ctx.now, CELL_BYTES.into()), gate.cell_cost);
        self.read_cells(end, if cell_cost > Span::ZERO { share.min(1) } else { share })
    }

    /// Takes the end that writes next: in turn, or the one with the fewest cells lately.
    pub(crate) fn next_writer(&mut self, host: u32) -> Option<EndId> {
        let (now, connections) = (self.ctx.now, &self.connections);
        let writers = &mut self.nodes.gated(host).writers;
        let at = match self.ctx.system.connection_half_life {
            None => 0,
            Some(half_life) => {
                let count = |end: &EndId| connections.loudness(*end, now, half_life);
                (0..writers.len()).min_by(|a, b| count(&writers[*a]).total_cmp(&count(&writers[*b])))?
            }
        };
        writers.remove(at)
    }

    /// Schedules the next pump of a gated host, if it waits for something.
    pub(crate) fn pump_again(&mut self, host: u32) {
        if let Some(at) = self.nodes.gated(host).next_pump(self.ctx.now) {
            self.ctx.queue.push(at, Event::Pump(host));
        }
    }
}
