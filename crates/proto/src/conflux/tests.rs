//! Sets of linked circuits: sequence numbers, order, and peers that violate the protocol, at the exit and the client.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cell::{Cell, CircId, Command, EndReason, Message, Payload, RelayId, StreamId};
use crate::client::Client;
use crate::conflux::by_time::Throughput;
use crate::conflux::split::Capacity;
use crate::conflux::{Broken, Link, MAX_LEGS, Offer, Refused, Set, Split, Wish};
use crate::control::vegas::VegasParameters;
use crate::links::{ChannelId, Config, Departure};
use crate::node::{Budget, CircuitKey, Node, Output, Sink};
use crate::onion::{Clear, ClearBody, Onion as _, Stamp};
use crate::registry::SPLITS;
use crate::relay::Relay;
use proptest::prelude::*;
use tidegate_control::machine::Machine as _;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};

/// Maximum number of messages that a set holds.
const MOST: u64 = 16 << 20;

#[test]
fn a_link_goes_over_the_wire_as_proposal_329_has_it() {
    let link = Link { nonce: [7; 32], sent: 0x0102, delivered: 3, wish: Wish::MinLatency };
    let bytes = link.write();
    assert_eq!(bytes[..34], [&[1][..], &[7; 32], &[0]].concat());
    assert_eq!(bytes[39..], [1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 1]);
    for wish in 0..=5 {
        let mut bytes = bytes;
        bytes[49] = wish;
        assert_eq!(Link::read(&bytes).is_some(), wish < 5);
    }
    assert_eq!(Link::read(&bytes), Some(link));
    assert_eq!(Link::read(&bytes[..49]), None);
    let mut other = bytes;
    other[0] = 2;
    assert_eq!(Link::read(&other), None, "another version");
}

fn set<M>(legs: u32) -> Set<M> {
    divided(legs, &Throughput)
}

fn divided<M>(legs: u32, split: &dyn Split) -> Set<M> {
    let mut set = Set::new([0; 32], split.build(Seed::root(1)));
    for leg in 0..legs {
        set.add(Time::ZERO, CircuitKey(leg), 0).unwrap();
        let answered = Time::ZERO + Span::from_millis(10 + u64::from(leg));
        set.answered(answered, CircuitKey(leg)).unwrap();
    }
    set
}

/// A leg with room for a number of cells.
fn room(room: u32) -> Capacity {
    Capacity { room, window: room, planned: None, increment: 31 }
}

