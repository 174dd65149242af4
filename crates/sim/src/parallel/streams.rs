//! Streams to a receiver that hides, in simulated time: the machines that sockets drive, every datagram built
//! and opened, and peers that fall silent. [`download`] says how fast bytes came in each second.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::{ControllerParameters, Peer, Sender};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_more::client::{Client, ClientConfig};
use tidegate_more::flights::Progress;
use tidegate_more::machine::{Output, Randomness};
use tidegate_more::node::{Counters, Node};
use tidegate_more::onion::{MAX_RELAYS, Opened};
use tidegate_more::service::{self, Service};
use tidegate_more::wire::PACKET;

use super::delay::DelayTable;
use super::onions::{opened, peers};
use super::plan::{Delays, PlanError};
use super::shared::{Later, Shared, Uplink};
use crate::event_loop::{Model, Timer, run_until};
use crate::queue::Queue;

/// The first peer reads without end from the last, which hides.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Peers, all of which relay.
    pub peers: usize,
    /// Relays of sender paths and of receiver paths.
    pub hops: [usize; 2],
    /// Packets per path.
    pub uses: usize,
    /// Bytes of frames per second that each peer forwards.
    pub limit: f64,
    /// One-way delays.
    pub delays: Delays,
    /// Standard deviation of each delay as a share of it.
    pub jitter: f64,
    /// How often the source sends while it has rate left.
    pub attempt_every: Span,
    /// Receiver paths that are kept published.
    pub published: usize,
    /// When it ends.
    pub duration: Span,
    /// Peers that drop everything from a time on, until another.
    pub silent: Vec<(Peer, Span, Span)>,
    /// The uplink of the receiver's host, if it differs from other links.
    pub uplink: Option<Uplink>,
}

/// Its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// Bytes that came in order in each second.
    pub seconds: Vec<u64>,
    /// Bytes of the flow of TCP beside it, of all its time until the end of each second.
    pub tcp: Vec<u64>,
    /// Whether what came is what was sent.
    pub exact: bool,
    /// The client's counts.
    pub progress: Progress,
    /// All peers' counts.
    pub nodes: Vec<Counters>,
}

const STREAM: u64 = 1;
/// Bytes that the service's application writes at once, as sockets read them.
const BLOCK: usize = 16 * 1024;

enum Event {
    Datagram(Peer, Vec<u8>),
    /// The client looks whether it can send.
    Client,
    /// The receiver counts its paths, and the client reads the descriptor.
    Service,
    /// The flow beside it begins, or something of it happens.
    Tcp(Option<Later>),
}

struct World<'a> {
    plan: &'a Reading,
    nodes: Vec<Node>,
    client: Client,
    service: Service,
    queue: Queue<Event>,
    delays: DelayTable,
    shared: Option<Shared>,
    /// In which order the client takes paths of a descriptor.
    random: Random,
    /// Receiver paths that the client was given.
    given: BTreeSet<Vec<u8>>,
    written: u64,
    /// Bytes that came in order.
    total: u64,
    /// When the client looks again.
    timer: Timer,
    read: Read,
}

