//! Transfers: a request and its response over one stream, from the client's first byte to the server's last.

use tidegate_control::units::Time;
use tidegate_proto::node::{CircuitKey, Source, StreamKey};
use tidegate_proto::onion::{Clear, Stamp};

use super::requests::{Content, Schedule, Schedules, TransferState};
use super::state::Applications;
use crate::observe::{Circuit, Observation, Transfer, User};
use crate::plan::Traffic;
use crate::world::connections::{Attached, EndId, ProcessMessage, ServerBytes};
use crate::world::context::Context;
use crate::world::event::Event;
use crate::world::network::Network;

/// Bytes that wait in an exit's connection to a server.
struct FromServer<'a, 'c> {
    waiting: ServerBytes<'a>,
    ctx: &'a mut Context<'c>,
    circuit: u32,
    /// Cells packaged by exits of this process.
    packaged: &'a mut u64,
    /// Bytes packaged from this source.
    bytes: u64,
}

impl Source<Clear> for FromServer<'_, '_> {
    fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
        let packaging = self.ctx.system.packaging;
        let max = max.min(packaging.cell_bytes);
        let bytes = self.waiting.take(self.ctx.now, max.into(), packaging.read_bytes);
        if bytes == 0 {
            return None;
        }
        self.bytes += bytes;
        *self.packaged += 1;
        let mut stamp = Stamp { packaged: self.ctx.now, ..Stamp::default() };
        if self.untraced() == Some(0) {
            stamp.trace = self.ctx.follow(self.circuit);
        }
        Some((bytes as u16, stamp))
    }

    fn take_run(&mut self, max: u16, cells: u32) -> Option<(u16, Stamp, u32)> {
        let (bytes, stamp) = self.take(max)?;
        let untraced = self.untraced().map_or(u32::MAX, |left| left as u32);
        if stamp.trace != 0 {
            return Some((bytes, stamp, 1));
        }
        let most = (cells - 1).min(untraced.saturating_sub(1));
        let more = self.waiting.take_more(self.ctx.now, bytes.into(), most);
        self.bytes += u64::from(bytes) * u64::from(more);
        *self.packaged += u64::from(more);
        Some((bytes, stamp, more + 1))
    }
}

impl FromServer<'_, '_> {
    /// Number of cells that come before the next one to follow; `None` if none is followed.
    fn untraced(&self) -> Option<u64> {
        let every = u64::from(self.ctx.plan.trace_one_in);
        (every > 0).then(|| (every - *self.packaged % every) % every)
    }
}

/// Request bytes that a client sends.
struct FromClient<'a>(&'a mut u64, Time);

impl Source<Clear> for FromClient<'_> {
    fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
        let bytes = u64::from(max).min(*self.0);
        *self.0 -= bytes;
        (bytes > 0).then(|| (bytes as u16, Stamp { packaged: self.1, ..Stamp::default() }))
    }
}

impl Applications {
    /// A transfer of a client of this process.
    fn transfer(&mut self, transfer: u32) -> &mut TransferState {
        &mut self.transfers[transfer as usize]
    }

