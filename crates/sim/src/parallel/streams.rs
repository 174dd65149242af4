//! Streams to a receiver that hides, in simulated time: the machines that sockets drive, every datagram built
//! and opened, and peers that fall silent. [`download`] says how fast bytes came in each second.

use std::collections::BTreeSet;

use tidegate_control::paths::Peer;
use tidegate_control::paths::parameters::ControllerParameters;
use tidegate_control::paths::sender::Sender;
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_more::client::{Client, Settings};
use tidegate_more::flights::Progress;
use tidegate_more::node::{Counters, Node};
use tidegate_more::onion::{MAX_RELAYS, Opened};
use tidegate_more::service::{Answered, Service};
use tidegate_more::wire::PACKET;

use super::delay::DelayTable;
use super::onions::{bytes, peers};
use super::plan::{Delays, PlanError};
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
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// Bytes that came in order in each second.
    pub seconds: Vec<u64>,
    /// Whether what came is what was sent.
    pub exact: bool,
    /// The client's counts.
    pub progress: Progress,
    /// All peers' counts.
    pub nodes: Vec<Counters>,
}

const STREAM: u64 = 1;
/// How often the descriptor is looked at.
const SWEEP: Span = Span::from_secs(2);

enum Event {
    Datagram(Peer, Vec<u8>),
    /// The client looks whether it can send.
    Client,
    /// The descriptor is published and read.
    Sweep,
}

struct World<'a> {
    plan: &'a Reading,
    nodes: Vec<Node>,
    client: Client,
    service: Service,
    queue: Queue<Event>,
    delays: DelayTable,
    random: Random,
    entropy: Random,
    /// Receiver paths that the client was given.
    given: BTreeSet<Vec<u8>>,
    written: u64,
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
    let mut entropy = seed.fork("entropy").random();
    let service = Service::new((n - 1) as Peer, epoch.clone(), theirs, Vec::new(), bytes(&mut entropy));
    let settings = Settings {
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
        client: Client::new(settings, sender, Time::ZERO),
        service,
        queue: Queue::new(),
        delays: DelayTable::new(&plan.delays, n, plan.jitter, seed.fork("jitter")),
        random: seed.fork("paths").random(),
        entropy,
        given: BTreeSet::new(),
        written: 0,
        read: Read { seconds: Vec::new(), exact: true, progress: Progress::default(), nodes: Vec::new() },
    };
    world.run();
    world.read.progress = world.client.progress();
    world.read.nodes = world.nodes.iter().map(Node::counters).collect();
    Ok(world.read)
}

impl World<'_> {
    fn run(&mut self) {
        self.client.open(STREAM, Time::ZERO);
        self.queue.push(Time::ZERO, Event::Sweep);
        self.queue.push(Time::ZERO, Event::Client);
        let mut planned = Time::ZERO;
        let mut total = 0;
        while let Some((now, event)) = self.queue.pop() {
            while self.read.seconds.len() as u64 * 1_000_000_000 < now.0.min(self.plan.duration.0) {
                self.read.seconds.push(0);
            }
            if now > Time::ZERO + self.plan.duration {
                break;
            }
            match event {
                Event::Client if now < planned => continue,
                Event::Client => {}
                Event::Sweep => self.sweep(now),
                Event::Datagram(at, datagram) => {
                    let arrived = self.arrive(now, at, &datagram);
                    let right = |(byte, at): (&u8, u64)| *byte == content(at);
                    self.read.exact &= arrived.iter().zip(total..).all(right);
                    total += arrived.len() as u64;
                    if let Some(second) = self.read.seconds.last_mut() {
                        *second += arrived.len() as u64;
                    }
                }
            }
            let entropy = &mut self.entropy;
            while let Some((to, datagram)) = self.client.poll(now, &mut self.random, &mut || bytes(entropy)) {
                if let Some(wire) = self.nodes[0].seal(to, &datagram) {
                    self.queue.push(now + self.delays.passage(0, to), Event::Datagram(to, wire));
                }
            }
            let next = self.client.next_time().max(now + Span(1));
            if planned <= now || next < planned {
                planned = next;
                self.queue.push(next, Event::Client);
            }
        }
    }

    /// What a peer does with a datagram; bytes that are now in order at the client.
    fn arrive(&mut self, now: Time, at: Peer, wire: &[u8]) -> Vec<u8> {
        let during = |(peer, from, until): &(Peer, Span, Span)| {
            *peer == at && now >= Time::ZERO + *from && now < Time::ZERO + *until
        };
        if self.plan.silent.iter().any(during) {
            return Vec::new();
        }
        let hidden = usize::from(at) + 1 == self.plan.peers;
        let node = &mut self.nodes[usize::from(at)];
        let opened = node.handle(now, wire);
        let offer = node.stamp();
        let (random, entropy) = (&mut self.random, &mut || bytes(&mut self.entropy));
        let came = match opened {
            Some(Opened::Forward { to, datagram }) if usize::from(to) < self.plan.peers => {
                self.queue.push(now + self.delays.passage(at, to), Event::Datagram(to, datagram));
                None
            }
            Some(Opened::Message { id, payload, .. }) if hidden => {
                let answered = self.service.message(now, id, &payload, offer, random, entropy);
                self.answered(now, at, answered);
                None
            }
            Some(Opened::Cell { id, annex, payload }) if hidden => {
                let answered = self.service.cell(now, id, (annex, &payload), offer, random, entropy);
                self.answered(now, at, answered);
                None
            }
            Some(Opened::Message { id, annex, payload }) => self.client.answer(now, id, annex, &payload),
            Some(Opened::Cell { id, annex, payload }) => self.client.cell_back(now, id, annex, &payload),
            Some(Opened::Refused { first, label, block }) => {
                self.client.refused(now, first, label, &block);
                None
            }
            _ => None,
        };
        came.map_or(Vec::new(), |came| came.bytes)
    }

    fn answered(&mut self, now: Time, at: Peer, answered: Option<Answered>) {
        let Some(Answered { reply: (to, datagram), stream, .. }) = answered else { return };
        if stream == STREAM {
            let end = self.written + self.service.room(STREAM) as u64;
            self.service.write(STREAM, &(self.written..end).map(content).collect::<Vec<u8>>());
            self.written = end;
        }
        if let Some(wire) = self.nodes[usize::from(at)].seal(to, &datagram) {
            self.queue.push(now + self.delays.passage(at, to), Event::Datagram(to, wire));
        }
    }

    fn sweep(&mut self, now: Time) {
        let left = self.service.published(now).count();
        if left < self.plan.published - self.plan.published / 4 {
            let entropy = &mut self.entropy;
            let count = self.plan.published - left;
            self.service.publish(now, count, &mut self.random, &mut || bytes(entropy));
        }
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
        self.queue.push(now + SWEEP, Event::Sweep);
    }
}
