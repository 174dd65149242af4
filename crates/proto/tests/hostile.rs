//! Hostile neighbours that send anything and read nothing: the relay's memory and work are bounded.

use crate::taken;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proptest::prelude::*;
use tidegate_control::machine::Machine as _;
use tidegate_control::random::Seed;
use tidegate_control::units::{Bytes, Span, Time};
use tidegate_proto::cell::{CELL_BYTES, Cell, CircId, Command, RelayId};
use tidegate_proto::crypto::layer::{Body, Layer};
use tidegate_proto::crypto::ntor::{ClientHandshake, RelaySecret};
use tidegate_proto::crypto::{Encrypted, Router, SharedNames};
use tidegate_proto::defence::{Counted, Defence, DefenceParameters};
use tidegate_proto::links::{ChannelId, Config, Limits};
use tidegate_proto::node::{Node as _, Output};
use tidegate_proto::onion::Onion as _;
use tidegate_proto::relay::Relay;

use taken::Taken;

const CIRCUITS: u32 = 32;
const UNREAD: u32 = 64;
/// Cells of a neighbour.
const FLOOD: u32 = 3_000;

fn body(bytes: &[u8]) -> Body {
    let mut body = [0; 509];
    body[..bytes.len()].copy_from_slice(bytes);
    Body::from(body)
}

/// A CREATE2 cell with ntor.
fn create(skin: &[u8]) -> Body {
    body(&[&[0, 2], &(skin.len() as u16).to_be_bytes(), skin].concat())
}

/// Largest number of bytes that a relay holds for a neighbour that sends cells of `next` and reads nothing.
fn most_held(next: impl FnMut(u32) -> (u32, Command, Body)) -> u64 {
    flooded(next).0
}

/// The same, with the largest number of circuits at one time.
fn flooded(mut next: impl FnMut(u32) -> (u32, Command, Body)) -> (u64, usize) {
    let secret = RelaySecret::new([1; 20], [2; 32]);
    let onion = Encrypted::new(Some(secret), BTreeMap::new(), [3; 32]);
    let config = Config { circuits_per_channel: CIRCUITS, unread_limit: UNREAD, ..Config::default() };
    let mut relay = Relay::new(onion, config);
    let channel = relay.channel_accepted(None);
    let mut most = 0;
    let mut begun = 0;
    for n in 0..FLOOD {
        let (circ, command, mut body) = next(n);
        if matches!(command, Command::Leave | Command::Join) {
            body = Encrypted::from_plain(vec![7; 8]);
        }
        begun = begun.max(relay.circuits());
        relay.cell(Time(u64::from(n)), channel, Cell { circ: CircId(circ), command, body });
        let (queued, buffered) = relay.waiting();
        most = most.max(queued * u64::from(CELL_BYTES) + buffered);
        let mut closed = false;
        while let Some(output) = relay.poll() {
            closed |= matches!(output, Output::CloseChannel(id) if id == channel);
        }
        if closed {
            assert_eq!(relay.waiting(), (0, 0), "with the channel goes what waited for it");
            assert_eq!(relay.circuits(), 0);
            break;
        }
    }
    (most, begun)
}

/// An answer for each circuit, a full output buffer, and the unread output beyond it.
fn bound() -> u64 {
    let buffer = u64::from(Config::default().output_buffer.high_bytes);
    buffer + u64::from(CIRCUITS + UNREAD + 2) * u64::from(CELL_BYTES)
}

const COMMANDS: [Command; 7] = [
    Command::Create,
    Command::Created,
    Command::Relay,
    Command::Destroy,
    Command::Leave,
    Command::Join,
    Command::Congested,
];

#[test]
fn every_command_by_itself_is_bounded() {
    for command in COMMANDS {
        // Circuit ids of the channel's opener have the highest bit set.
        let held = most_held(|n| (1 << 31 | (n + 1), command, body(&n.to_be_bytes())));
        assert!(held <= bound(), "{command:?}: {held}");
    }
}

