//! The event loop: hands events to the roles' machines and does what they ask for.

use tidegate_control::random::{Random, Seed, mix};
use tidegate_control::units::{Span, Time};
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::{self, Measurement, Peer};
use tidegate_proto::flashflow::hold::Hold;
use tidegate_proto::flashflow::message::{Message, Open, Reason};
use tidegate_proto::flashflow::pace::Class;
use tidegate_proto::flashflow::relay;

use super::circuit::{Circuit, Pipe};
use super::event::{Event, Who};
use super::session::{COORDINATOR, Session, Use, hosts, measurer_fingerprint, order, paths, session};
use super::wires::{ACTIVE, ConnId, PASSIVE, Side, Wires};
use super::{Plan, Report, Stopped};
use crate::observe::Host;
use crate::tcp::Arrival;
use crate::underlay::Underlay;

/// The relays' machine; measurers follow, then where background comes from and goes to.
const RELAY_HOST: Host = Host(0);
/// How often exits send.
const STEP: Span = Span::from_millis(10);
/// Cells under way on a background circuit from exit to client (tor-spec, 7.4); the acknowledgement takes no
/// time here.
const WINDOW: u64 = 1000;
/// What exits send varies in intervals of so many steps.
const STEPS_PER_DRAW: u64 = 10;
/// A run asks whether to go on after so many events.
const EVENTS_PER_LOOK: u64 = 1 << 16;
pub(super) struct World<'a> {
    plan: &'a Plan,
    wires: Wires<Event>,
    uses: Vec<Use>,
    sessions: Vec<Session>,
    keys: Random,
    scratch: Vec<u8>,
    digest: u64,
    ended: bool,
}

