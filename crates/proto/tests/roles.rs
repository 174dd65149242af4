//! Every role gets messages and cells in any order from peers that know the keys: nothing panics, every measurement ends,
//! and a role's memory and output per message are bounded. Relays are in `hostile.rs`.

use crate::taken;
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_control::flashflow::Percent;
use tidegate_control::machine::Machine;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{CELL_BYTES, Cell, CircId, Command, RelayId};
use tidegate_proto::client::Client;
use tidegate_proto::crypto::layer::{Body, Layer};
use tidegate_proto::crypto::ntor::{self, RelaySecret};
use tidegate_proto::crypto::{Encrypted, Target as Address};
use tidegate_proto::flashflow::coordinator::{self, Measurement, Order, Peer, Timeouts};
use tidegate_proto::flashflow::measurer::{self, Measurer};
use tidegate_proto::flashflow::relay::{self, Target};
use tidegate_proto::flashflow::{MeasurerId, Message, Open, Params, Reason};
use tidegate_proto::links::{ChannelId, Config};
use tidegate_proto::node::{CircuitKey, Node as _, Output};
use tidegate_proto::onion::Onion as _;

use taken::Taken;

const TEAM: usize = 2;
const SECONDS: u16 = 3;

fn open() -> Open {
    Open {
        token: [9; 16],
        seconds: SECONDS,
        sockets: 2,
        rate: 1_000_000,
        check_one_in: 125,
        address: "127.0.0.1:9001".parse().unwrap(),
        fingerprint: [4; 32],
        relay: *RelaySecret::new([1; 20], [2; 32]).public(),
    }
}

fn params(seconds: u16) -> Params {
    let measurers =
        (0..TEAM).map(|i| MeasurerId { fingerprint: [20 + i as u8; 32], address: None }).collect();
    Params { token: [9; 16], seconds, background: 25, measurers }
}

/// Any message of the measurement protocol, often with valid numbers.
fn message() -> impl Strategy<Value = Message> {
    let second = || prop_oneof![1u16..5, any::<u16>()];
    prop_oneof![
        prop_oneof![Just(SECONDS), any::<u16>()].prop_map(|seconds| Message::Params(params(seconds))),
        Just(Message::ParamsOk),
        (second(), any::<u32>(), any::<u32>()).prop_map(|(second, sent, received)| Message::Background {
            second,
            sent,
            received
        }),
        Just(Message::Failed(Reason::Other)),
        (any::<u16>(), any::<u64>()).prop_map(|(sockets, rate)| Message::Open(Open {
            sockets,
            rate,
            ..open()
        })),
        Just(Message::Open(open())),
        prop_oneof![0u16..4, any::<u16>()].prop_map(|opened| Message::Ready { opened }),
        Just(Message::Go),
        (second(), prop_oneof![0u64..200_000, any::<u64>()], any::<u32>())
            .prop_map(|(second, bytes, checked)| Message::Count { second, bytes, checked }),
        Just(Message::Stop),
    ]
}

/// A peer, its message, and the delay in milliseconds. `None` stands for a connection that opens, closes, or sends
/// garbage.
fn events() -> impl Strategy<Value = Vec<(u8, Option<Message>, u64)>> {
    vec((0u8..9, proptest::option::weighted(0.8, message()), 0u64..1500), 0..60)
}

