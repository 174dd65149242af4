//! Users' turns, and the circuits that they build and close.

use tidegate_control::markov;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::node::CircuitKey;
use tidegate_proto::paths::{BuildTimeout, draw};

use crate::observe::{Circuit, Host, Observation, User};
use crate::plan::{Form, Route, Traffic, UserPlan};

use super::requests::Content;
use super::state::Applications;
use super::state::{Legs, OwnCircuit, UserState};
use crate::world::event::Event;
use crate::world::network::Network;

impl Applications {
    pub(in crate::world) fn start_users(&mut self, net: &mut Network<'_>) {
        for index in net.ctx.division.users.of(net.ctx.process).iter().copied() {
            let user = &net.ctx.plan.users[index as usize];
            net.ctx.queue.push(user.start - user.circuit_lead, Event::User(index));
            if user.stop < Time::ZERO + net.ctx.plan.duration {
                net.ctx.queue.push(user.stop, Event::User(index));
            }
        }
    }

    fn user(&mut self, user: u32) -> &mut UserState {
        &mut self.users[user as usize]
    }

    /// A circuit gets its last streams now. Does nothing if it is closed already.
    fn retire(&mut self, host: u32, key: CircuitKey) {
        if let Some(circuit) = self.circuits[host as usize].get_mut(&key) {
            circuit.retired = true;
        }
    }

    /// The user with the circuits that carry a user's streams: itself, unless it shares another's.
    fn carrier(&self, net: &mut Network<'_>, user: u32) -> u32 {
        match net.ctx.plan.users[user as usize].route {
            Route::Shared(other) => other,
            Route::Pinned(_) | Route::Drawn { .. } => user,
        }
    }

    /// Handles a user's event: its first circuit, its next request, or its end.
    pub(in crate::world) fn user_turn(&mut self, net: &mut Network<'_>, user: u32) {
        let plan = net.ctx.plan;
        let UserPlan { host, start, stop, traffic, rests, .. } = &plan.users[user as usize];
        if net.ctx.now < *start {
            if self.carrier(net, user) == user {
                self.build_circuit(net, user);
            }
            net.ctx.queue.push(*start, Event::User(user));
        } else if net.ctx.now >= *stop {
            self.stop_user(net, user, *host);
        } else if let Some((_, until)) =
            rests.iter().find(|(from, until)| (*from..*until).contains(&net.ctx.now))
        {
            net.ctx.queue.push(*until, Event::User(user));
        } else {
            match traffic {
                Traffic::Fetch { requests, every, .. } => {
                    if let Some(every) = every
                        && self.scheduled_turn(net, user, *every)
                    {
                        return;
                    }
                    let random = &mut self.user(user).random;
                    let request = &requests[draw(random, requests.iter().map(|request| request.weight))];
                    let transfer = self.begin_transfer(net, user, Content::Fetch(*request));
                    self.user(user).fetching = Some(transfer);
                    self.send_over_circuit(net, user, transfer);
                }
                Traffic::Markov(model, _) => self.flow_turn(net, user, model),
            }
        }
    }

    /// A user with a timetable has a turn twice in each period: it begins a request, and half a period later builds
    /// the circuit for the next (true).
    fn scheduled_turn(&mut self, net: &mut Network<'_>, user: u32, every: Span) -> bool {
        let next = net.ctx.now + every / 2;
        if next < net.ctx.plan.users[user as usize].stop {
            net.ctx.queue.push(next, Event::User(user));
        }
        let state = self.user(user);
        let renews = state.renews;
        state.renews = !renews;
        if renews && self.carrier(net, user) == user {
            self.retire_circuit(net, user);
            self.build_circuit(net, user);
        }
        renews
    }

    /// The user begins nothing more. Its transfers may end; endless ones are aborted.
    fn stop_user(&mut self, net: &mut Network<'_>, user: u32, host: u32) {
        self.user(user).fetching = None;
        let Applications { users, transfers, streams, .. } = &*self;
        let endless = |transfer: &u32| {
            let transfer = &transfers[*transfer as usize];
            transfer.user == user && transfer.response_bytes == u64::MAX
        };
        let waiting = &users[self.carrier(net, user) as usize].waiting;
        let endless: Vec<u32> =
            streams[host as usize].values().chain(waiting).copied().filter(endless).collect();
        for transfer in endless {
            self.transfer_failed(net, transfer);
        }
        if let Some(key) = self.user(user).circuit {
            self.retire(host, key);
            let Applications { users, transfers, .. } = &*self;
            if users[user as usize].waiting.iter().all(|transfer| transfers[*transfer as usize].over) {
                self.close_if_retired(net, host, key);
            }
        }
    }

