//! FlashFlow's roles on hosts of the world: their machines ([`tidegate_proto::flashflow`]), over its links and its TCP.
//!
//! Measurement circuits do their real handshake, and every echoed cell is encrypted, decrypted and checked; on the
//! links travel byte counts. Messages between the roles are encoded, take their path's delay, and are decoded.
//! While a relay is measured, its [`Pace`](tidegate_proto::flashflow::Pace) says what it reads next, instead of
//! its token buckets: echoes, cells of ordinary circuits, or bytes that servers send to an exit.

mod circuit;
mod member;
mod session;

use tidegate_control::machine::Machine as _;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_proto::flashflow::cell::CELL;
use tidegate_proto::flashflow::coordinator::{self, Peer};
use tidegate_proto::flashflow::{Class, Hold, Message, Open, Reason, measurer, relay};

use self::circuit::Circuit;
pub(super) use self::session::Measurement;
use self::session::{COORDINATOR, Due, Requester, TimerOwner, measurer_fingerprint};
use super::connections::{Attached, EndId};
use super::event::Event;
use super::network::{Network, NodeEvents};
use crate::observe::{Host, Observation};
use crate::tcp::Arrival;

/// How often a relay says how much it echoed.
const SECOND: Span = Span::from_secs(1);

impl Measurement {
    pub(in crate::world) fn start(&mut self, net: &mut Network<'_>) {
        for (number, plan) in net.ctx.plan.measurements.iter().enumerate() {
            self.wait(net, plan.start, Due::Begin(number));
        }
        if !net.ctx.plan.measurements.is_empty() {
            self.wait(net, Time::ZERO + SECOND, Due::Second);
        }
    }

    fn wait(&mut self, net: &mut Network<'_>, at: Time, due: Due) {
        let number = self.due.insert(due);
        net.ctx.queue.push(at.max(net.ctx.now), Event::Measurement(number as u32));
    }

    fn path_delay(&self, net: &mut Network<'_>, from: u32, to: u32) -> Span {
        let location = |host: u32| net.ctx.plan.hosts[host as usize].location;
        net.ctx.plan.paths.get(location(from), location(to)).delay
    }

    pub(in crate::world) fn due(&mut self, net: &mut Network<'_>, apps: &mut impl NodeEvents, number: u32) {
        let now = net.ctx.now;
        match self.due.remove(number as usize) {
            Due::Begin(i) => self.begin(net, i),
            Due::Connected(i, peer) => {
                if let Some(coordination) = &mut self.sessions[i].coordination {
                    coordination.connected(now, peer);
                }
                self.settle_coordinator(net, i);
            }
            // Messages are decoded from cells so that the wire format is exercised.
            Due::Said(i, peer, to_coordinator, cell) => {
                let message = Message::from_cell(&cell).expect("our own message");
                let session = &mut self.sessions[i];
                match (to_coordinator, peer) {
                    (true, _) => {
                        if let Some(coordination) = &mut session.coordination {
                            coordination.message(now, peer, message);
                        }
                        self.settle_coordinator(net, i);
                    }
                    (false, Peer::Relay) => {
                        session.target.message(now, 0, &COORDINATOR, &message);
                        self.settle_relay(net, apps, i);
                    }
                    (false, Peer::Measurer(k)) => {
                        session.members[k].machine.message(now, message);
                        self.settle_member(net, apps, i, k);
                    }
                }
            }
            Due::Lost(i, peer) => {
                if let Some(coordination) = &mut self.sessions[i].coordination {
                    coordination.lost(peer);
                }
                self.settle_coordinator(net, i);
            }
            Due::CircuitGone(i, k) => {
                self.sessions[i].members[k].machine.failed(Reason::Lost);
                self.settle_member(net, apps, i, k);
            }
            Due::Wake(i, who) => self.timer(net, apps, i, who),
            Due::Second => {
                for i in 0..self.sessions.len() {
                    let session = &mut self.sessions[i];
                    let (relay, bytes) = (Host(session.plan.relay), std::mem::take(&mut session.echoed));
                    if bytes > 0 {
                        net.ctx.record(Observation::Echoed { relay, bytes });
                    }
                }
                self.wait(net, now + SECOND, Due::Second);
            }
        }
    }

