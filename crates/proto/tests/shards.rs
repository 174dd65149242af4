//! The shards of a relay: circuits of different shards meet, and limits count all shards.

use std::collections::BTreeMap;

use tidegate_control::machine::Machine as _;
use tidegate_control::units::Time;
use tidegate_proto::cell::{Cell, Command, Nonce, Payload, ServiceCommand as Is};
use tidegate_proto::conflux::{Link, Wish};
use tidegate_proto::crypto::layer::Body;
use tidegate_proto::crypto::{Encrypted, Target};
use tidegate_proto::ending::Ending;
use tidegate_proto::links::Limits;
use tidegate_proto::node::{Node as _, Output};
use tidegate_proto::onion::Onion as _;
use tidegate_proto::relay::{AddressCounts, Between, Relay};

use crate::points::{Party, channel, introduction, relay};
use crate::taken::Taken;

/// The shards of a relay, and what carries cells between them.
struct Shards {
    of: Vec<Relay<Encrypted>>,
    between: Vec<Vec<Option<Between>>>,
    /// Bytes that each shard delivered to streams.
    delivered: Vec<u64>,
}

impl Shards {
    fn new(count: usize) -> Shards {
        let addresses = AddressCounts::default();
        let mut of: Vec<_> = (0..count).map(|_| relay(8)).collect();
        let shards = of.iter_mut().enumerate();
        let between = shards.map(|(own, shard)| shard.become_shard(own, count, addresses.clone())).collect();
        Shards { of, between, delivered: vec![0; count] }
    }

    /// Carries circuits and cells between shards until none is left, and opens streams.
    fn settle(&mut self) {
        loop {
            let mut carried = 0;
            for from in 0..self.of.len() {
                while let Some(output) = self.of[from].poll() {
                    match output {
                        Output::Connect(stream, _) => self.of[from].stream_connected(Time::ZERO, stream),
                        Output::Deliver(_, bytes, ..) => self.delivered[from] += u64::from(bytes),
                        _ => {}
                    }
                }
                for to in (0..self.of.len()).filter(|to| *to != from) {
                    while let Some(handed) = self.of[from].next_handed_over(to) {
                        self.of[to].take_over(Time::ZERO, from, handed);
                        carried += 1;
                    }
                    let between = self.between[from][to].expect("two shards");
                    let theirs = self.between[to][from].expect("two shards");
                    for (channel, other) in between.into_iter().zip(theirs) {
                        let mut cells = Taken::default();
                        self.of[from].drain(Time::ZERO, channel, &mut cells);
                        carried += cells.0.len();
                        for cell in cells.0 {
                            self.of[to].cell(Time::ZERO, other, cell);
                        }
                    }
                }
            }
            if carried == 0 {
                return;
            }
        }
    }

    fn circuits(&self) -> usize {
        self.of.iter().map(Relay::circuits).sum()
    }

    fn closed(&self) -> BTreeMap<&'static str, u64> {
        let mut closed = BTreeMap::new();
        for (ending, number) in self.of.iter().flat_map(|shard| shard.endings().iter().collect::<Vec<_>>()) {
            *closed.entry(ending.counter()).or_default() += number;
        }
        closed.retain(|_, number| *number > 0);
        closed
    }
}

/// A party with its shard.
struct At(usize, Party);

impl At {
    fn new(shards: &mut Shards, shard: usize, circ: u32, peer: Option<u32>) -> At {
        let relay = &mut shards.of[shard];
        let channel = channel(relay, circ as u8, peer);
        At(shard, Party::new(relay, channel, circ, circ.is_multiple_of(2)))
    }

    fn asks(&mut self, shards: &mut Shards, command: Is, data: &[u8]) {
        self.1.asks(&mut shards.of[self.0], command, data);
        shards.settle();
    }

    fn says(&mut self, shards: &mut Shards, payload: Payload<Encrypted>) {
        self.1.says(&mut shards.of[self.0], payload, Time::ZERO);
        shards.settle();
    }

    fn hears(&mut self, shards: &mut Shards) -> (Vec<(Is, Vec<u8>)>, bool) {
        self.1.hears(&mut shards.of[self.0])
    }

    fn ends(&mut self, shards: &mut Shards) {
        let cell = Cell { circ: self.1.circ, command: Command::Destroy, body: Encrypted::empty() };
        shards.of[self.0].cell(Time::ZERO, self.1.channel, cell);
        shards.settle();
    }