/// Byte `at` of the stream.
fn content(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Reads until the end of the plan.
///
/// # Errors
/// [`PlanError::Hops`] for paths that cannot be, [`PlanError::Central`] for the perfect controller.
pub fn download(plan: &Reading, parameters: &ControllerParameters, seed: Seed) -> Result<Read, PlanError> {
    let (n, [own, theirs]) = (plan.peers, plan.hops);
    let sound = |hops: usize| (1..=MAX_RELAYS).contains(&hops) && hops + 2 <= n;
    if !sound(own) || !sound(theirs) || n > super::plan::MAX_PEERS {
        return Err(PlanError::Hops { hops: own.max(theirs), peers: n });
    }
    let (nodes, epoch) = peers(n, plan.limit, parameters, seed);
    let controller = parameters.controller(n + 1, seed.fork("controller")).ok_or(PlanError::Central)?;
    let latencies = parameters.latencies(n + 1);
    let mut sender = Sender::new(0, n + 1, own + 2, f64::from(PACKET), controller, latencies);
    sender.set_receiver(n as Peer);
    let randomness = |of: &str| {
        let seed = seed.fork(of);
        Randomness::foretold(seed.fork("paths").random(), seed.fork("secrets").random())
    };
    let receiver = service::ServiceConfig {
        me: (n - 1) as Peer,
        epoch: epoch.clone(),
        hops: theirs,
        guards: Vec::new(),
        secret: seed.fork("receiver").random().bytes(),
        publish: plan.published,
    };
    let service = Service::new(receiver, randomness("service"));
    let settings = ClientConfig {
        me: 0,
        epoch,
        hops: own,
        uses: plan.uses,
        receiver: service.key(),
        attempt_every: plan.attempt_every,
    };
    let mut world = World {
        plan,
        nodes,
        client: Client::new(settings, sender, randomness("client"), Time::ZERO),
        service,
        queue: Queue::new(),
        delays: DelayTable::new(&plan.delays, n, plan.jitter, seed.fork("jitter")),
        shared: plan.uplink.as_ref().map(|uplink| Shared::new(uplink, seed.fork("uplink"))),
        random: seed.fork("reading").random(),
        given: BTreeSet::new(),
        written: 0,
        total: 0,
        timer: Timer::default(),
        read: Read {
            seconds: Vec::new(),
            tcp: Vec::new(),
            exact: true,
            progress: Progress::default(),
            nodes: Vec::new(),
        },
    };
    world.run();
    world.read.progress = world.client.progress();
    world.read.nodes = world.nodes.iter().map(Node::counters).collect();
    Ok(world.read)
}

impl Model for World<'_> {
    type Event = Event;

    fn next(&mut self, last: Time) -> Option<(Time, Event)> {
        self.queue.pop_until(last, |_| ())
    }

    fn handle(&mut self, now: Time, event: Event) -> ControlFlow<()> {
        while self.read.seconds.len() as u64 * 1_000_000_000 < now.0.min(self.plan.duration.0) {
            self.read.seconds.push(0);
            self.read.tcp.push(self.shared.as_ref().map_or(0, Shared::arrived));
        }
        if now > Time::ZERO + self.plan.duration {
            return ControlFlow::Break(());
        }
        match event {
            Event::Client if !self.timer.fires(now) => return ControlFlow::Continue(()),
            Event::Client => {}
            Event::Service => self.serve(now),
            Event::Tcp(later) => {
                if let Some(shared) = &mut self.shared {
                    let next = match &later {
                        None => shared.connect(now),
                        Some(later) => shared.happen(now, later),
                    };
                    next.into_iter().for_each(|(at, it)| self.queue.push(at, Event::Tcp(Some(it))));
                }
                return ControlFlow::Continue(());
            }
            Event::Datagram(at, datagram) => {
                let arrived = self.arrive(now, at, &datagram);
                let right = |(byte, at): (&u8, u64)| *byte == content(at);
                self.read.exact &= arrived.iter().zip(self.total..).all(right);
                self.total += arrived.len() as u64;
                if let Some(second) = self.read.seconds.last_mut() {
                    *second += arrived.len() as u64;
                }
            }
        }
        self.client.catch_up(now);
        self.drain_client(now, &mut Vec::new());
        if let Some(due) = self.timer.arm_later(now, self.client.next_timeout()) {
            self.queue.push(due, Event::Client);
        }
        ControlFlow::Continue(())
    }
}