    /// Opens the stream that a Markov user's chain opens now. At its end the chain starts again.
    fn flow_turn(&mut self, net: &mut Network<'_>, user: u32, model: &markov::Model) {
        let UserState { flow, random, .. } = self.user(user);
        let wait = match flow {
            None => {
                let (walk, wait) = model.streams.walk_on_its_way(random);
                *flow = Some(walk);
                wait
            }
            Some(walk) => {
                let (observation, delay) = model.streams.step_again(walk, random);
                if observation != markov::Observation::End {
                    let seed = random.bits();
                    let transfer = self.begin_transfer(net, user, Content::Markov(seed));
                    self.send_over_circuit(net, user, transfer);
                }
                delay
            }
        };
        net.ctx.queue.push(net.ctx.now + wait, Event::User(user));
    }

    /// The user's circuit for new streams; an old one is retired, a missing one is begun.
    pub(super) fn fresh_circuit(&mut self, net: &mut Network<'_>, user: u32) -> u32 {
        let plan = net.ctx.plan;
        let user = self.carrier(net, user);
        let UserPlan { host, circuit_lifetime, .. } = plan.users[user as usize];
        if let Some(key) = self.user(user).circuit {
            let circuit = self.circuits[host as usize][&key];
            if circuit_lifetime == Span::ZERO || net.ctx.now.since(circuit.begun) <= circuit_lifetime {
                return circuit.number;
            }
            self.retire_circuit(net, user);
        }
        self.build_circuit(net, user)
    }

    /// The user takes another circuit from now on.
    fn retire_circuit(&mut self, net: &mut Network<'_>, user: u32) {
        let host = net.ctx.plan.users[user as usize].host;
        if let Some(key) = self.user(user).circuit.take() {
            self.retire(host, key);
            self.close_if_retired(net, host, key);
        }
    }

    pub(super) fn close_if_retired(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let retired = self.circuits[host as usize].get(&key).is_some_and(|circuit| circuit.retired);
        if retired && !self.has_streams(host, key) {
            self.close_circuit(net, host, key);
        }
    }

    pub(super) fn close_circuit(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let now = net.ctx.now;
        net.nodes.client(host).close(now, key);
        net.drain(self, host);
    }

    fn build_circuit(&mut self, net: &mut Network<'_>, user: u32) -> u32 {
        let plan = net.ctx.plan;
        let UserPlan { host, route, servers, .. } = &plan.users[user as usize];
        let now = net.ctx.now;
        let Applications { users, choices, service_guards, .. } = self;
        let state = &mut users[user as usize];
        let mut service = None;
        let path = match (route, &choices[state.choice].selector) {
            (Route::Pinned(path), _) => *path,
            (Route::Drawn { keep_guard, onion_service }, Some(selector)) => {
                let kept = state.guard.filter(|_| *keep_guard);
                // While the guard that it keeps is down, the client takes others.
                let mut guard = kept.filter(|guard| !net.connections.is_stopped(guard.0, now));
                let path = if *onion_service {
                    let theirs = service_guards.entry(servers[0]).or_default();
                    let (own, of_service) = selector.draw_to_service(&mut state.random, &mut guard, theirs);
                    service = Some(of_service.map(|relay| relay.0));
                    own
                } else {
                    selector.draw(&mut state.random, &mut guard)
                };
                state.guard = kept.or(guard);
                path.map(|relay| relay.0)
            }
            (Route::Drawn { .. }, None) => unreachable!("a selector is made if a user wants one"),
            (Route::Shared(_), _) => unreachable!("only carriers build circuits"),
        };
        let (key, number) = self.begin_circuit(net, user, path, service, None);
        self.user(user).circuit = Some(key);
        self.begin_second_leg(net, user, key);
        net.drain(self, *host);
        number
    }

    /// A circuit takes too long to build: the client uses another one. If it is built later, the client learns from
    /// its time.
    pub(in crate::world) fn circuit_timeout(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let now = net.ctx.now;
        let Some(circuit) = self.circuits[host as usize].get_mut(&key) else { return };
        if circuit.built || circuit.deadline != now {
            return;
        }
        let (user, leg_of) = (circuit.user, circuit.leg_of);
        self.build_times(user).timed_out();
        if leg_of.is_some() {
            return self.close_circuit(net, host, key);
        }
        if self.user(user).circuit != Some(key) {
            return;
        }
        // Nothing will use it: it closes once it is built.
        self.user(user).circuit = None;
        self.retire(host, key);
        let number = self.build_circuit(net, user);
        let Applications { users, transfers, .. } = self;
        users[user as usize]
            .waiting
            .iter()
            .for_each(|transfer| transfers[*transfer as usize].circuit = number);
    }