impl<'a> World<'a> {
    pub fn new(plan: &'a Plan, seed: Seed) -> World<'a> {
        assert!(!plan.relays.is_empty(), "a run measures something");
        let mut keys = seed.fork("keys").random();
        let hosts = hosts(plan);
        let underlay = Underlay::new(&hosts, paths(plan), &[], seed);
        let sessions = (0..plan.relays.len()).map(|i| session(plan, i, &mut keys, seed)).collect();
        let mut world = World {
            plan,
            wires: Wires::new(underlay, plan.tcp.clone()),
            uses: Vec::new(),
            sessions,
            keys,
            scratch: Vec::new(),
            digest: 0,
            ended: false,
        };
        for i in 0..plan.relays.len() {
            world.start_background(i);
        }
        world.wires.queue.push(Time::ZERO + Span::from_secs(1), Event::Second);
        world.wires.queue.push(Time::ZERO + plan.around, Event::Begin);
        world
    }

    pub fn run(mut self, goes_on: &dyn Fn(Time) -> bool) -> Result<Report, Stopped> {
        while let Some((now, event)) = self.wires.queue.pop() {
            if self.wires.queue.popped().is_multiple_of(EVENTS_PER_LOOK) && !goes_on(now) {
                return Err(Stopped);
            }
            self.handle(now, event);
            if self.ended {
                break;
            }
        }
        let relays = self.sessions.into_iter().map(|session| session.report).collect();
        Ok(Report { relays, events: self.wires.queue.popped(), digest: self.digest })
    }

    fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Net(event) => {
                if let Some((conn, side, arrival)) = self.wires.on_net(event) {
                    self.arrived(now, conn, side, arrival);
                }
            }
            Event::Timer(event) => {
                if let Some(conn) = self.wires.on_timer(event) {
                    self.broke(now, conn);
                }
            }
            Event::Begin => self.begin(now),
            Event::Connected(i, peer) => {
                self.sessions[i].coordination.connected(now, peer);
                self.settle_coordinator(now, i);
            }
            Event::Said(i, peer, to_coordinator, cell) => {
                let message = Message::from_cell(&cell).expect("our own message");
                self.digest = mix(self.digest ^ now.0);
                match (to_coordinator, peer) {
                    (true, _) => {
                        self.sessions[i].coordination.message(now, peer, message);
                        self.settle_coordinator(now, i);
                    }
                    (false, Peer::Relay) => {
                        self.sessions[i].target.message(now, 0, &COORDINATOR, &message);
                        self.settle_relay(now, i);
                    }
                    (false, Peer::Measurer(k)) => {
                        self.sessions[i].members[k].machine.message(now, message);
                        self.settle_member(now, i, k);
                    }
                }
            }
            Event::Lost(i, peer) => {
                self.sessions[i].coordination.lost(peer);
                self.settle_coordinator(now, i);
            }
            Event::CircuitGone(i, k) => {
                self.sessions[i].members[k].machine.failed(Reason::Lost);
                self.settle_member(now, i, k);
            }
            Event::Wake(i, who) => self.wake(now, i, who),
            Event::Background(i) => self.exits_send(now, i),
            Event::Second => {
                for session in &mut self.sessions {
                    session.report.forwarded.push(std::mem::take(&mut session.counted));
                }
                self.wires.queue.push(now + Span::from_secs(1), Event::Second);
            }
            Event::End => self.ended = true,
        }
    }

    fn wake(&mut self, now: Time, i: usize, who: Who) {
        let session = &mut self.sessions[i];
        match who {
            Who::Coordinator => {
                session.wakes[0] = Time::NEVER;
                session.coordination.timeout(now);
                self.settle_coordinator(now, i);
            }
            Who::Relay => {
                session.wakes[1] = Time::NEVER;
                session.target.timeout(now);
                self.settle_relay(now, i);
            }
            Who::Member(k) => {
                session.members[k].wake = Time::NEVER;
                session.members[k].machine.timeout(now);
                self.settle_member(now, i, k);
            }
            Who::Load(k) => {
                session.members[k].load_wake = Time::NEVER;
                self.load(now, i, k);
            }
        }
    }

    /// The coordinator connects to everyone: TCP's and TLS's round trip.
    fn begin(&mut self, now: Time) {
        for i in 0..self.sessions.len() {
            self.sessions[i].coordination =
                Measurement::new(now, order(self.plan, i, &self.sessions[i].secret));
            let measurers = (0..self.sessions[i].members.len()).map(Peer::Measurer);
            for peer in std::iter::once(Peer::Relay).chain(measurers) {
                self.wires.queue.push(now + self.plan.coordinator_delay * 4, Event::Connected(i, peer));
            }
            self.settle_coordinator(now, i);
        }
    }

    fn say(&mut self, i: usize, peer: Peer, to_coordinator: bool, message: &Message) {
        let cell = Box::new(message.to_cell().expect("what a machine says can be said"));
        let at = self.wires.queue.now() + self.plan.coordinator_delay;
        self.wires.queue.push(at, Event::Said(i, peer, to_coordinator, cell));
    }

    fn settle_coordinator(&mut self, now: Time, i: usize) {
        while let Some(output) = self.sessions[i].coordination.poll() {
            match output {
                coordinator::Output::Send(peer, message) => self.say(i, peer, false, &message),
                coordinator::Output::Second(..) => {}
                coordinator::Output::Done(result) => {
                    let session = &mut self.sessions[i];
                    session.report.result = result;
                    session.over = true;
                    if self.sessions.iter().all(|session| session.over) {
                        // The last words arrive, and background flows freely for a while.
                        let end = now + self.plan.around.max(self.plan.coordinator_delay);
                        self.wires.queue.push(end, Event::End);
                    }
                }
            }
        }
        let session = &mut self.sessions[i];
        let due = session.coordination.next_timeout().unwrap_or(Time::NEVER);
        if due < session.wakes[0] {
            session.wakes[0] = due;
            self.wires.queue.push(due.max(now), Event::Wake(i, Who::Coordinator));
        }
    }

    fn settle_relay(&mut self, now: Time, i: usize) {
        loop {
            while let Some(output) = self.sessions[i].target.poll() {
                match output {
                    relay::Output::Send(_, message) => self.say(i, Peer::Relay, true, &message),
                    relay::Output::Close(_) => {
                        let at = now + self.plan.coordinator_delay;
                        self.wires.queue.push(at, Event::Lost(i, Peer::Relay));
                    }
                    relay::Output::Expect(_) => {}
                    relay::Output::Begun(ratio) => {
                        let session = &mut self.sessions[i];
                        session.pace.measuring(now, ratio);
                        let relay = &self.plan.relays[i];
                        session.hold = relay.holds.then(|| Hold::new(now, relay.rate, self.plan.seconds));
                        session.report.measured.0 = Some(now);
                    }
                    relay::Output::Ended => {
                        let session = &mut self.sessions[i];
                        session.pace.idle();
                        session.hold = None;
                        session.report.measured.1 = Some(now);
                        for conn in std::mem::take(&mut session.circuits) {
                            self.wires.drop(conn);
                            let Use::Circuit(circuit) = &self.uses[conn] else { continue };
                            let far =
                                self.plan.measurers[self.sessions[i].members[circuit.member].host].delay;
                            self.wires.queue.push(now + far, Event::CircuitGone(i, circuit.member));
                        }
                    }
                }
            }
            let session = &mut self.sessions[i];
            if now < session.busy_until {
                break;
            }
            let Some(grant) = session.pace.poll(now) else { break };
            let cells = grant.bytes / CELL as u64;
            session.busy_until = now + session.cost(now, cells);
            self.digest = mix(self.digest ^ now.0 ^ grant.bytes.rotate_left(40) ^ grant.who as u64);
            match grant.class {
                Class::Measurement => session.counted.0 += grant.bytes,
                Class::Background => {
                    session.counted.1 += grant.bytes;
                    session.target.background(grant.bytes, 0);
                }
            }
            let holds = session.hold.is_some();
            if let Some(pipe) = self.uses[grant.who].pipe() {
                if holds {
                    pipe.keep(grant.bytes)
                } else {
                    pipe.granted(grant.bytes)
                }
                self.pump(now, grant.who);
            }
        }
        self.release(now, i);
        let session = &mut self.sessions[i];
        let pace = session.pace.next_timeout().map(|due| due.max(session.busy_until));
        let hold = session.hold.as_ref().map(|hold| hold.next_timeout(now));
        let due = [session.target.next_timeout(), pace, hold].into_iter().flatten().min();
        let due = due.unwrap_or(Time::NEVER);
        if due < session.wakes[1] {
            session.wakes[1] = due;
            self.wires.queue.push(due.max(now), Event::Wake(i, Who::Relay));
        }
    }

    /// A relay that holds cells back returns some, in turn, and claims as much background besides.
    fn release(&mut self, now: Time, i: usize) {
        let session = &mut self.sessions[i];
        let Some(mut hold) = session.hold.take() else { return };
        let first = session.circuits.len().min(1);
        session.circuits.rotate_left(first);
        for conn in session.circuits.clone() {
            let Some(pipe) = self.uses[conn].pipe() else { continue };
            let bytes = pipe.release(|kept| hold.release(now, kept));
            self.sessions[i].target.background(bytes, bytes);
            if bytes > 0 {
                self.pump(now, conn);
            }
        }
        self.sessions[i].hold = Some(hold);
    }

    /// Moves bytes through the relay as far as they get without new leave. Must be followed by
    /// [`settle_relay`](Self::settle_relay).
    fn pump(&mut self, now: Time, conn: ConnId) {
        let (i, class) = match &self.uses[conn] {
            Use::Circuit(circuit) => (circuit.session, Class::Measurement),
            Use::FromExit(_, i) => (*i, Class::Background),
            Use::ToClient(_) => return,
        };
        let Some(pipe) = self.uses[conn].pipe() else { return };
        let (received, wanted) = pipe.pump(&mut self.wires);
        let session = &mut self.sessions[i];
        if class == Class::Background {
            session.target.background(0, received);
        }
        let Some(bytes) = wanted else { return };
        if class == Class::Measurement && !session.target.echo(now) {
            self.wires.drop(conn);
            return;
        }
        session.pace.request(class, conn, bytes);
    }

    fn arrived(&mut self, now: Time, conn: ConnId, side: Side, arrival: Arrival) {
        match &mut self.uses[conn] {
            Use::Circuit(circuit) if !circuit.is_open() => {
                let (i, k) = (circuit.session, circuit.member);
                let session = &mut self.sessions[i];
                match circuit.handshake(
                    &mut self.wires,
                    side,
                    arrival,
                    &session.secret,
                    &mut self.keys,
                    |token| session.target.admits(&measurer_fingerprint(session.members[k].host), token),
                ) {
                    Some(true) => session.members[k].machine.opened(now),
                    Some(false) => session.members[k].machine.not_opened(now),
                    None => return,
                }
                self.settle_member(now, i, k);
            }
            Use::Circuit(circuit) if side == ACTIVE => {
                let (i, k) = (circuit.session, circuit.member);
                let member = &mut self.sessions[i].members[k];
                if arrival.received > 0 {
                    match circuit.take_back(&mut self.wires, &mut self.scratch) {
                        Ok((bytes, checked)) => member.machine.echoed(bytes, checked),
                        Err(_) => {
                            member.machine.failed(Reason::WrongEcho);
                            return self.settle_member(now, i, k);
                        }
                    }
                }
                member.ready(conn, circuit);
                self.load(now, i, k);
            }
            Use::Circuit(circuit) => {
                let i = circuit.session;
                self.pump(now, conn);
                self.settle_relay(now, i);
            }
            Use::FromExit(_, i) => {
                let i = *i;
                if side == PASSIVE {
                    self.pump(now, conn);
                    self.settle_relay(now, i);
                }
            }
            Use::ToClient(from) => {
                let from = *from;
                let Use::FromExit(_, i) = self.uses[from] else { return };
                if side == PASSIVE {
                    let bytes = self.wires.read(conn, PASSIVE, u64::MAX);
                    let circuits = &mut self.sessions[i].exits.circuits;
                    if let Some((_, under_way)) = circuits.iter_mut().find(|(conn, _)| *conn == from) {
                        *under_way -= bytes;
                    }
                } else {
                    self.pump(now, from);
                    self.settle_relay(now, i);
                }
            }
        }
    }

    fn broke(&mut self, now: Time, conn: ConnId) {
        if let Use::Circuit(circuit) = &self.uses[conn] {
            let (i, k) = (circuit.session, circuit.member);
            self.sessions[i].pace.withdraw(Class::Measurement, conn);
            self.sessions[i].members[k].machine.failed(Reason::Lost);
            self.settle_member(now, i, k);
        }
    }

    fn settle_member(&mut self, now: Time, i: usize, k: usize) {
        use tidegate_proto::flashflow::measurer::Output;
        while let Some(output) = self.sessions[i].members[k].machine.poll() {
            match output {
                Output::Send(message) => self.say(i, Peer::Measurer(k), true, &message),
                Output::Connect(open) => self.connect(i, k, &open),
                Output::Load => {
                    let circuits = self.sessions[i].circuits.clone();
                    self.sessions[i].members[k].begin();
                    for conn in circuits {
                        if let Use::Circuit(circuit) = &mut self.uses[conn]
                            && circuit.member == k
                            && circuit.is_open()
                        {
                            self.sessions[i].members[k].ready(conn, circuit);
                        }
                    }
                    self.load(now, i, k);
                }
                Output::Disconnect => {
                    let session = &mut self.sessions[i];
                    session.members[k].stop();
                    let (uses, wires, pace) = (&self.uses, &mut self.wires, &mut session.pace);
                    session.circuits.retain(|conn| {
                        let Use::Circuit(circuit) = &uses[*conn] else { return true };
                        if circuit.member == k {
                            wires.drop(*conn);
                            pace.withdraw(Class::Measurement, *conn);
                        }
                        circuit.member != k
                    });
                }
            }
        }
        let member = &mut self.sessions[i].members[k];
        let due = member.machine.next_timeout().unwrap_or(Time::NEVER);
        if due < member.wake {
            member.wake = due;
            self.wires.queue.push(due.max(now), Event::Wake(i, Who::Member(k)));
        }
    }

    fn connect(&mut self, i: usize, k: usize, open: &Open) {
        let host = Host(1 + self.sessions[i].members[k].host as u32);
        for circ in 1..=u32::from(open.sockets) {
            let conn = self.wires.connect(host, RELAY_HOST);
            debug_assert_eq!(conn, self.uses.len());
            self.uses.push(Use::Circuit(Box::new(Circuit::new(i, k, circ, conn, open))));
            self.sessions[i].circuits.push(conn);
        }
    }

    /// A member's circuits send what they may.
    fn load(&mut self, now: Time, i: usize, k: usize) {
        let member = &mut self.sessions[i].members[k];
        let (uses, wires) = (&mut self.uses, &mut self.wires);
        let again = member.send(|conn, load| {
            let Use::Circuit(circuit) = &mut uses[conn] else { unreachable!("members have circuits only") };
            circuit.send(wires, now, load)
        });
        if let Some(at) = again
            && at < member.load_wake
        {
            member.load_wake = at;
            self.wires.queue.push(at.max(now), Event::Wake(i, Who::Load(k)));
        }
    }

    fn start_background(&mut self, i: usize) {
        let [exit, client] = [1, 2].map(|n| Host((self.plan.measurers.len() + n) as u32));
        for _ in 0..self.plan.relays[i].background.circuits {
            let from = self.wires.connect(exit, RELAY_HOST);
            let to = self.wires.connect(RELAY_HOST, client);
            self.uses.push(Use::FromExit(Box::new(Pipe::new((from, PASSIVE), (to, ACTIVE))), i));
            self.uses.push(Use::ToClient(from));
            self.sessions[i].exits.circuits.push((from, 0));
        }
        if self.plan.relays[i].background.circuits > 0 {
            self.wires.queue.push(Time::ZERO + STEP, Event::Background(i));
        }
    }

    fn exits_send(&mut self, now: Time, i: usize) {
        let plan = self.plan.relays[i].background;
        let exits = &mut self.sessions[i].exits;
        if exits.steps.is_multiple_of(STEPS_PER_DRAW) {
            exits.factor = exits.random.normal(1.0, plan.variation).max(0.0);
        }
        exits.steps += 1;
        let per_second = plan.rate.0 / 8;
        let step = per_second as f64 * exits.factor * STEP.as_secs_f64();
        // What circuits have no room for within a tenth of a second is never sent.
        exits.due = (exits.due + step as u64).min(per_second / 10);
        let count = exits.circuits.len();
        for n in 0..count {
            let (conn, under_way) = &mut exits.circuits[(n + exits.steps as usize) % count];
            let room = (WINDOW * CELL as u64).saturating_sub(*under_way);
            let room = room.min(self.wires.space(*conn, ACTIVE)) / CELL as u64;
            let bytes = (exits.due / CELL as u64 / (count - n) as u64).min(room) * CELL as u64;
            exits.due -= bytes;
            *under_way += bytes;
            self.wires.write(*conn, ACTIVE, bytes);
        }
        self.wires.queue.push(now + STEP, Event::Background(i));
    }
}
