//! Streams to a hidden receiver: byte-exact in both directions; bad packets are harmless.

use crate::common;
use std::collections::{BTreeMap, BTreeSet};

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::{ControllerParameters, Peer, Sender};
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_more::client::{Client, ClientConfig};
use tidegate_more::link::LINK as HEAD;
use tidegate_more::machine::Output;
use tidegate_more::node::Node;
use tidegate_more::onion::Opened;
use tidegate_more::service::{self, Service};
use tidegate_more::wire::{DATA_SIZE, PACKET, WIRE_SIZE};

const PEERS: usize = 9;
const CLIENT: Peer = 0;
const SERVICE: Peer = 8;
const LINK: Span = Span::from_millis(10);
const STREAM: u64 = 77;
/// Number of relays on sender paths and on receiver paths.
const HOPS: [usize; 2] = [2, 3];

struct World {
    nodes: Vec<Node>,
    client: Client,
    service: Service,
    now: Time,
    flying: BTreeMap<(Time, u64), (Peer, Vec<u8>)>,
    launched: u64,
    /// Peers that drop everything.
    deaf: Vec<Peer>,
    /// The service's answer on an open stream.
    answer: Vec<u8>,
    up: Vec<u8>,
    down: Vec<u8>,
    complete: [bool; 2],
    /// Every datagram with its sender and receiver.
    seen: Vec<(Peer, Peer, Vec<u8>)>,
    /// Whether the service refused the stream.
    refused: bool,
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| ((i * 37) >> 3) as u8).collect()
}

impl World {
    /// A world with one packet per path.
    fn new(controller: &str, guards: &[Peer]) -> World {
        World::with(controller, guards, 1, 200_000.0)
    }

    fn with(controller: &str, guards: &[Peer], uses: usize, limit: f64) -> World {
        let parameters = ControllerParameters::named(controller, f64::from(PACKET)).expect("known");
        let nodes = common::nodes(PEERS, limit, &parameters);
        let epoch = common::epoch(PEERS, 0);
        // One number above the peers stands for the receiver.
        let control = parameters.controller(PEERS + 1, Seed::root(1)).expect("distributed");
        let latencies = parameters.latencies(PEERS + 1);
        let mut sender = Sender::new(CLIENT, PEERS + 1, HOPS[0] + 2, f64::from(PACKET), control, latencies);
        sender.set_receiver(PEERS as Peer);
        sender.set_guards(guards.to_vec());
        let receiver = service::ServiceConfig {
            me: SERVICE,
            epoch: epoch.clone(),
            hops: HOPS[1],
            guards: guards.to_vec(),
            secret: [99; 32],
            publish: 128,
        };
        let mut service = Service::new(receiver, common::randomness(1));
        let settings = ClientConfig {
            me: CLIENT,
            epoch,
            hops: HOPS[0],
            uses,
            receiver: service.key(),
            attempt_every: Span::from_millis(if uses > 1 { 1 } else { 5 }),
        };
        let mut client = Client::new(settings, sender, common::randomness(0), Time::ZERO);
        service.catch_up(Time::ZERO);
        assert_eq!(service.poll(), Some(Output::Publish));
        client.supply(service.published(Time::ZERO).cloned());
        client.open(STREAM, Time::ZERO);
        World {
            nodes,
            client,
            service,
            now: Time::ZERO,
            flying: BTreeMap::new(),
            launched: 0,
            deaf: Vec::new(),
            answer: Vec::new(),
            up: Vec::new(),
            down: Vec::new(),
            complete: [false; 2],
            seen: Vec::new(),
            refused: false,
        }
    }

    fn send_from(&mut self, from: Peer, to: Peer, datagram: &[u8]) {
        let wire = self.nodes[usize::from(from)].seal(to, datagram).expect("another peer");
        self.launch(from, to, wire);
    }

    fn launch(&mut self, from: Peer, to: Peer, datagram: Vec<u8>) {
        let refusal = datagram.len() < 50 && datagram[HEAD] == 6;
        assert!(datagram.len() == WIRE_SIZE || refusal, "one size");
        self.seen.push((from, to, datagram.clone()));
        self.flying.insert((self.now + LINK, self.launched), (to, datagram));
        self.launched += 1;
    }