    fn timer(&mut self, net: &mut Network<'_>, apps: &mut impl NodeEvents, i: usize, who: TimerOwner) {
        let now = net.ctx.now;
        let session = &mut self.sessions[i];
        match who {
            TimerOwner::Coordinator => {
                session.wakes[0] = Time::NEVER;
                if let Some(coordination) = &mut session.coordination {
                    coordination.timeout(now);
                }
                self.settle_coordinator(net, i);
            }
            TimerOwner::Relay => {
                session.wakes[1] = Time::NEVER;
                session.target.timeout(now);
                self.settle_relay(net, apps, i);
            }
            TimerOwner::Member(k) => {
                session.members[k].wake = Time::NEVER;
                session.members[k].machine.timeout(now);
                self.settle_member(net, apps, i, k);
            }
            TimerOwner::Load(k) => {
                session.members[k].load_wake = Time::NEVER;
                self.load(net, i, k);
            }
        }
    }

    /// The coordinator connects to everyone: TCP's and TLS's round trip.
    fn begin(&mut self, net: &mut Network<'_>, i: usize) {
        let session = &mut self.sessions[i];
        session.coordination = Some(coordinator::Measurement::new(net.ctx.now, session.order(i)));
        let (coordinator, members) = (session.plan.coordinator, session.members.len());
        for peer in std::iter::once(Peer::Relay).chain((0..members).map(Peer::Measurer)) {
            let delay = self.path_delay(net, coordinator, self.sessions[i].host(peer));
            self.wait(net, net.ctx.now + delay * 4, Due::Connected(i, peer));
        }
        self.settle_coordinator(net, i);
    }

    fn say(&mut self, net: &mut Network<'_>, i: usize, peer: Peer, to_coordinator: bool, message: &Message) {
        let cell = Box::new(message.to_cell().expect("what a machine says can be said"));
        let session = &self.sessions[i];
        let (coordinator, other) = (session.plan.coordinator, session.host(peer));
        // The way there and the way back differ on measured paths: a message must not be overtaken by the end of its
        // connection.
        let delay = match to_coordinator {
            true => self.path_delay(net, other, coordinator),
            false => self.path_delay(net, coordinator, other),
        };
        self.wait(net, net.ctx.now + delay, Due::Said(i, peer, to_coordinator, cell));
    }

    fn settle_coordinator(&mut self, net: &mut Network<'_>, i: usize) {
        loop {
            let session = &mut self.sessions[i];
            let Some(coordination) = &mut session.coordination else { return };
            match coordination.poll() {
                Some(coordinator::Output::Send(peer, message)) => self.say(net, i, peer, false, &message),
                Some(coordinator::Output::Second(..)) => {}
                Some(coordinator::Output::Done(result)) => {
                    let result = Box::new(result);
                    net.ctx.record(Observation::Measured { measurement: i as u32, result });
                }
                None => {
                    let due = coordination.next_timeout().unwrap_or(Time::NEVER);
                    if due < session.wakes[0] {
                        session.wakes[0] = due;
                        self.wait(net, due, Due::Wake(i, TimerOwner::Coordinator));
                    }
                    return;
                }
            }
        }
    }

