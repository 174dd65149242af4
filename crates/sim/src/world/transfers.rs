//! Transfers: a request and its response over one stream, from the client's first byte to the server's last.

use tidegate_control::units::Time;
use tidegate_proto::node::{CircuitKey, Source, StreamKey};
use tidegate_proto::onion::{Clear, Stamp};

use crate::observe::{Circuit, Observation, Transfer, User};
use crate::plan::{Packaging, Traffic};
use crate::tcp;

use super::ends::{Attached, EndId};
use super::event::Event;
use super::follow::Trace;
use super::requests::{Content, Schedule, Schedules, TransferState};
use super::state::World;

/// Bytes that wait in an exit's connection to a server.
struct FromServer<'a> {
    tcp: &'a mut tcp::Endpoint,
    config: &'a tcp::Config,
    now: Time,
    circuit: u32,
    trace_one_in: u64,
    packaged: &'a mut u64,
    traces: &'a mut Vec<Trace>,
    packaging: Packaging,
    /// What is left of the last read.
    read: &'a mut u32,
    bytes: u64,
}

impl Source<Clear> for FromServer<'_> {
    fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
        if *self.read == 0 {
            *self.read = self.tcp.readable().min(u64::from(self.packaging.read_bytes)) as u32;
        }
        let max = u32::from(max.min(self.packaging.cell_bytes)).min(*self.read);
        let bytes = self.tcp.read(self.config, self.now, u64::from(max));
        if bytes == 0 {
            return None;
        }
        *self.read -= bytes as u32;
        self.bytes += bytes;
        *self.packaged += 1;
        let mut stamp = Stamp { packaged: self.now, ..Stamp::default() };
        if self.trace_one_in > 0 && self.packaged.is_multiple_of(self.trace_one_in) {
            self.traces.push(Trace { circuit: self.circuit, hop: 0 });
            stamp.trace = self.traces.len() as u32;
        }
        Some((bytes as u16, stamp))
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

