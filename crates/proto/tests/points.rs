//! A relay as introduction and rendezvous point: onion services and clients find each other, and nobody else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ed25519_dalek::{Signer as _, SigningKey};
use sha3::{Digest as _, Sha3_256};
use tidegate_control::machine::Machine as _;
use tidegate_control::units::Time;
use tidegate_proto::cell::{
    Cell, CircId, Command, Message, Nonce, Payload, RelayId, ServiceCommand, StreamId,
};
use tidegate_proto::crypto::layer::Body;
use tidegate_proto::crypto::ntor::RelaySecret;
use tidegate_proto::crypto::{Encrypted, Hop, OwnKeys, SharedNames, Target, Wishes};
use tidegate_proto::links::{ChannelId, Config, Limits};
use tidegate_proto::node::Node as _;
use tidegate_proto::onion::Onion as _;
use tidegate_proto::relay::Relay;

use ServiceCommand as Is;

use crate::taken::Taken;

const FINGERPRINT: [u8; 20] = [1; 20];
const IDENTITY: [u8; 32] = [4; 32];
const COOKIE: [u8; 20] = [8; 20];

fn config(points: u32) -> Config {
    Config { limits: Some(Limits { points, ..Limits::default() }), ..Config::default() }
}

pub fn relay(points: u32) -> Relay<Encrypted> {
    relay_with(config(points))
}

fn relay_with(config: Config) -> Relay<Encrypted> {
    let mut onion = Encrypted::new(None, BTreeMap::new(), [3; 32]).with_names(SharedNames::default());
    onion.answer_with(OwnKeys::new(FINGERPRINT, IDENTITY, [2; 32], None));
    Relay::new(onion, config)
}

/// A connection from a relay at an address, or from a client.
pub fn channel(relay: &mut Relay<Encrypted>, address: u8, peer: Option<u32>) -> ChannelId {
    let channel = relay.channel_accepted(peer.map(RelayId));
    relay.channel_is_from(Time::ZERO, channel, IpAddr::from([192, 0, 2, address]));
    channel
}

/// The end of a circuit of one hop.
pub struct Party {
    pub channel: ChannelId,
    pub circ: CircId,
    pub hops: Vec<Hop>,
}

/// Reads a channel's cells.
pub fn read(relay: &mut Relay<Encrypted>, channel: ChannelId) -> Vec<Cell<Encrypted>> {
    let mut cells = Taken::default();
    relay.drain(Time::ZERO, channel, &mut cells);
    while relay.poll().is_some() {}
    cells.0
}

impl Party {
    /// Builds a circuit, with Counter Galois Onion or with ntor.
    pub fn new(relay: &mut Relay<Encrypted>, channel: ChannelId, circ: u32, cgo: bool) -> Party {
        let mut client = Encrypted::new(None, BTreeMap::new(), [circ as u8; 32]);
        let wishes = cgo.then_some((IDENTITY, Wishes { congestion_control: true, cgo: true }));
        client.learn(RelayId(0), *RelaySecret::new(FINGERPRINT, [2; 32]).public(), wishes);
        let (handshake, body) = client.start(RelayId(0));
        let circ = CircId(1 << 31 | circ);
        relay.cell(Time::ZERO, channel, Cell { circ, command: Command::Create, body });
        let created = read(relay, channel).pop().expect("an answer");
        assert_eq!((created.circ, created.command), (circ, Command::Created));
        Party { channel, circ, hops: vec![client.finish(handshake, &created.body).unwrap()] }
    }

    pub fn says(&mut self, relay: &mut Relay<Encrypted>, payload: Payload<Encrypted>, now: Time) {
        let stream = StreamId(u16::from(payload.is_of_stream()));
        let body = Encrypted::seal(&mut self.hops, 0, false, Message { stream, payload });
        relay.cell(now, self.channel, Cell { circ: self.circ, command: Command::Relay, body });
    }

    pub fn asks(&mut self, relay: &mut Relay<Encrypted>, command: ServiceCommand, data: &[u8]) {
        self.says(relay, Payload::Service(command, data.into()), Time::ZERO);
    }

    /// The messages of onion services that arrived, and whether the circuit was closed.
    pub fn hears(&mut self, relay: &mut Relay<Encrypted>) -> (Vec<(ServiceCommand, Vec<u8>)>, bool) {
        let (heard, closed) = self.receives(relay);
        let of_services = heard.into_iter().map(|payload| match payload {
            Payload::Service(command, data) => (command, data.into()),
            other => panic!("{other:?}"),
        });
        (of_services.collect(), closed)
    }