    pub(in crate::world) fn settle_relay(
        &mut self,
        net: &mut Network<'_>,
        apps: &mut impl NodeEvents,
        i: usize,
    ) {
        let now = net.ctx.now;
        loop {
            while let Some(output) = self.sessions[i].target.poll() {
                self.relay_asks(net, apps, i, output);
            }
            let session = &mut self.sessions[i];
            let host = session.plan.relay;
            if session.begun.is_none() || now < net.nodes.gated(host).busy_until {
                break;
            }
            let Some(grant) = session.pace.poll(now) else { break };
            // One core: nothing else is forwarded while it processes this grant.
            let cost = session.cost(now, grant.bytes / CELL as u64);
            match grant.who {
                Requester::Echo(circuit) => {
                    session.echoed += grant.bytes;
                    let pipe = &mut self.circuits[circuit as usize].pipe;
                    if session.hold.is_some() {
                        pipe.keep(grant.bytes)
                    } else {
                        pipe.granted(grant.bytes)
                    }
                    self.pump_echo(net, apps, circuit);
                }
                Requester::Reader(end) => self.read_granted(net, apps, (host, i), end),
            }
            net.nodes.gated(host).busy_until = now + cost;
        }
        self.release(net, apps, i);
        let session = &mut self.sessions[i];
        let busy_until = net.nodes.gated(session.plan.relay).busy_until;
        let pace =
            session.begun.and(if now < busy_until { Some(busy_until) } else { session.pace.next_timeout() });
        let hold = session.hold.as_ref().map(|hold| hold.next_timeout(now));
        let due = [session.target.next_timeout(), pace, hold].into_iter().flatten().min();
        let due = due.unwrap_or(Time::NEVER);
        if due < session.wakes[1] {
            session.wakes[1] = due;
            self.wait(net, due, Due::Wake(i, TimerOwner::Relay));
        }
    }

    fn relay_asks(
        &mut self,
        net: &mut Network<'_>,
        apps: &mut impl NodeEvents,
        i: usize,
        output: relay::Output,
    ) {
        let now = net.ctx.now;
        let session = &mut self.sessions[i];
        let host = session.plan.relay;
        match output {
            relay::Output::Send(_, message) => self.say(net, i, Peer::Relay, true, &message),
            relay::Output::Close(_) => {
                let coordinator = session.plan.coordinator;
                let delay = self.path_delay(net, host, coordinator);
                self.wait(net, now + delay, Due::Lost(i, Peer::Relay));
            }
            relay::Output::Expect(_) => {}
            relay::Output::Started(ratio) => {
                session.begun = Some(now);
                session.pace.measuring(now, ratio);
                let able = net.ctx.plan.hosts[host as usize].capacity();
                let holds = session.plan.holds && able.is_finite();
                let able = Rate::from_bytes_per_s(able as u64);
                session.hold = holds.then(|| Hold::new(now, able, session.plan.seconds));
                let gate = net.nodes.gated(host);
                session.pace.forwarded_lately(now, gate.measure(i, now));
                gate.begin_pump(now);
                net.ctx.record(Observation::MeasurementFlows { measurement: i as u32, flows: true });
                self.pump(net, apps, host, i);
            }
            relay::Output::Ended => {
                let flowed = session.begun.take().is_some();
                session.pace.idle();
                session.hold = None;
                // The relay closes all circuits; members learn it one path delay later.
                for number in std::mem::take(&mut session.circuits) {
                    let circuit = &self.circuits[number as usize];
                    let (connection, k) = (circuit.end.connection, circuit.member);
                    net.close(apps, connection);
                    // The measurer learns of the closed circuit one path delay later.
                    let far = self.path_delay(net, host, self.sessions[i].members[k].host);
                    self.wait(net, now + far, Due::CircuitGone(i, k));
                }
                if flowed {
                    net.ctx.record(Observation::MeasurementFlows { measurement: i as u32, flows: false });
                    let gate = net.nodes.gated(host);
                    gate.measured(now);
                    gate.begin_pump(now);
                    net.pump(apps, host);
                }
            }
        }
    }

    /// Pumps a measured relay: reading waits for the pace's permission, writing does not.
    pub(in crate::world) fn pump(
        &mut self,
        net: &mut Network<'_>,
        apps: &mut impl NodeEvents,
        host: u32,
        i: usize,
    ) {
        while let Some(end) = net.nodes.gated(host).readers.pop_front() {
            self.ask_to_read(net, host, i, end);
        }
        while let Some(end) = net.next_writer(host) {
            net.flush(apps, end);
            net.drain(apps, host);
        }
        self.settle_relay(net, apps, i);
    }