proptest! {
    /// With legs of any speed, any split, and rooms and round-trip times that change at any time, messages are received
    /// once and in order, and only messages that have overtaken others wait.
    #[test]
    fn messages_keep_their_order_over_any_legs(
        legs in 1u32..5, wish in 0usize..3, split in 0..SPLITS.len(),
        steps in prop::collection::vec((0u32..4, 0u32..5, 0usize..4, 1u64..500), 1..400),
    ) {
        let (mut sender, mut receiver) = (divided::<()>(legs, &*SPLITS[split].by_default()), set(legs));
        sender.follow([Wish::None, Wish::MinLatency, Wish::Throughput][wish]);
        let mut wires = vec![VecDeque::new(); legs as usize];
        let (mut sent, mut got, mut now) = (0u64, 0u64, Time::ZERO);
        let mut deliver = |wire: &mut VecDeque<Result<u64, u32>>, leg, got: &mut u64, sent| {
            match wire.pop_front() {
                Some(Err(missed)) => receiver.switched(leg, missed).unwrap(),
                Some(Ok(number)) => {
                    let mut due = receiver.receive(Time::ZERO, leg, number).unwrap();
                    while let Some(number) = due {
                        *got += 1;
                        assert_eq!(number, *got);
                        due = receiver.next_due();
                    }
                }
                None => {}
            }
            assert!(receiver.held_bytes() <= 640 * (sent - *got));
        };
        for (blocked, cells, wire, millis) in steps {
            let at = wire % wires.len();
            now += Span::from_millis(millis);
            sender.acknowledged(now, CircuitKey(at as u32), 31, Some(Span::from_millis(millis)));
            for _ in 0..cells {
                let room = |leg: CircuitKey| room(u32::from(leg.0 != blocked));
                let data = sender.choose(room).map(|(leg, _)| leg);
                let Some(leg) = sender.choose_any(room) else { continue };
                let missed = match data {
                    Some(leg) => sender.send_data(now, &leg),
                    None => sender.send(leg),
                };
                let wire = &mut wires[leg.0 as usize];
                wire.extend(missed.map(Err));
                sent += 1;
                wire.push_back(Ok(sent));
            }
            deliver(&mut wires[at], CircuitKey(at as u32), &mut got, sent);
        }
        for (leg, wire) in (0..).zip(&mut wires) {
            while !wire.is_empty() {
                deliver(wire, CircuitKey(leg), &mut got, sent);
            }
        }
        prop_assert_eq!(got, sent);
    }

    /// SENDMEs come only for whole batches. While no batch is under way, waiting would never end, so some leg may send, with
    /// any history of round-trip times.
    #[test]
    fn no_split_waits_while_no_sendme_is_under_way(
        split in 0..SPLITS.len(), steps in prop::collection::vec((1u32..1500, prop::array::uniform3(1u64..500)), 1..30),
    ) {
        let mut set = divided::<()>(3, &*SPLITS[split].by_default());
        let (mut in_flight, mut now) = ([0; 3], Time::ZERO);
        let left = |in_flight: [u32; 3]| move |leg: CircuitKey| room(600 - in_flight[leg.0 as usize]);
        for (cells, round_trips) in steps {
            for _ in 0..cells {
                let Some((leg, _)) = set.choose(left(in_flight)) else { break };
                set.send_data(now, &leg);
                in_flight[leg.circuit.0 as usize] += 1;
            }
            now += Span::from_millis(round_trips.into_iter().max().unwrap_or(0));
            for (leg, millis) in round_trips.into_iter().enumerate() {
                for _ in 0..in_flight[leg] / 31 {
                    set.acknowledged(now, CircuitKey(leg as u32), 31, Some(Span::from_millis(millis)));
                }
                in_flight[leg] %= 31;
            }
            prop_assert!(set.choose(left(in_flight)).is_some(), "{in_flight:?} {round_trips:?}");
        }
    }

    /// Whatever a peer sends, a set stays within its limit and delivers nothing twice.
    #[test]
    fn any_numbers_are_survived(
        steps in prop::collection::vec((0u32..3, any::<bool>(), 0u32..4), 1..300), huge in any::<u32>(),
    ) {
        let mut set = set::<u32>(3);
        let mut delivered = 0;
        for (count, (leg, switch, missed)) in steps.into_iter().enumerate() {
            let leg = CircuitKey(leg);
            let missed = if missed == 3 { huge } else { missed };
            let done = if switch {
                set.switched(leg, missed)
            } else {
                set.receive(Time::ZERO, leg, 1).map(|due| {
                    delivered += u64::from(due.is_some());
                    while set.next_due().is_some() {
                        delivered += 1;
                    }
                })
            };
            prop_assert!(set.held_bytes() <= 640 * count as u64 + 640);
            prop_assert_eq!(set.link(Wish::None).delivered, delivered);
            if done == Err(Broken) {
                break;
            }
        }
    }
}

#[test]
fn with_one_leg_data_waits_and_with_several_it_uses_the_next() {
    let mut set = set::<()>(2);
    let (fast, slow) = (CircuitKey(0), CircuitKey(1));
    let (open, full) = (|_| room(7), |leg| room(u32::from(leg == slow) * 7));
    let take = |(leg, cells): (Offer, u32)| (leg.circuit, cells);
    set.follow(Wish::Throughput);
    assert_eq!((set.choose(open).map(take), set.room(open)), (Some((fast, 7)), 14));
    assert_eq!(set.choose(full).map(take), Some((slow, 7)));
    set.follow(Wish::MinLatency);
    assert_eq!((set.choose(open).map(take), set.room(open)), (Some((fast, 7)), 7));
    assert_eq!((set.choose(full).map(take), set.room(full)), (None, 0));
    assert_eq!(set.choose_any(full), Some(fast), "messages without a window use the fastest leg");
    set.acknowledged(Time::ZERO, fast, 31, Some(Span::from_millis(50)));
    assert_eq!(set.choose(open).map(take), Some((slow, 7)), "the other is faster now");
}