#[test]
fn circuits_that_are_begun_and_broken_are_bounded() {
    let keys = *RelaySecret::new([1; 20], [2; 32]).public();
    let (held, begun) = flooded(|n| {
        let circ = 1 << 31 | (n / 2 + 1);
        if n % 2 == 0 {
            let (_, skin) = ClientHandshake::start(keys, [n as u8; 32]);
            (circ, Command::Create, create(&skin))
        } else {
            // This is not a message.
            (circ, Command::Relay, body(&[9; 509]))
        }
    });
    assert!(begun > 0, "they were begun");
    assert!(held <= bound(), "{held}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_sequence_is_bounded(seed: u64, circuits in 1u32..100) {
        let keys = *RelaySecret::new([1; 20], [2; 32]).public();
        let mut random = Seed::root(seed).random();
        let held = most_held(|n| {
            let circ = 1 << 31 | (random.below(circuits as usize) as u32 + 1);
            let command = COMMANDS[random.below(COMMANDS.len())];
            let (_, skin) = ClientHandshake::start(keys, [n as u8; 32]);
            let honest = command == Command::Create && random.chance(0.7);
            (circ, command, if honest { create(&skin) } else { body(&random.bits().to_be_bytes()) })
        });
        prop_assert!(held <= bound(), "{}", held);
    }
}

const RELAY: [u8; 20] = [1; 20];

fn named(address: [u8; 4]) -> Router {
    Router { address: SocketAddr::from((address, 9001)), fingerprint: [address[3]; 20], ed25519: None }
}

fn relay(config: Config) -> Relay<Encrypted> {
    let onion = Encrypted::new(Some(RelaySecret::new(RELAY, [2; 32])), BTreeMap::new(), [3; 32]);
    Relay::new(onion.with_names(SharedNames::default()), config)
}

fn limited(limits: Limits) -> Config {
    Config { limits: Some(limits), ..Config::default() }
}

fn outputs(relay: &mut Relay<Encrypted>) -> Vec<Output<Encrypted>> {
    std::iter::from_fn(|| relay.poll()).collect()
}

fn read(relay: &mut Relay<Encrypted>, now: Time, channel: ChannelId) -> Vec<Cell<Encrypted>> {
    let mut cells = Taken::default();
    relay.drain(now, channel, &mut cells);
    cells.0
}

/// A client with a circuit of one hop that sends arbitrary messages.
pub struct Client {
    channel: ChannelId,
    circ: CircId,
    forward: Layer,
}

impl Client {
    fn new(relay: &mut Relay<Encrypted>, now: Time, channel: ChannelId, circ: u32) -> Option<Client> {
        let keys = *RelaySecret::new(RELAY, [2; 32]).public();
        let (handshake, skin) = ClientHandshake::start(keys, [7; 32]);
        let circ = CircId(1 << 31 | circ);
        relay.cell(now, channel, Cell { circ, command: Command::Create, body: create(&skin) });
        let mine = |cell: &Cell<Encrypted>| cell.circ == circ && cell.command == Command::Created;
        let created = read(relay, now, channel).into_iter().find(mine)?;
        let keys = handshake.finish(created.body.0[2..66].try_into().unwrap()).unwrap();
        Some(Client { channel, circ, forward: Layer::new(&keys.forward, &keys.forward_digest) })
    }

    pub fn says(&mut self, relay: &mut Relay<Encrypted>, now: Time, early: bool, said: (u8, u16, &[u8])) {
        let (command, stream, data) = said;
        let mut bytes = [0; 509];
        bytes[0] = command;
        bytes[3..5].copy_from_slice(&stream.to_be_bytes());
        bytes[9..11].copy_from_slice(&(data.len() as u16).to_be_bytes());
        bytes[11..11 + data.len()].copy_from_slice(data);
        self.forward.seal(&mut bytes);
        let command = if early { Command::Early } else { Command::Relay };
        relay.cell(now, self.channel, Cell { circ: self.circ, command, body: Body::from(bytes) });
    }
}

