//! What users fetch, over which circuits, and the servers that answer.

use std::collections::BTreeMap;

use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::client::Client;
use tidegate_proto::node::{CircuitKey, Source, StreamKey};
use tidegate_proto::onion::{Clear, Stamp};

use crate::observe::{Circuit, Host, Observation, Recorder, Transfer, User};
use crate::plan::{PathSelection, Plan, RequestPlan, Route, Traffic, UserPlan};
use crate::tcp;

use super::connection::EndId;
use super::follow::Trace;
use super::host::Machine;
use super::{Event, World};

/// All users and what they do.
pub(super) struct Users {
    users: Vec<UserState>,
    transfers: Vec<TransferState>,
    traces: Vec<Trace>,
    /// Per host: whose circuit it is, and which transfer a stream carries.
    circuits: Vec<BTreeMap<CircuitKey, u32>>,
    streams: Vec<BTreeMap<StreamKey, u32>>,
    circuits_begun: u32,
}

struct UserState {
    random: Random,
    guard: Option<u32>,
    circuit: Option<UserCircuit>,
    transfer: Option<u32>,
    /// The transfer waits for its circuit.
    waiting: bool,
}

#[derive(Clone, Copy)]
struct UserCircuit {
    key: CircuitKey,
    number: u32,
    begun: Time,
    built: bool,
}

pub(super) struct TransferState {
    user: u32,
    circuit: u32,
    stream: Option<StreamKey>,
    pub server: u32,
    /// The exit's end of the connection to the server.
    exit: Option<EndId>,
    begun: Time,
    request_bytes: u64,
    response_bytes: u64,
    /// Client: request bytes not yet packaged.
    to_upload: u64,
    /// Server: request bytes received.
    requested: u64,
    /// Server: response bytes not yet written.
    to_respond: u64,
    /// Client: response bytes received.
    received: u64,
}

impl Users {
    pub fn new(plan: &Plan, seed: Seed) -> Users {
        let state = |index: usize| UserState {
            random: seed.fork_index(index as u64).random(),
            guard: None,
            circuit: None,
            transfer: None,
            waiting: false,
        };
        Users {
            users: (0..plan.users.len()).map(state).collect(),
            transfers: Vec::new(),
            traces: Vec::new(),
            circuits: vec![BTreeMap::new(); plan.hosts.len()],
            streams: vec![BTreeMap::new(); plan.hosts.len()],
            circuits_begun: 0,
        }
    }

    pub fn transfer(&self, transfer: u32) -> &TransferState {
        &self.transfers[transfer as usize]
    }

    pub fn set_exit(&mut self, transfer: u32, exit: EndId) {
        self.transfers[transfer as usize].exit = Some(exit);
    }

    /// The circuit of a followed cell and the hop it has just made; counts the hop.
    pub fn next_hop(&mut self, trace: u32) -> (u32, u8) {
        let trace = &mut self.traces[trace as usize - 1];
        trace.hop += 1;
        (trace.circuit, trace.hop - 1)
    }
}

/// Bytes that wait in an exit's connection to a server.
struct FromServer<'a> {
    tcp: &'a mut tcp::Endpoint,
    config: &'a tcp::Config,
    now: Time,
    circuit: u32,
    trace_one_in: u64,
    packaged: &'a mut u64,
    traces: &'a mut Vec<Trace>,
    bytes: u64,
}