#[test]
fn a_set_survives_the_loss_of_a_leg_as_in_tor() {
    let (a, b) = (CircuitKey(0), CircuitKey(1));
    assert!(set::<()>(2).remove(a, 31), "neither leg was used");
    assert!(!set::<()>(1).remove(a, 31), "the last");
    let used = || {
        let mut used = set::<()>(2);
        let (leg, _) = used.choose(|_| room(50)).expect("it has room");
        assert!(leg.circuit == a && (0..40).all(|_| used.send_data(Time::ZERO, &leg).is_none()));
        assert_eq!(used.send(b), Some(40));
        used
    };
    assert!(!used().remove(b, 31), "the last message went over it");
    assert!(!used().remove(a, 31), "40 cells of it are in flight");
    let mut quiet = used();
    quiet.acknowledged(Time::ZERO, a, 31, None);
    assert!(quiet.remove(a, 31));
    let mut heard = set::<()>(2);
    heard.receive(Time::ZERO, a, ()).unwrap();
    assert!(!heard.remove(a, 31), "the other side sends on it");
    let mut waits = set::<()>(3);
    waits.switched(b, 1).unwrap();
    waits.receive(Time::ZERO, b, ()).unwrap();
    assert!(waits.remove(a, 31), "the missing messages may come on the third leg");
    let mut lost = set::<()>(2);
    lost.switched(b, 1).unwrap();
    lost.receive(Time::ZERO, b, ()).unwrap();
    assert!(!lost.remove(a, 31), "the missing messages cannot come any more");
}

#[test]
fn a_leg_that_joins_later_must_not_have_missed_messages() {
    let mut set = set::<()>(1);
    assert_eq!(set.add(Time::ZERO, CircuitKey(1), 1), Err(Refused::Lost));
    set.receive(Time::ZERO, CircuitKey(0), ()).unwrap();
    set.send(CircuitKey(0));
    assert_eq!(set.add(Time::ZERO, CircuitKey(1), 1), Ok(()));
    assert_eq!(set.send(CircuitKey(1)), Some(0), "the receiver knows of the first by LINKED");
    for leg in 2..MAX_LEGS as u32 {
        set.add(Time::ZERO, CircuitKey(leg), 1).unwrap();
    }
    assert_eq!(set.add(Time::ZERO, CircuitKey(99), 1), Err(Refused::TooMany));
}

type Said = (CircId, Command, Option<Payload<Clear>>);

/// Collects the cells that a node writes.
#[derive(Default)]
struct Wire(Vec<Said>);

impl Sink<Clear> for Wire {
    fn budget(&mut self) -> Budget {
        Budget::Cells(100)
    }
    fn begin(&mut self, _: u32, _: u64) -> bool {
        true
    }
    fn write(&mut self, departure: Departure<Clear>) {
        let Cell { circ, command, body } = departure.cell;
        let said = if let ClearBody::Other { message, .. } = body { Some(message.payload) } else { None };
        self.0.push((circ, command, said));
    }
}

fn config() -> Config {
    Config { control: Arc::new(VegasParameters::default()), nonces: Seed::root(3), ..Config::default() }
}

/// A node, and the peer at the other end of its one channel.
struct Peer<N> {
    node: N,
    channel: ChannelId,
    outputs: Vec<Output<Clear>>,
}

impl<N: Node<Clear>> Peer<N> {
    /// The cells that the node has sent since the last call.
    fn heard(&mut self) -> Vec<Said> {
        let mut wire = Wire::default();
        while let Some(output) = self.node.poll() {
            match output {
                Output::Flush(channel) => self.node.drain(Time::ZERO, channel, &mut wire),
                output => self.outputs.push(output),
            }
        }
        wire.0
    }

    fn cell(&mut self, circ: CircId, command: Command, body: ClearBody) -> Vec<Said> {
        self.node.cell(Time(1), self.channel, Cell { circ, command, body });
        self.heard()
    }