    /// Sends a body beyond the relay, which `to` gets.
    fn sends(&mut self, shards: &mut Shards, to: &mut At, sent: [u8; 509]) {
        let mut body = Body::from(sent);
        // At a client's end these calls add and remove the layer, without a message for the relay.
        assert_eq!(Encrypted::peel(&mut self.1.hops[0], false, &mut body), Ok(None));
        let cell = Cell { circ: self.1.circ, command: Command::Relay, body };
        shards.of[self.0].cell(Time::ZERO, self.1.channel, cell);
        shards.settle();
        let mut cells = Taken::default();
        shards.of[to.0].drain(Time::ZERO, to.1.channel, &mut cells);
        let mut cell = cells.0.pop().expect("it crosses");
        assert_eq!((cell.circ, cell.command), (to.1.circ, Command::Relay));
        Encrypted::wrap(&mut to.1.hops[0], &mut cell.body);
        assert_eq!(*cell.body.0, sent);
    }
}

#[test]
fn circuits_of_any_two_shards_meet_at_a_rendezvous_point() {
    for (near, far, cookie) in (0..27).map(|n: usize| (n % 3, n / 3 % 3, [n as u8; 20])) {
        let mut shards = Shards::new(3);
        let mut client = At::new(&mut shards, near, 1, None);
        let mut service = At::new(&mut shards, far, 2, Some(7));
        client.asks(&mut shards, Is::EstablishRendezvous, &cookie);
        assert_eq!(client.hears(&mut shards), (vec![(Is::RendezvousEstablished, Vec::new())], false));
        service.asks(&mut shards, Is::Rendezvous1, &[&cookie[..], &[5; 64]].concat());
        assert_eq!(client.hears(&mut shards), (vec![(Is::Rendezvous2, vec![5; 64])], false));
        assert_eq!(shards.circuits(), 2, "from {near} and {far}");
        for round in 0..6u8 {
            let sent: [u8; 509] = std::array::from_fn(|n| (n as u8).wrapping_mul(7 + round));
            let (from, to) =
                if round % 2 == 0 { (&mut client, &mut service) } else { (&mut service, &mut client) };
            from.sends(&mut shards, to, sent);
        }
        // Neither an unknown nor a used cookie is answered, on any shard.
        for shard in 0..3 {
            let mut late = At::new(&mut shards, shard, 10 + shard as u32, Some(9));
            late.asks(&mut shards, Is::Rendezvous1, &[&cookie[..], &[5; 64]].concat());
            assert_eq!(late.hears(&mut shards), (Vec::new(), true));
        }
        client.ends(&mut shards);
        assert!(service.hears(&mut shards).1);
        assert_eq!((shards.circuits(), shards.of.iter().map(Relay::memory).sum::<u64>()), (0, 0));
        let closed =
            [Ending::ClientSide, Ending::JoinedCircuit, Ending::WrongRendezvous].map(Ending::counter);
        assert_eq!(shards.closed(), BTreeMap::from_iter(closed.into_iter().zip([1, 1, 3])), "each once");
    }
}

#[test]
fn introductions_reach_a_service_of_another_shard() {
    for (at, key) in (0..9).map(|n: usize| (n % 3, n as u8)) {
        let mut shards = Shards::new(3);
        let mut service = At::new(&mut shards, at, 1, Some(7));
        service.1.establishes(&mut shards.of[at], key, &[0]);
        shards.settle();
        assert_eq!(service.hears(&mut shards), (vec![(Is::IntroEstablished, vec![0])], false));
        for shard in 0..3 {
            let mut client = At::new(&mut shards, shard, 10 + shard as u32, Some(8));
            client.asks(&mut shards, Is::Introduce1, &introduction(key, 100));
            assert_eq!(client.hears(&mut shards), (vec![(Is::IntroduceAck, vec![0, 0, 0])], false));
            assert_eq!(service.hears(&mut shards), (vec![(Is::Introduce2, introduction(key, 100))], false));
            client.asks(&mut shards, Is::Introduce1, &introduction(key, 100));
            assert!(client.hears(&mut shards).1, "a second one on this circuit");
            // A client without other relays in front of it.
            let mut alone = At::new(&mut shards, shard, 20 + shard as u32, None);
            alone.asks(&mut shards, Is::Introduce1, &introduction(key, 100));
            assert!(alone.hears(&mut shards).1);
        }
        // The service comes again, on another shard.
        let other = (at + 1) % 3;
        let mut again = At::new(&mut shards, other, 3, Some(7));
        again.1.establishes(&mut shards.of[other], key, &[0]);
        shards.settle();
        assert!(service.hears(&mut shards).1, "it is replaced");
        assert!(!again.hears(&mut shards).1);
    }
}