/// EXTEND2 to a router.
fn extend(router: Router) -> Vec<u8> {
    let SocketAddr::V4(address) = router.address else { unreachable!() };
    let mut data = vec![2, 0, 6];
    data.extend(address.ip().octets());
    data.extend(address.port().to_be_bytes());
    data.extend([2, 20]);
    data.extend(router.fingerprint);
    data.extend([0, 2, 0, 84]);
    data.extend([5; 84]);
    data
}

const BEGIN: u8 = 1;
const DATA: u8 = 2;
const SENDME: u8 = 5;
const EXTEND2: u8 = 14;
const DROP: u8 = 10;

fn from(n: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, n).into()
}

/// A relay with a connection from an address, and a client's circuit on it.
pub fn with_client(limits: Limits) -> (Relay<Encrypted>, Client) {
    let mut relay = relay(limited(limits));
    let channel = relay.channel_accepted(None);
    relay.channel_is_from(Time::ZERO, channel, from(1));
    let client = Client::new(&mut relay, Time::ZERO, channel, 1).unwrap();
    (relay, client)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A client repeats one kind of message, complete or not, on any streams, and reads nothing.
    #[test]
    fn any_message_is_bounded(
        command: u8, early: bool,
        said in proptest::collection::vec((0u16..6, proptest::collection::vec(any::<u8>(), 0..498)), 1..300),
    ) {
        let limits = Limits { memory: Bytes(200_000), ..Limits::default() };
        let (mut relay, mut client) = with_client(limits);
        client.says(&mut relay, Time::ZERO, false, (BEGIN, 1, b"192.0.2.7:80\0"));
        for (stream, data) in &said {
            client.says(&mut relay, Time::ZERO, early, (command, *stream, data));
            prop_assert!(relay.memory() <= limits.memory.0);
            let said = outputs(&mut relay);
            let opened = said.iter().filter(|output| matches!(output, Output::OpenChannel(..))).count();
            prop_assert!(opened <= 1 && said.len() < 16, "{said:?}");
        }
    }
}

#[test]
fn a_circuit_ends_with_the_ninth_early_cell_and_not_before() {
    let (mut relay, mut client) = with_client(Limits::default());
    for _ in 0..8 {
        client.says(&mut relay, Time::ZERO, true, (DROP, 0, &[]));
    }
    assert_eq!(relay.circuits(), 1);
    client.says(&mut relay, Time::ZERO, true, (DROP, 0, &[]));
    assert_eq!(relay.circuits(), 0);
}

#[test]
fn unsolicited_sendmes_end_the_circuit() {
    for (opened, stream, data) in
        [(false, 0, &[][..]), (true, 0, &[]), (true, 0, &[1, 0, 20]), (true, 1, &[]), (true, 0, &[0; 9])]
    {
        let (mut relay, mut client) = with_client(Limits::default());
        if opened {
            client.says(&mut relay, Time::ZERO, false, (BEGIN, 1, b"192.0.2.7:80\0"));
        }
        assert_eq!(relay.circuits(), 1);
        client.says(&mut relay, Time::ZERO, false, (SENDME, stream, data));
        assert_eq!(relay.circuits(), 0, "{opened} {stream} {data:?}");
    }
}

#[test]
fn circuits_go_neither_to_the_relay_itself_nor_without_an_early_cell() {
    let itself = Router { fingerprint: RELAY, ..named([192, 0, 2, 9]) };
    let other = named([192, 0, 2, 9]);
    // As in tor: the first ends the circuit, the second is dropped.
    for (router, early, goes_on, stands) in
        [(other, true, true, true), (itself, true, false, false), (other, false, false, true)]
    {
        let (mut relay, mut client) = with_client(Limits::default());
        client.says(&mut relay, Time::ZERO, early, (EXTEND2, 0, &extend(router)));
        let opened = outputs(&mut relay).iter().any(|output| matches!(output, Output::OpenChannel(..)));
        assert_eq!((relay.circuits(), opened), (usize::from(stands), goes_on), "{router:?} {early}");
    }
}