    fn say(&mut self, circ: CircId, stream: u16, payload: Payload<Clear>) -> Vec<Said> {
        let message = Message { stream: StreamId(stream), payload };
        // Relays drop EXTEND in other cells.
        let extends = matches!(message.payload, Payload::Extend(..));
        let command = if extends { Command::Early } else { Command::Relay };
        self.cell(circ, command, ClearBody::Other { layers: 1, message: Box::new(message) })
    }

    fn data(&mut self, circ: CircId, stream: u16) -> Vec<Said> {
        let (stream, stamp) = (StreamId(stream), Stamp::default());
        self.cell(circ, Command::Relay, ClearBody::Data { layers: 1, bytes: 498, stream, stamp })
    }
}

const A: CircId = CircId(1 << 31 | 1);
const B: CircId = CircId(1 << 31 | 2);
const C: CircId = CircId(1 << 31 | 3);

fn link(nonce: u8) -> Payload<Clear> {
    let link = Link { nonce: [nonce; 32], sent: 0, delivered: 0, wish: Wish::Throughput };
    Payload::Link(Box::new(link))
}

/// An exit with circuits of a client that is its neighbour.
fn exit(circuits: &[CircId]) -> Peer<Relay<Clear>> {
    let mut node = Relay::new(Clear::default(), config());
    let channel = node.channel_accepted(None);
    let mut peer = Peer { node, channel, outputs: Vec::new() };
    for circ in circuits {
        let created = peer.cell(*circ, Command::Create, ClearBody::Handshake(None));
        assert_eq!(created[0].1, Command::Created);
    }
    peer
}

/// The same with A and B linked and a stream open.
fn linked() -> Peer<Relay<Clear>> {
    let mut peer = exit(&[A, B, C]);
    for circ in [A, B] {
        let said = peer.say(circ, 0, link(1));
        assert!(matches!(&said[..], [(at, _, Some(Payload::Linked(linked)))]
            if *at == circ && linked.nonce == [1; 32] && (linked.sent, linked.delivered) == (0, 0)));
        assert_eq!(peer.say(circ, 0, Payload::LinkedAck), []);
    }
    assert_eq!(peer.say(A, 1, Payload::Begin(7)), []);
    assert!(matches!(peer.outputs.last(), Some(Output::Connect(_, 7))));
    peer
}

fn destroyed(said: &[Said]) -> Vec<CircId> {
    said.iter().filter(|(_, command, _)| *command == Command::Destroy).map(|(circ, _, _)| *circ).collect()
}

#[test]
fn an_exit_ends_circuits_that_violate_linking() {
    for (before, wrong) in [
        (None, Payload::LinkedAck),
        (None, Payload::Switch(3)),
        (None, Payload::Linked(Box::new(Link { nonce: [1; 32], sent: 0, delivered: 0, wish: Wish::None }))),
        (Some(link(1)), link(1)),
        (Some(link(1)), link(2)),
        (Some(link(1)), Payload::Extend(RelayId(3), Clear::empty())),
        (Some(Payload::Begin(5)), link(1)),
    ] {
        let mut peer = exit(&[A, B]);
        let stream = u16::from(matches!(before, Some(Payload::Begin(_))));
        if let Some(before) = before {
            assert_eq!(destroyed(&peer.say(A, stream, before)), []);
        }
        let said = peer.say(A, 0, wrong.clone());
        assert_eq!(destroyed(&said), [A], "{wrong:?}");
        assert_eq!(destroyed(&peer.say(B, 0, link(1))), [], "other circuits stay open");
        assert_eq!(peer.node.memory(), 0);
    }
    let mut old = exit(&[]);
    old.cell(A, Command::Create, ClearBody::Handshake(Some(false)));
    assert_eq!(destroyed(&old.say(A, 0, link(1))), [A], "legs need congestion control");
}