impl Source<Clear> for FromServer<'_> {
    fn take(&mut self, max: u16) -> Option<(u16, Stamp)> {
        let bytes = self.tcp.read(self.config, self.now, u64::from(max));
        if bytes == 0 {
            return None;
        }
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

/// An index drawn by weight.
fn draw(random: &mut Random, weights: impl Iterator<Item = f64> + Clone) -> usize {
    let mut point = random.unit() * weights.clone().sum::<f64>();
    let mut last = 0;
    for (index, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
        last = index;
        point -= weight;
        if point < 0.0 {
            break;
        }
    }
    last
}

/// Draws an exit, a guard unless one is kept, and a middle, all different and of different families.
fn draw_path(random: &mut Random, selection: &PathSelection, guard: Option<u32>) -> (u32, u32, u32) {
    let family = |host: u32| selection.families.get(host as usize).copied().unwrap_or(0);
    let clash = |a: u32, b: u32| a == b || (family(a) != 0 && family(a) == family(b));
    let mut pick = |from: &[(u32, f64)], taken: &[u32]| {
        let free = |host: u32| !taken.iter().any(|other| clash(host, *other));
        let weights = from.iter().map(|(host, weight)| if free(*host) { *weight } else { 0.0 });
        from[draw(random, weights)].0
    };
    let kept: Vec<u32> = guard.into_iter().collect();
    let exit = pick(&selection.exits, &kept);
    let guard = guard.unwrap_or_else(|| pick(&selection.guards, &[exit]));
    let middle = pick(&selection.middles, &[guard, exit]);
    (guard, middle, exit)
}

impl<R: Recorder> World<'_, R> {
    pub(super) fn start_users(&mut self) {
        for (index, user) in self.plan.users.iter().enumerate() {
            self.queue.push(user.start - user.circuit_lead, Event::User(index as u32));
            if user.stop < Time::ZERO + self.plan.duration {
                self.queue.push(user.stop, Event::User(index as u32));
            }
        }
    }

    fn user_plan(&self, user: u32) -> &UserPlan {
        &self.plan.users[user as usize]
    }

    fn user(&mut self, user: u32) -> &mut UserState {
        &mut self.users.users[user as usize]
    }

    /// The client on a user's host, which the plan makes sure is one.
    fn client(&mut self, host: u32) -> &mut Client<Clear> {
        match &mut self.hosts[host as usize].machine {
            Machine::Client(client) => client,
            Machine::Relay(_) => unreachable!("the lab checks that users sit at clients"),
        }
    }

    /// A user's first circuit is due, or its next request, or its end.
    pub(super) fn user_turn(&mut self, user: u32) {
        let (start, stop) = (self.user_plan(user).start, self.user_plan(user).stop);
        if self.now < start {
            self.build_circuit(user);
            self.queue.push(start, Event::User(user));
        } else if self.now >= stop {
            if let Some(transfer) = self.user(user).transfer.take() {
                self.end_stream(transfer);
            }
            self.close_circuit(user);
        } else {
            self.request(user);
        }
    }

    fn build_circuit(&mut self, user: u32) {
        let plan = self.plan;
        let UserPlan { host, route, .. } = &plan.users[user as usize];
        let state = self.user(user);
        let path = match route {
            Route::Pinned(path) => *path,
            Route::Weighted(selection) => {
                let selection = &plan.selections[*selection as usize];
                let (guard, middle, exit) = draw_path(&mut state.random, selection, state.guard);
                state.guard = Some(guard);
                [guard, middle, exit]
            }
        };
        let number = self.users.circuits_begun;
        self.users.circuits_begun += 1;
        let now = self.now;
        let key = self.client(*host).build(now, path.map(RelayId).to_vec());
        self.users.circuits[*host as usize].insert(key, user);
        self.user(user).circuit = Some(UserCircuit { key, number, begun: now, built: false });
        let path = path.map(Host);
        self.record(Observation::CircuitBegun { circuit: Circuit(number), user: User(user), path });
        self.drain(*host);
    }

    fn close_circuit(&mut self, user: u32) {
        let host = self.user_plan(user).host;
        let Some(circuit) = self.user(user).circuit.take() else { return };
        let now = self.now;
        self.users.circuits[host as usize].remove(&circuit.key);
        self.record(Observation::CircuitClosed { circuit: Circuit(circuit.number) });
        self.client(host).close(now, circuit.key);
        self.drain(host);
    }

    /// Whether the user's circuit takes another stream; an old one is closed.
    fn has_fresh_circuit(&mut self, user: u32) -> bool {
        let lifetime = self.user_plan(user).circuit_lifetime;
        let Some(circuit) = self.user(user).circuit else { return false };
        if lifetime > Span::ZERO && self.now.since(circuit.begun) > lifetime {
            self.close_circuit(user);
            return false;
        }
        true
    }

    fn request(&mut self, user: u32) {
        let plan = self.plan;
        let UserPlan { servers, traffic, .. } = &plan.users[user as usize];
        let Traffic::Fetch { requests, .. } = traffic else { return };
        if !self.has_fresh_circuit(user) {
            self.build_circuit(user);
        }
        let state = self.user(user);
        let RequestPlan { bytes, timeout, request_bytes, .. } =
            requests[draw(&mut state.random, requests.iter().map(|request| request.weight))];
        let server = servers[state.random.below(servers.len())];
        let Some(circuit) = state.circuit else { return };
        let transfer = self.users.transfers.len() as u32;
        self.users.transfers.push(TransferState {
            user,
            circuit: circuit.number,
            stream: None,
            server,
            exit: None,
            begun: self.now,
            request_bytes: u64::from(request_bytes),
            response_bytes: bytes,
            to_upload: u64::from(request_bytes),
            requested: 0,
            to_respond: 0,
            received: 0,
        });
        self.user(user).transfer = Some(transfer);
        let (user_id, circuit_id) = (User(user), Circuit(circuit.number));
        let transfer_id = Transfer(transfer);
        self.record(Observation::TransferBegun {
            transfer: transfer_id,
            user: user_id,
            circuit: circuit_id,
            bytes,
        });
        if timeout.0 != u64::MAX {
            self.queue.push(self.now + timeout, Event::Timeout(transfer));
        }
        if circuit.built {
            self.open_stream(user, transfer);
        } else {
            self.user(user).waiting = true;
        }
    }

    fn open_stream(&mut self, user: u32, transfer: u32) {
        let host = self.user_plan(user).host;
        self.user(user).waiting = false;
        let Some(circuit) = self.user(user).circuit else { return };
        let now = self.now;
        let opened = self.client(host).open(now, circuit.key, u64::from(transfer));
        if let Some(stream) = opened {
            self.users.streams[host as usize].insert(stream, transfer);
            self.users.transfers[transfer as usize].stream = Some(stream);
        }
        self.drain(host);
    }

    pub(super) fn circuit_built(&mut self, host: u32, key: CircuitKey) {
        let Some(&user) = self.users.circuits[host as usize].get(&key) else { return };
        let now = self.now;
        let state = self.user(user);
        let Some(circuit) = state.circuit.as_mut().filter(|circuit| circuit.key == key) else { return };
        circuit.built = true;
        let (number, took) = (circuit.number, now.since(circuit.begun));
        let waiting = if state.waiting { state.transfer } else { None };
        self.record(Observation::CircuitBuilt { circuit: Circuit(number), took });
        if let Some(transfer) = waiting {
            self.open_stream(user, transfer);
        }
    }

    /// A circuit failed: its user tries again with another.
    pub(super) fn circuit_closed(&mut self, host: u32, key: CircuitKey) {
        self.users.streams[host as usize].retain(|stream, _| stream.circuit != key);
        let Some(user) = self.users.circuits[host as usize].remove(&key) else { return };
        let state = self.user(user);
        if let Some(circuit) = state.circuit.take() {
            self.record(Observation::CircuitClosed { circuit: Circuit(circuit.number) });
        }
        if let Some(transfer) = self.user(user).transfer {
            self.give_up(user, transfer);
        }
    }

    pub(super) fn stream_connected(&mut self, host: u32, stream: StreamKey) {
        let Some(&transfer) = self.users.streams[host as usize].get(&stream) else { return };
        self.record(Observation::TransferConnected { transfer: Transfer(transfer) });
        self.package(host, stream, u32::MAX);
    }

    /// A stream is over at this host.
    pub(super) fn stream_closed(&mut self, host: u32, stream: StreamKey) {
        if let Some(end) = self.hosts[host as usize].streams.remove(&stream) {
            self.kill(end.connection);
        } else if let Some(transfer) = self.users.streams[host as usize].remove(&stream) {
            let user = self.users.transfers[transfer as usize].user;
            if self.user(user).transfer == Some(transfer) {
                self.give_up(user, transfer);
            }
        }
    }

    /// Lets a stream put waiting bytes into cells: an exit's from its server, a client's request.
    pub(super) fn package(&mut self, host: u32, stream: StreamKey, cells: u32) {
        let now = self.now;
        let Some(&id) = self.hosts[host as usize].streams.get(&stream) else {
            let Some(&transfer) = self.users.streams[host as usize].get(&stream) else { return };
            let state = &mut self.users.transfers[transfer as usize];
            let source = &mut FromClient(&mut state.to_upload, now);
            return self.hosts[host as usize].node().package(now, stream, cells, source);
        };
        let Some(connection) = self.connections[id.connection.0 as usize].as_deref_mut() else { return };
        let config = if connection.is_loopback() { &self.loopback } else { &self.system.tcp };
        let Some(transfer) = connection.server_transfer() else { return };
        let circuit = self.users.transfers[transfer as usize].circuit;
        let mut source = FromServer {
            tcp: &mut connection.ends[usize::from(id.side)].tcp,
            config,
            now,
            circuit,
            trace_one_in: u64::from(self.plan.trace_one_in),
            packaged: &mut self.packaged,
            traces: &mut self.users.traces,
            bytes: 0,
        };
        self.hosts[host as usize].node().package(now, stream, cells, &mut source);
        let bytes = source.bytes;
        if bytes > 0 {
            self.record(Observation::Injected { circuit: Circuit(circuit), bytes });
            self.transmit(id);
        }
    }

    /// Application bytes came out of a stream.
    pub(super) fn deliver(&mut self, host: u32, stream: StreamKey, bytes: u16, stamp: Stamp) {
        if let Some(&id) = self.hosts[host as usize].streams.get(&stream) {
            return self.stream_write(id, u64::from(bytes));
        }
        let Some(&transfer) = self.users.streams[host as usize].get(&stream) else { return };
        self.cells_delivered += 1;
        let state = &mut self.users.transfers[transfer as usize];
        let first = state.received == 0;
        state.received += u64::from(bytes);
        let (user, done) = (state.user, state.received >= state.response_bytes);
        let (circuit, took) = (Circuit(state.circuit), self.now.since(state.begun));
        let Stamp { packaged, departed, .. } = stamp;
        let transfer_id = Transfer(transfer);
        self.record(Observation::Delivered { circuit, bytes: u32::from(bytes), packaged, departed });
        if first {
            self.record(Observation::FirstByte { transfer: transfer_id, took });
        }
        if done {
            self.record(Observation::LastByte { transfer: transfer_id, took });
            self.user(user).transfer = None;
            self.end_stream(transfer);
            self.after_transfer(user);
        }
    }

    /// Client: ends a transfer's stream.
    fn end_stream(&mut self, transfer: u32) {
        let state = &mut self.users.transfers[transfer as usize];
        let (user, Some(stream)) = (state.user, state.stream.take()) else { return };
        let host = self.user_plan(user).host;
        let now = self.now;
        if self.users.streams[host as usize].remove(&stream).is_some() {
            self.hosts[host as usize].node().stream_ended(now, stream);
            self.drain(host);
        }
    }

    pub(super) fn transfer_timeout(&mut self, transfer: u32) {
        let user = self.users.transfers[transfer as usize].user;
        if self.user(user).transfer == Some(transfer) {
            self.end_stream(transfer);
            self.give_up(user, transfer);
        }
    }

    fn give_up(&mut self, user: u32, transfer: u32) {
        let state = self.user(user);
        state.transfer = None;
        state.waiting = false;
        let received = self.users.transfers[transfer as usize].received;
        self.record(Observation::TransferTimedOut { transfer: Transfer(transfer), received });
        self.after_transfer(user);
    }

    /// Schedules the next request after a pause; a user who wants a circuit for each builds it meanwhile.
    fn after_transfer(&mut self, user: u32) {
        let plan = self.plan;
        let UserPlan { traffic, circuit_lifetime, stop, .. } = &plan.users[user as usize];
        let Traffic::Fetch { pause: (least, most), .. } = traffic else { return };
        let pause = self.user(user).random.uniform(least.as_secs_f64(), most.as_secs_f64());
        // A circuit that fails at once must not be tried again at the same instant.
        let next = self.now + Span::from_secs_f64(pause).max(Span::from_millis(1));
        if next >= *stop {
            return;
        }
        if *circuit_lifetime == Span::ZERO {
            self.close_circuit(user);
            self.build_circuit(user);
        }
        self.queue.push(next, Event::User(user));
    }

    /// Server: reads the request, and answers once it is whole.
    pub(super) fn server_read(&mut self, transfer: u32, id: EndId) {
        let now = self.now;
        let Some((tcp, config)) = self.tcp(id) else { return };
        let bytes = tcp.read(config, now, u64::MAX);
        let state = &mut self.users.transfers[transfer as usize];
        let whole = state.requested < state.request_bytes && state.requested + bytes >= state.request_bytes;
        state.requested += bytes;
        if whole {
            state.to_respond = state.response_bytes;
            self.server_write(transfer, id);
        }
    }

    /// Server: writes as much of the response as TCP takes.
    pub(super) fn server_write(&mut self, transfer: u32, id: EndId) {
        let left = self.users.transfers[transfer as usize].to_respond;
        let Some((tcp, config)) = self.tcp(id) else { return };
        let taken = tcp.write(left);
        self.users.transfers[transfer as usize].to_respond =
            if left == u64::MAX { left } else { left - taken };
        self.transmit(id);
    }
}
