//! Users' turns, and the circuits that they build and close.

use tidegate_control::markov;
use tidegate_control::random::Random;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::RelayId;
use tidegate_proto::node::{CircuitKey, StreamKey};
use tidegate_proto::paths::{BuildTimeout, Comparison, Known, Selector, draw};

use crate::observe::{Circuit, Host, Observation, User};
use crate::plan::{Form, Route, Traffic, UserPlan};

use super::contest::Contest;
use super::requests::Content;
use super::state::Applications;
use super::state::{Legs, OwnCircuit, UserState};
use crate::world::event::Event;
use crate::world::network::Network;

/// An address that no server has: an exit refuses it at once.
const NOWHERE: u64 = u64::MAX;

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
        let Applications { users, transfers, .. } = &*self;
        let waits = users[user as usize].waiting.iter().any(|transfer| !transfers[*transfer as usize].over);
        if !waits {
            self.end_contest(net, user);
        }
        if let Some(key) = self.user(user).circuit {
            self.retire(host, key);
            if !waits {
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
            if self.probes(user) > 0 {
                // Real clients compare circuits that they built ahead: until then the old one serves.
                let number = circuit.number;
                if !self.contests.contains_key(&user) {
                    self.build_circuit(net, user);
                }
                return number;
            }
            self.retire_circuit(net, user);
        }
        self.build_circuit(net, user)
    }

    /// The user takes another circuit from now on.
    fn retire_circuit(&mut self, net: &mut Network<'_>, user: u32) {
        let host = net.ctx.plan.users[user as usize].host;
        // Before the contest ends, so that waiting streams do not fail with its circuits.
        let current = self.user(user).circuit.take();
        self.end_contest(net, user);
        if let Some(key) = current {
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

    /// Begins the user's next circuit; returns the number of the one that its next streams wait for.
    fn build_circuit(&mut self, net: &mut Network<'_>, user: u32) -> u32 {
        let host = net.ctx.plan.users[user as usize].host;
        if let Some(key) = self.contests.get(&user).and_then(|contest| contest.circuits().next()) {
            // The circuit before is gone while its successor is being chosen.
            self.await_circuit(net, user, key);
            return self.circuits[host as usize][&key].number;
        }
        let UserState { random, guard, .. } = self.user(user);
        let (mut draws, mut kept) = (random.clone(), *guard);
        let (path, service) = self.draw_path(net, user, &mut draws, &mut kept);
        let state = self.user(user);
        (state.random, state.guard) = (draws, kept);
        let (key, mut number) = self.begin_circuit(net, user, path, service, None);
        match self.user(user).circuit {
            None => self.user(user).circuit = Some(key),
            Some(old) => number = self.circuits[host as usize][&old].number,
        }
        self.begin_second_leg(net, user, key);
        self.begin_contest(net, user, key);
        net.drain(self, host);
        number
    }

    /// Draws a path, and the relays of the onion service's half if the user visits one.
    fn draw_path(
        &mut self,
        net: &mut Network<'_>,
        user: u32,
        random: &mut Random,
        kept: &mut Option<RelayId>,
    ) -> ([u32; 3], Option<[u32; 3]>) {
        let plan = net.ctx.plan;
        let UserPlan { route, servers, .. } = &plan.users[user as usize];
        // Own random draws: comparing must not change what a user draws otherwise.
        let mut others = self.seed.fork("compared").fork_index(self.next_circuit.into()).random();
        let Applications { users, choices, service_guards, .. } = self;
        match (route, &choices[users[user as usize].choice].selector) {
            (Route::Pinned(path), _) => (*path, None),
            (Route::Drawn { keep_guard, onion_service }, Some(selector)) => {
                let own = kept.filter(|_| *keep_guard);
                // While the guard that it keeps is down, the client takes others.
                let mut guard = own.filter(|guard| !net.connections.is_stopped(guard.0, net.ctx.now));
                let (path, service) = if *onion_service {
                    let theirs = service_guards.entry(servers[0]).or_default();
                    let (own, of_service) = selector.draw_to_service(random, &mut guard, theirs);
                    (own, Some(of_service.map(|relay| relay.0)))
                } else {
                    let delay = |from, to| plan.delay(from, to);
                    (selector.draw_cheapest(random, &mut others, &mut guard, delay), None)
                };
                *kept = own.or(guard);
                (path.map(|relay| relay.0), service)
            }
            (Route::Drawn { .. }, None) => unreachable!("a selector is made if a user wants one"),
            (Route::Shared(_), _) => unreachable!("only carriers build circuits"),
        }
    }

    /// A circuit takes too long to build: the client uses another one. If it is built later, the client learns from
    /// its time. Or it takes too long to measure, while another one is measured.
    pub(in crate::world) fn circuit_timeout(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let now = net.ctx.now;
        let Some(circuit) = self.circuits[host as usize].get(&key) else { return };
        let (user, leg_of) = (circuit.user, circuit.leg_of);
        let is_due = !circuit.built && circuit.deadline == now;
        let contest = self.compared(user, key);
        let rivals = contest.map_or(0, |contest| contest.circuits().count() - 1);
        let is_late = rivals > 0 && contest.is_some_and(|contest| contest.is_late(now, key));
        if is_due {
            self.build_times(user).timed_out();
        } else if !is_late {
            return;
        }
        if leg_of.is_some() || rivals > 0 {
            return self.close_circuit(net, host, key);
        }
        if self.user(user).circuit != Some(key) {
            return;
        }
        // Nothing will use it: it closes once it is built.
        self.user(user).circuit = None;
        self.contests.remove(&user);
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
        if self.compared(user, key).is_some() {
            return self.send_probe(net, host, key);
        }
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
        self.contender_closed(net, user, key);
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

/// Circuits that a client compares by measurement. The first one's streams wait until the client has chosen.
impl Applications {
    /// Round trips that a user's client measures over each circuit before it chooses one; 0: it does not compare.
    fn probes(&mut self, user: u32) -> u32 {
        let rule = self.choice(user).selector.as_ref().and_then(Selector::comparison);
        rule.map_or(0, |rule| rule.probes)
    }

    /// The comparison that a circuit takes part in.
    fn compared(&self, user: u32, key: CircuitKey) -> Option<&Contest> {
        self.contests.get(&user).filter(|contest| contest.holds(key))
    }

    /// Begins the circuits that the client compares with the one just begun.
    fn begin_contest(&mut self, net: &mut Network<'_>, user: u32, first: CircuitKey) {
        let UserPlan { host, route, .. } = &net.ctx.plan.users[user as usize];
        let rule = self.choice(user).selector.as_ref().and_then(Selector::comparison);
        let Route::Drawn { onion_service: false, .. } = route else { return };
        let Some(Comparison { paths, probes: probes @ 1.. }) = rule else { return };
        let mut contest = Contest::new(probes);
        contest.add(first);
        for _ in 1..paths {
            let mut draws = self.seed.fork("rivals").fork_index(self.next_circuit.into()).random();
            let mut kept = self.user(user).guard;
            let (path, _) = self.draw_path(net, user, &mut draws, &mut kept);
            contest.add(self.begin_circuit(net, user, path, None, None).0);
        }
        for key in contest.circuits() {
            self.circuits[*host as usize].get_mut(&key).expect("it was begun").legs = Legs::Comparing;
        }
        self.contests.insert(user, contest);
    }

    /// Opens a stream that the exit refuses: the answer shows the circuit's round-trip time.
    fn send_probe(&mut self, net: &mut Network<'_>, host: u32, key: CircuitKey) {
        let now = net.ctx.now;
        let user = self.circuits[host as usize][&key].user;
        if let Some(contest) = self.contests.get_mut(&user)
            && let Some(probe) = net.nodes.client(host).open(now, key, NOWHERE)
        {
            contest.sent(now, probe);
            net.drain(self, host);
        }
    }

    /// An exit has refused a stream.
    pub(super) fn probe_refused(&mut self, net: &mut Network<'_>, host: u32, stream: StreamKey) {
        let Some(OwnCircuit { user, .. }) = self.circuits[host as usize].get(&stream.circuit).copied() else {
            return;
        };
        let contest = self.contests.get_mut(&user);
        match contest.and_then(|contest| contest.refused(net.ctx.now, stream)) {
            Some(true) => self.send_probe(net, host, stream.circuit),
            Some(false) => {
                self.hurry_rivals(net, host, stream.circuit);
                self.choose(net, user);
            }
            None => {}
        }
    }

    /// A circuit is measured: the others have as much time again. Those that take longer are congested.
    fn hurry_rivals(&mut self, net: &mut Network<'_>, host: u32, measured: CircuitKey) {
        let (now, circuit) = (net.ctx.now, &self.circuits[host as usize][&measured]);
        let due = now + now.since(circuit.begun);
        let contest = self.contests.get_mut(&circuit.user).expect("the circuit is part of it");
        for rival in contest.hurry(due) {
            net.ctx.queue.push(due, Event::CircuitTimeout(host, rival));
        }
    }

    /// A circuit is gone, perhaps one that the client compares. Streams that waited then wait on another.
    fn contender_closed(&mut self, net: &mut Network<'_>, user: u32, key: CircuitKey) {
        let Some(contest) = self.contests.get_mut(&user).filter(|contest| contest.holds(key)) else { return };
        contest.remove(key);
        let other = contest.circuits().next();
        match other {
            None => drop(self.contests.remove(&user)),
            Some(other) => {
                if self.user(user).circuit == Some(key) {
                    self.await_circuit(net, user, other);
                }
                self.choose(net, user);
            }
        }
    }

    /// The user's next streams use this circuit.
    fn await_circuit(&mut self, net: &mut Network<'_>, user: u32, key: CircuitKey) {
        let number = self.circuits[net.ctx.plan.users[user as usize].host as usize][&key].number;
        let Applications { users, transfers, .. } = self;
        let state = &mut users[user as usize];
        state.circuit = Some(key);
        state.waiting.iter().for_each(|transfer| transfers[*transfer as usize].circuit = number);
    }

    /// Chooses the cheapest circuit once all are measured, and closes the others and the one before.
    fn choose(&mut self, net: &mut Network<'_>, user: u32) {
        let plan = net.ctx.plan;
        let UserPlan { host, stop, .. } = plan.users[user as usize];
        let Applications { contests, circuits, users, choices, .. } = &*self;
        let selector = choices[users[user as usize].choice].selector.as_ref();
        let cost = |key: CircuitKey, round_trips: &[Span]| {
            let [guard, middle, exit] = circuits[host as usize][&key].path.map(RelayId);
            let delay = plan.delay(guard, middle) + plan.delay(middle, exit);
            selector.expect("it drew the paths").cost(&Known { delay, round_trips })
        };
        let Some(winner) = contests.get(&user).and_then(|contest| contest.winner(cost)) else { return };
        let contest = self.contests.remove(&user).expect("it has a winner");
        let before = self.user(user).circuit.filter(|old| !contest.holds(*old));
        self.await_circuit(net, user, winner);
        let circuit = self.circuits[host as usize].get_mut(&winner).expect("it is built");
        (circuit.legs, circuit.retired) = (Legs::Ready, net.ctx.now >= stop);
        for key in contest.circuits().filter(|key| *key != winner) {
            self.close_circuit(net, host, key);
        }
        if let Some(old) = before {
            self.retire(host, old);
            self.close_if_retired(net, host, old);
        }
        self.build_standby(net, host, winner);
        self.circuit_ready(net, host, winner);
    }

    /// Closes all circuits that a user's client compares.
    fn end_contest(&mut self, net: &mut Network<'_>, user: u32) {
        let host = net.ctx.plan.users[user as usize].host;
        for key in self.contests.remove(&user).iter().flat_map(Contest::circuits) {
            self.close_circuit(net, host, key);
        }
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