    /// Asks for permission to read a cell of a channel or of a server's bytes, if one has arrived.
    fn ask_to_read(&mut self, net: &mut Network<'_>, host: u32, i: usize, end: EndId) {
        let arrived = match net.connections.attachment(end) {
            Some((_, Attached::Stream(_))) => {
                net.connections.server_bytes_from(end).is_some_and(|(_, bytes)| !bytes.is_empty())
            }
            _ => net.connections.can_read(end),
        };
        if arrived {
            net.nodes.gated(host).paused_readers.push(end);
            self.sessions[i].pace.request(Class::Background, Requester::Reader(end), CELL as u64);
        }
    }

    /// Reads the cell that the pace has permitted.
    fn read_granted(
        &mut self,
        net: &mut Network<'_>,
        apps: &mut impl NodeEvents,
        (host, i): (u32, usize),
        end: EndId,
    ) {
        net.nodes.gated(host).paused_readers.retain(|other| *other != end);
        let read = match net.connections.attachment(end) {
            // A stream that windows or queues stop is read when the node packages it again.
            Some((_, Attached::Stream(stream))) => apps.read_from_server(net, host, stream, end, 1) > 0,
            _ if net.connections.can_read(end) => {
                net.read_cells(end, 1);
                true
            }
            _ => false,
        };
        if read {
            self.sessions[i].target.background(CELL as u64, CELL as u64);
            net.drain(apps, host);
            net.transmit(end);
            if let Some(i) = net.nodes.gated(host).measured {
                self.ask_to_read(net, host, i, end);
            }
        }
    }

    /// A relay that holds cells back returns some, in turn, and claims as much background besides.
    fn release(&mut self, net: &mut Network<'_>, apps: &mut impl NodeEvents, i: usize) {
        let now = net.ctx.now;
        let session = &mut self.sessions[i];
        let Some(mut hold) = session.hold.take() else { return };
        let first = session.circuits.len().min(1);
        session.circuits.rotate_left(first);
        for number in session.circuits.clone() {
            let pipe = &mut self.circuits[number as usize].pipe;
            let bytes = pipe.release(|kept| hold.release(now, kept));
            self.sessions[i].target.background(bytes, bytes);
            if bytes > 0 {
                self.pump_echo(net, apps, number);
            }
        }
        self.sessions[i].hold = Some(hold);
    }

    /// Moves echo cells through the relay as far as they get without new permission. Must be followed by
    /// [`settle_relay`](Self::settle_relay).
    fn pump_echo(&mut self, net: &mut Network<'_>, apps: &mut impl NodeEvents, number: u32) {
        let now = net.ctx.now;
        let mut sockets = net.sockets();
        let circuit = &mut self.circuits[number as usize];
        let Some(bytes) = circuit.pipe.pump(&mut sockets) else { return };
        let (i, connection) = (circuit.session, circuit.end.connection);
        if self.sessions[i].target.echo(now) {
            self.sessions[i].pace.request(Class::Measurement, Requester::Echo(number), bytes);
        } else {
            net.close(apps, connection);
        }
    }

    /// Something arrived on a measurement circuit.
    pub(in crate::world) fn echo_arrived(
        &mut self,
        net: &mut Network<'_>,
        apps: &mut impl NodeEvents,
        (number, side): (u32, u8),
        arrival: Arrival,
    ) {
        let now = net.ctx.now;
        let mut sockets = net.sockets();
        let circuit = &mut self.circuits[number as usize];
        let (i, k, connection) = (circuit.session, circuit.member, circuit.end.connection);
        let session = &mut self.sessions[i];
        if !circuit.is_open() {
            let measurer = measurer_fingerprint(session.members[k].host);
            // Authentication stands for TLS, which is not simulated.
            let admits = |token: &_| session.target.admits(&measurer, token);
            let keys = &mut self.keys;
            match circuit.handshake(&mut sockets, side, arrival, &session.secret, keys, admits) {
                Some(true) => session.members[k].machine.opened(now),
                Some(false) => {
                    session.members[k].machine.not_opened(now);
                    net.close(apps, connection);
                }
                None => return,
            }
            return self.settle_member(net, apps, i, k);
        }
        if side != circuit.end.side {
            self.pump_echo(net, apps, number);
            return self.settle_relay(net, apps, i);
        }
        let member = &mut session.members[k];
        if arrival.received > 0 {
            match circuit.take_back(&mut sockets, &mut self.scratch) {
                Ok((bytes, checked)) => member.machine.echoed(bytes, checked),
                Err(_) => {
                    member.machine.failed(Reason::WrongEcho);
                    return self.settle_member(net, apps, i, k);
                }
            }
        }
        member.ready(number, circuit);
        self.load(net, i, k);
    }