#[test]
fn the_next_relay_must_answer_in_time() {
    let limits = Limits { extending: Span::from_secs(30), ..Limits::default() };
    let (mut relay, mut client) = with_client(limits);
    client.says(&mut relay, Time::ZERO, true, (EXTEND2, 0, &extend(named([192, 0, 2, 9]))));
    assert_eq!(relay.next_timeout(), Some(Time::ZERO + limits.extending));
    relay.timeout(Time::ZERO + Span::from_secs(29));
    assert_eq!(relay.circuits(), 1, "not too early");
    relay.timeout(Time::ZERO + limits.extending);
    assert_eq!(relay.circuits(), 0);
}

#[test]
fn connections_without_circuits_end_and_others_do_not() {
    let limits = Limits { without_circuits: Span::from_secs(100), ..Limits::default() };
    let (mut relay, client) = with_client(limits);
    let idle = relay.channel_accepted(None);
    relay.channel_is_from(Time::ZERO, idle, from(2));
    let mut closed = Vec::new();
    while let Some(due) = relay.next_timeout().filter(|due| *due <= Time::ZERO + Span::from_secs(1000)) {
        // The client pads all the time.
        relay.timeout(due);
        closed.extend(outputs(&mut relay).into_iter().filter_map(|output| match output {
            Output::CloseChannel(id) => Some((id, due)),
            _ => None,
        }));
    }
    assert_eq!(closed, [(idle, Time::ZERO + limits.without_circuits)]);
    assert_ne!(idle, client.channel);
}

#[test]
fn circuits_and_handshakes_are_limited_per_address() {
    let limits = Limits {
        circuits_per_address: 50,
        handshake_burst: 80,
        handshakes_per_second: 10,
        connections_per_address: 3,
        connections: 5,
        ..Limits::default()
    };
    let mut relay = relay(limited(limits));
    let mut channels = Vec::new();
    for n in 0..3 {
        assert!(!relay.turns_away(Time::ZERO, from(1)));
        let channel = relay.channel_accepted(None);
        relay.channel_is_from(Time::ZERO, channel, from(1));
        channels.push(channel);
        let begun = (1..=30).filter_map(|circ| Client::new(&mut relay, Time::ZERO, channel, circ)).count();
        assert_eq!(begun, [30, 20, 0][n]);
    }
    assert!(relay.turns_away(Time::ZERO, from(1)), "three connections are enough for anybody");
    // Another address has its own share.
    assert!(!relay.turns_away(Time::ZERO, from(2)));
    let other = relay.channel_accepted(None);
    relay.channel_is_from(Time::ZERO, other, from(2));
    assert!(Client::new(&mut relay, Time::ZERO, other, 1).is_some());
    // Circuits that end make room, as fast as the handshake limit allows.
    let later = Time::ZERO + Span::from_secs(1);
    relay.channel_closed(later, channels[0]);
    let begun = (31..=90).filter_map(|circ| Client::new(&mut relay, later, channels[1], circ)).count();
    assert_eq!(begun, 30, "of 80 handshakes 50 were used, and circuits are short of 50 by 30");
    relay.channel_closed(later, channels[1]);
    let begun = (1..=90).filter_map(|circ| Client::new(&mut relay, later, channels[2], circ)).count();
    assert_eq!(begun, 10, "what a second has brought");
}

#[test]
fn a_newcomer_takes_the_place_of_a_connection_without_circuits() {
    let (mut relay, client) = with_client(Limits { connections: 3, ..Limits::default() });
    let mut idle = Vec::new();
    for n in 2..4 {
        assert!(!relay.turns_away(Time(u64::from(n)), from(n)));
        idle.push(relay.channel_accepted(None));
        relay.channel_is_from(Time(u64::from(n)), *idle.last().unwrap(), from(n));
    }
    outputs(&mut relay);
    assert!(!relay.turns_away(Time(9), from(9)));
    assert_eq!(outputs(&mut relay), [Output::CloseChannel(idle[0])], "the oldest, and not the client's");
    assert_ne!(client.channel, idle[0]);
}

