//! Storms of valid messages: the places and the work that they cost a relay.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_control::machine::Machine as _;
use tidegate_control::random::Seed;
use tidegate_control::units::{Span, Time};
use tidegate_proto::cell::{Cell, CircId, Command, Message, Payload, RelayId, StreamId};
use tidegate_proto::conflux::{Link, Wish};
use tidegate_proto::control::vegas::VegasParameters;
use tidegate_proto::links::{ChannelId, Config, Departure, Limits};
use tidegate_proto::node::{Budget, Node as _, Output, Sink, StreamKey};
use tidegate_proto::onion::{Clear, ClearBody, Onion as _, Stamp};
use tidegate_proto::relay::Relay;
use tidegate_proto::transport::Transport;

/// Takes all cells and counts those with data.
#[derive(Default)]
struct Counting(u32);

impl Sink<Clear> for Counting {
    fn budget(&mut self) -> Budget {
        Budget::Cells(100)
    }
    fn begin(&mut self, _: u32, _: u64) -> bool {
        true
    }
    fn write(&mut self, departure: Departure<Clear>) {
        self.0 += u32::from(matches!(departure.cell.body, ClearBody::Data { .. }));
    }
}

fn address(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, number).into()
}

/// A relay with limits, and its open connections.
struct Attacked {
    relay: Relay<Clear>,
    now: Time,
    /// Connections that the relay opened, in order, and those that are still open.
    opened: Vec<ChannelId>,
    open: BTreeSet<ChannelId>,
    /// Streams that wait for their server. It sends data without end.
    begun: Vec<StreamKey>,
    data: Counting,
    /// Calls that asked the relay to package a stream's data.
    packaged: u32,
}

impl Attacked {
    fn new(limits: Limits) -> Attacked {
        Attacked::with_transport(limits, Transport::Vanilla)
    }

    fn with_transport(limits: Limits, transport: Transport) -> Attacked {
        let control = Arc::new(VegasParameters::default());
        let nonces = Seed::root(3);
        let config = Config { control, transport, nonces, limits: Some(limits), ..Config::default() };
        let relay = Relay::new(Clear::default(), config);
        let (opened, open, begun, data) = Default::default();
        Attacked { relay, now: Time(1), opened, open, begun, data, packaged: 0 }
    }

    /// Carries out the relay's outputs.
    fn settle(&mut self) {
        while let Some(output) = self.relay.poll() {
            match output {
                Output::Flush(channel) => self.relay.drain(self.now, channel, &mut self.data),
                Output::Connect(stream, _) => self.begun.push(stream),
                Output::Package(stream, cells) => self.package(stream, cells),
                Output::OpenChannel(channel, _) => {
                    self.opened.push(channel);
                    self.open.insert(channel);
                }
                Output::CloseChannel(channel) => {
                    self.open.remove(&channel);
                }
                _ => {}
            }
        }
    }

    fn package(&mut self, stream: StreamKey, cells: u32) {
        self.packaged += 1;
        self.relay.package(self.now, stream, cells, &mut |most| Some((most, Stamp::default())));
    }

    /// A connection from an address.
    fn connection(&mut self, from: IpAddr) -> ChannelId {
        assert!(!self.relay.turns_away(self.now, from));
        let channel = self.relay.channel_accepted(None);
        self.relay.channel_is_from(self.now, channel, from);
        self.open.insert(channel);
        self.settle();
        channel
    }

    fn cell(&mut self, channel: ChannelId, circ: CircId, command: Command, body: ClearBody) {
        self.relay.cell(self.now, channel, Cell { circ, command, body });
        self.settle();
    }

    /// Begins a circuit as the neighbour that opened the connection.
    fn create(&mut self, channel: ChannelId, number: u32) -> CircId {
        let circ = CircId(1 << 31 | number);
        self.cell(channel, circ, Command::Create, ClearBody::Handshake(None));
        circ
    }