    fn arrive(&mut self, to: Peer, datagram: &[u8]) {
        if self.deaf.contains(&to) {
            return;
        }
        let offer = self.nodes[usize::from(SERVICE)].stamp();
        match common::open(&mut self.nodes[usize::from(to)], self.now, datagram) {
            Some(Opened::Forward { to: next, datagram }) => self.launch(to, next, datagram),
            Some(Opened::Message { id, payload, .. }) if to == SERVICE => {
                self.service.message(self.now, id, &payload, offer);
            }
            Some(Opened::Cell { id, annex, payload }) if to == SERVICE => {
                self.service.cell(self.now, id, (annex, &payload), offer);
            }
            Some(Opened::Cell { id, annex, payload }) => {
                self.client.cell_back(self.now, id, annex, &payload);
            }
            Some(Opened::Refused { first, label, block }) => {
                self.client.refused(self.now, first, label, &block);
            }
            Some(Opened::Message { id, annex, payload }) => {
                self.client.answer(self.now, id, annex, &payload);
            }
            _ => {}
        }
        self.drain();
    }

    /// Carries out the outputs of client and service.
    fn drain(&mut self) {
        while let Some(output) = self.client.poll() {
            match output {
                Output::Send(to, datagram) => self.send_from(CLIENT, to, &datagram),
                Output::Stream(came) => {
                    self.down.extend(came.bytes);
                    self.complete[1] |= came.complete;
                    self.refused |= came.refused;
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(output) = self.service.poll() {
            match output {
                Output::Send(to, datagram) => self.send_from(SERVICE, to, &datagram),
                Output::Stream(came) => {
                    if came.opened {
                        self.service.write(STREAM, &self.answer);
                        self.service.end(STREAM);
                    }
                    self.up.extend(came.bytes);
                    self.complete[0] |= came.complete;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Runs until the stream is done, at most this many seconds.
    fn run(&mut self, seconds: u64) {
        let end = self.now + Span::from_secs(seconds);
        while self.now < end && !self.client.done(STREAM) {
            self.client.catch_up(self.now);
            self.drain();
            let arrival = self.flying.first_key_value().map_or(Time::NEVER, |(key, _)| key.0);
            self.now = arrival
                .min(self.client.next_timeout().unwrap_or(Time::NEVER))
                .max(self.now + Span(1))
                .min(end);
            while let Some(entry) = self.flying.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let (to, datagram) = entry.remove();
                self.arrive(to, &datagram);
            }
        }
    }

    fn exchange(&mut self, up: usize, down: usize, seconds: u64) {
        self.answer = text(down);
        self.client.write(STREAM, &text(up));
        self.client.end(STREAM);
        self.run(seconds);
    }

    fn check(&self, up: usize, down: usize, what: &str) {
        let progress = self.client.progress();
        assert!(self.client.done(STREAM), "{what}: {progress:?}, {} paths left", self.client.store());
        assert!(self.complete == [true; 2] && self.up == text(up) && self.down == text(down), "{what}");
    }
}

#[test]
fn both_directions_are_byte_exact_with_each_controller() {
    for controller in ["aimd", "q-learning", "cubic", "explicit", "explicit-or-aimd"] {
        let mut world = World::new(controller, &[]);
        world.exchange(5_000, 8_000, 120);
        world.check(5_000, 8_000, controller);
        assert!(world.client.store() >= 100, "paths come back: {}", world.client.store());
    }
}

#[test]
fn the_round_trip_is_split_where_the_sender_path_ends() {
    let mut world = World::new("explicit", &[]);
    world.exchange(5_000, 0, 60);
    world.check(5_000, 0, "");
    let sender = world.client.sender();
    // Links of 10 ms: from the last relay over three others to the receiver, and back.
    let beyond = 2.0 * 0.01 * (HOPS[1] + 1) as f64;
    assert!((sender.latencies.beyond().0 - beyond).abs() < 1e-3, "{:?}", sender.latencies.beyond());
    let own = sender.latencies.round_trip(0, 1);
    assert!((own - 0.02).abs() < 1e-3, "{own}");
    // Every relay that the sender knows gave a signal; the receiver's peer is one of them.
    assert!((1..PEERS as Peer).all(|peer| sender.rate(peer) > 1500.0));
}

#[test]
fn with_guards_other_relays_see_neither_source_nor_receiver() {
    let mut world = World::new("explicit", &[2, 5]);
    world.exchange(5_000, 5_000, 60);
    world.check(5_000, 5_000, "");
    // Relays forward what they receive; sources send more. Only client and service are sources here, so the excess is
    // theirs.
    let guard: BTreeSet<Peer> = [2, 5].into();
    let towards = |peer: Peer| world.seen.iter().filter(move |(_, to, _)| *to == peer);
    for end in [CLIENT, SERVICE] {
        let relayed = world.nodes[usize::from(end)].counters();
        let passed = relayed.forwarded + relayed.acks_forwarded;
        let not_to_guards =
            world.seen.iter().filter(|(from, to, _)| *from == end && !guard.contains(to)).count() as u64;
        assert!(not_to_guards <= passed, "{not_to_guards} of {end}, which passed {passed}");
        let not_from_guards = towards(end).filter(|(from, _, _)| !guard.contains(from)).count() as u64;
        assert!(not_from_guards <= passed, "{not_from_guards} to {end}, which passed {passed}");
    }
}

#[test]
fn a_relay_that_drops_everything_delays_but_does_not_stop_a_stream() {
    let mut world = World::new("aimd", &[]);
    world.deaf = vec![3];
    world.answer = text(1_500);
    world.client.write(STREAM, &text(1_500));
    world.client.end(STREAM);
    // Lost packets use up receiver paths, so the descriptor is read again.
    for _ in 0..20 {
        world.run(10);
        world.service.catch_up(world.now);
        while world.service.poll().is_some() {}
        world.client.supply(world.service.published(world.now).cloned());
    }
    world.check(1_500, 1_500, "");
    assert!(world.client.progress().timed_out > 0);
}

#[test]
fn replays_damage_and_unknown_paths_are_counted_and_change_nothing() {
    let mut world = World::new("explicit", &[]);
    world.exchange(4_000, 4_000, 60);
    world.check(4_000, 4_000, "");
    let later = world.now + Span::from_secs(5);
    for (index, (_, to, datagram)) in world.seen.clone().into_iter().enumerate().take(150) {
        let at = later + Span::from_millis(20) * index as u64;
        let node = &mut world.nodes[usize::from(to)];
        assert!(common::open(node, at, &datagram).is_none(), "opened before");
    }
    let replayed: u64 = world.nodes.iter().map(|node| node.counters().replayed).sum();
    assert_eq!(replayed, 150);
    // A damaged payload passes the relays, which cannot detect it, and is refused at the end.
    let mut world = World::new("explicit", &[]);
    world.client.write(STREAM, &text(300));
    world.client.timeout(world.now);
    let Some(Output::Send(to, mut datagram)) = world.client.poll() else { panic!("it has a chunk") };
    datagram[DATA_SIZE - 1] ^= 1;
    world.send_from(CLIENT, to, &datagram);
    world.run(5);
    let senseless: u64 = world.nodes.iter().map(|node| node.counters().senseless).sum();
    assert_eq!(senseless, 1, "the last relay of the sender path sees that it is no packet to pass on");
    // Messages over unknown paths, and answers to messages that were not sent.
    for payload in [vec![], vec![7; 50], vec![7; 1123], vec![7; 60_000]] {
        let (id, cell) = ([5; 16], ([0; 32], &payload[..]));
        world.service.message(world.now, id, &payload, 0.0);
        world.service.cell(world.now, id, cell, 0.0);
        world.client.answer(world.now, id, [0; 32], &payload);
        world.client.cell_back(world.now, id, [0; 32], &payload);
        world.client.refused(world.now, 3, 5, &[7; 16]);
        assert_eq!((world.service.poll(), world.client.poll()), (None, None));
    }
    assert_eq!(world.service.counters.unknown_path, 8);
}

#[test]
fn undecryptable_packets_use_up_only_their_path() {
    let mut world = World::new("explicit", &[]);
    // Only the payload on the last link is damaged, so the service opens the packet.
    world.client.write(STREAM, &text(200));
    world.client.end(STREAM);
    let mut damaged = 0;
    for _ in 0..400 {
        world.run_one_damaging(&mut damaged);
    }
    // Some were for the peer as a relay and were refused later.
    assert!((1..=damaged).contains(&world.service.counters.forged), "{:?}", world.service.counters);
    world.run(60);
    assert!(world.up == text(200));
}

impl World {
    /// One step of [`World::run`] that damages data for the service on its last link.
    fn run_one_damaging(&mut self, damaged: &mut u64) {
        if *damaged < 3 {
            let last = |(to, wire): &&mut (Peer, Vec<u8>)| *to == SERVICE && wire[HEAD] & 15 == 1;
            for (_, wire) in self.flying.values_mut().filter(last) {
                // The previous relay could have damaged it.
                let from = Peer::from_be_bytes([wire[0], wire[1]]);
                if wire[WIRE_SIZE - 1] != 0xee && *damaged < 3 {
                    wire[WIRE_SIZE - 1] = 0xee;
                    *wire =
                        self.nodes[usize::from(from)].seal(SERVICE, &wire[HEAD..]).expect("its neighbour");
                    *damaged += 1;
                }
            }
        }
        let until = self.now + Span::from_millis(5);
        self.run_until(until);
    }

    fn run_until(&mut self, until: Time) {
        self.client.timeout(self.now);
        self.drain();
        self.now = until;
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, datagram) = entry.remove();
            self.arrive(to, &datagram);
        }
    }
}

#[test]
fn streams_are_bounded_and_refusals_arrive() {
    let mut world = World::new("explicit", &[]);
    world.exchange(100, 0, 30);
    world.service.refuse(STREAM);
    world.client.close(STREAM);
    world.client.open(STREAM, world.now);
    world.client.write(STREAM, &text(10));
    let before = world.service.counters.answered;
    for _ in 0..2000 {
        let until = world.now + Span::from_millis(5);
        world.run_until(until);
    }
    assert!(world.refused && world.service.counters.answered > before);
    world.service.timeout(world.now + Span::from_secs(61));
    let asked: Vec<Output> = std::iter::from_fn(|| world.service.poll()).collect();
    assert_eq!(asked, [Output::Publish, Output::Closed(STREAM)]);
}

#[test]
fn first_relays_without_offers_do_not_slow_a_stream() {
    for guards in [vec![], vec![1, 2, 5]] {
        let mut world = World::new("explicit-or-aimd", &guards);
        world.exchange(100, 30_000, 6);
        world.check(100, 30_000, "120 answers within six seconds of slow start");
    }
}

/// Cells: the same streams with much less cryptography, and the drop locator.
#[test]
fn routes_carry_many_packets_and_both_directions_are_byte_exact() {
    for controller in ["aimd-locating", "q-learning", "explicit-or-aimd"] {
        let mut world = World::with(controller, &[], 64, 400_000.0);
        world.exchange(60_000, 80_000, 60);
        world.check(60_000, 80_000, controller);
        let messages =
            world.seen.iter().filter(|(from, _, wire)| *from == CLIENT && wire[HEAD] & 15 == 1).count();
        assert!(messages < 60, "{messages} messages for {:?}", world.client.progress());
    }
}

#[test]
fn refusals_of_relays_reach_the_source() {
    // The receiver has capacity; one relay has little.
    let mut world = World::with("random", &[], 64, 60_000.0);
    world.exchange(150_000, 0, 60);
    let progress = world.client.progress();
    assert!(progress.refused > 20, "{progress:?}");
    assert!(world.nodes.iter().map(|node| node.counters().refusals).sum::<u64>() > progress.refused);
    // Only the source can interpret the refusals.
    let refusals: BTreeSet<&[u8]> = world
        .seen
        .iter()
        .filter(|(_, _, wire)| wire.len() < 50)
        .map(|(_, _, wire)| &wire[HEAD + 9..])
        .collect();
    assert!(refusals.len() as u64 > progress.refused, "each looks different on each link");
}
