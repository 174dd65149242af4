//! Peers in one process: streams cross the overlay; bad input is counted, bounded and harmless.

use crate::common;
use std::collections::BTreeMap;

use tidegate_control::machine::Machine as _;
use tidegate_control::paths::{ControllerParameters, Peer, Sender};
use tidegate_control::random::{Random, Seed};
use tidegate_control::units::{Span, Time};
use tidegate_more::download::Download;
use tidegate_more::link::LINK as HEAD;
use tidegate_more::machine::Output;
use tidegate_more::node::Node;
use tidegate_more::onion::Opened;
use tidegate_more::upload::{Overlay, Upload};
use tidegate_more::wire::{ACK_SIZE, DATA_SIZE, PACKET, WIRE_SIZE};

const PEERS: usize = 7;
const LINK: Span = Span::from_millis(10);

/// All peers, and datagrams in flight by arrival.
struct World {
    nodes: Vec<Node>,
    upload: Upload,
    download: Download,
    now: Time,
    flying: BTreeMap<(Time, u64), (Peer, Vec<u8>)>,
    launched: u64,
    /// Peers that drop everything.
    deaf: Vec<Peer>,
    /// A peer that sends forged acknowledgements before each datagram.
    flooder: Option<Peer>,
    received: Vec<u8>,
    complete: bool,
    /// A copy of every datagram, for replays.
    seen: Vec<(Peer, Vec<u8>)>,
    entropy: Random,
}

impl World {
    fn new(controller: &str, limit: f64) -> World {
        let parameters = ControllerParameters::named(controller, f64::from(PACKET)).expect("known");
        let nodes = common::nodes(PEERS, limit, &parameters);
        let control = parameters.controller(PEERS, Seed::root(1)).expect("distributed");
        let sender = Sender::new(0, PEERS, 3, f64::from(PACKET), control, parameters.latencies(PEERS));
        let epoch = common::epoch(PEERS, 0);
        let overlay = Overlay { me: 0, to: 6, epoch, hops: 3, attempt_every: Span::from_millis(5) };
        World {
            nodes,
            upload: Upload::new(9, overlay, sender, common::randomness(0), Time::ZERO),
            download: Download::default(),
            now: Time::ZERO,
            flying: BTreeMap::new(),
            launched: 0,
            deaf: Vec::new(),
            flooder: None,
            received: Vec::new(),
            complete: false,
            seen: Vec::new(),
            entropy: Seed::root(3).random(),
        }
    }

    fn launch(&mut self, to: Peer, datagram: Vec<u8>) {
        self.seen.push((to, datagram.clone()));
        self.flying.insert((self.now + LINK, self.launched), (to, datagram));
        self.launched += 1;
    }

    fn send_from(&mut self, from: Peer, to: Peer, datagram: &[u8]) {
        let wire = self.nodes[usize::from(from)].seal(to, datagram).expect("another peer");
        self.launch(to, wire);
    }

    /// Delivers a forged datagram from peer 0.
    fn junk(&mut self, to: Peer, datagram: &[u8]) {
        self.junk_from(0, to, datagram);
    }

    fn junk_from(&mut self, from: Peer, to: Peer, datagram: &[u8]) {
        let wire = self.nodes[usize::from(from)].seal(to, datagram).expect("another peer");
        assert!(common::open(&mut self.nodes[usize::from(to)], Time::ZERO, &wire).is_none());
    }

    fn arrive(&mut self, to: Peer, datagram: &[u8]) {
        if self.deaf.contains(&to) {
            return;
        }
        if let Some(flooder) = self.flooder.filter(|flooder| *flooder != to) {
            (0..3).for_each(|_| self.junk_from(flooder, to, &[2; ACK_SIZE]));
        }
        match common::open(&mut self.nodes[usize::from(to)], self.now, datagram) {
            Some(Opened::Forward { to, datagram }) => self.launch(to, datagram),
            Some(Opened::Data { body, reply }) => {
                if let Some(arrived) = self.download.body(&body) {
                    self.received.extend(arrived.bytes);
                    self.complete |= arrived.complete;
                    let (to, ack) = reply.acknowledge(&[], &mut || self.entropy.bytes()).expect("sound");
                    self.send_from(6, to, &ack);
                }
            }
            Some(Opened::Ack { id, annex, .. }) => self.upload.acked(self.now, id, annex),
            Some(other) => panic!("nobody has a receiver path: {other:?}"),
            None => {}
        }
    }