    /// Begins a transfer of a user, and a circuit for it if it needs one.
    pub(super) fn begin_transfer(&mut self, net: &mut Network<'_>, user: u32, content: Content) -> u32 {
        let plan = net.ctx.plan;
        let user_plan = &plan.users[user as usize];
        let circuit = self.fresh_circuit(net, user);
        let transfer = self.transfers.next();
        let (request_bytes, response_bytes, timeout, markov) = match (content, &user_plan.traffic) {
            (Content::Markov(seed), Traffic::Markov(model, timeout)) => {
                let schedule = |from_server| Schedule::new(model, seed, from_server);
                let schedules = Schedules { client: schedule(false), server: schedule(true) };
                let (up, down) = (schedule(false).total(), schedule(true).total());
                (up, down, *timeout, Some(Box::new(schedules)))
            }
            (Content::Fetch(request), _) => {
                (u64::from(request.request_bytes), request.bytes, request.timeout, None)
            }
            (Content::Markov(_), Traffic::Fetch { .. }) => {
                unreachable!("only Markov users open Markov streams")
            }
        };
        // Own random draws per transfer: the choice does not depend on the system.
        let mut draws = self.seed.fork("server").fork_index(u64::from(transfer)).random();
        self.transfers.push(TransferState {
            user,
            circuit,
            stream: None,
            server: user_plan.servers[draws.below(user_plan.servers.len())],
            exit: None,
            exit_host: None,
            begun: net.ctx.now,
            over: false,
            server_closed: false,
            request_bytes,
            response_bytes,
            to_write: if markov.is_some() { request_bytes } else { 0 },
            to_package: if markov.is_some() { 0 } else { request_bytes },
            received: 0,
            requested: 0,
            to_respond: 0,
            markov,
        });
        let (transfer_id, circuit) = (Transfer(transfer), Circuit(circuit));
        let (user, bytes) = (User(user), response_bytes);
        net.ctx.record(Observation::TransferBegun { transfer: transfer_id, user, circuit, bytes });
        if timeout.0 != u64::MAX {
            net.ctx.queue.push(net.ctx.now + timeout, Event::Timeout(transfer));
        }
        transfer
    }

    pub(super) fn open_stream(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        circuit: CircuitKey,
        transfer: u32,
    ) {
        if self.transfer(transfer).over {
            return;
        }
        let now = net.ctx.now;
        match net.nodes.client(host).open(now, circuit, u64::from(transfer)) {
            Some(stream) => {
                self.streams[host as usize].insert(stream, transfer);
                let exit = self.circuits[host as usize].get(&circuit).map(|circuit| circuit.path[2]);
                let state = self.transfer(transfer);
                state.stream = Some(stream);
                let number = Circuit(state.circuit);
                // Before `drain`: the exit's process must know the transfer before its first cell arrives.
                self.tell_of_transfer(net, transfer, exit);
                let (transfer, circuit) = (Transfer(transfer), number);
                net.ctx.record(Observation::StreamOpened { transfer, circuit });
                net.drain(self, host);
            }
            None => self.transfer_failed(net, transfer),
        }
    }

    pub(super) fn stream_connected(&mut self, net: &mut Network<'_>, host: u32, stream: StreamKey) {
        // The transfer may be over already.
        if let Some(&transfer) = self.streams[host as usize].get(&stream) {
            net.ctx.record(Observation::TransferConnected { transfer: Transfer(transfer) });
            if self.transfer(transfer).markov.is_some() {
                self.markov_packets(net, transfer, false);
            } else {
                self.package(net, host, stream, u32::MAX);
            }
        }
    }

    /// A side of a Markov stream writes what is due.
    pub(in crate::world) fn markov_packets(
        &mut self,
        net: &mut Network<'_>,
        transfer: u32,
        from_server: bool,
    ) {
        let Some(state) = self.transfers.get(transfer) else { return };
        let (Some(markov), false, Some(stream)) = (&mut state.markov, state.over, state.stream) else {
            return;
        };
        let side = if from_server { &mut markov.server } else { &mut markov.client };
        let (bytes, next) = side.next();
        let exit = state.exit;
        if from_server {
            state.to_respond += bytes;
        } else {
            let bytes = bytes.min(state.to_write);
            state.to_write -= bytes;
            state.to_package += bytes;
        }
        let user = state.user;
        if let Some(wait) = next {
            net.ctx.queue.push(net.ctx.now + wait, Event::Packet(transfer, from_server));
        }
        if from_server {
            if let Some(exit) = exit {
                net.announce(exit, bytes);
                self.server_write(net, transfer, exit.other());
            }
        } else {
            let host = net.ctx.plan.users[user as usize].host;
            self.package(net, host, stream, u32::MAX);
            net.drain(self, host);
            self.end_if_done(net, transfer);
        }
    }