    /// The messages that arrived, and whether the circuit was closed.
    pub fn receives(&mut self, relay: &mut Relay<Encrypted>) -> (Vec<Payload<Encrypted>>, bool) {
        let (mut heard, mut closed) = (Vec::new(), false);
        for cell in read(relay, self.channel).into_iter().filter(|cell| cell.circ == self.circ) {
            if cell.command == Command::Destroy {
                closed = true;
            } else {
                heard.push(Encrypted::open(&mut self.hops, cell.body).unwrap().1.payload);
            }
        }
        (heard, closed)
    }

    pub fn establishes(&mut self, relay: &mut Relay<Encrypted>, key: u8, extensions: &[u8]) {
        let key = SigningKey::from_bytes(&[key; 32]);
        let head = [&[2, 0, 32], &key.verifying_key().to_bytes()[..], extensions].concat();
        let binding = Encrypted::binding(&self.hops[0]).unwrap();
        let mac = Sha3_256::digest([&[0, 0, 0, 0, 0, 0, 0, 20], &binding[..], &head].concat());
        let signed = [&head[..], &mac].concat();
        let signature = key.sign(&[b"Tor establish-intro cell v1", &signed[..]].concat()).to_bytes();
        self.asks(relay, Is::EstablishIntro, &[&signed[..], &[0, 64], &signature].concat());
    }
}

/// INTRODUCE1 to a service.
pub fn introduction(key: u8, encrypted: usize) -> Vec<u8> {
    let key = SigningKey::from_bytes(&[key; 32]).verifying_key().to_bytes();
    [&[0; 20][..], &[2, 0, 32], &key, &[0], &vec![9; encrypted]].concat()
}

const ESTABLISHED: (ServiceCommand, [u8; 1]) = (Is::IntroEstablished, [0]);

fn ack(status: u8) -> (Vec<(ServiceCommand, Vec<u8>)>, bool) {
    (vec![(Is::IntroduceAck, vec![0, status, 0])], false)
}

#[test]
fn introductions_reach_their_service_once_per_circuit() {
    for [service_cgo, client_cgo] in [[false, false], [true, false], [false, true]] {
        let mut relay = relay(8);
        let (near, far) = (channel(&mut relay, 1, Some(1)), channel(&mut relay, 2, Some(2)));
        let mut service = Party::new(&mut relay, near, 1, service_cgo);
        service.establishes(&mut relay, 7, &[0]);
        let (heard, _) = service.hears(&mut relay);
        assert_eq!(heard, [(ESTABLISHED.0, ESTABLISHED.1.to_vec())]);

        let mut client = Party::new(&mut relay, far, 2, client_cgo);
        let message = introduction(7, 300);
        client.asks(&mut relay, Is::Introduce1, &message);
        assert_eq!(client.hears(&mut relay), ack(0));
        assert_eq!(service.hears(&mut relay), (vec![(Is::Introduce2, message.clone())], false));
        client.asks(&mut relay, Is::Introduce1, &message);
        assert_eq!(client.hears(&mut relay), (Vec::new(), true), "a second one on this circuit");

        for (key, length, status) in [(6, 300, 1), (7, 0, 2)] {
            let mut client = Party::new(&mut relay, far, 3, client_cgo);
            client.asks(&mut relay, Is::Introduce1, &introduction(key, length));
            assert_eq!(client.hears(&mut relay), ack(status), "key {key}, {length} bytes");
            client.says(&mut relay, Payload::Leave(Nonce([0; 8])), Time::ZERO);
            assert!(client.hears(&mut relay).1);
        }
        // A message that format 1 has no room for reaches no service under it.
        let mut client = Party::new(&mut relay, far, 4, client_cgo);
        if !client_cgo {
            client.asks(&mut relay, Is::Introduce1, &introduction(7, 498 - 56));
            assert_eq!(client.hears(&mut relay), ack(if service_cgo { 3 } else { 0 }));
        }
    }
}

#[test]
fn a_service_that_comes_again_replaces_its_old_circuit() {
    let mut relay = relay(8);
    let near = channel(&mut relay, 1, Some(1));
    let mut old = Party::new(&mut relay, near, 1, false);
    let mut new = Party::new(&mut relay, near, 2, true);
    old.establishes(&mut relay, 7, &[0]);
    old.hears(&mut relay);
    new.establishes(&mut relay, 7, &[0]);
    let cells = read(&mut relay, near);
    assert!(cells.iter().any(|cell| cell.circ == old.circ && cell.command == Command::Destroy));
    assert!(cells.iter().any(|cell| cell.circ == new.circ && cell.command == Command::Relay));
    assert_eq!(relay.circuits(), 1);
}