#[test]
fn a_violation_on_one_leg_ends_both_legs_only() {
    type Wrong = fn(&mut Peer<Relay<Clear>>) -> Vec<Said>;
    let wrongs: [(&str, Wrong); 5] = [
        ("acknowledged twice", |peer| peer.say(B, 0, Payload::LinkedAck)),
        ("a number that came before", |peer| peer.data(B, 1)),
        ("a SWITCH that leaves out what no leg can bring", |peer| {
            assert_eq!(peer.say(A, 0, Payload::Switch(1)), []);
            peer.say(B, 0, Payload::Switch(2))
        }),
        ("a LEAVE", |peer| peer.say(B, 0, Payload::Leave(crate::cell::Nonce([1; 8])))),
        ("a third leg that has missed something", |peer| {
            let link = Link { nonce: [1; 32], sent: 9, delivered: 0, wish: Wish::None };
            peer.say(C, 0, Payload::Link(Box::new(link)))
        }),
    ];
    for (what, wrong) in wrongs {
        let mut peer = linked();
        let mut gone = destroyed(&wrong(&mut peer));
        gone.sort_unstable();
        let third = what.starts_with("a third");
        assert_eq!(gone, if third { vec![A, B, C] } else { vec![A, B] }, "{what}");
        let last = peer.outputs.iter().rfind(|output| !matches!(output, Output::CircuitEnded(..)));
        assert!(matches!(last, Some(Output::StreamClosed(_, EndReason::DESTROY))), "{what}");
        if !third {
            assert_eq!(destroyed(&peer.say(C, 0, link(1))), [], "the nonce can be used again");
        }
        assert_eq!(peer.node.memory(), 0);
    }
}

#[test]
fn another_nonce_is_another_set() {
    let mut peer = linked();
    assert_eq!(destroyed(&peer.say(C, 0, link(2))), []);
    assert_eq!(peer.say(C, 0, Payload::LinkedAck), []);
    // An unopened stream with an id that the other set uses, and sequence numbers that the other set has passed.
    for _ in 0..3 {
        assert_eq!(peer.data(C, 1), []);
    }
    let delivered = |peer: &Peer<Relay<Clear>>| {
        peer.outputs.iter().filter(|output| matches!(output, Output::Deliver(..))).count()
    };
    assert_eq!(delivered(&peer), 0);
    assert_eq!(peer.say(B, 0, Payload::Switch(1)), []);
    assert_eq!(peer.data(B, 1), []);
    assert_eq!(delivered(&peer), 1);
}

#[test]
fn legs_beyond_the_maximum_are_refused_and_the_set_stays() {
    let circs: Vec<CircId> = (1..=MAX_LEGS as u32 + 1).map(|n| CircId(1 << 31 | n)).collect();
    let mut peer = exit(&circs);
    for (at, circ) in circs.iter().enumerate() {
        let said = peer.say(*circ, 0, link(1));
        assert_eq!(destroyed(&said).len(), usize::from(at == MAX_LEGS));
    }
    assert_eq!(peer.node.circuits(), MAX_LEGS);
}

#[test]
fn a_peer_that_withholds_a_message_loses_its_set_and_the_memory_is_freed() {
    let mut peer = linked();
    assert_eq!(peer.say(B, 0, Payload::Switch(2)), []);
    let mut most = 0;
    for _ in 0..MOST {
        let gone = destroyed(&peer.data(B, 1));
        most = most.max(peer.node.memory());
        if !gone.is_empty() {
            assert_eq!(gone.len(), 2);
            break;
        }
    }
    // Some SENDMEs may be in the output buffer.
    assert!((MOST - 640..=MOST + 6400).contains(&most), "{most}");
    assert_eq!((peer.node.memory(), peer.node.circuits()), (0, 1));
}

#[test]
fn an_answer_goes_over_the_leg_with_a_known_round_trip_time() {
    let mut peer = exit(&[A, B]);
    peer.say(A, 0, link(1));
    peer.say(B, 0, link(1));
    peer.say(B, 0, Payload::LinkedAck);
    assert_eq!(peer.say(B, 1, Payload::Begin(7)), []);
    let Some(Output::Connect(stream, 7)) = peer.outputs.last().cloned() else { panic!("a stream") };
    peer.node.stream_connected(Time(2), stream);
    let said = peer.heard();
    assert_eq!(
        said,
        [(B, Command::Relay, Some(Payload::Connected))],
        "not over the first leg, of unknown round-trip time"
    );
}