#[test]
fn linked_circuits_of_two_shards_carry_one_stream() {
    for nonce in 0..6 {
        let mut shards = Shards::new(2);
        let link = Link { nonce: [nonce; 32], sent: 0, delivered: 0, wish: Wish::Throughput };
        // Even numbers: Counter Galois Onion, with congestion control.
        let mut legs = [0, 1].map(|shard| At::new(&mut shards, shard, 2 + 2 * shard as u32, Some(7)));
        for At(shard, leg) in &mut legs {
            leg.says(&mut shards.of[*shard], Payload::Link(Box::new(link)), Time::ZERO);
            shards.settle();
            let (heard, closed) = leg.receives(&mut shards.of[*shard]);
            assert!(matches!(&heard[..], [Payload::Linked(ours)] if ours.nonce == [nonce; 32]), "{heard:?}");
            assert!(!closed);
            leg.says(&mut shards.of[*shard], Payload::LinkedAck, Time::ZERO);
            shards.settle();
        }
        let target = Target::parse("192.0.2.1:80", 0).unwrap();
        legs[0].says(&mut shards, Payload::Begin(target));
        for (leg, bytes) in [(0, 100), (1, 200), (0, 50)] {
            let switch = if leg == 1 || bytes == 50 {
                Some(Payload::Switch(2 - u32::from(bytes == 50)))
            } else {
                None
            };
            if let Some(switch) = switch {
                legs[leg].says(&mut shards, switch);
            }
            legs[leg].says(&mut shards, Payload::Data(bytes, vec![1; bytes.into()].into()));
        }
        let delivered = shards.delivered.clone();
        assert_eq!(delivered.iter().sum::<u64>(), 350);
        assert!(delivered.contains(&0), "one shard has the stream");
        for leg in &mut legs {
            leg.ends(&mut shards);
            leg.1.receives(&mut shards.of[leg.0]);
        }
        assert_eq!((shards.circuits(), shards.of.iter().map(Relay::memory).sum::<u64>()), (0, 0));
    }
}

#[test]
fn circuits_per_address_count_on_all_shards() {
    let mut shards = Shards::new(2);
    let limits = Limits { circuits_per_address: 3, ..Limits::default() };
    shards.of.iter_mut().for_each(|shard| shard.set_limits(limits));
    let ways: Vec<_> = shards.of.iter_mut().map(|shard| channel(shard, 1, Some(7))).collect();
    let mut parties: Vec<Party> =
        (0..3).map(|n| Party::new(&mut shards.of[n % 2], ways[n % 2], 1 + n as u32, false)).collect();
    let refused = |shards: &mut Shards, circ: u32| {
        (0..2).all(|shard| {
            let cell = Cell {
                circ: tidegate_proto::cell::CircId(1 << 31 | circ),
                command: Command::Create,
                body: Encrypted::empty(),
            };
            shards.of[shard].cell(Time::ZERO, ways[shard], cell);
            let mut cells = Taken::default();
            shards.of[shard].drain(Time::ZERO, ways[shard], &mut cells);
            cells.0.iter().any(|cell| cell.command == Command::Destroy && cell.body.0[0] == 5)
        })
    };
    assert!(refused(&mut shards, 50));
    // A circuit still counts once after its end has moved to another shard, until the circuit ends.
    for cookie in 0..2 {
        let mut party = At(0, parties.remove(0));
        party.0 = usize::from(party.1.circ.0.is_multiple_of(2));
        party.asks(&mut shards, Is::EstablishRendezvous, &[cookie; 20]);
        assert!(refused(&mut shards, 60));
        party.ends(&mut shards);
        let way = ways[1];
        parties.push(Party::new(&mut shards.of[1], way, 70 + u32::from(cookie), false));
        assert!(refused(&mut shards, 80));
    }
}

#[test]
fn clients_cannot_switch_circuits_of_a_relay_with_shards() {
    let mut shards = Shards::new(2);
    let mut party = At::new(&mut shards, 0, 1, Some(7));
    party.says(&mut shards, Payload::Join(Nonce([1; 8])));
    assert!(party.hears(&mut shards).1);
    assert_eq!(shards.closed(), BTreeMap::from([(Ending::WrongMove.counter(), 1)]));
    // A circuit with a stream cannot meet others on another shard.
    for cookie in 0..4 {
        let mut party = At::new(&mut shards, 0, 3, Some(7));
        party.says(&mut shards, Payload::Begin(Target::Directory));
        party.1.receives(&mut shards.of[0]);
        let circuits = shards.circuits();
        party.asks(&mut shards, Is::EstablishRendezvous, &[cookie; 20]);
        let closed = party.hears(&mut shards).1;
        // On the circuit's own shard, the stream and the role exclude each other later.
        assert!(closed == (shards.circuits() < circuits) && closed == (cookie % 2 == 1), "{cookie}");
    }
}
