//! FlashFlow's roles on hosts of the world: their machines ([`tidegate_proto::flashflow`]), over its links and its TCP.
//!
//! Measurement circuits do their real handshake, and every echoed cell is encrypted, decrypted and checked; on the
//! links travel byte counts. Messages between the roles are encoded, take their path's delay, and are decoded.
//! While a relay is measured, its [`Pace`](tidegate_proto::flashflow::pace::Pace) says what it reads next, echoes or
//! cells of ordinary circuits, instead of its token buckets.

pub(super) mod circuit;
pub(super) mod member;
pub(super) mod session;

use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::{self, Measurement, Peer};
use tidegate_proto::flashflow::hold::Hold;
use tidegate_proto::flashflow::message::{Message, Open, Reason};
use tidegate_proto::flashflow::pace::Class;
use tidegate_proto::flashflow::{measurer, relay};

use self::circuit::Circuit;
use self::session::{Asks, COORDINATOR, Due, Who, measurer_fingerprint};
use super::ends::{Attached, EndId};
use super::event::Event;
use super::state::World;
use crate::observe::{Host, Observation};
use crate::tcp::Arrival;

/// How often a relay says how much it echoed.
const SECOND: Span = Span::from_secs(1);

impl World<'_> {
    pub(super) fn start_measurements(&mut self) {
        for (number, plan) in self.plan.measurements.iter().enumerate() {
            self.wait(plan.start, Due::Begin(number));
        }
        if !self.plan.measurements.is_empty() {
            self.wait(Time::ZERO + SECOND, Due::Second);
        }
    }

    fn wait(&mut self, at: Time, due: Due) {
        let number = self.measuring.due.insert(due);
        self.queue.push(at.max(self.now), Event::Measurement(number as u32));
    }

    fn path_delay(&self, from: u32, to: u32) -> Span {
        let location = |host: u32| self.plan.hosts[host as usize].location;
        self.plan.paths.get(location(from), location(to)).delay
    }

    pub(super) fn measurement_due(&mut self, number: u32) {
        let now = self.now;
        match self.measuring.due.remove(number as usize) {
            Due::Begin(i) => self.begin_measurement(i),
            Due::Connected(i, peer) => {
                if let Some(coordination) = &mut self.measuring.sessions[i].coordination {
                    coordination.connected(now, peer);
                }
                self.settle_coordinator(i);
            }
            Due::Said(i, peer, to_coordinator, cell) => {
                let message = Message::from_cell(&cell).expect("our own message");
                let session = &mut self.measuring.sessions[i];
                match (to_coordinator, peer) {
                    (true, _) => {
                        if let Some(coordination) = &mut session.coordination {
                            coordination.message(now, peer, message);
                        }
                        self.settle_coordinator(i);
                    }
                    (false, Peer::Relay) => {
                        session.target.message(now, 0, &COORDINATOR, &message);
                        self.settle_relay(i);
                    }
                    (false, Peer::Measurer(k)) => {
                        session.members[k].machine.message(now, message);
                        self.settle_member(i, k);
                    }
                }
            }
            Due::Lost(i, peer) => {
                if let Some(coordination) = &mut self.measuring.sessions[i].coordination {
                    coordination.lost(peer);
                }
                self.settle_coordinator(i);
            }
            Due::CircuitGone(i, k) => {
                self.measuring.sessions[i].members[k].machine.failed(Reason::Lost);
                self.settle_member(i, k);
            }
            Due::Wake(i, who) => self.measurement_timer(i, who),
            Due::Second => {
                for i in 0..self.measuring.sessions.len() {
                    let session = &mut self.measuring.sessions[i];
                    let (relay, bytes) = (Host(session.plan.relay), std::mem::take(&mut session.echoed));
                    if bytes > 0 {
                        self.record(Observation::Echoed { relay, bytes });
                    }
                }
                self.wait(now + SECOND, Due::Second);
            }
        }
    }

    fn measurement_timer(&mut self, i: usize, who: Who) {
        let now = self.now;
        let session = &mut self.measuring.sessions[i];
        match who {
            Who::Coordinator => {
                session.wakes[0] = Time::NEVER;
                if let Some(coordination) = &mut session.coordination {
                    coordination.timeout(now);
                }
                self.settle_coordinator(i);
            }
            Who::Relay => {
                session.wakes[1] = Time::NEVER;
                session.target.timeout(now);
                self.settle_relay(i);
            }
            Who::Member(k) => {
                session.members[k].wake = Time::NEVER;
                session.members[k].machine.timeout(now);
                self.settle_member(i, k);
            }
            Who::Load(k) => {
                session.members[k].load_wake = Time::NEVER;
                self.load(i, k);
            }
        }
    }

    /// The coordinator connects to everyone: TCP's and TLS's round trip.
    fn begin_measurement(&mut self, i: usize) {
        let session = &mut self.measuring.sessions[i];
        session.coordination = Some(Measurement::new(self.now, session.order(i)));
        let (coordinator, members) = (session.plan.coordinator, session.members.len());
        for peer in std::iter::once(Peer::Relay).chain((0..members).map(Peer::Measurer)) {
            let delay = self.path_delay(coordinator, self.measuring.sessions[i].host(peer));
            self.wait(self.now + delay * 4, Due::Connected(i, peer));
        }
        self.settle_coordinator(i);
    }

    fn say(&mut self, i: usize, peer: Peer, to_coordinator: bool, message: &Message) {
        let cell = Box::new(message.to_cell().expect("what a machine says can be said"));
        let session = &self.measuring.sessions[i];
        let (coordinator, other) = (session.plan.coordinator, session.host(peer));
        // The way there and the way back differ on measured paths: a message must not be overtaken by the end of its
        // connection.
        let delay = match to_coordinator {
            true => self.path_delay(other, coordinator),
            false => self.path_delay(coordinator, other),
        };
        self.wait(self.now + delay, Due::Said(i, peer, to_coordinator, cell));
    }

    fn settle_coordinator(&mut self, i: usize) {
        loop {
            let session = &mut self.measuring.sessions[i];
            let Some(coordination) = &mut session.coordination else { return };
            match coordination.poll() {
                Some(coordinator::Output::Send(peer, message)) => self.say(i, peer, false, &message),
                Some(coordinator::Output::Second(..)) => {}
                Some(coordinator::Output::Done(result)) => {
                    let result = Box::new(result);
                    self.record(Observation::Measured { measurement: i as u32, result });
                }
                None => {
                    let due = coordination.next_timeout().unwrap_or(Time::NEVER);
                    if due < session.wakes[0] {
                        session.wakes[0] = due;
                        self.wait(due, Due::Wake(i, Who::Coordinator));
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn settle_relay(&mut self, i: usize) {
        let now = self.now;
        loop {
            while let Some(output) = self.measuring.sessions[i].target.poll() {
                self.relay_asks(i, output);
            }
            let session = &mut self.measuring.sessions[i];
            let host = session.plan.relay;
            let Some(gate) = &self.hosts[host as usize].gate else { return };
            if session.begun.is_none() || now < gate.busy_until {
                break;
            }
            let Some(grant) = session.pace.poll(now) else { break };
            let cost = session.cost(now, grant.bytes / CELL as u64);
            match grant.who {
                Asks::Echo(circuit) => {
                    session.echoed += grant.bytes;
                    let pipe = &mut self.measuring.circuits[circuit as usize].pipe;
                    if session.hold.is_some() {
                        pipe.keep(grant.bytes)
                    } else {
                        pipe.granted(grant.bytes)
                    }
                    self.pump_echo(circuit);
                }
                Asks::Channel(end) => {
                    session.target.background(grant.bytes, grant.bytes);
                    self.read_granted(host, end);
                }
            }
            if let Some(gate) = &mut self.hosts[host as usize].gate {
                gate.busy_until = now + cost;
            }
        }
        self.release(i);
        let session = &mut self.measuring.sessions[i];
        let busy_until = self.hosts[session.plan.relay as usize].gate.as_ref().map(|gate| gate.busy_until);
        let pace = session.begun.and(match busy_until.filter(|busy| now < *busy) {
            Some(busy) => Some(busy),
            None => session.pace.next_timeout(),
        });
        let hold = session.hold.as_ref().map(|hold| hold.next_timeout(now));
        let due = [session.target.next_timeout(), pace, hold].into_iter().flatten().min();
        let due = due.unwrap_or(Time::NEVER);
        if due < session.wakes[1] {
            session.wakes[1] = due;
            self.wait(due, Due::Wake(i, Who::Relay));
        }
    }

    fn relay_asks(&mut self, i: usize, output: relay::Output) {
        let now = self.now;
        let session = &mut self.measuring.sessions[i];
        let host = session.plan.relay;
        match output {
            relay::Output::Send(_, message) => self.say(i, Peer::Relay, true, &message),
            relay::Output::Close(_) => {
                let coordinator = session.plan.coordinator;
                let delay = self.path_delay(host, coordinator);
                self.wait(now + delay, Due::Lost(i, Peer::Relay));
            }
            relay::Output::Expect(_) => {}
            relay::Output::Started(ratio) => {
                session.begun = Some(now);
                session.pace.measuring(now, ratio);
                let able = self.plan.hosts[host as usize].capacity();
                let holds = session.plan.holds && able.is_finite();
                let able = Rate::from_bytes_per_s(able as u64);
                session.hold = holds.then(|| Hold::new(now, able, session.plan.seconds));
                if let Some(gate) = &mut self.hosts[host as usize].gate {
                    let left = gate.measure(i, now);
                    session.pace.forwarded_lately(now, left);
                }
                self.record(Observation::MeasurementFlows { measurement: i as u32, flows: true });
                self.pump(host);
            }
            relay::Output::Ended => {
                let flowed = session.begun.take().is_some();
                session.pace.idle();
                session.hold = None;
                for number in std::mem::take(&mut session.circuits) {
                    let circuit = &self.measuring.circuits[number as usize];
                    let (connection, k) = (circuit.end.connection, circuit.member);
                    self.kill(connection);
                    let far = self.path_delay(host, self.measuring.sessions[i].members[k].host);
                    self.wait(now + far, Due::CircuitGone(i, k));
                }
                if flowed {
                    self.record(Observation::MeasurementFlows { measurement: i as u32, flows: false });
                    if let Some(gate) = &mut self.hosts[host as usize].gate {
                        gate.measured(now);
                    }
                    self.pump(host);
                }
            }
        }
    }

    /// What the host of a measured relay has to read waits for the pace's leave; what it has to write it writes.
    pub(super) fn measured_pump(&mut self, host: u32, i: usize) {
        while let Some(end) =
            self.hosts[host as usize].gate.as_mut().and_then(|gate| gate.readers.pop_front())
        {
            self.ask_to_read(host, i, end);
        }
        while let Some(end) = self.next_writer(host) {
            self.flush(end);
            self.drain(host);
        }
        self.settle_relay(i);
    }

    /// Asks for leave to read a cell, if one has come.
    fn ask_to_read(&mut self, host: u32, i: usize, end: EndId) {
        if let Some(Attached::Stream(stream)) = self.end(end).map(|end| end.attached) {
            self.package(host, stream, u32::MAX);
            return self.drain(host);
        }
        if self.can_read(end)
            && let Some(gate) = &mut self.hosts[host as usize].gate
        {
            gate.paused_readers.push(end);
            self.measuring.sessions[i].pace.request(Class::Background, Asks::Channel(end), CELL as u64);
        }
    }

    /// Reads the cell that leave was given for.
    fn read_granted(&mut self, host: u32, end: EndId) {
        if let Some(gate) = &mut self.hosts[host as usize].gate {
            gate.paused_readers.retain(|other| *other != end);
        }
        if self.can_read(end) {
            self.read_one(end);
            self.drain(host);
            self.transmit(end);
        }
        let measured = self.hosts[host as usize].gate.as_ref().and_then(|gate| gate.measured);
        if let Some(i) = measured {
            self.ask_to_read(host, i, end);
        }
    }

    /// A relay that holds cells back returns some, in turn, and claims as much background besides.
    fn release(&mut self, i: usize) {
        let now = self.now;
        let session = &mut self.measuring.sessions[i];
        let Some(mut hold) = session.hold.take() else { return };
        let first = session.circuits.len().min(1);
        session.circuits.rotate_left(first);
        for number in session.circuits.clone() {
            let pipe = &mut self.measuring.circuits[number as usize].pipe;
            let bytes = pipe.release(|kept| hold.release(now, kept));
            self.measuring.sessions[i].target.background(bytes, bytes);
            if bytes > 0 {
                self.pump_echo(number);
            }
        }
        self.measuring.sessions[i].hold = Some(hold);
    }

    /// Moves echo cells through the relay as far as they get without new leave. Must be followed by
    /// [`settle_relay`](Self::settle_relay).
    fn pump_echo(&mut self, number: u32) {
        let now = self.now;
        let (measuring, mut sockets) = self.sockets();
        let circuit = &mut measuring.circuits[number as usize];
        let Some(bytes) = circuit.pipe.pump(&mut sockets) else { return };
        let (i, connection) = (circuit.session, circuit.end.connection);
        if measuring.sessions[i].target.echo(now) {
            measuring.sessions[i].pace.request(Class::Measurement, Asks::Echo(number), bytes);
        } else {
            self.kill(connection);
        }
    }

    /// Something arrived on a measurement circuit.
    pub(super) fn echo_arrived(&mut self, number: u32, side: u8, arrival: Arrival) {
        let now = self.now;
        let (measuring, mut sockets) = self.sockets();
        let circuit = &mut measuring.circuits[number as usize];
        let (i, k, connection) = (circuit.session, circuit.member, circuit.end.connection);
        let session = &mut measuring.sessions[i];
        if !circuit.is_open() {
            let measurer = measurer_fingerprint(session.members[k].host);
            let admits = |token: &_| session.target.admits(&measurer, token);
            let keys = &mut measuring.keys;
            match circuit.handshake(&mut sockets, side, arrival, &session.secret, keys, admits) {
                Some(true) => session.members[k].machine.opened(now),
                Some(false) => {
                    session.members[k].machine.not_opened(now);
                    self.kill(connection);
                }
                None => return,
            }
            return self.settle_member(i, k);
        }
        if side != circuit.end.side {
            self.pump_echo(number);
            return self.settle_relay(i);
        }
        let member = &mut session.members[k];
        if arrival.received > 0 {
            match circuit.take_back(&mut sockets, &mut measuring.scratch) {
                Ok((bytes, checked)) => member.machine.echoed(bytes, checked),
                Err(_) => {
                    member.machine.failed(Reason::WrongEcho);
                    return self.settle_member(i, k);
                }
            }
        }
        member.ready(number, circuit);
        self.load(i, k);
    }

    /// A connection broke; if it is a measurement circuit's, the measurement is over.
    pub(super) fn echo_broke(&mut self, id: EndId) {
        let Some(Attached::Echo(number)) = self.end(id).map(|end| end.attached) else { return };
        let circuit = &self.measuring.circuits[number as usize];
        let (i, k) = (circuit.session, circuit.member);
        let session = &mut self.measuring.sessions[i];
        session.pace.withdraw(Class::Measurement, Asks::Echo(number));
        session.members[k].machine.failed(Reason::Lost);
        self.settle_member(i, k);
    }

    fn settle_member(&mut self, i: usize, k: usize) {
        while let Some(output) = self.measuring.sessions[i].members[k].machine.poll() {
            match output {
                measurer::Output::Send(message) => self.say(i, Peer::Measurer(k), true, &message),
                measurer::Output::Connect(open) => self.open_echoes(i, k, &open),
                measurer::Output::Load => {
                    let session = &mut self.measuring.sessions[i];
                    session.members[k].begin();
                    for number in &session.circuits {
                        let circuit = &mut self.measuring.circuits[*number as usize];
                        if circuit.member == k && circuit.is_open() {
                            session.members[k].ready(*number, circuit);
                        }
                    }
                    self.load(i, k);
                }
                measurer::Output::Disconnect => {
                    let session = &mut self.measuring.sessions[i];
                    session.members[k].stop();
                    for number in session.circuits.clone() {
                        let circuit = &self.measuring.circuits[number as usize];
                        if circuit.member == k {
                            let connection = circuit.end.connection;
                            let session = &mut self.measuring.sessions[i];
                            session.circuits.retain(|other| *other != number);
                            session.pace.withdraw(Class::Measurement, Asks::Echo(number));
                            self.kill(connection);
                        }
                    }
                }
            }
        }
        let member = &mut self.measuring.sessions[i].members[k];
        let due = member.machine.next_timeout().unwrap_or(Time::NEVER);
        if due < member.wake {
            member.wake = due;
            self.wait(due, Due::Wake(i, Who::Member(k)));
        }
    }

    fn open_echoes(&mut self, i: usize, k: usize, open: &Open) {
        let session = &self.measuring.sessions[i];
        let (measurer, relay) = (session.members[k].host, session.plan.relay);
        for circ in 1..=u32::from(open.sockets) {
            let number = self.measuring.circuits.len() as u32;
            let end = self.open(measurer, relay, [Attached::Echo(number); 2]);
            self.measuring.circuits.push(Circuit::new(i, k, circ, end, open));
            self.measuring.sessions[i].circuits.push_back(number);
        }
    }

    /// A member's circuits send what they may.
    fn load(&mut self, i: usize, k: usize) {
        let now = self.now;
        let (measuring, mut sockets) = self.sockets();
        let (member, circuits) = (&mut measuring.sessions[i].members[k], &mut measuring.circuits);
        let again = member.send(|number, load| circuits[number as usize].send(&mut sockets, now, load));
        if let Some(at) = again
            && at < member.load_wake
        {
            member.load_wake = at;
            self.wait(at, Due::Wake(i, Who::Load(k)));
        }
    }
}