    fn say(&mut self, channel: ChannelId, circ: CircId, payload: Payload<Clear>) {
        let extends = matches!(payload, Payload::Extend(..));
        let command = if extends { Command::Early } else { Command::Relay };
        self.say_of(channel, circ, (0, command, payload));
    }

    fn say_of(&mut self, channel: ChannelId, circ: CircId, said: (u16, Command, Payload<Clear>)) {
        let (stream, command, payload) = said;
        let message = Box::new(Message { stream: StreamId(stream), payload });
        self.cell(channel, circ, command, ClearBody::Other { layers: 1, message });
    }

    fn extend(&mut self, channel: ChannelId, circ: CircId, to: u32) {
        self.say(channel, circ, Payload::Extend(RelayId(to), Clear::empty()));
    }

    /// Runs the timeouts until a time.
    fn until(&mut self, end: Time) {
        while let Some(due) = self.relay.next_timeout().filter(|due| *due <= end) {
            self.now = due;
            self.relay.timeout(due);
            self.settle();
        }
        self.now = end;
    }
}

/// A stranger extends 200 circuits to as many relays that it names.
#[test]
fn connections_that_circuits_ask_for_share_the_places_of_connections() {
    let mut attacked = Attacked::new(Limits { connections: 20, ..Limits::default() });
    let user = attacked.connection(address(1));
    let circ = attacked.create(user, 1);
    attacked.extend(user, circ, 1);
    let stranger = attacked.connection(address(2));
    for number in 1..=200 {
        attacked.now += Span::from_millis(1);
        let circ = attacked.create(stranger, number);
        attacked.extend(stranger, circ, 1000 + number);
        assert!(attacked.open.len() <= 20, "{} connections", attacked.open.len());
    }
    assert!(attacked.opened.len() > 100, "each circuit of the stranger asked for one");
    assert!(attacked.open.contains(&user) && attacked.open.contains(&attacked.opened[0]));
    assert!(attacked.relay.circuits() > 1, "the user's circuit and some of the stranger's stand");
    // Connections that no circuit needs end.
    attacked.cell(stranger, CircId(1 << 31 | 200), Command::Destroy, Clear::empty());
    let last = *attacked.opened.last().unwrap();
    assert!(attacked.open.contains(&last));
    attacked.until(attacked.now + Limits::default().without_circuits * 2);
    assert!(!attacked.open.contains(&last));
}

/// With PCTCP, a connection ends with its circuit, and another one gets its number.
#[test]
fn a_connection_that_ends_with_its_circuit_gives_its_place_back() {
    let limits = Limits { connections: 4, ..Limits::default() };
    let mut attacked = Attacked::with_transport(limits, Transport::PerCircuit);
    let user = attacked.connection(address(1));
    for number in 1..=20 {
        let circ = attacked.create(user, number);
        attacked.extend(user, circ, number);
        attacked.relay.channel_opened(attacked.now, attacked.opened[number as usize - 1]);
        attacked.settle();
        attacked.cell(user, circ, Command::Destroy, Clear::empty());
        assert_eq!(attacked.open, BTreeSet::from([user]));
    }
    assert_eq!(attacked.opened.len(), 20);
}

/// 200 addresses create circuits as fast as they may. A user creates one each second.
#[test]
fn key_exchanges_of_many_addresses_are_bounded_together() {
    let limits = Limits { all_handshakes_per_second: 400, ..Limits::default() };
    let mut attacked = Attacked::new(limits);
    let attackers: Vec<ChannelId> = (2..202).map(|n| attacked.connection(address(n))).collect();
    let user = attacked.connection(address(1));
    let mut of_user = 0;
    for second in 1..=10 {
        for round in 1..=10 {
            for (n, attacker) in attackers.iter().enumerate() {
                attacked.create(*attacker, second * 1000 + round * 20 + n as u32 % 7);
            }
            attacked.now += Span::from_millis(100);
        }
        let before = attacked.relay.circuits();
        attacked.create(user, second);
        of_user += attacked.relay.circuits() - before;
    }
    // The first second brings the burst, too.
    let of_others = attacked.relay.circuits() - of_user;
    assert!((4000..=4400).contains(&of_others), "{of_others} of 20,000");
    assert_eq!(of_user, 10);
}