#[test]
fn a_service_limits_its_introductions() {
    let mut relay = relay(8);
    let (near, far) = (channel(&mut relay, 1, Some(1)), channel(&mut relay, 2, Some(2)));
    let mut service = Party::new(&mut relay, near, 1, false);
    // Two per second, three at once.
    let mut limit = vec![1, 1, 19, 2, 1];
    limit.extend(2u64.to_be_bytes());
    limit.push(2);
    limit.extend(3u64.to_be_bytes());
    service.establishes(&mut relay, 7, &limit);
    service.hears(&mut relay);
    let mut circ = 10;
    let mut introduce = |relay: &mut Relay<Encrypted>, now: Time| {
        circ += 1;
        let mut client = Party::new(relay, far, circ, false);
        client.says(relay, Payload::Service(Is::Introduce1, introduction(7, 100).into()), now);
        client.hears(relay) == ack(0)
    };
    let first: Vec<bool> = (0..5).map(|_| introduce(&mut relay, Time::ZERO)).collect();
    assert_eq!(first, [true, true, true, false, false]);
    let later: Vec<bool> = (0..3).map(|_| introduce(&mut relay, Time(1_000_000_000))).collect();
    assert_eq!(later, [true, true, false]);
}

/// Strangers introduce themselves faster than the service reads.
#[test]
fn a_flood_of_introductions_does_not_end_the_circuit_of_the_service() {
    let mut relay = relay_with(Config { queue_limit: 40, ..config(8) });
    let (near, far) = (channel(&mut relay, 1, Some(1)), channel(&mut relay, 2, Some(2)));
    let mut service = Party::new(&mut relay, near, 1, false);
    service.establishes(&mut relay, 7, &[0]);
    service.hears(&mut relay);
    let introduce = |relay: &mut Relay<Encrypted>, circ| {
        let mut client = Party::new(relay, far, circ, false);
        client.asks(relay, Is::Introduce1, &introduction(7, 300));
        client.hears(relay).0
    };
    let answers: Vec<_> = (2..150).map(|circ| introduce(&mut relay, circ)).collect();
    assert_eq!(answers[0], ack(0).0, "the first one is passed on");
    assert_eq!(answers[147], ack(3).0, "the last client is told to try another point");
    let passed = answers.iter().filter(|answer| **answer == ack(0).0).count();
    let mut heard = Vec::new();
    loop {
        let (more, closed) = service.hears(&mut relay);
        assert!(!closed);
        if more.is_empty() {
            break;
        }
        heard.extend(more);
    }
    assert_eq!(heard.len(), passed);
    assert_eq!(introduce(&mut relay, 200), ack(0).0, "the service has read");
}

#[test]
fn what_is_not_allowed_ends_the_circuit() {
    let mut relay = relay(8);
    let (near, direct) = (channel(&mut relay, 1, Some(1)), channel(&mut relay, 3, None));
    let mut circ = 0;
    let mut fresh = |relay: &mut Relay<Encrypted>, channel| {
        circ += 1;
        Party::new(relay, channel, circ, circ % 2 == 0)
    };
    // A client without other relays in front of it; an answer; a cookie that is short, unknown or used already.
    let mut alone = fresh(&mut relay, direct);
    alone.asks(&mut relay, Is::Introduce1, &introduction(7, 100));
    assert!(alone.hears(&mut relay).1);
    for (command, data) in [
        (Is::EstablishIntro, &[2, 0, 32][..]),
        (Is::EstablishRendezvous, &COOKIE[1..]),
        (Is::Rendezvous1, &COOKIE[..]),
        (Is::Introduce2, &[]),
        (Is::Rendezvous2, &[]),
        (Is::IntroduceAck, &[]),
    ] {
        let mut party = fresh(&mut relay, near);
        party.asks(&mut relay, command, data);
        assert_eq!(party.hears(&mut relay), (Vec::new(), true), "{command:?}");
    }
    let mut waiting = fresh(&mut relay, near);
    waiting.asks(&mut relay, Is::EstablishRendezvous, &COOKIE);
    assert_eq!(waiting.hears(&mut relay), (vec![(Is::RendezvousEstablished, Vec::new())], false));
    let mut other = fresh(&mut relay, near);
    other.asks(&mut relay, Is::EstablishRendezvous, &COOKIE);
    assert!(read(&mut relay, near).iter().any(|cell| cell.circ == other.circ), "closed");
    // A circuit with a part in a connection is no exit, and takes no second part.
    for payload in [
        Payload::Begin(Target::Directory),
        Payload::Service(Is::EstablishRendezvous, COOKIE.into()),
        Payload::Service(Is::Introduce1, introduction(7, 10).into()),
    ] {
        let mut party = fresh(&mut relay, near);
        party.establishes(&mut relay, 7, &[0]);
        party.hears(&mut relay);
        party.says(&mut relay, payload, Time::ZERO);
        assert_eq!(party.hears(&mut relay), (Vec::new(), true));
    }
    assert_eq!(relay.circuits(), 1, "the one that waits");
}