    /// Runs until the upload is done, at most this many seconds.
    fn run(&mut self, seconds: u64) {
        let end = self.now + Span::from_secs(seconds);
        while self.now < end && !self.upload.done() {
            self.upload.catch_up(self.now);
            while let Some(output) = self.upload.poll() {
                let Output::Send(to, datagram) = output else { panic!("{output:?}") };
                self.send_from(0, to, &datagram);
            }
            let arrival = self.flying.first_key_value().map_or(Time::NEVER, |(key, _)| key.0);
            self.now = arrival
                .min(self.upload.next_timeout().unwrap_or(Time::NEVER))
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

    fn send(&mut self, bytes: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..bytes).map(|i| ((i * 31) >> 3) as u8).collect();
        self.upload.write(&content);
        self.upload.end();
        content
    }
}

#[test]
fn a_stream_arrives_byte_exact_with_each_controller() {
    for controller in ["aimd", "q-learning", "cubic", "explicit", "explicit-or-aimd"] {
        let mut world = World::new(controller, 60_000.0);
        let content = world.send(60_000);
        world.run(300);
        assert!(world.complete && world.upload.done(), "{controller}: {:?}", world.upload.progress());
        assert!(world.received == content, "{controller}");
    }
}

#[test]
fn relays_offers_reach_the_source_through_the_annex() {
    let mut world = World::new("explicit", 400_000.0);
    world.send(20_000);
    world.run(60);
    assert!(world.upload.done());
    // The initial offer is the shared limit. Other values come from stamps.
    let rates: Vec<f64> = (1..6).map(|peer| world.upload.rate(peer)).collect();
    assert!(rates.iter().all(|rate| *rate > 1500.0 && *rate < 400_000.0), "{rates:?}");
    assert!(world.nodes.iter().skip(1).any(|node| node.counters().acks_forwarded > 0));
}

#[test]
fn a_peer_that_drops_everything_delays_but_does_not_stop_a_stream() {
    let mut world = World::new("aimd", 400_000.0);
    world.deaf = vec![3];
    let content = world.send(20_000);
    world.run(600);
    assert!(world.complete && world.received == content, "{:?}", world.upload.progress());
    assert!(world.upload.progress().timed_out > 0);
}

#[test]
fn replays_forgeries_and_wrong_sizes_are_counted_and_change_nothing() {
    let mut world = World::new("explicit", 400_000.0);
    let content = world.send(10_000);
    world.run(60);
    assert!(world.complete);
    let later = world.now + Span::from_secs(5);
    let (mut replayed, mut unauthenticated) = (0, 0);
    for (index, (to, datagram)) in world.seen.clone().into_iter().enumerate().take(200) {
        let node = &mut world.nodes[usize::from(to)];
        assert!(common::open(node, later + Span::from_millis(10) * index as u64, &datagram).is_none());
        replayed += 1;
        let mut damaged = datagram.clone();
        damaged[index % datagram.len()] ^= 1;
        assert!(common::open(node, later + Span::from_millis(10) * index as u64, &damaged).is_none());
        unauthenticated += 1;
    }
    let total = |field: fn(&tidegate_more::node::Counters) -> u64| -> u64 {
        world.nodes.iter().map(|node| field(&node.counters())).sum()
    };
    assert_eq!(total(|c| c.replayed), replayed);
    assert_eq!(total(|c| c.unauthenticated), unauthenticated, "no neighbour sent that");
    for size in [0, 1, ACK_SIZE - 1, ACK_SIZE + 1, DATA_SIZE - 1, DATA_SIZE + 1, 65_507] {
        for first in [0, 1, 2, 255] {
            let mut datagram = vec![7; size];
            datagram.iter_mut().take(1).for_each(|byte| *byte = first);
            assert!(common::open(&mut world.nodes[1], later, &datagram).is_none());
            world.junk(1, &datagram);
        }
    }
    assert_eq!(world.nodes[1].counters().misshapen, 28);
    assert_eq!(world.received, content);
}

#[test]
fn a_flood_of_acknowledgements_is_bounded_by_the_data_that_paid_for_them() {
    let mut world = World::new("explicit", 400_000.0);
    let mut junk = vec![2; ACK_SIZE];
    for i in 0..6000u32 {
        junk[40..44].copy_from_slice(&i.to_le_bytes());
        world.junk(2, &junk);
    }
    let counters = world.nodes[2].counters();
    assert_eq!(counters.forged + counters.flooding, 6000);
    assert!(counters.flooding >= 1900, "{counters:?}");
    // Answers over receiver paths are acknowledgements too.
    let mut junk = vec![3; DATA_SIZE];
    for i in 0..5000u32 {
        junk[40..44].copy_from_slice(&i.to_le_bytes());
        world.junk(3, &junk);
    }
    let counters = world.nodes[3].counters();
    assert_eq!((counters.forged + counters.flooding, counters.flooding >= 900), (5000, true));
}

/// A peer of the directory uses up its credit at all relays, and floods them while others wait for acknowledgements.
#[test]
fn a_peer_that_floods_with_acknowledgements_stops_no_other() {
    const FLOODER: Peer = 5;
    let mut world = World::new("explicit", 400_000.0);
    world.deaf.push(FLOODER);
    for relay in (0..PEERS as Peer).filter(|relay| *relay != FLOODER) {
        (0..4100).for_each(|_| world.junk_from(FLOODER, relay, &[2; ACK_SIZE]));
    }
    world.flooder = Some(FLOODER);
    let content = world.send(20_000);
    world.run(60);
    assert!(world.upload.done() && world.received == content, "{:?}", world.upload.progress());
    let refused: u64 = world.nodes.iter().map(|node| node.counters().flooding).sum();
    assert!(refused > 100, "{refused}");
}

#[test]
fn data_over_the_limit_is_dropped_before_opening() {
    let mut world = World::new("aimd", 3000.0);
    let junk = [[1u8; 1].as_slice(), &[9; DATA_SIZE - 1]].concat();
    for _ in 0..10 {
        world.junk(1, &junk);
    }
    let counters = world.nodes[1].counters();
    assert_eq!((counters.forged, counters.over_limit), (2, 8));
}

#[test]
fn clock_jumps_and_key_changes_are_harmless() {
    let mut world = World::new("explicit", 400_000.0);
    let content = world.send(30_000);
    world.run(1);
    world.now += Span::from_secs(86_400);
    // Packets for the old key still pass.
    world.nodes.iter_mut().for_each(|node| node.set_epoch(1));
    world.run(2);
    world.upload.set_epoch(common::epoch(PEERS, 1));
    world.run(300);
    assert!(world.complete && world.received == content, "{:?}", world.upload.progress());
    let old =
        world.seen.iter().find(|(to, wire)| *to == 1 && wire.len() == WIRE_SIZE && wire[HEAD] == 1).cloned();
    let (_, wire) = old.expect("peer 1 relayed in epoch 0");
    let later = world.now + Span::from_secs(10);
    assert!(common::open(&mut world.nodes[1], later, &wire).is_none());
    assert_eq!(world.nodes[1].counters().replayed, 1);
    world.nodes[1].set_epoch(2);
    assert!(common::open(&mut world.nodes[1], later, &wire).is_none());
    assert_eq!(world.nodes[1].counters().stale, 1, "two epochs later the key is gone");
}

#[test]
fn replays_are_recognised_after_a_restart() {
    let mut world = World::new("explicit", 400_000.0);
    world.send(2_000);
    world.run(20);
    let tags = world.nodes[1].tags(0).expect("this epoch").take_fresh();
    let taken = world.nodes[1].counters();
    assert_eq!(tags.len() as u64, taken.forwarded + taken.acks_forwarded);
    let parameters = ControllerParameters::named("explicit", f64::from(PACKET)).expect("known");
    let mut fresh = common::nodes(PEERS, 400_000.0, &parameters).swap_remove(1);
    fresh.tags(0).expect("this epoch").restore(tags);
    let again = world.seen.iter().filter(|(to, _)| *to == 1);
    assert!(again.clone().count() > 2);
    assert!(again.clone().all(|(_, wire)| common::open(&mut fresh, world.now, wire).is_none()));
    assert_eq!(fresh.counters().replayed, again.count() as u64);
}

/// Unauthenticated datagrams do not use up the limit that neighbours share.
#[test]
fn outsiders_are_refused_before_limits_and_cryptography() {
    let mut world = World::new("explicit", 400_000.0);
    let mut junk = vec![1; WIRE_SIZE];
    for i in 0..2000u32 {
        junk[..2].copy_from_slice(&((i % 9) as u16).to_be_bytes());
        junk[40..44].copy_from_slice(&i.to_le_bytes());
        assert!(common::open(&mut world.nodes[2], Time::ZERO, &junk).is_none());
    }
    let counters = world.nodes[2].counters();
    assert_eq!((counters.unauthenticated, counters.over_limit, counters.forged), (2000, 0, 0));
    let content = world.send(10_000);
    world.run(60);
    assert!(world.received == content);
}