    /// Lets a stream put waiting bytes into cells: an exit's from its server, a client's request.
    pub(in crate::world) fn package(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        stream: StreamKey,
        cells: u32,
    ) {
        let now = net.ctx.now;
        if let Some(id) = net.nodes.server_end(host, stream) {
            match net.nodes.gate(host) {
                Some(gate) if gate.holds_servers() => {
                    gate.wait_to_read(id);
                    net.pump_again(host);
                }
                _ => drop(self.package_from_server(net, host, stream, id, cells)),
            }
        } else if let Some(&transfer) = self.streams[host as usize].get(&stream) {
            let state = &mut self.transfers[transfer as usize];
            let source = &mut FromClient(&mut state.to_package, now);
            net.nodes.node(host).package(now, stream, cells, source);
        }
    }

    /// Exit: packages at most `cells` cells of what a server has sent; returns their bytes. 0 if the client has ended
    /// the transfer.
    pub(super) fn package_from_server(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        stream: StreamKey,
        id: EndId,
        cells: u32,
    ) -> u64 {
        let Network { ctx, connections, nodes } = net;
        let (transfer, waiting) = connections.server_bytes_from(id).expect("a stream's connection is open");
        let circuit = self.transfers.get(transfer).map(|transfer| transfer.circuit);
        match circuit {
            None => 0,
            Some(circuit) => {
                let now = ctx.now;
                let mut source = FromServer { waiting, ctx, circuit, packaged: &mut self.packaged, bytes: 0 };
                nodes.node(host).package(now, stream, cells, &mut source);
                let bytes = source.bytes;
                if bytes > 0 {
                    ctx.record(Observation::Injected { circuit: Circuit(circuit), bytes });
                    net.transmit(id);
                }
                bytes
            }
        }
    }

    /// Exit: connects a stream to the server of its transfer. If the client has ended the transfer meanwhile, the
    /// stream ends.
    pub(super) fn connect_stream(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        stream: StreamKey,
        transfer: u32,
    ) {
        match self.transfers.get(transfer) {
            None => net.nodes.node(host).stream_ended(net.ctx.now, stream),
            Some(state) => {
                let end =
                    net.open(host, state.server, [Attached::Stream(stream), Attached::Server(transfer)]);
                net.nodes.add_server(host, stream, end);
                state.exit = Some(end);
            }
        }
    }

    /// Bytes came out of a client's stream, in so many equal cells. They are dropped once its transfer is over.
    pub(super) fn delivered(
        &mut self,
        net: &mut Network<'_>,
        host: u32,
        stream: StreamKey,
        (bytes, stamp): (u16, Stamp),
        cells: u32,
    ) {
        let Some(&transfer) = self.streams[host as usize].get(&stream) else { return };
        let Stamp { packaged, departed, .. } = stamp;
        for _ in 0..cells {
            self.cells_delivered += 1;
            let state = self.transfer(transfer);
            let first = state.received == 0;
            state.received += u64::from(bytes);
            let (circuit, begun) = (Circuit(state.circuit), state.begun);
            let bytes = u32::from(bytes);
            net.ctx.record(Observation::Delivered { circuit, bytes, packaged, departed });
            if first {
                // Counted from the user's request, not from the opening of the stream.
                let took = net.ctx.now.since(begun);
                net.ctx.record(Observation::FirstByte { transfer: Transfer(transfer), took });
            }
            if self.end_if_done(net, transfer) {
                return;
            }
        }
    }

    /// Ends a transfer if all its bytes have arrived; returns whether it has.
    fn end_if_done(&mut self, net: &mut Network<'_>, transfer: u32) -> bool {
        let state = self.transfer(transfer);
        let done = state.received >= state.response_bytes && state.to_write == 0 && state.to_package == 0;
        if !done || state.over {
            return false;
        }
        state.over = true;
        let (user, begun) = (state.user, state.begun);
        self.tell_of_end(net, transfer);
        let took = net.ctx.now.since(begun);
        net.ctx.record(Observation::LastByte { transfer: Transfer(transfer), took });
        self.end_stream(net, transfer);
        self.after_transfer(net, user, transfer);
        self.transfers.drop_ended(transfer);
        true
    }