/// A stranger extends a circuit to a relay of its own, which begins circuits on the connection that it gets.
#[test]
fn a_relay_that_circuits_reach_has_the_limits_of_its_address() {
    let limits = Limits { circuits_per_address: 50, handshake_burst: 80, ..Limits::default() };
    let mut attacked = Attacked::new(limits);
    let stranger = attacked.connection(address(2));
    let circ = attacked.create(stranger, 1);
    attacked.extend(stranger, circ, 7);
    let back = attacked.opened[0];
    attacked.relay.channel_is_at(attacked.now, back, address(3));
    attacked.relay.channel_opened(attacked.now, back);
    attacked.settle();
    let before = attacked.relay.circuits();
    for number in 1..=500 {
        attacked.cell(back, CircId(number), Command::Create, ClearBody::Handshake(None));
    }
    assert_eq!(attacked.relay.circuits() - before, 50);
    // Others have their own share.
    let user = attacked.connection(address(1));
    let before = attacked.relay.circuits();
    attacked.create(user, 1);
    assert_eq!(attacked.relay.circuits(), before + 1);
}

/// Idle circuits of many addresses fill the places of circuits. Users are other addresses, and a relay that brings circuits of
/// both.
#[test]
fn idle_circuits_of_strangers_make_room_for_circuits_in_use() {
    let limits = Limits { circuits: 100, ..Limits::default() };
    let mut attacked = Attacked::new(limits);
    let user = attacked.connection(address(1));
    let own = attacked.create(user, 1);
    let relay = attacked.connection(address(2));
    let used: Vec<CircId> = (1..=15).map(|number| attacked.create(relay, number)).collect();
    for number in 1..=200 {
        attacked.now += Span::from_millis(10);
        for circ in &used {
            attacked.say(relay, *circ, Payload::Nothing);
        }
        attacked.create(relay, 100 + number);
    }
    for stranger in 3..=6 {
        let stranger = attacked.connection(address(stranger));
        for number in 1..=200 {
            attacked.create(stranger, number);
        }
    }
    assert_eq!(attacked.relay.circuits(), 100);
    // A relay answers BEGIN on a circuit that it still has.
    for (channel, circ) in used.iter().map(|circ| (relay, *circ)).chain([(user, own)]) {
        attacked.say_of(channel, circ, (1, Command::Relay, Payload::Begin(7)));
    }
    assert_eq!(attacked.begun.len(), 15 + 1, "circuits in use and those of a small network stay");
}

/// How long this thread has waited for a processor (Linux, proc_pid_schedstat(5)); zero where it is unknown.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// The shortest of 5 measurements: pauses of the machine lengthen some of them.
fn shortest(measure: impl Fn() -> Duration) -> Duration {
    (0..5).map(|_| measure()).min().unwrap()
}

/// The processor time of ending a connection with this many circuits, linked in sets of eight.
#[expect(clippy::disallowed_methods, reason = "the processor time is the point")]
fn time_to_end(circuits: u32) -> Duration {
    let (handshake_burst, all_handshakes_per_second) = (u32::MAX, u32::MAX);
    let limits = Limits { handshake_burst, all_handshakes_per_second, ..Limits::default() };
    let mut attacked = Attacked::new(limits);
    let stranger = attacked.connection(address(2));
    for number in 0..circuits {
        let circ = attacked.create(stranger, number + 1);
        let mut nonce = [0; 32];
        nonce[..4].copy_from_slice(&(number / 8).to_be_bytes());
        let link = Link { nonce, sent: 0, delivered: 0, wish: Wish::Throughput };
        attacked.say(stranger, circ, Payload::Link(Box::new(link)));
    }
    assert_eq!(attacked.relay.circuits(), circuits as usize);
    let (begun, before) = (Instant::now(), waited());
    attacked.relay.channel_closed(attacked.now, stranger);
    attacked.settle();
    assert_eq!(attacked.relay.circuits(), 0);
    begun.elapsed().saturating_sub(waited() - before)
}