/// Clients of several circuits do not read, one client does; the server behind them sends without end.
#[test]
fn memory_pressure_ends_the_circuits_with_the_oldest_cells() {
    let limits = Limits { memory: Bytes(1 << 20), ..Limits::default() };
    let mut relay = relay(limited(limits));
    let mut clients = Vec::new();
    for n in 0..20 {
        let channel = relay.channel_accepted(None);
        relay.channel_is_from(Time::ZERO, channel, from(n));
        let mut client = Client::new(&mut relay, Time::ZERO, channel, 1).unwrap();
        client.says(&mut relay, Time::ZERO, true, (EXTEND2, 0, &extend(named([192, 0, 2, 99]))));
        clients.push(client);
    }
    let next = outputs(&mut relay).into_iter().find_map(|output| match output {
        Output::OpenChannel(channel, _) => Some(channel),
        _ => None,
    });
    let next = next.expect("all share a connection to the next relay");
    relay.channel_opened(Time::ZERO, next);
    let circs: Vec<CircId> = read(&mut relay, Time::ZERO, next).iter().map(|cell| cell.circ).collect();
    assert_eq!(circs.len(), clients.len());
    let mut created = [0; 66];
    created[1] = 64;
    for circ in &circs {
        relay.cell(Time::ZERO, next, Cell { circ: *circ, command: Command::Created, body: body(&created) });
    }
    let honest = clients.len() - 1;
    let (mut most, mut received) = (0, 0);
    for n in 0..20_000u64 {
        let at = n as usize % circs.len();
        relay.cell(Time(n), next, Cell { circ: circs[at], command: Command::Relay, body: body(&[]) });
        most = most.max(relay.memory());
        outputs(&mut relay);
        let read = read(&mut relay, Time(n), clients[honest].channel);
        received += read.iter().filter(|cell| cell.command == Command::Relay).count();
    }
    assert!(most <= limits.memory.0 + 1000, "{most}");
    assert!(relay.shed() > 0);
    assert_eq!(received, 1000 + 1, "who reads loses nothing, the answer to the extension included");
}

/// A stream's server does not read, while the client sends beyond all windows.
#[test]
fn who_sends_beyond_the_window_of_a_stream_that_is_not_read_loses_the_circuit() {
    let (mut relay, mut client) = with_client(Limits::default());
    client.says(&mut relay, Time::ZERO, false, (BEGIN, 1, b"192.0.2.7:80\0"));
    let stream = outputs(&mut relay).into_iter().find_map(|output| match output {
        Output::Connect(stream, _) => Some(stream),
        _ => None,
    });
    let stream = stream.expect("a stream is asked for");
    relay.stream_connected(Time::ZERO, stream);
    for n in 1..=500 {
        client.says(&mut relay, Time::ZERO, false, (DATA, 1, &[0; 498]));
        relay.backlog(Time::ZERO, stream, n * 498, n * 498);
        assert_eq!(relay.circuits(), 1, "{n}");
        assert!(relay.memory() >= n * 498, "what is held counts");
    }
    client.says(&mut relay, Time::ZERO, false, (DATA, 1, &[0; 498]));
    assert_eq!(relay.circuits(), 0);
}

/// Defences with these parameters of a consensus, the relay that obeys them, and a client's connection to it.
fn defended(stated: &'static [(&str, i32)]) -> (Defence, Relay<Encrypted>, ChannelId, Counted) {
    let defence = Defence::new(Seed::root(1));
    defence.set(DefenceParameters::of_consensus(|name| {
        stated.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }));
    let mut relay = relay(limited(Limits::default()));
    relay.defend_with(defence.clone());
    let counted = defence.connected(Time::ZERO, from(1)).expect("the first connection");
    let channel = relay.channel_accepted(None);
    relay.channel_is_from(Time::ZERO, channel, from(1));
    (defence, relay, channel, counted)
}