    /// Begins a circuit over the relays of `path`; to an onion service, also over those of `service`, its guard last.
    pub(super) fn begin_circuit(
        &mut self,
        net: &mut Network<'_>,
        user: u32,
        path: [u32; 3],
        service: Option<[u32; 3]>,
        standby_for: Option<CircuitKey>,
    ) -> (CircuitKey, u32) {
        let number = self.next_circuit;
        self.next_circuit += net.ctx.division.processes;
        let (now, host) = (net.ctx.now, net.ctx.plan.users[user as usize].host);
        let relays = path.into_iter().chain(service.into_iter().flatten()).map(RelayId);
        let key = net.nodes.client(host).build(now, relays.collect());
        let drawn = matches!(net.ctx.plan.users[user as usize].route, Route::Drawn { .. });
        // Users with a pinned path cannot choose another, so they wait without a limit.
        let deadline = match self.choice(user).build_timeout {
            BuildTimeout::After(timeout) if drawn => now + timeout,
            BuildTimeout::Learnt(least) if drawn => now + self.build_times(user).timeout().max(least),
            _ => Time::NEVER,
        };
        if deadline < Time::NEVER {
            net.ctx.queue.push(deadline, Event::CircuitTimeout(host, key));
        }
        let circuit = OwnCircuit {
            user,
            number,
            begun: now,
            path,
            built: false,
            deadline,
            standby_for,
            leg_of: None,
            legs: Legs::Ready,
            retired: false,
        };
        self.circuits[host as usize].insert(key, circuit);
        let path = path.map(Host);
        net.ctx.record(Observation::CircuitBegun { circuit: Circuit(number), user: User(user), path });
        (key, number)
    }

    /// Opens a transfer's stream on the user's circuit, now or when it is built.
    fn send_over_circuit(&mut self, net: &mut Network<'_>, user: u32, transfer: u32) {
        let carrier = self.carrier(net, user);
        let host = net.ctx.plan.users[carrier as usize].host;
        if let Some(key) = self.user(carrier).circuit {
            let circuit = &self.circuits[host as usize][&key];
            if circuit.built && circuit.legs == Legs::Ready {
                self.open_stream(net, host, key, transfer);
            } else {
                self.user(carrier).waiting.push(transfer);
            }
        }
    }

    /// A node has built a circuit.
    pub(super) fn circuit_built(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let Some(circuit) = self.circuits[host as usize].get_mut(&key) else { return };
        circuit.built = true;
        let OwnCircuit { user, number, begun, deadline, standby_for, leg_of, legs, .. } = *circuit;
        let took = net.ctx.now.since(begun);
        let in_time = net.ctx.now < deadline;
        match self.choice(user).build_timeout {
            BuildTimeout::Learnt(_) if in_time => self.build_times(user).built(took),
            BuildTimeout::Learnt(_) => self.build_times(user).late(Some(took)),
            BuildTimeout::Never | BuildTimeout::After(_) => {}
        }
        net.ctx.record(Observation::CircuitBuilt { circuit: Circuit(number), took });
        // A standby circuit and a second leg carry no streams of their own.
        match (standby_for, leg_of) {
            (Some(served), _) => self.standby_built(net, host, key, served),
            (None, Some(first)) => return self.link_legs(net, host, first),
            (None, None) => self.build_standby(net, host, key),
        }
        if legs == Legs::Ready {
            self.circuit_ready(net, host, key);
        } else {
            self.limit_second(net, host, key, took);
            self.link_legs(net, host, key);
            self.close_if_retired(net, host, key);
        }
    }

    /// A circuit can carry streams.
    pub(super) fn circuit_ready(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        if let Some(OwnCircuit { user, .. }) = self.circuits[host as usize].get(&key).copied() {
            if self.user(user).circuit == Some(key) {
                for transfer in std::mem::take(&mut self.user(user).waiting) {
                    self.open_stream(net, host, key, transfer);
                }
            }
            self.close_if_retired(net, host, key);
        }
    }