impl World<'_> {
    /// Client: a transfer of its own.
    fn transfer(&mut self, transfer: u32) -> &mut TransferState {
        &mut self.users.transfers[transfer as usize]
    }

    /// A user wants something: notes it, on the circuit it will go over.
    pub(super) fn begin_transfer(&mut self, user: u32, content: Content) -> u32 {
        let plan = self.plan;
        let user_plan = &plan.users[user as usize];
        let circuit = self.fresh_circuit(user);
        let transfer = self.users.transfers.next();
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
        let mut draws = self.users.seed.fork("server").fork_index(u64::from(transfer)).random();
        self.users.transfers.push(TransferState {
            user,
            circuit,
            stream: None,
            server: user_plan.servers[draws.below(user_plan.servers.len())],
            exit: None,
            exit_host: None,
            begun: self.now,
            over: false,
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
        self.record(Observation::TransferBegun { transfer: transfer_id, user, circuit, bytes });
        if timeout.0 != u64::MAX {
            self.queue.push(self.now + timeout, Event::Timeout(transfer));
        }
        transfer
    }

    pub(super) fn open_stream(&mut self, host: u32, circuit: CircuitKey, transfer: u32) {
        if self.transfer(transfer).over {
            return;
        }
        let now = self.now;
        match self.client(host).open(now, circuit, u64::from(transfer)) {
            Some(stream) => {
                self.users.streams[host as usize].insert(stream, transfer);
                let exit = self.users.circuits[host as usize].get(&circuit).map(|circuit| circuit.path[2]);
                let state = self.transfer(transfer);
                state.stream = Some(stream);
                let number = Circuit(state.circuit);
                self.tell_of_transfer(transfer, exit);
                let (transfer, circuit) = (Transfer(transfer), number);
                self.record(Observation::StreamOpened { transfer, circuit });
                self.drain(host);
            }
            None => self.transfer_failed(transfer),
        }
    }

    pub(super) fn stream_connected(&mut self, host: u32, stream: StreamKey) {
        let Some(&transfer) = self.users.streams[host as usize].get(&stream) else { return };
        self.record(Observation::TransferConnected { transfer: Transfer(transfer) });
        if self.transfer(transfer).markov.is_some() {
            self.markov_packets(transfer, false);
        } else {
            self.package(host, stream, u32::MAX);
        }
    }

    /// A side of a Markov stream writes what is due.
    pub(super) fn markov_packets(&mut self, transfer: u32, from_server: bool) {
        let Some(state) = self.users.transfers.get(transfer) else { return };
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
            self.queue.push(self.now + wait, Event::Packet(transfer, from_server));
        }
        if from_server {
            if let Some(exit) = exit {
                self.announce(exit, bytes);
                self.server_write(transfer, exit.other());
            }
        } else {
            let host = self.plan.users[user as usize].host;
            self.package(host, stream, u32::MAX);
            self.drain(host);
            self.end_if_done(transfer);
        }
    }

    /// Lets a stream put waiting bytes into cells: an exit's from its server, a client's request.
    pub(super) fn package(&mut self, host: u32, stream: StreamKey, cells: u32) {
        let now = self.now;
        let Some(&id) = self.hosts[host as usize].streams.get(&stream) else {
            let Some(&transfer) = self.users.streams[host as usize].get(&stream) else { return };
            let state = &mut self.users.transfers[transfer as usize];
            let source = &mut FromClient(&mut state.to_package, now);
            return self.hosts[host as usize].node().package(now, stream, cells, source);
        };
        match &mut self.hosts[host as usize].gate {
            Some(gate) if gate.holds_servers() => {
                gate.wait_to_read(id);
                self.pump_again(host);
            }
            _ => drop(self.read_from_server(host, stream, id, cells)),
        }
    }

    /// Exit: puts up to so many cells of what has come from a server into a stream's circuit; gives their bytes.
    pub(super) fn read_from_server(&mut self, host: u32, stream: StreamKey, id: EndId, cells: u32) -> u64 {
        let now = self.now;
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() else { return 0 };
        let config = &self.tcp_parameters[connection.profile as usize];
        let Some(transfer) = connection.server_transfer() else { return 0 };
        let Some(circuit) = self.users.transfers.get(transfer).map(|transfer| transfer.circuit) else {
            return 0;
        };
        let end = &mut connection.ends[usize::from(id.side)];
        let mut source = FromServer {
            tcp: &mut end.tcp,
            config,
            now,
            circuit,
            trace_one_in: u64::from(self.plan.trace_one_in),
            packaged: &mut self.packaged,
            traces: &mut self.users.traces,
            packaging: self.system.packaging,
            read: &mut end.unpackaged,
            bytes: 0,
        };
        self.hosts[host as usize].node().package(now, stream, cells, &mut source);
        let bytes = source.bytes;
        if bytes > 0 {
            self.record(Observation::Injected { circuit: Circuit(circuit), bytes });
            self.transmit(id);
        }
        bytes
    }

    /// Exit: writes what cells had for servers; false if there was nothing.
    pub(super) fn write_to_servers(&mut self, host: u32) -> bool {
        let mut any = false;
        while let Some((id, bytes)) = self.hosts[host as usize].to_servers.pop() {
            self.stream_write(id, bytes);
            any = true;
        }
        any
    }

    /// Application bytes came out of a stream.
    pub(super) fn deliver(&mut self, host: u32, stream: StreamKey, bytes: u16, stamp: Stamp) {
        if let Some(&id) = self.hosts[host as usize].streams.get(&stream) {
            let waiting = &mut self.hosts[host as usize].to_servers;
            return match waiting.iter_mut().find(|(other, _)| *other == id) {
                Some((_, due)) => *due += u64::from(bytes),
                None => waiting.push((id, u64::from(bytes))),
            };
        }
        let Some(&transfer) = self.users.streams[host as usize].get(&stream) else { return };
        self.cells_delivered += 1;
        let state = self.transfer(transfer);
        let first = state.received == 0;
        state.received += u64::from(bytes);
        let (circuit, begun) = (Circuit(state.circuit), state.begun);
        let took = self.now.since(begun);
        let Stamp { packaged, departed, .. } = stamp;
        self.record(Observation::Delivered { circuit, bytes: u32::from(bytes), packaged, departed });
        if first {
            self.record(Observation::FirstByte { transfer: Transfer(transfer), took });
        }
        self.end_if_done(transfer);
    }

    /// Ends a transfer whose every byte has gone where it should.
    fn end_if_done(&mut self, transfer: u32) {
        let state = self.transfer(transfer);
        let done = state.received >= state.response_bytes && state.to_write == 0 && state.to_package == 0;
        if !done || state.over {
            return;
        }
        state.over = true;
        let (user, begun) = (state.user, state.begun);
        self.transfer_over(transfer);
        let took = self.now.since(begun);
        self.record(Observation::LastByte { transfer: Transfer(transfer), took });
        self.end_stream(transfer);
        self.after_transfer(user, transfer);
    }

    /// Client: ends a transfer's stream.
    fn end_stream(&mut self, transfer: u32) {
        let state = self.transfer(transfer);
        let (user, Some(stream)) = (state.user, state.stream.take()) else { return };
        let host = self.plan.users[user as usize].host;
        let now = self.now;
        if self.users.streams[host as usize].remove(&stream).is_some() {
            self.hosts[host as usize].node().stream_ended(now, stream);
            self.drain(host);
            self.close_if_retired(host, stream.circuit);
        }
    }

    /// A stream is over at this host.
    pub(super) fn stream_closed(&mut self, host: u32, stream: StreamKey) {
        if let Some(end) = self.hosts[host as usize].streams.remove(&stream) {
            self.kill(end.connection);
        } else if let Some(transfer) = self.users.streams[host as usize].remove(&stream) {
            self.transfer_failed(transfer);
            self.close_if_retired(host, stream.circuit);
        }
    }

    /// The timeout struck, or the stream or its circuit is gone.
    pub(super) fn transfer_failed(&mut self, transfer: u32) {
        let state = self.transfer(transfer);
        if state.over {
            return;
        }
        state.over = true;
        let (user, received) = (state.user, state.received);
        self.transfer_over(transfer);
        self.end_stream(transfer);
        self.record(Observation::TransferTimedOut { transfer: Transfer(transfer), received });
        self.after_transfer(user, transfer);
    }

    /// Server: reads the request, and answers once it is whole.
    pub(super) fn server_read(&mut self, transfer: u32, id: EndId) {
        let now = self.now;
        let Some((tcp, config)) = self.tcp(id) else { return };
        let bytes = tcp.read(config, now, u64::MAX);
        let Some(state) = self.users.transfers.get(transfer) else { return };
        let before = state.requested;
        state.requested += bytes;
        if state.markov.is_some() {
            if before == 0 {
                self.markov_packets(transfer, true);
            }
        } else if before < state.request_bytes && state.requested >= state.request_bytes {
            state.to_respond = state.response_bytes;
            let bytes = state.to_respond;
            self.announce(id.other(), bytes);
            self.server_write(transfer, id);
        }
    }

    /// Tells an exit what its end of a connection to a server has still to get.
    fn announce(&mut self, exit: EndId, bytes: u64) {
        if !self.announce_across(exit, bytes) {
            self.announced(exit, bytes);
        }
    }

    pub(super) fn announced(&mut self, exit: EndId, bytes: u64) {
        let Some(end) = self.end(exit) else { return };
        if let (Attached::Stream(stream), host) = (end.attached, end.host) {
            self.hosts[host as usize].node().announced(stream, bytes);
        }
    }

    /// Server: writes as much of the response as TCP takes.
    pub(super) fn server_write(&mut self, transfer: u32, id: EndId) {
        let Some(end) = self.connections[id.connection.0 as usize].as_deref_mut() else { return };
        let end = &mut end.ends[usize::from(id.side)];
        let Some(state) = self.users.transfers.get(transfer) else { return };
        let left = state.to_respond;
        let taken = end.tcp.write(left);
        state.to_respond = if left == u64::MAX { left } else { left - taken };
        self.transmit(id);
    }
}
