//! The world of one stream: takes an event, hands it to the machine it belongs to, drains its outputs.

mod observations;

use std::ops::ControlFlow;

use bytes::Bytes;
use slab::Slab;
use tidegate_control::machine::Machine as _;
use tidegate_control::paths::FairShareParameters;
use tidegate_control::random::{Random, Seed, mix};
use tidegate_control::units::{Span, Time};
use tidegate_stream::message::{Contact, Message};
use tidegate_stream::packet::{self, PAYLOAD, Share, WIRE};
use tidegate_stream::server::Server;
use tidegate_stream::signing::SharedChecks;
use tidegate_stream::tree::NOBODY;
use tidegate_stream::uplink::Uplink;
use tidegate_stream::viewer::{self, Phase, Viewer};
use tidegate_stream::{Input, Output, Peer, SERVER};

use super::plan::{Conduct, Exit, Plan, PlanError, ViewerPlan};
use super::report::Report;
use crate::event_loop::{Model, Timer, run_until};
use crate::queue::Queue;

/// A QUIC handshake between two viewers, about, each way.
const HANDSHAKE: usize = 2600;

/// The secret key of simulated servers. Nothing depends on its value.
const SECRET: [u8; 32] = [1; 32];

/// Runs the plan to its end, or until `goes_on`, called every second, returns false.
///
/// # Errors
/// [`PlanError`] if the plan does not pass [`Plan::check`].
pub fn run(plan: &Plan, seed: Seed, goes_on: &dyn Fn(Time) -> bool) -> Result<Report, PlanError> {
    plan.check()?;
    let mut world = World::new(plan, seed, goes_on);
    let _ = run_until(&mut world, Time::NEVER);
    Ok(world.finish())
}

enum Event {
    /// The source has a payload.
    Video,
    /// A viewer comes.
    Comes(u32),
    /// A viewer goes.
    Goes(u32),
    /// A machine may have something to do: 0 the server, then the viewers.
    Timer(u32),
    /// The message in this slot of [`World::under_way`] arrives.
    Arrival(u32),
    /// The server ended a viewer's connection.
    Ended(u32),
    /// An uplink changes.
    Change(u32),
    /// A second of the report.
    Second,
}

/// A message in flight from a peer to a machine.
struct Parcel {
    to: u32,
    from: Peer,
    what: What,
}

enum What {
    Datagram(Bytes),
    Message(Box<Message>),
}

struct Node {
    plan: ViewerPlan,
    viewer: Viewer,
    uplink: Uplink,
    /// Its number, while it has a connection to the server.
    peer: Peer,
    gone: Option<Time>,
    timer: Timer,
    /// Messages keep their order: when the last one arrives, by direction.
    order: [Time; 2],
    /// Packets that the server had sent when the first was played, and when the viewer went.
    first: Option<u64>,
    last: Option<u64>,
    delivered: u64,
    check: u64,
    /// Whether the server knows that it is dead.
    found: bool,
}

struct World<'a> {
    plan: &'a Plan,
    end: Time,
    /// Asked every second.
    goes_on: &'a dyn Fn(Time) -> bool,
    /// Events are filed many times before they come out, so they are small.
    queue: Queue<Event>,
    under_way: Slab<Parcel>,
    server: Server,
    server_timer: Timer,
    uplink: Uplink,
    /// Positions of machines, apart from other state because every packet needs two.
    places: Vec<[f64; 2]>,
    nodes: Vec<Node>,
    /// Node + 1 by peer; 0 if the peer is absent.
    of: Vec<usize>,
    random: Random,
    payload: Vec<u8>,
    report: Report,
}