impl World<'_> {
    fn run(&mut self) {
        self.client.open(STREAM, Time::ZERO);
        self.queue.push(Time::ZERO, Event::Service);
        let first = self.timer.arm(Time::ZERO, Time::ZERO).expect("the timer is not armed");
        self.queue.push(first, Event::Client);
        if let Some(from) = self.plan.uplink.and_then(|uplink| uplink.tcp_from) {
            self.queue.push(Time::ZERO + from, Event::Tcp(None));
        }
        let _ = run_until(self, Time::NEVER);
    }

    /// Handles a datagram at a peer; returns the bytes that are now in order at the client.
    fn arrive(&mut self, now: Time, at: Peer, wire: &[u8]) -> Vec<u8> {
        let during = |(peer, from, until): &(Peer, Span, Span)| {
            *peer == at && now >= Time::ZERO + *from && now < Time::ZERO + *until
        };
        if self.plan.silent.iter().any(during) {
            return Vec::new();
        }
        let hidden = usize::from(at) + 1 == self.plan.peers;
        let node = &mut self.nodes[usize::from(at)];
        let opened = opened(node, now, wire);
        let offer = node.stamp();
        match opened {
            Some(Opened::Forward { to, datagram }) if usize::from(to) < self.plan.peers => {
                self.carry(now, at, to, datagram);
            }
            Some(Opened::Message { id, payload, .. }) if hidden => {
                self.service.message(now, id, &payload, offer);
            }
            Some(Opened::Cell { id, annex, payload }) if hidden => {
                self.service.cell(now, id, (annex, &payload), offer);
            }
            Some(Opened::Message { id, annex, payload }) => self.client.answer(now, id, annex, &payload),
            Some(Opened::Cell { id, annex, payload }) => self.client.cell_back(now, id, annex, &payload),
            Some(Opened::Refused { first, label, block }) => self.client.refused(now, first, label, &block),
            _ => {}
        }
        let mut came = Vec::new();
        self.drain_client(now, &mut came);
        self.drain_service(now);
        came
    }

    fn send(&mut self, now: Time, from: Peer, to: Peer, datagram: &[u8]) {
        if let Some(wire) = self.nodes[usize::from(from)].seal(to, datagram) {
            self.carry(now, from, to, wire);
        }
    }

    fn carry(&mut self, now: Time, from: Peer, to: Peer, wire: Vec<u8>) {
        let hidden = usize::from(from) + 1 == self.plan.peers;
        let left = match self.shared.as_mut().filter(|_| hidden) {
            Some(shared) => shared.carry(now, &wire),
            None => Some(now),
        };
        if let Some(left) = left {
            self.queue.push(left + self.delays.passage(from, to), Event::Datagram(to, wire));
        }
    }

    /// Does what the client asks; what came for its application is appended.
    fn drain_client(&mut self, now: Time, bytes: &mut Vec<u8>) {
        while let Some(output) = self.client.poll() {
            match output {
                Output::Send(to, datagram) => self.send(now, 0, to, &datagram),
                Output::Stream(came) => bytes.extend(came.bytes),
                Output::Publish | Output::Closed(_) => unreachable!("only receivers do"),
            }
        }
    }

    fn drain_service(&mut self, now: Time) {
        while let Some(output) = self.service.poll() {
            match output {
                Output::Send(to, datagram) => self.send(now, (self.plan.peers - 1) as Peer, to, &datagram),
                Output::Stream(came) if came.stream == STREAM => {
                    while self.service.room(STREAM) >= BLOCK {
                        let end = self.written + BLOCK as u64;
                        self.service.write(STREAM, &(self.written..end).map(content).collect::<Vec<u8>>());
                        self.written = end;
                    }
                }
                Output::Stream(_) | Output::Publish | Output::Closed(_) => {}
            }
        }
    }

    fn serve(&mut self, now: Time) {
        self.service.catch_up(now);
        self.drain_service(now);
        if self.client.store() < self.plan.published / 4 {
            let mut fresh: Vec<_> = self
                .service
                .published(now)
                .filter(|path| self.given.insert(path.to_bytes().to_vec()))
                .cloned()
                .collect();
            self.random.shuffle(&mut fresh);
            self.client.supply(fresh);
        }
        let next = self.service.next_timeout().unwrap_or(Time::NEVER);
        self.queue.push(next, Event::Service);
    }
}