    /// TCP has given up a measurement circuit's connection: the measurement is over.
    pub(in crate::world) fn echo_broke(
        &mut self,
        net: &mut Network<'_>,
        apps: &mut impl NodeEvents,
        number: u32,
    ) {
        let circuit = &self.circuits[number as usize];
        let (i, k) = (circuit.session, circuit.member);
        let session = &mut self.sessions[i];
        session.pace.withdraw(Class::Measurement, Requester::Echo(number));
        session.members[k].machine.failed(Reason::Lost);
        self.settle_member(net, apps, i, k);
    }

    fn settle_member(&mut self, net: &mut Network<'_>, apps: &mut impl NodeEvents, i: usize, k: usize) {
        while let Some(output) = self.sessions[i].members[k].machine.poll() {
            match output {
                measurer::Output::Send(message) => self.say(net, i, Peer::Measurer(k), true, &message),
                measurer::Output::Connect(open) => self.open_echoes(net, i, k, &open),
                measurer::Output::Load => {
                    let session = &mut self.sessions[i];
                    session.members[k].begin();
                    // Circuits that opened late are queued when they open.
                    for number in &session.circuits {
                        let circuit = &mut self.circuits[*number as usize];
                        if circuit.member == k && circuit.is_open() {
                            session.members[k].ready(*number, circuit);
                        }
                    }
                    self.load(net, i, k);
                }
                measurer::Output::Disconnect => {
                    let session = &mut self.sessions[i];
                    session.members[k].stop();
                    for number in session.circuits.clone() {
                        let circuit = &self.circuits[number as usize];
                        if circuit.member == k {
                            let connection = circuit.end.connection;
                            let session = &mut self.sessions[i];
                            session.circuits.retain(|other| *other != number);
                            session.pace.withdraw(Class::Measurement, Requester::Echo(number));
                            net.close(apps, connection);
                        }
                    }
                }
            }
        }
        let member = &mut self.sessions[i].members[k];
        let due = member.machine.next_timeout().unwrap_or(Time::NEVER);
        if due < member.wake {
            member.wake = due;
            self.wait(net, due, Due::Wake(i, TimerOwner::Member(k)));
        }
    }

    fn open_echoes(&mut self, net: &mut Network<'_>, i: usize, k: usize, open: &Open) {
        let session = &self.sessions[i];
        let (measurer, relay) = (session.members[k].host, session.plan.relay);
        for circ in 1..=u32::from(open.sockets) {
            let number = self.circuits.len() as u32;
            let end = net.open(measurer, relay, [Attached::Echo(number); 2]);
            self.circuits.push(Circuit::new(i, k, circ, end, open));
            self.sessions[i].circuits.push_back(number);
        }
    }

    /// A member's circuits send what they may.
    fn load(&mut self, net: &mut Network<'_>, i: usize, k: usize) {
        let now = net.ctx.now;
        let mut sockets = net.sockets();
        let (member, circuits) = (&mut self.sessions[i].members[k], &mut self.circuits);
        let again = member.send(|number, load| circuits[number as usize].send(&mut sockets, now, load));
        if let Some(at) = again
            && at < member.load_wake
        {
            member.load_wake = at;
            self.wait(net, at, Due::Wake(i, TimerOwner::Load(k)));
        }
    }
}