impl Model for World<'_> {
    type Event = Event;

    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.queue.pop_until(last, |_| ())
    }

    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        match event {
            _ if now >= self.end => return ControlFlow::Break(()),
            Event::Second if !(self.goes_on)(now) => return ControlFlow::Break(()),
            Event::Video => {
                self.report.packets += 1;
                let stamp = self.report.packets.to_be_bytes();
                self.payload[1..9].copy_from_slice(&stamp);
                self.server.video(now, &self.payload);
                self.queue.push(now + self.plan.rate.span_for(PAYLOAD as u64), Event::Video);
                self.serve(now);
            }
            Event::Comes(index) => self.comes(now, index as usize),
            Event::Goes(index) => self.goes(now, index as usize),
            Event::Timer(0) if self.server_timer.fires(now) => {
                if self.server.next_timeout().is_some_and(|due| due <= now) {
                    self.server.timeout(now);
                }
                self.serve(now);
            }
            Event::Timer(machine) if machine > 0 && self.nodes[machine as usize - 1].timer.fires(now) => {
                let node = machine as usize - 1;
                if self.nodes[node].gone.is_none() {
                    if self.nodes[node].viewer.next_timeout().is_some_and(|due| due <= now) {
                        self.nodes[node].viewer.timeout(now);
                        self.grumble(node);
                    }
                    self.watch(now, node);
                }
            }
            Event::Timer(_) => {}
            Event::Arrival(place) => {
                let Parcel { to, from, what } = self.under_way.remove(place as usize);
                let input = match what {
                    What::Datagram(bytes) => Input::Datagram { from, bytes },
                    What::Message(message) => Input::Message { from, message: *message },
                };
                self.input(now, to as usize, input);
            }
            Event::Ended(to) => {
                self.input(now, to as usize, Input::Lost(SERVER));
                if *self.nodes[to as usize - 1].viewer.phase() == Phase::Alone {
                    self.queue.push(now + Span::from_secs(1), Event::Comes(to - 1));
                }
            }
            Event::Change(index) => {
                let (_, viewer, rate) = self.plan.changes[index as usize];
                self.nodes[viewer].uplink.set_rate(rate);
            }
            Event::Second => {
                self.second(now);
                self.queue.push(now + Span::from_secs(1), Event::Second);
            }
        }
        ControlFlow::Continue(())
    }
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, seed: Seed, goes_on: &'a dyn Fn(Time) -> bool) -> World<'a> {
        let mut drawn = seed.fork("places").random();
        let side = plan.side.0 as f64;
        let stamping: Option<FairShareParameters> = plan.server.controller.stamping();
        let checks = SharedChecks::shared();
        let mut places = vec![[side / 2.0, side / 2.0]];
        places.extend(plan.viewers.iter().map(|_| [drawn.uniform(0.0, side), drawn.uniform(0.0, side)]));
        let node = |planned: &ViewerPlan| Node {
            plan: *planned,
            viewer: Viewer::new(viewer::ViewerConfig {
                token: plan.server.token,
                uplink: planned.claim,
                forwards: planned.forwards,
                skip_after: plan.skip_after,
                stamping,
                checks: checks.clone(),
            }),
            uplink: Uplink::new(planned.uplink),
            peer: NOBODY,
            gone: None,
            timer: Timer::default(),
            order: [Time::ZERO; 2],
            first: None,
            last: None,
            delivered: 0,
            check: 0,
            found: false,
        };
        let nodes: Vec<Node> = plan.viewers.iter().map(node).collect();
        let mut payload: Vec<u8> = (0..PAYLOAD).map(|at| at as u8).collect();
        // Every packet of an MPEG transport stream has 188 bytes and begins with 0x47.
        payload.iter_mut().step_by(188).for_each(|first| *first = 0x47);
        let mut world = World {
            plan,
            end: Time::ZERO + plan.duration,
            goes_on,
            queue: Queue::new(),
            under_way: Slab::new(),
            server: Server::new(plan.server.clone(), seed, &SECRET),
            server_timer: Timer::default(),
            uplink: Uplink::new(plan.server.uplink),
            places,
            nodes,
            of: vec![0; usize::from(Peer::MAX) + 1],
            random: seed.fork("network").random(),
            payload,
            report: Report::default(),
        };
        for (index, viewer) in plan.viewers.iter().enumerate() {
            world.queue.push(viewer.comes, Event::Comes(index as u32));
            if let Some((at, _)) = viewer.goes {
                world.queue.push(at, Event::Goes(index as u32));
            }
        }
        for (index, (at, ..)) in plan.changes.iter().enumerate() {
            world.queue.push(*at, Event::Change(index as u32));
        }
        world.queue.push(Time::ZERO, Event::Video);
        world.queue.push(Time::ZERO + Span::from_secs(1), Event::Second);
        world.serve(Time::ZERO);
        world
    }

    fn input(&mut self, now: Time, to: usize, input: Input) {
        if to == 0 {
            self.server.handle(now, input);
            return self.serve(now);
        }
        if self.nodes[to - 1].gone.is_none() {
            self.nodes[to - 1].viewer.handle(now, input);
            self.watch(now, to - 1);
            let node = &mut self.nodes[to - 1];
            if node.last.is_none() && node.first.is_some() && matches!(node.viewer.phase(), Phase::Refused(_))
            {
                // Slices that it misses from now on count for another server.
                node.last = Some(self.server.source().sent());
            }
        }
    }

    fn comes(&mut self, now: Time, index: usize) {
        if self.nodes[index].gone.is_some() {
            return;
        }
        let address = ([10, (index >> 16) as u8, (index >> 8) as u8, index as u8], 4000).into();
        if let Ok(peer) = self.server.connect(now, Contact { address, fingerprint: [0; 32] }) {
            self.nodes[index].peer = peer;
            self.of[usize::from(peer)] = index + 1;
            self.report.bytes.control += 2 * HANDSHAKE as u64;
            self.nodes[index].viewer.begin(now);
            self.watch(now, index);
        }
    }

    fn goes(&mut self, now: Time, index: usize) {
        if let Some((_, Exit::Polite)) = self.nodes[index].plan.goes {
            self.nodes[index].viewer.leave();
            self.watch(now, index);
        }
        self.nodes[index].gone = Some(now);
        self.nodes[index].last = Some(self.server.source().sent());
    }

    /// A viewer that complains about everybody does so now.
    fn grumble(&mut self, node: usize) {
        let Conduct::Grumbler(fault) = self.nodes[node].plan.conduct else { return };
        let places: Vec<Peer> = self.nodes[node].viewer.places().map(|(parent, _)| parent).collect();
        let (now, peer) = (self.queue.now(), self.nodes[node].peer);
        for (slice, parent) in places.into_iter().enumerate() {
            if parent != NOBODY && self.random.chance(0.1) {
                self.message(
                    now,
                    node + 1,
                    peer,
                    0,
                    Message::Complaint { slice: slice as u8, parent, fault },
                );
            }
        }
    }

    /// Drains the server.
    fn serve(&mut self, now: Time) {
        while let Some(output) = self.server.poll() {
            match output {
                Output::Datagram { to, bytes } => {
                    let node = self.of[usize::from(to)];
                    if node > 0 {
                        self.datagram(now, 0, node, SERVER, bytes);
                    }
                }
                Output::Message { to, message } => {
                    let node = self.of[usize::from(to)];
                    if node > 0 {
                        self.message(now, 0, SERVER, node, message);
                    }
                }
                Output::Part(peer) => {
                    let node = std::mem::take(&mut self.of[usize::from(peer)]);
                    if node > 0 && self.nodes[node - 1].gone.is_none() {
                        // Behind the last message.
                        let at = (now + self.delay(0, node)).max(self.nodes[node - 1].order[0]);
                        self.queue.push(at, Event::Ended(node as u32));
                    }
                }
                Output::Meet(..) | Output::Deliver(_) | Output::End => {
                    unreachable!("servers neither meet nor play")
                }
            }
        }
        let next = self.server.next_timeout().unwrap_or(Time::NEVER);
        if let Some(due) = self.server_timer.arm(now, next) {
            self.queue.push(due, Event::Timer(0));
        }
    }

    /// Drains a viewer.
    fn watch(&mut self, now: Time, index: usize) {
        while let Some(output) = self.nodes[index].viewer.poll() {
            let me = self.nodes[index].peer;
            match output {
                Output::Datagram { to, bytes } => {
                    let Some(bytes) = self.conduct(index, bytes) else { continue };
                    let node = if to == SERVER { 0 } else { self.of[usize::from(to)] };
                    if to == SERVER || node > 0 {
                        self.datagram(now, index + 1, node, me, bytes);
                    }
                }
                Output::Message { message, .. } => self.message(now, index + 1, me, 0, message),
                Output::Meet(..) => {
                    let there = self.nodes[index].uplink.depart(now, HANDSHAKE).is_some();
                    self.report.bytes.control += if there { HANDSHAKE as u64 } else { 0 };
                }
                Output::Part(_) => {}
                Output::End => unreachable!("simulated streams do not end"),
                Output::Deliver(bytes) => {
                    let sent = self.server.source().sent();
                    let node = &mut self.nodes[index];
                    node.first.get_or_insert(sent);
                    node.delivered += 1;
                    let stamp = bytes[1..9].iter().fold(0, |stamp, byte| stamp << 8 | u64::from(*byte));
                    node.check = mix(node.check ^ stamp ^ now.0);
                    let same = bytes[0] == self.payload[0] && bytes[9..] == self.payload[9..];
                    self.report.altered += u64::from(!same || stamp > self.report.packets);
                }
            }
        }
        let next = self.nodes[index].viewer.next_timeout().unwrap_or(Time::NEVER);
        if let Some(due) = self.nodes[index].timer.arm(now, next) {
            self.queue.push(due, Event::Timer(index as u32 + 1));
        }
    }

    /// Sends, delays or drops a viewer's datagram, as the plan says.
    fn conduct(&self, index: usize, bytes: Bytes) -> Option<Bytes> {
        let (now, share) = (self.queue.now(), packet::share(&bytes));
        match self.nodes[index].plan.conduct {
            Conduct::FreeRider(from) if now >= from && [Share::Video, Share::Signatures].contains(&share) => {
                None
            }
            Conduct::Forger(from) if now >= from && share == Share::Video => Some(packet::altered(&bytes)),
            _ => Some(bytes),
        }
    }

    fn delay(&mut self, from: usize, to: usize) -> Span {
        let (a, b) = (self.places[from], self.places[to]);
        let apart = ((a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2)).sqrt();
        let jitter = match self.plan.jitter {
            Span::ZERO => 0.0,
            jitter => self.random.normal(0.0, jitter.0 as f64).max(0.0),
        };
        self.plan.delay + Span((apart + jitter) as u64)
    }

    fn depart(&mut self, now: Time, from: usize, bytes: usize) -> Option<Time> {
        let uplink = if from == 0 { &mut self.uplink } else { &mut self.nodes[from - 1].uplink };
        uplink.depart(now, bytes + WIRE)
    }

    fn datagram(&mut self, now: Time, from: usize, to: usize, sender: Peer, bytes: Bytes) {
        let Some(at) = self.depart(now, from, bytes.len()) else {
            self.report.bytes.dropped += 1;
            return;
        };
        let wire = (bytes.len() + WIRE) as u64;
        let accounts = &mut self.report.bytes;
        match packet::share(&bytes) {
            Share::Video => {
                accounts.video += wire;
                accounts.server_video += if from == 0 { wire } else { 0 };
            }
            Share::Exploration => accounts.exploration += wire,
            Share::Signatures => accounts.signatures += wire,
            Share::Control => accounts.control += wire,
        }
        if self.plan.loss > 0.0 && self.random.chance(self.plan.loss) {
            return;
        }
        let at = at + self.delay(from, to);
        self.send(at, to, sender, What::Datagram(bytes));
    }

    /// A message arrives in order; a lost one is retransmitted.
    fn message(&mut self, now: Time, from: usize, sender: Peer, to: usize, message: Message) {
        let bytes = message.encode().len();
        // A message that meets a full queue waits, because the channel is reliable.
        let mut at = self.depart(now, from, bytes).unwrap_or(now + tidegate_stream::uplink::LONGEST);
        self.report.bytes.control += (bytes + WIRE) as u64;
        let delay = self.delay(from, to);
        while self.plan.loss > 0.0 && self.random.chance(self.plan.loss) {
            self.report.bytes.control += (bytes + WIRE) as u64;
            at += delay * 3;
        }
        let (node, way) = if from == 0 { (to, 0) } else { (from, 1) };
        let order = &mut self.nodes[node - 1].order[way];
        *order = (at + delay).max(*order);
        let at = *order;
        self.send(at, to, sender, What::Message(Box::new(message)));
    }

    fn send(&mut self, at: Time, to: usize, from: Peer, what: What) {
        let place = self.under_way.insert(Parcel { to: to as u32, from, what });
        self.queue.push(at, Event::Arrival(place as u32));
    }
}