/// Messages in the right order, so that every phase is reached; the events follow.
fn polled<M: Machine>(machine: &mut M) -> Vec<M::Output> {
    std::iter::from_fn(|| machine.poll()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn a_coordinator_ends_under_any_messages_of_its_peers(honest in 0usize..5, said in events()) {
        let order = Order {
            params: params(SECONDS),
            shares: vec![open(); TEAM],
            ratio: Percent::new(25).unwrap(),
            timeouts: Timeouts::default(),
        };
        let mut now = Time::ZERO;
        let mut machine = Measurement::new(now, order);
        let peers = || [Peer::Relay, Peer::Measurer(0), Peer::Measurer(1)];
        if honest > 0 {
            peers().into_iter().for_each(|peer| machine.connected(now, peer));
        }
        if honest > 1 {
            machine.message(now, Peer::Relay, Message::ParamsOk);
        }
        if honest > 2 {
            (0..TEAM).for_each(|i| machine.message(now, Peer::Measurer(i), Message::Ready { opened: 2 }));
        }
        let mut outcomes = 0;
        let count = |machine: &mut Measurement| {
            let outputs = polled(machine);
            // At most one message to each peer, the reports per second, and the end.
            assert!(outputs.len() <= 2 * (TEAM + 1) + usize::from(SECONDS) + 1, "{outputs:?}");
            outputs.iter().filter(|output| matches!(output, coordinator::Output::Done(_))).count()
        };
        for (which, message, later) in said {
            now += Span::from_millis(later);
            machine.timeout(now);
            let peer = peers()[usize::from(which) % 3];
            match (message, which) {
                (Some(message), _) => machine.message(now, peer, message),
                (None, 0..3) => machine.connected(now, peer),
                (None, 3..6) => machine.lost(peer),
                (None, _) => machine.garbage(peer),
            }
            outcomes += count(&mut machine);
        }
        // All phases are over a minute later at the latest.
        for _ in 0..600 {
            now += Span::from_millis(100);
            machine.timeout(now);
            outcomes += count(&mut machine);
        }
        prop_assert_eq!(outcomes, 1);
        prop_assert_eq!(machine.next_timeout(), None);
    }

    #[test]
    fn a_measurer_ends_under_any_messages_of_its_coordinator(said in events()) {
        let (mut now, mut machine) = (Time::ZERO, Measurer::new());
        let (mut opening, mut loading) = (false, false);
        for (which, message, later) in said.into_iter().chain((0..100).map(|_| (8, None, 1000))) {
            now += Span::from_millis(later);
            machine.timeout(now);
            match (message, which) {
                (Some(message), _) => machine.message(now, message),
                (None, 0..3) if opening => machine.opened(now),
                (None, 3..5) if opening => machine.not_opened(now),
                (None, 5..7) => machine.echoed(u64::from(which) << 50, u32::MAX),
                (None, 7) => machine.failed(Reason::WrongEcho),
                (None, _) => {}
            }
            let outputs = polled(&mut machine);
            // A late timeout sends one report per missed second, and at most one per second of the order.
            prop_assert!(outputs.len() <= 8, "{outputs:?}");
            for output in outputs {
                match output {
                    measurer::Output::Connect(_) => opening = true,
                    measurer::Output::Load => {
                        prop_assert!(opening, "load starts with circuits only");
                        loading = true;
                    }
                    measurer::Output::Disconnect => (opening, loading) = (false, false),
                    measurer::Output::Send(_) => {}
                }
            }
        }
        prop_assert!(!loading && !opening, "the measurer has closed its circuits");
    }

    #[test]
    fn a_relay_obeys_known_coordinators_for_a_limited_time(said in events()) {
        let config = relay::Config { allowed: true, coordinators: vec![[1; 32]], ..relay::Config::default() };
        let (mut now, mut machine) = (Time::ZERO, Target::new(config.clone()));
        for (which, message, later) in said {
            now += Span::from_millis(later);
            machine.timeout(now);
            let (connection, knows) = (u64::from(which % 3), which % 2 == 0);
            let busy = machine.is_busy();
            match (message, which) {
                (Some(message), _) => machine.message(now, connection, &[if knows { 1 } else { 2 }; 32], &message),
                (None, 0..3) => machine.lost(now, connection),
                (None, 3..6) => assert_eq!(machine.echo(now), busy),
                (None, _) => machine.background(u64::MAX >> 8, 7),
            }
            prop_assert!(busy || knows || !machine.is_busy(), "an unknown peer starts nothing");
            let outputs = polled(&mut machine);
            prop_assert!(outputs.len() <= 8, "{outputs:?}");
        }
        now += config.max_duration;
        machine.timeout(now);
        prop_assert!(!machine.is_busy());
    }
}

/// A client with a one-hop circuit and a stream, and the guard's layer towards the client.
fn client() -> (Client<Encrypted>, ChannelId, CircId, Layer) {
    let (mut client, key, channel, circ, backward) = built();
    let address = Address::parse("192.0.2.7:80", 0).unwrap();
    client.open(Time::ZERO, key, address).expect("the circuit is there");
    (client, channel, circ, backward)
}

/// A client with a one-hop circuit, its channel and circuit id, and the guard's layer towards the client.
pub fn built() -> (Client<Encrypted>, CircuitKey, ChannelId, CircId, Layer) {
    let secret = RelaySecret::new([1; 20], [2; 32]);
    let known = BTreeMap::from([(RelayId(1), *secret.public())]);
    let config = Config { unread_limit: 64, ..Config::default() };
    let mut client = Client::new(Encrypted::new(None, known, [3; 32]), config);
    let key = client.build(Time::ZERO, vec![RelayId(1)]);
    let channel = polled(&mut client)
        .into_iter()
        .find_map(|output| if let Output::OpenChannel(channel, _) = output { Some(channel) } else { None })
        .expect("it wants its guard");
    client.channel_opened(Time::ZERO, channel);
    let mut taken = Taken::default();
    client.drain(Time::ZERO, channel, &mut taken);
    let create = taken.0.pop().expect("a circuit begins");
    let skin = create.body.0[4..88].try_into().unwrap();
    let (keys, reply) = ntor::answer(&secret, skin, [5; 32]).unwrap();
    let mut body = [0; 509];
    body[1] = 64;
    body[2..66].copy_from_slice(&reply);
    let created = Cell { circ: create.circ, command: Command::Created, body: Body::from(body) };
    client.cell(Time::ZERO, channel, created);
    assert!(polled(&mut client).iter().any(|output| matches!(output, Output::CircuitBuilt(_))));
    (client, key, channel, create.circ, Layer::new(&keys.backward, &keys.backward_digest))
}

const COMMANDS: [Command; 12] = [
    Command::Create,
    Command::Created,
    Command::CreateFast,
    Command::CreatedFast,
    Command::Relay,
    Command::Early,
    Command::Destroy,
    Command::Leave,
    Command::Join,
    Command::Congested,
    Command::Plan,
    Command::Relay,
];

/// An action of the guard: a message under the circuit's keys, or any cell.
#[derive(Clone, Debug)]
enum Does {
    Says(u8, u16, Vec<u8>),
    Sends(usize, bool, Vec<u8>),
}

fn does() -> impl Strategy<Value = Does> {
    let bytes = || vec(any::<u8>(), 0..498);
    prop_oneof![
        12 => (prop_oneof![Just(2u8), Just(4), Just(5), 0u8..44, any::<u8>()], 0u16..3, bytes())
            .prop_map(|(command, stream, data)| Does::Says(command, stream, data)),
        1 => (0..COMMANDS.len(), any::<bool>(), bytes()).prop_map(|(n, ours, data)| Does::Sends(n, ours, data)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// A guard sends anything and reads nothing.
    #[test]
    fn a_client_holds_little_for_a_guard_that_reads_nothing(
        doing in vec(does(), 1..80), again in 1usize..40,
    ) {
        let (mut client, channel, circ, mut backward) = client();
        let buffer = u64::from(Config::default().output_buffer.high_bytes);
        let bound = buffer + u64::from(CELL_BYTES) * 130;
        for (n, does) in doing.iter().cycle().take(doing.len() * again).enumerate() {
            let now = Time(n as u64 * 1_000_000);
            let mut body = [0; 509];
            let cell = match does {
                Does::Says(command, stream, data) => {
                    body[0] = *command;
                    body[3..5].copy_from_slice(&stream.to_be_bytes());
                    body[9..11].copy_from_slice(&(data.len() as u16).to_be_bytes());
                    body[11..11 + data.len()].copy_from_slice(data);
                    backward.seal(&mut body);
                    Cell { circ, command: Command::Relay, body: Body::from(body) }
                }
                Does::Sends(which, ours, data) => {
                    body[..data.len()].copy_from_slice(data);
                    let circ = if *ours { circ } else { CircId(circ.0 ^ 5) };
                    let (command, body) = match COMMANDS[*which] {
                        command @ (Command::Leave | Command::Join) => (command, Encrypted::from_plain(vec![7; 8])),
                        command => (command, Body::from(body)),
                    };
                    Cell { circ, command, body }
                }
            };
            client.cell(now, channel, cell);
            let (queued, buffered) = client.waiting();
            let held = queued * u64::from(CELL_BYTES) + buffered;
            prop_assert!(held <= bound, "{held} bytes after {n} cells");
            let outputs = polled(&mut client);
            prop_assert!(outputs.len() < 16, "{outputs:?}");
            if outputs.iter().any(|output| matches!(output, Output::CloseChannel(id) if *id == channel)) {
                break;
            }
        }
    }
}