    /// A circuit has closed: its transfers fail.
    pub(super) fn circuit_closed(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let Some(OwnCircuit { user, number, leg_of, .. }) = self.circuits[host as usize].remove(&key) else {
            return;
        };
        net.ctx.record(Observation::CircuitClosed { circuit: Circuit(number) });
        self.close_standby(net, host, key);
        self.leg_closed(net, host, key, leg_of);
        let streams = &mut self.streams[host as usize];
        let lost = streams.iter().filter(|(stream, _)| stream.circuit == key);
        let mut lost: Vec<u32> = lost.map(|(_, transfer)| *transfer).collect();
        streams.retain(|stream, _| stream.circuit != key);
        if self.user(user).circuit == Some(key) {
            self.user(user).circuit = None;
            lost.append(&mut self.user(user).waiting);
        }
        for transfer in lost {
            self.transfer_failed(net, transfer);
        }
    }

    /// A transfer is over. A user that fetches one response at a time pauses before the next request; if each request
    /// gets its own circuit, the client builds it meanwhile.
    pub(super) fn after_transfer(&mut self, net: &mut Network<'_>, user: u32, transfer: u32) {
        let plan = net.ctx.plan;
        let UserPlan { traffic, circuit_lifetime, stop, .. } = &plan.users[user as usize];
        let Traffic::Fetch { pause: (least, most), every: None, .. } = traffic else { return };
        if self.user(user).fetching != Some(transfer) {
            return;
        }
        self.user(user).fetching = None;
        let carrier = self.carrier(net, user);
        self.user(carrier).waiting.retain(|waiting| *waiting != transfer);
        let pause = self.user(user).random.uniform(least.as_secs_f64(), most.as_secs_f64());
        // A circuit that fails at once must not be tried again at the same instant.
        let next = net.ctx.now + Span::from_secs_f64(pause).max(Span::from_millis(1));
        if next >= *stop {
            return;
        }
        if *circuit_lifetime == Span::ZERO && carrier == user {
            self.retire_circuit(net, user);
            self.build_circuit(net, user);
        }
        net.ctx.queue.push(next, Event::User(user));
    }
}

/// Standby circuits, built ahead for others to switch to (form 2 of active circuit switching).
///
/// A standby circuit has the guard and the exit of the circuit that it serves, and a middle of higher bandwidth. The
/// exit stays because streams' connections to servers end there, so bytes need not be requested again.
impl Applications {
    /// Begins a standby circuit for a circuit that has been built, if circuits switch that way.
    pub(super) fn build_standby(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let switches = net.ctx.system.switching.is_some_and(|rules| rules.form == Form::Circuit);
        // The circuit may have closed while its predecessor's standby was.
        let served = self.circuits[host as usize].get(&key).copied().filter(|_| switches);
        if let Some(served) = served
            && let Route::Drawn { onion_service: false, .. } = net.ctx.plan.users[served.user as usize].route
        {
            let mut draws = self.seed.fork("spares").fork_index(served.number.into()).random();
            let selector = self.choice(served.user).selector.as_ref();
            let selector = selector.expect("a selector is made if a user's route is drawn");
            if let Some(middle) = selector.better_middle(&mut draws, served.path.map(RelayId)) {
                let path = [served.path[0], middle.0, served.path[2]];
                self.begin_circuit(net, served.user, path, None, Some(key));
                net.drain(self, host);
            }
        }
    }

    /// A standby circuit is built: the client keeps it, or closes it if the served circuit is gone.
    fn standby_built(&mut self, net: &mut Network<'_>, host: u32, standby: CircuitKey, served: CircuitKey) {
        if !net.nodes.client(host).keep_standby(served, standby) {
            self.close_circuit(net, host, standby);
        }
    }

    /// A circuit has moved. If it moved to its standby, the two have exchanged paths: closes the standby with the old
    /// path and builds the next.
    pub(super) fn circuit_switched(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let circuits = &self.circuits[host as usize];
        let standby = circuits.iter().find(|(_, circuit)| circuit.standby_for == Some(key));
        if let Some((standby, path)) = standby.map(|(standby, circuit)| (*standby, circuit.path)) {
            if let Some(circuit) = self.circuits[host as usize].get_mut(&key) {
                circuit.path = path;
            }
            self.close_circuit(net, host, standby);
            self.build_standby(net, host, key);
        }
    }

    /// Closes the standby circuits of a circuit that is gone.
    pub(super) fn close_standby(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let circuits = &self.circuits[host as usize];
        let standby = circuits.iter().filter(|(_, circuit)| circuit.standby_for == Some(key));
        for standby in standby.map(|(standby, _)| *standby).collect::<Vec<CircuitKey>>() {
            self.close_circuit(net, host, standby);
        }
    }
}