/// A client with two circuits of one relay, played by the test. Returns the circuits and the nonce of its LINKs.
fn client() -> (Peer<Client<Clear>>, [CircuitKey; 2], [u8; 32]) {
    let mut node = Client::new(Clear::default(), config());
    let legs = [0; 2].map(|_| node.build(Time::ZERO, vec![RelayId(0)]));
    let Some(Output::OpenChannel(channel, _)) = node.poll() else { panic!("it connects") };
    node.channel_opened(Time::ZERO, channel);
    let mut peer = Peer { node, channel, outputs: Vec::new() };
    let circs: Vec<CircId> = peer.heard().iter().map(|(circ, ..)| *circ).collect();
    assert_eq!(circs, [A, B]);
    for circ in circs {
        peer.cell(circ, Command::Created, ClearBody::Handshake(None));
    }
    assert!(peer.node.link(Time(1), &legs, Wish::MinLatency));
    let said = peer.heard();
    let [(_, _, Some(Payload::Link(link))), (_, _, Some(other))] = &said[..] else { panic!("{said:?}") };
    assert_eq!((&Payload::Link(link.clone()), link.wish), (other, Wish::MinLatency));
    (peer, legs, link.nonce)
}

#[test]
fn a_client_ends_circuits_that_violate_linking() {
    let answer = |nonce: [u8; 32]| {
        Payload::Linked(Box::new(Link { nonce, sent: 0, delivered: 0, wish: Wish::MinLatency }))
    };
    type Wrong<'a> = &'a dyn Fn(&mut Peer<Client<Clear>>, [u8; 32]) -> Vec<Said>;
    let wrongs: [(&str, Wrong<'_>); 6] = [
        ("a foreign nonce", &|peer, _| peer.say(A, 0, answer([0; 32]))),
        ("a SWITCH before LINKED", &|peer, _| {
            peer.say(A, 0, Payload::Switch(1));
            peer.say(B, 0, Payload::Switch(1))
        }),
        ("a stream's before LINKED", &|peer, _| peer.say(A, 1, Payload::Connected)),
        ("LINKED twice", &|peer, nonce| {
            assert_eq!(peer.say(A, 0, answer(nonce)), [(A, Command::Relay, Some(Payload::LinkedAck))]);
            peer.say(A, 0, answer(nonce))
        }),
        ("a LINK", &|peer, _| peer.say(B, 0, link(1))),
        ("an ACK", &|peer, _| peer.say(B, 0, Payload::LinkedAck)),
    ];
    for (what, wrong) in wrongs {
        let (mut peer, legs, nonce) = client();
        wrong(&mut peer, nonce);
        for key in legs {
            assert!(peer.outputs.contains(&Output::CircuitClosed(key)), "{what}");
        }
        assert!(!peer.outputs.iter().any(|output| matches!(output, Output::Linked(_))), "{what}");
    }
    let (mut peer, legs, nonce) = client();
    peer.say(A, 0, answer(nonce));
    assert!(!peer.outputs.contains(&Output::Linked(legs[0])), "the other leg is not linked yet");
    peer.cell(B, Command::Destroy, ClearBody::Handshake(None));
    assert!(peer.outputs.contains(&Output::Linked(legs[0])), "the set goes on with one leg");
    assert!(peer.node.open(Time(3), legs[0], 1).is_some());
}

#[test]
fn a_client_limits_the_messages_that_it_holds() {
    let (mut peer, legs, nonce) = client();
    for circ in [A, B] {
        let link = Link { nonce, sent: 0, delivered: 0, wish: Wish::MinLatency };
        peer.say(circ, 0, Payload::Linked(Box::new(link)));
    }
    let stream = peer.node.open(Time(2), legs[0], 1).unwrap();
    peer.say(A, stream.stream.0, Payload::Connected);
    peer.say(B, 0, Payload::Switch(2));
    let cells = (1..=MOST).find(|_| {
        peer.data(B, stream.stream.0);
        peer.outputs.contains(&Output::CircuitClosed(legs[0]))
    });
    assert_eq!(cells, Some(MOST / 640 + 1));
    assert!(peer.outputs.contains(&Output::CircuitClosed(legs[1])));
}