/// A rendezvous of a client with a service, each over its channel.
fn meet(relay: &mut Relay<Encrypted>, [near, far]: [ChannelId; 2], cgo: [bool; 2]) -> [Party; 2] {
    let mut client = Party::new(relay, near, 1, cgo[0]);
    client.asks(relay, Is::EstablishRendezvous, &COOKIE);
    client.hears(relay);
    let mut service = Party::new(relay, far, 2, cgo[1]);
    service.asks(relay, Is::Rendezvous1, &[&COOKIE[..], &[5; 64]].concat());
    assert_eq!(client.hears(relay), (vec![(Is::Rendezvous2, vec![5; 64])], false));
    [client, service]
}

#[test]
fn joined_circuits_carry_cells_beyond_the_relay_both_ways() {
    for cgo in [[false, false], [true, false], [false, true], [true, true]] {
        let mut relay = relay(8);
        let ways = [channel(&mut relay, 1, Some(1)), channel(&mut relay, 2, Some(2))];
        let mut parties = meet(&mut relay, ways, cgo);
        for round in 0..6u8 {
            let (from, to) = (usize::from(round % 2), usize::from(1 - round % 2));
            let sent: [u8; 509] = std::array::from_fn(|n| (n as u8).wrapping_mul(7 + round));
            let mut body = Body::from(sent);
            // At a client's end these calls add and remove the layer, without a message for the relay.
            assert_eq!(Encrypted::peel(&mut parties[from].hops[0], false, &mut body), Ok(None));
            let cell = Cell { circ: parties[from].circ, command: Command::Relay, body };
            relay.cell(Time::ZERO, parties[from].channel, cell);
            let mut cell = read(&mut relay, parties[to].channel).pop().expect("it crosses");
            assert_eq!((cell.circ, cell.command), (parties[to].circ, Command::Relay));
            Encrypted::wrap(&mut parties[to].hops[0], &mut cell.body);
            assert_eq!(*cell.body.0, sent, "round {round}");
        }
    }
}

#[test]
fn joined_circuits_end_together() {
    for lost in 0..2 {
        for by_channel in [false, true] {
            let mut relay = relay(8);
            let ways = [channel(&mut relay, 1, Some(1)), channel(&mut relay, 2, Some(2))];
            let mut parties = meet(&mut relay, ways, [true, false]);
            if by_channel {
                relay.channel_closed(Time::ZERO, ways[lost]);
            } else {
                let body = Encrypted::empty();
                let cell = Cell { circ: parties[lost].circ, command: Command::Destroy, body };
                relay.cell(Time::ZERO, ways[lost], cell);
            }
            assert!(parties[1 - lost].hears(&mut relay).1);
            assert_eq!(relay.circuits(), 0);
        }
    }
    // Both on one connection that breaks.
    let mut relay = relay(8);
    let way = channel(&mut relay, 1, Some(1));
    meet(&mut relay, [way, way], [false, true]);
    relay.channel_closed(Time::ZERO, way);
    assert_eq!(relay.circuits(), 0);
}

#[test]
fn the_neighbour_with_the_most_circuits_makes_room() {
    let mut relay = relay(4);
    let (flooding, other) = (channel(&mut relay, 1, Some(1)), channel(&mut relay, 2, Some(2)));
    let flood = |relay: &mut Relay<Encrypted>, from: u8| {
        for n in from..from + 6 {
            let mut party = Party::new(relay, flooding, n.into(), false);
            party.asks(relay, Is::EstablishRendezvous, &[n; 20]);
            read(relay, flooding);
        }
    };
    flood(&mut relay, 1);
    assert_eq!(relay.circuits(), 4);
    let mut service = Party::new(&mut relay, other, 50, false);
    service.establishes(&mut relay, 7, &[0]);
    assert_eq!(service.hears(&mut relay), (vec![(ESTABLISHED.0, ESTABLISHED.1.to_vec())], false));
    flood(&mut relay, 100);
    assert_eq!(service.hears(&mut relay), (Vec::new(), false), "it stays");
    assert_eq!(relay.circuits(), 4);
}