/// A stranger links as many circuits as an address may have, and ends its connection. Other circuits wait meanwhile.
#[test]
fn a_connection_with_many_linked_circuits_ends_in_linear_time() {
    let (few, many) = (shortest(|| time_to_end(2_000)), shortest(|| time_to_end(16_000)));
    eprintln!("2,000 linked circuits end in {few:?}, 16,000 in {many:?}");
    assert!(many < few * 30, "{few:?} for 2,000, {many:?} for 16,000");
}

/// A stranger's circuit with this many streams of endless data.
fn with_streams(streams: u16) -> (Attacked, ChannelId, CircId) {
    let mut attacked = Attacked::new(Limits::default());
    let stranger = attacked.connection(address(2));
    let circ = attacked.create(stranger, 1);
    for stream in 1..=streams {
        attacked.say_of(stranger, circ, (stream, Command::Relay, Payload::Begin(7)));
    }
    for stream in std::mem::take(&mut attacked.begun) {
        attacked.relay.stream_connected(attacked.now, stream);
        attacked.package(stream, u32::MAX);
        attacked.settle();
    }
    (attacked, stranger, circ)
}

/// Calls to package and processor time for each cell of a circuit with this many streams of endless data.
#[expect(clippy::disallowed_methods, reason = "the processor time is the point")]
fn work_per_cell(streams: u16) -> (f64, Duration) {
    let (mut attacked, stranger, circ) = with_streams(streams);
    let (begun, mut acknowledged) = (Instant::now(), 0);
    let (calls, cells) = (attacked.packaged, attacked.data.0);
    while attacked.data.0 - cells < 10_000 {
        attacked.now += Span::from_millis(1);
        assert!(attacked.data.0 >= acknowledged + 31, "the window lets cells through");
        acknowledged += 31;
        attacked.say(stranger, circ, Payload::Sendme(None));
    }
    let cells = attacked.data.0 - cells;
    (f64::from(attacked.packaged - calls) / f64::from(cells), begun.elapsed() / cells)
}

/// A stranger opens as many streams as a circuit may have, and reads all of their data.
#[test]
fn work_for_a_cell_of_a_circuit_with_thousands_of_streams_is_bounded() {
    let ((few, short), (many, long)) = (work_per_cell(4), work_per_cell(4096));
    eprintln!("{few:.2} calls and {short:?} a cell with 4 streams, {many:.2} and {long:?} with 4,096");
    assert!(many <= 2.0, "{many} calls for each cell");
}

/// Processor time for each XOFF or XON on a circuit with this many streams.
#[expect(clippy::disallowed_methods, reason = "the processor time is the point")]
fn work_per_signal(streams: u16) -> Duration {
    const SIGNALS: u32 = 100_000;
    let (mut attacked, stranger, circ) = with_streams(streams);
    let (begun, before) = (Instant::now(), waited());
    for number in 0..SIGNALS {
        let payload = if number % 2 == 0 { Payload::Xoff } else { Payload::Xon(number % 3) };
        let stream = 1 + (number / 2) as u16 % streams;
        attacked.say_of(stranger, circ, (stream, Command::Relay, payload));
    }
    begun.elapsed().saturating_sub(waited() - before) / SIGNALS
}

/// A stranger stops and resumes its streams as fast as it can.
#[test]
fn work_for_flow_control_of_thousands_of_streams_is_bounded() {
    let (few, many) = (shortest(|| work_per_signal(4)), shortest(|| work_per_signal(4096)));
    eprintln!("{few:?} a message with 4 streams, {many:?} with 4,096");
    assert!(many < few * 15, "{few:?} with 4 streams, {many:?} with 4,096");
}