    /// Client: ends a transfer's stream.
    fn end_stream(&mut self, net: &mut Network<'_>, transfer: u32) {
        let state = self.transfer(transfer);
        let host = net.ctx.plan.users[state.user as usize].host;
        let now = net.ctx.now;
        if let Some(stream) = state.stream.take()
            && self.streams[host as usize].remove(&stream).is_some()
        {
            net.nodes.node(host).stream_ended(now, stream);
            net.drain(self, host);
            self.close_if_retired(net, host, stream.circuit);
        }
    }

    /// The node has ended a client's stream: its transfer has failed, unless that was over, or the stream was a probe.
    pub(super) fn stream_closed(&mut self, net: &mut Network<'_>, host: u32, stream: StreamKey) {
        if let Some(transfer) = self.streams[host as usize].remove(&stream) {
            self.transfer_failed(net, transfer);
            self.close_if_retired(net, host, stream.circuit);
        } else {
            self.probe_refused(net, host, stream);
        }
    }

    /// The timeout struck, or the stream or its circuit is gone.
    pub(in crate::world) fn transfer_failed(&mut self, net: &mut Network<'_>, transfer: u32) {
        // It may have ended at both ends long before its timeout.
        let Some(state) = self.transfers.get(transfer).filter(|state| !state.over) else { return };
        state.over = true;
        let (user, received) = (state.user, state.received);
        self.tell_of_end(net, transfer);
        self.end_stream(net, transfer);
        net.ctx.record(Observation::TransferTimedOut { transfer: Transfer(transfer), received });
        self.after_transfer(net, user, transfer);
        self.transfers.drop_ended(transfer);
    }

    /// Server: reads the request, and answers once it is whole.
    pub(in crate::world) fn server_read(&mut self, net: &mut Network<'_>, transfer: u32, id: EndId) {
        let bytes = net.connections.read_request(net.ctx.now, id);
        // The client's process may have ended the transfer.
        if let Some(state) = self.transfers.get(transfer) {
            let before = state.requested;
            state.requested += bytes;
            if state.markov.is_some() {
                if before == 0 {
                    self.markov_packets(net, transfer, true);
                }
            } else if before < state.request_bytes && state.requested >= state.request_bytes {
                state.to_respond = state.response_bytes;
                net.announce(id.other(), state.response_bytes);
                self.server_write(net, transfer, id);
            }
        }
    }

    /// Server: writes as much of the response as TCP takes, unless the connection or the transfer is over.
    pub(in crate::world) fn server_write(&mut self, net: &mut Network<'_>, transfer: u32, id: EndId) {
        if let Some(state) = self.transfers.get(transfer)
            && let Some(taken) = net.connections.write_response(id, state.to_respond)
        {
            // `u64::MAX` is a response without end.
            if state.to_respond != u64::MAX {
                state.to_respond -= taken;
            }
            net.transmit(id);
        }
    }

    /// Client: tells the processes of a transfer's exit and server, before the stream's first cell arrives there.
    fn tell_of_transfer(&mut self, net: &mut Network<'_>, transfer: u32, exit: Option<u32>) {
        if net.ctx.division.processes > 1 {
            let state = self.transfers[transfer as usize].clone();
            for process in concerned(&net.ctx, exit, state.server) {
                let begun = ProcessMessage::Begun(Box::new((transfer, state.clone())));
                net.connections.tell_process(process, begun);
            }
            self.transfers[transfer as usize].exit_host = exit;
        }
    }

    /// Client: tells the processes of a transfer's exit and server that it is over.
    fn tell_of_end(&mut self, net: &mut Network<'_>, transfer: u32) {
        if net.ctx.division.processes > 1 {
            let state = &self.transfers[transfer as usize];
            for process in concerned(&net.ctx, state.exit_host, state.server) {
                net.connections.tell_process(process, ProcessMessage::Over(transfer));
            }
        }
    }
}

/// The other processes that simulate a transfer's exit or server.
fn concerned(ctx: &Context<'_>, exit: Option<u32>, server: u32) -> impl Iterator<Item = u32> + use<> {
    let own = ctx.process;
    let server = ctx.division.hosts.process(server);
    let exit = exit.map(|exit| ctx.division.hosts.process(exit)).filter(|exit| *exit != server);
    exit.into_iter().chain([server]).filter(move |process| *process != own)
}