#[test]
fn circuits_of_a_client_beyond_the_consensus_are_refused() {
    let (defence, mut relay, channel, _counted) = defended(&[
        ("DoSCircuitCreationEnabled", 1),
        ("DoSCircuitCreationMinConnections", 1),
        ("DoSCircuitCreationBurst", 5),
    ]);
    let created =
        (1..20).filter(|circ| Client::new(&mut relay, Time::ZERO, channel, *circ).is_some()).count();
    assert_eq!((created, defence.refusals().circuits), (4, 15));
    // A relay at the same address carries circuits of many clients.
    let other = relay.channel_accepted(Some(RelayId(7)));
    relay.channel_is_from(Time::ZERO, other, from(1));
    assert!((20..40).all(|circ| Client::new(&mut relay, Time::ZERO, other, circ).is_some()));
}

/// Opens streams until one is refused. Returns how many were opened, and the relay's answer to the next.
fn streams_until_refused(
    defence: &'static [(&str, i32)],
    command: u8,
    target: &[u8],
) -> (usize, Vec<Command>) {
    let (_, mut relay, channel, _counted) = defended(defence);
    let mut client = Client::new(&mut relay, Time::ZERO, channel, 1).unwrap();
    for stream in 1..20 {
        client.says(&mut relay, Time::ZERO, false, (command, stream, target));
        let opened = outputs(&mut relay).iter().any(|output| matches!(output, Output::Connect(..)));
        let answers = read(&mut relay, Time::ZERO, channel).iter().map(|cell| cell.command).collect();
        if !opened {
            return (usize::from(stream) - 1, answers);
        }
    }
    (19, Vec::new())
}

#[test]
fn streams_of_a_circuit_beyond_the_consensus_are_refused() {
    const ON: (&str, i32) = ("DoSStreamCreationEnabled", 1);
    const BURST: (&str, i32) = ("DoSStreamCreationBurst", 3);
    const RESOLVE: u8 = 11;
    const BEGIN_DIR: u8 = 13;
    let begin = b"192.0.2.9:80\0\0\0\0\0";
    assert_eq!(streams_until_refused(&[ON, BURST], BEGIN, begin), (3, vec![Command::Relay]));
    assert_eq!(streams_until_refused(&[ON, BURST], RESOLVE, b"example\0"), (3, vec![Command::Relay]));
    let ends = &[ON, BURST, ("DoSStreamCreationDefenseType", 3)];
    assert_eq!(streams_until_refused(ends, BEGIN, begin), (3, vec![Command::Destroy]));
    assert_eq!(streams_until_refused(&[ON, BURST], BEGIN_DIR, b""), (19, Vec::new()), "as tor");
    assert_eq!(streams_until_refused(&[], BEGIN, begin), (19, Vec::new()));
}

#[test]
fn queues_are_as_long_as_the_consensus_says() {
    let (defence, mut relay, channel, _counted) = defended(&[
        ("DoSCircuitCreationEnabled", 1),
        ("dos_num_circ_max_outq", 1),
        ("circ_max_cell_queue_size_out", 60),
    ]);
    let mut client = Client::new(&mut relay, Time::ZERO, channel, 1).unwrap();
    client.says(&mut relay, Time::ZERO, true, (EXTEND2, 0, &extend(named([192, 0, 2, 50]))));
    let next = outputs(&mut relay).into_iter().find_map(|output| match output {
        Output::OpenChannel(channel, _) => Some(channel),
        _ => None,
    });
    let next = next.expect("it extends");
    relay.channel_opened(Time::ZERO, next);
    let created = read(&mut relay, Time::ZERO, next).pop().expect("CREATE");
    let answer = Cell { circ: created.circ, command: Command::Created, body: Body::from([0; 509]) };
    relay.cell(Time::ZERO, next, answer);
    // The next relay reads nothing. The output buffer takes some cells, the queue 60.
    let mut sent = 0;
    while relay.circuits() == 1 && sent < 5000 {
        let body = Body::from([sent as u8; 509]);
        relay.cell(Time::ZERO, channel, Cell { circ: CircId(1 << 31 | 1), command: Command::Relay, body });
        outputs(&mut relay);
        sent += 1;
    }
    assert!((60..200).contains(&sent), "{sent}");
    assert!(Client::new(&mut relay, Time::ZERO, channel, 2).is_none(), "its address is marked");
    assert_eq!(defence.refusals().circuits, 1);
}
